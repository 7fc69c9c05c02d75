//! Instances come and go, hosts stop and start: no run can tell.

use std::sync::Arc;
use std::time::Duration;

use onemark::clock::{ManualClock, SystemClock};
use onemark::engine::{Engine, EngineConfig, Verdict};
use onemark::ids::RunId;
use onemark::journal::RunStatus;
use onemark::store::MemoryStore;
use onemark_tests::{Marks, StoreKind, TestHost, sandbox_with};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Runs that only wait make room for one that has something to do, though nobody's idle time is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_run_makes_room() {
    let idle = Duration::from_secs(3_600);
    let config = EngineConfig {
        idle,
        max_resident: 1,
        ..EngineConfig::default()
    };
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let marks = Marks::start().await;
    let http = [marks.authority()];
    let host = TestHost::with(StoreKind::Memory, config, Some(clock), &http).await;
    // At work when the other comes; then asleep for ever, since the clock does not move.
    marks.hold("slow");
    let asleep = host
        .start("slow_then_asleep", json!({ "marks": marks.url() }))
        .await;
    marks.reached("slow", 1).await;
    let quick = host.start("sequence", json!({ "n": 3 })).await;
    assert_eq!(host.engine.run(&quick).await.unwrap().status, RunStatus::Pending);
    marks.let_go();
    assert_eq!(host.output(&quick).await, 3);
    assert_eq!(
        host.engine.run(&asleep).await.unwrap().status,
        RunStatus::Suspended
    );
}

/// Runs, steps, closures and replays wait for room; none of them fails for want of it.
#[tokio::test(flavor = "multi_thread")]
async fn more_at_once_than_the_sandbox_has_room_for() {
    for (kind, instances) in [
        (StoreKind::Memory, 2),
        (StoreKind::Sqlite, 3),
        (StoreKind::Memory, 12),
    ] {
        let host = TestHost::with_room_for(kind, instances).await;
        let asleep = host.start("sleeps", json!({ "lengths_ms": [3_600_000] })).await;
        let mut runs = Vec::new();
        for n in 0..6 {
            runs.push(host.start("sequence", json!({ "n": 5 + n })).await);
            runs.push(host.start("fanout", json!({ "n": 20 })).await);
            runs.push(host.start("captures", json!({ "words": ["a", "b"] })).await);
        }
        runs.push(host.start("many_children", json!({ "n": 5 })).await);
        for run in &runs {
            host.output(run).await;
            assert!(!host.events(run).await.contains(&"attempt_failed"), "{instances}");
        }
        let mut replays = tokio::task::JoinSet::new();
        for run in runs {
            let engine = host.engine.clone();
            replays.spawn(async move { engine.replay(&run, None).await.unwrap().verdict });
        }
        let verdicts = replays.join_all().await;
        assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Agrees));
        assert_eq!(
            host.engine.run(&asleep).await.unwrap().status,
            RunStatus::Suspended
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_without_room_for_a_workflow_and_a_step_is_refused() {
    let store = Arc::new(MemoryStore::new());
    let (sandbox, clock) = (sandbox_with(&[], 1), Arc::new(SystemClock));
    let opened = Engine::open(store, sandbox, clock, EngineConfig::default()).await;
    let error = opened.err().expect("it does not start").to_string();
    assert!(
        error.contains("room for 1 instances") && error.contains("two at least"),
        "{error}"
    );
}

/// What is done to a host while its runs are at work.
#[derive(Debug, Clone)]
struct Disturbance {
    idle_ms: u64,
    max_resident: usize,
    /// The host is started again when its runs have made that many entries more.
    restarts: Vec<u64>,
}

fn disturbance() -> impl Strategy<Value = Disturbance> {
    (0..3u64, 1..4usize, prop::collection::vec(0..25u64, 0..5)).prop_map(
        |(idle_ms, max_resident, restarts)| Disturbance {
            idle_ms,
            max_resident,
            restarts,
        },
    )
}

/// Workflow, input, token, payloads and outcome; `None` where the outcome is the run's own.
type Mixed = (&'static str, Value, &'static str, Vec<Value>, Option<Value>);

fn mix() -> Vec<Mixed> {
    let update = |n: u64| json!({ "n": n, "last": n == 3 });
    vec![
        ("sequence", json!({ "n": 6 }), "a", vec![], Some(json!(15))),
        (
            "fanout",
            json!({ "n": 8 }),
            "b",
            vec![],
            Some(json!([1, 2, 3, 4, 5, 6, 7, 8])),
        ),
        ("select_loop", json!({ "n": 5 }), "c", vec![], Some(json!(10))),
        ("observes", json!({ "rounds": 4 }), "d", vec![], None),
        (
            "handles_trouble",
            json!({ "kind": "busy", "retries": 2 }),
            "e",
            vec![],
            Some(json!("error after 3: busy(attempt 3)")),
        ),
        (
            "sleeps",
            json!({ "lengths_ms": [3, 0, 5] }),
            "f",
            vec![],
            Some(json!(null)),
        ),
        (
            "follow",
            json!({ "id": "1" }),
            "order:1",
            (1..=3).map(update).collect(),
            Some(json!([1, 2, 3])),
        ),
        (
            "reopens",
            json!({ "token": "g", "rounds": 1 }),
            "g",
            vec![json!(1), json!(2)],
            Some(json!([true, 1, 2])),
        ),
        ("races", json!({ "rounds": 3 }), "h", vec![json!(0); 3], None),
    ]
}

async fn entries(host: &TestHost, runs: &[RunId]) -> (u64, bool) {
    let (mut entries, mut live) = (0, false);
    for run in runs {
        let info = host.engine.run(run).await.expect("the run is there");
        entries += info.entries;
        live |= !info.status.is_terminal();
    }
    (entries, live)
}

async fn disturbed(disturbance: Disturbance) {
    let config = EngineConfig {
        idle: Duration::from_millis(disturbance.idle_ms),
        max_resident: disturbance.max_resident,
        ..EngineConfig::default()
    };
    let mut host = TestHost::with(StoreKind::Sqlite, config, None, &[]).await;
    let mut runs = Vec::new();
    for (workflow, input, token, payloads, _) in mix() {
        let tokens: &[&str] = if token.contains(':') { &[] } else { &[token] };
        runs.push(host.start_with(workflow, input, tokens).await);
        for payload in payloads {
            host.deliver(token, payload).await.expect("the hook is open");
        }
    }
    for after in disturbance.restarts {
        let (from, _) = entries(&host, &runs).await;
        loop {
            let (now, live) = entries(&host, &runs).await;
            if now >= from + after || !live {
                break;
            }
            tokio::task::yield_now().await;
        }
        host = host.restart().await;
    }
    for (run, (workflow, .., expected)) in runs.iter().zip(mix()) {
        let output = host.output(run).await;
        assert!(
            expected.is_none_or(|expected| output == expected),
            "{workflow}: {output}"
        );
        host.agrees(run).await;
    }
}

proptest! {
    // Each case is nine runs on a database.
    #![proptest_config(ProptestConfig {
        cases: 8,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn evictions_and_restarts_change_no_outcome(disturbance in disturbance()) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(disturbed(disturbance));
    }
}
