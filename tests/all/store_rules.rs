//! Single rules of the store, on the model and on SQLite.

use onemark::ids::Digest;
use onemark::journal::{
    Body, ChildAdmission, ChildOptions, ChildStart, Event, LogBatch, LogLevel, LogLine, NewEntry, RunStatus,
};
use onemark::store::{
    Admission, Append, BlockReason, Blocked, Delivered, Disposed, Ending, Fence, HookState, LogFilter,
    MemoryStore, Park, Store, StoreError, TOMBSTONE_MS, Upgraded,
};

use crate::store_support::*;

/// Runs the body on a fresh store of each kind, taken over.
macro_rules! on_each_store {
    ($($name:ident: |$store:ident, $fence:ident| $body:block)*) => {$(
        #[tokio::test]
        async fn $name() {
            let file = File::new();
            let stores: [Box<dyn Store>; 2] = [Box::new(MemoryStore::new()), Box::new(file.open())];
            for store in stores {
                let $store: &dyn Store = &*store;
                let $fence: Fence = $store.take_over(0).await.unwrap();
                $body
            }
        }
    )*};
}

fn conflict(admission: Admission) -> (String, String, RunStatus) {
    match admission {
        Admission::HookConflict { token, owner } => (token.to_string(), owner.run.to_string(), owner.status),
        other => panic!("{other:?}"),
    }
}

async fn end(store: &dyn Store, id: &str, fence: Fence) {
    let seen = store.run(&run_id(id)).await.unwrap().unwrap().entries - 1;
    store
        .append(append(id, fence, seen, vec![completed()]))
        .await
        .unwrap();
}

/// Lines of step 0, numbered from `from` on.
fn log_lines(from: u64, count: u64, bytes: usize) -> LogBatch {
    let line = |number| LogLine {
        at: 5,
        level: LogLevel::Info,
        call: Some(0),
        attempt: 1,
        seq: 0,
        number,
        text: "x".repeat(bytes).into(),
    };
    LogBatch {
        lines: (from..from + count).map(line).collect(),
        dropped: 0,
        mark: None,
    }
}

