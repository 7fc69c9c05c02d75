//! Steps that wait for a person: of which nobody knows whether they took effect, that have no retries left, whose
//! key has expired.

use std::sync::Arc;
use std::time::Duration;

use onemark::clock::ManualClock;
use onemark::engine::{EngineConfig, Error, Resolution, RetryRequest};
use onemark::ids::RunId;
use onemark::journal::{Entry, Event, Limits, RunStatus};
use onemark::store::{BlockReason, Blocked, RunInfo, StoreError};
use onemark_tests::{Marks, Refuse, StoreKind, TestHost, on_each_store, variant};
use serde_json::{Value, json};

use crate::steps::attempts;

on_each_store!(
    c10_an_error_marked_unknown_is_not_tried_again,
    c10_what_returned_is_known,
    c10_a_closure_that_runs_at_most_once,
    c10_a_result_that_the_step_does_not_return_is_refused,
    c10_what_runs_beside_comes_to_its_end,
    c17_an_input_over_the_limit_is_a_typed_error,
    c17_a_result_over_the_limit_is_a_typed_error,
    c18_a_step_without_retries_left_waits_for_a_retry,
    c18_many_runs_are_let_go_on_at_once,
    c20_a_key_that_will_have_expired_blocks,
    c14_a_step_that_lost_is_not_tried_again,
    c15_a_result_that_cannot_be_saved_is_kept,
    c15_nothing_begins_at_most_once_without_its_entry,
);

async fn with_marks(kind: StoreKind) -> (TestHost, Marks) {
    let marks = Marks::start().await;
    // An endless loop ends soon.
    let limits = Limits {
        step_fuel: 500_000_000,
        ..Limits::default()
    };
    let config = EngineConfig {
        limits,
        ..EngineConfig::default()
    };
    let host = TestHost::with(kind, config, None, &[marks.authority()]).await;
    (host, marks)
}

fn once(marks: &Marks, how: &str, fail: bool) -> Value {
    json!({ "marks": marks.url(), "how": how, "fail": fail, "token": format!("once:{how}") })
}

/// Waits for the run to be blocked at this call.
async fn blocked(host: &TestHost, run: &RunId, reason: BlockReason, call: u32) -> Blocked {
    let result = host.ended(run).await;
    assert_eq!(result.status, RunStatus::Blocked, "{result:?}");
    let blocked = result.blocked.expect("it says why");
    assert_eq!(blocked.reason, reason, "{blocked:?}");
    let step = blocked.step.as_ref().expect("it is a step");
    assert_eq!(step.call, call);
    // People are told what it is about, and what to do.
    let named = [
        format!("step `{}`", step.name),
        format!("call {call}"),
        format!("`{}`", step.key),
        format!("`onemark runs resolve {run} --call {call}`"),
    ];
    for named in named {
        assert!(blocked.message.contains(&named), "{named}: {}", blocked.message);
    }
    blocked
}

fn result(value: Value) -> Resolution {
    Resolution::Result(value.to_string().into())
}

fn error(message: &str, error: Option<Value>) -> Resolution {
    Resolution::Error {
        message: message.into(),
        error,
    }
}

