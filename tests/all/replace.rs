//! Case A19: a start that takes the place of the run that holds its token.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use onemark::clock::{Clock as _, ManualClock};
use onemark::engine::{ConflictPolicy, EngineConfig, Error, StartReceipt, StartRequest};
use onemark::ids::{IdempotencyKey, RunId};
use onemark::journal::{CancelReason, Event, RunStatus};
use onemark::store::{HookState, RunInfo, Waits};
use onemark_tests::*;
use serde_json::json;
use tokio::task::JoinSet;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

on_each_store![
    a19_the_new_run_waits_until_the_old_one_has_ended,
    a19_a_restart_in_the_middle_changes_nothing,
    a19_what_the_old_run_was_given_it_can_read_whenever_it_opens_its_hook,
    a19_a_token_of_its_own_is_read_by_the_old_run_too,
    a19_who_was_asked_to_cancel_before_reads_its_hook_too,
    a19_of_a_chain_the_last_waits_for_the_first,
    a19_who_replaces_several_waits_for_all,
    a19_a_blocked_owner_ends_at_once,
    a19_an_owner_that_ended_keeps_nobody_waiting,
    a19_the_run_that_goes_on_for_the_owner_ends_first_too,
    a19_a_waiting_run_that_is_ended_lets_go,
    a19_a_named_time_is_waited_for_as_well,
    a19_time_begins_with_the_run,
    a19_of_racing_starts_one_run_is_at_work_at_any_time,
    a24_a_replacement_is_answered_the_same_again,
    a27_retention_counts_from_the_admission_of_who_replaces,
];

// ---- helpers ---------------------------------------------------------------------------------------

async fn host(kind: StoreKind) -> (TestHost, Marks) {
    let marks = Marks::start().await;
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let http = [marks.authority()];
    let host = TestHost::with(kind, EngineConfig::default(), Some(clock), &http).await;
    (host, marks)
}

fn replacing(request: StartRequest) -> StartRequest {
    StartRequest {
        on_conflict: ConflictPolicy::Replace,
        ..request
    }
}

/// A trip that waits for an hour once it has booked, and then undoes what it did when it is to end.
fn trip(marks: &Marks, tokens: &[&str]) -> StartRequest {
    request("trip", json!({ "marks": marks.url(), "last": "waits" }), tokens)
}

async fn start(host: &TestHost, request: StartRequest) -> StartReceipt {
    let receipt = host.engine.start(request).await.unwrap();
    assert!(receipt.started, "{receipt:?}");
    receipt
}

/// A trip that has booked, and whose undoing takes until the marks are let go.
async fn long_to_end(host: &TestHost, marks: &Marks, tokens: &[&str]) -> RunId {
    marks.hold("undo-flight");
    let run = start(host, trip(marks, tokens)).await.run_id;
    host.reached(&run, RunStatus::Suspended).await;
    run
}

fn waits_for(runs: &[&RunId]) -> Option<Waits> {
    Some(Waits::Predecessors {
        runs: runs.iter().map(|run| (*run).clone()).collect(),
        until: None,
    })
}

async fn info(host: &TestHost, run: &RunId) -> RunInfo {
    host.engine.run(run).await.unwrap()
}

/// It has not begun, and says for whom it waits: where one looks it up, and in the list.
async fn is_waiting(host: &TestHost, run: &RunId, waits: Option<Waits>) {
    let shown = info(host, run).await;
    assert_eq!((shown.status, &shown.waits), (RunStatus::Pending, &waits));
    assert_eq!(shown.wake_at, None);
    let all = host.everything().await;
    let (listed, journal, _) = all.iter().find(|(listed, ..)| listed.id == *run).unwrap();
    assert_eq!(
        (&listed.waits, &listed.predecessors),
        (&waits, &shown.predecessors)
    );
    let from_outside = |event: &Event| matches!(event, Event::Started(_) | Event::PayloadReceived { .. });
    assert!(
        journal.iter().all(|entry| from_outside(&entry.event)),
        "{journal:?}"
    );
}

