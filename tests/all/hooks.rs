//! Cases B: what is delivered to a hook is read once and in order, or its sender is told that it is not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onemark::engine::{
    ConflictPolicy, DeliverRequest, Engine, EngineConfig, Error, StartPayload, StartRequest,
};
use onemark::ids::{IdempotencyKey, RunId};
use onemark::journal::{Event, Limits, RunStatus, Seq};
use onemark::store::{Cap, DeliveryReceipt, HookState, Owner, ReceivedPayload, TOMBSTONE_MS};
use onemark_tests::*;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

on_each_store![
    b01_a_payload_can_come_before_the_run_executed,
    b02_one_client_is_read_in_its_order,
    b02_many_clients_are_read_in_commit_order,
    b03_what_was_acknowledged_is_there_after_a_restart,
    b04_the_same_delivery_again_gets_its_first_receipt,
    b04_a_receipt_outlives_the_hook_of_the_token,
    b04_clients_with_one_key_deliver_once,
    b05_a_key_is_for_one_payload,
    b06_an_unknown_token_takes_nothing,
    b06_a_tombstone_is_over_after_30_days,
    b07_a_hook_that_ended_takes_nothing,
    b08_a_wait_that_was_given_up_loses_no_payload,
    b09_what_was_not_read_is_counted_and_can_be_seen,
    b10_close_and_dispose_keep_what_was_delivered,
    b11_deliveries_race_the_end_of_the_run,
    b11_deliveries_race_a_dispose_from_outside,
    b11_deliveries_race_the_guest_that_ends_its_hook,
    b12_two_hooks_and_a_timer_come_in_journal_order,
    b12_what_came_meanwhile_is_seen_in_journal_order,
    b13_what_is_no_payload_is_refused,
    b14_ten_thousand_deliveries_and_no_more,
    b11_a_freed_hook_that_was_never_opened_is_read_once,
    b15_an_old_owner_never_frees_the_new_claim,
    b16_a_hook_can_be_looked_up,
    b17_a_payload_fits_the_declared_type,
    b17_a_mismatch_on_an_undeclared_hook_loses_nothing,
    b17_a_payload_is_checked_against_the_hook_that_gets_it,
    what_a_guest_cannot_open_is_a_typed_error_on_every_activation,
    a_generated_token_is_the_same_on_every_activation,
    b18_a_hook_keeps_so_much_that_was_not_read,
    b18_a_start_meets_a_full_hook,
];

// ---- helpers ---------------------------------------------------------------------------------------

fn keyed(name: &str, payload: &Value, key: &str) -> DeliverRequest {
    DeliverRequest {
        token: token(name),
        payload: payload.to_string().into(),
        key: Some(IdempotencyKey::new(key).unwrap()),
    }
}

fn unkeyed(name: &str, payload: &Value) -> DeliverRequest {
    DeliverRequest {
        key: None,
        ..keyed(name, payload, "none")
    }
}

/// Who held the token, as a client is told that comes too late.
fn ended(answer: Result<DeliveryReceipt, Error>) -> Owner {
    match answer {
        Err(Error::HookEnded { owner, .. }) => owner,
        other => panic!("the hook did not end: {other:?}"),
    }
}

fn owner(run: &RunId, workflow: &str, status: RunStatus) -> Owner {
    Owner {
        run: run.clone(),
        workflow: workflow.into(),
        status,
    }
}

fn not_found(answer: &Result<DeliveryReceipt, Error>) {
    assert!(matches!(answer, Err(Error::HookNotFound(_))), "{answer:?}");
}

/// The payloads in the journal, to any of its hooks.
async fn payloads(host: &TestHost, run: &RunId) -> BTreeMap<Seq, Value> {
    let received = |event: &Event| matches!(event, Event::PayloadReceived { .. });
    let journal = host
        .journal(run)
        .await
        .into_iter()
        .filter(|entry| received(&entry.event));
    let payload = |text: &str| serde_json::from_str(text).unwrap();
    journal
        .map(|entry| (entry.seq, payload(entry.body.unwrap().text_or_null())))
        .collect()
}

/// A run of `ends_hook` that waits to be told, on `go`, to end its hook.
async fn ends_hook(host: &TestHost, dispose: bool, name: &str, go: &str) -> RunId {
    let run = host
        .start_with("ends_hook", json!({ "dispose": dispose }), &[name, go])
        .await;
    host.reached(&run, RunStatus::Suspended).await;
    run
}

// ---- order -----------------------------------------------------------------------------------------

async fn b01_a_payload_can_come_before_the_run_executed(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    // From here on runs are admitted and nothing carries them on.
    host.engine.shutdown().await;
    let run = host.start_with("read_any", json!({}), &["early"]).await;
    for n in 1..=3 {
        let receipt = host.deliver("early", json!({ "n": n })).await.unwrap();
        assert_eq!(
            receipt,
            DeliveryReceipt {
                run_id: run.clone(),
                seq: n
            }
        );
    }
    assert_eq!(host.engine.run(&run).await.unwrap().status, RunStatus::Pending);
    assert_eq!(host.hook("early").await.unwrap().unread, 3);
    let host = host.restart().await;
    host.deliver("early", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([{"n": 1}, {"n": 2}, {"n": 3}]));
    host.agrees(&run).await;
}

async fn b02_one_client_is_read_in_its_order(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["one"]).await;
    let mut last = 0;
    for n in 0..200 {
        let receipt = host.deliver("one", json!(n)).await.unwrap();
        assert!(receipt.seq > last);
        last = receipt.seq;
    }
    host.deliver("one", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!((0..200).collect::<Vec<_>>()));
    host.agrees(&run).await;
}

