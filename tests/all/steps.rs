//! Steps: saved once, tried again, cut off, and kept from harming anything else.

use std::time::Duration;

use onemark::clock::Clock as _;
use onemark::engine::EngineConfig;
use onemark::ids::RunId;
use onemark::journal::{Entry, Event, Failure, FailureKind, Limits, MAX_RETRIES, RunStatus, StepOptions};
use onemark_tests::{Marks, StoreKind, TestHost, json_of};
use serde_json::{Value, json};

/// A host whose steps reach a counting service.
async fn with_marks() -> (TestHost, Marks) {
    let marks = Marks::start().await;
    let host = TestHost::with_http(&[marks.authority()]).await;
    (host, marks)
}

/// Names, attempts and keys of all marks, in order.
fn left(marks: &Marks) -> Vec<(String, u32, String)> {
    marks
        .all()
        .into_iter()
        .map(|mark| (mark.name, mark.attempt, mark.key))
        .collect()
}

/// `name attempt` of the entries about attempts of this call.
pub fn attempts(journal: &[Entry], of: u32) -> Vec<String> {
    let about = journal.iter().filter_map(|entry| match entry.event {
        Event::AttemptStarted { call, attempt }
        | Event::AttemptFailed { call, attempt, .. }
        | Event::StepCompleted { call, attempt, .. }
        | Event::StepFailed { call, attempt, .. } => Some((call, attempt, entry.event.name())),
        _ => None,
    });
    about
        .filter(|(call, ..)| *call == of)
        .map(|(_, n, name)| format!("{name} {n}"))
        .collect()
}

fn failure(entry: &Entry) -> Failure {
    let body = entry.body.as_ref().expect("a failure has a body");
    serde_json::from_str(body.text_or_null()).expect("a failure document")
}

/// The failures of attempts and steps, in order.
fn failures(journal: &[Entry]) -> Vec<Failure> {
    let failed = |entry: &&Entry| {
        matches!(
            entry.event,
            Event::AttemptFailed { .. } | Event::StepFailed { .. }
        )
    };
    journal.iter().filter(failed).map(failure).collect()
}

/// Starts a workflow and waits until one of its steps is at work outside.
async fn held(host: &TestHost, marks: &Marks, mark: &str, workflow: &str, mut input: Value) -> RunId {
    marks.hold(mark);
    input["marks"] = json!(marks.url());
    let run = host.start(workflow, input).await;
    marks.reached(mark, 1).await;
    run
}