// ---- C10 -------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn c10_a_step_that_was_cut_off_with_its_host_is_not_run_again() {
    let (host, marks) = with_marks(StoreKind::Sqlite).await;
    marks.hold("done");
    let run = host.start("runs_once", once(&marks, "done", false)).await;
    marks.reached("done", 1).await;
    // That it begins is in the journal before it begins.
    let began = ["started", "step_scheduled", "attempt_started"];
    assert_eq!(host.events(&run).await, began);

    let host = host.restart().await;
    marks.release();
    let why = blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
    assert_eq!(why.step.as_ref().unwrap().key, "charge:done");
    assert_eq!(why.detail["kind"], "interrupted");
    assert_eq!(why.detail["outcome_unknown"], true);
    // Its token is held, and it stays so.
    let again = host
        .try_start("runs_once", once(&marks, "done", false), &[])
        .await;
    assert!(matches!(again, Err(Error::HookConflict { .. })), "{again:?}");
    let host = host.restart().await;
    assert_eq!(blocked(&host, &run, BlockReason::UnknownOutcome, 0).await, why);

    // Neither another step nor a plain retry is what it waits for.
    let before = host.everything().await;
    let other = host.engine.resolve_step(&run, Some(1), Resolution::Retry).await;
    assert!(
        matches!(other, Err(Error::BlockedElsewhere { call: 0, .. })),
        "{other:?}"
    );
    let retry = host.engine.retry(&run).await;
    assert!(matches!(retry, Err(Error::BlockedOtherwise { .. })), "{retry:?}");
    assert_eq!(host.everything().await, before);

    host.engine
        .resolve_step(&run, Some(0), result(json!("found out")))
        .await
        .unwrap();
    assert_eq!(host.output(&run).await, "found out");
    assert_eq!(marks.count("done"), 1);
    let left = ["attempt_started 1", "attempt_failed 1", "step_completed 1"];
    assert_eq!(attempts(&host.journal(&run).await, 0), left);
    host.agrees(&run).await;
    let late = host.engine.resolve_step(&run, Some(0), Resolution::Retry).await;
    assert!(matches!(late, Err(Error::RunEnded { .. })), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_a_person_supplies_an_error_or_another_try() {
    let (host, marks) = with_marks(StoreKind::Sqlite).await;
    let mut runs = Vec::new();
    for how in ["error", "typed", "retried", "failed"] {
        marks.hold(how);
        runs.push(host.start("runs_once", once(&marks, how, how == "failed")).await);
        marks.reached(how, 1).await;
    }
    let host = host.restart().await;
    marks.release();
    let [with_error, with_typed, retried, failed] = runs.try_into().unwrap();
    for run in [&with_error, &with_typed, &retried] {
        blocked(&host, run, BlockReason::UnknownOutcome, 0).await;
    }
    // Where the step says so, the workflow finds out by itself.
    let expected =
        "interrupted after 1, unknown true, typed false: the attempt was cut off before it returned";
    assert_eq!(host.output(&failed).await, expected);

    let resolve = async |run: &RunId, what| {
        host.engine.resolve_step(run, None, what).await.unwrap();
        host.output(run).await
    };
    let expected = "error after 0, unknown false, typed false: no charge there";
    assert_eq!(
        resolve(&with_error, error("no charge there", None)).await,
        expected
    );
    let expected = "error after 0, unknown false, typed true: declined";
    let declined = error("declined", Some(json!("Declined")));
    assert_eq!(resolve(&with_typed, declined).await, expected);
    assert_eq!(resolve(&retried, Resolution::Retry).await, "retried");

    for run in [with_error, with_typed, failed, retried.clone()] {
        host.agrees(&run).await;
    }
    let left: Vec<_> = marks
        .all()
        .into_iter()
        .filter(|mark| mark.name == "retried")
        .collect();
    assert_eq!(left.len(), 2);
    assert_eq!((left[0].attempt, left[1].attempt), (1, 2));
    assert!(left.iter().all(|mark| mark.key == "charge:retried"));
    let events = [
        "started",
        "step_scheduled",
        "attempt_started",
        "attempt_failed",
        "step_retried",
        "attempt_started",
        "step_completed",
        "completed",
    ];
    assert_eq!(host.events(&retried).await, events);
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_an_attempt_that_does_not_return_is_the_only_one() {
    let (host, marks) = with_marks(StoreKind::Sqlite).await;
    let cases = [
        ("loop", "timeout"),
        ("panic", "trap"),
        ("memory", "out_of_memory"),
        ("fuel", "out_of_fuel"),
    ];
    for (how, kind) in cases {
        let run = host.start("runs_once", once(&marks, how, false)).await;
        let why = blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
        assert_eq!(why.detail["kind"], kind, "{how}");
        host.engine
            .resolve_step(&run, None, result(json!("it did")))
            .await
            .unwrap();
        assert_eq!(host.output(&run).await, "it did");
        host.agrees(&run).await;

        let run = host.start("runs_once", once(&marks, how, true)).await;
        let output = host.output(&run).await;
        let expected = format!("{kind} after 1, unknown true, typed false: ");
        assert!(output.as_str().unwrap().starts_with(&expected), "{how}: {output}");
        assert_eq!(
            attempts(&host.journal(&run).await, 0),
            ["attempt_started 1", "step_failed 1"]
        );
        host.agrees(&run).await;
        assert_eq!(marks.count(how), 2, "{how}");
    }
}

async fn c10_an_error_marked_unknown_is_not_tried_again(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    let input = |fail| json!({ "marks": marks.url(), "how": "lost", "fail": fail });
    let run = host.start("runs_again", input(true)).await;
    let expected = "error after 1, unknown true, typed true: Lost";
    assert_eq!(host.output(&run).await, expected);
    host.agrees(&run).await;

    let run = host.start("runs_again", input(false)).await;
    let why = blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
    assert_eq!(why.detail["error"], "Lost");
    assert_eq!(marks.count("lost"), 2);
    host.engine
        .resolve_step(&run, None, Resolution::Retry)
        .await
        .unwrap();
    marks.reached("lost", 3).await;
    host.reached(&run, RunStatus::Blocked).await;
    host.engine
        .resolve_step(&run, None, result(json!("well")))
        .await
        .unwrap();
    assert_eq!(host.output(&run).await, "well");
    host.agrees(&run).await;
}

/// An error that was returned is known, and final: no second attempt.
async fn c10_what_returned_is_known(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    for (how, text) in [
        ("busy", "error after 1, unknown false, typed true: Busy"),
        ("declined", "error after 1, unknown false, typed true: Declined"),
        ("well", "well"),
    ] {
        let run = host.start("runs_once", once(&marks, how, false)).await;
        assert_eq!(host.output(&run).await, text);
        assert_eq!(marks.count(how), 1);
        host.agrees(&run).await;
    }
    let run = host.start("runs_once", once(&marks, "large", false)).await;
    let output = host.output(&run).await;
    let expected = "too_large after 1, unknown false";
    assert!(output.as_str().unwrap().starts_with(expected), "{output}");
}

async fn c10_a_result_that_the_step_does_not_return_is_refused(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    let run = host.start("runs_once", once(&marks, "panic", false)).await;
    blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
    let before = host.everything().await;
    for (call, wrong) in [
        (None, json!(7)),
        (Some(0), json!({ "id": "7" })),
        (None, json!(null)),
    ] {
        let refused = host.engine.resolve_step(&run, call, result(wrong.clone())).await;
        let Err(Error::InvalidResult { step, call: 0, .. }) = &refused else {
            panic!("{wrong}: {refused:?}")
        };
        assert_eq!(step, "once");
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("step `once`") && text.contains("is not of type \"string\""),
            "{text}"
        );
    }
    // Another step is refused for that, whatever is said of it.
    let other = host.engine.resolve_step(&run, Some(1), result(json!(7))).await;
    assert!(matches!(other, Err(Error::BlockedElsewhere { .. })), "{other:?}");
    assert_eq!(host.everything().await, before);
    host.engine
        .resolve_step(&run, None, result(json!("found out")))
        .await
        .unwrap();
    assert_eq!(host.output(&run).await, "found out");
    host.agrees(&run).await;

    // Of a closure no type is known.
    let input = json!({ "marks": marks.url(), "how": "panic", "fail": false });
    let run = host.start("closure_runs_once", input).await;
    blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
    host.engine
        .resolve_step(&run, None, result(json!(7)))
        .await
        .unwrap();
    let output = host.output(&run).await;
    assert!(output.as_str().unwrap().contains("does not fit"), "{output}");
}

async fn c10_a_closure_that_runs_at_most_once(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    marks.hold("held");
    let input = |how: &str, fail| json!({ "marks": marks.url(), "how": how, "fail": fail });
    let run = host.start("closure_runs_once", input("held", false)).await;
    marks.reached("held", 1).await;
    assert_eq!(host.events(&run).await.last(), Some(&"attempt_started"));
    let failed = host.start("closure_runs_once", input("panic", true)).await;
    let output = host.output(&failed).await;
    assert!(
        output.as_str().unwrap().starts_with("trap after 1, unknown true"),
        "{output}"
    );

    let host = host.restart().await;
    marks.release();
    blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
    host.engine
        .resolve_step(&run, None, Resolution::Retry)
        .await
        .unwrap();
    assert_eq!(host.output(&run).await, "held");
    assert_eq!(marks.count("held"), 2);
    for run in [run, failed] {
        host.agrees(&run).await;
    }
}

/// A run that moves to another component lets the attempt end.
#[tokio::test(flavor = "multi_thread")]
async fn c10_an_upgrade_cuts_nothing_off_that_runs_once() {
    let (host, marks) = with_marks(StoreKind::Sqlite).await;
    let mended = host.engine.deploy("mended", variant("mended")).await.unwrap();
    marks.hold("done");
    let input = once(&marks, "done", false);
    let workflow = "programs/runs_once";
    let run = host.start(workflow, input).await;
    marks.reached("done", 1).await;
    host.engine.upgrade(&run, mended.digest, false).await.unwrap();
    marks.let_go();
    assert_eq!(host.output(&run).await, "done");
    assert_eq!(marks.count("done"), 1);
    host.agrees(&run).await;
}

/// A run that is blocked begins nothing, and cuts nothing off.
async fn c10_what_runs_beside_comes_to_its_end(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    marks.hold("beside");
    let run = host
        .start("runs_once_beside", json!({ "marks": marks.url() }))
        .await;
    marks.reached("beside", 1).await;
    blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
    marks.let_go();
    let saved = |entries: &[String]| entries.last().is_some_and(|last| last == "step_completed 1");
    while !saved(&attempts(&host.journal(&run).await, 1)) {
        tokio::task::yield_now().await;
    }
    host.reached(&run, RunStatus::Blocked).await;
    assert_eq!(marks.count("third"), 0);
    host.engine
        .resolve_step(&run, None, result(json!("found")))
        .await
        .unwrap();
    assert_eq!(host.output(&run).await, json!(["found", "beside", "third"]));
    assert_eq!(marks.all().len(), 3);
    host.agrees(&run).await;
}

// ---- C14 -------------------------------------------------------------------------------------------

async fn c14_a_step_that_lost_is_not_tried_again(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    // One that runs, and one that waits for an hour to be tried again.
    for how in ["slow", "busy"] {
        let token = format!("c14:{how}");
        if how == "slow" {
            marks.hold("slow");
        }
        let input = json!({ "marks": marks.url(), "how": how });
        let run = host.start_with("loses_a_step", input, &[&token]).await;
        marks.reached(how, 1).await;
        if how == "busy" {
            host.until(&run, |info| info.wake_at.is_some()).await;
        }
        host.deliver(&token, json!("first")).await.unwrap();
        while !host.events(&run).await.contains(&"abandoned") {
            tokio::task::yield_now().await;
        }
        marks.let_go();
        host.deliver(&token, json!("second")).await.unwrap();
        assert_eq!(host.output(&run).await, r#"Some("first")"#);
        assert_eq!(marks.count(how), 1);
        let journal = host.journal(&run).await;
        let outcome = |event: &Event| event.completes_call() == Some(0);
        assert!(!journal.iter().any(|entry| outcome(&entry.event)), "{journal:?}");
        host.agrees(&run).await;
    }
    assert_eq!(marks.count("after"), 2);
}

// ---- C15 -------------------------------------------------------------------------------------------

async fn c15_a_result_that_cannot_be_saved_is_kept(kind: StoreKind) {
    let marks = Marks::start().await;
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let config = EngineConfig {
        max_attempts: 1,
        ..EngineConfig::default()
    };
    let http = [marks.authority()];
    let (host, store) = TestHost::with_faults(kind, config, Some(clock), &http).await;
    let leave = async |names: &[&str]| {
        let input = json!({ "marks": marks.url(), "names": names, "token": names[0] });
        host.start("leave_marks", input).await
    };
    marks.hold("first");
    let run = leave(&["first", "second"]).await;
    marks.reached("first", 1).await;
    // Waits for the only place among the attempts.
    let waits = leave(&["third"]).await;
    let asleep = host.start("sleeps", json!({ "lengths_ms": [1000] })).await;
    host.reached(&asleep, RunStatus::Suspended).await;
    for run in [&run, &waits] {
        host.until(run, |info| info.entries >= 2).await;
    }

    store.refuse(Refuse::Writes);
    host.advance(Duration::from_secs(1));
    store.refused(&asleep, 1).await;
    // The store is known to refuse: what is at work may end, and nothing begins.
    marks.let_go();
    store.refused(&run, 2).await;
    assert_eq!((marks.count("second"), marks.count("third")), (0, 0));
    let unsaved = host.journal(&run).await;
    assert!(!unsaved.iter().any(|entry| entry.event.completes_call().is_some()));
    // Nothing is acknowledged; looking works.
    let started = host.try_start("sleeps", json!({ "lengths_ms": [0] }), &[]).await;
    assert!(
        matches!(started, Err(Error::Store(StoreError::Unavailable(_)))),
        "{started:?}"
    );
    let delivered = host.deliver("first", json!(1)).await;
    assert!(
        matches!(delivered, Err(Error::Store(StoreError::Unavailable(_)))),
        "{delivered:?}"
    );

    store.refuse(Refuse::Nothing);
    for run in [&run, &waits, &asleep] {
        host.output(run).await;
        host.agrees(run).await;
    }
    let mut left: Vec<_> = marks
        .all()
        .into_iter()
        .map(|mark| (mark.name, mark.attempt))
        .collect();
    left.sort();
    let once = |name: &str| (name.to_owned(), 1);
    assert_eq!(left, [once("first"), once("second"), once("third")]);
}

async fn c15_nothing_begins_at_most_once_without_its_entry(kind: StoreKind) {
    let marks = Marks::start().await;
    let http = [marks.authority()];
    let (host, store) = TestHost::with_faults(kind, EngineConfig::default(), None, &http).await;
    // Its workflow waits for a payload, then calls the step.
    let input = json!({ "marks": marks.url(), "how": "well" });
    let run = host
        .start_with("runs_once_after_a_payload", input, &["c15"])
        .await;
    host.reached(&run, RunStatus::Suspended).await;
    store.refuse(Refuse::Appends);
    host.deliver("c15", json!(1)).await.unwrap();
    store.refused(&run, 2).await;
    assert_eq!(marks.count("well"), 0);
    store.refuse(Refuse::Nothing);
    assert_eq!(host.output(&run).await, "well");
    assert_eq!(marks.count("well"), 1);
    host.agrees(&run).await;
}

// ---- C17 -------------------------------------------------------------------------------------------

async fn c17_an_input_over_the_limit_is_a_typed_error(kind: StoreKind) {
    let (host, _marks) = with_marks(kind).await;
    let run = host.start("large_input", json!({ "bytes": 1 << 20 })).await;
    let expected = format!(
        "too_large: the input has {} bytes; the limit is {}, false, 5",
        (1 << 20) + r#"{"text":""}"#.len(),
        1 << 20
    );
    assert_eq!(host.output(&run).await, expected);
    let journal = host.journal(&run).await;
    // What was refused is not there.
    let kept = |entry: &Entry| entry.body.as_ref()?.text.as_ref().map(|text| text.len());
    assert!(journal.iter().filter_map(kept).all(|bytes| bytes < 1000));
    let host = host.restart().await;
    host.agrees(&run).await;

    let fits = host.start("large_input", json!({ "bytes": 1000 })).await;
    assert_eq!(host.output(&fits).await, "1000, true, 5");
    host.agrees(&fits).await;
}

async fn c17_a_result_over_the_limit_is_a_typed_error(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    let input = json!({ "marks": marks.url(), "how": "large", "fail": false });
    let run = host.start("runs_again", input).await;
    let output = host.output(&run).await;
    let expected = "too_large after 1, unknown false, typed false: the result has ";
    assert!(output.as_str().unwrap().starts_with(expected), "{output}");
    host.agrees(&run).await;
}

// ---- C18 -------------------------------------------------------------------------------------------

async fn c18_a_step_without_retries_left_waits_for_a_retry(kind: StoreKind) {
    let (host, _marks) = with_marks(kind).await;
    let input = json!({ "good_from_attempt": 5, "fatal": false, "token": "c18" });
    let run = host.start("waits_for_help", input.clone()).await;
    let why = blocked(&host, &run, BlockReason::StepFailed, 0).await;
    assert!(
        why.message.contains("failed after 2 attempts: Busy"),
        "{}",
        why.message
    );
    assert!(why.message.contains(&format!("`onemark runs retry {run}`")));
    assert_eq!(why.detail["error"], "Busy");
    let again = host.try_start("waits_for_help", input, &[]).await;
    assert!(matches!(again, Err(Error::HookConflict { .. })), "{again:?}");

    let host = host.restart().await;
    assert_eq!(blocked(&host, &run, BlockReason::StepFailed, 0).await, why);
    // Its retries count anew each time, its attempts go on.
    host.engine.retry(&run).await.unwrap();
    let fourth = |info: &RunInfo| {
        let step = info.blocked.as_ref().and_then(|blocked| blocked.step.as_ref());
        step.is_some_and(|step| step.attempt == 4)
    };
    host.until(&run, fourth).await;
    host.engine.retry(&run).await.unwrap();
    assert_eq!(host.output(&run).await, json!([5, format!("{run}/0")]));
    assert_eq!(
        attempts(&host.journal(&run).await, 0),
        [
            "attempt_started 1",
            "attempt_failed 1",
            "attempt_started 2",
            "attempt_failed 2",
            "attempt_started 3",
            "attempt_failed 3",
            "attempt_started 4",
            "attempt_failed 4",
            "attempt_started 5",
            "step_completed 5",
        ]
    );
    host.agrees(&run).await;

    // What trying again cannot help goes to the workflow.
    let fatal = json!({ "good_from_attempt": 5, "fatal": true, "token": "fatal" });
    let run = host.start("waits_for_help", fatal).await;
    assert_eq!(host.ended(&run).await.status, RunStatus::Failed);
}

async fn c18_many_runs_are_let_go_on_at_once(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    let mut stuck = Vec::new();
    for n in 0..5 {
        let input = json!({ "good_from_attempt": 3, "fatal": false, "token": format!("c18:{n}") });
        let run = host.start("waits_for_help", input).await;
        blocked(&host, &run, BlockReason::StepFailed, 0).await;
        stuck.push(run);
    }
    let unknown = host.start("runs_once", once(&marks, "panic", false)).await;
    blocked(&host, &unknown, BlockReason::UnknownOutcome, 0).await;

    let retry = async |workflow: Option<&str>, reason| {
        let workflow = workflow.map(str::to_owned);
        host.engine.retry_all(RetryRequest { workflow, reason }).await
    };
    let refused = retry(None, BlockReason::UnknownOutcome).await;
    assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    let none = retry(None, BlockReason::KeyExpired).await.unwrap();
    assert_eq!((none.retried, none.runs), (0, vec![]));
    let none = retry(Some("runs_once"), BlockReason::StepFailed).await.unwrap();
    assert_eq!(none.retried, 0);

    let mut receipt = retry(Some("waits_for_help"), BlockReason::StepFailed)
        .await
        .unwrap();
    for run in &stuck {
        assert_eq!(host.output(run).await, json!([3, format!("{run}/0")]));
    }
    assert_eq!(receipt.retried, 5);
    receipt.runs.sort();
    stuck.sort();
    assert_eq!(receipt.runs, stuck);
    blocked(&host, &unknown, BlockReason::UnknownOutcome, 0).await;
    assert_eq!(marks.count("panic"), 1);
}

// ---- C19, C20 --------------------------------------------------------------------------------------

/// A key made from data is the same in every run of that data.
#[tokio::test(flavor = "multi_thread")]
async fn c19_a_key_from_data_is_the_same_in_every_attempt_and_run() {
    let (host, marks) = with_marks(StoreKind::Sqlite).await;
    let input = once(&marks, "panic", true);
    for _ in 0..2 {
        let run = host.start("runs_once", input.clone()).await;
        host.output(&run).await;
    }
    let run = host.start("runs_once", once(&marks, "panic", false)).await;
    blocked(&host, &run, BlockReason::UnknownOutcome, 0).await;
    host.engine
        .resolve_step(&run, None, Resolution::Retry)
        .await
        .unwrap();
    marks.reached("panic", 4).await;
    assert!(marks.all().iter().all(|mark| mark.key == "charge:panic"));
}

async fn c20_a_key_that_will_have_expired_blocks(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    // The next attempt would begin after a minute, and the key lives for half of that.
    let run = host.start("key_expires", json!({ "good_from_attempt": 2 })).await;
    let why = blocked(&host, &run, BlockReason::KeyExpired, 0).await;
    assert_eq!(why.step.as_ref().unwrap().key, "fixed");
    host.advance(Duration::from_secs(3600));
    let host = host.restart().await;
    assert_eq!(blocked(&host, &run, BlockReason::KeyExpired, 0).await, why);
    assert_eq!(
        attempts(&host.journal(&run).await, 0),
        ["attempt_started 1", "attempt_failed 1"]
    );
    // Whoever says so knows that it is safe: the time counts anew.
    host.engine.retry(&run).await.unwrap();
    assert_eq!(host.output(&run).await, 2);
    host.agrees(&run).await;

    let resolved = host.start("key_expires", json!({ "good_from_attempt": 2 })).await;
    blocked(&host, &resolved, BlockReason::KeyExpired, 0).await;
    host.engine
        .resolve_step(&resolved, Some(0), result(json!(7)))
        .await
        .unwrap();
    assert_eq!(host.output(&resolved).await, 7);
    host.agrees(&resolved).await;

    // In time, if only just: both attempts have begun by the end of the key's time.
    let run = host
        .start("key_expires", json!({ "good_from_attempt": 2, "ttl_s": 60 }))
        .await;
    host.until(&run, |info| info.wake_at.is_some()).await;
    host.advance(Duration::from_secs(60));
    assert_eq!(host.output(&run).await, 2);
}

/// A host that was down for longer than the key lives does not repeat what was cut off.
#[tokio::test(flavor = "multi_thread")]
async fn c20_a_key_that_expired_while_the_host_was_down_blocks() {
    let marks = Marks::start().await;
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let config = EngineConfig::default();
    let host = TestHost::with(StoreKind::Sqlite, config, Some(clock), &[marks.authority()]).await;
    marks.hold("ttl");
    let run = host
        .start("marks_with_ttl", json!({ "marks": marks.url() }))
        .await;
    marks.reached("ttl", 1).await;
    host.advance(Duration::from_secs(30));
    let host = host.restart().await;
    // Not yet: it is cut off once more.
    marks.reached("ttl", 2).await;
    host.advance(Duration::from_millis(1));
    let host = host.restart().await;
    blocked(&host, &run, BlockReason::KeyExpired, 0).await;
    marks.release();
    host.engine.retry(&run).await.unwrap();
    host.output(&run).await;
    assert_eq!(marks.count("ttl"), 3);
    host.agrees(&run).await;
}