async fn b02_many_clients_are_read_in_commit_order(kind: StoreKind) {
    const CLIENTS: u64 = 16;
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["many"]).await;
    let mut clients = JoinSet::new();
    let gate = Arc::new(Barrier::new(CLIENTS as usize));
    for client in 0..CLIENTS {
        let (engine, gate) = (host.engine.clone(), gate.clone());
        clients.spawn(async move {
            gate.wait().await;
            let mut receipts = Vec::new();
            for n in 0..25 {
                let payload = json!([client, n]);
                let receipt = engine.deliver(unkeyed("many", &payload)).await.unwrap();
                receipts.push((receipt.seq, payload));
            }
            assert!(
                receipts.is_sorted_by_key(|(seq, _)| *seq),
                "a client overtook itself"
            );
            receipts
        });
    }
    let acknowledged: BTreeMap<_, _> = clients.join_all().await.into_iter().flatten().collect();
    assert_eq!(acknowledged.len(), 400);
    host.deliver("many", json!("end")).await.unwrap();
    let in_commit_order: Vec<_> = acknowledged.values().cloned().collect();
    assert_eq!(host.output(&run).await, json!(in_commit_order));
    let mut journal = payloads(&host, &run).await;
    journal.pop_last();
    assert_eq!(journal, acknowledged);
    host.agrees(&run).await;
}

async fn b12_two_hooks_and_a_timer_come_in_journal_order(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let (first, second, timer) = (0, 1, 2);
    for (round, order) in [
        [first, second, timer],
        [first, timer, second],
        [second, first, timer],
        [second, timer, first],
        [timer, first, second],
        [timer, second, first],
    ]
    .into_iter()
    .enumerate()
    {
        let tokens = [format!("first:{round}"), format!("second:{round}")];
        let input = json!({"n": 3, "timer_ms": 1000});
        let run = host
            .start_with("two_hooks_and_timer", input, &[&tokens[0], &tokens[1]])
            .await;
        host.reached(&run, RunStatus::Suspended).await;
        let mut expected = Vec::new();
        for what in order {
            if what == timer {
                host.advance(Duration::from_secs(1));
                let entries = host.engine.run(&run).await.unwrap().entries;
                assert!(entries <= 4 + 2 * 2, "{entries}");
                fired(&host, &run).await;
                expected.push("timer".to_owned());
            } else {
                host.deliver(&tokens[what], json!(round)).await.unwrap();
                expected.push(format!("{} {round}", ["first", "second"][what]));
            }
        }
        assert_eq!(host.output(&run).await, json!(expected));
        host.agrees(&run).await;
    }
}

async fn fired(host: &TestHost, run: &RunId) {
    loop {
        let info = host.until(run, |_| true).await;
        if host.events(run).await.contains(&"timer_fired") {
            return;
        }
        assert!(!info.status.is_terminal(), "ended without its timer");
    }
}

async fn b12_what_came_meanwhile_is_seen_in_journal_order(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let input = json!({"n": 5, "timer_ms": 1000});
    let run = host
        .start_with("two_hooks_and_timer", input, &["first", "second"])
        .await;
    host.reached(&run, RunStatus::Suspended).await;
    // Nobody looks while these come.
    host.engine.shutdown().await;
    for (name, payload) in [("second", 1), ("first", 2), ("first", 3), ("second", 4)] {
        host.deliver(name, json!(payload)).await.unwrap();
    }
    host.advance(Duration::from_secs(1));
    let host = host.restart().await;
    let seen = ["second 1", "first 2", "first 3", "second 4", "timer"];
    assert_eq!(host.output(&run).await, json!(seen));
    host.agrees(&run).await;
}

// ---- kept ------------------------------------------------------------------------------------------

async fn b03_what_was_acknowledged_is_there_after_a_restart(kind: StoreKind) {
    let mut host = TestHost::on(kind).await;
    for round in 0..6 {
        let name = format!("order:{round}");
        let run = host.start("follow", json!({"id": round.to_string()})).await;
        let mut acknowledged = BTreeMap::new();
        // Now before the run executed, now while it works on the payloads.
        for n in 0..=round {
            let payload = json!({"n": n, "last": false});
            let receipt = host.deliver(&name, payload.clone()).await.unwrap();
            acknowledged.insert(receipt.seq, payload);
        }
        host = host.restart().await;
        assert_eq!(payloads(&host, &run).await, acknowledged);
        host.deliver(&name, json!({"n": 99, "last": true})).await.unwrap();
        let read: Vec<_> = (0..=round).chain([99]).collect();
        assert_eq!(host.output(&run).await, json!(read));
        host.agrees(&run).await;
    }
}

async fn b04_the_same_delivery_again_gets_its_first_receipt(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start_with("read_any", json!({}), &["order"]).await;
    let again = keyed("order", &json!({"n": 1}), "k");
    let first = host.engine.deliver(again.clone()).await.unwrap();
    assert_eq!(first.run_id, run);
    host.deliver("order", json!(2)).await.unwrap();
    host.until(&run, |info| {
        info.status == RunStatus::Suspended && info.entries > 3
    })
    .await;
    let before = host.everything().await;
    assert_eq!(host.engine.deliver(again.clone()).await.unwrap(), first);
    let host = host.restart().await;
    assert_eq!(host.engine.deliver(again.clone()).await.unwrap(), first);
    assert_eq!(host.everything().await, before);

    host.deliver("order", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([{"n": 1}, 2]));
    let before = host.everything().await;
    assert_eq!(host.engine.deliver(again.clone()).await.unwrap(), first);
    host.advance(Duration::from_millis(TOMBSTONE_MS - 1));
    let host = host.restart().await;
    assert_eq!(host.engine.deliver(again).await.unwrap(), first);
    assert_eq!(host.everything().await, before);
    host.agrees(&run).await;
}

