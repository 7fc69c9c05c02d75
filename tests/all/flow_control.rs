//! Concurrency limits: how many runs of a group are at work at once, and who waits for what.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use onemark::clock::ManualClock;
use onemark::engine::{ConflictPolicy, EngineConfig, Error, StartRequest};
use onemark::ids::RunId;
use onemark::journal::{CancelReason, Event, RunStatus};
use onemark::store::{RunFilter, RunInfo, Waits};
use onemark_tests::{Marks, StoreKind, TestHost, fork, json_of, on_each_store, request};
use serde_json::json;

on_each_store!(
    e12_never_more_are_at_work_than_the_limit_says,
    e12_each_key_has_a_limit_of_its_own,
    e12_the_limit_holds_over_a_restart,
    e12_runs_that_wait_go_on_in_order_also_over_a_restart,
    e12_suspended_runs_hold_no_slot,
    e12_woken_runs_whose_instances_are_gone_wait_their_turn,
    e12_timers_that_come_due_together_go_on_one_by_one,
    e12_a_parent_and_its_children_need_one_slot,
    e12_a_run_that_waits_can_be_ended,
    e12_a_full_group_keeps_nobody_else_waiting,
    e12_the_newest_deployment_says_how_many,
    e12_a_deployment_that_is_removed_no_longer_says_how_many,
    e12_a_blocked_run_holds_no_slot,
    e12_the_input_must_have_the_key,
    e12_a_run_that_waits_for_its_turn_ends_with_its_time,
    e12_a_run_that_is_replaced_gives_up_its_place,
    e12_a_child_that_waits_ends_with_its_parent,
    e12_a_run_that_is_ended_while_it_waits_gives_up_its_instance,
    e12_a_fork_counts_in_its_group,
    e12_who_goes_on_as_a_new_run_takes_its_turn_anew,
);

async fn host(kind: StoreKind, config: EngineConfig, marks: &Marks) -> TestHost {
    TestHost::with(kind, config, None, &[marks.authority()]).await
}

/// Behind how many others the run waits for its turn, if it does.
fn ahead(run: &RunInfo) -> Option<u64> {
    match &run.waits {
        Some(Waits::Concurrency { ahead, .. }) => *ahead,
        _ => None,
    }
}

/// Waits until the run waits behind so many others.
async fn waits_behind(host: &TestHost, run: &RunId, others: u64) -> RunInfo {
    host.until(run, |info| ahead(info) == Some(others)).await
}

/// Waits until it is so.
async fn eventually(what: &str, so: impl AsyncFn() -> bool) {
    let looking = async {
        while !so().await {
            tokio::task::yield_now().await;
        }
    };
    let patience = Duration::from_secs(60);
    let found = tokio::time::timeout(patience, looking).await;
    assert!(found.is_ok(), "{what}");
}

/// Starts runs of `one_at_a_time`, each of which holds its mark until that is answered.
async fn start_held(host: &TestHost, marks: &Marks, names: &[&str]) -> Vec<RunId> {
    let mut runs = Vec::new();
    for name in names {
        marks.hold(name);
        let input = json!({ "marks": marks.url(), "name": name });
        runs.push(host.start("one_at_a_time", input).await);
    }
    runs
}

async fn e12_never_more_are_at_work_than_the_limit_says(kind: StoreKind) {
    let marks = Marks::start().await;
    // Some wait with their instances, others without.
    let config = EngineConfig {
        max_resident: 8,
        ..EngineConfig::default()
    };
    let host = host(kind, config, &marks).await;
    marks.hold("three");
    let mut runs = Vec::new();
    for _ in 0..20 {
        let input = json!({ "marks": marks.url(), "n": 4 });
        runs.push(host.start("three_at_a_time", input).await);
    }
    marks.reached("three", 3).await;
    let waiting = waits_behind(&host, &runs[19], 16).await;
    assert_eq!(waiting.status, RunStatus::Pending);
    assert_eq!(
        waiting.waits,
        Some(Waits::Concurrency {
            key: None,
            limit: NonZeroU32::new(3).unwrap(),
            ahead: Some(16),
        })
    );
    assert_eq!(marks.count("three"), 3);
    marks.let_go();
    for run in &runs {
        host.output(run).await;
        host.agrees(run).await;
    }
    assert_eq!(marks.count("three"), 80);
    assert_eq!(marks.most_at_once(), 3);
}

