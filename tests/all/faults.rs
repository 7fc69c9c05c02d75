//! A fault of the host stays with the run that met it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onemark::clock::{Clock, ManualClock};
use onemark::engine::{Engine, EngineConfig};
use onemark::journal::{RunStatus, Timestamp};
use onemark::store::{BlockReason, MemoryStore};
use onemark_tests::{TestHost, programs, request, sandbox};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);

/// A clock that tests move, and that makes the first panic who sleeps by it.
#[derive(Debug)]
struct FaultyClock {
    clock: ManualClock,
    faulty: AtomicBool,
}

impl Clock for FaultyClock {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn sleep_until<'a>(&'a self, at: Timestamp) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        assert!(!self.faulty.swap(false, Ordering::SeqCst), "the clock is broken");
        self.clock.sleep_until(at)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_blocks_its_run_and_gives_the_place_back() {
    let config = EngineConfig {
        max_resident: 1,
        ..EngineConfig::default()
    };
    let clock = Arc::new(FaultyClock {
        clock: ManualClock::new(1_800_000_000_000),
        faulty: AtomicBool::new(true),
    });
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::open(store, sandbox(&[]), clock.clone(), config)
        .await
        .unwrap();
    engine.deploy("programs", programs()).await.unwrap();
    // Nobody sleeps before the run does.
    let asleep = request("sleeps", json!({ "lengths_ms": [1_000] }), &[]);
    let run = engine.start(asleep).await.unwrap().run_id;
    let result = engine.result(&run, PATIENCE).await.unwrap();
    let blocked = result.blocked.expect("the run is blocked");
    assert_eq!(blocked.reason, BlockReason::HostFault);
    assert!(
        blocked.message.contains("it panicked: the clock is broken"),
        "{blocked:?}"
    );

    // The only place there is.
    engine.idle().await;
    let other = request("sequence", json!({ "n": 3 }), &[]);
    let other = engine.start(other).await.unwrap().run_id;
    let ended = engine.result(&other, PATIENCE).await.unwrap();
    assert_eq!(ended.status, RunStatus::Completed);

    clock.clock.advance(Duration::from_secs(1));
    let component = engine.run(&run).await.unwrap().component;
    engine.upgrade(&run, component, false).await.unwrap();
    let ended = engine.result(&run, PATIENCE).await.unwrap();
    assert_eq!(ended.status, RunStatus::Completed);
}

/// Other code under the digest of its component could do anything to a run.
#[tokio::test(flavor = "multi_thread")]
async fn a_stored_component_that_changed_is_not_run() {
    let host = TestHost::new().await;
    let run = host.start_with("read_any", json!({}), &["t"]).await;
    host.reached(&run, RunStatus::Suspended).await;
    let database = rusqlite::Connection::open(host.folder().join("onemark.db")).unwrap();
    // Still a component, with another text inside.
    let mut bytes = programs().to_vec();
    let text = b"as asked";
    let at = bytes.windows(text.len()).position(|it| it == text).unwrap();
    bytes[at] ^= 1;
    let changed = database.execute("UPDATE components SET bytes = ?1", [&bytes]);
    assert_eq!(changed.unwrap(), 1);
    drop(database);

    let host = host.restart().await;
    host.deliver("t", json!("end")).await.unwrap();
    let blocked = host.ended(&run).await.blocked.expect("the run is blocked");
    assert_eq!(blocked.reason, BlockReason::Component);
    assert!(blocked.message.contains("deploy it again"), "{blocked:?}");

    let digest = host.engine.deploy("programs", programs()).await.unwrap().digest;
    let host = host.restart().await;
    host.engine.upgrade(&run, digest, false).await.unwrap();
    host.output(&run).await;
    host.agrees(&run).await;
}