/// Waits for the attempts of a run's call to stand in the journal.
async fn attempted(host: &TestHost, run: &RunId, call: u32, wanted: &[&str]) -> Vec<Entry> {
    loop {
        let before = host.engine.run(run).await.expect("the run is there").entries;
        let journal = host.journal(run).await;
        if attempts(&journal, call) == wanted {
            return journal;
        }
        host.until(run, |info| info.entries > before).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_a_saved_step_is_not_run_again() {
    let (host, marks) = with_marks().await;
    let run = held(&host, &marks, "used", "draws", json!({})).await;
    // The second step has begun, so that the first one is saved.
    let drawn = host.journal(&run).await;
    let drawn = drawn
        .iter()
        .find(|entry| matches!(entry.event, Event::StepCompleted { .. }));
    let id: Value = serde_json::from_str(drawn.unwrap().body.as_ref().unwrap().text_or_null()).unwrap();

    let host = host.restart().await;
    marks.release();
    assert_eq!(host.output(&run).await, id);
    let journal = host.journal(&run).await;
    assert_eq!(attempts(&journal, 0), ["attempt_started 1", "step_completed 1"]);
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c02_a_step_that_was_cut_off_runs_again_and_only_that_one() {
    let (host, marks) = with_marks().await;
    let input = json!({ "names": ["first", "second", "third"], "token": "t" });
    let run = held(&host, &marks, "second", "leave_marks", input).await;
    // The cut-off attempt counts only if it is in the journal.
    attempted(&host, &run, 1, &["attempt_started 1"]).await;

    let host = host.restart().await;
    marks.release();
    assert_eq!(host.output(&run).await, json!(null));
    let key = |call: u32| format!("{run}/{call}");
    let expected = [
        ("first", 1, key(0)),
        ("second", 1, key(1)),
        ("second", 2, key(1)),
        ("third", 1, key(2)),
    ];
    assert_eq!(
        left(&marks),
        expected.map(|(name, attempt, key)| (name.to_owned(), attempt, key))
    );
    let journal = host.journal(&run).await;
    assert_eq!(
        attempts(&journal, 1),
        ["attempt_started 1", "attempt_started 2", "step_completed 2"]
    );
    let scheduled = journal
        .iter()
        .filter(|e| matches!(e.event, Event::StepScheduled { .. }));
    assert_eq!(scheduled.count(), 3);
    host.agrees(&run).await;
}

/// Fails three times, the clock moved to each retry, and checks what the journal says of the waits.
async fn through_three_backoffs(host: &TestHost, run: &RunId) -> Vec<u64> {
    let clock = host.clock.as_ref().expect("made with a clock");
    let mut waits = Vec::new();
    for attempt in 1..=3_u32 {
        let now = clock.now();
        let info = host
            .until(run, |info| info.wake_at.is_some_and(|at| at > now))
            .await;
        assert_eq!(info.status, RunStatus::Suspended);
        let journal = host.journal(run).await;
        let last = journal.last().expect("a journal has an entry");
        let retry_at = info.wake_at.expect("waited for");
        assert_eq!(
            last.event,
            Event::AttemptFailed {
                call: 0,
                attempt,
                retry_at: Some(retry_at),
                outcome_unknown: false,
            }
        );
        assert_eq!(last.at, now);
        let wait = retry_at - now;
        let longest = 500 << (attempt - 1);
        assert!(
            (longest / 2..=longest).contains(&wait),
            "attempt {attempt}: {wait} ms"
        );
        waits.push(wait);
        host.advance(Duration::from_millis(wait));
    }
    waits
}

#[tokio::test(flavor = "multi_thread")]
async fn c03_three_retries_with_backoff_by_default() {
    for kind in StoreKind::ALL {
        let host = TestHost::with_clock(kind).await;
        let run = host
            .start("retried_by_default", json!({ "good_from_attempt": 4 }))
            .await;
        through_three_backoffs(&host, &run).await;
        assert_eq!(host.output(&run).await, json!([4, format!("{run}/0")]));
        let journal = host.journal(&run).await;
        assert_eq!(
            host.events(&run).await,
            [
                "started",
                "step_scheduled",
                "attempt_started",
                "attempt_failed",
                "attempt_started",
                "attempt_failed",
                "attempt_started",
                "attempt_failed",
                "attempt_started",
                "step_completed",
                "completed",
            ]
        );
        let Event::StepScheduled { options, .. } = &journal[1].event else {
            panic!("{journal:?}")
        };
        assert_eq!(
            *options,
            StepOptions {
                retries: 3,
                ..StepOptions::default()
            }
        );
        host.agrees(&run).await;

        // A fourth failure is the last.
        let run = host
            .start("retried_by_default", json!({ "good_from_attempt": 5 }))
            .await;
        through_three_backoffs(&host, &run).await;
        assert_eq!(host.ended(&run).await.status, RunStatus::Failed);
        let journal = host.journal(&run).await;
        assert_eq!(attempts(&journal, 0).last().unwrap(), "step_failed 4");
        host.agrees(&run).await;
    }
}

/// Ten retries come at once when a step asks for that, the others wait: a step that always fails does not fill the
/// disk.
#[tokio::test(flavor = "multi_thread")]
async fn c03_retries_without_backoff_slow_down() {
    for kind in StoreKind::ALL {
        let host = TestHost::with_clock(kind).await;
        let now = host.clock.as_ref().unwrap().now();
        let input = json!({ "good_from_attempt": 13 });
        let run = host.start("retried_at_once", input).await;
        for later in [1_000, 2_000] {
            host.until(&run, |info| info.wake_at == Some(now + later)).await;
            host.advance(Duration::from_secs(1));
        }
        assert_eq!(host.output(&run).await, 13);
        let journal = host.journal(&run).await;
        let waits = journal.iter().filter_map(|entry| match entry.event {
            Event::AttemptFailed { retry_at, .. } => retry_at.map(|at| at - entry.at),
            _ => None,
        });
        let expected = [[0; 10].as_slice(), &[1_000; 2]].concat();
        assert_eq!(waits.collect::<Vec<_>>(), expected);
        let Event::StepScheduled { options, .. } = &journal[1].event else {
            panic!("{journal:?}")
        };
        assert_eq!(options.retries, MAX_RETRIES);
        host.agrees(&run).await;
    }
}

/// The wait is drawn once and then kept: a restart neither shortens nor lengthens it. And it is drawn: not
/// all runs that failed together come back together.
#[tokio::test(flavor = "multi_thread")]
async fn c03_jitter_is_journaled() {
    let host = TestHost::with_clock(StoreKind::Sqlite).await;
    let mut runs = Vec::new();
    for _ in 0..20 {
        runs.push(
            host.start("retried_by_default", json!({ "good_from_attempt": 2 }))
                .await,
        );
    }
    let mut due = Vec::new();
    for run in &runs {
        due.push(
            host.until(run, |info| info.wake_at.is_some())
                .await
                .wake_at
                .unwrap(),
        );
    }
    assert!(due.iter().any(|at| *at != due[0]), "no jitter: {due:?}");

    let host = host.restart().await;
    for (run, at) in runs.iter().zip(&due) {
        assert_eq!(host.engine.run(run).await.unwrap().wake_at, Some(*at));
    }
    host.advance(Duration::from_millis(500));
    for run in &runs {
        assert_eq!(host.output(run).await, json!([2, format!("{run}/0")]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c04_a_fatal_error_is_not_retried() {
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        let input = json!({ "kind": "declined", "retries": 3 });
        let (run, output) = host.completes("handles_trouble", input).await;
        assert_eq!(output, "error after 1: declined(attempt 1)");
        let journal = host.journal(&run).await;
        assert_eq!(attempts(&journal, 0), ["attempt_started 1", "step_failed 1"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c05_the_last_error_comes_with_the_number_of_attempts() {
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        for retries in [0, 2] {
            let input = json!({ "kind": "busy", "retries": retries });
            let (_, output) = host.completes("handles_trouble", input).await;
            let attempts = retries + 1;
            assert_eq!(
                output,
                format!("error after {attempts}: busy(attempt {attempts})")
            );
        }

        let input = json!({ "kind": "busy", "good_from_attempt": 99 });
        let run = host.start("troubled", input).await;
        let result = host.ended(&run).await;
        assert_eq!(result.status, RunStatus::Failed);
        assert_eq!(
            json_of(result.error.as_deref()),
            json!({
                "message": "`trouble` failed after 4 attempts: Busy: attempt 4",
                "kind": "error",
                "error": { "Busy": "attempt 4" },
            })
        );
        host.agrees(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c06_an_error_says_when_to_retry() {
    let host = TestHost::with_clock(StoreKind::Sqlite).await;
    let input = json!({ "kind": "later", "good_from_attempt": 2 });
    let run = host.start("troubled", input).await;
    let info = host.until(&run, |info| info.wake_at.is_some()).await;
    let journal = host.journal(&run).await;
    let retry_at = journal[0].at + 60_000;
    assert_eq!(info.wake_at, Some(retry_at));
    assert_eq!(
        journal.last().unwrap().event,
        Event::AttemptFailed {
            call: 0,
            attempt: 1,
            retry_at: Some(retry_at),
            outcome_unknown: false,
        }
    );

    let host = host.restart().await;
    host.advance(Duration::from_millis(59_999));
    // Another run, so that this one had its chance to begin too early.
    let other = host.start("sleeps", json!({ "lengths_ms": [0] })).await;
    host.output(&other).await;
    host.advance(Duration::from_millis(1));
    assert_eq!(host.output(&run).await, 2);
    let journal = host.journal(&run).await;
    let second = journal
        .iter()
        .find(|e| e.event == Event::AttemptStarted { call: 0, attempt: 2 });
    assert_eq!(second.unwrap().at, retry_at);
    host.agrees(&run).await;
}

/// Runs a step that misbehaves twice; what the journal says of both attempts.
async fn misbehave(host: &TestHost, how: &str, timeout_ms: u64) -> (String, Vec<Failure>) {
    let input = json!({ "how": how, "timeout_ms": timeout_ms });
    let (run, output) = host.completes("misbehaves", input).await;
    let journal = host.journal(&run).await;
    let expected = [
        "attempt_started 1",
        "attempt_failed 1",
        "attempt_started 2",
        "step_failed 2",
    ];
    assert_eq!(attempts(&journal, 0), expected, "{how}");
    (output.as_str().expect("a text").to_owned(), failures(&journal))
}

#[tokio::test(flavor = "multi_thread")]
async fn c07_a_step_that_misbehaves_fails_with_a_reason() {
    const MINUTE: u64 = 60_000;
    for kind in StoreKind::ALL {
        let limits = Limits {
            step_fuel: 500_000_000,
            ..Limits::default()
        };
        let host = TestHost::with_limits(kind, limits).await;

        let cases = [
            ("panic", FailureKind::Trap, "trap after 2: panicked at "),
            (
                "raw panic",
                FailureKind::Trap,
                "trap after 2: wasm trap: wasm `unreachable` instruction executed; its stderr ended with: thread ",
            ),
            (
                "memory",
                FailureKind::OutOfMemory,
                "out_of_memory after 2: out of memory: ",
            ),
            (
                "loop",
                FailureKind::OutOfFuel,
                "out_of_fuel after 2: out of fuel: ",
            ),
            ("stack", FailureKind::Trap, "trap after 2: call stack exhausted"),
        ];
        for (how, reason, expected) in cases {
            let (output, failures) = misbehave(&host, how, MINUTE).await;
            assert!(output.starts_with(expected), "{how}: {output}");
            for failure in failures {
                assert_eq!(failure.kind, reason, "{how}");
                let place = failure.causes.first().map(String::as_str).unwrap_or_default();
                assert!(
                    place.contains("tests/programs/src/misbehaviour.rs:"),
                    "{how}: {failure:?}"
                );
            }
        }
    }
}

/// Every attempt leaves a message: none is longer than a reader needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_message_of_a_step_is_cut() {
    let host = TestHost::new().await;
    for (bytes, expected) in [
        (4_096, "c".repeat(4_096)),
        (100_000, "c".repeat(4_096) + "… (95904 bytes more)"),
    ] {
        let (_, output) = host.completes("complains", json!({ "bytes": bytes })).await;
        assert_eq!(output, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c07_an_error_that_is_too_long_is_told_without_its_words() {
    let host = TestHost::new().await;
    let (output, failures) = misbehave(&host, "long_error", 60_000).await;
    assert!(
        output.starts_with("too_large after 2: the step's error has ")
            && output.ends_with(" bytes; the limit is 1048576"),
        "{output}"
    );
    assert!(failures.iter().all(|it| it.kind == FailureKind::TooLarge));
    // Nor does a panic's message grow without end.
    let (output, failures) = misbehave(&host, "long panic", 60_000).await;
    assert!(
        output.starts_with("trap after 2: panicked at "),
        "{}",
        output.len()
    );
    assert!(failures.iter().all(|it| it.message.len() < 100_000));

    let run = host.start("fails_at_length", json!({ "bytes": 1 << 20 })).await;
    let result = host.ended(&run).await;
    assert_eq!(result.status, RunStatus::Failed);
    let error = result.error.unwrap();
    assert!(
        error.get().contains("too_large") && error.get().len() < 1000,
        "{error}"
    );
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c07_an_endless_loop_ends_at_its_timeout() {
    let host = TestHost::new().await;
    let (output, failures) = misbehave(&host, "loop", 50).await;
    assert_eq!(output, "timeout after 2: the attempt took longer than 50 ms");
    assert!(
        failures
            .iter()
            .all(|failure| failure.kind == FailureKind::Timeout),
        "{failures:?}"
    );
}

/// More endless steps than this machine has cores are at work, and a run beside them gets to its end.
#[tokio::test(flavor = "multi_thread")]
async fn c07_other_runs_go_on_beside_endless_steps() {
    let host = TestHost::new().await;
    let cores = std::thread::available_parallelism().unwrap().get();
    let mut endless = Vec::new();
    for _ in 0..=cores {
        let input = json!({ "how": "loop", "timeout_ms": 3_600_000 });
        endless.push(host.start("misbehaves", input).await);
    }
    for run in &endless {
        attempted(&host, run, 0, &["attempt_started 1"]).await;
    }
    let run = host.start("sequence", json!({ "n": 10 })).await;
    assert_eq!(host.output(&run).await, 45);
    for run in &endless {
        assert_eq!(attempts(&host.journal(run).await, 0), ["attempt_started 1"]);
    }
    host.engine.shutdown().await;
}

/// By the times in the journal, with more endless steps than there are cores. An idle machine is within 100 ms;
/// one that also runs other tests gets ten seconds, where the fuel of a step is enough for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn c08_a_timeout_interrupts_a_pure_loop() {
    const TIMEOUT: u64 = 200;
    let host = TestHost::new().await;
    let mut runs = Vec::new();
    for _ in 0..2 * std::thread::available_parallelism().unwrap().get() {
        let input = json!({ "how": "loop", "timeout_ms": TIMEOUT });
        runs.push(host.start("misbehaves", input).await);
    }
    for run in runs {
        assert_eq!(
            host.output(&run).await,
            "timeout after 2: the attempt took longer than 200 ms"
        );
        let journal = host.journal(&run).await;
        let at = |wanted: Event| {
            let found =
                |entry: &&Entry| std::mem::discriminant(&entry.event) == std::mem::discriminant(&wanted);
            journal.iter().find(found).expect("it happened").at
        };
        let started = at(Event::AttemptStarted { call: 0, attempt: 1 });
        let failed = at(Event::AttemptFailed {
            call: 0,
            attempt: 1,
            retry_at: None,
            outcome_unknown: false,
        });
        println!("cut off after {} ms", failed - started);
        assert!(
            failed - started <= TIMEOUT + 10_000,
            "cut off after {} ms",
            failed - started
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c09_the_key_is_the_same_in_every_attempt_and_another_for_other_steps_and_runs() {
    for kind in StoreKind::ALL {
        let host = TestHost::with_clock(kind).await;
        let run = host
            .start("retried_by_default", json!({ "good_from_attempt": 4 }))
            .await;
        through_three_backoffs(&host, &run).await;
        let key = host.output(&run).await[1].clone();
        let failures = failures(&host.journal(&run).await);
        let seen: Vec<_> = failures
            .into_iter()
            .map(|failure| failure.error.unwrap())
            .collect();
        assert_eq!(seen, vec![json!({ "Busy": key }); 3]);

        for _ in 0..2 {
            let (run, keys) = host.completes("keys", json!({ "seed": "s" })).await;
            assert_eq!(
                keys,
                json!(["made:s", format!("{run}/1"), format!("{run}/2"), "given"])
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c12_a_drawn_id_is_the_same_for_a_second_attempt() {
    let (host, marks) = with_marks().await;
    let run = held(&host, &marks, "used", "draws", json!({})).await;
    attempted(&host, &run, 1, &["attempt_started 1"]).await;
    let host = host.restart().await;
    marks.release();
    let id = host.output(&run).await.as_str().unwrap().to_owned();
    let expected = [("used".to_owned(), 1, id.clone()), ("used".to_owned(), 2, id)];
    assert_eq!(left(&marks), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_a_thousand_steps_together() {
    const N: u64 = 1_000;
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        let run = host.start("fanout", json!({ "n": N })).await;
        assert_eq!(host.output(&run).await, json!((1..=N).collect::<Vec<_>>()));
        // Three entries a step and nothing else.
        assert_eq!(host.journal(&run).await.len() as u64, 2 + 3 * N);
        assert_eq!(host.agrees(&run).await.calls.len() as u64, N);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c13_the_limits_of_concurrency_are_kept() {
    let names = vec!["mark"; 40];
    for (max_attempts, max_attempts_per_run, runs, most) in [(100, 5, 1, 5), (100, 5, 2, 10), (7, 5, 2, 7)] {
        let marks = Marks::start().await;
        let config = EngineConfig {
            max_attempts,
            max_attempts_per_run,
            ..EngineConfig::default()
        };
        let http = [marks.authority()];
        let host = TestHost::with(StoreKind::Memory, config, None, &http).await;
        marks.hold("mark");
        let mut all = Vec::new();
        for _ in 0..runs {
            let input = json!({ "marks": marks.url(), "names": names });
            all.push(host.start("leave_marks_together", input).await);
        }
        marks.reached("mark", most).await;
        marks.let_go();
        for run in &all {
            assert_eq!(host.output(run).await, json!(null));
            assert_eq!(failures(&host.journal(run).await), []);
        }
        assert_eq!(marks.count("mark"), runs * names.len());
        assert_eq!(marks.most_at_once(), most);
    }
}

/// An input or a key that cannot be is a failure that the workflow can handle; the run goes on.
#[tokio::test(flavor = "multi_thread")]
async fn c17_a_call_over_its_limits_is_a_typed_failure() {
    let cases = [
        (5, json!(null), "made:sssss"),
        (250, json!("given"), "given"),
        (
            251,
            json!(null),
            "invalid: idempotency key has 256 bytes; the limit is 255",
        ),
        (
            5,
            json!(""),
            "invalid: idempotency key is empty; give it 1 to 255 bytes",
        ),
        (
            5,
            json!("a\u{0}b"),
            "invalid: idempotency key holds a control character; use printable text",
        ),
        // An object with one name.
        (
            1 << 20,
            json!("given"),
            "too_large: the input has 1048587 bytes; the limit is 1048576",
        ),
    ];
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        for (bytes, key, expected) in &cases {
            let input = json!({ "bytes": bytes, "key": key });
            let (_, output) = host.completes("keyed_with", input).await;
            assert_eq!(output, *expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_woken_keeps_its_place_among_those_that_wait_for_an_attempt() {
    let marks = Marks::start().await;
    let config = EngineConfig {
        max_attempts: 1,
        ..EngineConfig::default()
    };
    let host = TestHost::with(StoreKind::Memory, config, None, &[marks.authority()]).await;
    marks.hold("first");
    let leave = async |name: &str| {
        let input = json!({ "marks": marks.url(), "names": [name], "token": name });
        host.start("leave_marks", input).await
    };
    leave("first").await;
    marks.reached("first", 1).await;
    // A step that is in the journal without an attempt waits for one.
    let mut waiting = Vec::new();
    for name in ["second", "third", "fourth"] {
        let run = leave(name).await;
        host.until(&run, |info| info.entries == 2).await;
        waiting.push(run);
    }
    for n in 0..3 {
        host.deliver("second", json!(n)).await.expect("delivered");
    }
    marks.let_go();
    for run in waiting {
        host.output(&run).await;
    }
    let names: Vec<_> = left(&marks).into_iter().map(|(name, ..)| name).collect();
    assert_eq!(names, ["first", "second", "third", "fourth"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn c21_an_attempt_that_takes_long_is_visible_while_it_runs() {
    let (host, marks) = with_marks().await;
    let run = held(&host, &marks, "slow", "slow", json!({ "ms": 0 })).await;
    // Nothing else happens in this run: the journal tells by itself.
    attempted(&host, &run, 0, &["attempt_started 1"]).await;
    assert_eq!(
        host.events(&run).await,
        ["started", "step_scheduled", "attempt_started"]
    );
    assert_eq!(host.engine.run(&run).await.unwrap().status, RunStatus::Running);

    // Still there when it was cut; the next attempt is known as the second.
    let host = host.restart().await;
    assert_eq!(
        host.events(&run).await[..3],
        ["started", "step_scheduled", "attempt_started"]
    );
    marks.release();
    host.output(&run).await;
    let expected = ["attempt_started 1", "attempt_started 2", "step_completed 2"];
    assert_eq!(attempts(&host.journal(&run).await, 0), expected);
}

/// Values are JSON text: no number loses digits on its way out.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_number_keeps_its_digits() {
    let host = TestHost::new().await;
    let run = host.start("largest", json!({})).await;
    let output = host.ended(&run).await.output;
    assert_eq!(
        output.map(|raw| raw.get().to_owned()),
        Some(u128::MAX.to_string())
    );
    host.agrees(&run).await;
}

/// What a run asked for is in its journal also when it ends while that is still on its way.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_left_behind_at_the_end_is_in_the_journal() {
    let host = TestHost::new().await;
    for round in 0..20 {
        let token = format!("left:{round}");
        let run = host.start_with("leaves_a_step", json!({}), &[&token]).await;
        host.deliver(&token, json!(round)).await.unwrap();
        assert_eq!(host.output(&run).await, format!("payload Some({round})"));
        assert!(
            host.events(&run).await.contains(&"abandoned"),
            "the step was given up"
        );
        host.agrees(&run).await;
    }
}

/// A timer that is set while a step runs fires while it runs.
#[tokio::test(flavor = "multi_thread")]
async fn timers_fire_beside_a_running_step() {
    let host = TestHost::new().await;
    let (_, ticks) = host.completes("ticks_beside_a_step", json!({ "ticks": 5 })).await;
    assert_eq!(ticks, 5);
}

/// Nesting that readers of JSON refuse is refused where it comes from.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_nested_too_deep_is_a_failure_that_says_so() {
    let host = TestHost::new().await;
    host.completes("nested", json!({ "depth": 127 })).await;
    let deep = host.start("nested", json!({ "depth": 128 })).await;
    let result = host.ended(&deep).await;
    assert_eq!(result.status, RunStatus::Failed);
    assert!(result.error.unwrap().get().contains("nested more than 127 deep"));
    host.agrees(&deep).await;
}
