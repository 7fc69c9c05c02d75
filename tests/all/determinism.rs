//! What a live guest saw is what a replay sees, and a guest that does something else is stopped and told.

use std::time::Duration;

use onemark::engine::{DivergenceReport, EngineConfig, Error, ReplayReport, RunResult, Verdict};
use onemark::ids::RunId;
use onemark::journal::{Event, Limits, RunStatus};
use onemark::store::{BlockReason, Blocked};
use onemark_tests::{Marks, StoreKind, TestHost, variant};
use serde_json::{Value, json};

/// `tests/programs/src/FILE:LINE` of the one line that holds this text.
fn place(file: &str, text: &str) -> String {
    let path = format!("{}/programs/src/{file}", env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(path).expect("the programs have their sources");
    let mut lines = source.lines().enumerate().filter(|(_, line)| line.contains(text));
    let (line, _) = lines
        .next()
        .unwrap_or_else(|| panic!("no line of {file} holds `{text}`"));
    assert!(lines.next().is_none(), "several lines of {file} hold `{text}`");
    format!("tests/programs/src/{file}:{}", line + 1)
}

/// A place in the programs without the folder that they were built in.
fn from_tests(place: &str) -> &str {
    place.find("tests/programs/").map_or(place, |at| &place[at..])
}

fn blocked(result: RunResult) -> Blocked {
    result
        .blocked
        .unwrap_or_else(|| panic!("not blocked: {} {:?}", result.status, result.output))
}

// ---- F01 -------------------------------------------------------------------------------------------

/// A run, and how it ends.
struct Case {
    workflow: &'static str,
    input: Value,
    /// Claimed at start; the payloads go to the first, or to the workflow's own.
    tokens: &'static [&'static str],
    payloads: Vec<Value>,
    status: RunStatus,
}

fn completes(workflow: &'static str, input: Value) -> Case {
    Case {
        workflow,
        input,
        tokens: &[],
        payloads: Vec::new(),
        status: RunStatus::Completed,
    }
}

fn fails(workflow: &'static str, input: Value) -> Case {
    Case {
        status: RunStatus::Failed,
        ..completes(workflow, input)
    }
}

