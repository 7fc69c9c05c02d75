//! Fan-outs that are larger than what a commit takes up at once: steps begin while others are still written.

use std::time::Duration;

use onemark::engine::EngineConfig;
use onemark::ids::RunId;
use onemark::journal::{RunStatus, Seq};
use onemark_tests::{Marks, StoreKind, TestHost, fork, on_each_store};
use serde_json::json;

/// Several times what a commit takes up.
const MANY: usize = 1_000;

on_each_store!(
    every_step_is_written_while_the_first_ones_run,
    steps_without_an_attempt_end_when_the_run_is_cancelled,
    a_run_goes_on_from_every_part_of_a_fan_out,
);

/// Waits until the journal holds so many entries of this name.
async fn written(host: &TestHost, run: &RunId, event: &str, wanted: usize) {
    let looking = async {
        while count(host, run, event).await < wanted {
            tokio::task::yield_now().await;
        }
    };
    let looked = tokio::time::timeout(Duration::from_secs(60), looking).await;
    looked.unwrap_or_else(|_| panic!("{wanted} times {event}"));
}

async fn count(host: &TestHost, run: &RunId, event: &str) -> usize {
    host.events(run).await.iter().filter(|e| **e == event).count()
}

/// A run whose steps are all written, and as many of them at work as may be.
async fn held(kind: StoreKind) -> (TestHost, Marks, RunId) {
    let marks = Marks::start().await;
    let host = TestHost::with(kind, EngineConfig::default(), None, &[marks.authority()]).await;
    marks.hold("mark");
    let names = vec!["mark"; MANY];
    let run = host
        .start(
            "leave_marks_together",
            json!({ "marks": marks.url(), "names": names }),
        )
        .await;
    marks
        .reached("mark", EngineConfig::default().max_attempts_per_run)
        .await;
    // Nothing ends, and still every step becomes visible.
    written(&host, &run, "step_scheduled", MANY).await;
    assert_eq!(count(&host, &run, "step_completed").await, 0);
    (host, marks, run)
}

async fn every_step_is_written_while_the_first_ones_run(kind: StoreKind) {
    let (host, marks, run) = held(kind).await;
    let begun = EngineConfig::default().max_attempts_per_run;
    let host = host.restart().await;
    marks.let_go();
    assert_eq!(host.output(&run).await, json!(null));
    // Those that were cut off ran again, the others once.
    assert_eq!(marks.count("mark"), MANY + begun);
    assert_eq!(count(&host, &run, "step_scheduled").await, MANY);
    assert_eq!(count(&host, &run, "step_completed").await, MANY);
    host.agrees(&run).await;
}

async fn steps_without_an_attempt_end_when_the_run_is_cancelled(kind: StoreKind) {
    let (host, marks, run) = held(kind).await;
    let begun = EngineConfig::default().max_attempts_per_run;
    host.engine.cancel(&run).await.unwrap();
    written(&host, &run, "step_failed", MANY - begun).await;
    marks.let_go();
    assert_eq!(host.ended(&run).await.status, RunStatus::Cancelled);
    assert_eq!(marks.count("mark"), begun);
    assert_eq!(count(&host, &run, "step_scheduled").await, MANY);
    host.agrees(&run).await;
}

/// What a crash after any commit leaves is the journal up to some entry.
async fn a_run_goes_on_from_every_part_of_a_fan_out(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (run, output) = host.completes("fanout", json!({ "n": MANY })).await;
    let journal = host.journal(&run).await;
    for at in (1..journal.len() - 1).step_by(journal.len() / 12) {
        let fork = host.engine.fork(fork(&run, at as Seq)).await.unwrap().run_id;
        assert_eq!(host.output(&fork).await, output, "forked at {at}");
        assert_eq!(count(&host, &fork, "step_scheduled").await, MANY);
        assert_eq!(count(&host, &fork, "step_completed").await, MANY);
        host.agrees(&fork).await;
    }
}
