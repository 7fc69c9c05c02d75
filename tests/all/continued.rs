//! Runs that go on as new ones.

use std::time::Duration;

use onemark::journal::{CancelReason, Event, Lineage, RunStatus};
use onemark::store::{HookState, RunFilter, RunInfo};
use onemark_tests::{StoreKind, TestHost, json_of};
use serde_json::json;

/// The runs of a workflow, oldest first.
async fn chain(host: &TestHost, workflow: &str) -> Vec<RunInfo> {
    let filter = RunFilter {
        workflow: Some(workflow.to_owned()),
        limit: 1_000,
        ..RunFilter::default()
    };
    let mut runs = host.engine.runs(filter).await.unwrap();
    runs.reverse();
    runs
}

async fn agree(host: &TestHost, runs: &[RunInfo]) {
    for run in runs {
        host.agrees(&run.id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e08_tokens_payloads_and_results_follow_the_chain() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::on(kind).await;
        let first = host
            .start("sums", json!({ "name": "a", "total": 0, "a_run": 2 }))
            .await;
        for n in 1..=7 {
            host.deliver("sum:a", json!(n)).await.unwrap();
        }
        let host = host.restart().await;
        host.deliver("sum:a", json!(0)).await.unwrap();
        // Whoever asked for the first gets the last one's outcome.
        let result = host.ended(&first).await;
        assert_eq!(json_of(result.output.as_deref()), json!(28));
        let runs = chain(&host, "sums").await;
        assert_eq!(runs.len(), 4);
        assert_eq!(result.run_id, runs[3].id);
        for pair in runs.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            assert_eq!(before.status, RunStatus::Continued);
            let journal = host.journal(&before.id).await;
            assert_eq!(
                journal.last().unwrap().event,
                Event::Continued {
                    run: after.id.clone()
                }
            );
            let Event::Started(started) = &host.journal(&after.id).await[0].event else {
                panic!("entry 0 is the start");
            };
            assert_eq!(
                started.lineage,
                Some(Lineage::Continued {
                    from: before.id.clone()
                })
            );
        }
        // The token is the last one's; it stays taken as long as the first start said.
        let hook = host.hook("sum:a").await.unwrap();
        assert_eq!(
            (hook.run_id, hook.state),
            (runs[3].id.clone(), HookState::Retained)
        );
        assert_eq!(hook.retained_until, runs[0].created_at + 3_600_000);
        agree(&host, &runs).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e08_parents_follow_the_chain() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::on(kind).await;
        let input = json!({ "workflow": "counts_down", "input": { "n": 3 } });
        let (run, output) = host.completes("strict_parent", input).await;
        let runs = chain(&host, "counts_down").await;
        assert_eq!(output, json!(runs[3].id));
        assert!(runs.iter().all(|child| child.parent == Some(run.clone())));
        host.agrees(&run).await;
        agree(&host, &runs).await;
    }
}

/// A request to cancel that a run has observed is its own affair.
#[tokio::test(flavor = "multi_thread")]
async fn e08_a_cancel_that_was_observed_stays_behind() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::with_clock(kind).await;
        let next = json!({ "input": {}, "ms": 1_000_000 });
        let run = host.start("goes_on", json!({ "input": next, "ms": 1_000 })).await;
        host.reached(&run, RunStatus::Suspended).await;
        host.engine.cancel(&run).await.unwrap();
        host.reached(&run, RunStatus::Continued).await;
        let runs = chain(&host, "goes_on").await;
        let info = host.reached(&runs[1].id, RunStatus::Suspended).await;
        assert_eq!(info.cancel_requested, None);
        host.engine.cancel(&info.id).await.unwrap();
        let info = host.until(&info.id, |info| info.status.is_terminal()).await;
        assert_eq!(info.cancel_requested, Some(CancelReason::Requested));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_go_on_fails_and_says_why() {
    let host = TestHost::new().await;
    let cases = [
        (
            json!({ "input": { "input": 1, "ms": 0 }, "ms": 0 }),
            "done nothing",
        ),
        (json!({ "input": { "ms": 0 }, "ms": 1 }), "input"),
        (json!({ "input": [], "ms": 1 }), "an object"),
    ];
    for (input, why) in cases {
        let run = host.start("goes_on", input).await;
        let result = host.ended(&run).await;
        assert_eq!(result.status, RunStatus::Failed);
        let error = json_of(result.error.as_deref());
        assert_eq!(error["kind"], "invalid");
        assert!(error["message"].as_str().unwrap().contains(why), "{error}");
        host.agrees(&run).await;
    }
    assert_eq!(chain(&host, "goes_on").await.len(), 3);
}

/// Over any number of restarts the chain has each link once.
#[tokio::test(flavor = "multi_thread")]
async fn e08_over_restarts() {
    let mut host = TestHost::new().await;
    let run = host.start("counts_down", json!({ "n": 6 })).await;
    for _ in 0..3 {
        host.engine.result(&run, Duration::from_millis(5)).await.unwrap();
        host = host.restart().await;
    }
    let result = host.engine.result(&run, Duration::from_secs(60)).await.unwrap();
    assert_eq!(result.status, RunStatus::Completed);
    let runs = chain(&host, "counts_down").await;
    assert_eq!(runs.len(), 7);
    assert_eq!(json_of(result.output.as_deref()), json!(runs[6].id));
    agree(&host, &runs).await;
}