on_each_store! {
    // G04
    a_log_keeps_its_first_lines_and_counts_the_rest: |store, fence| {
        let everything = LogFilter { from: 0, limit: usize::MAX, level: LogLevel::Debug };
        let write = async |run: &str, logs: LogBatch| {
            store.append(Append { logs, ..append(run, fence, 0, Vec::new()) }).await.unwrap();
            let page = store.logs(&run_id(run), everything).await.unwrap().unwrap();
            (page.lines.len(), page.dropped)
        };
        start(store, "many", Vec::new(), 1).await;
        assert_eq!(write("many", log_lines(0, 60_000, 1)).await, (60_000, 0));
        assert_eq!(write("many", log_lines(60_000, 60_000, 1)).await, (100_000, 20_000));
        start(store, "long", Vec::new(), 1).await;
        assert_eq!(write("long", log_lines(0, 17, 1 << 20)).await, (16, 1));
        // Sent again, since the answer was lost, it is kept once.
        start(store, "again", Vec::new(), 1).await;
        for _ in 0..2 {
            assert_eq!(write("again", log_lines(0, 3, 1)).await, (3, 0));
        }
        assert_eq!(store.logs(&run_id("nobody"), everything).await.unwrap(), None);
    }

    // A02, A08
    a_conflict_names_the_token_that_is_held_and_claims_nothing: |store, _fence| {
        start(store, "owner", vec![spec("b", 0)], 1).await;
        let run = new_run("late", vec![spec("a", 0), spec("b", 0)], 2);
        let answer = conflict(store.admit(run).await.unwrap());
        assert_eq!(answer, ("b".into(), "owner".into(), RunStatus::Pending));
        assert_eq!(store.run(&run_id("late")).await.unwrap(), None);
        assert_eq!(store.hook(&token("a"), 2).await.unwrap(), None);
    }

    // A04, A05, A06
    a_token_frees_at_the_later_of_end_and_retention: |store, fence| {
        start(store, "r1", vec![spec("kept", 5_000), spec("bare", 0)], 1_000).await;
        let held = new_run("r2", vec![spec("kept", 0)], 9_000);
        assert_eq!(conflict(store.admit(held).await.unwrap()).1, "r1");
        end(store, "r1", fence).await;
        start(store, "r2", vec![spec("bare", 0)], 1_001).await;
        let early = new_run("r3", vec![spec("kept", 0)], 5_999);
        let (_, owner, status) = conflict(store.admit(early).await.unwrap());
        assert_eq!((owner.as_str(), status), ("r1", RunStatus::Completed));
        start(store, "r3", vec![spec("kept", 0)], 6_000).await;
    }

    // A09, A12
    start_and_open_share_one_namespace: |store, fence| {
        start(store, "first", vec![spec("t", 0)], 1).await;
        start(store, "second", vec![], 1).await;
        let opens = vec![open_hook(0, 0, spec("t", 0)), open_hook(1, 0, spec("u", 0))];
        let answer = store.append(append("second", fence, 0, opens)).await.unwrap();
        let Event::HookConflicted { call: 0, token: lost } = &answer.entries[0].event else {
            panic!("{answer:?}");
        };
        assert_eq!(lost.as_str(), "t");
        let body = answer.entries[0].body.as_ref().unwrap().text_or_null();
        assert_eq!(body, r#"{"token":"t","run_id":"first","workflow":"w","status":"pending"}"#);
        assert!(matches!(answer.entries[1].event, Event::HookClaimed { hook: 0, .. }));
        let late = new_run("third", vec![spec("u", 0)], 2);
        assert_eq!(conflict(store.admit(late).await.unwrap()).1, "second");
    }

    // A13
    a_run_can_dispose_and_open_again_in_one_append: |store, fence| {
        start(store, "r", vec![spec("t", 0)], 1).await;
        let dispose = |call, hook| NewEntry::event(Event::hook_disposed(call, hook));
        let entries = vec![
            dispose(0, 0),
            open_hook(1, 1, spec("t", 0)),
            dispose(2, 1),
            open_hook(3, 2, spec("t", 0)),
        ];
        store.append(append("r", fence, 0, entries)).await.unwrap();
        let hook = store.hook(&token("t"), 1).await.unwrap().unwrap();
        assert_eq!((hook.hook, hook.state), (2, HookState::Open));
        let own = vec![open_hook(4, 3, spec("t", 0))];
        let refused = store.append(append("r", fence, 4, own)).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    }

    // A14, A15, A24
    a_start_checks_key_then_id_then_tokens: |store, fence| {
        let mut run = new_run("r", vec![spec("t", 0)], 1);
        run.key = Some(key("k"));
        assert_eq!(store.admit(run.clone()).await.unwrap(), started("r", true));
        end(store, "r", fence).await;
        assert_eq!(store.admit(run.clone()).await.unwrap(), started("r", false), "the receipt, as it was");
        run.request = Digest::of("another");
        assert_eq!(store.admit(run.clone()).await.unwrap(), Admission::KeyConflict);
        run.key = None;
        let other = Admission::IdConflict { run: run_id("r") };
        assert_eq!(store.admit(run.clone()).await.unwrap(), other);
        run.request = Digest::of("r");
        let same = Admission::Existing { run: run_id("r") };
        assert_eq!(store.admit(run).await.unwrap(), same);
    }

    // A24: whichever branch it took.
    a_conflict_is_a_receipt_too: |store, fence| {
        start(store, "owner", vec![spec("t", 0)], 1).await;
        let mut run = new_run("r", vec![spec("t", 0)], 2);
        run.key = Some(key("k"));
        let first = store.admit(run.clone()).await.unwrap();
        end(store, "owner", fence).await;
        assert_eq!(store.admit(run.clone()).await.unwrap(), first);
        run.now = 2 + TOMBSTONE_MS;
        assert_eq!(store.admit(run).await.unwrap(), started("r", true), "the receipt is over");
    }

    // B04, B05, B07
    a_delivery_has_one_receipt_whatever_happens_to_the_hook: |store, fence| {
        start(store, "r", vec![spec("t", 0)], 1).await;
        let mut delivery = deliver("t", "1", 2);
        delivery.key = Some(key("k"));
        let Delivered::Accepted { receipt, entry: Some(_) } =
            store.deliver(delivery.clone()).await.unwrap() else { panic!() };
        assert_eq!((receipt.run_id.as_str(), receipt.seq), ("r", 1));
        end(store, "r", fence).await;
        let again = store.deliver(delivery.clone()).await.unwrap();
        assert_eq!(again, Delivered::Accepted { receipt, entry: None });
        delivery.payload = Body::new("2");
        delivery.request = delivery.payload.digest;
        assert_eq!(store.deliver(delivery).await.unwrap(), Delivered::KeyConflict);
        let ended = store.deliver(deliver("t", "1", 3)).await.unwrap();
        let Delivered::Ended { owner } = ended else { panic!("{ended:?}") };
        assert_eq!(owner.status, RunStatus::Completed);
        // B06: its tombstone is over.
        let late = store.deliver(deliver("t", "1", 1_000 + TOMBSTONE_MS)).await.unwrap();
        assert_eq!(late, Delivered::NotFound);
    }

    // B10, B16
    closing_keeps_the_token_and_disposing_frees_it: |store, fence| {
        start(store, "r", vec![spec("t", 0)], 1).await;
        store.deliver(deliver("t", "1", 2)).await.unwrap();
        let close = NewEntry::event(Event::HookClosed { call: Some(0), hook: 0 });
        store.append(append("r", fence, 1, vec![close])).await.unwrap();
        let hook = store.hook(&token("t"), 2).await.unwrap().unwrap();
        assert_eq!((hook.state, hook.unread), (HookState::Closed, 1));
        assert!(matches!(store.deliver(deliver("t", "2", 3)).await, Ok(Delivered::Ended { .. })));
        let taken = NewEntry::event(Event::PayloadsTaken { hook: 0, count: 1 });
        store.append(append("r", fence, 2, vec![taken.clone()])).await.unwrap();
        let twice = store.append(append("r", fence, 3, vec![taken])).await;
        assert!(matches!(twice, Err(StoreError::Invalid(_))), "{twice:?}");
        let freed = store.dispose(&token("t"), 4).await.unwrap();
        assert_eq!(freed, Disposed::Freed { run: run_id("r") });
        let again = store.dispose(&token("t"), 4).await.unwrap();
        assert_eq!(again, Disposed::Free { run: run_id("r") });
        assert_eq!(store.dispose(&token("u"), 4).await.unwrap(), Disposed::NotFound);
    }

    // A07
    disposing_frees_a_retained_token_and_leaves_an_entry: |store, fence| {
        start(store, "r", vec![spec("t", 1_000_000)], 1).await;
        end(store, "r", fence).await;
        let hook = store.hook(&token("t"), 2).await.unwrap().unwrap();
        assert_eq!(hook.state, HookState::Retained);
        store.dispose(&token("t"), 3).await.unwrap();
        let loaded = store.load(&run_id("r"), 2).await.unwrap().unwrap();
        assert_eq!(loaded.entries[0].event, Event::hook_freed(0));
        assert_eq!(loaded.run.status, RunStatus::Completed);
        start(store, "next", vec![spec("t", 0)], 4).await;
    }

    // B15
    an_old_owner_never_frees_a_new_claim: |store, fence| {
        start(store, "old", vec![spec("t", 0)], 1).await;
        store.dispose(&token("t"), 2).await.unwrap();
        start(store, "new", vec![spec("t", 0)], 3).await;
        let late = NewEntry::event(Event::hook_disposed(0, 0));
        store.append(append("old", fence, 0, vec![late])).await.unwrap();
        end(store, "old", fence).await;
        let hook = store.hook(&token("t"), 4).await.unwrap().unwrap();
        assert_eq!((hook.run_id.as_str(), hook.state), ("new", HookState::Open));
    }

    an_append_sent_twice_is_written_once: |store, fence| {
        start(store, "r", vec![], 1).await;
        let sent = append("r", fence, 0, step(0));
        let first = store.append(sent.clone()).await.unwrap();
        assert_eq!(store.append(sent).await.unwrap(), first);
        let mut last = append("r", fence, 3, vec![completed()]);
        last.park = REST;
        let ended = store.append(last.clone()).await.unwrap();
        assert_eq!((ended.parked, ended.status), (false, RunStatus::Completed));
        assert_eq!(store.append(last).await.unwrap(), ended);
        // Somebody may have ended it meanwhile.
        let late = store.append(append("r", fence, 3, vec![scheduled(1)])).await.unwrap();
        assert_eq!(late, ended);
    }

    a_run_that_rests_starts_a_child_and_rests_again: |store, fence| {
        start(store, "r", vec![], 1).await;
        let mut rests = append("r", fence, 0, step(0));
        rests.park = REST;
        store.append(rests).await.unwrap();
        let child = new_run("child", vec![], 1);
        let child = NewEntry::StartChild(Box::new(ChildStart {
            call: 1,
            workflow: "w".into(),
            input: child.input,
            input_digest: Digest::of("w"),
            options: ChildOptions::default(),
            admission: Some(Ok(Box::new(ChildAdmission {
                run: child.id,
                started: child.started,
            }))),
        }));
        let mut again = append("r", fence, 3, vec![child]);
        again.park = REST;
        let appended = store.append(again).await.unwrap();
        assert_eq!((appended.parked, appended.woken), (true, vec![run_id("child")]));
        let run = store.run(&run_id("r")).await.unwrap().unwrap();
        assert_eq!(run.status, RunStatus::Suspended);
        let due = due(store, 2, 10).await;
        assert_eq!(due, [run_id("child")]);
    }

    an_append_that_breaks_a_rule_leaves_nothing: |store, fence| {
        start(store, "r", vec![spec("t", 0)], 1).await;
        let dispose = NewEntry::event(Event::hook_disposed(0, 0));
        let bad = NewEntry::event(Event::HookClosed { call: Some(2), hook: 7 });
        let entries = vec![dispose, open_hook(1, 1, spec("u", 0)), bad];
        let refused = store.append(append("r", fence, 0, entries)).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
        assert_eq!(store.load(&run_id("r"), 1).await.unwrap().unwrap().entries, []);
        assert_eq!(store.hook(&token("u"), 1).await.unwrap(), None);
        let hook = store.hook(&token("t"), 1).await.unwrap().unwrap();
        assert_eq!(hook.state, HookState::Open);
    }

    an_append_answers_with_what_others_wrote_and_does_not_rest_then: |store, fence| {
        start(store, "r", vec![spec("t", 0)], 1).await;
        store.deliver(deliver("t", "1", 2)).await.unwrap();
        let mut resting = append("r", fence, 0, vec![scheduled(0)]);
        resting.park = REST;
        let answer = store.append(resting).await.unwrap();
        assert_eq!((answer.parked, answer.status), (false, RunStatus::Running));
        let seqs: Vec<_> = answer.entries.iter().map(|entry| entry.seq).collect();
        assert_eq!(seqs, [1, 2]);
        assert_eq!(answer.entries[0].event, Event::PayloadReceived { hook: 0 });
    }

    a_parked_run_is_due_at_its_time_or_when_somebody_writes: |store, fence| {
        start(store, "r", vec![spec("t", 0)], 1).await;
        assert_eq!(due(store, 0, 9).await, [run_id("r")], "also if the clock went back");
        let mut resting: Append = append("r", fence, 0, vec![scheduled(0)]);
        resting.park = Some(Park { wake_at: Some(5_000) });
        assert!(store.append(resting).await.unwrap().parked);
        assert_eq!(due(store, 4_999, 9).await, []);
        assert_eq!(store.next_due(4_999).await.unwrap(), Some(5_000));
        assert_eq!(due(store, 5_000, 9).await, [run_id("r")]);
        assert_eq!(store.next_due(5_000).await.unwrap(), None);
        let run = store.run(&run_id("r")).await.unwrap().unwrap();
        assert_eq!((run.status, run.wake_at), (RunStatus::Suspended, Some(5_000)));
        store.deliver(deliver("t", "1", 2_000)).await.unwrap();
        assert_eq!(due(store, 2_000, 9).await, [run_id("r")]);
    }

    a_limited_run_that_is_woken_rests_until_its_owner_writes: |store, fence| {
        let mut new = new_run("r", vec![spec("t", 0)], 1);
        new.started.concurrency = Some(limited(1));
        store.admit(new).await.unwrap();
        start(store, "other", vec![], 2).await;
        let status = async || store.run(&run_id("r")).await.unwrap().unwrap().status;
        let mut resting = append("r", fence, 0, vec![scheduled(0)]);
        resting.park = REST;
        assert!(store.append(resting).await.unwrap().parked);
        store.deliver(deliver("t", "1", 3)).await.unwrap();
        store.deliver(deliver("t", "2", 4)).await.unwrap();
        assert_eq!(status().await, RunStatus::Suspended);
        assert_eq!(due(store, 4, 9).await, [run_id("other"), run_id("r")]);
        let others = store.due(4, 9, &[limited(1).group]).await.unwrap();
        assert_eq!(others.iter().map(|due| &due.run).collect::<Vec<_>>(), [&run_id("other")]);
        let others = store.due(4, 9, &[limited(0).group]).await.unwrap();
        assert_eq!(others[1].concurrency, Some(limited(1)));
        store.append(append("r", fence, 3, vec![step_completed(0)])).await.unwrap();
        assert_eq!(status().await, RunStatus::Running);
        // It may be told that it rests without having done anything.
        let mut resting = append("r", fence, 4, vec![]);
        resting.park = REST;
        store.append(resting.clone()).await.unwrap();
        store.deliver(deliver("t", "3", 5)).await.unwrap();
        resting.seen = 5;
        assert!(store.append(resting).await.unwrap().parked);
        assert_eq!(due(store, 9, 9).await, [run_id("other")]);
        store.cancel(&run_id("r"), Ending::Terminate, 6).await.unwrap();
        assert_eq!(status().await, RunStatus::Cancelled);
    }

    run_time_never_goes_back: |store, fence| {
        start(store, "r", vec![], 5_000).await;
        let answer = store.append(append("r", fence, 0, vec![scheduled(0)])).await.unwrap();
        assert_eq!(answer.entries[0].at, 5_000, "the request said 1,000");
    }

    // F04, F12: a mark beside the journal.
    a_blocked_run_rests_and_keeps_what_comes_until_upgraded: |store, fence| {
        store.deploy("c", component("c"), Vec::new(), 1).await.unwrap();
        start(store, "r", vec![spec("t", 0)], 1).await;
        let why = Blocked {
            reason: BlockReason::Trap,
            message: "it trapped".into(),
            step: None,
            detail: serde_json::Value::Null,
        };
        store.block(&run_id("r"), fence, why.clone()).await.unwrap();
        store.deliver(deliver("t", "1", 2)).await.unwrap();
        let mut saved = append("r", fence, 1, step(0));
        saved.park = REST;
        assert!(!store.append(saved).await.unwrap().parked);
        let run = store.run(&run_id("r")).await.unwrap().unwrap();
        assert_eq!((run.status, run.blocked, run.entries), (RunStatus::Blocked, Some(why), 5));
        assert_eq!(due(store, 9_000, 9).await, []);
        let missing = store.upgrade(&run_id("r"), Digest::of("?"), 3).await;
        assert!(matches!(missing, Err(StoreError::Invalid(_))), "{missing:?}");
        let done = store.upgrade(&run_id("r"), Digest::of("c"), 3).await.unwrap();
        assert_eq!(done, Upgraded::Done);
        let run = store.run(&run_id("r")).await.unwrap().unwrap();
        assert_eq!((run.status, run.blocked), (RunStatus::Running, None));
        assert_eq!(due(store, 3, 9).await, [run_id("r")]);
    }

    a_host_that_was_replaced_cannot_write: |store, old| {
        start(store, "r", vec![], 1).await;
        let new = store.take_over(2).await.unwrap();
        assert!(new > old);
        let refused = store.append(append("r", old, 0, step(0))).await;
        assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
        store.append(append("r", new, 0, step(0))).await.unwrap();
    }

    the_farthest_times_fit: |store, fence| {
        start(store, "r", vec![spec("t", u64::MAX)], 1).await;
        let timer = Event::TimerSet { call: 0, due: u64::MAX, length: None };
        let mut resting = append("r", fence, 0, vec![NewEntry::event(timer.clone())]);
        resting.park = Some(Park { wake_at: Some(u64::MAX) });
        store.append(resting).await.unwrap();
        assert_eq!(store.load(&run_id("r"), 1).await.unwrap().unwrap().entries[0].event, timer);
        assert_eq!(due(store, 1 << 50, 9).await, []);
    }
}