/// It began after all of these had ended.
async fn began_after(host: &TestHost, run: &RunId, before: &[&RunId]) {
    let begun = host
        .until(run, |info| {
            info.waits.is_none() && info.status != RunStatus::Pending
        })
        .await;
    let journal = host.journal(run).await;
    let ended = |event: &Event| *event == Event::PredecessorsEnded;
    let place = journal.iter().position(|entry| ended(&entry.event)).unwrap();
    let waited = journal[1..place]
        .iter()
        .all(|entry| matches!(entry.event, Event::PayloadReceived { .. }));
    assert!(waited, "{journal:?}");
    assert!(!journal[place + 1..].iter().any(|entry| ended(&entry.event)));
    for run in before {
        let before = info(host, run).await;
        assert!(
            before.ended_at.unwrap() <= journal[place].at,
            "{before:?}, then {begun:?}"
        );
    }
}

// ---- one after the other ---------------------------------------------------------------------------

async fn a19_the_new_run_waits_until_the_old_one_has_ended(kind: StoreKind) {
    let (host, marks) = host(kind).await;
    let old = long_to_end(&host, &marks, &["t"]).await;
    host.deliver("t", json!("early")).await.unwrap();
    let receipt = start(&host, replacing(request("read_any", json!({}), &["t"]))).await;
    assert_eq!(receipt.replaced, std::slice::from_ref(&old));
    let new = receipt.run_id;

    marks.reached("undo-flight", 1).await;
    is_waiting(&host, &new, waits_for(&[&old])).await;
    let asked = info(&host, &old).await;
    assert_eq!(asked.cancel_requested, Some(CancelReason::Replaced));
    assert!(!asked.status.is_terminal());
    // The guest hears that it is to end before it finds its hook closed.
    let events = host.events(&old).await;
    let asked = events
        .iter()
        .position(|event| *event == "cancel_requested")
        .unwrap();
    assert_eq!(events[asked + 1], "hook_disposed");
    let hooks = host.engine.hooks_of(&old).await.unwrap();
    assert_eq!((hooks[0].state, hooks[0].unread), (HookState::Freed, 1));
    assert_eq!(host.hook("t").await.unwrap().run_id, new);
    assert_eq!(host.deliver("t", json!("new")).await.unwrap().run_id, new);
    is_waiting(&host, &new, waits_for(&[&old])).await;
    // Others meet the new run.
    let met = host.try_start("read_any", json!({}), &["t"]).await;
    assert!(matches!(met, Err(Error::HookConflict { owner, .. }) if owner.run == new));

    marks.let_go();
    let result = host.ended(&old).await;
    assert_eq!((result.status, result.unread), (RunStatus::Cancelled, Some(1)));
    assert_eq!(json_of(result.error.as_deref())["kind"], "cancelled");
    began_after(&host, &new, &[&old]).await;
    host.deliver("t", json!("end")).await.unwrap();
    assert_eq!(host.output(&new).await, json!(["new"]));
    for run in [&old, &new] {
        host.agrees(run).await;
    }
    // A token that nobody holds is taken as ever.
    let next = start(&host, replacing(request("read_any", json!({}), &["t"]))).await;
    assert_eq!(next.replaced, []);
    host.reached(&next.run_id, RunStatus::Suspended).await;
}

async fn a19_a_restart_in_the_middle_changes_nothing(kind: StoreKind) {
    let (host, marks) = host(kind).await;
    let old = long_to_end(&host, &marks, &["t"]).await;
    let new = start(&host, replacing(trip(&marks, &["t"]))).await.run_id;
    marks.reached("undo-flight", 1).await;
    let host = host.restart().await;
    // The attempt that was cut off is made again.
    marks.reached("undo-flight", 2).await;
    is_waiting(&host, &new, waits_for(&[&old])).await;
    assert_eq!(marks.count("hotel"), 1);
    marks.let_go();
    began_after(&host, &new, &[&old]).await;
    let host = host.restart().await;
    host.reached(&new, RunStatus::Suspended).await;
    for run in [&old, &new] {
        host.agrees(run).await;
    }
}

