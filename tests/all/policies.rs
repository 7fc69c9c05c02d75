//! Cases A and E14: what a start does when it meets a run, when a run begins, and what it is found by.

use std::collections::BTreeMap;
use std::time::Duration;

use onemark::engine::{Attached, ConflictPolicy, Error, Outcome, StartPayload, StartReceipt, StartRequest};
use onemark::ids::{IdempotencyKey, RunId, Tags};
use onemark::journal::{Event, RunStatus, Timestamp};
use onemark::store::{HookState, RunFilter, Waits};
use onemark_tests::*;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const MINUTE: Duration = Duration::from_secs(60);

on_each_store![
    a16_attach_gives_the_run_that_holds_the_token,
    a16_attach_needs_one_run_of_the_same_workflow,
    a17_deliver_starts_a_run_or_reaches_it,
    a17_a_payload_fits_whoever_would_read_it,
    a17_no_payload_is_lost_while_owners_end,
    a18_deliver_to_a_hook_that_ended_says_so,
    a22_a_run_begins_when_it_is_told_to,
    a22_a_time_that_has_passed_is_now,
    a24_each_branch_is_answered_the_same_again,
    a27_retention_counts_from_admission,
    duplicates_are_counted,
    e14_runs_are_found_by_tags_and_times,
];

// ---- helpers ---------------------------------------------------------------------------------------

fn attaching(request: StartRequest) -> StartRequest {
    StartRequest {
        on_conflict: ConflictPolicy::Attach,
        ..request
    }
}

fn delivering(payload: &Value, always: bool, request: StartRequest) -> StartRequest {
    StartRequest {
        on_conflict: ConflictPolicy::Deliver(StartPayload {
            token: None,
            payload: payload.to_string().into(),
            always,
        }),
        ..request
    }
}

fn with_key(key: &str, request: StartRequest) -> StartRequest {
    StartRequest {
        key: Some(IdempotencyKey::new(key).unwrap()),
        ..request
    }
}

fn retained(length: Duration, mut request: StartRequest) -> StartRequest {
    request.hooks[0].min_retention_ms = length.as_millis() as u64;
    request
}

fn tags(tags: &[(&str, &str)]) -> Tags {
    let tags = tags.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    Tags::new(tags.collect()).unwrap()
}

/// What a start that attached was told.
fn attached(receipt: StartReceipt) -> (RunId, Attached) {
    assert!(!receipt.started && receipt.delivered.is_none(), "{receipt:?}");
    (receipt.run_id, receipt.attached.expect("it attached"))
}

fn live(status: RunStatus, input_matches: bool) -> Attached {
    Attached {
        status,
        input_matches,
        outcome: Outcome::default(),
    }
}

fn conflicts_with(answer: Result<StartReceipt, Error>, run: &RunId, name: &str) {
    let told = matches!(&answer, Err(Error::HookConflict { token, owner })
        if owner.run == *run && token.as_str() == name);
    assert!(told, "no conflict over {name} with {run}: {answer:?}");
}

/// The payloads in a run's journal, in order.
async fn payloads(host: &TestHost, run: &RunId) -> Vec<Value> {
    let journal = host.journal(run).await;
    let received = journal
        .iter()
        .filter(|entry| matches!(entry.event, Event::PayloadReceived { .. }));
    let texts = received.map(|entry| entry.body.as_ref().unwrap().text_or_null().to_owned());
    texts.map(|text| serde_json::from_str(&text).unwrap()).collect()
}

// ---- attach ----------------------------------------------------------------------------------------