async fn b04_a_receipt_outlives_the_hook_of_the_token(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let old = host.start_with("read_any", json!({}), &["order:1"]).await;
    let again = keyed("order:1", &json!("no update"), "k");
    let first = host.engine.deliver(again.clone()).await.unwrap();
    host.deliver("order:1", json!("end")).await.unwrap();
    host.output(&old).await;

    // The token goes to a run that takes updates only.
    let new = host.start("follow", json!({"id": "1"})).await;
    assert_eq!(host.engine.deliver(again).await.unwrap(), first);
    let other = host
        .engine
        .deliver(keyed("order:1", &json!("neither"), "k"))
        .await;
    assert!(matches!(other, Err(Error::KeyConflict)), "{other:?}");
    let other = host
        .engine
        .deliver(keyed("order:1", &json!("neither"), "another"))
        .await;
    assert!(matches!(other, Err(Error::InvalidPayload { .. })), "{other:?}");
    assert_eq!(payloads(&host, &new).await, BTreeMap::new());
    host.agrees(&old).await;
}

async fn b04_clients_with_one_key_deliver_once(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["order"]).await;
    for round in 0..20 {
        let request = keyed("order", &json!(round), &format!("k{round}"));
        let mut clients = JoinSet::new();
        for _ in 0..8 {
            let (engine, request) = (host.engine.clone(), request.clone());
            clients.spawn(async move { engine.deliver(request).await.unwrap() });
        }
        let receipts = clients.join_all().await;
        assert!(
            receipts.iter().all(|receipt| *receipt == receipts[0]),
            "{receipts:?}"
        );
    }
    host.deliver("order", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!((0..20).collect::<Vec<_>>()));
    host.agrees(&run).await;
}

async fn b05_a_key_is_for_one_payload(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["order", "other"]).await;
    host.engine.deliver(keyed("order", &json!(1), "k")).await.unwrap();
    host.until(&run, |info| {
        info.status == RunStatus::Suspended && info.entries > 2
    })
    .await;
    let before = host.everything().await;
    for payload in [json!(2), json!("1"), json!([1])] {
        let answer = host.engine.deliver(keyed("order", &payload, "k")).await;
        assert!(matches!(answer, Err(Error::KeyConflict)), "{answer:?}");
    }
    assert_eq!(host.everything().await, before);
    // The keys of another token are others.
    host.engine.deliver(keyed("other", &json!(2), "k")).await.unwrap();
    assert_eq!(host.hook("other").await.unwrap().unread, 1);
    // Also after the hook ended.
    host.deliver("order", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([1]));
    let answer = host.engine.deliver(keyed("order", &json!(2), "k")).await;
    assert!(matches!(answer, Err(Error::KeyConflict)), "{answer:?}");
    host.agrees(&run).await;
}

// ---- refused ---------------------------------------------------------------------------------------

async fn b06_an_unknown_token_takes_nothing(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    not_found(&host.deliver("later", json!(1)).await);
    not_found(&host.engine.deliver(keyed("later", &json!(1), "k")).await);
    assert_eq!(host.everything().await, []);
    // Neither the payload nor the key is kept for who comes later.
    let run = host.start_with("read_any", json!({}), &["later"]).await;
    host.engine.deliver(keyed("later", &json!(2), "k")).await.unwrap();
    host.deliver("later", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([2]));
    host.agrees(&run).await;
}

async fn b06_a_tombstone_is_over_after_30_days(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start_with("sequence", json!({"n": 1}), &["old"]).await;
    host.output(&run).await;
    host.advance(Duration::from_millis(TOMBSTONE_MS - 1));
    let before = host.everything().await;
    assert_eq!(
        ended(host.deliver("old", json!(1)).await),
        owner(&run, "sequence", RunStatus::Completed)
    );
    host.advance(Duration::from_millis(1));
    not_found(&host.deliver("old", json!(1)).await);
    assert_eq!(host.everything().await, before);
}

async fn b07_a_hook_that_ended_takes_nothing(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let completed = host.start_with("sequence", json!({"n": 1}), &["completed"]).await;
    host.ended(&completed).await;
    let failed = host
        .start_with("fails", json!({"message": "as asked"}), &["failed"])
        .await;
    host.ended(&failed).await;
    // Its token is retained.
    let retained = host.start("follow", json!({"id": "retained"})).await;
    host.deliver("order:retained", json!({"n": 1, "last": true}))
        .await
        .unwrap();
    host.output(&retained).await;
    let closed = ends_hook(&host, false, "closed", "go").await;
    host.deliver("go", json!(1)).await.unwrap();
    host.until(&closed, |info| {
        info.status == RunStatus::Suspended && info.entries > 3
    })
    .await;

    let before = host.everything().await;
    for (name, owner) in [
        ("completed", owner(&completed, "sequence", RunStatus::Completed)),
        ("failed", owner(&failed, "fails", RunStatus::Failed)),
        ("order:retained", owner(&retained, "follow", RunStatus::Completed)),
        ("closed", owner(&closed, "ends_hook", RunStatus::Suspended)),
    ] {
        let payload = json!({"n": 2, "last": true});
        assert_eq!(ended(host.deliver(name, payload.clone()).await), owner);
        assert_eq!(
            ended(host.engine.deliver(keyed(name, &payload, "k")).await),
            owner
        );
    }
    assert_eq!(host.everything().await, before);
}