/// It opens the hook after it was replaced, for the first time or once more, and a second time after that.
async fn a19_what_the_old_run_was_given_it_can_read_whenever_it_opens_its_hook(kind: StoreKind) {
    for before in [false, true] {
        let (host, _marks) = host(kind).await;
        let old = late(&host, &["t", "go"], before).await;
        for n in 1..=3 {
            host.deliver("t", json!(n)).await.unwrap();
        }
        let new = start(&host, replacing(request("read_any", json!({}), &["t"])))
            .await
            .run_id;
        assert_eq!(host.deliver("t", json!("new")).await.unwrap().run_id, new);
        let read = json!({ "own": [true, true], "read": [1, 2, 3, null] });
        assert_eq!(host.output(&old).await, read);
        assert_eq!(host.ended(&old).await.unread, Some(0));
        let events = host.events(&old).await;
        assert!(!events.contains(&"hook_conflicted"), "{events:?}");
        let host = host.restart().await;
        began_after(&host, &new, &[&old]).await;
        host.deliver("t", json!("end")).await.unwrap();
        assert_eq!(host.output(&new).await, json!(["new"]));
        for run in [&old, &new] {
            host.agrees(run).await;
        }
    }
}

async fn a19_a_token_of_its_own_is_read_by_the_old_run_too(kind: StoreKind) {
    let (host, _marks) = host(kind).await;
    let old = late(&host, &["go"], true).await;
    // It observes all of it at once.
    host.engine.shutdown().await;
    host.deliver("t", json!(1)).await.unwrap();
    let new = start(&host, replacing(request("read_any", json!({}), &["t"])))
        .await
        .run_id;
    let host = host.restart().await;
    let read = json!({ "own": [true, true], "read": [1, null] });
    assert_eq!(host.output(&old).await, read);
    began_after(&host, &new, &[&old]).await;
    host.deliver("t", json!("end")).await.unwrap();
    assert_eq!(host.output(&new).await, json!([]));
    for run in [&old, &new] {
        host.agrees(run).await;
    }
}

/// The request to cancel came from somebody else, before.
async fn a19_who_was_asked_to_cancel_before_reads_its_hook_too(kind: StoreKind) {
    let (host, _marks) = host(kind).await;
    let old = late(&host, &["t", "go"], false).await;
    host.deliver("t", json!(1)).await.unwrap();
    // It left nothing in its journal: cancelled before it rests again, it would end at once.
    let rests = |info: &RunInfo| info.entries == 2 && info.status == RunStatus::Suspended;
    host.until(&old, rests).await;
    host.engine.shutdown().await;
    host.engine.cancel(&old).await.unwrap();
    let new = start(&host, replacing(request("read_any", json!({}), &["t"])))
        .await
        .run_id;
    let host = host.restart().await;
    let read = json!({ "own": [true, true], "read": [1, null] });
    assert_eq!(host.output(&old).await, read);
    began_after(&host, &new, &[&old]).await;
    host.agrees(&old).await;
}

/// A run that has not opened its token `t`, or has, and waits.
async fn late(host: &TestHost, tokens: &[&str], before: bool) -> RunId {
    let asked = request("opens_late", json!({ "token": "t", "before": before }), tokens);
    let run = start(host, asked).await.run_id;
    host.reached(&run, RunStatus::Suspended).await;
    run
}