async fn e12_each_key_has_a_limit_of_its_own(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let mut runs = Vec::new();
    for n in 0..12 {
        let customer = ["a", "b/c", "d"][n % 3];
        marks.hold(customer);
        let input = json!({ "marks": marks.url(), "customer": { "id": customer } });
        runs.push(host.start("two_per_customer", input).await);
    }
    for customer in ["a", "d"] {
        marks.reached(customer, 2).await;
    }
    let waiting = waits_behind(&host, &runs[9], 1).await;
    let Some(Waits::Concurrency { key, limit, .. }) = waiting.waits else {
        panic!("it waits for its turn");
    };
    assert_eq!((key.as_deref(), limit.get()), (Some("customer:a"), 2));
    let Event::Started(started) = host.journal(&runs[9]).await.remove(0).event else {
        panic!("a run begins with its start");
    };
    assert_eq!(started.concurrency, waiting.concurrency);
    assert_eq!(
        started.concurrency.unwrap().group.as_str(),
        "two_per_customer/customer:a"
    );
    assert_eq!(marks.count("a"), 2);
    // One customer's end is no other's turn.
    marks.answer("a");
    for run in [0, 3, 6, 9] {
        host.output(&runs[run]).await;
    }
    assert_eq!((marks.count("a"), marks.count("d")), (4, 2));
    marks.let_go();
    for run in &runs {
        host.ended(run).await;
    }
    assert!(marks.most_at_once() <= 6);
}

async fn e12_the_limit_holds_over_a_restart(kind: StoreKind) {
    let marks = Marks::start().await;
    let http = [marks.authority()];
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let mut host = TestHost::with(kind, EngineConfig::default(), Some(clock), &http).await;
    let names: Vec<_> = (0..6).map(|n| format!("m{n}")).collect();
    let mut runs = Vec::new();
    for name in &names {
        marks.hold(name);
        let input = json!({ "marks": marks.url(), "name": name });
        runs.push(host.start("one_at_a_time", input).await);
    }
    for (n, name) in names.iter().enumerate() {
        marks.reached(name, 1).await;
        host = host.restart().await;
        // It was cut off, and nobody took its place.
        marks.reached(name, 2).await;
        for (behind, run) in runs[n + 1..].iter().enumerate() {
            let waiting = waits_behind(&host, run, behind as u64).await;
            assert_eq!(waiting.status, RunStatus::Pending);
        }
        let later = names[n + 1..].iter().map(|name| marks.count(name));
        assert_eq!(later.sum::<usize>(), 0);
        marks.answer(name);
        host.output(&runs[n]).await;
    }
}

async fn e12_runs_that_wait_go_on_in_order_also_over_a_restart(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let names = ["a", "b", "c", "d", "e", "f"];
    let runs = start_held(&host, &marks, &names).await;
    let in_order = async |host: &TestHost, from: usize, to: usize| {
        for n in from..to {
            marks.reached(names[n], 1).await;
            if let Some(last) = runs[n + 1..].last() {
                waits_behind(host, last, (runs.len() - n - 2) as u64).await;
            }
            assert!(names[n + 1..].iter().all(|later| marks.count(later) == 0));
            marks.answer(names[n]);
        }
    };
    in_order(&host, 0, 3).await;
    let host = host.restart().await;
    in_order(&host, 3, 6).await;
    for run in &runs {
        host.output(run).await;
    }
}

/// Starts runs that wait for payloads, then gives them theirs: the first acts, the others wait for their turn.
/// `forgotten` says that no instance of theirs is to be left before.
async fn payloads_for_all(host: &TestHost, marks: &Marks, forgotten: bool) -> Vec<RunId> {
    let names = ["x", "y", "z"];
    let mut runs = Vec::new();
    for name in names {
        marks.hold(name);
        let input = json!({ "marks": marks.url(), "name": name });
        runs.push(host.start("one_that_waits", input).await);
    }
    // All of them came as far as that, with one slot.
    for run in &runs {
        let resting = host.reached(run, RunStatus::Suspended).await;
        assert_eq!(resting.waits, None);
    }
    if forgotten {
        host.engine.idle().await;
    }
    host.deliver("x", json!(1)).await.unwrap();
    marks.reached("x", 1).await;
    for (behind, (name, run)) in names.iter().zip(&runs).skip(1).enumerate() {
        host.deliver(name, json!(1)).await.unwrap();
        let waiting = waits_behind(host, run, behind as u64).await;
        assert_eq!(waiting.status, RunStatus::Suspended);
    }
    assert_eq!((marks.count("y"), marks.count("z")), (0, 0));
    runs
}

