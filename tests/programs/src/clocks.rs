//! Everything that differs from one moment or machine to the next.

use std::collections::HashMap;
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
#[expect(clippy::eq_op, reason = "0/0 is a NaN made at run time")]
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
        (zero / zero).to_bits(),
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