async fn a19_of_a_chain_the_last_waits_for_the_first(kind: StoreKind) {
    let (host, marks) = host(kind).await;
    let first = long_to_end(&host, &marks, &["t"]).await;
    let second = start(&host, replacing(trip(&marks, &["t"]))).await;
    assert_eq!(second.replaced, std::slice::from_ref(&first));
    marks.reached("undo-flight", 1).await;
    let third = start(&host, replacing(trip(&marks, &["t"]))).await;
    assert_eq!(third.replaced, std::slice::from_ref(&second.run_id));
    // It never executed.
    let result = host.ended(&second.run_id).await;
    assert_eq!(result.status, RunStatus::Cancelled);
    assert_eq!(
        host.events(&second.run_id).await,
        ["started", "terminated", "hook_disposed"]
    );
    is_waiting(&host, &third.run_id, waits_for(&[&first])).await;
    // As little when the one that waited was ended before.
    host.engine.cancel(&third.run_id).await.unwrap();
    let fourth = start(&host, replacing(trip(&marks, &["t"]))).await;
    assert_eq!(fourth.replaced, []);
    is_waiting(&host, &fourth.run_id, waits_for(&[&first])).await;
    assert_eq!(marks.count("hotel"), 1);

    marks.let_go();
    began_after(&host, &fourth.run_id, &[&first]).await;
    host.reached(&fourth.run_id, RunStatus::Suspended).await;
    assert_eq!(marks.count("hotel"), 2);
    for run in [&first, &fourth.run_id] {
        host.agrees(run).await;
    }
}

async fn a19_who_replaces_several_waits_for_all(kind: StoreKind) {
    let (host, marks) = host(kind).await;
    let one = long_to_end(&host, &marks, &["a", "b"]).await;
    let two = start(&host, request("read_any", json!({}), &["c", "d"]))
        .await
        .run_id;
    let kept = start(&host, request("read_any", json!({}), &["e"])).await.run_id;
    for run in [&two, &kept] {
        host.reached(run, RunStatus::Suspended).await;
    }
    let asked = replacing(request("read_any", json!({}), &["free", "a", "c", "b"]));
    let receipt = start(&host, asked).await;
    assert_eq!(receipt.replaced, [one.clone(), two.clone()]);
    let new = receipt.run_id;
    assert_eq!(host.ended(&two).await.status, RunStatus::Cancelled);
    host.until(&new, |info| info.waits == waits_for(&[&one])).await;
    assert_eq!(info(&host, &new).await.predecessors, [one.clone(), two.clone()]);
    for (name, owner) in [
        ("free", &new),
        ("a", &new),
        ("b", &new),
        ("c", &new),
        ("e", &kept),
    ] {
        assert_eq!(host.hook(name).await.unwrap().run_id, *owner, "{name}");
    }
    // What was not asked for ended with its run.
    assert_eq!(host.hook("d").await.unwrap().state, HookState::Freed);
    marks.let_go();
    began_after(&host, &new, &[&one, &two]).await;
    assert_eq!(info(&host, &kept).await.cancel_requested, None);
}

async fn a19_a_blocked_owner_ends_at_once(kind: StoreKind) {
    let (host, _marks) = host(kind).await;
    let old = start(&host, request("broken", json!({ "how": "panic" }), &["t"]))
        .await
        .run_id;
    host.reached(&old, RunStatus::Blocked).await;
    let new = start(&host, replacing(request("read_any", json!({}), &["t"]))).await;
    assert_eq!(new.replaced, std::slice::from_ref(&old));
    assert_eq!(host.ended(&old).await.status, RunStatus::Cancelled);
    let begun = host.reached(&new.run_id, RunStatus::Suspended).await;
    assert_eq!((begun.waits, begun.predecessors), (None, vec![old]));
}