async fn in_turn(host: &TestHost, marks: &Marks, runs: &[RunId]) {
    for (name, run) in ["x", "y", "z"].iter().zip(runs) {
        marks.reached(name, 1).await;
        marks.answer(name);
        host.output(run).await;
        host.agrees(run).await;
    }
    assert_eq!(marks.most_at_once(), 1);
}

async fn e12_suspended_runs_hold_no_slot(kind: StoreKind) {
    let marks = Marks::start().await;
    let config = EngineConfig {
        idle: Duration::from_secs(3_600),
        ..EngineConfig::default()
    };
    let host = host(kind, config, &marks).await;
    let runs = payloads_for_all(&host, &marks, false).await;
    host.reached(&runs[0], RunStatus::Running).await;
    let running = RunFilter {
        status: Some(RunStatus::Running),
        limit: 10,
        ..RunFilter::default()
    };
    let at_work = host.engine.runs(running).await.unwrap();
    assert_eq!(at_work.len(), 1, "{at_work:?}");
    let all = RunFilter {
        limit: 10,
        ..RunFilter::default()
    };
    let listed = host.engine.runs(all).await.unwrap();
    assert_eq!(
        listed.iter().map(ahead).collect::<Vec<_>>(),
        [Some(1), Some(0), None]
    );
    in_turn(&host, &marks, &runs).await;
}

async fn e12_woken_runs_whose_instances_are_gone_wait_their_turn(kind: StoreKind) {
    let marks = Marks::start().await;
    let config = EngineConfig {
        idle: Duration::ZERO,
        ..EngineConfig::default()
    };
    let host = host(kind, config, &marks).await;
    let runs = payloads_for_all(&host, &marks, true).await;
    in_turn(&host, &marks, &runs).await;
}

async fn e12_timers_that_come_due_together_go_on_one_by_one(kind: StoreKind) {
    for idle in [Duration::ZERO, Duration::from_secs(3_600)] {
        let marks = Marks::start().await;
        let http = [marks.authority()];
        let clock = Arc::new(ManualClock::new(1_800_000_000_000));
        let config = EngineConfig {
            idle,
            ..EngineConfig::default()
        };
        let host = TestHost::with(kind, config, Some(clock), &http).await;
        let mut runs = Vec::new();
        for n in 0..5 {
            marks.hold(&format!("{n}-again"));
            let input = json!({ "marks": marks.url(), "name": n.to_string(), "sleep_ms": 60_000 });
            runs.push(host.start("one_at_a_time", input).await);
        }
        for run in &runs {
            host.reached(run, RunStatus::Suspended).await;
        }
        host.advance(Duration::from_secs(60));
        let again = || {
            let all = marks.all().into_iter().map(|mark| mark.name);
            all.filter(|name| name.ends_with("again")).collect::<Vec<_>>()
        };
        for done in 1..=5 {
            // Which of them is the first to wake is nobody's promise.
            eventually("one acts", async || again().len() >= done).await;
            let waiting = async || {
                let all = RunFilter {
                    limit: 10,
                    ..RunFilter::default()
                };
                let listed = host.engine.runs(all).await.unwrap();
                listed.iter().filter(|run| ahead(run).is_some()).count()
            };
            eventually("the others wait", async || waiting().await == 5 - done).await;
            let acted = again();
            assert_eq!(acted.len(), done);
            marks.answer(&acted[done - 1]);
        }
        for run in &runs {
            host.output(run).await;
        }
        assert_eq!(marks.most_at_once(), 1);
    }
}

async fn e12_a_parent_and_its_children_need_one_slot(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (_, depth) = host.completes("one_generation", json!({ "left": 4 })).await;
    assert_eq!(depth, 4);
}

