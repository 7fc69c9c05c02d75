//! Runs that go on from an entry of another run's journal.

use std::time::Duration;

use onemark::clock::Clock as _;
use onemark::engine::{EngineConfig, Error, ForkHook, ForkRequest, Replaced, StartHook, StartRequest};
use onemark::ids::{IdempotencyKey, RunId, StreamName, Tags};
use onemark::journal::{Lineage, RunStatus, Seq};
use onemark::store::{BlockReason, HookState};
use onemark_tests::{Marks, StoreKind, TestHost, fork, on_each_store, request, token, variant};
use serde_json::{Value, json};

on_each_store!(
    e13_saved_steps_do_not_run_again,
    e13_from_its_first_new_call_a_fork_is_one_of_its_own,
    e13_unfinished_steps_are_attempted_anew,
    e13_what_runs_at_most_once_is_asked_about,
    e13_a_fork_goes_on_with_a_mended_component,
    e13_timers_keep_their_due_time,
    e13_hooks_are_closed_for_a_fork_that_names_no_tokens,
    e13_a_hook_that_was_not_opened_is_read_in_a_fork_too,
    e13_a_fork_claims_tokens_for_the_hooks_that_it_names,
    e13_a_fork_does_not_own_unfinished_children,
    e13_tags_are_copied_and_chunks_are_not,
    e13_forks_that_cannot_be,
    e13_a_run_can_be_forked_at_every_entry,
    e13_what_a_run_waits_for_or_was_asked_holds_for_its_fork,
    a24_a_fork_is_carried_out_once,
    a27_a_fork_claims_only_what_it_names,
);

fn claim(name: &str, replaces: Option<Replaced>) -> ForkHook {
    let hook = StartHook {
        token: token(name),
        min_retention_ms: 0,
        metadata: None,
    };
    ForkHook { hook, replaces }
}

async fn forked(host: &TestHost, request: ForkRequest) -> RunId {
    let receipt = host.engine.fork(request).await.unwrap();
    assert!(receipt.started);
    receipt.run_id
}

/// Position of the n-th entry of this name, from 0.
async fn nth(host: &TestHost, run: &RunId, event: &str, n: usize) -> Seq {
    let journal = host.journal(run).await;
    let mut named = journal.iter().filter(|entry| entry.event.name() == event);
    named.nth(n).unwrap().seq
}

async fn last(host: &TestHost, run: &RunId) -> Seq {
    host.journal(run).await.len() as Seq - 1
}

async fn with_marks(kind: StoreKind) -> (TestHost, Marks) {
    let marks = Marks::start().await;
    let host = TestHost::with(kind, EngineConfig::default(), None, &[marks.authority()]).await;
    (host, marks)
}