async fn b10_close_and_dispose_keep_what_was_delivered(kind: StoreKind) {
    for dispose in [false, true] {
        let host = TestHost::on(kind).await;
        let run = ends_hook(&host, dispose, "order", "go").await;
        for n in 0..3 {
            host.deliver("order", json!(n)).await.unwrap();
        }
        host.deliver("go", json!("now")).await.unwrap();
        let ended_by = if dispose { "hook_disposed" } else { "hook_closed" };
        host.until(&run, |info| {
            info.status == RunStatus::Suspended && info.entries > 6
        })
        .await;
        assert!(host.events(&run).await.contains(&ended_by));
        let told = ended(host.deliver("order", json!("late")).await);
        assert_eq!(told, owner(&run, "ends_hook", RunStatus::Suspended));

        let next = host.try_start("read_any", json!({}), &["order"]).await;
        if dispose {
            let next = next.unwrap().run_id;
            host.deliver("order", json!("for the next")).await.unwrap();
            host.deliver("order", json!("end")).await.unwrap();
            assert_eq!(host.output(&next).await, json!(["for the next"]));
            host.agrees(&next).await;
        } else {
            let Err(Error::HookConflict { owner, .. }) = next else {
                panic!("{next:?}")
            };
            assert_eq!(owner.run, run);
        }
        host.deliver("go", json!("on")).await.unwrap();
        assert_eq!(host.output(&run).await, json!([0, 1, 2]));
        host.agrees(&run).await;
    }
}

// ---- one order -------------------------------------------------------------------------------------

/// Clients that deliver until they are refused. What was acknowledged to them, by position.
struct Flood(JoinSet<Vec<(Seq, Value)>>);

impl Flood {
    /// Returns once some payloads have come.
    async fn begin(engine: &Engine, name: &str, run: &RunId) -> Self {
        let (began, mut begun) = tokio::sync::mpsc::channel(1);
        let mut clients = JoinSet::new();
        for client in 0..4 {
            let (engine, name, run, began) = (engine.clone(), name.to_owned(), run.clone(), began.clone());
            clients.spawn(async move {
                let mut acknowledged = Vec::new();
                for n in 0.. {
                    let payload = json!([client, n]);
                    match engine.deliver(unkeyed(&name, &payload)).await {
                        Ok(receipt) => {
                            assert_eq!(receipt.run_id, run);
                            acknowledged.push((receipt.seq, payload));
                        }
                        refused => {
                            assert_eq!(ended(refused).run, run);
                            break;
                        }
                    }
                    let _ = began.try_send(());
                    tokio::task::yield_now().await;
                }
                acknowledged
            });
        }
        begun.recv().await.expect("a payload is accepted");
        Self(clients)
    }

    async fn end(self) -> BTreeMap<Seq, Value> {
        self.0.join_all().await.into_iter().flatten().collect()
    }
}

async fn b11_deliveries_race_the_end_of_the_run(kind: StoreKind) {
    let host = uncapped(kind).await;
    for round in 0..15 {
        let name = format!("order:{round}");
        let run = host.start_with("read_any", json!({}), &[&name]).await;
        let flood = Flood::begin(&host.engine, &name, &run).await;
        let end = host.deliver(&name, json!("end")).await.unwrap();
        let output = host.output(&run).await;
        let mut acknowledged = flood.end().await;

        // Read until the end, kept after it, and nothing behind the entry that ended the run.
        let read: Vec<_> = acknowledged
            .range(..end.seq)
            .map(|(_, payload)| payload.clone())
            .collect();
        assert_eq!(output, json!(read));
        let unread = acknowledged.len() - read.len();
        assert_eq!(host.hook(&name).await.unwrap().unread, unread as u64);
        acknowledged.insert(end.seq, json!("end"));
        assert_eq!(payloads(&host, &run).await, acknowledged);
        assert_eq!(host.events(&run).await.last(), Some(&"completed"));
        host.agrees(&run).await;
    }
}

async fn b11_deliveries_race_a_dispose_from_outside(kind: StoreKind) {
    let host = uncapped(kind).await;
    for round in 0..15 {
        let name = format!("order:{round}");
        let run = host.start_with("read_any", json!({}), &[&name]).await;
        let flood = Flood::begin(&host.engine, &name, &run).await;
        let hook = host.engine.dispose(&token(&name)).await.unwrap();
        assert_eq!((&hook.run_id, hook.state), (&run, HookState::Freed));
        let acknowledged = flood.end().await;
        let in_order: Vec<_> = acknowledged.values().cloned().collect();
        assert_eq!(host.output(&run).await, json!(in_order));
        assert_eq!(payloads(&host, &run).await, acknowledged);
        let journal = host.journal(&run).await;
        let disposed = journal
            .iter()
            .find(|entry| entry.event.name() == "hook_disposed")
            .unwrap();
        assert!(acknowledged.keys().all(|seq| *seq < disposed.seq));
        host.agrees(&run).await;
    }
}