async fn a16_attach_gives_the_run_that_holds_the_token(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let workflow = request("ends_hook", json!({"dispose": false}), &["order", "go"]);
    let asked = attaching(retained(MINUTE, workflow));
    let first = host.engine.start(asked.clone()).await.unwrap();
    assert!(first.started && first.attached.is_none(), "{first:?}");
    let run = first.run_id;
    host.reached(&run, RunStatus::Suspended).await;

    let before = host.everything().await;
    let (owner, told) = attached(host.engine.start(asked.clone()).await.unwrap());
    assert_eq!((&owner, told), (&run, live(RunStatus::Suspended, true)));
    // The same value, spelled otherwise, is the same input.
    for (input, matches) in [(r#"{ "dispose": false }"#, true), (r#"{"dispose":true}"#, false)] {
        let other = StartRequest {
            input: input.into(),
            ..asked.clone()
        };
        let (_, told) = attached(host.engine.start(other).await.unwrap());
        assert_eq!(told, live(RunStatus::Suspended, matches));
    }
    assert_eq!(host.everything().await, before);

    host.deliver("order", json!("1")).await.unwrap();
    for _ in 0..2 {
        host.deliver("go", json!(null)).await.unwrap();
    }
    host.output(&run).await;
    let (owner, told) = attached(host.engine.start(asked.clone()).await.unwrap());
    assert_eq!((&owner, told.status), (&run, RunStatus::Completed));
    assert_eq!(json_of(told.outcome.output.as_deref()), json!(["1"]));

    host.advance(MINUTE);
    assert!(host.engine.start(asked).await.unwrap().started);
}

async fn a16_attach_needs_one_run_of_the_same_workflow(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let one = host.start_with("read_any", json!({}), &["one"]).await;
    let two = host.start_with("read_any", json!({}), &["two"]).await;
    let before = host.everything().await;
    let other = attaching(request("sequence", json!({"n": 1}), &["one"]));
    conflicts_with(host.engine.start(other).await, &one, "one");
    let both = attaching(request("read_any", json!({}), &["free", "one", "two"]));
    conflicts_with(host.engine.start(both).await, &two, "two");
    let half = attaching(request("read_any", json!({}), &["free", "one"]));
    assert_eq!(attached(host.engine.start(half).await.unwrap()).0, one);
    host.until(&one, |run| run.status == RunStatus::Suspended).await;
    host.until(&two, |run| run.status == RunStatus::Suspended).await;
    let now = host.everything().await;
    assert_eq!((now[0].1.len(), now[1].1.len(), now.len()), (1, 1, before.len()));
    assert!(matches!(host.hook("free").await, Err(Error::HookNotFound(_))));
}

// ---- deliver ---------------------------------------------------------------------------------------

async fn a17_deliver_starts_a_run_or_reaches_it(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let asked = |payload, always| delivering(&payload, always, request("read_any", json!({}), &["order"]));
    let first = host.engine.start(asked(json!("unused"), false)).await.unwrap();
    assert_eq!((first.started, first.delivered), (true, None));
    for (payload, always) in [("a", false), ("b", true)] {
        let next = host.engine.start(asked(json!(payload), always)).await.unwrap();
        assert_eq!((&next.run_id, next.started), (&first.run_id, false));
        let entry = &host.journal(&first.run_id).await[next.delivered.unwrap() as usize];
        assert_eq!(entry.event, Event::PayloadReceived { hook: 0 });
    }
    host.engine.start(asked(json!("end"), false)).await.unwrap();
    assert_eq!(host.output(&first.run_id).await, json!(["a", "b"]));
    host.agrees(&first.run_id).await;

    let second = host.engine.start(asked(json!("first"), true)).await.unwrap();
    assert_eq!((second.started, second.delivered), (true, Some(1)));
    assert_ne!(second.run_id, first.run_id);
    assert_eq!(
        host.events(&second.run_id).await[..2],
        ["started", "payload_received"]
    );
    host.engine.start(asked(json!("end"), true)).await.unwrap();
    assert_eq!(host.output(&second.run_id).await, json!(["first"]));
    host.agrees(&second.run_id).await;

    // Of several tokens, the one that the payload names; one that is free is not claimed beside one that is held.
    let run = host.start_with("read_any", json!({}), &["third"]).await;
    let mut named = delivering(
        &json!("end"),
        true,
        request("read_any", json!({}), &["fourth", "third"]),
    );
    conflicts_with(host.engine.start(named.clone()).await, &run, "third");
    if let ConflictPolicy::Deliver(delivery) = &mut named.on_conflict {
        delivery.token = Some(token("third"));
    }
    assert_eq!(host.engine.start(named).await.unwrap().run_id, run);
    assert_eq!(host.output(&run).await, json!([]));
    assert!(matches!(host.hook("fourth").await, Err(Error::HookNotFound(_))));
}

async fn a17_a_payload_fits_whoever_would_read_it(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let follow =
        |payload: Value, always| delivering(&payload, always, request("follow", json!({"id": "7"}), &[]));
    let misfit = |answer: Result<StartReceipt, Error>| {
        assert!(matches!(&answer, Err(Error::InvalidPayload { .. })), "{answer:?}");
    };
    misfit(host.engine.start(follow(json!({"n": "1"}), true)).await);
    assert_eq!(host.everything().await, []);
    // Nobody would read it.
    let run = host
        .engine
        .start(follow(json!({"n": "1"}), false))
        .await
        .unwrap()
        .run_id;
    host.reached(&run, RunStatus::Suspended).await;
    let before = host.everything().await;
    misfit(host.engine.start(follow(json!({"n": "1"}), false)).await);
    // The type is that of the hook which holds the token, whatever the start's own would be.
    misfit(
        host.engine
            .start(delivering(
                &json!("x"),
                true,
                request("read_any", json!({}), &["order:7"]),
            ))
            .await,
    );
    assert_eq!(host.everything().await, before);
    let last = host
        .engine
        .start(follow(json!({"n": 5, "last": true}), false))
        .await
        .unwrap();
    assert_eq!((&last.run_id, last.started), (&run, false));
    assert_eq!(host.output(&run).await, json!([5]));
}

/// Owners end at the moment at which starts arrive. Were there a gap between finding the token held and delivering,
/// some payload would be nowhere; were there one the other way round, some would be in two runs.
async fn a17_no_payload_is_lost_while_owners_end(kind: StoreKind) {
    const ROUNDS: u64 = 40;
    const CLIENTS: u64 = 8;
    let host = TestHost::on(kind).await;
    let mut acknowledged = BTreeMap::new();
    let (mut started, mut delivered) = (0, 0);
    for round in 0..ROUNDS {
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let payload = json!(round * CLIENTS + client);
            let asked = delivering(&payload, true, request("read_any", json!({}), &["order"]));
            let engine = host.engine.clone();
            clients.spawn(async move { Some((payload, engine.start(asked).await.unwrap())) });
            if client % 3 == 0 {
                let (engine, end) = (host.engine.clone(), json!("end"));
                let end = onemark::engine::DeliverRequest {
                    token: token("order"),
                    payload: end.to_string().into(),
                    key: None,
                };
                clients.spawn(async move {
                    match engine.deliver(end).await {
                        Ok(_) | Err(Error::HookEnded { .. } | Error::HookNotFound(_)) => None,
                        Err(error) => panic!("{error}"),
                    }
                });
            }
        }
        for (payload, receipt) in clients.join_all().await.into_iter().flatten() {
            match receipt.started {
                true => started += 1,
                false => delivered += 1,
            }
            let place = (receipt.run_id, receipt.delivered.expect("its place"));
            assert!(
                acknowledged.insert(place, payload).is_none(),
                "two payloads in one place"
            );
        }
    }
    assert!(
        started > 1 && delivered > 1,
        "{started} started, {delivered} delivered"
    );

    let mut found = BTreeMap::new();
    for (run, journal, _) in host.everything().await {
        for entry in journal {
            if let (Event::PayloadReceived { .. }, Some(body)) = (&entry.event, &entry.body) {
                let payload: Value = serde_json::from_str(body.text_or_null()).unwrap();
                if payload != "end" {
                    found.insert((run.id.clone(), entry.seq), payload);
                }
            }
        }
    }
    assert_eq!(found, acknowledged);
    assert_eq!(found.len() as u64, ROUNDS * CLIENTS);

    // Each was read once, or is counted as unread by the run that has it.
    let mut read = Vec::new();
    for (run, _, _) in host.everything().await {
        if !run.status.is_terminal() {
            // It may be about to end, as one before was told to.
            let end = host.deliver("order", json!("end")).await;
            assert!(matches!(end, Ok(_) | Err(Error::HookEnded { .. })), "{end:?}");
        }
        let result = host.ended(&run.id).await;
        let output = json_of(result.output.as_deref());
        let output = output.as_array().unwrap();
        let all = payloads(&host, &run.id).await;
        // It took what it read, and the `"end"` behind.
        assert_eq!(all[..output.len()], output[..]);
        assert_eq!(result.unread, Some((all.len() - output.len() - 1) as u64));
        let unread = all[output.len()..].iter().filter(|payload| **payload != "end");
        read.extend(
            output
                .iter()
                .chain(unread)
                .map(|payload| payload.as_u64().unwrap()),
        );
        host.agrees(&run.id).await;
    }
    read.sort_unstable();
    assert_eq!(read, (0..ROUNDS * CLIENTS).collect::<Vec<_>>());
}

