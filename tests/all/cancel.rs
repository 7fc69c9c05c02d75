//! Runs that are asked to end, that are ended, and that had their time.

use std::time::Duration;

use onemark::engine::{EngineConfig, Error, Verdict};
use onemark::ids::RunId;
use onemark::journal::{CancelReason, Event, RunStatus};
use onemark_tests::{Marks, Refuse, StoreKind, TestHost, json_of};
use serde_json::{Value, json};

/// On each store, with a clock that moves when told to, and a service that counts.
async fn hosts() -> Vec<(TestHost, Marks)> {
    let mut hosts = Vec::new();
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        hosts.push(host(kind).await);
    }
    hosts
}

async fn host(kind: StoreKind) -> (TestHost, Marks) {
    let marks = Marks::start().await;
    let clock = onemark::clock::ManualClock::new(1_800_000_000_000);
    let http = [marks.authority()];
    let host = TestHost::with(kind, EngineConfig::default(), Some(clock.into()), &http).await;
    (host, marks)
}

/// A run that waits as `how` says.
async fn waiting(host: &TestHost, marks: &Marks, how: &str) -> RunId {
    let run = host
        .start("waits_then_tidies", json!({ "marks": marks.url(), "how": how }))
        .await;
    match how {
        "sleep" | "hook" | "swallow" => drop(host.reached(&run, RunStatus::Suspended).await),
        "retry" => {
            marks.reached("never", 1).await;
            host.until(&run, |info| info.wake_at.is_some()).await;
        }
        _ => {
            marks.reached("held", 1).await;
            // Visible in the journal.
            host.until(&run, |info| info.entries == 3).await;
        }
    }
    run
}