async fn b11_deliveries_race_the_guest_that_ends_its_hook(kind: StoreKind) {
    let host = uncapped(kind).await;
    for round in 0..15 {
        let (name, go) = (format!("order:{round}"), format!("go:{round}"));
        let dispose = round % 2 == 0;
        let run = host
            .start_with("ends_hook", json!({ "dispose": dispose }), &[&name, &go])
            .await;
        let flood = Flood::begin(&host.engine, &name, &run).await;
        host.deliver(&go, json!("now")).await.unwrap();
        let acknowledged = flood.end().await;
        host.deliver(&go, json!("on")).await.unwrap();
        let in_order: Vec<_> = acknowledged.values().cloned().collect();
        assert_eq!(host.output(&run).await, json!(in_order));
        let journal = host.journal(&run).await;
        let ended_by = if dispose { "hook_disposed" } else { "hook_closed" };
        let end = journal
            .iter()
            .find(|entry| entry.event.name() == ended_by)
            .unwrap();
        assert!(acknowledged.keys().all(|seq| *seq < end.seq));
        let of_go = [json!("now"), json!("on")];
        let mut received = payloads(&host, &run).await;
        received.retain(|_, payload| !of_go.contains(payload));
        assert_eq!(received, acknowledged);
        host.agrees(&run).await;
    }
}

/// What was claimed at the start and freed before it was opened is read, closed; then the token may be claimed anew.
async fn b11_a_freed_hook_that_was_never_opened_is_read_once(kind: StoreKind) {
    for (before, taken) in [(false, false), (false, true), (true, false), (true, true)] {
        let host = TestHost::on(kind).await;
        let run = host
            .start_with(
                "opens_late",
                json!({ "token": "t", "before": before }),
                &["t", "go"],
            )
            .await;
        host.reached(&run, RunStatus::Suspended).await;
        host.deliver("t", json!(1)).await.unwrap();
        host.engine.dispose(&token("t")).await.unwrap();
        if taken {
            host.start_with("read_any", json!({}), &["t"]).await;
        }
        host.deliver("go", json!("on")).await.unwrap();
        let host = host.restart().await;
        if !taken {
            host.until(&run, |info| {
                info.status == RunStatus::Suspended && info.tokens.len() == 2
            })
            .await;
            let claimed = async || host.hook("t").await.unwrap().state == HookState::Open;
            while !claimed().await {
                tokio::task::yield_now().await;
            }
            assert_eq!(host.deliver("t", json!("anew")).await.unwrap().run_id, run);
        }
        let result = host.ended(&run).await;
        match (before, taken) {
            (false, false) => assert_eq!(
                host.output(&run).await,
                json!({ "own": [true, true], "read": [1, "anew"] })
            ),
            (false, true) => {
                assert_eq!(
                    host.output(&run).await,
                    json!({ "own": [true, false], "read": [1] })
                );
            }
            (true, false) => {
                assert_eq!(
                    host.output(&run).await,
                    json!({ "own": [true], "read": ["anew"] })
                );
            }
            // Awaiting a payload there is an error.
            (true, true) => assert_eq!(result.status, RunStatus::Failed),
        }
        host.agrees(&run).await;
    }
}