impl Case {
    fn reading(self, tokens: &'static [&'static str], payloads: impl Into<Vec<Value>>) -> Self {
        let payloads = payloads.into();
        Self {
            tokens,
            payloads,
            ..self
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f01_every_completed_run_agrees_with_its_replay() {
    let marks = Marks::start().await;
    let host = TestHost::with_http(&[marks.authority()]).await;
    let url = marks.url();
    let update = |n: u64| json!({ "n": n, "last": n == 2 });
    let cases = [
        completes("sequence", json!({ "n": 10 })),
        completes("fanout", json!({ "n": 10 })),
        completes("select_loop", json!({ "n": 10 })),
        completes("draws", json!({ "marks": url })),
        completes("slow", json!({ "marks": url, "ms": 60 })),
        completes("troubled", json!({ "kind": "busy", "good_from_attempt": 3 })),
        fails("troubled", json!({ "kind": "declined", "good_from_attempt": 9 })),
        completes("handles_trouble", json!({ "kind": "busy", "retries": 1 })),
        completes("misbehaves", json!({ "how": "panic", "timeout_ms": 9_000 })),
        completes("keys", json!({ "seed": "s" })),
        completes("large_result", json!({ "bytes": 100_000 })),
        fails("large_result", json!({ "bytes": 2_000_000 })),
        completes("sleeps", json!({ "lengths_ms": [0, 1, 2] })),
        completes("sleeps_until", json!({ "at_ms": 1 })),
        completes("times", json!({ "n": 2 })).reading(&["times"], [json!(null), json!(null)]),
        completes("observes", json!({ "rounds": 4 })),
        completes("changing", json!({})).reading(&["changing"], [json!(7)]),
        completes("follow", json!({ "id": "1" })).reading(&[], [0, 1, 2].map(update)),
        completes("keyed_only", json!({ "id": "1" })),
        completes("read_any", json!({})).reading(&["any"], [json!([1]), json!("end")]),
        completes("reads_numbers", json!({})).reading(&["numbers"], [json!(1), json!("x"), json!("end")]),
        completes("two_hooks_and_timer", json!({ "n": 3, "timer_ms": 1 }))
            .reading(&["one", "two"], [json!(1), json!(1)]),
        completes("opens", json!({ "token": "held" })).reading(&["held"], [json!(1)]),
        completes("races", json!({ "rounds": 3 })).reading(&["races"], [json!(1), json!(1), json!(1)]),
        completes("broken", json!({ "how": "not" })),
        fails("fails", json!({ "message": "as asked" })),
        completes("forbidden_in_step", json!({ "what": "sleep" })),
    ];
    for case in cases {
        let workflow = case.workflow;
        let run = host.start_with(workflow, case.input, case.tokens).await;
        let token = case.tokens.first().copied().unwrap_or("order:1");
        for payload in case.payloads {
            host.deliver(token, payload)
                .await
                .unwrap_or_else(|error| panic!("{workflow}: {error}"));
        }
        let result = host.ended(&run).await;
        assert_eq!(result.status, case.status, "{workflow}: {result:?}");

        let left = marks.all();
        let report = host.agrees(&run).await;
        let journal = host.journal(&run).await;
        let calls = journal
            .iter()
            .filter(|entry| entry.event.made_by_call().is_some());
        assert_eq!(report.calls.len(), calls.count(), "{workflow}");
        assert_eq!(marks.all(), left, "the replay of {workflow} had an effect");
    }
}

// ---- F03 -------------------------------------------------------------------------------------------

/// The workflow observes time, randomness, hash order, NaN bits and addresses; what it saw is the input of its
/// steps, so that an activation that sees something else diverges. Two runs take turns in the one place for an
/// instance, and the host is started again in the middle.
#[tokio::test(flavor = "multi_thread")]
async fn f03_everything_observed_is_the_same_on_every_activation() {
    let config = EngineConfig {
        idle: Duration::ZERO,
        max_resident: 1,
        ..EngineConfig::default()
    };
    let mut host = TestHost::with(StoreKind::Sqlite, config, None, &[]).await;
    let one = host.start("observes", json!({ "rounds": 12 })).await;
    let other = host.start("observes", json!({ "rounds": 12 })).await;
    for entries in [10, 30, 50] {
        host.until(&one, |info| info.entries >= entries || info.status.is_terminal())
            .await;
        host = host.restart().await;
    }
    let seen = [host.output(&one).await, host.output(&other).await];
    for run in [&one, &other] {
        for _ in 0..3 {
            host.agrees(run).await;
        }
    }

    // Every run has a seed of its own: what is random in it is in no other.
    let words = |seen: &Value| -> Vec<Vec<String>> {
        let rounds = seen.as_array().unwrap().iter().map(|text| text.as_str().unwrap());
        rounds
            .map(|text| text.split_whitespace().map(str::to_owned).collect())
            .collect()
    };
    let [one, other] = seen.each_ref().map(words);
    let column = |rounds: &[Vec<String>], from: usize, to: usize| -> Vec<String> {
        rounds
            .iter()
            .map(|words| words[words.len() - to..words.len() - from].join(" "))
            .collect()
    };
    // From the end of a line: address, NaN bits, hash order, a number below a million, a number.
    assert!(
        column(&one, 1, 2).iter().all(|nan| nan == "7ff8000000000000"),
        "{seen:?}"
    );
    for (from, to) in [(2, 22), (22, 23), (23, 24)] {
        let (mine, theirs) = (column(&one, from, to), column(&other, from, to));
        assert!(
            mine.iter().all(|value| !theirs.contains(value)),
            "{mine:?} {theirs:?}"
        );
        let mut once = mine.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), mine.len(), "drawn twice in one run: {mine:?}");
    }
}

