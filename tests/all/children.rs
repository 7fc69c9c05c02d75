//! Runs that start runs: once each, with what they come to, and what becomes of them.

use std::time::Duration;

use onemark::engine::Error;
use onemark::ids::RunId;
use onemark::journal::{CancelReason, Event, Lineage, RunStatus};
use onemark::store::{RunFilter, RunInfo};
use onemark_tests::{Marks, StoreKind, TestHost, json_of};
use serde_json::{Value, json};

async fn hosts() -> [TestHost; 2] {
    [
        TestHost::on(StoreKind::Memory).await,
        TestHost::on(StoreKind::Sqlite).await,
    ]
}

/// Every run of a workflow.
async fn runs_of(host: &TestHost, workflow: &str) -> Vec<RunInfo> {
    let filter = RunFilter {
        workflow: Some(workflow.to_owned()),
        limit: 10_000,
        ..RunFilter::default()
    };
    host.engine.runs(filter).await.unwrap()
}

fn id(value: &Value) -> RunId {
    RunId::new(value.as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn e04_a_child_gives_its_result_with_its_lineage() {
    for host in hosts().await {
        let input = json!({ "workflow": "sequence", "input": { "n": 4 } });
        let (run, output) = host.completes("parent", input).await;
        assert_eq!(output["value"], json!(6));
        let child = id(&output["run_id"]);
        let info = host.engine.run(&child).await.unwrap();
        assert_eq!(
            (info.status, info.parent),
            (RunStatus::Completed, Some(run.clone()))
        );
        let Event::Started(started) = &host.journal(&child).await[0].event else {
            panic!("entry 0 is the start");
        };
        assert_eq!(
            started.lineage,
            Some(Lineage::Child {
                parent: run.clone(),
                call: 0
            })
        );
        assert_eq!(
            host.events(&run).await,
            ["started", "child_started", "child_ended", "completed"]
        );
        host.agrees(&run).await;
        host.agrees(&child).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e04_a_failing_child_is_an_error_in_the_parent() {
    for host in hosts().await {
        let input = json!({ "workflow": "fails", "input": { "message": "no luck" } });
        let (run, output) = host.completes("parent", input.clone()).await;
        let child = id(&output["run_id"]);
        assert_eq!(output["kind"], "error");
        assert_eq!(output["message"], format!("child run {child} is failed: no luck"));
        host.agrees(&run).await;

        let strict = host.start("strict_parent", input).await;
        let result = host.ended(&strict).await;
        assert_eq!(result.status, RunStatus::Failed);
        let error = json_of(result.error.as_deref());
        assert!(
            error["message"].as_str().unwrap().ends_with("is failed: no luck"),
            "{error}"
        );
        host.agrees(&strict).await;
    }
}

/// What stands in the way of a child is a failure that its parent can handle, and starts nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a23_a_child_is_admitted_by_the_rules_of_a_start() {
    for host in hosts().await {
        let owner = host.start_with("read_any", json!({}), &["held"]).await;
        let tries = async |workflow: &str, input: Value, id: Option<&str>, token: &str| {
            let input = json!({ "workflow": workflow, "input": input, "id": id, "token": token });
            let (run, output) = host.completes("tries_child", input).await;
            host.agrees(&run).await;
            output
        };
        let n = json!({ "n": 1 });
        let conflict = tries("sequence", n.clone(), None, "held").await;
        assert_eq!(
            (&conflict[0], &conflict[1]["run_id"]),
            (&json!("hook_conflict"), &json!(owner))
        );
        let refused = [
            ("nothing", n.clone(), None, "t", "unknown_workflow"),
            ("sequence", json!({ "n": "x" }), None, "t", "invalid"),
            ("sequence", json!([]), None, "t", "invalid"),
            ("sequence", n.clone(), None, "", "invalid"),
            ("sequence", n.clone(), Some(""), "t", "invalid"),
            (
                "sequence",
                n.clone(),
                Some(owner.as_str()),
                "t",
                "run_id_conflict",
            ),
        ];
        for (workflow, input, id, token, kind) in refused {
            assert_eq!(
                tries(workflow, input, id, token).await[0],
                kind,
                "{workflow} {token}"
            );
        }
        assert_eq!(runs_of(&host, "sequence").await.len(), 0);
        assert_eq!(tries("sequence", n, Some("mine"), "t").await, json!(0));
        let child = host.engine.run(&RunId::new("mine").unwrap()).await.unwrap();
        assert_eq!(child.tokens, [onemark_tests::token("t")]);
    }
}

/// A25: a declared token is claimed by a child too, and the other way round a child's is held against a start.
#[tokio::test(flavor = "multi_thread")]
async fn a25_a_child_claims_the_token_that_its_workflow_declares() {
    let host = TestHost::new().await;
    let parent = host
        .start(
            "strict_parent",
            json!({ "workflow": "follow", "input": { "id": "9" } }),
        )
        .await;
    host.reached(&parent, RunStatus::Suspended).await;
    let child = runs_of(&host, "follow").await.remove(0);
    let conflict = host.try_start("follow", json!({ "id": "9" }), &[]).await;
    let Err(Error::HookConflict { owner, .. }) = conflict else {
        panic!("{conflict:?}");
    };
    assert_eq!(owner.run, child.id);
    host.deliver("order:9", json!({ "n": 5, "last": true }))
        .await
        .unwrap();
    assert_eq!(host.output(&parent).await, json!([5]));
    host.agrees(&parent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e04_many_children_at_once() {
    for host in hosts().await {
        let (run, output) = host.completes("many_children", json!({ "n": 60 })).await;
        assert_eq!(output, json!(20));
        assert_eq!(runs_of(&host, "sequence").await.len(), 60);
        host.agrees(&run).await;
    }
}

/// Exactly once over crashes: the host is killed, so to speak, again and again, and no child is started twice.
#[tokio::test(flavor = "multi_thread")]
async fn e04_children_over_restarts() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let mut host = TestHost::on(kind).await;
        let run = host.start("many_children", json!({ "n": 30 })).await;
        for entries in [2, 20, 40] {
            host.until(&run, |info| info.entries >= entries || info.status.is_terminal())
                .await;
            host = host.restart().await;
        }
        assert_eq!(host.output(&run).await, json!(10));
        assert_eq!(runs_of(&host, "sequence").await.len(), 30);
        host.agrees(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e16_what_becomes_of_a_child_when_its_parent_ends_first() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::with_clock(kind).await;
        let (run, child) = host.completes("ends_first", json!({ "then": "cancel" })).await;
        let child = id(&child);
        let info = host.reached(&child, RunStatus::Cancelled).await;
        assert_eq!(info.cancel_requested, Some(CancelReason::Parent));
        host.agrees(&run).await;

        let (_, child) = host.completes("ends_first", json!({ "then": "leave" })).await;
        let left = id(&child);
        let info = host.reached(&left, RunStatus::Suspended).await;
        assert_eq!(info.cancel_requested, None);

        let waits = host.start("ends_first", json!({ "then": "wait" })).await;
        host.reached(&waits, RunStatus::Suspended).await;
        let child = runs_of(&host, "sleeps").await.remove(0);
        host.reached(&child.id, RunStatus::Suspended).await;
        host.advance(Duration::from_secs(3_600));
        assert_eq!(host.output(&waits).await, json!(child.id));
        assert_eq!(host.ended(&left).await.status, RunStatus::Completed);
        host.agrees(&waits).await;
    }
}

/// The end of a run reaches its children's children.
#[tokio::test(flavor = "multi_thread")]
async fn e16_generations() {
    for terminate in [false, true] {
        for host in hosts().await {
            let run = host.start("generations", json!({ "left": 3 })).await;
            let youngest = loop {
                if let Ok(hook) = host.hook("the youngest").await {
                    break hook.run_id;
                }
                tokio::task::yield_now().await;
            };
            host.reached(&youngest, RunStatus::Suspended).await;
            match terminate {
                true => drop(host.engine.terminate(&run).await.unwrap()),
                false => drop(host.engine.cancel(&run).await.unwrap()),
            }
            for info in runs_of(&host, "generations").await {
                assert_eq!(host.ended(&info.id).await.status, RunStatus::Cancelled);
            }
        }
    }
    let host = TestHost::new().await;
    let run = host.start("generations", json!({ "left": 3 })).await;
    while host.deliver("the youngest", json!(10)).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(host.output(&run).await, json!(13));
    host.agrees(&run).await;
}

/// D05: a child that is started without being awaited is started once, with its parent's last entries.
#[tokio::test(flavor = "multi_thread")]
async fn d05_a_child_that_is_left_at_once_is_started_once() {
    for host in hosts().await {
        let (run, _) = host.completes("starts_and_leaves", json!({})).await;
        let started = runs_of(&host, "sequence").await;
        assert_eq!(started.len(), 1);
        assert_eq!(host.output(&started[0].id).await, json!(1));
        host.agrees(&run).await;
    }
}

/// The parent's host is gone when its child ends.
#[tokio::test(flavor = "multi_thread")]
async fn e04_a_child_that_ends_after_a_restart_wakes_its_parent() {
    let marks = Marks::start().await;
    let host = TestHost::with_http(&[marks.authority()]).await;
    marks.hold("slow");
    let input = json!({ "marks": marks.url(), "names": ["slow"], "token": "t" });
    let run = host
        .start(
            "strict_parent",
            json!({ "workflow": "leave_marks", "input": input }),
        )
        .await;
    marks.reached("slow", 1).await;
    marks.release();
    let host = host.restart().await;
    assert_eq!(host.output(&run).await, json!(null));
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e04_runs_are_listed_by_the_run_that_started_them() {
    for host in hosts().await {
        let parent = host.start("many_children", json!({ "n": 7 })).await;
        let other = host.start("many_children", json!({ "n": 2 })).await;
        host.output(&parent).await;
        host.output(&other).await;
        let host = host.restart().await;
        let listed = async |filter: RunFilter| {
            let mut listed: Vec<RunInfo> = Vec::new();
            loop {
                let page = RunFilter {
                    after: listed.last().map(|run| run.id.clone()),
                    limit: 3,
                    ..filter.clone()
                };
                match host.engine.runs(page).await.unwrap() {
                    page if page.is_empty() => return listed,
                    page => listed.extend(page),
                }
            }
        };
        let all = listed(RunFilter::default()).await;
        for (run, count) in [(&parent, 7), (&other, 2), (&all[0].id, 0)] {
            let of = RunFilter {
                parent: Some(run.clone()),
                ..RunFilter::default()
            };
            let expected: Vec<_> = all.iter().filter(|it| it.parent.as_ref() == Some(run)).collect();
            let children = listed(of.clone()).await;
            assert_eq!(children.len(), count);
            assert!(children.iter().eq(expected));
            let failed = RunFilter {
                status: Some(RunStatus::Failed),
                ..of
            };
            assert_eq!(listed(failed).await, []);
        }
        let unknown = RunFilter {
            parent: Some(RunId::new("nobody").unwrap()),
            ..RunFilter::default()
        };
        assert_eq!(listed(unknown).await, []);
    }
}
