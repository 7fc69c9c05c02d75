//! Running again what ran.

use onemark::engine::{Error, RerunRequest, StartHook};
use onemark::ids::{IdempotencyKey, RunId};
use onemark::journal::{Event, Lineage, RunStatus};
use onemark_tests::{Marks, StoreKind, TestHost, token};
use serde_json::json;

fn again(of: &RunId) -> RerunRequest {
    RerunRequest {
        of: of.clone(),
        id: None,
        hooks: Vec::new(),
        repeat_unkeyed: true,
        key: None,
    }
}

/// D03: every step runs again, with keys of the new run where none is made from data; and before, it is said which.
#[tokio::test(flavor = "multi_thread")]
async fn d03_a_rerun_names_the_steps_that_have_no_key_from_data() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::on(kind).await;
        let (run, first) = host.completes("keys", json!({ "seed": "a" })).await;
        let asked = RerunRequest {
            repeat_unkeyed: false,
            ..again(&run)
        };
        let refused = host.engine.rerun(asked).await;
        let Err(Error::UnkeyedSteps { steps, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(steps, ["unkeyed"]);
        let rerun = host.engine.rerun(again(&run)).await.unwrap().run_id;
        let second = host.output(&rerun).await;
        // Made from data, made by the host twice, given per call (C09, C19).
        let same: Vec<_> = (0..4).map(|n| first[n] == second[n]).collect();
        assert_eq!(same, [true, false, false, true]);
        let Event::Started(started) = &host.journal(&rerun).await[0].event else {
            panic!("entry 0 is the start");
        };
        assert_eq!(started.lineage, Some(Lineage::Rerun { of: run.clone() }));
        host.agrees(&rerun).await;
        host.agrees(&run).await;
    }
}

/// A27: what a rerun claims is what its request names, also where the workflow declares a token.
#[tokio::test(flavor = "multi_thread")]
async fn a27_a_rerun_claims_only_what_it_names() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::on(kind).await;
        let run = host.start("keyed_only", json!({ "id": "7" })).await;
        host.output(&run).await;
        let owner = host.start("keyed_only", json!({ "id": "7" })).await;
        let unclaimed = host.engine.rerun(again(&run)).await.unwrap().run_id;
        assert_eq!(host.engine.run(&unclaimed).await.unwrap().tokens, []);
        let hook = StartHook {
            token: token("mine"),
            min_retention_ms: 0,
            metadata: None,
        };
        let named = RerunRequest {
            hooks: vec![hook],
            ..again(&run)
        };
        let named = host.engine.rerun(named).await.unwrap().run_id;
        assert_eq!(host.engine.run(&named).await.unwrap().tokens, [token("mine")]);
        for run in [owner, unclaimed, named] {
            assert_eq!(host.ended(&run).await.status, RunStatus::Completed);
        }
    }
}

/// Without a token it would run until it opens its hook, and fail there.
#[tokio::test(flavor = "multi_thread")]
async fn a27_a_rerun_that_will_read_its_hook_names_a_token() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::on(kind).await;
        let run = host.start("follow", json!({ "id": "7" })).await;
        host.reached(&run, RunStatus::Suspended).await;
        let before = host.everything().await;
        let refused = host.engine.rerun(again(&run)).await;
        assert!(
            matches!(&refused, Err(Error::RerunNeedsHook { workflow }) if workflow == "follow"),
            "{refused:?}"
        );
        assert_eq!(host.everything().await, before);
        let named = RerunRequest {
            hooks: vec![StartHook {
                token: token("again"),
                min_retention_ms: 0,
                metadata: None,
            }],
            ..again(&run)
        };
        let rerun = host.engine.rerun(named).await.unwrap().run_id;
        let last = json!({ "n": 3, "last": true });
        host.deliver("again", last).await.unwrap();
        assert_eq!(host.output(&rerun).await, json!([3]));
        host.agrees(&rerun).await;
    }
}

/// The same request again leads to the same run, and a run that has none is an error.
#[tokio::test(flavor = "multi_thread")]
async fn a24_a_rerun_is_carried_out_once() {
    let marks = Marks::start().await;
    let host = TestHost::with_http(&[marks.authority()]).await;
    let input = json!({ "marks": marks.url(), "names": ["a"], "token": "t" });
    let (run, _) = host.completes("leave_marks", input).await;
    let keyed = || RerunRequest {
        key: Some(IdempotencyKey::new("again").unwrap()),
        ..again(&run)
    };
    let first = host.engine.rerun(keyed()).await.unwrap();
    host.output(&first.run_id).await;
    let host = host.restart().await;
    assert_eq!(host.engine.rerun(keyed()).await.unwrap().run_id, first.run_id);
    assert_eq!(marks.count("a"), 2);
    let unknown = RunId::new("unknown").unwrap();
    let missing = host.engine.rerun(again(&unknown)).await;
    assert!(matches!(missing, Err(Error::RunNotFound(_))), "{missing:?}");
}