async fn a19_an_owner_that_ended_keeps_nobody_waiting(kind: StoreKind) {
    let (host, _marks) = host(kind).await;
    let mut asked = request("read_any", json!({}), &["t"]);
    asked.hooks[0].min_retention_ms = 60_000;
    let old = start(&host, asked).await.run_id;
    host.deliver("t", json!("end")).await.unwrap();
    host.output(&old).await;
    assert_eq!(host.hook("t").await.unwrap().state, HookState::Retained);
    let new = start(&host, replacing(request("read_any", json!({}), &["t"]))).await;
    assert_eq!(new.replaced, std::slice::from_ref(&old));
    let begun = host.reached(&new.run_id, RunStatus::Suspended).await;
    assert_eq!(begun.predecessors, std::slice::from_ref(&old));
    assert_eq!(info(&host, &old).await.status, RunStatus::Completed);
    assert_eq!(host.events(&old).await.last(), Some(&"hook_disposed"));
    assert_eq!(host.hook("t").await.unwrap().run_id, new.run_id);
}

/// It observed the request and goes on nevertheless: whoever goes on for it is asked anew, and has no token.
async fn a19_the_run_that_goes_on_for_the_owner_ends_first_too(kind: StoreKind) {
    let (host, _marks) = host(kind).await;
    let next = json!({ "input": { "input": {}, "ms": 1_000 }, "ms": 1_000 });
    let old = start(
        &host,
        request("goes_on", json!({ "input": next, "ms": 1_000 }), &["t", "u"]),
    )
    .await
    .run_id;
    host.reached(&old, RunStatus::Suspended).await;
    let new = start(&host, replacing(request("read_any", json!({}), &["t"])))
        .await
        .run_id;
    host.reached(&old, RunStatus::Continued).await;
    host.until(&new, |info| info.waits.is_none()).await;

    let mut chain = vec![old];
    while let Some(Event::Continued { run }) = host
        .journal(chain.last().unwrap())
        .await
        .pop()
        .map(|entry| entry.event)
    {
        chain.push(run);
    }
    assert_eq!(chain.len(), 3);
    for run in &chain[1..] {
        let info = info(&host, run).await;
        assert_eq!(info.cancel_requested, Some(CancelReason::Replaced));
        assert_eq!(info.tokens, [token("u")]);
        host.agrees(run).await;
    }
    assert_eq!(info(&host, &new).await.predecessors, chain[2..]);
    began_after(&host, &new, &chain.iter().collect::<Vec<_>>()).await;
    assert_eq!(host.hook("t").await.unwrap().run_id, new);
}

async fn a19_a_waiting_run_that_is_ended_lets_go(kind: StoreKind) {
    for terminate in [false, true] {
        let (host, marks) = host(kind).await;
        let old = long_to_end(&host, &marks, &["t"]).await;
        let new = start(&host, replacing(trip(&marks, &["t"]))).await.run_id;
        let ended = match terminate {
            true => host.engine.terminate(&new).await.unwrap(),
            false => host.engine.cancel(&new).await.unwrap(),
        };
        assert_eq!((ended.status, ended.waits), (RunStatus::Cancelled, None));
        assert_eq!(host.hook("t").await.unwrap().state, HookState::Freed);
        marks.let_go();
        assert_eq!(host.ended(&old).await.status, RunStatus::Cancelled);
        assert_eq!(host.events(&new).await, ["started", "terminated"]);
        assert_eq!(marks.count("hotel"), 1);
    }
}

async fn a19_a_named_time_is_waited_for_as_well(kind: StoreKind) {
    for time_first in [false, true] {
        let (host, marks) = host(kind).await;
        let old = long_to_end(&host, &marks, &["t"]).await;
        let until = host.clock.as_ref().unwrap().now() + 600_000;
        let asked = StartRequest {
            start_at: Some(until),
            ..replacing(request("read_any", json!({}), &["t"]))
        };
        let new = start(&host, asked).await.run_id;
        let both = Some(Waits::Predecessors {
            runs: vec![old.clone()],
            until: Some(until),
        });
        is_waiting(&host, &new, both.clone()).await;
        if time_first {
            marks.reached("undo-flight", 1).await;
            host.advance(10 * MINUTE);
            is_waiting(&host, &new, both).await;
        }
        marks.let_go();
        host.ended(&old).await;
        if !time_first {
            let info = host
                .until(&new, |info| info.waits == Some(Waits::StartAt { until }))
                .await;
            assert_eq!((info.status, info.wake_at), (RunStatus::Pending, Some(until)));
            let host = host.restart().await;
            host.advance(10 * MINUTE);
            host.reached(&new, RunStatus::Suspended).await;
            began_after(&host, &new, &[&old]).await;
        } else {
            host.reached(&new, RunStatus::Suspended).await;
            began_after(&host, &new, &[&old]).await;
        }
    }
}