async fn b15_an_old_owner_never_frees_the_new_claim(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let old = ends_hook(&host, true, "order", "go").await;
    // Nothing is carried on for a while: the old owner is told to dispose its hook before it can know that it
    // lost the token.
    host.engine.shutdown().await;
    host.deliver("go", json!("now")).await.unwrap();
    host.engine.dispose(&token("order")).await.unwrap();
    let new = host.start_with("read_any", json!({}), &["order"]).await;
    let host = host.restart().await;
    let (cleaned, mine) = (
        ["hook_disposed", "hook_disposed"],
        Some((new.clone(), HookState::Open)),
    );
    let holder = async || {
        host.hook("order")
            .await
            .ok()
            .map(|hook| (hook.run_id, hook.state))
    };

    host.until(&old, |info| {
        info.status == RunStatus::Suspended && info.entries > 4
    })
    .await;
    let events = host.events(&old).await;
    let disposals: Vec<_> = events
        .into_iter()
        .filter(|name| *name == "hook_disposed")
        .collect();
    assert_eq!(disposals, cleaned, "from outside, and late by its owner");
    assert_eq!(holder().await, mine);
    // Nor does its end.
    host.deliver("go", json!("on")).await.unwrap();
    assert_eq!(host.output(&old).await, json!([]));
    assert_eq!(holder().await, mine);
    let refused = host.try_start("read_any", json!({}), &["order"]).await;
    let Err(Error::HookConflict { owner, .. }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(owner.run, new);

    host.deliver("order", json!("for the new one")).await.unwrap();
    host.deliver("order", json!("end")).await.unwrap();
    assert_eq!(host.output(&new).await, json!(["for the new one"]));
    host.agrees(&old).await;
    host.agrees(&new).await;
}

// ---- looking, and types ----------------------------------------------------------------------------

async fn b16_a_hook_can_be_looked_up(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let mut asked = request("ends_hook", json!({"dispose": false}), &["order", "go"]);
    asked.hooks[0].min_retention_ms = 60_000;
    asked.hooks[0].metadata = Some(json!({"for": "somebody"}));
    let run = host.engine.start(asked).await.unwrap().run_id;
    host.reached(&run, RunStatus::Suspended).await;
    for n in 0..2 {
        host.deliver("order", json!(n)).await.unwrap();
    }
    host.reached(&run, RunStatus::Suspended).await;
    let claimed_at = host.engine.run(&run).await.unwrap().created_at;
    let looks = async |state, status, unread| {
        let hook = host.hook("order").await.unwrap();
        assert_eq!((&hook.run_id, hook.hook, hook.token.as_str()), (&run, 0, "order"));
        assert_eq!(hook.owner, owner(&run, "ends_hook", status));
        assert_eq!((hook.state, hook.unread), (state, unread));
        assert_eq!(hook.metadata, Some(json!({"for": "somebody"})));
        assert_eq!(
            (hook.claimed_at, hook.retained_until),
            (claimed_at, claimed_at + 60_000)
        );
        assert_eq!(host.engine.hooks_of(&run).await.unwrap()[0], hook);
    };
    looks(HookState::Open, RunStatus::Suspended, 2).await;
    host.deliver("go", json!("now")).await.unwrap();
    host.until(&run, |info| {
        info.status == RunStatus::Suspended && info.entries > 6
    })
    .await;
    looks(HookState::Closed, RunStatus::Suspended, 0).await;
    host.deliver("go", json!("on")).await.unwrap();
    host.output(&run).await;
    looks(HookState::Retained, RunStatus::Completed, 0).await;
    host.advance(Duration::from_secs(60));
    looks(HookState::Freed, RunStatus::Completed, 0).await;
    assert_eq!(host.hook("go").await.unwrap().state, HookState::Freed);
    host.advance(Duration::from_millis(TOMBSTONE_MS));
    for gone in ["order", "never"] {
        let hook = host.hook(gone).await;
        assert!(matches!(hook, Err(Error::HookNotFound(_))), "{hook:?}");
    }
    host.agrees(&run).await;
}

async fn b17_a_payload_fits_the_declared_type(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    // Declared by the workflow, and by the guest as it claims.
    let follow = host.start("follow", json!({"id": "1"})).await;
    let opens = host.start("opens_for_numbers", json!({"token": "numbers"})).await;
    for run in [&follow, &opens] {
        host.reached(run, RunStatus::Suspended).await;
    }
    let before = host.everything().await;
    for (name, payload) in [
        ("order:1", json!("text")),
        ("order:1", json!({"n": 1})),
        ("order:1", json!({"n": "1", "last": true})),
        ("order:1", json!(null)),
        ("numbers", json!("1")),
        ("numbers", json!(-1)),
        ("numbers", json!({"n": 1})),
    ] {
        for request in [unkeyed(name, &payload), keyed(name, &payload, "k")] {
            let answer = host.engine.deliver(request).await;
            assert!(
                matches!(answer, Err(Error::InvalidPayload { .. })),
                "{name} {payload}: {answer:?}"
            );
        }
    }
    assert_eq!(host.everything().await, before);
    // Not even the key was used up.
    let good = json!({"n": 5, "last": true});
    host.engine.deliver(keyed("order:1", &good, "k")).await.unwrap();
    host.engine
        .deliver(keyed("numbers", &json!(6), "k"))
        .await
        .unwrap();
    assert_eq!(host.output(&follow).await, json!([5]));
    assert_eq!(host.output(&opens).await, json!(6));
    host.agrees(&follow).await;
    host.agrees(&opens).await;
}

async fn b17_a_mismatch_on_an_undeclared_hook_loses_nothing(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("reads_numbers", json!({}), &["any"]).await;
    for payload in [
        json!(1),
        json!({"not": ["a", "number"]}),
        json!(null),
        json!(2),
        json!("end"),
    ] {
        host.deliver("any", payload).await.unwrap();
    }
    let seen = [
        "number 1",
        r#"other {"not":["a","number"]}"#,
        "other null",
        "number 2",
    ];
    assert_eq!(host.output(&run).await, json!(seen));
    host.agrees(&run).await;
}

/// The token changes hands while a payload is on its way.
async fn b17_a_payload_is_checked_against_the_hook_that_gets_it(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for round in 0..60 {
        let name = format!("order:{round}");
        if round % 2 == 1 {
            // Of a run that takes anything, and has ended.
            let old = host.start_with("sequence", json!({"n": 0}), &[&name]).await;
            host.output(&old).await;
        }
        let gate = Arc::new(Barrier::new(9));
        let mut clients = JoinSet::new();
        for client in 0..8 {
            let (engine, gate, name) = (host.engine.clone(), gate.clone(), name.clone());
            clients.spawn(async move {
                gate.wait().await;
                for _ in 0..client {
                    tokio::task::yield_now().await;
                }
                engine.deliver(unkeyed(&name, &json!("no update"))).await
            });
        }
        gate.wait().await;
        let run = host.start("follow", json!({"id": round.to_string()})).await;
        for answer in clients.join_all().await {
            assert!(answer.is_err(), "{answer:?}");
        }
        host.deliver(&name, json!({"n": round, "last": true}))
            .await
            .unwrap();
        assert_eq!(host.output(&run).await, json!([round]));
        host.agrees(&run).await;
    }
}

// ---- opening ---------------------------------------------------------------------------------------

/// Refused for good: a configuration that allows more meanwhile changes nothing for a run that was told so.
async fn what_a_guest_cannot_open_is_a_typed_error_on_every_activation(kind: StoreKind) {
    const HOUR: u64 = 3_600_000;
    let hour = Limits {
        max_retention_ms: HOUR,
        ..Limits::default()
    };
    let mut host = TestHost::with_limits(kind, hour).await;
    let options = "invalid: the options of a hook: ";
    let long = "x".repeat(256);
    let cases = [
        (
            "",
            0,
            0,
            "invalid: hook token is empty; give it 1 to 255 bytes".to_owned(),
        ),
        (
            &long,
            0,
            0,
            "invalid: hook token has 256 bytes; the limit is 255".to_owned(),
        ),
        (
            "a\nb",
            0,
            0,
            "invalid: hook token holds a control character; use printable text".to_owned(),
        ),
        (
            "kept",
            HOUR + 1,
            0,
            format!("{options}a retention of 3600001 ms; the limit is 3600000 ms"),
        ),
        // Two bytes more for the quotation marks.
        (
            "told",
            0,
            16_383,
            format!("{options}the metadata has 16385 bytes; the limit is 16384"),
        ),
        ("good", HOUR, 16_382, "good".to_owned()),
        (&long[1..], 0, 0, long[1..].to_owned()),
    ];
    let mut runs = Vec::new();
    for (token, retain_ms, metadata_bytes, expected) in &cases {
        let input = json!({ "token": token, "retain_ms": retain_ms, "metadata_bytes": metadata_bytes });
        let run = host.start("opens_with", input).await;
        assert_eq!(host.output(&run).await, **expected);
        runs.push(run);
    }
    for token in ["kept", "told"] {
        let unknown = host.hook(token).await;
        assert!(matches!(unknown, Err(Error::HookNotFound(_))), "{unknown:?}");
    }

    host = host.restart_with(EngineConfig::default()).await;
    for run in &runs {
        host.agrees(run).await;
    }
}

async fn a_generated_token_is_the_same_on_every_activation(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (run, token) = host.completes("opens_unique", json!({})).await;
        let token = token.as_str().unwrap().to_owned();
        assert_eq!(host.hook(&token).await.unwrap().run_id, run);
        seen.push(token);
    }
    assert_ne!(seen[0], seen[1]);
}

