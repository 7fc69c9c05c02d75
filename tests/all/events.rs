//! Events: what waits for one starts, all of it or nothing, and once.

use onemark::engine::{EmitReceipt, EmitRequest, Error};
use onemark::ids::{EventName, IdempotencyKey, RunId};
use onemark::journal::RunStatus;
use onemark::store::PartOutcome;
use onemark_tests::{StoreKind, TestHost, on_each_store};
use serde_json::{Value, json};

on_each_store!(
    e09_an_event_starts_every_workflow_that_waits_for_it,
    e09_the_same_event_again_is_answered_with_the_same_runs,
    e09_an_event_that_fits_nobody_leaves_nothing,
    a25_an_event_claims_the_token_of_each_workflow,
    d04_without_an_id_an_event_twice_is_two_events,
    d05_a_workflow_emits_once_and_no_step_is_needed,
    d05_what_a_workflow_cannot_emit_is_a_failure,
    d05_a_step_emits_once_for_all_its_attempts,
    d05_what_a_step_cannot_emit_is_a_failure,
);

async fn emit(host: &TestHost, event: &str, payload: Value, id: Option<&str>) -> Result<EmitReceipt, Error> {
    let request = EmitRequest {
        event: EventName::new(event).unwrap(),
        payload: payload.to_string().into(),
        id: id.map(|id| IdempotencyKey::new(id).unwrap()),
    };
    host.engine.emit(request).await
}

/// The run of a workflow that an event started.
fn run_of(receipt: &EmitReceipt, workflow: &str) -> RunId {
    let part = receipt
        .parts
        .iter()
        .find(|part| part.workflow.ends_with(workflow));
    part.and_then(|part| part.run().cloned())
        .unwrap_or_else(|| panic!("{workflow} was not started: {receipt:?}"))
}

async fn e09_an_event_starts_every_workflow_that_waits_for_it(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let payload = json!({ "id": "7" });
    let receipt = emit(&host, "order.paid", payload.clone(), None).await.unwrap();
    let names: Vec<_> = receipt.parts.iter().map(|part| part.workflow.as_str()).collect();
    assert_eq!(
        names,
        ["programs/keeps_books", "programs/ships", "programs/thanks"]
    );
    assert_eq!(host.output(&run_of(&receipt, "keeps_books")).await, payload);
    assert_eq!(host.output(&run_of(&receipt, "ships")).await, "7");
    assert_eq!(host.output(&run_of(&receipt, "thanks")).await, "thank you for 7");

    let nobody = emit(&host, "order.lost", payload, None).await.unwrap();
    assert!(nobody.parts.is_empty());
}

async fn e09_the_same_event_again_is_answered_with_the_same_runs(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let payload = json!({ "id": "7" });
    let first = emit(&host, "order.paid", payload.clone(), Some("e1"))
        .await
        .unwrap();
    let again = emit(&host, "order.paid", payload.clone(), Some("e1"))
        .await
        .unwrap();
    assert_eq!(again, first);
    for part in &first.parts {
        host.ended(part.run().unwrap()).await;
    }
    let host = host.restart().await;
    let before = host.everything().await;
    let again = emit(&host, "order.paid", payload.clone(), Some("e1"))
        .await
        .unwrap();
    assert_eq!(again, first);
    let other = emit(&host, "order.paid", json!({ "id": "8" }), Some("e1")).await;
    assert!(matches!(other, Err(Error::KeyConflict)), "{other:?}");
    assert_eq!(host.everything().await, before);
    // The id is one among events of its name.
    let elsewhere = emit(&host, "größe/a b%2F", json!({ "n": 1 }), Some("e1"))
        .await
        .unwrap();
    assert_eq!(host.output(&run_of(&elsewhere, "odd_event")).await, 1);
}

async fn e09_an_event_that_fits_nobody_leaves_nothing(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let wrong = emit(&host, "größe/a b%2F", json!({ "n": "x" }), Some("e1")).await;
    assert!(matches!(wrong, Err(Error::InvalidEvent { .. })), "{wrong:?}");
    assert!(host.everything().await.is_empty());
    emit(&host, "größe/a b%2F", json!({ "n": 1 }), Some("e1"))
        .await
        .unwrap();

    // One that fits somebody starts them, and says what kept the others.
    let some = emit(&host, "order.paid", json!([1]), Some("e2")).await.unwrap();
    assert_eq!(host.output(&run_of(&some, "keeps_books")).await, json!([1]));
    let refused = some
        .parts
        .iter()
        .filter(|part| matches!(part.outcome, PartOutcome::Refused { .. }));
    assert_eq!(refused.count(), 2, "{some:?}");
}