/// A timeout does not count while the run may not begin.
async fn a19_time_begins_with_the_run(kind: StoreKind) {
    let (host, marks) = host(kind).await;
    let old = long_to_end(&host, &marks, &["t"]).await;
    let new = start(
        &host,
        replacing(request("hears", json!({ "then": "ends" }), &["t"])),
    )
    .await
    .run_id;
    let slept = start(&host, replacing(request("read_any", json!({}), &["u"])))
        .await
        .run_id;
    host.reached(&slept, RunStatus::Suspended).await;
    marks.reached("undo-flight", 1).await;
    host.advance(2 * HOUR);
    marks.let_go();
    host.ended(&old).await;
    let info = host.reached(&new, RunStatus::Suspended).await;
    let now = host.clock.as_ref().unwrap().now();
    assert_eq!(
        (info.cancel_requested, info.wake_at),
        (None, Some(now + HOUR.as_millis() as u64))
    );
    host.advance(HOUR);
    assert_eq!(host.output(&new).await, json!("timeout"));
    host.agrees(&new).await;
}

// ---- many at once ----------------------------------------------------------------------------------

/// Every run leaves marks while it is at work, at its beginning and while it undoes. Were two of them at work at
/// once, the marks of one would lie between those of another.
async fn a19_of_racing_starts_one_run_is_at_work_at_any_time(kind: StoreKind) {
    const ROUNDS: usize = 6;
    const CLIENTS: usize = 8;
    let marks = Marks::start().await;
    let host = TestHost::with(kind, EngineConfig::default(), None, &[marks.authority()]).await;
    let asked = request("works", json!({ "marks": marks.url() }), &["t"]);
    let mut replaced = Vec::new();
    let mut started = Vec::new();
    for _ in 0..ROUNDS {
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (engine, asked) = (host.engine.clone(), replacing(asked.clone()));
            clients.spawn(async move { engine.start(asked).await.unwrap() });
        }
        for receipt in clients.join_all().await {
            started.push(receipt.run_id);
            replaced.extend(receipt.replaced);
        }
        // Of some rounds the last begins before the next round, of some it does not.
        if started.len() % (2 * CLIENTS) == 0 {
            let owner = host.hook("t").await.unwrap().run_id;
            host.reached(&owner, RunStatus::Suspended).await;
        }
    }
    let last = host.hook("t").await.unwrap().run_id;
    host.reached(&last, RunStatus::Suspended).await;

    // Each but the last was replaced once, and has ended.
    let distinct: HashSet<_> = replaced.iter().cloned().collect();
    assert_eq!(
        (replaced.len(), distinct.len()),
        (started.len() - 1, started.len() - 1)
    );
    assert!(!distinct.contains(&last));
    let mut spans = Vec::new();
    for run in &started {
        let info = info(&host, run).await;
        assert_eq!(info.status.is_terminal(), *run != last, "{info:?}");
        let journal = host.journal(run).await;
        let begun = journal
            .iter()
            .find(|entry| matches!(entry.event, Event::StepScheduled { .. }));
        spans.extend(begun.map(|entry| (entry.at, info.ended_at.unwrap_or(u64::MAX), run.clone())));
        host.agrees(run).await;
    }
    assert!(spans.len() >= ROUNDS / 2, "{spans:?}");
    spans.sort();
    for pair in spans.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "two at work at once: {pair:?}");
    }

    let mut at_work: Vec<String> = Vec::new();
    for mark in marks.all() {
        let run = mark.key.split('/').next().unwrap().to_owned();
        if at_work.last() != Some(&run) {
            assert!(
                !at_work.contains(&run),
                "{run} was at work again after {at_work:?}"
            );
            at_work.push(run);
        }
    }
    assert_eq!(at_work.len(), spans.len());
    assert_eq!(marks.most_at_once(), 1);
}