async fn a18_deliver_to_a_hook_that_ended_says_so(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let late = |name: &str| delivering(&json!("late"), true, request("read_any", json!({}), &[name]));
    let ended = |answer: Result<StartReceipt, Error>| match answer {
        Err(Error::HookEnded { token, owner }) => (token.to_string(), owner.run, owner.status),
        other => panic!("not ended: {other:?}"),
    };

    let asked = request("ends_hook", json!({"dispose": false}), &["order", "go"]);
    let run = host.engine.start(retained(MINUTE, asked)).await.unwrap().run_id;
    host.deliver("go", json!(1)).await.unwrap();
    host.until(&run, |run| run.status == RunStatus::Suspended && run.entries > 3)
        .await;
    assert_eq!(host.hook("order").await.unwrap().state, HookState::Closed);
    let before = host.everything().await;
    let told = ended(host.engine.start(late("order")).await);
    assert_eq!(told, ("order".into(), run.clone(), RunStatus::Suspended));
    assert_eq!(host.everything().await, before);

    host.deliver("go", json!(1)).await.unwrap();
    host.output(&run).await;
    let before = host.everything().await;
    let told = ended(host.engine.start(late("order")).await);
    assert_eq!(told, ("order".into(), run.clone(), RunStatus::Completed));
    assert_eq!(host.everything().await, before);

    host.advance(MINUTE);
    let next = host.engine.start(late("order")).await.unwrap();
    assert_eq!((next.started, next.delivered), (true, Some(1)));
}

