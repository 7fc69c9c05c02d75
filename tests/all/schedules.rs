//! Schedules: a run for each slot, never two, whatever the host does meanwhile.

use std::time::Duration;

use onemark::engine::Error;
use onemark::store::{PartOutcome, RunFilter, RunInfo};
use onemark_tests::{StoreKind, TestHost, on_each_store, order, patched, scheduled};
use serde_json::{Value, json};

on_each_store!(
    e10_a_slot_starts_one_run,
    e10_after_two_firings_without_a_host,
    e10_a_held_token_keeps_a_slot_from_starting,
    e10_a_backfill_gives_a_run_to_slots_that_had_none,
    e10_a_schedule_ends_with_its_deployment,
    e10_a_schedule_that_cannot_be_read_is_not_deployed,
);

/// 2027-01-15 08:00:00 UTC, a Friday: where the clock of these tests begins.
const HOUR: Duration = Duration::from_secs(3600);

async fn scheduled_host(kind: StoreKind) -> TestHost {
    let host = TestHost::with_clock(kind).await;
    host.engine.deploy("scheduled", scheduled()).await.unwrap();
    host
}

async fn runs_of(host: &TestHost, workflow: &str) -> Vec<RunInfo> {
    let filter = RunFilter {
        workflow: Some(workflow.to_owned()),
        limit: 1_000,
        ..RunFilter::default()
    };
    host.engine.runs(filter).await.unwrap()
}

