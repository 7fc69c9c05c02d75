//! Everything that differs from one moment or machine to the next.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use onemark_sdk::prelude::*;

#[step]
async fn note(text: String) -> Result<u64, StepFailed> {
    Ok(text.len() as u64)
}

#[expect(
    clippy::disallowed_methods,
    reason = "guests may ask for the time; the host answers"
)]
fn observe(began: Instant) -> String {
    let map: HashMap<u32, u32> = (0..20).map(|n| (n, n)).collect();
    let order: Vec<_> = map.keys().collect();
    let zero = std::hint::black_box(0.0_f64);
    format!(
        "{:?} {:?} {:?} {} {} {order:?} {:016x} {:p}",
        SystemTime::now().duration_since(UNIX_EPOCH),
        now().duration_since(UNIX_EPOCH),
        began.elapsed(),
        random(),
        onemark_sdk::random_range(0..1_000_000),
        (zero / -zero).to_bits(),
        &*Box::new(1u8),
    )
}

/// What the guest sees of time, randomness, hash order, NaN bits and addresses, before and after waits. As
/// each step's input it is compared in every replay.
#[workflow]
async fn observes(rounds: u64) -> WorkflowResult<Vec<String>> {
    let began = Instant::now();
    let mut seen = Vec::new();
    for round in 0..rounds {
        let text = observe(began);
        note(text.clone()).await?;
        sleep(Duration::from_millis(round)).await?;
        seen.push(text);
    }
    Ok(seen)
}

/// One source of what differs, by itself.
#[expect(
    clippy::disallowed_methods,
    reason = "guests may ask for the time; the host answers"
)]
fn observe_one(source: &str, began: Instant) -> Result<String, String> {
    let zero = std::hint::black_box(0.0_f64);
    Ok(match source {
        "wall clock" => format!("{:?}", SystemTime::now()),
        "monotonic clock" => format!("{:?} {:?}", Instant::now(), began.elapsed()),
        "now" => format!("{:?}", now()),
        "random" => random().to_string(),
        "random range" => onemark_sdk::random_range(0..1_000_000_000).to_string(),
        "random bytes" => {
            let mut bytes = [0; 16];
            wstd::rand::get_random_bytes(&mut bytes);
            format!("{bytes:?}")
        }
        "insecure random bytes" => {
            let mut bytes = [0; 16];
            wstd::rand::get_insecure_random_bytes(&mut bytes);
            format!("{bytes:?}")
        }
        "hash keys" => RandomState::new().hash_one(7).to_string(),
        "map" => {
            let map: HashMap<u32, u32> = (0..20).map(|n| (n, n)).collect();
            format!("{:?}", map.keys().collect::<Vec<_>>())
        }
        "set" => {
            let set: HashSet<String> = (0..20).map(|n| n.to_string()).collect();
            format!("{set:?}")
        }
        "nan" => format!(
            "{:x} {:x}",
            (zero / -zero).to_bits(),
            (-1.0 - zero).sqrt().to_bits()
        ),
        "nan with a payload" => {
            let marked = std::hint::black_box(f64::from_bits(0xfff8_dead_beef_0001));
            format!("{:x} {:x}", (marked + 1.0).to_bits(), (1.0 - marked).to_bits())
        }
        "small nan" => {
            let marked = std::hint::black_box(f32::from_bits(0xffc0_0123));
            format!("{:x}", (marked * 2.0).to_bits())
        }
        "heap address" => format!("{:p}", Box::leak(Box::new(1_u8))),
        "stack address" => format!("{:p}", &zero),
        "run" => format!("{} {}", run_id(), onemark_sdk::workflow_name()),
        "threads" => format!(
            "{:?}",
            std::thread::available_parallelism().map_err(|error| error.kind())
        ),
        other => return Err(format!("nothing differs by `{other}`")),
    })
}

/// As [`observes`], of one source.
#[workflow]
async fn observes_one(source: String, rounds: u64) -> WorkflowResult<Vec<String>> {
    let began = Instant::now();
    let mut seen = Vec::new();
    for round in 0..rounds {
        let text = observe_one(&source, began)?;
        note(text.clone()).await?;
        sleep(Duration::from_millis(round)).await?;
        seen.push(text);
    }
    Ok(seen)
}
