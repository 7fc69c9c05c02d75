//! Closure steps.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::SystemTime;

use onemark_sdk::prelude::*;

use crate::marks;

#[step]
async fn plain_step(text: &str) -> Result<String, StepFailed> {
    Ok(text.to_uppercase())
}

/// Closures that use what is around them, one after another and together, beside a step.
#[workflow]
async fn captures(words: Vec<String>) -> WorkflowResult<Vec<String>> {
    let joined = step("join", || async { Ok(words.join(" ")) }).await?;
    let prefix = format!("{}:", words.len());
    let (first, upper, last) = try_join!(
        step("first", || async { Ok(format!("{prefix}{}", words[0])) }),
        plain_step(&joined),
        step("last", || async {
            Ok(format!("{prefix}{}", words[words.len() - 1]))
        }),
    )?;
    // A `#[step]` that is called in a step is a plain function.
    let inner = step("inner", || async { Ok(plain_step(&prefix).await?) }).await?;
    Ok(vec![joined, first, upper, last, inner])
}

static CHANGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Closures that do to memory what would show: they allocate, leak, hash, lock, and one panics. Then what a workflow
/// can see of its own memory.
#[workflow]
async fn wild_closures(rounds: u64) -> WorkflowResult<Vec<String>> {
    let mut seen = Vec::new();
    for round in 0..rounds {
        let words: HashMap<u64, String> = (0..20).map(|n| (n, format!("{round}-{n}"))).collect();
        let local = Mutex::new(round);
        let sum = step("wild", || async {
            Box::leak(vec![7_u8; 10_000 + usize::try_from(round)?].into_boxed_slice());
            let more: HashMap<String, u64> = words.iter().map(|(n, word)| (word.clone(), *n)).collect();
            CHANGED
                .lock()
                .expect("nobody panics with it")
                .push(format!("round {round}"));
            *local.lock().expect("nobody panics with it") += 100;
            assert!(step_info().attempt > 1 || round % 2 == 0, "on purpose");
            Ok(more.values().sum::<u64>())
        })
        .backoff(Duration::from_millis(1))
        .await?;
        let order: Vec<_> = words.keys().map(ToString::to_string).collect();
        let new = Box::new(sum);
        seen.push(format!(
            "{sum} at {:p}, local {:?}, changed {:?}, order {}",
            &*new,
            local.into_inner(),
            CHANGED.lock().map(|changed| changed.len()),
            order.join(" ")
        ));
        std::mem::forget(new);
        sleep(Duration::from_millis(1)).await?;
    }
    Ok(seen)
}

/// Time and random numbers: the run's outside the closure, real ones inside.
#[workflow]
async fn closure_sees() -> WorkflowResult<Vec<String>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "guests may ask for the time; the host answers"
    )]
    fn time() -> Result<String, StepFailed> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        Ok(since.as_millis().to_string())
    }
    let outside = time().map_err(WorkflowError::new)?;
    let look = || async {
        let info = step_info();
        let map: HashMap<u8, u8> = (0..9).map(|n| (n, n)).collect();
        Ok(vec![
            time()?,
            random().to_string(),
            info.idempotency_key,
            map.len().to_string(),
        ])
    };
    let (mut a, b) = try_join!(step("look", look), step("look", look))?;
    a.extend(b);
    a.push(outside);
    Ok(a)
}

/// Leaves marks from closures, one after another.
#[workflow]
async fn marks_from_closures(marks: String, names: Vec<String>) -> WorkflowResult<()> {
    for name in &names {
        let leave = || async { marks::leave(&marks, name).await };
        step(format!("leave {name}"), leave)
            .backoff(Duration::from_millis(1))
            .await?;
    }
    Ok(())
}

/// What happens to a closure that does not end well.
#[workflow]
async fn closure_trouble(how: String, timeout_ms: u64) -> WorkflowResult<String> {
    let ended = step("trouble", || async {
        match how.as_str() {
            "fatal" => Err(StepFailed::fatal("as asked")),
            "retry" => Err(StepFailed::retry("as asked")),
            "panic" => panic!("as asked"),
            "loop" => loop {
                std::hint::black_box(0);
            },
            "sleep" => match sleep(Duration::from_secs(1)).await {
                Ok(()) => Ok("slept".to_owned()),
                Err(failure) => Ok(format!("{}: {}", failure.kind, failure.message)),
            },
            "hook" => match Hook::<String>::open("a token") {
                Ok(_) => Ok("opened".to_owned()),
                Err(error) => Ok(error.to_string()),
            },
            other => Ok(other.to_owned()),
        }
    });
    let ended = ended
        .retries(1)
        .backoff(Duration::from_millis(1))
        .timeout(Duration::from_millis(timeout_ms));
    match ended.await {
        Ok(value) => Ok(value),
        Err(failure) => Ok(format!(
            "{} after {}: {}",
            failure.kind,
            failure.attempts.unwrap_or(0),
            failure.message
        )),
    }
}

/// N closures, one after another.
#[workflow]
async fn closure_sequence(n: u64) -> WorkflowResult<u64> {
    let mut sum = 0;
    for i in 0..n {
        sum = step("add", || async { Ok(sum + i) }).await?;
    }
    Ok(sum)
}

/// Closures in rows, which other things interrupt: what each sees of all before it.
#[workflow]
async fn closure_rows(n: u64) -> WorkflowResult<Vec<String>> {
    let mut seen: Vec<String> = Vec::new();
    for i in 0..n {
        let drawn = random();
        let look = || async {
            if i % 8 == 4 && step_info().attempt == 1 {
                return Err(StepFailed::retry("the first time"));
            }
            let letters: usize = seen.iter().map(String::len).sum();
            Ok(format!("{i}: {} before, {letters} letters, {drawn}", seen.len()))
        };
        let closure = || step("look", look).backoff(Duration::from_millis(1));
        let entry = match i % 8 {
            5 => plain_step("between").await?,
            6 => {
                sleep(Duration::from_millis(1)).await?;
                closure().await?
            }
            7 => {
                let (a, b) = try_join!(closure(), closure())?;
                assert_eq!(a, b);
                a
            }
            _ => closure().await?,
        };
        seen.push(entry);
    }
    Ok(seen)
}

/// N closures at once, each with a hook that was opened just before.
#[workflow]
async fn closures_together(n: u64) -> WorkflowResult<Vec<String>> {
    let hook = Hook::<String>::open(format!("together:{}", run_id()))?;
    let all = (0..n).map(|i| {
        let token = hook.token();
        step("one of many", move || async move { Ok(format!("{i} {token}")) })
    });
    Ok(try_join_all(all).await?)
}