async fn e12_a_run_that_waits_can_be_ended(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let runs = start_held(&host, &marks, &["a", "b", "c", "d"]).await;
    marks.reached("a", 1).await;
    waits_behind(&host, &runs[3], 2).await;
    // They have done nothing, so that nothing is to be tidied up: they end at once.
    let ended = host.engine.cancel(&runs[1]).await.unwrap();
    assert_eq!((ended.status, ended.waits), (RunStatus::Cancelled, None));
    waits_behind(&host, &runs[3], 1).await;
    let ended = host.engine.terminate(&runs[2]).await.unwrap();
    assert_eq!(ended.status, RunStatus::Cancelled);
    waits_behind(&host, &runs[3], 0).await;
    marks.answer("a");
    marks.reached("d", 1).await;
    marks.answer("d");
    host.output(&runs[3]).await;
    assert_eq!((marks.count("b"), marks.count("c")), (0, 0));

    // One that rests waits for its turn to tidy up.
    let mut runs = Vec::new();
    marks.hold("v");
    for name in ["v", "w"] {
        let input = json!({ "marks": marks.url(), "name": name });
        runs.push(host.start("one_that_waits", input).await);
    }
    for run in &runs {
        host.reached(run, RunStatus::Suspended).await;
    }
    host.deliver("v", json!(1)).await.unwrap();
    marks.reached("v", 1).await;
    let asked = host.engine.cancel(&runs[1]).await.unwrap();
    assert_eq!(asked.status, RunStatus::Suspended);
    waits_behind(&host, &runs[1], 0).await;
    assert_eq!(marks.count("undo-w"), 0);
    marks.answer("v");
    host.output(&runs[0]).await;
    assert_eq!(host.ended(&runs[1]).await.status, RunStatus::Cancelled);
    assert_eq!(marks.count("undo-w"), 1);
}

async fn e12_a_full_group_keeps_nobody_else_waiting(kind: StoreKind) {
    let marks = Marks::start().await;
    let config = EngineConfig {
        max_resident: 2,
        ..EngineConfig::default()
    };
    let host = host(kind, config, &marks).await;
    let names: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let runs = start_held(&host, &marks, &names).await;
    marks.reached("0", 1).await;
    host.completes("sequence", json!({ "n": 3 })).await;
    assert_eq!(marks.all().len(), 1);
    let host = host.restart().await;
    marks.reached("0", 2).await;
    host.completes("sequence", json!({ "n": 3 })).await;
    waits_behind(&host, &runs[9], 8).await;
    marks.let_go();
    for run in &runs {
        host.output(run).await;
    }
}

async fn e12_the_newest_deployment_says_how_many(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let names = ["a", "b", "c", "d", "e"];
    let runs = start_held(&host, &marks, &names).await;
    marks.reached("a", 1).await;
    waits_behind(&host, &runs[4], 3).await;
    // One of the same name, three at a time.
    let scheduled = onemark_tests::scheduled();
    host.engine.deploy("scheduled", scheduled).await.unwrap();
    for name in ["b", "c"] {
        marks.reached(name, 1).await;
    }
    let waiting = waits_behind(&host, &runs[4], 1).await;
    let limit = |run: &RunInfo| match &run.waits {
        Some(Waits::Concurrency { limit, .. }) => limit.get(),
        _ => 0,
    };
    assert_eq!(limit(&waiting), 3);
    let host = host.restart().await;
    for name in ["a", "b", "c"] {
        marks.reached(name, 2).await;
    }
    let waiting = waits_behind(&host, &runs[4], 1).await;
    assert_eq!(limit(&waiting), 3);
    assert_eq!((marks.count("d"), marks.count("e")), (0, 0));
    marks.let_go();
    for run in &runs {
        host.output(run).await;
    }
}

async fn e12_a_deployment_that_is_removed_no_longer_says_how_many(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let runs = start_held(&host, &marks, &["a", "b", "c", "d", "e"]).await;
    let limit = async |host: &TestHost, last: &RunId, ahead: u64| {
        let waiting = waits_behind(host, last, ahead).await;
        match waiting.waits {
            Some(Waits::Concurrency { limit, .. }) => limit.get(),
            _ => 0,
        }
    };
    host.engine
        .deploy("scheduled", onemark_tests::scheduled())
        .await
        .unwrap();
    for name in ["a", "b", "c"] {
        marks.reached(name, 1).await;
    }
    assert_eq!(limit(&host, &runs[4], 1).await, 3);
    // The one that is left has one at a time; nobody is cut off.
    host.engine.remove_deployment("scheduled").await.unwrap();
    assert_eq!(limit(&host, &runs[4], 1).await, 1);
    // Without any it is what they were admitted with, over a restart too.
    host.engine.remove_deployment("programs").await.unwrap();
    assert_eq!(limit(&host, &runs[4], 1).await, 1);
    let host = host.restart().await;
    assert_eq!(limit(&host, &runs[4], 3).await, 1);
    marks.let_go();
    for run in &runs {
        host.output(run).await;
    }
}