async fn a25_an_event_claims_the_token_of_each_workflow(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let payload = json!({ "id": "7", "note": "wait" });
    let first = emit(&host, "order.paid", payload.clone(), None).await.unwrap();
    let owner = run_of(&first, "ships");
    assert_eq!(host.hook("ship:7").await.unwrap().owner.run, owner);

    let second = emit(&host, "order.paid", payload, None).await.unwrap();
    let conflict = second.parts.iter().find_map(|part| match &part.outcome {
        PartOutcome::Conflict { token, owner } => Some((token.as_str(), owner.run.clone())),
        _ => None,
    });
    assert_eq!(conflict, Some(("ship:7", owner.clone())));
    host.output(&run_of(&second, "thanks")).await;
    host.output(&run_of(&second, "keeps_books")).await;
    host.deliver("ship:7", json!(1)).await.unwrap();
    assert_eq!(host.ended(&owner).await.status, RunStatus::Completed);
}

async fn d04_without_an_id_an_event_twice_is_two_events(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        let receipt = emit(&host, "order.paid", json!({ "id": "7" }), None)
            .await
            .unwrap();
        let run = run_of(&receipt, "ships");
        // The token is free again.
        host.output(&run).await;
        runs.push(run);
    }
    assert_ne!(runs[0], runs[1]);
}

async fn d05_a_workflow_emits_once_and_no_step_is_needed(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let owner = emit(&host, "order.paid", json!({ "id": "7", "note": "wait" }), None)
        .await
        .unwrap();
    let owner = run_of(&owner, "ships");
    let events = json!([["order.paid", { "id": "7" }], ["order.lost", 1]]);
    let (run, output) = host.completes("emits", json!({ "events": events })).await;
    let [paid, lost] = output.as_array().unwrap().as_slice() else {
        panic!("two outcomes: {output}");
    };
    assert_eq!(lost, &json!([]));
    assert_eq!(paid[0][0], "programs/keeps_books");
    assert_eq!(paid[1], json!(["programs/ships", null, owner, null]));
    for started in [&paid[0][1], &paid[2][1]] {
        host.output(&RunId::new(started.as_str().unwrap()).unwrap()).await;
    }
    assert_eq!(
        host.events(&run).await,
        ["started", "emitted", "emitted", "completed"]
    );
    let host = host.restart().await;
    let before = host.everything().await;
    host.agrees(&run).await;
    assert_eq!(host.everything().await, before);
}

async fn d05_what_a_workflow_cannot_emit_is_a_failure(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let events = json!([["", 1], ["a\nb", 1], ["größe/a b%2F", 1]]);
    let (run, output) = host.completes("emits", json!({ "events": events })).await;
    assert_eq!(output, json!(["invalid", "invalid", "invalid"]));
    assert_eq!(host.everything().await.len(), 1);
    assert_eq!(host.events(&run).await[1..4], ["emit_refused"; 3]);
}

/// D05, for code that has a reason to emit inside a step.
async fn d05_a_step_emits_once_for_all_its_attempts(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (run, output) = host.completes("emits_in_a_step", json!({ "id": "s" })).await;
    let emitted: Vec<Vec<(String, Option<String>)>> = serde_json::from_value(output).unwrap();
    assert_eq!(emitted.len(), 3);
    for (n, parts) in emitted.iter().enumerate() {
        let workflows: Vec<_> = parts.iter().map(|(workflow, _)| workflow.as_str()).collect();
        assert_eq!(
            workflows,
            ["programs/keeps_books", "programs/ships", "programs/thanks"]
        );
        for (_, started) in parts {
            let started = RunId::new(started.as_deref().unwrap()).unwrap();
            assert!(
                host.output(&started)
                    .await
                    .to_string()
                    .contains(&format!("s-{n}"))
            );
        }
    }
    // Three events, three workflows, and the run itself.
    assert_eq!(host.everything().await.len(), 10);
    let again = host.completes("emits_in_a_step", json!({ "id": "s" })).await;
    assert_ne!(again.0, run);
    assert_eq!(
        host.everything().await.len(),
        20,
        "another run's step emits events of its own"
    );

    let (_, output) = host.completes("emits_in_a_closure", json!({ "id": "c" })).await;
    assert_eq!(output[0][0], "programs/keeps_books");
    // What the event started comes to its end.
    host.engine.idle().await;
    let before = host.everything().await;
    host.agrees(&run).await;
    assert_eq!(host.everything().await, before);
}

async fn d05_what_a_step_cannot_emit_is_a_failure(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (_, output) = host
        .completes("emits_one_thing_and_then_another", json!({}))
        .await;
    let failures: Vec<String> = serde_json::from_value(output).unwrap();
    assert_eq!(failures.len(), 3, "{failures:?}");
    assert!(failures[0].contains("with another payload"), "{failures:?}");
    assert!(failures[1].contains("event name"), "{failures:?}");
    let runs = host.everything().await;
    let mut books = runs
        .iter()
        .map(|(run, ..)| run)
        .filter(|run| run.workflow.ends_with("keeps_books"));
    let paid = books.next().expect("the first attempt's event");
    assert_eq!(host.output(&paid.id).await, json!({ "id": "m1" }));
    assert!(books.next().is_none());
}