// ---- start at --------------------------------------------------------------------------------------

fn at(when: Timestamp, request: StartRequest) -> StartRequest {
    StartRequest {
        start_at: Some(when),
        ..request
    }
}

/// Nothing of the run was carried on up to here.
async fn has_not_begun(host: &TestHost, run: &RunId, until: Timestamp, entries: &[&str]) {
    host.engine.idle().await;
    let info = host.engine.run(run).await.unwrap();
    assert_eq!(info.status, RunStatus::Pending);
    assert_eq!(info.waits, Some(Waits::StartAt { until }));
    assert_eq!(info.wake_at, Some(until));
    assert_eq!(host.events(run).await, entries);
}

async fn a22_a_run_begins_when_it_is_told_to(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let until = onemark::clock::Clock::now(&**host.clock.as_ref().unwrap()) + 600_000;
    let run = host
        .engine
        .start(at(until, request("read_any", json!({}), &["order"])))
        .await
        .unwrap()
        .run_id;
    let asleep = host
        .engine
        .start(at(until, request("sleeps", json!({"lengths_ms": [60_000]}), &[])))
        .await
        .unwrap()
        .run_id;
    has_not_begun(&host, &run, until, &["started"]).await;
    // Claimed, and deliveries wait; none of them lets it begin.
    conflicts_with(
        host.try_start("read_any", json!({}), &["order"]).await,
        &run,
        "order",
    );
    host.deliver("order", json!(1)).await.unwrap();
    let again = delivering(&json!(2), false, request("read_any", json!({}), &["order"]));
    assert_eq!(host.engine.start(again).await.unwrap().run_id, run);
    let entries = ["started", "payload_received", "payload_received"];
    has_not_begun(&host, &run, until, &entries).await;

    host.advance(5 * MINUTE);
    let host = host.restart().await;
    has_not_begun(&host, &run, until, &entries).await;
    host.advance(5 * MINUTE - Duration::from_millis(1));
    host.deliver("order", json!(3)).await.unwrap();
    let entries = [&entries[..], &["payload_received"]].concat();
    has_not_begun(&host, &run, until, &entries).await;

    host.advance(Duration::from_millis(1));
    host.until(&run, |info| {
        info.status == RunStatus::Suspended && info.waits.is_none()
    })
    .await;
    host.deliver("order", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([1, 2, 3]));
    host.agrees(&run).await;

    // The run's time begins with the run: what it sleeps counts from there.
    host.until(&asleep, |info| info.status == RunStatus::Suspended)
        .await;
    let journal = host.journal(&asleep).await;
    let due = journal.iter().find_map(|entry| match entry.event {
        Event::TimerSet { due, .. } => Some(due),
        _ => None,
    });
    assert_eq!(due, Some(until + 60_000));
    host.advance(MINUTE);
    host.output(&asleep).await;
    host.agrees(&asleep).await;
}

async fn a22_a_time_that_has_passed_is_now(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let now = onemark::clock::Clock::now(&**host.clock.as_ref().unwrap());
    for when in [0, now] {
        let run = host
            .engine
            .start(at(when, request("sequence", json!({"n": 1}), &[])))
            .await
            .unwrap()
            .run_id;
        host.output(&run).await;
        host.agrees(&run).await;
    }
    let never = host
        .engine
        .start(at(u64::MAX, request("sequence", json!({"n": 1}), &[])))
        .await
        .unwrap()
        .run_id;
    host.advance(1_000_000 * MINUTE);
    has_not_begun(&host, &never, i64::MAX as u64, &["started"]).await;
}