async fn b08_a_wait_that_was_given_up_loses_no_payload(kind: StoreKind) {
    const PAYLOADS: u64 = 300;
    for within in [false, true] {
        let host = uncapped(kind).await;
        let input = json!({ "ms": 1, "within": within });
        let run = host.start_with("looks_now_and_then", input, &["looked at"]).await;
        let mut vain = 0;
        for n in 1..=PAYLOADS {
            host.deliver("looked at", json!(n)).await.unwrap();
            // Some come in a wait, some between two, some while a wait is just given up.
            if n % 30 == 0 {
                let fired =
                    |events: Vec<&str>| events.iter().filter(|event| **event == "timer_fired").count();
                while fired(host.events(&run).await) <= vain {
                    tokio::task::yield_now().await;
                }
                vain = fired(host.events(&run).await);
            }
        }
        host.deliver("looked at", json!(0)).await.unwrap();
        let output = host.output(&run).await;
        assert_eq!(output[1], json!((1..=PAYLOADS).collect::<Vec<_>>()));
        assert!(output[0].as_u64() > Some(0), "no wait was given up");
        host.agrees(&run).await;
    }
}

// ---- how much --------------------------------------------------------------------------------------

async fn received(host: &TestHost, name: &str, from: u64, limit: usize) -> Vec<ReceivedPayload> {
    host.engine.payloads(&token(name), from, limit).await.unwrap()
}

