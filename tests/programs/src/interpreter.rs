//! A workflow that does what its input says: a program of steps, waits, children and whatever differs from one
//! moment or machine to the next. Tests make such programs up.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use onemark_sdk::prelude::*;
use onemark_sdk::{child, emit, for_each_bounded, random_range, select_all};
use serde_json::{Value, json};

/// One thing that a program does.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Its first `busy` attempts fail, and then it gives twice `n`, or fails for good.
    Step {
        n: u64,
        busy: u32,
        fatal: bool,
        ms: u64,
    },
    Closure {
        n: u64,
        busy: u32,
    },
    Sleep {
        ms: u64,
    },
    /// Opens a hook and takes so many payloads.
    Hook {
        token: String,
        take: u32,
        end: End,
    },
    /// All at once, to their ends.
    Join(Vec<Vec<Op>>),
    /// All at once, up to the first failure.
    TryJoin(Vec<Vec<Op>>),
    /// All, so many at a time.
    Bounded {
        at_once: usize,
        parts: Vec<Vec<Op>>,
    },
    /// All at once, up to the first end.
    Select(Vec<Vec<Op>>),
    Timeout {
        ms: u64,
        body: Vec<Op>,
    },
    Child {
        program: Vec<Op>,
        /// Its start is awaited first, then its end.
        by_handle: bool,
    },
    Repeat {
        times: u64,
        body: Vec<Op>,
    },
    /// A failure becomes a value.
    Catch(Vec<Op>),
    /// Starts `hears_program`.
    Emit {
        n: u64,
    },
    Tag {
        name: String,
        value: u64,
    },
    Write {
        stream: String,
        chunks: u64,
    },
    Log {
        n: u64,
    },
    Random,
    Now,
    Map {
        n: u64,
    },
    Float {
        x: f64,
    },
    Address,
}

/// What becomes of a hook whose payloads were taken.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    Leave,
    Close,
    Dispose,
}

/// What a program has seen of the world, in the order in which it saw it.
struct World {
    began: Instant,
    seen: RefCell<Vec<String>>,
    digest: Cell<u64>,
}

impl World {
    /// Keeps what was seen: each later step has all of it in its input, which every replay compares.
    fn saw(&self, what: String) {
        let digest = what.bytes().fold(self.digest.get(), |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        self.digest.set(digest);
        self.seen.borrow_mut().push(what);
    }
}

/// The value is what follows from the program and the payloads alone, whatever came first; the rest of what was seen is
/// beside it.
#[workflow]
async fn interprets(program: Vec<Op>, path: String) -> WorkflowResult<Value> {
    let world = World {
        began: Instant::now(),
        seen: RefCell::default(),
        digest: Cell::new(0xcbf2_9ce4_8422_2325),
    };
    let value = all(&program, &world, path).await.map_err(WorkflowError::new)?;
    Ok(json!({ "value": value, "seen": world.seen.into_inner() }))
}

/// Values, or the failure that ended it, in words that no attempt's number is in.
type Outcome = Result<Value, String>;

/// Programs hold programs, so what runs them holds itself.
type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

fn all<'a>(ops: &'a [Op], world: &'a World, path: String) -> Running<'a> {
    Box::pin(async move {
        let mut values = Vec::new();
        for op in ops {
            values.push(one(op, world, &path).await?);
        }
        Ok(values.into())
    })
}

/// The futures of several bodies.
fn parts<'a>(bodies: &'a [Vec<Op>], world: &'a World, path: &'a str) -> impl Iterator<Item = Running<'a>> {
    bodies.iter().map(move |body| all(body, world, path.to_owned()))
}

async fn one(op: &Op, world: &World, path: &str) -> Outcome {
    match op {
        Op::Step { n, busy, fatal, ms } => {
            let given = double(*n, *busy, *fatal, *ms, world.digest.get());
            let value = told("step", given.retries(RETRIES).backoff(Duration::ZERO).await)?;
            world.saw(format!("step {value}"));
            Ok(value.into())
        }
        Op::Closure { n, busy } => {
            let digest = world.digest.get();
            let work = || async {
                if step_info().attempt <= *busy {
                    return Err(StepFailed::retry("busy"));
                }
                Ok((n * 2, digest))
            };
            let closure = step("closure", work).retries(RETRIES).backoff(Duration::ZERO);
            let (value, seen) = told("closure", closure.await)?;
            assert_eq!(seen, digest, "the closure saw another world than the workflow");
            world.saw(format!("closure {value}"));
            Ok(value.into())
        }
        Op::Sleep { ms } => {
            told("sleep", sleep(Duration::from_millis(*ms)).await)?;
            world.saw(format!("slept {ms}"));
            Ok("slept".into())
        }
        Op::Hook { token, take, end } => payloads(&format!("{token}{path}"), *take, *end, world).await,
        Op::Join(bodies) => {
            let outcomes = join_all(parts(bodies, world, path)).await;
            outcomes.into_iter().collect()
        }
        Op::TryJoin(bodies) => Ok(try_join_all(parts(bodies, world, path)).await?.into()),
        Op::Bounded {
            at_once,
            parts: bodies,
        } => {
            let bodies = parts(bodies, world, path);
            let results = for_each_bounded(*at_once, bodies, |part| part, |_| ()).await;
            Ok(results.all()?.into())
        }
        Op::Select(bodies) => {
            let (outcome, first, _) = select_all(parts(bodies, world, path)).await;
            world.saw(format!("first {first}"));
            Ok(json!({ "first": first, "value": outcome? }))
        }
        Op::Timeout { ms, body } => {
            let limit = Duration::from_millis(*ms);
            match timeout(limit, all(body, world, path.to_owned())).await {
                Ok(outcome) => outcome,
                Err(late) => {
                    world.saw(format!("late {ms}"));
                    Ok(late.kind.as_str().into())
                }
            }
        }
        Op::Child { program, by_handle } => {
            let call = child::<Value>("interprets", json!({ "program": program, "path": path }));
            let outcome = if *by_handle {
                let started = told("child", call.start().await)?;
                world.saw(format!("child {}", started.run_id()));
                started.outcome().await
            } else {
                call.await
            };
            let mut outcome = told("child", outcome)?;
            world.saw(format!("child ended {outcome}"));
            Ok(outcome["value"].take())
        }
        Op::Repeat { times, body } => {
            let mut values = Vec::new();
            for n in 0..*times {
                values.push(all(body, world, format!("{path}.{n}")).await?);
            }
            Ok(values.into())
        }
        Op::Catch(body) => match all(body, world, path.to_owned()).await {
            Ok(value) => Ok(value),
            Err(failure) => {
                world.saw(format!("caught {failure}"));
                Ok(json!({ "caught": failure }))
            }
        },
        Op::Emit { n } => {
            let emitted = told("emit", emit("program.heard", &json!({ "n": n })).await)?;
            world.saw(format!("emitted {emitted:?}"));
            Ok(emitted.len().into())
        }
        Op::Tag { name, value } => {
            told("tag", set_tag(name, &value.to_string()))?;
            Ok("tagged".into())
        }
        Op::Write { stream: name, chunks } => {
            for chunk in 0..*chunks {
                told("write", stream(name).write(&format!("{path}/{chunk}")))?;
            }
            Ok("written".into())
        }
        Op::Log { n } => {
            log::info!("{n} {:?}", world.seen.borrow().last());
            println!("{n}");
            Ok("logged".into())
        }
        Op::Random | Op::Now | Op::Map { .. } | Op::Float { .. } | Op::Address => {
            let (value, seen) = look(op, world);
            world.saw(seen);
            Ok(value)
        }
    }
}

