//! Deployments that are removed: nothing starts under their name any more, and what runs goes on.

use std::time::Duration;

use onemark::engine::{EmitRequest, EngineConfig, Error, RerunRequest};
use onemark::ids::EventName;
use onemark::journal::RunStatus;
use onemark::store::{RunFilter, StoreError};
use onemark_tests::{Refuse, StoreKind, TestHost, on_each_store, scheduled};
use serde_json::json;

on_each_store!(
    a_deployment_that_is_removed_starts_nothing_and_its_runs_go_on,
    a_deployment_that_is_removed_ends_its_schedules_and_events,
);

async fn removed(host: &TestHost, name: &str) {
    let digest = host.engine.component_named(name).await.unwrap();
    let receipt = host.engine.remove_deployment(name).await.unwrap();
    assert_eq!((receipt.name.as_str(), receipt.digest), (name, digest));
}

async fn a_deployment_that_is_removed_starts_nothing_and_its_runs_go_on(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let reads = host.start_with("read_any", json!({}), &["t"]).await;
    // It goes on as a new run once, and by then its workflow is not deployed.
    let sums = host
        .start("sums", json!({ "name": "s", "total": 1, "a_run": 1 }))
        .await;
    let (ended, output) = host.completes("keyed_only", json!({ "id": "7" })).await;
    for run in [&reads, &sums] {
        host.reached(run, RunStatus::Suspended).await;
    }
    let unknown = host.engine.remove_deployment("nothing").await;
    assert!(
        matches!(&unknown, Err(Error::UnknownDeployment(name)) if name == "nothing"),
        "{unknown:?}"
    );
    removed(&host, "programs").await;
    let again = host.engine.remove_deployment("programs").await;
    assert!(matches!(again, Err(Error::UnknownDeployment(_))), "{again:?}");
    starts_nothing(&host).await;
    let host = host.restart().await;
    starts_nothing(&host).await;
    let rerun = RerunRequest {
        of: ended.clone(),
        id: None,
        hooks: Vec::new(),
        repeat_unkeyed: true,
        key: None,
    };
    let rerun = host.engine.rerun(rerun).await;
    assert!(matches!(rerun, Err(Error::UnknownWorkflow(_))), "{rerun:?}");

    host.deliver("t", json!(1)).await.unwrap();
    host.deliver("t", json!("end")).await.unwrap();
    assert_eq!(host.output(&reads).await, json!([1]));
    for n in [2, 3, 0] {
        host.deliver("sum:s", json!(n)).await.unwrap();
    }
    assert_eq!(host.output(&sums).await, 6);
    // What was there can be read and verified.
    assert_eq!(host.output(&ended).await, output);
    for run in [&reads, &sums, &ended] {
        host.agrees(run).await;
    }

    host.engine
        .deploy("programs", onemark_tests::programs())
        .await
        .unwrap();
    host.completes("keyed_only", json!({ "id": "8" })).await;
}

async fn starts_nothing(host: &TestHost) {
    assert!(host.engine.deployments().await.unwrap().is_empty());
    assert!(host.engine.workflows().await.unwrap().is_empty());
    for name in ["read_any", "programs/read_any"] {
        let refused = host.try_start(name, json!({}), &[]).await;
        assert!(matches!(refused, Err(Error::UnknownWorkflow(_))), "{refused:?}");
    }
}

async fn a_deployment_that_is_removed_ends_its_schedules_and_events(kind: StoreKind) {
    let hour = Duration::from_secs(3_600);
    let host = TestHost::with_clock(kind).await;
    host.engine.deploy("scheduled", scheduled()).await.unwrap();
    host.engine.deploy("other", scheduled()).await.unwrap();
    assert!(!host.engine.schedules().await.unwrap().is_empty());
    removed(&host, "scheduled").await;
    let schedules = host.engine.schedules().await.unwrap();
    assert!(
        schedules.iter().all(|it| it.deployment == "other"),
        "{schedules:?}"
    );
    let backfill = host.engine.backfill("scheduled/each_hour", 0, u64::MAX).await;
    assert!(
        matches!(backfill, Err(Error::ScheduleNotFound(_))),
        "{backfill:?}"
    );
    host.advance(2 * hour);
    // Those of the other name go on, and they alone.
    let filter = RunFilter {
        workflow: Some("each_hour".into()),
        limit: 100,
        ..RunFilter::default()
    };
    while host.engine.runs(filter.clone()).await.unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    let dealt_with = async || {
        let schedules = host.engine.schedules().await.unwrap();
        schedules
            .iter()
            .all(|it| it.next > Some(1_800_000_000_000 + 7_200_000))
    };
    while !dealt_with().await {
        tokio::task::yield_now().await;
    }
    assert_eq!(host.engine.runs(filter).await.unwrap().len(), 2);

    removed(&host, "programs").await;
    let event = EmitRequest {
        event: EventName::new("order.paid").unwrap(),
        payload: json!({ "id": "7" }).to_string().into(),
        id: None,
    };
    let receipt = host.engine.emit(event.clone()).await.unwrap();
    assert!(receipt.parts.is_empty(), "{receipt:?}");
    host.engine
        .deploy("programs", onemark_tests::programs())
        .await
        .unwrap();
    assert_eq!(host.engine.emit(event).await.unwrap().parts.len(), 3);
}

/// What the store refuses is refused, and nothing has changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_that_is_removed_while_the_store_cannot_be_written_stays() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let (host, store) = TestHost::with_faults(kind, EngineConfig::default(), None, &[]).await;
        store.refuse(Refuse::Writes);
        let refused = host.engine.remove_deployment("programs").await;
        assert!(
            matches!(refused, Err(Error::Store(StoreError::Unavailable(_)))),
            "{refused:?}"
        );
        store.refuse(Refuse::Nothing);
        host.completes("keyed_only", json!({ "id": "7" })).await;
    }
}
