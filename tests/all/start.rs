//! Cases A: a start admits the run and claims its hooks in one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use onemark::engine::{Engine, EngineConfig, Error, StartReceipt, StartRequest};
use onemark::ids::{HookToken, IdempotencyKey, NameError, RunId};
use onemark::journal::{Event, RunStatus};
use onemark::store::{HookState, Owner, RunFilter, TOMBSTONE_MS};
use onemark_tests::*;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const MINUTE: Duration = Duration::from_secs(60);

on_each_store![
    a01_start_admits_and_claims_in_one_step,
    a02_a_held_token_conflicts_whatever_its_owner_does,
    a03_one_of_64_clients_starts_and_the_others_are_told_which,
    a04_the_token_of_a_run_that_ended_is_free,
    a05_retention_counts_from_the_start,
    a05_a_start_asks_for_retention_of_all_its_tokens,
    a06_a_live_run_holds_its_token_beyond_the_retention,
    a08_a_conflict_claims_none_of_the_tokens,
    a09_start_and_open_conflict_with_each_other,
    a09_start_races_open,
    a10_a_hook_that_is_never_opened_is_an_idempotency_key,
    a11_a_workflow_binds_to_the_hook_of_its_start,
    a12_a_workflow_is_told_who_owns_a_token_and_goes_on,
    a13_a_run_opens_its_token_again_and_again,
    a14_the_same_id_and_request_is_the_same_run,
    a15_the_same_id_with_another_request_is_refused,
    a20_a_start_is_there_entirely_or_not_at_all,
    a20_a_run_begins_also_when_its_client_has_gone,
    a21_bad_starts_are_refused_before_any_write,
    a24_a_repeated_start_gets_its_first_receipt,
    a24_a_repeated_conflict_stays_one,
    a24_a_key_is_for_one_request,
    a24_clients_with_one_key_start_one_run,
    a24_a_start_whose_answer_was_lost_can_be_repeated,
    a24_a_deployment_in_between_changes_no_receipt,
    a25_the_declared_token_is_made_from_the_input,
    a26_nobody_sees_a_run_without_its_claim,
];

// ---- helpers ---------------------------------------------------------------------------------------

fn run_id(id: &str) -> RunId {
    RunId::new(id).unwrap()
}

fn with_id(id: &str, request: StartRequest) -> StartRequest {
    StartRequest {
        id: Some(run_id(id)),
        ..request
    }
}

fn with_key(key: &str, request: StartRequest) -> StartRequest {
    StartRequest {
        key: Some(IdempotencyKey::new(key).unwrap()),
        ..request
    }
}

/// The first hook's token stays claimed for at least this long.
fn retained(length: Duration, mut request: StartRequest) -> StartRequest {
    request.hooks[0].min_retention_ms = length.as_millis() as u64;
    request
}

/// Who holds which token, as the refused client is told.
fn conflict(answer: Result<StartReceipt, Error>) -> (String, Owner) {
    match answer {
        Err(Error::HookConflict { token, owner }) => (token.to_string(), owner),
        other => panic!("no conflict: {other:?}"),
    }
}

fn owner(run: &RunId, workflow: &str, status: RunStatus) -> Owner {
    Owner {
        run: run.clone(),
        workflow: workflow.into(),
        status,
    }
}

async fn must_conflict(host: &TestHost, token: &str, expected: &Owner) {
    let refused = host.try_start("read_any", json!({}), &[token]).await;
    assert_eq!(conflict(refused), (token.to_owned(), expected.clone()));
}

async fn is_unknown(host: &TestHost, token: &str) {
    let hook = host.hook(token).await;
    assert!(matches!(hook, Err(Error::HookNotFound(_))), "{hook:?}");
}

/// All at the same moment, each from its own client.
async fn together(engine: &Engine, requests: Vec<StartRequest>) -> Vec<Result<StartReceipt, Error>> {
    let gate = Arc::new(Barrier::new(requests.len()));
    let mut clients = JoinSet::new();
    for request in requests {
        let (engine, gate) = (engine.clone(), gate.clone());
        clients.spawn(async move {
            gate.wait().await;
            engine.start(request).await
        });
    }
    clients.join_all().await
}