async fn a27_retention_counts_from_admission(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let until = onemark::clock::Clock::now(&**host.clock.as_ref().unwrap()) + 600_000;
    let asked = at(
        until,
        retained(15 * MINUTE, request("sequence", json!({"n": 1}), &["order"])),
    );
    let run = host.engine.start(asked).await.unwrap().run_id;
    host.advance(10 * MINUTE);
    host.output(&run).await;
    host.advance(5 * MINUTE - Duration::from_millis(1));
    conflicts_with(
        host.try_start("read_any", json!({}), &["order"]).await,
        &run,
        "order",
    );
    host.advance(Duration::from_millis(1));
    host.start_with("read_any", json!({}), &["order"]).await;
}

// ---- receipts and duplicates -----------------------------------------------------------------------

async fn a24_each_branch_is_answered_the_same_again(kind: StoreKind) {
    let mut host = TestHost::with_clock(kind).await;
    let base = || retained(MINUTE, request("read_any", json!({}), &["order"]));
    let requests = [
        with_key("started", delivering(&json!("a"), true, base())),
        with_key("attached", attaching(base())),
        with_key("delivered", delivering(&json!("b"), false, base())),
        with_key("conflict", base()),
        // Delivers what ends the run; those after it meet one that has ended.
        with_key("end", delivering(&json!("end"), false, base())),
        with_key("result", attaching(base())),
        with_key("late", delivering(&json!("late"), true, base())),
    ];
    let text = |answer: &Result<StartReceipt, Error>| match answer {
        Ok(receipt) => serde_json::to_string(receipt).unwrap(),
        Err(error) => format!("{error:?}"),
    };
    let mut first = Vec::new();
    for asked in &requests {
        let answer = text(&host.engine.start(asked.clone()).await);
        let runs = host.everything().await;
        if runs[0].1.iter().any(|entry| {
            entry
                .body
                .as_ref()
                .is_some_and(|body| body.text_or_null() == "\"end\"")
        }) {
            host.ended(&runs[0].0.id).await;
        } else {
            host.reached(&runs[0].0.id, RunStatus::Suspended).await;
        }
        first.push(answer);
    }
    let run = host.everything().await[0].0.id.clone();
    for (answer, part) in first.iter().zip([
        r#""started":true,"delivered":1"#,
        r#""started":false,"status":"suspended","input_matches":true"#,
        r#""started":false,"delivered":"#,
        "HookConflict",
        r#""started":false,"delivered":"#,
        r#""status":"completed","input_matches":true,"output":["a","b"]"#,
        "HookEnded",
    ]) {
        assert!(
            answer.contains(part) && answer.contains(run.as_str()),
            "{part} is not in {answer}"
        );
    }

    for round in 0..3 {
        let before = host.everything().await;
        for (asked, answer) in requests.iter().zip(&first) {
            assert_eq!(text(&host.engine.start(asked.clone()).await), *answer);
        }
        assert_eq!(host.everything().await, before, "in round {round}");
        match round {
            0 => host = host.restart().await,
            // The token is free again; the answers stay.
            _ => host.advance(MINUTE),
        }
    }
    let other = with_key("delivered", delivering(&json!("c"), false, base()));
    assert!(matches!(host.engine.start(other).await, Err(Error::KeyConflict)));
}

/// With an id as well, the repeated request names the very run: that must not make it begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a24_a_repeated_start_runs_no_step_again() {
    let marks = Marks::start().await;
    let host = TestHost::with_http(&[marks.authority()]).await;
    let input = json!({"marks": marks.url(), "names": ["a", "b"]});
    let asked = StartRequest {
        id: Some(RunId::new("named").unwrap()),
        ..with_key("k", request("leave_marks_together", input, &[]))
    };
    let run = host.engine.start(asked.clone()).await.unwrap().run_id;
    host.output(&run).await;
    host.engine.idle().await;
    let before = host.everything().await;
    assert!(host.engine.start(asked).await.unwrap().started);
    host.engine.idle().await;
    assert_eq!((marks.count("a"), marks.count("b")), (1, 1));
    assert_eq!(host.everything().await, before);
}