async fn b09_what_was_not_read_is_counted_and_can_be_seen(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    // It begins when all of this is there, and reads two of it.
    host.engine.shutdown().await;
    let run = host.start_with("read_any", json!({}), &["order", "unused"]).await;
    for payload in [json!(1), json!("end"), json!({"late": 1}), json!("late")] {
        host.deliver("order", payload).await.unwrap();
    }
    host.deliver("unused", json!("never")).await.unwrap();
    let host = host.restart().await;
    assert_eq!(host.output(&run).await, json!([1]));
    let host = host.restart().await;
    assert_eq!(host.ended(&run).await.unread, Some(3));

    let all = received(&host, "order", 0, 100).await;
    let seen: Vec<_> = all
        .iter()
        .map(|it| (it.number, it.seq, it.read, it.body.text_or_null()))
        .collect();
    assert_eq!(
        seen,
        [
            (0, 1, true, "1"),
            (1, 2, true, r#""end""#),
            (2, 3, false, r#"{"late":1}"#),
            (3, 4, false, r#""late""#),
        ]
    );
    assert_eq!(received(&host, "order", 1, 2).await, all[1..3]);
    assert_eq!(received(&host, "order", 4, 2).await, []);
    assert_eq!(received(&host, "unused", 0, 9).await.len(), 1);
    let unknown = host.engine.payloads(&token("nope"), 0, 1).await;
    assert!(matches!(unknown, Err(Error::HookNotFound(_))), "{unknown:?}");
    host.agrees(&run).await;
}

async fn b13_what_is_no_payload_is_refused(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["order"]).await;
    host.reached(&run, RunStatus::Suspended).await;
    let before = host.everything().await;
    let text = |payload: String| DeliverRequest {
        token: token("order"),
        payload: payload.into(),
        key: None,
    };
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let string = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    for payload in [String::new(), "{".into(), "nul".into(), "1 2".into(), nested(129)] {
        let refused = host.engine.deliver(text(payload)).await;
        assert!(matches!(refused, Err(Error::InvalidRequest(_))), "{refused:?}");
    }
    let refused = host.engine.deliver(text(string((1 << 20) + 1))).await;
    assert!(
        matches!(refused, Err(Error::TooLarge { limit: 1_048_576, .. })),
        "{refused:?}"
    );
    assert_eq!(host.everything().await, before);

    // At the limits, and accepted. What a run that reads them returns would be over them, so it ends before.
    host.engine.shutdown().await;
    for payload in ["\"end\"".into(), nested(127), string(1 << 20)] {
        host.engine.deliver(text(payload)).await.unwrap();
    }
    let host = host.restart().await;
    assert_eq!(host.output(&run).await, json!([]));
    assert_eq!(host.ended(&run).await.unread, Some(2));
    host.agrees(&run).await;
}

/// What a delivery works on is the same, however many came before: the end of the journal, one row of the hook and
/// one number. What waits to be read is bounded by the cap, what is told to a run at work by its queue.
async fn b14_ten_thousand_deliveries_and_no_more(kind: StoreKind) {
    const DELIVERIES: u64 = 10_000;
    let host = TestHost::with_clock(kind).await;
    let begins = u64::MAX / 4;
    let waiting = StartRequest {
        start_at: Some(begins),
        ..request("read_any", json!({}), &["order"])
    };
    let run = host.engine.start(waiting).await.unwrap().run_id;
    let mut clients = JoinSet::new();
    for client in 0..50 {
        let engine = host.engine.clone();
        clients.spawn(async move {
            for n in 0..DELIVERIES / 50 {
                let payload = json!([client, n]);
                engine.deliver(unkeyed("order", &payload)).await.unwrap();
            }
        });
    }
    clients.join_all().await;
    // Nothing of it was taken into memory: the run has not begun, and nobody loads its journal for that.
    host.engine.idle().await;
    assert_eq!(host.hook("order").await.unwrap().unread, DELIVERIES);
    let full = host.deliver("order", json!("too much")).await;
    assert!(matches!(full, Err(Error::HookFull { .. })), "{full:?}");
    assert_eq!(host.engine.run(&run).await.unwrap().entries, 1 + DELIVERIES);
    assert_eq!(received(&host, "order", DELIVERIES - 1, 9).await.len(), 1);

    host.clock.as_ref().unwrap().set(begins);
    host.until(&run, |run| run.status == RunStatus::Suspended).await;
    host.deliver("order", json!("end")).await.unwrap();
    let output = host.output(&run).await;
    let mut next = [0; 50];
    for payload in output.as_array().unwrap() {
        let [client, n] = [&payload[0], &payload[1]].map(|it| it.as_u64().unwrap());
        assert_eq!(next[client as usize], n, "out of order");
        next[client as usize] += 1;
    }
    assert_eq!(next, [DELIVERIES / 50; 50]);
    host.agrees(&run).await;
}

/// For clients that deliver as fast as they can.
async fn uncapped(kind: StoreKind) -> TestHost {
    capped(kind, u64::MAX, u64::MAX).await
}

async fn capped(kind: StoreKind, payloads: u64, bytes: u64) -> TestHost {
    let config = EngineConfig {
        unread: Cap { payloads, bytes },
        ..EngineConfig::default()
    };
    TestHost::with(kind, config, None, &[]).await
}

async fn b18_a_hook_keeps_so_much_that_was_not_read(kind: StoreKind) {
    let host = capped(kind, 3, 20).await;
    host.engine.shutdown().await;
    let run = host.start_with("read_any", json!({}), &["order", "other"]).await;
    let full = |answer: Result<DeliveryReceipt, Error>| {
        let told = matches!(&answer, Err(Error::HookFull { token, owner, .. })
            if token.as_str() == "order" && owner.run == run);
        assert!(told, "{answer:?}");
    };
    for n in 1..=3 {
        host.deliver("order", json!(n)).await.unwrap();
    }
    full(host.deliver("order", json!(4)).await);
    full(host.engine.deliver(keyed("order", &json!(5), "k")).await);
    // The cap is that of one hook.
    host.deliver("other", json!(1)).await.unwrap();

    let host = host.restart().await;
    host.until(&run, |run| run.status == RunStatus::Suspended).await;
    // There is room again, also for the key that was refused.
    host.engine.deliver(keyed("order", &json!(5), "k")).await.unwrap();
    host.until(&run, |run| run.status == RunStatus::Suspended).await;
    host.deliver("order", json!("18 bytes, quoted")).await.unwrap();
    host.until(&run, |run| run.status == RunStatus::Suspended).await;
    full(host.deliver("order", json!("of 21 bytes, quoted")).await);
    host.deliver("order", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([1, 2, 3, 5, "18 bytes, quoted"]));
    host.agrees(&run).await;
}

async fn b18_a_start_meets_a_full_hook(kind: StoreKind) {
    let host = capped(kind, 100, 8).await;
    host.engine.shutdown().await;
    let run = host.start_with("read_any", json!({}), &["order"]).await;
    let asked = |payload: &str| StartRequest {
        key: Some(IdempotencyKey::new("k").unwrap()),
        on_conflict: ConflictPolicy::Deliver(StartPayload {
            token: None,
            payload: payload.into(),
            always: false,
        }),
        ..request("read_any", json!({}), &["order"])
    };
    host.deliver("order", json!([1, 2])).await.unwrap();
    let before = host.everything().await;
    let full = host.engine.start(asked("[3,4]")).await;
    assert!(matches!(full, Err(Error::HookFull { .. })), "{full:?}");
    assert_eq!(host.everything().await, before);
    let host = host.restart().await;
    host.reached(&run, RunStatus::Suspended).await;
    // Nothing was kept of the refusal.
    assert_eq!(host.engine.start(asked("[3,4]")).await.unwrap().run_id, run);
}