async fn e13_saved_steps_do_not_run_again(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    let input = json!({ "marks": marks.url(), "names": ["a", "b", "c"], "token": "t" });
    let (run, _) = host.completes("leave_marks", input).await;
    let at = nth(&host, &run, "step_completed", 1).await;
    let before = host.everything().await;

    let asked = ForkRequest {
        repeat_unkeyed: false,
        ..fork(&run, at)
    };
    let refused = host.engine.fork(asked.clone()).await;
    let Err(Error::UnkeyedSteps { steps, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(steps, ["mark"]);
    assert_eq!(host.everything().await, before);

    let fork = forked(&host, fork(&run, at)).await;
    host.output(&fork).await;
    assert_eq!(["a", "b", "c"].map(|name| marks.count(name)), [1, 1, 2]);
    let keys: Vec<_> = marks.all().into_iter().filter(|mark| mark.name == "c").collect();
    assert_eq!(keys[0].key, format!("{run}/2"));
    assert_eq!(keys[1].key, format!("{fork}/2"));

    let (source, copy) = (host.journal(&run).await, host.journal(&fork).await);
    let shared = at as usize + 1;
    assert_eq!(source[..shared], copy[..shared]);
    assert_eq!(copy[shared].event.name(), "forked");
    let info = host.engine.run(&fork).await.unwrap();
    let lineage = Lineage::Fork {
        of: run.clone(),
        upto: at,
    };
    assert_eq!(info.lineage, Some(lineage));
    assert!(info.created_at >= source.last().unwrap().at);
    host.agrees(&fork).await;
    host.agrees(&run).await;

    // With everything saved there is nothing to ask about.
    let at = nth(&host, &run, "step_completed", 2).await;
    let whole = forked(&host, ForkRequest { at, ..asked }).await;
    host.output(&whole).await;
    assert_eq!(marks.count("c"), 2);
    // Restarts find it as it was.
    let host = host.restart().await;
    host.agrees(&fork).await;
    assert_eq!(host.journal(&fork).await, copy);
}

async fn e13_from_its_first_new_call_a_fork_is_one_of_its_own(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let input = json!({ "name": "n", "rounds": 4 });
    let (run, seen) = host.completes("identities", input).await;
    // Each round is a step and a closure; this is the end of the second.
    let at = nth(&host, &run, "step_completed", 3).await;
    let first = forked(&host, fork(&run, at)).await;
    let own = host.output(&first).await;
    host.agrees(&first).await;
    assert_eq!(seen.as_array().unwrap()[..2], own.as_array().unwrap()[..2]);
    let is_of = |round: &Value, run: &RunId, number: usize| {
        let texts: Vec<_> = (0..3).map(|n| round[n].as_str().unwrap()).collect();
        assert_eq!(texts[0], texts[1], "a closure sees what its workflow saw");
        assert!(texts[0].starts_with(&format!("{run} ")), "{texts:?}");
        assert_eq!(texts[2], format!("{number} {run}/{} 1", 2 * number));
    };
    for n in 0..4 {
        is_of(&own[n], if n < 2 { &run } else { &first }, n);
    }
    let drawn = |round: &Value| -> Vec<String> {
        let words = round[0].as_str().unwrap().split(' ').skip(1);
        words.map(str::to_owned).collect()
    };
    for (drawn, other) in [2, 3].map(|n| (drawn(&own[n]), drawn(&seen[n]))) {
        assert!(
            drawn.iter().zip(&other).all(|(a, b)| a != b),
            "{drawn:?} {other:?}"
        );
    }

    // A fork of the fork: three runs' identities, one after another.
    let at = nth(&host, &first, "step_completed", 5).await;
    let second = forked(&host, fork(&first, at)).await;
    let mixed = host.output(&second).await;
    for n in 0..4 {
        is_of(&mixed[n], [&run, &run, &first, &second][n], n);
    }
    assert_eq!(mixed[2], own[2]);
    host.agrees(&second).await;

    // At the input alone, everything is its own.
    let fresh = forked(&host, fork(&run, 0)).await;
    let output = host.output(&fresh).await;
    for n in 0..4 {
        is_of(&output[n], &fresh, n);
    }
    host.agrees(&fresh).await;
    let host = host.restart().await;
    for run in [&first, &second, &fresh] {
        host.agrees(run).await;
    }
}

async fn e13_unfinished_steps_are_attempted_anew(kind: StoreKind) {
    let (mut host, marks) = with_marks(kind).await;
    let input = json!({ "marks": marks.url(), "names": ["a", "b"] });
    let mut with_token = input.clone();
    with_token["token"] = json!("t");
    for (workflow, input, step, round) in [
        ("leave_marks", with_token, "mark", 1),
        ("marks_from_closures", input, "leave b", 2),
    ] {
        marks.hold("b");
        let run = host.start(workflow, input).await;
        // The attempt of its second step has begun, and is in the journal.
        host.until(&run, |info| info.entries == 6).await;
        let at = last(&host, &run).await;
        assert_eq!(host.events(&run).await[at as usize], "attempt_started");
        let asked = ForkRequest {
            repeat_unkeyed: false,
            ..fork(&run, at)
        };
        let refused = host.engine.fork(asked).await;
        let Err(Error::UnkeyedSteps { steps, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(steps, [step]);
        let fork = forked(&host, fork(&run, at)).await;
        let key = |run: &RunId| (format!("{run}/1"), 1);
        let held = || {
            let held = marks.all().into_iter().filter(|mark| mark.name == "b");
            held.map(|mark| (mark.key, mark.attempt)).collect::<Vec<_>>()
        };
        while !(held().contains(&key(&run)) && held().contains(&key(&fork))) {
            tokio::task::yield_now().await;
        }
        // Both are cut off, and go on.
        marks.release();
        host = host.restart().await;
        host.output(&fork).await;
        host.output(&run).await;
        host.agrees(&fork).await;
        assert_eq!(marks.count("a"), round);
    }
}

/// Also where its key is made from data. The fork knows of no attempt before its own.
async fn e13_what_runs_at_most_once_is_asked_about(kind: StoreKind) {
    let (host, marks) = with_marks(kind).await;
    let input = json!({ "marks": marks.url(), "how": "lost", "fail": false, "token": "t" });
    let run = host.start("runs_once", input).await;
    let held = host.ended(&run).await.blocked.unwrap();
    assert_eq!(held.reason, BlockReason::UnknownOutcome);
    let at = last(&host, &run).await;
    let asked = ForkRequest {
        repeat_unkeyed: false,
        ..fork(&run, at)
    };
    let refused = host.engine.fork(asked).await;
    let Err(Error::UnkeyedSteps { steps, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(steps, ["once"]);
    assert_eq!(marks.count("lost"), 1);
    let fork = forked(&host, fork(&run, at)).await;
    let held = host.ended(&fork).await.blocked.unwrap().step.unwrap();
    assert_eq!((held.attempt, held.key.as_str()), (1, "charge:lost"));
    assert_eq!(marks.count("lost"), 2);
    host.agrees(&fork).await;
}

async fn e13_a_fork_goes_on_with_a_mended_component(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start("broken", json!({ "how": "panic" })).await;
    host.reached(&run, RunStatus::Blocked).await;
    let mended = host
        .engine
        .deploy("mended", variant("mended"))
        .await
        .unwrap()
        .digest;
    let at = last(&host, &run).await;
    let with = |component: &str| ForkRequest {
        component: Some(component.to_owned()),
        repeat_unkeyed: false,
        ..fork(&run, at)
    };
    let fork_id = forked(&host, with("mended")).await;
    assert_eq!(host.output(&fork_id).await, "saved, mended");
    assert_eq!(host.engine.run(&fork_id).await.unwrap().component, mended);
    assert_eq!(host.engine.run(&run).await.unwrap().status, RunStatus::Blocked);
    host.agrees(&fork_id).await;
    let again = forked(&host, with(&mended.to_string())).await;
    assert_eq!(host.output(&again).await, "saved, mended");
    let missing = host.engine.fork(with("nobody")).await;
    assert!(matches!(missing, Err(Error::UnknownDeployment(_))), "{missing:?}");

    // One that does something else is not taken, unless it is forced.
    let (run, _) = host.completes("programs/changing", json!({})).await;
    host.engine.deploy("renamed", variant("renamed")).await.unwrap();
    let at = nth(&host, &run, "step_completed", 0).await;
    let other = ForkRequest {
        component: Some("renamed".into()),
        ..fork(&run, at)
    };
    let before = host.everything().await;
    let refused = host.engine.fork(other.clone()).await;
    let Err(Error::DoesNotReplay { what, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(what.contains("requested `step two"), "{what}");
    assert_eq!(host.everything().await, before);
    let forced = forked(&host, ForkRequest { force: true, ..other }).await;
    let blocked = host.ended(&forced).await.blocked.unwrap();
    assert_eq!(blocked.reason, BlockReason::Nondeterminism);
}

async fn e13_timers_keep_their_due_time(kind: StoreKind) {
    let hour = Duration::from_secs(3_600);
    let host = TestHost::with_clock(kind).await;
    let run = host.start("sleeps", json!({ "lengths_ms": [3_600_000] })).await;
    let due = host.reached(&run, RunStatus::Suspended).await.wake_at;
    host.advance(hour / 2);
    let at = last(&host, &run).await;
    let beside = forked(&host, fork(&run, at)).await;
    assert_eq!(host.reached(&beside, RunStatus::Suspended).await.wake_at, due);
    let host = host.restart().await;
    assert_eq!(host.engine.run(&beside).await.unwrap().wake_at, due);
    host.advance(hour / 2);
    host.output(&run).await;
    host.output(&beside).await;
    host.agrees(&beside).await;
    // One that is due fires at once.
    let late = forked(&host, fork(&run, at)).await;
    host.output(&late).await;
    host.agrees(&late).await;
}

async fn e13_hooks_are_closed_for_a_fork_that_names_no_tokens(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["x"]).await;
    host.deliver("x", json!(1)).await.unwrap();
    let received = |event: &str| event == "payload_received";
    assert!(host.events(&run).await.into_iter().any(received));
    let at = nth(&host, &run, "payload_received", 0).await;
    let fork = forked(&host, fork(&run, at)).await;
    // What came before is its own to read; then the hook is closed.
    assert_eq!(host.output(&fork).await, json!([1]));
    host.agrees(&fork).await;
    assert_eq!(host.engine.run(&fork).await.unwrap().tokens, []);
    let hooks = host.engine.hooks_of(&fork).await.unwrap();
    assert_eq!(hooks[0].state, HookState::Freed);
    let owner = host.hook("x").await.unwrap();
    assert_eq!((owner.run_id, owner.state), (run.clone(), HookState::Open));
    host.deliver("x", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([1]));
    host.agrees(&run).await;
}

/// It stays with the run, and what was delivered to it up to there can be read.
async fn e13_a_hook_that_was_not_opened_is_read_in_a_fork_too(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let input = json!({ "token": "t", "before": false });
    let run = host.start_with("opens_late", input, &["t", "go"]).await;
    host.reached(&run, RunStatus::Suspended).await;
    host.deliver("t", json!(1)).await.unwrap();
    host.until(&run, |info| info.status == RunStatus::Suspended).await;
    let at = nth(&host, &run, "payload_received", 0).await;
    let fork = forked(&host, fork(&run, at)).await;
    // Anew it meets the run that has the token.
    assert_eq!(
        host.output(&fork).await,
        json!({ "own": [true, false], "read": [1] })
    );
    assert_eq!(host.hook("t").await.unwrap().run_id, run);
    host.agrees(&fork).await;
}

async fn e13_a_fork_claims_tokens_for_the_hooks_that_it_names(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["x"]).await;
    host.deliver("x", json!(1)).await.unwrap();
    let at = nth(&host, &run, "payload_received", 0).await;
    let named = |claims: Vec<ForkHook>| ForkRequest {
        hooks: claims,
        ..fork(&run, at)
    };
    for replaces in [None, Some(Replaced::Number(0)), Some(Replaced::Token(token("x")))] {
        let fork = forked(&host, named(vec![claim("y", replaces)])).await;
        assert_eq!(host.engine.run(&fork).await.unwrap().tokens, [token("y")]);
        assert_eq!(host.hook("y").await.unwrap().run_id, fork);
        host.deliver("y", json!(2)).await.unwrap();
        host.deliver("y", json!("end")).await.unwrap();
        assert_eq!(host.output(&fork).await, json!([1, 2]));
        host.agrees(&fork).await;
    }
    let held = host.engine.fork(named(vec![claim("x", None)])).await;
    assert!(
        matches!(&held, Err(Error::HookConflict { owner, .. }) if owner.run == run),
        "{held:?}"
    );
    for wrong in [
        vec![claim("y", Some(Replaced::Number(7)))],
        vec![claim("y", Some(Replaced::Token(token("z"))))],
        vec![claim("y", None), claim("z", None)],
        vec![
            claim("y", Some(Replaced::Number(0))),
            claim("z", Some(Replaced::Number(0))),
        ],
    ] {
        let refused = host.engine.fork(named(wrong)).await;
        assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    }

    // The guest is told its new token where it goes on, and not before.
    let run = host.start("asks", json!({})).await;
    host.reached(&run, RunStatus::Suspended).await;
    let old = host.engine.hooks_of(&run).await.unwrap()[0].token.clone();
    let claimed = nth(&host, &run, "hook_claimed", 0).await;
    let asked = nth(&host, &run, "step_completed", 0).await;
    for (at, name, told) in [(claimed, "early", "early"), (asked, "late", old.as_str())] {
        let request = ForkRequest {
            hooks: vec![claim(name, None)],
            ..fork(&run, at)
        };
        let fork = forked(&host, request).await;
        host.reached(&fork, RunStatus::Suspended).await;
        host.deliver(name, json!(name)).await.unwrap();
        host.deliver(name, json!("end")).await.unwrap();
        assert_eq!(host.output(&fork).await, json!([told, [name]]));
        host.agrees(&fork).await;
        // A fork of that one has neither.
        let last = nth(&host, &fork, "payloads_taken", 0).await;
        let next = forked(&host, self::fork(&fork, last)).await;
        host.output(&next).await;
        host.agrees(&next).await;
    }
    let host = host.restart().await;
    assert_eq!(host.engine.run(&run).await.unwrap().status, RunStatus::Suspended);
}

async fn e13_a_fork_does_not_own_unfinished_children(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let input = json!({ "workflow": "sleeps", "input": { "lengths_ms": [3_600_000] } });
    let run = host.start("parent", input).await;
    host.reached(&run, RunStatus::Suspended).await;
    let at = last(&host, &run).await;
    let orphan = forked(&host, fork(&run, at)).await;
    let output = host.output(&orphan).await;
    assert_eq!(output["kind"], "not_forked", "{output}");
    assert!(
        output["message"].as_str().unwrap().contains(run.as_str()),
        "{output}"
    );
    host.agrees(&orphan).await;
    let child = RunId::new(output["run_id"].as_str().unwrap()).unwrap();
    let info = host.reached(&child, RunStatus::Suspended).await;
    assert_eq!((info.parent, info.cancel_requested), (Some(run.clone()), None));

    // A child that had ended is answered from the journal, and no other is started.
    host.advance(Duration::from_secs(3_600));
    let whole = host.output(&run).await;
    let runs = host.everything().await.len();
    let at = nth(&host, &run, "child_ended", 0).await;
    let fork = forked(&host, fork(&run, at)).await;
    assert_eq!(host.output(&fork).await, whole);
    host.agrees(&fork).await;
    assert_eq!(host.everything().await.len(), runs + 1);
}

async fn e13_tags_are_copied_and_chunks_are_not(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start("tells", json!({ "words": ["a", "b"] })).await;
    host.reached(&run, RunStatus::Suspended).await;
    let at = last(&host, &run).await;
    let beside = forked(&host, fork(&run, at)).await;
    host.reached(&beside, RunStatus::Suspended).await;
    let told = StreamName::new("told").unwrap();
    let count = async |run: &RunId| host.engine.chunks(run, &told, 0, 100).await.unwrap().len();
    assert_eq!(count(&beside).await, 0);
    host.advance(Duration::from_secs(1));
    host.output(&beside).await;
    let chunks = host.engine.chunks(&beside, &told, 0, 100).await.unwrap();
    let chunks: Vec<_> = chunks.iter().map(|chunk| (chunk.index, &*chunk.chunk)).collect();
    assert_eq!(chunks, [(0, "\"end\"")]);
    host.agrees(&beside).await;
    host.output(&run).await;
    assert_eq!(count(&run).await, 6);

    let tagged = host.start("tags_itself", json!({})).await;
    host.reached(&tagged, RunStatus::Suspended).await;
    let at = last(&host, &tagged).await;
    let fork = forked(&host, fork(&tagged, at)).await;
    let tags = host.engine.run(&fork).await.unwrap().tags;
    assert_eq!(tags, Tags::default().with("state", "new").unwrap());
}

async fn e13_forks_that_cannot_be(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (run, _) = host.completes("sequence", json!({ "n": 2 })).await;
    let end = last(&host, &run).await;
    let before = host.everything().await;
    let refused = host.engine.fork(fork(&run, end)).await;
    assert!(
        matches!(refused, Err(Error::EndsThere { seq, last, .. }) if (seq, last) == (end, end - 1)),
        "{refused:?}"
    );
    for beyond in [end + 1, u64::MAX] {
        let refused = host.engine.fork(fork(&run, beyond)).await;
        assert!(
            matches!(refused, Err(Error::EntryNotFound { seq, last, .. }) if (seq, last) == (beyond, end)),
            "{refused:?}"
        );
    }
    let nobody = RunId::new("nobody").unwrap();
    let refused = host.engine.fork(fork(&nobody, 0)).await;
    assert!(matches!(refused, Err(Error::RunNotFound(_))), "{refused:?}");
    let named = ForkRequest {
        id: Some(run.clone()),
        ..fork(&run, 0)
    };
    let refused = host.engine.fork(named).await;
    assert!(matches!(refused, Err(Error::RunIdConflict(_))), "{refused:?}");
    assert_eq!(host.everything().await, before);
    // Anywhere else it can.
    let whole = host.output(&run).await;
    for at in 0..end {
        let fork = forked(&host, fork(&run, at)).await;
        assert_eq!(host.output(&fork).await, whole, "at {at}");
        host.agrees(&fork).await;
    }
}

async fn e13_a_run_can_be_forked_at_every_entry(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for (workflow, input) in [
        ("fanout", json!({ "n": 3 })),
        ("select_loop", json!({ "n": 2 })),
        ("captures", json!({ "words": ["a", "b"] })),
        ("closures_together", json!({ "n": 2 })),
        ("wild_closures", json!({ "rounds": 1 })),
    ] {
        let (run, whole) = host.completes(workflow, input).await;
        let end = last(&host, &run).await;
        let mut forks = Vec::new();
        for at in 0..end {
            forks.push(forked(&host, fork(&run, at)).await);
        }
        for (at, fork) in forks.iter().enumerate() {
            let output = host.output(fork).await;
            // Its token is named after the run.
            if workflow != "closures_together" {
                assert_eq!(output, whole, "{workflow} at {at}");
            }
            host.agrees(fork).await;
        }
        host.agrees(&run).await;
    }
}

async fn e13_what_a_run_waits_for_or_was_asked_holds_for_its_fork(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let at = host.clock.as_ref().unwrap().now() + 60_000;
    let later = StartRequest {
        start_at: Some(at),
        ..request("sequence", json!({ "n": 1 }), &["x"])
    };
    let run = host.engine.start(later).await.unwrap().run_id;
    let beside = forked(&host, fork(&run, 0)).await;
    let info = host.engine.run(&beside).await.unwrap();
    assert_eq!((info.status, info.wake_at), (RunStatus::Pending, Some(at)));
    assert!(info.waits.is_some());
    host.advance(Duration::from_secs(60));
    host.output(&run).await;
    host.output(&beside).await;
    host.agrees(&beside).await;
    // Its time is over by now.
    let late = forked(&host, fork(&run, 0)).await;
    host.output(&late).await;
    host.agrees(&late).await;

    let run = host.start("sleeps", json!({ "lengths_ms": [3_600_000] })).await;
    host.reached(&run, RunStatus::Suspended).await;
    host.engine.cancel(&run).await.unwrap();
    assert_eq!(host.ended(&run).await.status, RunStatus::Cancelled);
    let asked = nth(&host, &run, "cancel_requested", 0).await;
    let cancelled = forked(&host, fork(&run, asked)).await;
    assert_eq!(host.ended(&cancelled).await.status, RunStatus::Cancelled);
    host.agrees(&cancelled).await;
    // Before it was asked, it was not.
    let goes_on = forked(&host, fork(&run, asked - 1)).await;
    let info = host.reached(&goes_on, RunStatus::Suspended).await;
    assert_eq!(info.cancel_requested, None);
    host.advance(Duration::from_secs(3_600));
    host.output(&goes_on).await;
    host.agrees(&goes_on).await;
}

async fn a24_a_fork_is_carried_out_once(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (run, _) = host.completes("sequence", json!({ "n": 2 })).await;
    let keyed = |at| ForkRequest {
        key: Some(IdempotencyKey::new("again").unwrap()),
        ..fork(&run, at)
    };
    let first = host.engine.fork(keyed(1)).await.unwrap();
    host.output(&first.run_id).await;
    let host = host.restart().await;
    assert_eq!(host.engine.fork(keyed(1)).await.unwrap().run_id, first.run_id);
    let other = host.engine.fork(keyed(2)).await;
    assert!(matches!(other, Err(Error::KeyConflict)), "{other:?}");
    let named = || ForkRequest {
        id: Some(RunId::new("named").unwrap()),
        ..fork(&run, 1)
    };
    assert!(host.engine.fork(named()).await.unwrap().started);
    assert!(!host.engine.fork(named()).await.unwrap().started);
}

async fn a27_a_fork_claims_only_what_it_names(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let input = || json!({ "name": "7", "rounds": 1 });
    let (run, _) = host.completes("identities", input()).await;
    let owner = host.start("identities", input()).await;
    let unclaimed = forked(&host, fork(&run, 1)).await;
    assert_eq!(host.engine.run(&unclaimed).await.unwrap().tokens, []);
    let named = ForkRequest {
        hooks: vec![claim("mine", None)],
        ..fork(&run, 1)
    };
    let named = forked(&host, named).await;
    assert_eq!(host.engine.run(&named).await.unwrap().tokens, [token("mine")]);
    for run in [owner, unclaimed, named] {
        assert_eq!(host.ended(&run).await.status, RunStatus::Completed);
    }
}