async fn e12_a_blocked_run_holds_no_slot(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let blocked = host.start("one_that_traps", json!({ "trap": true })).await;
    assert!(host.ended(&blocked).await.blocked.is_some());
    host.completes("one_that_traps", json!({ "trap": false })).await;
}

async fn e12_the_input_must_have_the_key(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for of in [
        json!({}),
        json!({ "customer": null }),
        json!({ "customer": "x".repeat(300) }),
    ] {
        let refused = host.try_start("one_of", json!({ "of": of }), &[]).await;
        assert!(matches!(refused, Err(Error::InvalidInput { .. })), "{refused:?}");
    }
    let (run, _) = host.completes("one_of", json!({ "of": { "customer": 7 } })).await;
    let info = host.engine.run(&run).await.unwrap();
    assert_eq!(info.concurrency.unwrap().group.as_str(), "one_of/7");
}

/// Whether it waits with its instance or without, or for the first time; also over a restart.
async fn e12_a_run_that_waits_for_its_turn_ends_with_its_time(kind: StoreKind) {
    for (idle, restart) in [
        (Duration::ZERO, false),
        (Duration::from_secs(3_600), false),
        (Duration::ZERO, true),
    ] {
        let marks = Marks::start().await;
        let clock = Arc::new(ManualClock::new(1_800_000_000_000));
        let config = EngineConfig {
            idle,
            ..EngineConfig::default()
        };
        let mut host = TestHost::with(kind, config, Some(clock), &[marks.authority()]).await;
        let start = async |host: &TestHost, name: &str, waits: bool| {
            let input = json!({ "marks": marks.url(), "name": name, "waits": waits });
            host.start("one_in_an_hour", input).await
        };
        let asked = start(&host, "asked", true).await;
        host.reached(&asked, RunStatus::Suspended).await;
        host.advance(Duration::from_secs(600));
        marks.hold("busy");
        start(&host, "busy", false).await;
        marks.reached("busy", 1).await;
        host.advance(Duration::from_secs(1));
        let new = start(&host, "new", false).await;
        waits_behind(&host, &new, 0).await;
        host.advance(Duration::from_secs(1));
        host.deliver("asked", json!(1)).await.unwrap();
        waits_behind(&host, &asked, 1).await;
        if restart {
            host = host.restart().await;
            marks.reached("busy", 2).await;
            waits_behind(&host, &asked, 1).await;
        }

        host.advance(Duration::from_secs(2_998));
        let told = host.until(&asked, |info| info.cancel_requested.is_some()).await;
        assert_eq!(told.cancel_requested, Some(CancelReason::Timeout));
        waits_behind(&host, &asked, 1).await;
        // It has no turn to tidy up, and its grace passes.
        host.advance(Duration::from_secs(60));
        let ended = host.ended(&asked).await;
        assert_eq!(ended.status, RunStatus::Cancelled);
        let waiting = waits_behind(&host, &new, 0).await;
        assert_eq!(
            (waiting.status, waiting.cancel_requested),
            (RunStatus::Pending, None)
        );

        host.advance(Duration::from_secs(541));
        let ended = host.ended(&new).await;
        assert_eq!(ended.status, RunStatus::Cancelled);
        assert_eq!(
            json_of(ended.error.as_deref())["message"],
            "the run took longer than its timeout allows"
        );
        assert_eq!(host.events(&new).await, ["started", "terminated"]);
        assert!(marks.all().iter().all(|mark| mark.name == "busy"));
    }
}

async fn e12_a_run_that_is_replaced_gives_up_its_place(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let at_work = start_held(&host, &marks, &["a"]).await;
    marks.reached("a", 1).await;
    let replacing = async |name: &str| {
        let input = json!({ "marks": marks.url(), "name": name });
        let asked = StartRequest {
            on_conflict: ConflictPolicy::Replace,
            ..request("one_at_a_time", input, &["t"])
        };
        host.engine.start(asked).await.unwrap().run_id
    };
    let mut before = replacing("b").await;
    waits_behind(&host, &before, 0).await;
    for name in ["c", "d"] {
        let next = replacing(name).await;
        let ended = host.ended(&before).await;
        assert_eq!(ended.status, RunStatus::Cancelled);
        let mut events = host.events(&before).await;
        events.retain(|event| *event != "predecessors_ended");
        let expected = ["started", "cancel_requested", "hook_disposed", "terminated"];
        assert_eq!(events, expected);
        waits_behind(&host, &next, 0).await;
        before = next;
    }
    let last = start_held(&host, &marks, &["last"]).await;
    waits_behind(&host, &last[0], 1).await;
    marks.let_go();
    for run in [&at_work[0], &before, &last[0]] {
        host.output(run).await;
    }
    let acted = marks.all().into_iter().map(|mark| mark.name);
    assert_eq!(acted.collect::<Vec<_>>(), ["a", "d", "last"]);
}

