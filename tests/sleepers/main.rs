//! A hundred thousand runs that sleep. In a binary of its own: it keeps the machine busy for a while, and other tests
//! have deadlines.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps what is not there has failed"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use onemark::clock::{Clock as _, ManualClock};
use onemark::engine::EngineConfig;
use onemark::journal::{RunStatus, Timestamp};
use onemark::store::{RunFilter, RunInfo};
use onemark_tests::{StoreKind, TestHost, request};
use serde_json::json;
use tokio::task::JoinSet;

const HOUR: Timestamp = 3_600_000;
const HOURS: u64 = 10;
const DUE_AT_ONCE: usize = 10_000;
const ALL: usize = HOURS as usize * DUE_AT_ONCE;

/// Longer than the slowest machine should take for any part.
const PATIENCE: Duration = Duration::from_secs(600);

/// 10,000 sleep until each full hour.
async fn fall_asleep(host: &TestHost) {
    for hour in 1..=HOURS {
        let input = json!({ "lengths_ms": [hour * HOUR] });
        for _ in 0..DUE_AT_ONCE / 500 {
            let mut starting = JoinSet::new();
            for _ in 0..500 {
                let (engine, input) = (host.engine.clone(), input.clone());
                starting.spawn(async move { engine.start(request("sleeps", input, &[])).await.map(drop) });
            }
            for started in starting.join_all().await {
                started.unwrap();
            }
        }
    }
}

async fn with_status(host: &TestHost, status: RunStatus) -> Vec<RunInfo> {
    let filter = RunFilter {
        status: Some(status),
        limit: 2 * ALL,
        ..RunFilter::default()
    };
    host.engine.runs(filter).await.unwrap()
}

/// Waits until so many have ended, and says when each did.
async fn ended(host: &TestHost, count: usize) -> Vec<Option<Timestamp>> {
    let began = Instant::now();
    loop {
        host.engine.idle().await;
        let ended = with_status(host, RunStatus::Completed).await;
        if ended.len() >= count {
            assert_eq!(ended.len(), count);
            return ended.iter().map(|run| run.ended_at).collect();
        }
        assert!(began.elapsed() < PATIENCE, "{} of {count} woke", ended.len());
    }
}

/// None of them has an instance, none wakes early, and none is lost: 10,000 are due at once after a restart, and then,
/// when nobody was there for nine hours, all that are left.
#[tokio::test(flavor = "multi_thread")]
async fn e02_a_hundred_thousand_runs_sleep_and_wake_on_time() {
    let config = EngineConfig {
        idle: Duration::ZERO,
        max_resident: 100,
        ..EngineConfig::default()
    };
    let start = 1_800_000_000_000;
    let clock = Arc::new(ManualClock::new(start));
    let host = TestHost::with(StoreKind::Sqlite, config, Some(clock.clone()), &[]).await;
    fall_asleep(&host).await;
    host.engine.idle().await;
    let asleep = with_status(&host, RunStatus::Suspended).await;
    assert_eq!(asleep.len(), ALL);
    let host = host.restart().await;

    clock.set(start + HOUR - 1);
    // Others had their chance to wake too early.
    host.completes("sleeps", json!({ "lengths_ms": [0] })).await;
    assert_eq!(ended(&host, 1).await, [Some(clock.now())]);

    clock.set(start + HOUR);
    let woke = ended(&host, 1 + DUE_AT_ONCE).await;
    let on_time = woke.iter().filter(|at| **at == Some(start + HOUR));
    assert_eq!(on_time.count(), DUE_AT_ONCE);

    clock.set(start + HOURS * HOUR);
    let woke = ended(&host, 1 + ALL).await;
    let on_time = woke.iter().filter(|at| **at == Some(start + HOURS * HOUR));
    assert_eq!(on_time.count(), ALL - DUE_AT_ONCE);
    assert_eq!(with_status(&host, RunStatus::Suspended).await.len(), 0);
}