/// The answer, if the future has one when it was looked at that many times; it is dropped then.
async fn given_up<F: Future>(future: F, looks: usize) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = looks;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until this hook of the run is the one that holds the token.
async fn opened(host: &TestHost, token: &str, run: &RunId, number: u32) {
    host.until(run, |_| true).await;
    loop {
        match host.hook(token).await {
            Ok(hook) if hook.run_id == *run && hook.hook == number => return,
            Ok(_) | Err(Error::HookNotFound(_)) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

// ---- one step --------------------------------------------------------------------------------------

async fn a01_start_admits_and_claims_in_one_step(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    // From here on runs are admitted and nothing carries them on: what a start alone leaves is seen.
    host.engine.shutdown().await;
    let asked = retained(
        10 * MINUTE,
        request("read_any", json!({}), &["order:1", "more:1"]),
    );
    let receipt = host.engine.start(asked).await.unwrap();
    let run = receipt.run_id.clone();
    assert!(receipt.started);

    let everything = host.everything().await;
    let [(info, journal, hooks)] = &everything[..] else {
        panic!("{everything:?}")
    };
    assert_eq!((&info.id, info.status), (&run, RunStatus::Pending));
    assert_eq!(info.tokens, [token("order:1"), token("more:1")]);
    let [entry] = &journal[..] else {
        panic!("{journal:?}")
    };
    let Event::Started(started) = &entry.event else {
        panic!("{entry:?}")
    };
    assert_eq!(started.workflow, "read_any");
    let claims: Vec<_> = started
        .hooks
        .iter()
        .map(|hook| (hook.token.as_str(), hook.retain_ms))
        .collect();
    assert_eq!(claims, [("order:1", 600_000), ("more:1", 0)]);
    assert_eq!(entry.body.as_ref().unwrap().text_or_null(), "{}");
    for (hook, number) in hooks.iter().zip(0..) {
        assert_eq!(
            (&hook.run_id, hook.hook, hook.state),
            (&run, number, HookState::Open)
        );
        assert_eq!(hook.claimed_at, entry.at);
        assert_eq!(host.hook(hook.token.as_str()).await.unwrap(), *hook);
    }
    must_conflict(&host, "order:1", &owner(&run, "read_any", RunStatus::Pending)).await;

    let host = host.restart().await;
    host.deliver("order:1", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([]));
    host.agrees(&run).await;
}

async fn a20_a_start_is_there_entirely_or_not_at_all(kind: StoreKind) {
    let mut host = TestHost::on(kind).await;
    let (mut there, mut not) = (0, 0);
    for round in 0..16 {
        let name = format!("round-{round}");
        let asked = with_id(&name, request("sequence", json!({"n": 3}), &[&name]));
        // Each round the host ends a little later: before the start was looked at, at each point where it
        // waits for the store, and then while the run is at work.
        let answer = given_up(host.engine.start(asked), round).await;
        for _ in 0..round * round {
            tokio::task::yield_now().await;
        }
        host = host.restart().await;
        match host.engine.run(&run_id(&name)).await {
            Ok(info) => {
                there += 1;
                assert_eq!(info.tokens, [token(&name)]);
                assert_eq!(host.hook(&name).await.unwrap().run_id, info.id);
                assert_eq!(host.output(&info.id).await, json!(3));
                let events = host.events(&info.id).await;
                assert_eq!(events.iter().filter(|name| **name == "step_completed").count(), 3);
                host.agrees(&info.id).await;
            }
            Err(Error::RunNotFound(_)) => {
                not += 1;
                assert!(answer.is_none(), "an acknowledged run is gone");
                is_unknown(&host, &name).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(
        there > 0 && not > 0,
        "{there} starts were committed, {not} were not"
    );
}

/// Nobody asks again, and nothing else makes the host look for runs.
async fn a20_a_run_begins_also_when_its_client_has_gone(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for looks in 1..8 {
        let name = format!("gone-{looks}");
        let asked = with_id(&name, request("read_any", json!({}), &[&name]));
        let _gone = given_up(host.engine.start(asked), looks).await;
        let admitted = async {
            while host.engine.run(&run_id(&name)).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(MINUTE, admitted)
            .await
            .expect("the run is admitted");
        host.reached(&run_id(&name), RunStatus::Suspended).await;
        let end = onemark::engine::DeliverRequest {
            token: token(&name),
            payload: "\"end\"".into(),
            key: None,
        };
        let _gone = given_up(host.engine.deliver(end), looks).await;
        assert_eq!(host.output(&run_id(&name)).await, json!([]));
    }
}

async fn a26_nobody_sees_a_run_without_its_claim(kind: StoreKind) {
    const CLIENTS: usize = 64;
    const ALL: usize = CLIENTS * 6;
    let host = Arc::new(TestHost::on(kind).await);
    let done = Arc::new(AtomicBool::new(false));
    let gate = Arc::new(Barrier::new(CLIENTS + 3));
    let mut readers = JoinSet::new();
    for reader in 0..3 {
        let (host, done, gate) = (host.clone(), done.clone(), gate.clone());
        readers.spawn(async move {
            gate.wait().await;
            let mut between = 0;
            for look in 0.. {
                let last = done.load(Ordering::Acquire);
                // All over the tokens, so that each look meets some that are being claimed.
                let some = (0..16).map(|n| (look * 16 + n) * (2 * reader + 5) % ALL);
                let runs = look_at_claims(&host, some).await;
                if kind == StoreKind::Sqlite {
                    look_at_the_file(host.folder());
                }
                if last {
                    assert_eq!(runs, ALL);
                    break;
                }
                between += usize::from((1..ALL).contains(&runs));
                tokio::task::yield_now().await;
            }
            between
        });
    }
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (engine, gate) = (host.engine.clone(), gate.clone());
        clients.spawn(async move {
            gate.wait().await;
            for n in (client..ALL).step_by(CLIENTS) {
                engine
                    .start(request("keyed_only", json!({"id": n.to_string()}), &[]))
                    .await
                    .unwrap();
                tokio::task::yield_now().await;
            }
        });
    }
    clients.join_all().await;
    done.store(true, Ordering::Release);
    let between: usize = readers.join_all().await.into_iter().sum();
    assert!(between > 0, "nobody looked in the middle");
}

/// Every run that is seen has its claim, and every claim its run. How many runs there are.
async fn look_at_claims(host: &TestHost, some: impl Iterator<Item = usize>) -> usize {
    let all = RunFilter {
        limit: usize::MAX,
        ..RunFilter::default()
    };
    let runs = host.engine.runs(all).await.unwrap();
    for run in runs.iter().take(4) {
        let [name] = &run.tokens[..] else {
            panic!("{run:?}")
        };
        let hook = host.engine.hook(name).await.expect("a run has its claim");
        assert_eq!(hook.run_id, run.id);
        assert_eq!(host.events(&run.id).await[0], "started");
    }
    for n in some {
        let name = format!("key:{n}");
        match host.hook(&name).await {
            Ok(hook) => {
                let run = host.engine.run(&hook.run_id).await.expect("a claim has its run");
                assert_eq!(run.tokens, [token(&name)]);
            }
            Err(Error::HookNotFound(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    runs.len()
}

/// The same, as whoever reads the database file sees it: in one statement, whatever the host says.
fn look_at_the_file(folder: &std::path::Path) {
    let file = rusqlite::Connection::open(folder.join("onemark.db")).unwrap();
    let counts: [u64; 4] = file
        .query_row(
            "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM hooks),
                 (SELECT count(*) FROM claims), (SELECT count(*) FROM entries WHERE seq = 0)",
            [],
            |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]),
        )
        .unwrap();
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
}

// ---- conflicts -------------------------------------------------------------------------------------

async fn a02_a_held_token_conflicts_whatever_its_owner_does(kind: StoreKind) {
    let marks = Marks::start().await;
    marks.hold("held");
    let host = TestHost::with(kind, EngineConfig::default(), None, &[marks.authority()]).await;
    let suspended = host.start_with("read_any", json!({}), &["suspended"]).await;
    host.reached(&suspended, RunStatus::Suspended).await;
    let closed = host
        .start_with("ends_hook", json!({"dispose": false}), &["closed", "go"])
        .await;
    host.deliver("go", json!(1)).await.unwrap();
    host.until(&closed, |info| {
        info.status == RunStatus::Suspended && info.entries > 3
    })
    .await;
    assert_eq!(host.hook("closed").await.unwrap().state, HookState::Closed);
    let blocked = host
        .start_with("broken", json!({"how": "panic"}), &["blocked"])
        .await;
    assert_eq!(host.ended(&blocked).await.status, RunStatus::Blocked);
    let input = json!({"marks": marks.url(), "names": ["held"], "token": "running"});
    let running = host.start("leave_marks", input).await;
    marks.reached("held", 1).await;
    host.reached(&running, RunStatus::Running).await;
    // From here on nothing is carried on, so that a run can be caught before it executed.
    host.engine.shutdown().await;
    let pending = host.start_with("read_any", json!({}), &["pending"]).await;

    let before = host.everything().await;
    assert_eq!(before.len(), 5);
    for (name, owner) in [
        ("pending", owner(&pending, "read_any", RunStatus::Pending)),
        ("running", owner(&running, "leave_marks", RunStatus::Running)),
        ("suspended", owner(&suspended, "read_any", RunStatus::Suspended)),
        ("closed", owner(&closed, "ends_hook", RunStatus::Suspended)),
        ("blocked", owner(&blocked, "broken", RunStatus::Blocked)),
    ] {
        let asked = with_id("refused", request("sequence", json!({"n": 1}), &[name]));
        assert_eq!(conflict(host.engine.start(asked).await), (name.to_owned(), owner));
        let refused = host.engine.run(&run_id("refused")).await;
        assert!(matches!(refused, Err(Error::RunNotFound(_))), "{refused:?}");
        assert_eq!(host.everything().await, before);
    }
}

async fn a03_one_of_64_clients_starts_and_the_others_are_told_which(kind: StoreKind) {
    const CLIENTS: usize = 64;
    const ROUNDS: usize = 200;
    let host = TestHost::on(kind).await;
    for round in 0..ROUNDS {
        // Retained: the winner may have ended when the last client asks.
        let name = format!("key:{round}");
        let input = json!({"id": round.to_string()});
        let asked = retained(60 * MINUTE, request("keyed_only", input, &[&name]));
        let answers = together(&host.engine, vec![asked; CLIENTS]).await;
        let (started, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let [Ok(receipt)] = &started[..] else {
            panic!("round {round}: {started:?}")
        };
        assert!(receipt.started);
        assert_eq!(refused.len(), CLIENTS - 1);
        for answer in refused {
            let (held, owner) = conflict(answer);
            assert_eq!((held, owner.run), (name.clone(), receipt.run_id.clone()));
        }
    }
    let everything = host.everything().await;
    assert_eq!(everything.len(), ROUNDS);
    for (run, ..) in everything {
        assert_eq!(host.ended(&run.id).await.status, RunStatus::Completed);
        assert_eq!(host.events(&run.id).await, ["started", "completed"]);
    }
}

async fn a08_a_conflict_claims_none_of_the_tokens(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let first = host.start_with("read_any", json!({}), &["held"]).await;
    host.reached(&first, RunStatus::Suspended).await;
    let second = host.start_with("read_any", json!({}), &["also held"]).await;
    host.reached(&second, RunStatus::Suspended).await;
    let before = host.everything().await;
    for (tokens, held, owner) in [
        (["held", "a", "b"], "held", &first),
        (["a", "held", "b"], "held", &first),
        (["a", "b", "held"], "held", &first),
        // Of several, the first in order.
        (["a", "also held", "held"], "also held", &second),
    ] {
        let (named, told) = conflict(host.try_start("read_any", json!({}), &tokens).await);
        assert_eq!((named.as_str(), &told.run), (held, owner));
        is_unknown(&host, "a").await;
        is_unknown(&host, "b").await;
        assert_eq!(host.everything().await, before);
    }
    host.start_with("read_any", json!({}), &["a", "b"]).await;
}

async fn a09_start_and_open_conflict_with_each_other(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    // Claimed inside a run: a start conflicts.
    let opener = host.start("opens", json!({"token": "inside"})).await;
    host.until(&opener, |info| info.status == RunStatus::Suspended)
        .await;
    assert_eq!(host.events(&opener).await, ["started", "hook_claimed"]);
    let before = host.everything().await;
    must_conflict(&host, "inside", &owner(&opener, "opens", RunStatus::Suspended)).await;
    assert_eq!(host.everything().await, before);

    // Claimed by a start: opening conflicts.
    let starter = host.start_with("read_any", json!({}), &["outside"]).await;
    let other = host.start("opens", json!({"token": "outside"})).await;
    assert_eq!(host.output(&other).await["owner"], json!(starter));
    assert_eq!(host.events(&other).await[..2], ["started", "hook_conflicted"]);
    assert_eq!(host.hook("outside").await.unwrap().run_id, starter);

    // Free again, for either way.
    host.deliver("inside", json!(7)).await.unwrap();
    assert_eq!(host.output(&opener).await, json!({"payload": 7}));
    let next = host.start_with("read_any", json!({}), &["inside"]).await;
    host.deliver("inside", json!("end")).await.unwrap();
    host.deliver("outside", json!("end")).await.unwrap();
    for run in [opener, starter, other, next] {
        host.ended(&run).await;
        host.agrees(&run).await;
    }
}

async fn a09_start_races_open(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for round in 0..30 {
        let name = format!("race:{round}");
        let opener = host.start("opens", json!({ "token": name })).await;
        // Now at about the time at which the opener gets there, now before.
        for _ in 0..round * 20 {
            tokio::task::yield_now().await;
        }
        match host.try_start("read_any", json!({}), &[&name]).await {
            Ok(receipt) => {
                assert_eq!(host.output(&opener).await["owner"], json!(receipt.run_id));
                assert_eq!(host.hook(&name).await.unwrap().run_id, receipt.run_id);
                host.deliver(&name, json!("end")).await.unwrap();
                host.ended(&receipt.run_id).await;
            }
            refused => {
                let (_, owner) = conflict(refused);
                assert_eq!(owner.run, opener);
                host.deliver(&name, json!(round)).await.unwrap();
                assert_eq!(host.output(&opener).await, json!({ "payload": round }));
            }
        }
        host.agrees(&opener).await;
    }
}

// ---- when a token is free --------------------------------------------------------------------------

async fn a04_the_token_of_a_run_that_ended_is_free(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for (workflow, input, status) in [
        ("sequence", json!({"n": 2}), RunStatus::Completed),
        ("fails", json!({"message": "as asked"}), RunStatus::Failed),
    ] {
        let first = host.start_with(workflow, input.clone(), &["free"]).await;
        assert_eq!(host.ended(&first).await.status, status);
        assert_eq!(host.hook("free").await.unwrap().state, HookState::Freed);
        let next = host.start_with(workflow, input, &["free"]).await;
        assert_ne!(next, first);
        assert_eq!(host.hook("free").await.unwrap().run_id, next);
        assert_eq!(host.ended(&next).await.status, status);
        host.agrees(&first).await;
        host.agrees(&next).await;
    }
}

async fn a05_retention_counts_from_the_start(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let asked = retained(10 * MINUTE, request("read_any", json!({}), &["order"]));
    let run = host.engine.start(asked).await.unwrap().run_id;
    let failing = request("fails", json!({"message": "as asked"}), &["failed"]);
    let failed = host
        .engine
        .start(retained(10 * MINUTE, failing))
        .await
        .unwrap()
        .run_id;
    assert_eq!(host.ended(&failed).await.status, RunStatus::Failed);
    host.advance(6 * MINUTE);
    host.deliver("order", json!("end")).await.unwrap();
    assert_eq!(host.output(&run).await, json!([]));

    // Six minutes of the ten are over when it ends.
    host.advance(4 * MINUTE - Duration::from_millis(1));
    let before = host.everything().await;
    must_conflict(&host, "order", &owner(&run, "read_any", RunStatus::Completed)).await;
    must_conflict(&host, "failed", &owner(&failed, "fails", RunStatus::Failed)).await;
    assert_eq!(host.hook("order").await.unwrap().state, HookState::Retained);
    assert_eq!(host.everything().await, before);

    host.advance(Duration::from_millis(1));
    for name in ["order", "failed"] {
        let next = host.start_with("sequence", json!({"n": 1}), &[name]).await;
        host.output(&next).await;
    }
    host.agrees(&run).await;
    host.agrees(&failed).await;
}

async fn a05_a_start_asks_for_retention_of_all_its_tokens(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let kept = |asked: StartRequest, length: Duration| StartRequest {
        min_retention_ms: length.as_millis() as u64,
        ..asked
    };
    let claimed = async |asked: StartRequest| {
        let run = host.engine.start(asked).await.unwrap().run_id;
        let hooks = host.engine.hooks_of(&run).await.unwrap().into_iter();
        let kept = hooks.map(|hook| (hook.token.to_string(), hook.retained_until - hook.claimed_at));
        kept.collect::<Vec<_>>()
    };
    let minutes = |n: u32| (n * MINUTE).as_millis() as u64;
    let of = |name: &str, n: u32| (name.to_owned(), minutes(n));

    // The declared one is kept for nothing, and for an hour.
    let asked = request("keyed_only", json!({"id": "1"}), &["beside"]);
    let claims = claimed(kept(asked, 10 * MINUTE)).await;
    assert_eq!(claims, [of("key:1", 10), of("beside", 10)]);
    let asked = retained(20 * MINUTE, request("follow", json!({"id": "2"}), &["longer"]));
    let claims = claimed(kept(asked, 10 * MINUTE)).await;
    assert_eq!(claims, [of("order:2", 60), of("longer", 20)]);
    let asked = request("follow", json!({"id": "3"}), &[]);
    let claims = claimed(kept(asked, 90 * MINUTE)).await;
    assert_eq!(claims, [of("order:3", 90)]);

    let before = host.everything().await.len();
    let asked = request("read_any", json!({}), &[]);
    let refused = host.engine.start(kept(asked, MINUTE)).await;
    let says = |what: &str| what.contains("no token to keep") && what.contains("`read_any`");
    assert!(
        matches!(&refused, Err(Error::InvalidRequest(what)) if says(what)),
        "{refused:?}"
    );
    let asked = request("follow", json!({"id": "4"}), &[]);
    let refused = host.engine.start(kept(asked, 367 * 24 * 60 * MINUTE)).await;
    assert!(
        matches!(refused, Err(Error::RetentionTooLong { .. })),
        "{refused:?}"
    );
    assert_eq!(host.everything().await.len(), before);

    // It is part of what is asked for.
    let asked = request("follow", json!({"id": "5"}), &[]);
    let asked = kept(with_id("five", asked), MINUTE);
    host.engine.start(asked.clone()).await.unwrap();
    assert!(!host.engine.start(asked.clone()).await.unwrap().started);
    let other = host.engine.start(kept(asked, 2 * MINUTE)).await;
    assert!(matches!(other, Err(Error::RunIdConflict(_))), "{other:?}");
}

async fn a06_a_live_run_holds_its_token_beyond_the_retention(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let asked = retained(10 * MINUTE, request("read_any", json!({}), &["order"]));
    let run = host.engine.start(asked).await.unwrap().run_id;
    host.reached(&run, RunStatus::Suspended).await;
    host.advance(60 * MINUTE);
    must_conflict(&host, "order", &owner(&run, "read_any", RunStatus::Suspended)).await;
    assert_eq!(host.hook("order").await.unwrap().state, HookState::Open);
    host.deliver("order", json!("end")).await.unwrap();
    host.output(&run).await;
    host.agrees(&run).await;
    let next = host.start_with("read_any", json!({}), &["order"]).await;
    assert_eq!(host.hook("order").await.unwrap().run_id, next);
}

async fn a10_a_hook_that_is_never_opened_is_an_idempotency_key(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let asked = retained(60 * MINUTE, request("keyed_only", json!({"id": "7"}), &["key:7"]));
    let run = host.engine.start(asked.clone()).await.unwrap().run_id;
    assert_eq!(host.output(&run).await, json!("7"));
    assert_eq!(host.events(&run).await, ["started", "completed"]);
    let again = conflict(host.engine.start(asked).await);
    assert_eq!(
        again,
        ("key:7".into(), owner(&run, "keyed_only", RunStatus::Completed))
    );
    assert_eq!(host.everything().await.len(), 1);
    host.agrees(&run).await;
}

// ---- what the workflow sees of it ------------------------------------------------------------------

async fn a11_a_workflow_binds_to_the_hook_of_its_start(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    // Delivered before any guest code ran, and after.
    host.engine.shutdown().await;
    let opens = host.start_with("opens", json!({"token": "own"}), &["own"]).await;
    let reads = host.start_with("read_any", json!({}), &["many"]).await;
    host.deliver("own", json!("first")).await.unwrap();
    for n in 0..3 {
        host.deliver("many", json!(n)).await.unwrap();
    }
    let host = host.restart().await;
    assert_eq!(host.output(&opens).await, json!({"payload": "first"}));
    let bound = ["started", "payload_received", "payloads_taken", "completed"];
    assert_eq!(host.events(&opens).await, bound);
    assert_eq!(host.engine.hooks_of(&opens).await.unwrap().len(), 1);

    host.reached(&reads, RunStatus::Suspended).await;
    for payload in [json!(3), json!("end")] {
        host.deliver("many", payload).await.unwrap();
    }
    assert_eq!(host.output(&reads).await, json!([0, 1, 2, 3]));
    assert_eq!(host.engine.hooks_of(&reads).await.unwrap().len(), 1);
    host.agrees(&opens).await;
    host.agrees(&reads).await;
}

async fn a12_a_workflow_is_told_who_owns_a_token_and_goes_on(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let owner = host.start_with("read_any", json!({}), &["taken"]).await;
    host.reached(&owner, RunStatus::Suspended).await;
    let run = host.start("opens", json!({"token": "taken"})).await;
    let output = host.output(&run).await;
    assert_eq!(output["owner"], json!(owner));
    let awaited = output["awaited"]
        .as_str()
        .expect("awaiting a payload is an error");
    assert!(
        awaited.contains("taken") && awaited.contains(owner.as_str()),
        "{awaited}"
    );

    let journal = host.journal(&run).await;
    let told: Value = serde_json::from_str(journal[1].body.as_ref().unwrap().text_or_null()).unwrap();
    let as_it_was = json!({"token": "taken", "run_id": owner, "workflow": "read_any", "status": "suspended"});
    assert_eq!((journal[1].event.name(), told), ("hook_conflicted", as_it_was));
    let went_on = [
        "started",
        "hook_conflicted",
        "step_scheduled",
        "attempt_started",
        "step_completed",
        "completed",
    ];
    assert_eq!(host.events(&run).await, went_on);
    assert_eq!(host.engine.hooks_of(&run).await.unwrap(), []);

    // The owner has what is delivered, and its end changes nothing in what the other was told.
    host.deliver("taken", json!(1)).await.unwrap();
    host.deliver("taken", json!("end")).await.unwrap();
    assert_eq!(host.output(&owner).await, json!([1]));
    host.agrees(&run).await;
    host.agrees(&owner).await;
}

async fn a13_a_run_opens_its_token_again_and_again(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for claimed_by_start in [false, true] {
        let tokens: &[&str] = if claimed_by_start { &["again"] } else { &[] };
        let run = host
            .start_with("reopens", json!({"token": "again", "rounds": 4}), tokens)
            .await;
        for round in 0..4 {
            opened(&host, "again", &run, round).await;
            for handle in ["one", "same"] {
                host.deliver("again", json!(format!("{handle} {round}")))
                    .await
                    .unwrap();
            }
        }
        let seen: Vec<_> = (0..4)
            .flat_map(|round| {
                [
                    json!(true),
                    json!(format!("one {round}")),
                    json!(format!("same {round}")),
                ]
            })
            .collect();
        assert_eq!(host.output(&run).await, json!(seen));
        let events = host.events(&run).await;
        let count = |name| events.iter().filter(|event| **event == name).count();
        let claimed_inside = if claimed_by_start { 3 } else { 4 };
        assert_eq!(
            (count("hook_claimed"), count("hook_disposed")),
            (claimed_inside, 4),
            "{events:?}"
        );
        assert_eq!(count("hook_conflicted"), 0);
        assert_eq!(host.hook("again").await.unwrap().state, HookState::Freed);
        host.agrees(&run).await;
    }
}

// ---- the same request again ------------------------------------------------------------------------

async fn a14_the_same_id_and_request_is_the_same_run(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let input = json!({"kind": "busy", "good_from_attempt": 1});
    let asked = with_id("mine", request("troubled", input, &["order"]));
    let same = StartReceipt {
        delivered: None,
        replaced: Vec::new(),
        attached: None,
        run_id: run_id("mine"),
        started: false,
    };
    let first = host.engine.start(asked.clone()).await.unwrap();
    assert_eq!(
        first,
        StartReceipt {
            started: true,
            ..same.clone()
        }
    );
    assert_eq!(host.output(&first.run_id).await, json!(1));
    let before = host.everything().await;
    assert_eq!(host.engine.start(asked.clone()).await.unwrap(), same);
    // What JSON says counts, not how it is spelled.
    let spelled = StartRequest {
        input: r#" { "good_from_attempt":1, "kind":"busy" } "#.into(),
        ..asked.clone()
    };
    assert_eq!(host.engine.start(spelled).await.unwrap(), same);
    assert_eq!(host.everything().await, before);

    // Also while the run is live and holds the token itself, and from many clients.
    let live = with_id("live", request("read_any", json!({}), &["live"]));
    let answers = together(&host.engine, vec![live.clone(); 16]).await;
    let started = answers.iter().filter(|answer| answer.as_ref().unwrap().started);
    assert_eq!(started.count(), 1);
    let host = host.restart().await;
    host.reached(&run_id("live"), RunStatus::Suspended).await;
    let before = host.everything().await;
    assert_eq!(before.len(), 2);
    for asked in [asked, live] {
        assert!(!host.engine.start(asked).await.unwrap().started);
    }
    assert_eq!(host.everything().await, before);
    host.agrees(&first.run_id).await;
}

async fn a15_the_same_id_with_another_request_is_refused(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let input = json!({"token": "inner"});
    let asked = with_id("mine", request("opens", input.clone(), &["order"]));
    let run = host.engine.start(asked.clone()).await.unwrap().run_id;
    host.reached(&run, RunStatus::Suspended).await;
    let mut described = asked.clone();
    described.hooks[0].metadata = Some(json!({"by": "somebody"}));
    let others = [
        with_id("mine", request("opens_for_numbers", input.clone(), &["order"])),
        with_id("mine", request("opens", json!({"token": "another"}), &["order"])),
        with_id("mine", request("opens", input.clone(), &[])),
        with_id("mine", request("opens", input.clone(), &["another"])),
        with_id("mine", request("opens", input, &["order", "another"])),
        retained(MINUTE, asked),
        described,
    ];
    let refused_each = async |host: &TestHost| {
        let before = host.everything().await;
        for other in others.clone() {
            let answer = host.engine.start(other).await;
            assert!(
                matches!(&answer, Err(Error::RunIdConflict(id)) if *id == run),
                "{answer:?}"
            );
        }
        is_unknown(host, "another").await;
        assert_eq!(host.everything().await, before);
    };
    refused_each(&host).await;
    host.deliver("inner", json!(1)).await.unwrap();
    host.output(&run).await;
    refused_each(&host).await;
    host.agrees(&run).await;
}

async fn a24_a_repeated_start_gets_its_first_receipt(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let asked = with_key("k", request("read_any", json!({}), &["order"]));
    let first = host.engine.start(asked.clone()).await.unwrap();
    assert!(first.started);
    host.reached(&first.run_id, RunStatus::Suspended).await;
    let before = host.everything().await;
    assert_eq!(host.engine.start(asked.clone()).await.unwrap(), first);
    let host = host.restart().await;
    assert_eq!(host.engine.start(asked.clone()).await.unwrap(), first);
    assert_eq!(host.everything().await, before);

    // After its end, although its token is free; and for as long as receipts are kept.
    host.deliver("order", json!("end")).await.unwrap();
    host.output(&first.run_id).await;
    let before = host.everything().await;
    assert_eq!(host.engine.start(asked.clone()).await.unwrap(), first);
    host.advance(Duration::from_millis(TOMBSTONE_MS - 1));
    let host = host.restart().await;
    assert_eq!(host.engine.start(asked).await.unwrap(), first);
    assert_eq!(host.everything().await, before);
    host.agrees(&first.run_id).await;
}

async fn a24_a_repeated_conflict_stays_one(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start_with("read_any", json!({}), &["order"]).await;
    host.reached(&run, RunStatus::Suspended).await;
    let asked = with_key("k", request("sequence", json!({"n": 1}), &["free", "order"]));
    let first = conflict(host.engine.start(asked.clone()).await);
    assert_eq!(
        first,
        ("order".into(), owner(&run, "read_any", RunStatus::Suspended))
    );
    assert_eq!(conflict(host.engine.start(asked.clone()).await), first);

    host.deliver("order", json!("end")).await.unwrap();
    host.output(&run).await;
    let before = host.everything().await;
    assert_eq!(conflict(host.engine.start(asked.clone()).await), first);
    let host = host.restart().await;
    assert_eq!(conflict(host.engine.start(asked.clone()).await), first);
    assert_eq!(host.everything().await, before);
    // Only the key remembers it.
    let next = host.engine.start(with_key("another", asked)).await.unwrap();
    assert_eq!(host.output(&next.run_id).await, json!(0));
}

async fn a24_a_key_is_for_one_request(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let asked = with_key("k", request("sequence", json!({"n": 2}), &["order"]));
    let first = host.engine.start(asked.clone()).await.unwrap();
    host.output(&first.run_id).await;
    let before = host.everything().await;
    for other in [
        request("fanout", json!({"n": 2}), &["order"]),
        request("sequence", json!({"n": 3}), &["order"]),
        request("sequence", json!({"n": 2}), &["another"]),
        request("sequence", json!({"n": 2}), &[]),
        with_id("named", request("sequence", json!({"n": 2}), &["order"])),
    ] {
        let answer = host.engine.start(with_key("k", other)).await;
        assert!(matches!(answer, Err(Error::KeyConflict)), "{answer:?}");
    }
    is_unknown(&host, "another").await;
    assert_eq!(host.everything().await, before);
    assert_eq!(host.engine.start(asked).await.unwrap(), first);
}

async fn a24_clients_with_one_key_start_one_run(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for round in 0..20 {
        let key = format!("k{round}");
        let asked = with_key(&key, request("sequence", json!({"n": 1}), &[]));
        let answers = together(&host.engine, vec![asked; 16]).await;
        let first = answers[0].as_ref().unwrap();
        for answer in &answers {
            assert_eq!(answer.as_ref().unwrap(), first);
        }
        assert_eq!(host.everything().await.len(), round + 1);
    }
}

async fn a24_a_start_whose_answer_was_lost_can_be_repeated(kind: StoreKind) {
    let mut host = TestHost::on(kind).await;
    for round in 0..10 {
        let name = format!("order:{round}");
        let asked = with_key(&name, request("sequence", json!({"n": 2}), &[&name]));
        let _lost = given_up(host.engine.start(asked.clone()), round / 2).await;
        if round % 2 == 1 {
            host = host.restart().await;
        }
        let receipt = host.engine.start(asked).await.unwrap();
        assert!(receipt.started);
        assert_eq!(host.output(&receipt.run_id).await, json!(1));
        assert_eq!(host.everything().await.len(), round + 1);
        assert_eq!(host.hook(&name).await.unwrap().run_id, receipt.run_id);
    }
}

async fn a24_a_deployment_in_between_changes_no_receipt(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let asked = with_id("mine", request("follow", json!({"id": "1"}), &[]));
    let (by_id, keyed) = (asked.clone(), with_key("k", asked));
    let again = (keyed.clone(), by_id.clone());
    let first = host.engine.start(keyed.clone()).await.unwrap();
    host.engine
        .deploy("programs", with_another_token())
        .await
        .unwrap();
    assert_eq!(host.engine.start(keyed).await.unwrap(), first);
    assert_eq!(
        host.engine.start(by_id).await.unwrap(),
        StartReceipt {
            started: false,
            ..first.clone()
        }
    );
    // What starts now has the new token.
    host.start("follow", json!({"id": "2"})).await;
    host.hook("ordre:2").await.unwrap();
    assert_eq!(host.everything().await.len(), 2);
    // Two components offer the workflow: nobody can start it by this name, and what was started stays so.
    host.engine.deploy("second", programs()).await.unwrap();
    let refused = host.try_start("follow", json!({"id": "3"}), &[]).await;
    assert!(
        matches!(refused, Err(Error::AmbiguousWorkflow { .. })),
        "{refused:?}"
    );
    assert_eq!(host.engine.start(again.0).await.unwrap(), first);
    let started = host.engine.start(again.1).await.unwrap();
    assert_eq!((started.run_id, started.started), (first.run_id, false));
}

/// A repeated start of a run that rests finds the run as it is, not as a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a24_a_repeated_start_of_a_resting_run_changes_nothing() {
    let config = EngineConfig {
        idle: Duration::ZERO,
        ..EngineConfig::default()
    };
    let host = TestHost::with(StoreKind::Sqlite, config, None, &[]).await;
    let keyed = with_key("k", request("read_any", json!({}), &["resting"]));
    let first = host.engine.start(keyed.clone()).await.unwrap();
    host.deliver("resting", json!(1)).await.unwrap();
    host.reached(&first.run_id, RunStatus::Suspended).await;
    for _ in 0..3 {
        host.engine.idle().await;
        assert_eq!(host.engine.start(keyed.clone()).await.unwrap(), first);
    }
    host.deliver("resting", json!("end")).await.unwrap();
    assert_eq!(host.output(&first.run_id).await, json!([1]));
    host.agrees(&first.run_id).await;
}

/// The programs, as if `follow` declared another token.
fn with_another_token() -> Arc<[u8]> {
    let (from, to) = (b"order:{id}", b"ordre:{id}");
    let mut bytes = programs().to_vec();
    let mut changed = 0;
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            changed += 1;
        }
    }
    assert!(changed > 0, "the component holds the token that it declares");
    bytes.into()
}

// ---- bad and declared ------------------------------------------------------------------------------

type IsExpected = fn(&Error) -> bool;

async fn a21_bad_starts_are_refused_before_any_write(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let limit = EngineConfig::default().limits.max_retention_ms;
    let text = |input: &str| StartRequest {
        input: input.into(),
        ..request("sequence", json!({}), &["order"])
    };
    let marks = |token: &str| {
        request(
            "leave_marks",
            json!({"marks": "", "names": [], "token": token}),
            &["order"],
        )
    };
    let long = "x".repeat(256);
    let too_long = retained(Duration::from_millis(limit + 1), text(r#"{"n":1}"#));
    let mut described = text(r#"{"n":1}"#);
    described.hooks[0].metadata = Some(json!("m".repeat(16 << 10)));
    let large = request("fails", json!({"message": "x".repeat(1 << 20)}), &["order"]);
    let invalid: IsExpected = |error| matches!(error, Error::InvalidInput { .. });
    let unknown: IsExpected = |error| matches!(error, Error::UnknownWorkflow(_));
    let bad: Vec<(StartRequest, IsExpected)> = vec![
        (request("nobody", json!({}), &["order"]), unknown),
        (request("others/sequence", json!({"n": 1}), &["order"]), unknown),
        (text(""), invalid),
        (text("{"), invalid),
        (text("[1]"), invalid),
        (text("{}"), invalid),
        (text(r#"{"n":"five"}"#), invalid),
        (text(r#"{"n":-1}"#), invalid),
        (text(r#"{"n":1.5}"#), invalid),
        (text(&format!("{}{}", "[".repeat(200), "]".repeat(200))), invalid),
        (marks(""), invalid),
        (marks(&long), invalid),
        (large, |error| {
            matches!(error, Error::TooLarge { limit: 1_048_576, .. })
        }),
        (too_long, |error| matches!(error, Error::RetentionTooLong { .. })),
        (described, |error| {
            matches!(error, Error::TooLarge { limit: 16_384, .. })
        }),
        (
            request("sequence", json!({"n": 1}), &["order", "order"]),
            |error| matches!(error, Error::InvalidRequest(_)),
        ),
    ];
    for (asked, expected) in bad {
        let shown = format!("{} {:.80}", asked.workflow, asked.input);
        let answer = host.engine.start(with_id("bad", with_key("k", asked))).await;
        let error = answer.expect_err(&shown);
        assert!(expected(&error), "{shown}: {error}");
        assert_eq!(host.everything().await, []);
        is_unknown(&host, "order").await;
    }
    assert_eq!(HookToken::new(""), Err(NameError::Empty { what: "hook token" }));
    assert_eq!(
        HookToken::new(&long),
        Err(NameError::TooLong {
            what: "hook token",
            bytes: 256
        })
    );

    // Nothing of them is left: id, key and token are as good as new, also at the limits.
    let good = retained(
        Duration::from_millis(limit),
        request("sequence", json!({"n": 1}), &[&long[1..], "order"]),
    );
    let receipt = host
        .engine
        .start(with_id("bad", with_key("k", good)))
        .await
        .unwrap();
    assert!(receipt.started);
    assert_eq!(host.output(&receipt.run_id).await, json!(0));
}

async fn a25_the_declared_token_is_made_from_the_input(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start("follow", json!({"id": "42"})).await;
    let hook = host.hook("order:42").await.unwrap();
    assert_eq!((&hook.run_id, hook.hook, hook.state), (&run, 0, HookState::Open));
    assert_eq!(hook.retained_until, hook.claimed_at + 60 * 60 * 1000);
    assert_eq!(host.engine.run(&run).await.unwrap().tokens, [token("order:42")]);
    let (held, told) = conflict(host.try_start("follow", json!({"id": "42"}), &[]).await);
    assert_eq!((held.as_str(), told.run), ("order:42", run.clone()));

    // Payloads must be of the declared type.
    let refused = host.deliver("order:42", json!({"n": 1})).await;
    assert!(
        matches!(refused, Err(Error::InvalidPayload { .. })),
        "{refused:?}"
    );
    host.deliver("order:42", json!({"n": 1, "last": true}))
        .await
        .unwrap();
    assert_eq!(host.output(&run).await, json!([1]));
    host.agrees(&run).await;

    // From inside the input, of a number, beside other tokens.
    let asked = request("keyed_by_order", json!({"order": {"id": 7}}), &["more"]);
    let nested = host.engine.start(asked).await.unwrap().run_id;
    let tokens = host.engine.run(&nested).await.unwrap().tokens;
    assert_eq!(tokens, [token("nested:7"), token("more")]);
    host.output(&nested).await;

    let before = host.everything().await;
    for (workflow, input) in [
        ("follow", json!({})),
        ("follow", json!({"id": null})),
        ("keyed_by_order", json!({"order": {}})),
        ("keyed_by_order", json!({"order": {"id": null}})),
    ] {
        let answer = host.try_start(workflow, input.clone(), &["beside"]).await;
        let Err(Error::InvalidInput {
            workflow: named,
            what,
        }) = answer
        else {
            panic!("{workflow} {input}: {answer:?}")
        };
        assert_eq!(named, workflow);
        assert!(what.contains("id"), "{what}");
    }
    is_unknown(&host, "beside").await;
    assert_eq!(host.everything().await, before);

    // The request may keep the declared token for longer, and say more of it.
    let mut longer = retained(
        120 * MINUTE,
        request("follow", json!({"id": "43"}), &["order:43"]),
    );
    longer.hooks[0].metadata = Some(json!({"for": "somebody"}));
    host.engine.start(longer).await.unwrap();
    let hook = host.hook("order:43").await.unwrap();
    assert_eq!(hook.retained_until, hook.claimed_at + 2 * 60 * 60 * 1000);
    assert_eq!(hook.metadata, Some(json!({"for": "somebody"})));
    let refused = host.deliver("order:43", json!("no update")).await;
    assert!(
        matches!(refused, Err(Error::InvalidPayload { .. })),
        "{refused:?}"
    );
}