async fn e12_a_child_that_waits_ends_with_its_parent(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let at_work = start_held(&host, &marks, &["a"]).await;
    marks.reached("a", 1).await;
    let input = json!({ "marks": marks.url(), "name": "child" });
    let input = json!({ "workflow": "one_at_a_time", "input": input });
    let parent = host.start("strict_parent", input).await;
    host.reached(&parent, RunStatus::Suspended).await;
    let filter = RunFilter {
        workflow: Some("one_at_a_time".into()),
        limit: 1,
        ..RunFilter::default()
    };
    let child = host.engine.runs(filter).await.unwrap().remove(0).id;
    waits_behind(&host, &child, 0).await;
    host.engine.terminate(&parent).await.unwrap();
    assert_eq!(host.ended(&child).await.status, RunStatus::Cancelled);
    let next = start_held(&host, &marks, &["next"]).await;
    waits_behind(&host, &next[0], 0).await;
    marks.let_go();
    for run in [&at_work[0], &next[0]] {
        host.output(run).await;
    }
    assert_eq!(marks.count("child"), 0);
}

async fn e12_a_run_that_is_ended_while_it_waits_gives_up_its_instance(kind: StoreKind) {
    let marks = Marks::start().await;
    let config = EngineConfig {
        idle: Duration::from_secs(3_600),
        ..EngineConfig::default()
    };
    let host = host(kind, config, &marks).await;
    let runs = payloads_for_all(&host, &marks, false).await;
    for run in &runs[1..] {
        let ended = host.engine.terminate(run).await.unwrap();
        assert_eq!((ended.status, ended.waits), (RunStatus::Cancelled, None));
    }
    marks.answer("x");
    host.output(&runs[0]).await;
    let idle = tokio::time::timeout(Duration::from_secs(60), host.engine.idle());
    assert!(idle.await.is_ok(), "instances of runs that have ended are left");
}

async fn e12_a_fork_counts_in_its_group(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    let runs = start_held(&host, &marks, &["a"]).await;
    marks.reached("a", 1).await;
    let mut forks = Vec::new();
    // From its beginning, and from where it called its step.
    for at in [0, 1] {
        host.until(&runs[0], |info| info.entries > at).await;
        let fork = host.engine.fork(fork(&runs[0], at)).await.unwrap().run_id;
        let waiting = waits_behind(&host, &fork, at).await;
        assert_eq!(waiting.concurrency.unwrap().group.as_str(), "one_at_a_time");
        forks.push(fork);
    }
    let host = host.restart().await;
    marks.reached("a", 2).await;
    waits_behind(&host, &forks[1], 1).await;
    // A fork that waits has run nothing, and a fork of one that waits waits as well.
    assert_eq!(host.engine.terminate(&forks[0]).await.unwrap().waits, None);
    waits_behind(&host, &forks[1], 0).await;
    marks.let_go();
    for run in [&runs[0], &forks[1]] {
        host.output(run).await;
        host.agrees(run).await;
    }
    assert_eq!((marks.count("a"), marks.most_at_once()), (3, 1));
}

async fn e12_who_goes_on_as_a_new_run_takes_its_turn_anew(kind: StoreKind) {
    let marks = Marks::start().await;
    let host = host(kind, EngineConfig::default(), &marks).await;
    marks.hold("x2");
    let mut runs = Vec::new();
    for name in ["x", "y"] {
        let input = json!({ "marks": marks.url(), "name": name, "left": 2 });
        runs.push(host.start("one_pass_at_a_time", input).await);
    }
    marks.reached("x2", 1).await;
    waits_behind(&host, &runs[1], 0).await;
    marks.let_go();
    for run in &runs {
        host.output(run).await;
    }
    let acted = marks.all().into_iter().map(|mark| mark.name);
    assert_eq!(acted.collect::<Vec<_>>(), ["x2", "y2", "x1", "y1", "x0", "y0"]);
    assert_eq!(marks.most_at_once(), 1);
}