// ---- the same request again ------------------------------------------------------------------------

async fn a24_a_replacement_is_answered_the_same_again(kind: StoreKind) {
    let (host, marks) = host(kind).await;
    let old = long_to_end(&host, &marks, &["t"]).await;
    let asked = StartRequest {
        key: Some(IdempotencyKey::new("k").unwrap()),
        id: Some(RunId::new("new").unwrap()),
        ..replacing(request("read_any", json!({}), &["t"]))
    };
    let twice = StartRequest {
        hooks: [&asked.hooks[..], &asked.hooks[..]].concat(),
        ..asked.clone()
    };
    let refused = host.engine.start(twice).await;
    assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");

    let first = start(&host, asked.clone()).await;
    marks.reached("undo-flight", 1).await;
    let quiet = |all: Vec<(RunInfo, Vec<_>, Vec<_>)>| {
        all.into_iter()
            .map(|(run, journal, _)| (run.waits, journal))
            .collect::<Vec<_>>()
    };
    let before = quiet(host.everything().await);
    assert_eq!(host.engine.start(asked.clone()).await.unwrap(), first);
    // By its id alone it is the run that exists, which does not replace itself.
    let by_id = StartRequest {
        key: None,
        ..asked.clone()
    };
    let same = host.engine.start(by_id.clone()).await.unwrap();
    assert_eq!((same.started, same.replaced), (false, vec![]));
    let other = StartRequest {
        on_conflict: ConflictPolicy::Fail,
        ..asked.clone()
    };
    assert!(matches!(host.engine.start(other).await, Err(Error::KeyConflict)));
    let other = StartRequest {
        on_conflict: ConflictPolicy::Fail,
        ..by_id
    };
    assert!(matches!(
        host.engine.start(other).await,
        Err(Error::RunIdConflict(_))
    ));
    assert_eq!(quiet(host.everything().await), before);

    let host = host.restart().await;
    assert_eq!(host.engine.start(asked.clone()).await.unwrap(), first);
    marks.let_go();
    host.ended(&old).await;
    host.deliver("t", json!("end")).await.unwrap();
    assert_eq!(host.output(&first.run_id).await, json!([]));
    assert_eq!(host.engine.start(asked).await.unwrap(), first);
}

async fn a27_retention_counts_from_the_admission_of_who_replaces(kind: StoreKind) {
    let (host, marks) = host(kind).await;
    let mut asked = trip(&marks, &["t"]);
    asked.hooks[0].min_retention_ms = HOUR.as_millis() as u64;
    let old = start(&host, asked).await.run_id;
    host.reached(&old, RunStatus::Suspended).await;
    host.advance(MINUTE);
    let mut asked = replacing(request("read_any", json!({}), &["t"]));
    asked.hooks[0].min_retention_ms = 2 * 60_000;
    let new = start(&host, asked).await.run_id;
    let admitted = info(&host, &new).await.created_at;
    assert_eq!(host.hook("t").await.unwrap().retained_until, admitted + 120_000);
    host.reached(&new, RunStatus::Suspended).await;
    host.deliver("t", json!("end")).await.unwrap();
    host.output(&new).await;
    host.advance(MINUTE);
    assert_eq!(host.hook("t").await.unwrap().state, HookState::Retained);
    host.advance(MINUTE);
    // What the old run had asked for went with its claim.
    assert!(
        host.try_start("read_any", json!({}), &["t"])
            .await
            .unwrap()
            .started
    );
}