/// Lets the run tidy up: its clock stands still, and it sleeps for a millisecond.
async fn tidied(host: &TestHost, marks: &Marks, run: &RunId) -> (RunStatus, Value) {
    marks.reached("tidy", 1).await;
    let due = |info: &onemark::store::RunInfo| info.status.is_terminal() || info.wake_at.is_some();
    host.until(run, due).await;
    host.advance(Duration::from_secs(1));
    let result = host.ended(run).await;
    let outcome = result.output.as_deref().or(result.error.as_deref());
    host.agrees(run).await;
    (result.status, json_of(outcome))
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_waits_end_and_the_workflow_can_tidy_up() {
    for how in ["sleep", "hook", "retry"] {
        for (host, marks) in hosts().await {
            let run = waiting(&host, &marks, how).await;
            let asked = host.engine.cancel(&run).await.unwrap();
            assert_eq!(asked.cancel_requested, Some(CancelReason::Requested));
            // Asking twice is as asking once.
            host.engine.cancel(&run).await.unwrap();
            let (status, error) = tidied(&host, &marks, &run).await;
            assert_eq!(
                (status, &error["kind"]),
                (RunStatus::Cancelled, &json!("cancelled")),
                "{how}"
            );
            let requests = host
                .events(&run)
                .await
                .into_iter()
                .filter(|e| *e == "cancel_requested");
            assert_eq!(requests.count(), 1);
            // It is over, and that is no error either.
            assert_eq!(
                host.engine.cancel(&run).await.unwrap().status,
                RunStatus::Cancelled
            );
            assert_eq!(marks.count("tidy"), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_an_attempt_at_work_gets_a_grace_time_and_its_outcome_counts() {
    for how in ["held", "closure"] {
        for (host, marks) in hosts().await {
            marks.hold("held");
            let run = waiting(&host, &marks, how).await;
            host.engine.cancel(&run).await.unwrap();
            host.until(&run, |info| info.cancel_requested.is_some()).await;
            marks.let_go();
            let (status, output) = tidied(&host, &marks, &run).await;
            // What it waited for was done after all.
            assert_eq!((status, output), (RunStatus::Completed, json!("done")), "{how}");
        }
    }
}

/// Where the step at work ends well, the next thing that the workflow would wait for tells it, once.
#[tokio::test(flavor = "multi_thread")]
async fn e05_after_a_step_that_ended_well_the_next_call_tells_it() {
    for then in [
        "step",
        "closure",
        "sleep",
        "hook",
        "next_within",
        "child",
        "limited",
        "limits",
        "many",
        "each",
    ] {
        for (host, marks) in hosts().await {
            let run = asked_at_work(&host, &marks, then).await;
            let (status, error) = tidied(&host, &marks, &run).await;
            assert_eq!(
                (status, &error["kind"]),
                (RunStatus::Cancelled, &json!("cancelled")),
                "{then}"
            );
            assert_eq!((marks.count("next"), marks.count("tidy")), (0, 1), "{then}");
        }
    }
}

/// A run of `works_on` that was asked to cancel while its first step was at work, which then ended.
async fn asked_at_work(host: &TestHost, marks: &Marks, then: &str) -> RunId {
    marks.hold("held");
    let input = json!({ "marks": marks.url(), "then": then });
    let run = host.start("works_on", input).await;
    marks.reached("held", if then == "each" { 2 } else { 1 }).await;
    host.until(&run, |info| info.entries >= 3).await;
    host.engine.cancel(&run).await.unwrap();
    host.until(&run, |info| info.cancel_requested.is_some()).await;
    marks.let_go();
    run
}

/// What undoes is never refused: not by a saga whose work failed by itself, nor after a step that did.
#[tokio::test(flavor = "multi_thread")]
async fn e05_what_undoes_runs_also_when_the_workflow_failed_by_itself() {
    for (host, marks) in hosts().await {
        let run = asked_at_work(&host, &marks, "undone").await;
        marks.reached("undo", 1).await;
        host.until(&run, |info| info.wake_at.is_some()).await;
        host.advance(Duration::from_secs(1));
        let ended = host.ended(&run).await;
        assert!(ended.error.unwrap().get().contains("nothing left"));
        host.agrees(&run).await;
    }
    for (host, marks) in hosts().await {
        let run = asked_at_work(&host, &marks, "failed").await;
        let (status, _) = tidied(&host, &marks, &run).await;
        assert_eq!((status, marks.count("undo")), (RunStatus::Cancelled, 1));
    }
}

/// Whenever the request comes, what undoes comes to its end: each of the three parts needs three attempts.
#[tokio::test(flavor = "multi_thread")]
async fn e06_what_undoes_comes_to_its_end_whenever_the_request_comes() {
    for how in ["many", "asked", "saga", "shielded"] {
        for after in ["", "undo-2", "undo-0"] {
            for kind in [StoreKind::Memory, StoreKind::Sqlite] {
                let marks = Marks::start().await;
                let mut host =
                    TestHost::with(kind, EngineConfig::default(), None, &[marks.authority()]).await;
                marks.hold(after);
                let run = host
                    .start("undoes", json!({ "marks": marks.url(), "how": how }))
                    .await;
                match (how, after) {
                    ("many" | "asked", "") => drop(host.reached(&run, RunStatus::Suspended).await),
                    ("many" | "asked", _) => break,
                    (_, "") => drop(host.until(&run, |info| info.entries > 1).await),
                    _ => marks.reached(after, 1).await,
                }
                host.engine.cancel(&run).await.unwrap();
                host.until(&run, |info| info.cancel_requested.is_some()).await;
                if after == "undo-0" {
                    // What was at work is begun again.
                    host = host.restart().await;
                }
                marks.let_go();
                let ended = host.ended(&run).await;
                let status = match how {
                    "asked" => RunStatus::Completed,
                    _ => RunStatus::Cancelled,
                };
                assert_eq!(ended.status, status, "{how}, {after}: {ended:?}");
                for part in ["undo-0", "undo-1", "undo-2"] {
                    let attempts = marks.all().into_iter().filter(|mark| mark.name == part);
                    assert_eq!(attempts.map(|mark| mark.attempt).max(), Some(3), "{how}, {after}");
                }
                host.agrees(&run).await;
            }
        }
    }
}

/// A run that was asked, and undoes what it did, goes on with that when its time is over too, for as long as its grace.
#[tokio::test(flavor = "multi_thread")]
async fn e07_the_end_of_its_time_cancels_nothing_in_a_run_that_was_asked_before() {
    for restart in [false, true] {
        let (mut host, marks) = host(StoreKind::Sqlite).await;
        marks.hold("undo");
        let run = host
            .start("undoes_in_time", json!({ "marks": marks.url() }))
            .await;
        host.reached(&run, RunStatus::Suspended).await;
        host.engine.cancel(&run).await.unwrap();
        marks.reached("undo", 1).await;
        host.advance(Duration::from_secs(3600));
        let asked = async |host: &TestHost| {
            let events = host.events(&run).await;
            events.into_iter().filter(|it| *it == "cancel_requested").count()
        };
        while asked(&host).await < 2 {
            tokio::task::yield_now().await;
        }
        if restart {
            host = host.restart().await;
        }
        // Longer than an attempt has that is cancelled.
        host.advance(Duration::from_secs(11));
        marks.let_go();
        while !host.engine.run(&run).await.unwrap().status.is_terminal() {
            host.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
        assert_eq!(host.ended(&run).await.status, RunStatus::Completed, "{restart}");
        host.agrees(&run).await;
    }
}

/// The request comes when the workflow has returned and a child has not ended.
#[tokio::test(flavor = "multi_thread")]
async fn e08_a_request_that_comes_while_a_child_is_awaited_reaches_the_next_run() {
    for restart in [false, true] {
        for kind in [StoreKind::Memory, StoreKind::Sqlite] {
            let mut host = TestHost::on(kind).await;
            let run = host.start("continues_after_its_child", json!({ "n": 0 })).await;
            host.reached(&run, RunStatus::Suspended).await;
            host.engine.cancel(&run).await.unwrap();
            host.until(&run, |info| info.cancel_requested.is_some()).await;
            if restart {
                host = host.restart().await;
            }
            let child = RunId::new(format!("child of {run}")).unwrap();
            host.engine.cancel(&child).await.unwrap();
            let ended = host.ended(&run).await;
            let Some(Event::Continued { run: next }) = host.journal(&run).await.pop().map(|last| last.event)
            else {
                panic!("the run goes on: {ended:?}");
            };
            assert_eq!(host.ended(&next).await.status, RunStatus::Cancelled);
            host.agrees(&run).await;
            host.agrees(&next).await;
        }
    }
}

/// A plan in which somebody may wait (`waits`) and something may fail (`fails`). Of several things that go on together
/// each waits only before anything else: who goes on after another was told is not told again.
fn plan(random: &mut impl FnMut(usize) -> usize, depth: usize, waits: bool, fails: bool) -> Value {
    let leaf = depth == 0 || random(4) == 0;
    let waiting = ["sleep", "hook", "child", "retry"];
    match random(if leaf { 6 } else { 8 }) {
        kind if leaf => match kind {
            0 => json!("act"),
            1 => json!("closure"),
            2 => json!("nap"),
            3 if fails => json!("fail"),
            _ if waits => json!(waiting[random(4)]),
            _ => json!("act"),
        },
        kind => {
            let mut parts = |waits: bool| -> Vec<Value> {
                let count = 1 + random(4);
                (0..count)
                    .map(|_| plan(random, depth - 1, waits, fails))
                    .collect()
            };
            match kind {
                0 | 1 => json!({ "sequence": parts(waits) }),
                2 => {
                    let mut all = parts(false);
                    all.extend(waiting.iter().filter(|_| waits).map(|it| json!(it)));
                    json!({ "join": all })
                }
                3 => json!({ "each": parts(waits) }),
                4 | 5 => json!({ "saga": parts(waits) }),
                6 => json!({ "within": plan(random, depth - 1, waits, fails) }),
                _ => json!({ "mend": plan(random, depth - 1, waits, fails) }),
            }
        }
    }
}

/// Plans of all kinds, asked at any time, while instances are given up and hosts end: each run ends, undoes what it said
/// it would (the guest traps where it did not), and its replay agrees.
async fn any_plan(kind: StoreKind, seed: u64) {
    let mut state = seed;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let config = EngineConfig {
        max_resident: 3,
        idle: Duration::ZERO,
        ..EngineConfig::default()
    };
    let mut host = TestHost::with(kind, config, None, &[]).await;
    let mut runs = Vec::new();
    for n in 0..24 {
        let plan = json!({ "sequence": [plan(&mut random, 3, true, n % 2 == 0), "sleep"] });
        let run = host.start("carries_out", json!({ "plan": plan })).await;
        runs.push((run, plan));
        if random(8) == 0 {
            host = host.restart().await;
        }
    }
    for (run, _) in &runs {
        let entries = 2 + random(12) as u64;
        let there = |info: &onemark::store::RunInfo| {
            info.entries >= entries || info.status.is_terminal() || info.status == RunStatus::Suspended
        };
        let info = host.until(run, there).await;
        match host.engine.cancel(run).await {
            Ok(_) | Err(Error::RunEnded { .. }) => {}
            Err(error) => panic!("{info:?}: {error}"),
        }
        if random(6) == 0 {
            host = host.restart().await;
        }
    }
    for (run, plan) in &runs {
        let ended = host.ended(run).await;
        let ends = [RunStatus::Cancelled, RunStatus::Failed];
        assert!(ends.contains(&ended.status), "{ended:?} of {plan}");
        host.agrees(run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_any_workflow_ends_and_undoes_what_it_did_whenever_it_is_asked() {
    let seeds = match std::env::var("ONEMARK_SEEDS") {
        Ok(seeds) => seeds.parse().unwrap(),
        Err(_) => 2,
    };
    for seed in 1..=seeds {
        for kind in [StoreKind::Memory, StoreKind::Sqlite] {
            any_plan(kind, seed).await;
        }
    }
}

/// A run that goes on as a new one before it was told takes the request along.
#[tokio::test(flavor = "multi_thread")]
async fn e05_a_run_that_continues_before_it_was_told_is_told_after() {
    for (host, marks) in hosts().await {
        let run = asked_at_work(&host, &marks, "continues").await;
        marks.reached("tidy", 1).await;
        let Some(Event::Continued { run: next }) = host.journal(&run).await.pop().map(|last| last.event)
        else {
            panic!("the run goes on");
        };
        host.until(&next, |info| info.wake_at.is_some()).await;
        host.advance(Duration::from_secs(1));
        assert_eq!(host.ended(&next).await.status, RunStatus::Cancelled);
        assert_eq!((marks.count("held"), marks.count("next")), (1, 0));
        host.agrees(&run).await;
        host.agrees(&next).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_an_attempt_that_outlasts_its_grace_is_cut_off_with_an_unknown_outcome() {
    for (host, marks) in hosts().await {
        marks.hold("held");
        let run = waiting(&host, &marks, "held").await;
        host.engine.cancel(&run).await.unwrap();
        host.until(&run, |info| info.cancel_requested.is_some()).await;
        marks.release();
        // Until the activation has heard of it, it does not know when the grace is over.
        while host.events(&run).await.last() != Some(&"attempt_started") && marks.count("tidy") == 0 {
            host.advance(Duration::from_secs(11));
            tokio::task::yield_now().await;
            if host.events(&run).await.contains(&"step_failed") {
                break;
            }
        }
        let (status, error) = tidied(&host, &marks, &run).await;
        assert_eq!(
            (status, &error["kind"]),
            (RunStatus::Cancelled, &json!("cancelled"))
        );
        let failed = host
            .journal(&run)
            .await
            .into_iter()
            .find(|entry| matches!(entry.event, Event::StepFailed { call: 0, .. }));
        let body = failed.unwrap().body.unwrap();
        assert!(
            body.text_or_null().contains(r#""outcome_unknown":true"#),
            "{body:?}"
        );
        assert_eq!(marks.count("held"), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_a_guest_that_returns_a_value_after_all_is_completed() {
    for (host, marks) in hosts().await {
        let run = waiting(&host, &marks, "swallow").await;
        marks.hold("held");
        host.engine.cancel(&run).await.unwrap();
        let (status, output) = tidied(&host, &marks, &run).await;
        let text = "`sleep` failed: the run was asked to cancel";
        assert_eq!((status, output), (RunStatus::Completed, json!(text)));
    }
}

/// A restart between the request and the end changes nothing; a step that the old host was at has an unknown outcome.
#[tokio::test(flavor = "multi_thread")]
async fn e05_cancelled_over_a_restart() {
    for how in ["sleep", "hook", "retry", "held"] {
        let (host, marks) = host(StoreKind::Sqlite).await;
        marks.hold("held");
        let run = waiting(&host, &marks, how).await;
        // The request is in the journal, and nobody has taken it in.
        let ending = onemark::store::Ending::Ask {
            reason: CancelReason::Requested,
            executing: true,
        };
        host.engine.shutdown().await;
        host.store.cancel(&run, ending, 1_800_000_000_000).await.unwrap();
        let host = host.restart().await;
        let (status, error) = tidied(&host, &marks, &run).await;
        assert_eq!(
            (status, &error["kind"]),
            (RunStatus::Cancelled, &json!("cancelled")),
            "{how}"
        );
        assert_eq!(marks.count("held"), usize::from(how == "held"));
        // Its grace time was not what it lacked.
        assert!(!error["message"].as_str().unwrap().contains("grace"), "{error}");
    }
}

/// What a workflow calls before it can know gets no attempt any more.
#[tokio::test(flavor = "multi_thread")]
async fn e05_a_step_called_before_the_request_is_observed_is_not_begun() {
    for how in ["held", "closure"] {
        let (host, marks) = host(StoreKind::Sqlite).await;
        marks.hold("held");
        let run = host
            .start("waits_then_tidies", json!({ "marks": marks.url(), "how": how }))
            .await;
        marks.reached("held", 1).await;
        // Before what it called is in the journal: for the next host the request comes first.
        host.engine.shutdown().await;
        let ending = onemark::store::Ending::Ask {
            reason: CancelReason::Requested,
            executing: true,
        };
        host.store.cancel(&run, ending, 1_800_000_000_000).await.unwrap();
        let host = host.restart().await;
        let (status, _) = tidied(&host, &marks, &run).await;
        assert_eq!((status, marks.count("held")), (RunStatus::Cancelled, 1));
    }
}

/// The request came after the guest made the call, and before the journal held it.
#[tokio::test(flavor = "multi_thread")]
async fn e05_an_attempt_that_was_not_yet_in_the_journal_is_not_repeated_over_a_restart() {
    loop {
        let (host, marks) = host(StoreKind::Sqlite).await;
        marks.hold("held");
        let run = host
            .start(
                "waits_then_tidies",
                json!({ "marks": marks.url(), "how": "held" }),
            )
            .await;
        host.engine.cancel(&run).await.unwrap();
        host.until(&run, |info| info.entries == 4).await;
        if host.events(&run).await[1] != "cancel_requested" {
            // The request took longer than an attempt stays out of the journal.
            continue;
        }
        marks.reached("held", 1).await;
        marks.release();
        let host = host.restart().await;
        let (status, _) = tidied(&host, &marks, &run).await;
        assert_eq!((status, marks.count("held")), (RunStatus::Cancelled, 1));
        return;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_a_run_that_never_executed_ends_at_once() {
    let marks = Marks::start().await;
    let config = EngineConfig {
        max_resident: 1,
        ..EngineConfig::default()
    };
    let host = TestHost::with(StoreKind::Sqlite, config, None, &[marks.authority()]).await;
    marks.hold("held");
    waiting(&host, &marks, "held").await;
    let run = host.start_with("sequence", json!({ "n": 1 }), &["token"]).await;
    let ended = host.engine.cancel(&run).await.unwrap();
    assert_eq!(ended.status, RunStatus::Cancelled);
    assert_eq!(host.events(&run).await, ["started", "terminated"]);
    // Its token is as free as at any end.
    let next = host.start_with("sequence", json!({ "n": 1 }), &["token"]).await;
    marks.let_go();
    host.output(&next).await;
    assert_eq!(host.events(&run).await, ["started", "terminated"]);
    host.agrees(&run).await;
}

/// What waited for room when it ended was known to be pending; that is no reason to run any of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_while_it_waited_for_room_does_nothing() {
    for terminate in [false, true] {
        let marks = Marks::start().await;
        let config = EngineConfig {
            max_resident: 1,
            ..EngineConfig::default()
        };
        let host = TestHost::with(StoreKind::Sqlite, config, None, &[marks.authority()]).await;
        marks.hold("held");
        let first = waiting(&host, &marks, "held").await;
        let input = json!({ "marks": marks.url(), "last": "fails" });
        let run = host.start("trip", input).await;
        let ended = match terminate {
            true => host.engine.terminate(&run).await,
            false => host.engine.cancel(&run).await,
        };
        assert_eq!(ended.unwrap().status, RunStatus::Cancelled);
        marks.let_go();
        host.ended(&first).await;
        host.engine.idle().await;
        let left: Vec<_> = marks.all().into_iter().map(|mark| mark.name).collect();
        assert_eq!(left, ["held", "tidy"]);
    }
}

/// It has left no entry, and no instance of it is left, but its guest waits to be told.
#[tokio::test(flavor = "multi_thread")]
async fn e05_a_run_that_only_waits_is_told_also_when_its_instance_is_gone() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::with_clock(kind).await;
        let run = host.start("hears", json!({ "then": "ends" })).await;
        host.reached(&run, RunStatus::Suspended).await;
        let host = host.restart().await;
        host.engine.cancel(&run).await.unwrap();
        assert_eq!(host.output(&run).await, json!("requested"));
        host.agrees(&run).await;
    }
}

/// Whether the request comes before a step blocks the run, after, or between the two, nobody has to ask again.
#[tokio::test(flavor = "multi_thread")]
async fn e05_a_run_that_is_asked_while_it_becomes_blocked_ends() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::on(kind).await;
        for n in 0..100_u32 {
            let token = format!("{n}");
            let input = json!({ "good_from_attempt": 5, "fatal": false, "token": token });
            let run = host.start("waits_for_help", input).await;
            host.until(&run, |info| info.entries > u64::from(n % 3)).await;
            // Two attempts, 1 ms apart.
            let asked_at = std::time::Instant::now() + Duration::from_micros(60 * u64::from(n));
            while std::time::Instant::now() < asked_at {
                tokio::task::yield_now().await;
            }
            host.engine.cancel(&run).await.unwrap();
            host.until(&run, |info| info.status.is_terminal()).await;
            // Failed, where the last attempt was at work: its outcome counts.
            let ends = [RunStatus::Cancelled, RunStatus::Failed];
            assert!(ends.contains(&host.ended(&run).await.status));
            host.agrees(&run).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e05_a_blocked_run_ends_at_once() {
    let host = TestHost::new().await;
    let run = host.start("broken", json!({ "how": "panic" })).await;
    host.reached(&run, RunStatus::Blocked).await;
    let ended = host.engine.cancel(&run).await.unwrap();
    assert_eq!((ended.status, ended.blocked), (RunStatus::Cancelled, None));
    let report = host.engine.replay(&run, None).await.unwrap();
    assert!(matches!(report.verdict, Verdict::Trapped(_)), "{report:?}");
    let error = json_of(host.ended(&run).await.error.as_deref());
    assert_eq!(error["message"], "the run was asked to cancel");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_what_ended_otherwise_or_never_was_is_an_error() {
    let host = TestHost::new().await;
    let (run, _) = host.completes("sequence", json!({ "n": 1 })).await;
    for ended in [host.engine.cancel(&run).await, host.engine.terminate(&run).await] {
        assert!(
            matches!(
                ended,
                Err(Error::RunEnded {
                    status: RunStatus::Completed,
                    ..
                })
            ),
            "{ended:?}"
        );
    }
    let unknown = RunId::new("unknown").unwrap();
    let missing = host.engine.cancel(&unknown).await;
    assert!(matches!(missing, Err(Error::RunNotFound(_))), "{missing:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e17_terminate_ends_without_guest_code() {
    for how in ["sleep", "hook", "held", "retry"] {
        for (host, marks) in hosts().await {
            marks.hold("held");
            let run = waiting(&host, &marks, how).await;
            let ended = host.engine.terminate(&run).await.unwrap();
            assert_eq!(ended.status, RunStatus::Cancelled, "{how}");
            let error = json_of(host.ended(&run).await.error.as_deref());
            assert_eq!(error["message"], "the run was terminated");
            host.engine.idle().await;
            assert_eq!(host.events(&run).await.last(), Some(&"terminated"));
            assert_eq!(marks.count("tidy"), 0);
            host.agrees(&run).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e17_a_terminated_run_keeps_what_retention_keeps() {
    let host = TestHost::with_clock(StoreKind::Sqlite).await;
    let run = host.start("follow", json!({ "id": "7" })).await;
    host.engine.terminate(&run).await.unwrap();
    let held = host.try_start("follow", json!({ "id": "7" }), &[]).await;
    assert!(matches!(held, Err(Error::HookConflict { .. })), "{held:?}");
    host.advance(Duration::from_secs(3600));
    host.start("follow", json!({ "id": "7" })).await;
}

/// A07
#[tokio::test(flavor = "multi_thread")]
async fn a07_a_cancelled_run_keeps_its_token_until_retention_passes() {
    let host = TestHost::with_clock(StoreKind::Sqlite).await;
    let run = host.start("follow", json!({ "id": "7" })).await;
    host.reached(&run, RunStatus::Suspended).await;
    host.engine.cancel(&run).await.unwrap();
    host.reached(&run, RunStatus::Cancelled).await;
    let held = host.try_start("follow", json!({ "id": "7" }), &[]).await;
    let Err(Error::HookConflict { owner, .. }) = held else {
        panic!("{held:?}");
    };
    assert_eq!((owner.run, owner.status), (run.clone(), RunStatus::Cancelled));
    let token = onemark_tests::token("order:7");
    host.engine.dispose(&token).await.unwrap();
    assert_eq!(host.events(&run).await.last(), Some(&"hook_disposed"));
    host.start("follow", json!({ "id": "7" })).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e07_a_run_that_takes_too_long_is_asked_to_cancel() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::with_clock(kind).await;
        let run = host.start("hears", json!({ "then": "ends" })).await;
        let parked = host.reached(&run, RunStatus::Suspended).await;
        assert_eq!(parked.wake_at, Some(parked.created_at + 3_600_000));
        host.advance(Duration::from_secs(3_599));
        assert_eq!(host.engine.run(&run).await.unwrap().status, RunStatus::Suspended);
        // Over a restart too.
        let host = host.restart().await;
        host.advance(Duration::from_secs(1));
        assert_eq!(host.output(&run).await, json!("timeout"));
        let info = host.engine.run(&run).await.unwrap();
        assert_eq!(info.cancel_requested, Some(CancelReason::Timeout));
        host.agrees(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e07_at_the_second_deadline_it_ends_without_guest_code() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::with_clock(kind).await;
        let run = host.start("hears", json!({ "then": "stays" })).await;
        host.reached(&run, RunStatus::Suspended).await;
        host.advance(Duration::from_secs(3_600));
        host.until(&run, |info| info.cancel_requested.is_some()).await;
        loop {
            let info = host.engine.run(&run).await.unwrap();
            if info.status.is_terminal() {
                break;
            }
            host.advance(Duration::from_secs(10));
            tokio::task::yield_now().await;
        }
        let result = host.ended(&run).await;
        assert_eq!(result.status, RunStatus::Cancelled);
        host.agrees(&run).await;
        let error = json_of(result.error.as_deref());
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("did not end when it was asked"),
            "{error}"
        );
    }
}

/// E06: also over a crash between two compensations.
#[tokio::test(flavor = "multi_thread")]
async fn e06_what_was_done_is_undone_in_reverse() {
    let undone = ["hotel", "flight", "undo-flight", "undo-hotel"];
    for (last, status) in [("fails", RunStatus::Failed), ("waits", RunStatus::Cancelled)] {
        for restart in [false, true] {
            let (mut host, marks) = host(StoreKind::Sqlite).await;
            if restart {
                marks.hold("undo-hotel");
            }
            let run = host
                .start("trip", json!({ "marks": marks.url(), "last": last }))
                .await;
            if last == "waits" {
                host.reached(&run, RunStatus::Suspended).await;
                host.engine.cancel(&run).await.unwrap();
            }
            let mut expected = undone.to_vec();
            if restart {
                marks.reached("undo-hotel", 1).await;
                marks.release();
                host = host.restart().await;
                expected.push("undo-hotel");
            }
            assert_eq!(host.ended(&run).await.status, status);
            let left: Vec<_> = marks.all().into_iter().map(|mark| mark.name).collect();
            assert_eq!(left, expected, "{last}, {restart}");
            host.agrees(&run).await;
        }
    }
    let (host, marks) = host(StoreKind::Memory).await;
    let (run, _) = host
        .completes("trip", json!({ "marks": marks.url(), "last": "car" }))
        .await;
    let left: Vec<_> = marks.all().into_iter().map(|mark| mark.name).collect();
    assert_eq!(left, ["hotel", "flight", "car"]);
    host.agrees(&run).await;
}

/// The request is in the journal before the first that the run asks for, and the run learns of it by saving that.
#[tokio::test(flavor = "multi_thread")]
async fn steps_of_the_first_commit_end_once() {
    for kind in StoreKind::ALL {
        let (host, store) = TestHost::with_faults(kind, EngineConfig::default(), None, &[]).await;
        store.refuse(Refuse::Appends);
        let step = json!([{ "step": { "n": 1, "busy": 0, "fatal": false, "ms": 0 } }]);
        let program = json!([{ "join": [step, [{ "emit": { "n": 1 } }]] }]);
        let run = host
            .start("interprets", json!({ "program": program, "path": "" }))
            .await;
        store.refused(&run, 1).await;
        host.engine.cancel(&run).await.unwrap();
        store.refuse(Refuse::Nothing);
        assert!(host.ended(&run).await.status.is_terminal());
        let events = host.events(&run).await;
        let failed = events.iter().filter(|event| **event == "step_failed");
        assert_eq!(failed.count(), 1, "{events:?}");
        host.agrees(&run).await;
    }
}