/// More than kills and busy attempts can use up.
const RETRIES: u32 = 100;

#[step]
async fn double(n: u64, busy: u32, fatal: bool, ms: u64, seen: u64) -> Result<u64, StepFailed> {
    if ms > 0 {
        wstd::task::sleep(wstd::time::Duration::from_millis(ms)).await;
    }
    if step_info().attempt <= busy {
        return Err(StepFailed::retry(format!("busy, {seen} was seen")));
    }
    if fatal {
        return Err(StepFailed::fatal("as asked"));
    }
    Ok(n * 2)
}

/// What a failure is where its message may count attempts.
fn told<T, E>(call: &str, result: Result<T, Failure<E>>) -> Result<T, String> {
    result.map_err(|failure| format!("{call}: {}", failure.kind))
}

async fn payloads(token: &str, take: u32, end: End, world: &World) -> Outcome {
    fn failed(error: HookError) -> String {
        match error {
            HookError::Failed(failure) => format!("hook: {}", failure.kind),
            other => format!("hook: {other}"),
        }
    }
    let mut hook = Hook::<Value>::open(token).map_err(failed)?;
    world.saw(format!("opened {}", hook.token()));
    let mut taken = Vec::new();
    for _ in 0..take {
        let payload = hook.next().await.map_err(failed)?;
        world.saw(format!("took {payload:?}"));
        taken.push(payload);
    }
    match end {
        End::Leave => {}
        End::Close => hook.close().await.map_err(failed)?,
        End::Dispose => hook.dispose().await.map_err(failed)?,
    }
    Ok(json!(taken))
}

/// What the program can see without waiting: what every run sees, and what only this one does.
#[expect(
    clippy::disallowed_methods,
    reason = "guests may ask for the time; the host answers"
)]
fn look(op: &Op, world: &World) -> (Value, String) {
    let none = Value::Null;
    match op {
        Op::Random => (none, format!("drew {} {}", random(), random_range(0..1_000))),
        Op::Now => {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH);
            let seen = format!(
                "at {wall:?} {:?} {:?} in {}",
                now(),
                world.began.elapsed(),
                run_id()
            );
            (none, seen)
        }
        Op::Map { n } => {
            let map: HashMap<u64, u64> = (0..*n).map(|key| (key, key * key)).collect();
            let order: Vec<_> = map.keys().collect();
            (map.values().sum::<u64>().into(), format!("map {order:?}"))
        }
        Op::Float { x } => {
            let bits = bits(std::hint::black_box(*x));
            let seen = format!("floats {bits:x?}");
            (bits.into(), seen)
        }
        // What a program allocates stays, so that later addresses tell of it.
        Op::Address => {
            let address = Box::leak(Box::new(0_u64));
            (none, format!("address {address:p}"))
        }
        _ => unreachable!("it waits"),
    }
}

/// Bits of what is computed from a number, also where that is none.
#[expect(clippy::eq_op, reason = "infinity less itself is a NaN made at run time")]
fn bits(x: f64) -> Vec<u64> {
    let infinite = x.abs().max(1.0) / 0.0;
    let marked = f64::from_bits(0xfff8_dead_beef_0000 | x.to_bits() >> 52);
    let marked_small = f32::from_bits(0xffc0_0001 | (x.to_bits() >> 48) as u32);
    vec![
        (x / 3.0 + x.sqrt() * 1e-3).to_bits(),
        (-x.abs()).sqrt().to_bits(),
        (infinite - infinite).to_bits(),
        (std::hint::black_box(marked) * x).to_bits(),
        f64::from(std::hint::black_box(marked_small) + x as f32).to_bits(),
    ]
}

/// Starts with each [`Op::Emit`].
#[workflow(on = "program.heard")]
async fn hears_program(n: u64) -> WorkflowResult<u64> {
    Ok(double(n, 0, false, 0, 0).await?)
}