/// Waits until the workflow was started that often; what its runs returned, oldest first.
async fn outputs(host: &TestHost, workflow: &str, n: usize) -> Vec<Value> {
    let runs = loop {
        let runs = runs_of(host, workflow).await;
        if runs.len() >= n {
            break runs;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(runs.len(), n, "{workflow}");
    let mut outputs = Vec::new();
    for run in runs.iter().rev() {
        outputs.push(host.output(&run.id).await);
    }
    outputs
}

/// Waits until the host has dealt with this slot of a schedule.
async fn dealt_with(host: &TestHost, workflow: &str, slot: u64) {
    loop {
        let schedules = host.engine.schedules().await.unwrap();
        let schedule = schedules.iter().find(|it| it.workflow == workflow).unwrap();
        if schedule.done_until >= slot {
            return;
        }
        tokio::task::yield_now().await;
    }
}

async fn e10_a_slot_starts_one_run(kind: StoreKind) {
    let host = scheduled_host(kind).await;
    let schedules = host.engine.schedules().await.unwrap();
    let names: Vec<_> = schedules.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names,
        ["scheduled/each_hour", "scheduled/half_past", "scheduled/morning"]
    );
    // The slot of this very moment is over; the next one of a weekday is on Monday.
    assert_eq!(schedules[2].next, Some(1_800_000_000_000 + 72 * 3_600_000));

    host.advance(HOUR - Duration::from_millis(1));
    assert!(runs_of(&host, "each_hour").await.is_empty());
    host.advance(Duration::from_millis(1));
    assert_eq!(outputs(&host, "each_hour", 1).await, ["2027-01-15T09:00:00Z"]);
    let host = host.restart().await;
    // Deployed again as it was.
    host.engine.deploy("scheduled", scheduled()).await.unwrap();
    host.advance(HOUR);
    assert_eq!(
        outputs(&host, "each_hour", 2).await,
        ["2027-01-15T09:00:00Z", "2027-01-15T10:00:00Z"]
    );
}

async fn e10_after_two_firings_without_a_host(kind: StoreKind) {
    let host = scheduled_host(kind).await;
    // From Friday to Tuesday: one day is missed at least by all.
    host.engine.shutdown().await;
    host.advance(98 * HOUR);
    let host = host.restart().await;
    dealt_with(&host, "half_past", 1_800_000_000_000 + 97 * 3_600_000).await;
    assert_eq!(outputs(&host, "morning", 1).await, ["2027-01-19T08:00:00Z"]);
    assert_eq!(
        outputs(&host, "each_hour", 98).await[..2],
        ["2027-01-15T09:00:00Z", "2027-01-15T10:00:00Z"]
    );
    assert!(runs_of(&host, "half_past").await.is_empty());
    let host = host.restart().await;
    host.advance(HOUR / 2);
    dealt_with(&host, "half_past", 1_800_000_000_000 + 98 * 3_600_000).await;
    assert_eq!(runs_of(&host, "half_past").await.len(), 1);
    assert_eq!(runs_of(&host, "each_hour").await.len(), 98);
    assert_eq!(runs_of(&host, "morning").await.len(), 1);
}

async fn e10_a_held_token_keeps_a_slot_from_starting(kind: StoreKind) {
    let host = scheduled_host(kind).await;
    let half = HOUR / 2;
    host.advance(half);
    dealt_with(&host, "half_past", 1_800_001_800_000).await;
    host.advance(HOUR);
    dealt_with(&host, "half_past", 1_800_005_400_000).await;
    let runs = runs_of(&host, "half_past").await;
    assert_eq!((runs.len(), runs[0].duplicates), (1, 1));
}

async fn e10_a_backfill_gives_a_run_to_slots_that_had_none(kind: StoreKind) {
    let host = scheduled_host(kind).await;
    host.advance(HOUR);
    outputs(&host, "each_hour", 1).await;
    let begin = 1_800_000_000_000 - 2 * 3_600_000;
    let end = 1_800_000_000_000 + 3_600_000;
    for existing in [1, 4] {
        let receipt = host
            .engine
            .backfill("scheduled/each_hour", begin, end)
            .await
            .unwrap();
        assert_eq!(receipt.slots.len(), 4);
        assert!(
            receipt
                .slots
                .iter()
                .all(|it| matches!(it.part.outcome, PartOutcome::Started { .. }))
        );
        assert_eq!(receipt.slots.iter().filter(|it| !it.fresh).count(), existing);
        assert_eq!(runs_of(&host, "each_hour").await.len(), 4);
    }
    // What has not come yet is the schedule's.
    let early = host
        .engine
        .backfill("scheduled/each_hour", end, u64::MAX)
        .await
        .unwrap();
    assert_eq!(early.slots.len(), 1);
    assert_eq!(runs_of(&host, "each_hour").await.len(), 4);
    let unknown = host.engine.backfill("programs/sequence", 0, end).await;
    assert!(matches!(unknown, Err(Error::ScheduleNotFound(_))), "{unknown:?}");
    let many = host.engine.backfill("scheduled/each_hour", 0, end).await;
    assert!(matches!(many, Err(Error::InvalidRequest(_))), "{many:?}");
}

async fn e10_a_schedule_ends_with_its_deployment(kind: StoreKind) {
    let host = scheduled_host(kind).await;
    let without = std::fs::read(order()).unwrap();
    host.engine.deploy("scheduled", without.into()).await.unwrap();
    assert!(host.engine.schedules().await.unwrap().is_empty());
    host.advance(2 * HOUR);
    host.engine.deploy("scheduled", scheduled()).await.unwrap();
    // What passed meanwhile is nobody's.
    host.advance(HOUR);
    assert_eq!(
        outputs(&host, "each_hour", 1).await,
        [json!("2027-01-15T11:00:00Z")]
    );
}

async fn e10_a_schedule_that_cannot_be_read_is_not_deployed(kind: StoreKind) {
    let host = scheduled_host(kind).await;
    let before = host.engine.schedules().await.unwrap();
    for (written, instead, says) in [
        ("0 9 * * 1-5", "0 9 * * 1-9", "0 9 * * 1-9"),
        ("0 9 * * 1-5", "0 9 31 2 *1", "0 9 31 2 *1"),
        ("0 9 * * 1-5", "0 9 30 2 * ", "never"),
        ("Europe/Berlin", "Europe/Berlim", "Europe/Berlim"),
    ] {
        let component = patched(&scheduled(), written, instead);
        let refused = host.engine.deploy("scheduled", component).await;
        let Err(Error::Component(error)) = refused else {
            panic!("{instead}: {refused:?}");
        };
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(
        host.engine.schedules().await.unwrap(),
        before,
        "the old one goes on"
    );
}

/// Its slots wait, and those of others do not.
#[tokio::test(flavor = "multi_thread")]
async fn e10_a_schedule_whose_component_does_not_load_keeps_nobody_waiting() {
    let host = scheduled_host(StoreKind::Sqlite).await;
    // As the first by name and the last.
    for name in ["a", "z"] {
        let other = patched(&scheduled(), "30 * * * *", "31 * * * *");
        host.engine.deploy(name, other).await.unwrap();
    }
    let digest = host.engine.component_named("a").await.unwrap();
    let database = rusqlite::Connection::open(host.folder().join("onemark.db")).unwrap();
    let bytes = || -> Vec<u8> {
        let digest = digest.0.as_slice();
        let read = database.query_row(
            "SELECT bytes FROM components WHERE digest = ?1",
            [digest],
            |row| row.get(0),
        );
        read.unwrap()
    };
    let write = |bytes: &[u8]| {
        let digest = digest.0.as_slice();
        let write = "UPDATE components SET bytes = ?2 WHERE digest = ?1";
        assert_eq!(database.execute(write, (digest, bytes)).unwrap(), 1);
    };
    let good = bytes();
    write(b"damaged");
    let host = host.restart().await;
    host.advance(150 * HOUR);
    outputs(&host, "each_hour", 150).await;
    let schedules = host.engine.schedules().await.unwrap();
    let behind = schedules.iter().find(|it| it.name == "a/each_hour").unwrap();
    assert_eq!(behind.done_until, 1_800_000_000_000);

    write(&good);
    drop(database);
    let host = host.restart().await;
    outputs(&host, "each_hour", 450).await;
}