async fn duplicates_are_counted(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let base = || request("read_any", json!({}), &["order"]);
    let named = StartRequest {
        id: Some(RunId::new("named").unwrap()),
        ..with_key("k", base())
    };
    let run = host.engine.start(named.clone()).await.unwrap().run_id;
    let other = host.start_with("read_any", json!({}), &["other"]).await;
    assert_eq!(host.engine.run(&run).await.unwrap().duplicates, 0);

    host.engine.start(named.clone()).await.unwrap();
    host.engine
        .start(StartRequest {
            key: None,
            ..named.clone()
        })
        .await
        .unwrap();
    host.engine.start(base()).await.unwrap_err();
    host.engine.start(attaching(base())).await.unwrap();
    host.engine
        .start(delivering(&json!(1), false, base()))
        .await
        .unwrap();
    let counted = |host: &TestHost, count| {
        let (engine, run, other) = (host.engine.clone(), run.clone(), other.clone());
        async move {
            assert_eq!(engine.run(&run).await.unwrap().duplicates, count);
            assert_eq!(engine.run(&other).await.unwrap().duplicates, 0);
            let listed = engine
                .runs(RunFilter {
                    limit: 9,
                    ..RunFilter::default()
                })
                .await
                .unwrap();
            assert_eq!(
                listed.iter().map(|run| run.duplicates).collect::<Vec<_>>(),
                [0, count]
            );
        }
    };
    counted(&host, 5).await;
    let host = host.restart().await;
    counted(&host, 5).await;
    host.engine.start(base()).await.unwrap_err();
    counted(&host, 6).await;
    // A delivery is no start.
    host.deliver("order", json!(1)).await.unwrap();
    counted(&host, 6).await;
}

// ---- tags ------------------------------------------------------------------------------------------

async fn e14_runs_are_found_by_tags_and_times(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let began = onemark::clock::Clock::now(&**host.clock.as_ref().unwrap());
    let mut all = Vec::new();
    for n in 0..24_u64 {
        let workflow = if n % 3 == 0 { "read_any" } else { "sequence" };
        let input = if n % 3 == 0 { json!({}) } else { json!({"n": 1}) };
        let name = n.to_string();
        let asked = StartRequest {
            tags: tags(&[("customer", &(n % 4).to_string()), ("n", &name)]),
            ..request(workflow, input, &[&name])
        };
        let run = host.engine.start(asked).await.unwrap().run_id;
        match n % 3 {
            0 => host.reached(&run, RunStatus::Suspended).await,
            _ => host.reached(&run, RunStatus::Completed).await,
        };
        all.push(run);
        // Two of each time.
        host.advance(Duration::from_millis(n % 2 * 10));
    }
    let host = host.restart().await;
    let shown = host.engine.run(&all[7]).await.unwrap();
    assert_eq!(shown.tags, tags(&[("customer", "3"), ("n", "7")]));

    type Wanted = fn(u64) -> bool;
    let cases: [(RunFilter, Wanted); 6] = [
        (RunFilter::default(), |_| true),
        (
            RunFilter {
                tags: tags(&[("customer", "1")]),
                ..RunFilter::default()
            },
            |n| n % 4 == 1,
        ),
        (
            RunFilter {
                tags: tags(&[("customer", "1"), ("n", "5")]),
                ..RunFilter::default()
            },
            |n| n == 5,
        ),
        (
            RunFilter {
                tags: tags(&[("customer", "1"), ("n", "6")]),
                ..RunFilter::default()
            },
            |_| false,
        ),
        (
            RunFilter {
                created_after: Some(began + 30),
                created_before: Some(began + 90),
                status: Some(RunStatus::Completed),
                ..RunFilter::default()
            },
            |n| (6..18).contains(&n) && n % 3 != 0,
        ),
        (
            RunFilter {
                created_after: Some(began + 10),
                tags: tags(&[("customer", "0")]),
                workflow: Some("read_any".into()),
                status: Some(RunStatus::Suspended),
                ..RunFilter::default()
            },
            |n| n >= 2 && n % 12 == 0,
        ),
    ];
    for (filter, wanted) in cases {
        let expected: Vec<_> = (0..24)
            .rev()
            .filter(|n| wanted(*n))
            .map(|n| all[n as usize].clone())
            .collect();
        for limit in [1, 2, 5, 100] {
            let mut listed = Vec::new();
            loop {
                let page = RunFilter {
                    after: listed.last().cloned(),
                    limit,
                    ..filter.clone()
                };
                let page = host.engine.runs(page).await.unwrap();
                if page.is_empty() {
                    break;
                }
                listed.extend(page.into_iter().map(|run| run.id));
            }
            assert_eq!(listed, expected, "{filter:?} by {limit}");
        }
    }
    host.agrees(&all[0]).await;
}
