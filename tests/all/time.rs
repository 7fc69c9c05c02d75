//! Durable time, on a clock that moves only when told to.

use onemark::clock::Clock as _;
use onemark::ids::RunId;
use onemark::journal::{Entry, Event, RunStatus, Timestamp};
use onemark_tests::{StoreKind, TestHost};
use serde_json::json;

const SECOND: u64 = 1_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 24 * HOUR;

fn now(host: &TestHost) -> Timestamp {
    host.clock.as_ref().expect("made with a clock").now()
}

fn set(host: &TestHost, at: Timestamp) {
    host.clock.as_ref().expect("made with a clock").set(at);
}

/// Waits for the run to sleep until then.
async fn asleep_until(host: &TestHost, run: &RunId, at: Timestamp) {
    let info = host.until(run, |info| info.wake_at == Some(at)).await;
    assert_eq!(info.status, RunStatus::Suspended);
}

/// A run that sleeps no time and comes to its end at this moment: others had their chance to wake too early.
async fn pass_the_time(host: &TestHost) {
    let run = host.start("sleeps", json!({ "lengths_ms": [0] })).await;
    host.output(&run).await;
}

/// When timers were due, and when they fired.
fn timers(journal: &[Entry]) -> (Vec<Timestamp>, Vec<Timestamp>) {
    let due = journal.iter().filter_map(|entry| match entry.event {
        Event::TimerSet { due, .. } => Some(due),
        _ => None,
    });
    let fired = journal
        .iter()
        .filter(|entry| matches!(entry.event, Event::TimerFired { .. }));
    (due.collect(), fired.map(|entry| entry.at).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn e01_a_sleep_ends_once_on_time_and_never_early() {
    for kind in StoreKind::ALL {
        let host = TestHost::with_clock(kind).await;
        let start = now(&host);
        let run = host
            .start("sleeps", json!({ "lengths_ms": [5 * SECOND, 3 * DAY] }))
            .await;
        let mut due = Vec::new();
        for length in [5 * SECOND, 3 * DAY] {
            let at = now(&host) + length;
            due.push(at);
            asleep_until(&host, &run, at).await;
            set(&host, at - 1);
            pass_the_time(&host).await;
            set(&host, at);
        }
        host.output(&run).await;
        assert_eq!(due, [start + 5 * SECOND, start + 5 * SECOND + 3 * DAY]);
        assert_eq!(timers(&host.journal(&run).await), (due.clone(), due));
        host.agrees(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e01_a_sleep_until_a_date() {
    for kind in StoreKind::ALL {
        let host = TestHost::with_clock(kind).await;
        let date = now(&host) + 400 * DAY;
        let run = host.start("sleeps_until", json!({ "at_ms": date })).await;
        asleep_until(&host, &run, date).await;
        set(&host, date - 1);
        pass_the_time(&host).await;
        set(&host, date);
        host.output(&run).await;
        assert_eq!(timers(&host.journal(&run).await), (vec![date], vec![date]));
        host.agrees(&run).await;

        // One that has passed is over at once.
        let run = host.start("sleeps_until", json!({ "at_ms": date - DAY })).await;
        host.output(&run).await;
        assert_eq!(timers(&host.journal(&run).await), (vec![date - DAY], vec![date]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e01_a_sleep_that_ends_while_the_host_is_down() {
    let host = TestHost::with_clock(StoreKind::Sqlite).await;
    let start = now(&host);
    let run = host
        .start("sleeps", json!({ "lengths_ms": [5 * SECOND, DAY] }))
        .await;
    asleep_until(&host, &run, start + 5 * SECOND).await;

    // A restart before its end changes nothing.
    let host = host.restart().await;
    pass_the_time(&host).await;
    host.engine.shutdown().await;
    set(&host, start + 2 * HOUR);
    let host = host.restart().await;
    asleep_until(&host, &run, start + 2 * HOUR + DAY).await;
    host.engine.shutdown().await;
    set(&host, start + 9 * DAY);
    let host = host.restart().await;
    host.output(&run).await;
    let due = vec![start + 5 * SECOND, start + 2 * HOUR + DAY];
    let fired = vec![start + 2 * HOUR, start + 9 * DAY];
    assert_eq!(timers(&host.journal(&run).await), (due, fired));
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e03_the_time_of_a_run_never_goes_back() {
    for kind in StoreKind::ALL {
        let host = TestHost::with_clock(kind).await;
        let start = now(&host);
        let run = host.start_with("times", json!({ "n": 4 }), &["t"]).await;
        for (payload, at) in [start + HOUR, start - DAY, start + HOUR - 1, start + DAY]
            .into_iter()
            .enumerate()
        {
            set(&host, at);
            host.deliver("t", json!(null)).await.unwrap();
            // The payload is seen before the clock moves on.
            let taken = payload + 1;
            let payloads = |entry: &Entry| matches!(entry.event, Event::PayloadsTaken { .. });
            while host
                .journal(&run)
                .await
                .iter()
                .filter(|entry| payloads(entry))
                .count()
                < taken
                && !host.engine.run(&run).await.unwrap().status.is_terminal()
            {
                tokio::task::yield_now().await;
            }
        }
        let expected = json!([
            [start + HOUR, HOUR],
            [start + HOUR, HOUR],
            [start + HOUR, HOUR],
            [start + DAY, DAY],
        ]);
        assert_eq!(host.output(&run).await, expected);
        let journal = host.journal(&run).await;
        assert!(journal.is_sorted_by_key(|entry| entry.at), "{journal:?}");
        host.agrees(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e03_timers_fire_by_wall_time() {
    for kind in StoreKind::ALL {
        let host = TestHost::with_clock(kind).await;
        let start = now(&host);
        let due = start + 10 * SECOND;
        let run = host.start("sleeps", json!({ "lengths_ms": [10 * SECOND] })).await;
        asleep_until(&host, &run, due).await;

        // Back: it takes an hour more.
        set(&host, start - HOUR);
        pass_the_time(&host).await;
        set(&host, start - HOUR + 11 * SECOND);
        pass_the_time(&host).await;
        set(&host, due - 1);
        pass_the_time(&host).await;
        set(&host, due);
        host.output(&run).await;
        assert_eq!(timers(&host.journal(&run).await), (vec![due], vec![due]));

        // Forward: it is over at once.
        let later = due + 40 * DAY;
        let run = host.start("sleeps", json!({ "lengths_ms": [30 * DAY] })).await;
        asleep_until(&host, &run, due + 30 * DAY).await;
        set(&host, later);
        host.output(&run).await;
        assert_eq!(
            timers(&host.journal(&run).await),
            (vec![due + 30 * DAY], vec![later])
        );
        host.agrees(&run).await;
    }
}