/// Each source by itself, so that it is known which one differs. Two runs of each take turns in few places.
#[tokio::test(flavor = "multi_thread")]
async fn f03_each_source_is_the_same_on_every_activation() {
    /// What another run sees.
    enum Others {
        See(&'static str),
        SeeTheSame,
        SeeAnother,
        /// May see either.
        Whatever,
    }
    use Others::{See, SeeAnother, SeeTheSame, Whatever};
    let sources = [
        ("wall clock", Whatever),
        ("monotonic clock", Whatever),
        ("now", Whatever),
        ("random", SeeAnother),
        ("random range", SeeAnother),
        ("random bytes", SeeAnother),
        ("insecure random bytes", SeeAnother),
        ("hash keys", SeeAnother),
        ("map", SeeAnother),
        ("set", SeeAnother),
        ("nan", See("7ff8000000000000 7ff8000000000000")),
        ("nan with a payload", See("7ff8000000000000 7ff8000000000000")),
        ("small nan", See("7fc00000")),
        ("heap address", SeeTheSame),
        ("stack address", SeeTheSame),
        ("run", SeeAnother),
        ("threads", SeeTheSame),
    ];
    let config = EngineConfig {
        idle: Duration::ZERO,
        max_resident: 4,
        ..EngineConfig::default()
    };
    let mut host = TestHost::with(StoreKind::Sqlite, config, None, &[]).await;
    let mut runs = Vec::new();
    for (source, others) in sources {
        let input = json!({ "source": source, "rounds": 5 });
        let one = host.start("observes_one", input.clone()).await;
        let other = host.start("observes_one", input).await;
        runs.push((source, others, one, other));
    }
    let (.., last) = &runs[runs.len() - 1];
    let last = last.clone();
    for entries in [4, 12] {
        host.until(&last, |info| info.entries >= entries || info.status.is_terminal())
            .await;
        host = host.restart().await;
    }
    for (source, others, one, other) in runs {
        let [seen, also] = [host.output(&one).await, host.output(&other).await];
        assert_eq!(seen.as_array().map(Vec::len), Some(5), "{source}");
        match others {
            See(value) => {
                let expected = json!(vec![value; 5]);
                assert_eq!([&seen, &also], [&expected; 2], "{source}");
            }
            SeeTheSame => assert_eq!(seen, also, "{source}"),
            SeeAnother => assert_ne!(seen, also, "{source}"),
            Whatever => {}
        }
        for run in [&one, &other] {
            host.agrees(run).await;
        }
    }
}

// ---- F04 -------------------------------------------------------------------------------------------

/// Starts `changing` and waits until its original waits for a payload.
async fn changing(host: &TestHost, token: &str) -> RunId {
    let run = host.start_with("changing", json!({}), &[token]).await;
    host.until(&run, |info| {
        info.status == RunStatus::Suspended && info.entries == 9
    })
    .await;
    run
}

/// Replays a run as if its source said another variant.
async fn replay_as(host: &TestHost, run: &RunId, name: &str) -> ReplayReport {
    let candidate = host.engine.load(variant(name)).await.unwrap();
    host.engine.replay(run, Some(candidate)).await.unwrap()
}

/// How a variant parts from a run's journal, and which calls matched.
async fn diverges(host: &TestHost, run: &RunId, name: &str) -> (DivergenceReport, Vec<bool>) {
    let report = replay_as(host, run, name).await;
    let matched = report.calls.iter().map(|call| call.matched).collect();
    match report.verdict {
        Verdict::Diverged(divergence) => (divergence, matched),
        verdict => panic!("{name}: {verdict:?}"),
    }
}

/// A changed program, and where it parts from the journal of the original.
struct Change {
    variant: &'static str,
    call: u64,
    seq: u64,
    recorded: &'static str,
    requested: &'static str,
    diff: &'static [&'static str],
    /// Text of the source line that asks. A workflow that waits is not at any line.
    line: Option<&'static str>,
}

const CHANGES: [Change; 7] = [
    Change {
        variant: "renamed",
        call: 0,
        seq: 1,
        recorded: r#"step one {"n":1}"#,
        requested: r#"step two {"n":1}"#,
        diff: &[r#"-  "name": "one""#, r#"+  "name": "two""#],
        line: Some("two(1).await?"),
    },
    Change {
        variant: "reordered",
        call: 0,
        seq: 1,
        recorded: r#"step one {"n":1}"#,
        requested: r#"step two {"n":2}"#,
        diff: &[
            r#"-    "n": 1"#,
            r#"+    "n": 2"#,
            r#"-  "name": "one""#,
            r#"+  "name": "two""#,
        ],
        line: Some("sum += two(2).await?;"),
    },
    Change {
        variant: "added",
        call: 1,
        seq: 4,
        recorded: "sleep 1 ms",
        requested: r#"step one {"n":7}"#,
        diff: &[r#"-  "kind": "sleep","#, r#"+  "kind": "step","#],
        line: Some("one(7)"),
    },
    Change {
        variant: "removed",
        call: 1,
        seq: 4,
        recorded: "sleep 1 ms",
        requested: r#"step two {"n":2}"#,
        diff: &[r#"-  "kind": "sleep","#, r#"+  "kind": "step","#],
        line: Some(r#"two(if other == "input""#),
    },
    Change {
        variant: "timer",
        call: 1,
        seq: 4,
        recorded: "sleep 1 ms",
        requested: "sleep 2 ms",
        diff: &[r#"-  "length_ms": 1"#, r#"+  "length_ms": 2"#],
        line: Some(r#"if other == "timer""#),
    },
    Change {
        variant: "input",
        call: 2,
        seq: 6,
        recorded: r#"step two {"n":2}"#,
        requested: r#"step two {"n":3}"#,
        diff: &[r#"-    "n": 2"#, r#"+    "n": 3"#],
        line: Some(r#"two(if other == "input""#),
    },
    Change {
        variant: "dropped",
        call: 2,
        seq: 6,
        recorded: r#"step two {"n":2}"#,
        requested: "wait",
        diff: &[r#"-  "kind": "step","#, r#"+  "kind": "wait""#],
        line: None,
    },
];

#[tokio::test(flavor = "multi_thread")]
async fn f04_a_changed_component_is_stopped_where_it_parts_from_the_journal() {
    let host = TestHost::new().await;
    let run = changing(&host, "t").await;
    let original = host.engine.run(&run).await.unwrap().component;
    let recorded = host.journal(&run).await;

    for change in &CHANGES {
        let name = change.variant;
        let component = host.engine.deploy(name, variant(name)).await.unwrap().digest;
        let before = host.journal(&run).await;
        host.engine.upgrade(&run, component, true).await.unwrap();
        let blocked = blocked(host.ended(&run).await);
        assert_eq!(blocked.reason, BlockReason::Nondeterminism, "{name}");

        let detail = &blocked.detail;
        assert_eq!(
            (&detail["call"], &detail["seq"]),
            (&json!(change.call), &json!(change.seq)),
            "{name}"
        );
        let source = detail["source"].as_str();
        let at = source.map(|source| format!(" at {source}")).unwrap_or_default();
        let expected = change.line.map(|line| place("changing.rs", line));
        assert_eq!(source.map(from_tests), expected.as_deref(), "{name}");
        let message = format!(
            "call {} differs from the journal (entry {}): recorded `{}`, requested `{}`{at}",
            change.call, change.seq, change.recorded, change.requested
        );
        assert_eq!(detail["message"], message, "{name}");
        let advice = format!("onemark runs upgrade {run} --component DIGEST");
        assert!(
            blocked.message.starts_with(&message) && blocked.message.contains(&advice),
            "{blocked:?}"
        );
        let diff: Vec<_> = detail["diff"].as_str().unwrap().lines().collect();
        for line in change.diff {
            assert!(diff.contains(line), "{name}: {diff:#?}");
        }

        // Nothing but the upgrade was written, and the run is as live as before.
        let journal = host.journal(&run).await;
        assert_eq!(journal[..before.len()], before, "{name}");
        let added: Vec<_> = journal[before.len()..].iter().map(|entry| &entry.event).collect();
        assert_eq!(added, [&Event::Upgraded { component }], "{name}");
        assert_eq!(host.engine.run(&run).await.unwrap().status, RunStatus::Blocked);

        // A replay says the same and leaves the run alone.
        let (report, _) = diverges(&host, &run, name).await;
        assert_eq!(json!(report), *detail, "{name}");
        assert_eq!(host.journal(&run).await, journal, "{name}");
    }

    // What comes meanwhile is kept, and the original goes on from where it was.
    host.deliver("t", json!(10)).await.unwrap();
    host.engine.upgrade(&run, original, false).await.unwrap();
    assert_eq!(host.output(&run).await, 13);
    let journal = host.journal(&run).await;
    assert_eq!(journal[..recorded.len()], recorded);
    let steps = journal
        .iter()
        .filter(|entry| matches!(entry.event, Event::AttemptStarted { .. }));
    assert_eq!(steps.count(), 2);
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f04_another_end_differs_only_from_a_journal_that_has_one() {
    let host = TestHost::new().await;
    let ended = host.start_with("changing", json!({}), &["ended"]).await;
    host.deliver("ended", json!(10)).await.unwrap();
    assert_eq!(host.output(&ended).await, 13);
    let live = changing(&host, "live").await;

    // Recorded and requested beyond the end, and at which call.
    let cases = [
        ("output", 3, "return 13", "return 14"),
        ("waits", 3, "return 13", "sleep 3600000 ms"),
    ];
    for (name, call, recorded, requested) in cases {
        let (report, matched) = diverges(&host, &ended, name).await;
        assert_eq!(matched, [true; 3], "{report:?}");
        let divergence = report.divergence;
        let side = |call: Option<onemark::journal::Call>| call.map(|call| call.to_string());
        assert_eq!(divergence.call, call);
        assert_eq!(side(divergence.recorded).as_deref(), Some(recorded));
        assert_eq!(side(divergence.requested).as_deref(), Some(requested));

        let report = replay_as(&host, &live, name).await;
        assert_eq!(report.verdict, Verdict::Agrees, "{name}");
    }

    // So a live run can be moved there.
    let component = host
        .engine
        .deploy("output", variant("output"))
        .await
        .unwrap()
        .digest;
    host.engine.upgrade(&live, component, false).await.unwrap();
    host.deliver("live", json!(10)).await.unwrap();
    assert_eq!(host.output(&live).await, 14);
    host.agrees(&live).await;
}

/// A build that is deployed while runs are at work is for new runs; one that is at work is moved to it only where it
/// does what the run did.
#[tokio::test(flavor = "multi_thread")]
async fn f06_runs_keep_their_component_until_one_that_replays_them_takes_over() {
    let mut host = TestHost::new().await;
    let old = changing(&host, "old").await;
    let before = host.engine.run(&old).await.unwrap();
    let journal = host.journal(&old).await;
    for change in &CHANGES {
        let name = change.variant;
        // Under the name of the deployment that the run came from.
        let component = host
            .engine
            .deploy("programs", variant(name))
            .await
            .unwrap()
            .digest;
        let refused = host.engine.upgrade(&old, component, false).await.unwrap_err();
        let Error::DoesNotReplay { verdict, .. } = &refused else {
            panic!("{name}: {refused:?}");
        };
        assert!(matches!(**verdict, Verdict::Diverged(_)), "{name}: {verdict:?}");
        let fresh = host.start_with("changing", json!({}), &[name]).await;
        assert_eq!(
            host.engine.run(&fresh).await.unwrap().component,
            component,
            "{name}"
        );
    }
    // Whatever was tried, nothing is left of it, over a restart as well.
    host = host.restart().await;
    host.reached(&old, RunStatus::Suspended).await;
    let after = host.engine.run(&old).await.unwrap();
    assert_eq!((after.component, after.blocked), (before.component, None));
    assert_eq!(host.journal(&old).await, journal);
    host.agrees(&old).await;
}

/// A workflow that ends where the journal has it call.
#[tokio::test(flavor = "multi_thread")]
async fn f04_an_early_end_differs() {
    let host = TestHost::new().await;
    let run = host.start("changing", json!({})).await;
    assert_eq!(host.output(&run).await, 3);
    let (report, matched) = diverges(&host, &run, "dropped").await;
    assert_eq!(matched, [true, true, false]);
    assert_eq!(
        report.message,
        r#"call 2 differs from the journal (entry 6): recorded `step two {"n":2}`, requested `return 1`"#
    );
}

// ---- F07, F15 --------------------------------------------------------------------------------------

/// How much the guest computes in a replay of `n` rounds, and how many entries that are.
async fn work(host: &TestHost, workflow: &str, n: u64) -> (u64, usize) {
    let run = host.start(workflow, json!({ "n": n })).await;
    assert_eq!(host.ended(&run).await.status, RunStatus::Completed);
    let report = host.agrees(&run).await;
    (report.fuel, host.journal(&run).await.len())
}

/// Work counted, not time taken, since machines that run tests are busy.
async fn is_linear(workflow: &str, small: u64, large: u64) {
    let host = TestHost::on(StoreKind::Memory).await;
    let (little, few) = work(&host, workflow, small).await;
    let (much, many) = work(&host, workflow, large).await;
    println!("{workflow}: {few} entries {little}, {many} entries {much}");
    assert!(many >= 9 * few, "{few} {many}");
    assert!(
        much * 10 <= little * 13 * large / small,
        "{few} entries {little}, {many} entries {much}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn f07_replay_of_a_long_journal_is_linear() {
    is_linear("sequence", 333, 3_330).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f15_joining_ten_thousand_steps_is_linear() {
    is_linear("fanout", 1_000, 10_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f15_ten_thousand_selects_are_linear() {
    is_linear("select_loop", 1_000, 10_000).await;
}

// ---- F09 -------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn f09_what_workflow_code_must_not_do() {
    let cases = [
        ("socket", "open sockets", "do it in a `#[step]`"),
        ("udp", "open sockets", "do it in a `#[step]`"),
        ("lookup", "use the network", "do it in a `#[step]`"),
        ("http", "send HTTP requests", "do it in a `#[step]`"),
        ("file", "open files", "do it in a `#[step]`"),
        ("env", "read environment variables", "do it in a `#[step]`"),
        (
            "thread_sleep",
            "block on a timer",
            "use `onemark_sdk::sleep`, which survives restarts",
        ),
        ("exit", "exit the process", "return an error"),
    ];
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        for (what, cannot, instead) in cases {
            let run = host.start("forbidden", json!({ "what": what })).await;
            let blocked = blocked(host.ended(&run).await);
            assert_eq!(blocked.reason, BlockReason::Trap, "{what}: {blocked:?}");
            assert_eq!(blocked.detail["kind"], "refused", "{what}: {blocked:?}");
            let message = format!("workflow code cannot {cannot}; {instead}");
            assert_eq!(blocked.detail["message"], message, "{what}");
            assert!(blocked.message.contains(&message), "{what}: {blocked:?}");
            let frame = blocked.detail["frames"][0].as_str().unwrap_or_default();
            assert!(
                frame.contains("tests/programs/src/forbidden.rs:"),
                "{what}: {blocked:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f09_what_steps_must_not_do() {
    let durable = |call: &str, instead: &str| {
        format!("`{call}` failed: it is durable and works in workflow code only; {instead}")
    };
    let cases = [
        ("env", "0".to_owned()),
        ("file", "true".to_owned()),
        ("socket", "true".to_owned()),
        ("sleep", durable("sleep", "in a step use `wstd::task::sleep`")),
        (
            "hook",
            durable("hook", "take payloads in the workflow and hand them to the step"),
        ),
        ("step", "a plain call".to_owned()),
    ];
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        for (what, expected) in &cases {
            let run = host.start("forbidden_in_step", json!({ "what": what })).await;
            assert_eq!(host.output(&run).await, **expected, "{what}");
        }
    }
}

/// C22
#[tokio::test(flavor = "multi_thread")]
async fn c22_durable_calls_inside_a_step_are_typed_errors() {
    let host = TestHost::new().await;
    for what in ["sleep", "sleep_until"] {
        let run = host.start("not_in_step", json!({ "what": what })).await;
        let expected = "not_in_step: it is durable and works in workflow code only; \
                        in a step use `wstd::task::sleep`";
        assert_eq!(host.output(&run).await, expected, "{what}");
    }
}

// ---- F08 -------------------------------------------------------------------------------------------

/// However a host is configured later, a run keeps the limits that it was admitted with, and so does its replay.
#[tokio::test(flavor = "multi_thread")]
async fn f08_a_run_keeps_the_limits_that_it_began_with() {
    let small = Limits {
        body_bytes: 10_000,
        workflow_memory: 32 << 20,
        ..Limits::default()
    };
    let begin = async |host: &TestHost, what: &str, much: u64| {
        let run = host.start("uses", json!({ "what": what, "much": much })).await;
        host.reached(&run, RunStatus::Suspended).await;
        run
    };
    let go = async |host: &TestHost, run: &RunId| {
        host.deliver(&format!("go of {run}"), json!(null)).await.unwrap();
    };
    for (before, after) in [
        (small.clone(), Limits::default()),
        (Limits::default(), small.clone()),
    ] {
        let host = TestHost::with_limits(StoreKind::Sqlite, before.clone()).await;
        let old = [
            begin(&host, "result", 20_000).await,
            begin(&host, "memory", 40).await,
        ];
        let config = EngineConfig {
            limits: after.clone(),
            ..EngineConfig::default()
        };
        let host = host.restart_with(config).await;
        let new = [
            begin(&host, "result", 20_000).await,
            begin(&host, "memory", 40).await,
        ];
        for (limits, [result, memory]) in [(before, old), (after, new)] {
            go(&host, &result).await;
            go(&host, &memory).await;
            let is_small = limits == small;
            let made = if is_small { "too_large" } else { "made 20000" };
            assert_eq!(host.output(&result).await, made);
            host.agrees(&result).await;
            if is_small {
                assert_eq!(blocked(host.ended(&memory).await).detail["kind"], "out_of_memory");
            } else {
                assert_eq!(host.output(&memory).await, "has 40");
                host.agrees(&memory).await;
            }
        }
    }
}

// ---- F12 -------------------------------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread")]
async fn f12_a_trap_blocks_the_run_and_a_mended_component_goes_on() {
    let cases = [
        ("panic", "trap", "panicked at ", r#"=> panic!("as asked")"#),
        (
            "raw panic",
            "trap",
            "wasm trap: wasm `unreachable` instruction executed; its stderr ended with: thread ",
            r#"panic!("without the SDK")"#,
        ),
        ("loop", "out_of_fuel", "out of fuel: ", "fn spin()"),
        ("memory", "out_of_memory", "out of memory: ", "all.push("),
        (
            "stack",
            "stack_overflow",
            "call stack exhausted",
            "black_box(deep(",
        ),
    ];
    let limits = Limits {
        workflow_fuel: 100_000_000,
        ..Limits::default()
    };
    let mut host = TestHost::with_limits(StoreKind::Sqlite, limits).await;
    let mut runs = Vec::new();
    for (how, reason, message, line) in cases {
        let run = host.start("broken", json!({ "how": how })).await;
        let blocked = blocked(host.ended(&run).await);
        assert_eq!(blocked.reason, BlockReason::Trap, "{how}");
        assert_eq!(blocked.detail["kind"], reason, "{how}: {blocked:?}");
        assert!(
            blocked.detail["message"].as_str().unwrap().starts_with(message),
            "{how}: {blocked:?}"
        );
        let frames = blocked.detail["frames"].as_array().unwrap();
        let line = place("misbehaviour.rs", line);
        let shown = |frame: &Value| frame.as_str().unwrap().contains(&line);
        assert!(frames.iter().any(shown), "{how}: {line} not in {frames:?}");
        assert!(
            blocked.message.contains(frames[0].as_str().unwrap()),
            "{how}: {blocked:?}"
        );
        let events = ["started", "step_scheduled", "attempt_started", "step_completed"];
        assert_eq!(host.events(&run).await, events, "{how}: the trap left an entry");
        runs.push((how, run, blocked));
    }

    // It stays so: the host does not try again by itself.
    host = host.restart().await;
    for (how, run, blocked) in &runs {
        assert_eq!(host.ended(run).await.blocked.as_ref(), Some(blocked), "{how}");
    }
    let mended = host
        .engine
        .deploy("mended", variant("mended"))
        .await
        .unwrap()
        .digest;
    for (how, run, _) in &runs {
        let info = host.engine.upgrade(run, mended, false).await.unwrap();
        assert_eq!(info.component, mended);
        assert_eq!(host.output(run).await, "saved, mended", "{how}");
        let events = [
            "started",
            "step_scheduled",
            "attempt_started",
            "step_completed",
            "upgraded",
            "completed",
        ];
        assert_eq!(host.events(run).await, events, "{how}");
        host.agrees(run).await;
    }
}

/// The panic of a guest that the standard library reports is told, and so is one of any length, up to a limit.
#[tokio::test(flavor = "multi_thread")]
async fn f12_a_trap_says_what_the_guest_said() {
    let host = TestHost::new().await;
    let run = host.start("broken", json!({ "how": "raw panic" })).await;
    let raw = blocked(host.ended(&run).await);
    let place = place("misbehaviour.rs", r#"panic!("without the SDK")"#);
    for text in [&format!("panicked at {place}"), "without the SDK"] {
        assert!(raw.message.contains(text), "{raw:?}");
    }

    let run = host.start("broken", json!({ "how": "long panic" })).await;
    let long = blocked(host.ended(&run).await);
    let told = long.detail["message"].as_str().unwrap();
    assert!(told.starts_with("panicked at "), "{told}");
    assert!(
        told.ends_with(" bytes more)") && told.len() < 4_096 + 30,
        "{told}"
    );
    assert!(long.message.len() < 5_000, "{}", long.message.len());
}

// ---- F14 -------------------------------------------------------------------------------------------

/// Payloads come around the moment at which the step of their round ends: sometimes first, sometimes last.
#[tokio::test(flavor = "multi_thread")]
async fn f14_a_step_and_a_payload_at_the_same_moment() {
    const ROUNDS: u64 = 1_000;
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        let run = host
            .start_with("races", json!({ "rounds": ROUNDS }), &["race"])
            .await;
        for round in 0..ROUNDS {
            // In one round of two the payload is early.
            while round % 2 == 0 && host.hook("race").await.unwrap().unread > 0 {
                tokio::task::yield_now().await;
            }
            host.deliver("race", json!(round)).await.unwrap();
        }
        let seen = host.output(&run).await.as_str().unwrap().to_owned();
        let rounds: Vec<_> = seen.as_bytes().chunks(2).collect();
        assert_eq!(rounds.len() as u64, ROUNDS);
        assert!(
            rounds.iter().all(|round| matches!(*round, b"sp" | b"ps")),
            "{seen}"
        );
        println!(
            "{kind:?}: payload first in {}",
            rounds.iter().filter(|round| round[0] == b'p').count()
        );
        let journal = host.journal(&run).await;
        let taken = journal.iter().map(|entry| match entry.event {
            Event::PayloadsTaken { count, .. } => u64::from(count),
            _ => 0,
        });
        assert_eq!(taken.sum::<u64>(), ROUNDS, "payloads counted as taken");
        host.agrees(&run).await;
    }
}
