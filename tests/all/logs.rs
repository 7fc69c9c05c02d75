//! What guests write: passed on once and within bounds, in order, and the rest counted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use onemark::engine::{FollowedLogs, FollowingLogs};
use onemark::ids::RunId;
use onemark::journal::{Entry, Event, Limits, LogLevel, LogLine, NewEntry, Replay, RunStatus};
use onemark::sandbox::{
    Attempt, AttemptEnd, AttemptRequest, Line, LogSink, NoBlobs, NoEffects, Owner, WorkflowEnd,
};
use onemark::store::{LogFilter, LogPage};
use onemark_tests::{Marks, StoreKind, TestHost, on_each_store, programs, sandbox};
use serde_json::json;

on_each_store! {
    a_run_keeps_what_its_guests_write_in_order_and_once,
    g04_what_a_run_does_not_keep_is_counted,
    a_blocked_run_says_in_its_log_what_led_there,
    hostile_lines_are_kept_as_they_are,
    readers_follow_a_log,
}

/// Lines and bytes that one activation or attempt may write, and the longest line.
const LINES: usize = 10_000;
const BYTES: usize = 4 << 20;
const LINE_BYTES: usize = 8 << 10;

/// Ways to write, and the level at which lines appear.
const STREAMS: [(&str, LogLevel); 3] = [
    ("log", LogLevel::Info),
    ("stdout", LogLevel::Info),
    ("stderr", LogLevel::Warn),
];

/// Keeps what is written.
#[derive(Default)]
struct Lines(Mutex<Vec<(LogLevel, String)>>);

impl Lines {
    fn take(&self) -> Vec<(LogLevel, String)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl LogSink for Lines {
    fn log(&self, line: Line<'_>) {
        self.0.lock().unwrap().push((line.level, line.text.to_owned()));
    }

    fn dropped_in_all(&self, text: &str) {
        self.0.lock().unwrap().push((LogLevel::Warn, text.to_owned()));
    }
}

/// Does nothing for its guest.
struct Nobody;

#[async_trait]
impl Owner for Nobody {
    async fn advance(&mut self, _: &mut Replay) -> anyhow::Result<()> {
        anyhow::bail!("nobody is there")
    }

    async fn commit(&mut self, _: &mut Replay) -> anyhow::Result<()> {
        anyhow::bail!("nobody is there")
    }

    fn leftover(&mut self) -> Vec<NewEntry> {
        Vec::new()
    }
}

/// What the step `writes` leaves in its log.
async fn step_writes(to: &str, n: u64, bytes: usize) -> Vec<(LogLevel, String)> {
    let sandbox = sandbox(&[]);
    let component = sandbox.load(programs()).await.unwrap();
    let lines = Arc::new(Lines::default());
    let request = AttemptRequest {
        step: "writes".into(),
        input: json!({ "to": to, "n": n, "bytes": bytes }).to_string().into(),
        limits: Limits::default(),
        attempt: Attempt {
            number: 1,
            idempotency_key: "key".into(),
            timeout: Duration::from_secs(60),
            logs: lines.clone(),
            effects: Arc::new(NoEffects),
            blobs: Arc::new(NoBlobs),
        },
    };
    let end = sandbox.run_step(&component, request).await;
    assert_eq!(end, AttemptEnd::Returned(Ok("null".into())));
    lines.take()
}

fn dropped(lines: u64) -> (LogLevel, String) {
    let text = format!(
        "{lines} more lines were dropped: the log takes 10000 lines and 4 MiB of one activation or attempt"
    );
    (LogLevel::Warn, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn g04_lines_over_the_limit_are_dropped_and_counted() {
    for (to, level) in STREAMS {
        let lines = step_writes(to, 12_000, 10).await;
        assert_eq!(lines.len(), LINES + 1, "{to}");
        for (i, line) in lines[..LINES].iter().enumerate() {
            assert_eq!(*line, (level, format!("{i} äääää")), "{to}");
        }
        assert_eq!(lines[LINES], dropped(2_000), "{to}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g04_long_lines_are_cut() {
    // The log's line says what is missing; a stream has no lines but those that it is cut into.
    let lines = step_writes("log", 1, 100_000).await;
    let (_, line) = &lines[0];
    assert_eq!(lines.len(), 1);
    assert!(line.ends_with("ä… (91810 bytes more)"), "{line}");
    assert!(line.len() < LINE_BYTES + 30, "{}", line.len());

    for to in ["stdout", "stderr"] {
        let lines = step_writes(to, 2, 100_000).await;
        let text: String = lines.iter().map(|(_, line)| line.as_str()).collect();
        let long = "ä".repeat(50_000);
        assert_eq!(text, format!("0 {long}1 {long}"), "{to}");
        assert!(lines.iter().all(|(_, line)| line.len() <= LINE_BYTES), "{to}");
        assert_eq!(lines.len(), 2 * 100_000_usize.div_ceil(LINE_BYTES), "{to}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g04_bytes_over_the_limit_are_dropped_and_counted() {
    for (to, _) in STREAMS {
        let lines = step_writes(to, 1_000, 8_000).await;
        let kept = lines.len() - 1;
        let bytes: usize = lines[..kept].iter().map(|(_, line)| line.len()).sum();
        assert!((BYTES - LINE_BYTES..=BYTES).contains(&bytes), "{to}: {bytes}");
        assert_eq!(lines[kept], dropped(1_000 - kept as u64), "{to}");
    }
}

/// Runs a workflow over this much of its journal; how it ended and what it wrote.
async fn activate(entries: Vec<Entry>) -> (WorkflowEnd, Vec<(LogLevel, String)>) {
    let sandbox = sandbox(&[]);
    let component = sandbox.load(programs()).await.unwrap();
    let lines = Arc::new(Lines::default());
    let run = RunId::new("run").unwrap();
    let replay = Replay::resume(entries).unwrap();
    let pass = sandbox
        .run_workflow(&component, run, replay, Box::new(Nobody), lines.clone())
        .await;
    (pass.end, lines.take())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_writes_each_line_once_and_within_the_limit() {
    let host = TestHost::new().await;
    for (to, level) in STREAMS {
        let input = json!({ "to": to, "n": 11_000, "bytes": 2 });
        let run = host.start("writes_lines", input).await;
        host.output(&run).await;
        let journal = host.journal(&run).await;
        let saved = journal
            .iter()
            .position(|entry| matches!(entry.event, Event::StepCompleted { .. }));

        // From the beginning up to the step, and from the step's result on.
        let (first, before) = activate(journal[..1].to_vec()).await;
        assert!(matches!(first, WorkflowEnd::Stopped(_)), "{first:?}");
        let (second, after) = activate(journal[..=saved.unwrap()].to_vec()).await;
        assert!(matches!(second, WorkflowEnd::Returned(Ok(_))), "{second:?}");
        for lines in [before, after] {
            assert_eq!(lines.len(), LINES + 1, "{to}");
            assert_eq!(lines[0], (level, "0 ä".to_owned()), "{to}");
            assert_eq!(lines[LINES], dropped(1_000), "{to}");
        }
    }
}

async fn page(host: &TestHost, run: &RunId) -> LogPage {
    let filter = LogFilter {
        from: 0,
        limit: usize::MAX,
        level: LogLevel::Debug,
    };
    let page = host.engine.logs(run, filter).await.unwrap();
    for (expected, (index, _)) in (0..).zip(&page.lines) {
        assert_eq!(*index, expected);
    }
    page
}

/// Level, call, attempt and text of every line.
async fn lines(host: &TestHost, run: &RunId) -> Vec<String> {
    let page = page(host, run).await;
    assert_eq!(page.dropped, 0);
    let text = |(_, line): (u64, LogLine)| {
        let from = line
            .call
            .map_or("-".to_owned(), |call| format!("{call}.{}", line.attempt));
        format!("{} {from} {}", line.level, line.text)
    };
    page.lines.into_iter().map(text).collect()
}

async fn a_run_keeps_what_its_guests_write_in_order_and_once(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start("keeps_a_log", json!({})).await;
    // The step is tried again a moment later.
    host.until(&run, |info| info.wake_at.is_some()).await;
    host.advance(Duration::from_secs(5));
    host.until(&run, |info| info.tags.get("state").is_some()).await;
    host.reached(&run, RunStatus::Suspended).await;
    let before = [
        "info - begin",
        "info - to stdout",
        "warn 0.1 attempt 1",
        "info 0.2 attempt 2",
        "info - after the step",
        "debug 1.1 in the closure",
        "info - before the sleep",
    ];
    assert_eq!(lines(&host, &run).await, before);

    // Another activation says nothing of that again, and goes on.
    let host = host.restart().await;
    assert_eq!(lines(&host, &run).await, before);
    host.advance(Duration::from_secs(60));
    host.output(&run).await;
    let after: Vec<_> = before.into_iter().chain(["error - end"]).collect();
    assert_eq!(lines(&host, &run).await, after);

    // A replay has no effects.
    host.agrees(&run).await;
    assert_eq!(lines(&host, &run).await, after);

    // Workflow code is where its guest was, an attempt where its run was; neither goes back.
    let all = page(&host, &run).await.lines;
    let positions: Vec<_> = all.iter().map(|(_, line)| line.seq).collect();
    assert!(positions.is_sorted(), "{positions:?}");
    assert_eq!((positions[0], positions[1]), (0, 0));
    let journal = host.journal(&run).await;
    let fired = journal
        .iter()
        .rfind(|entry| matches!(entry.event, Event::TimerFired { .. }));
    assert_eq!(*positions.last().unwrap(), fired.unwrap().seq);

    // Pieces, and levels.
    let filter = |from, limit, level| LogFilter { from, limit, level };
    let piece = host
        .engine
        .logs(&run, filter(2, 2, LogLevel::Debug))
        .await
        .unwrap();
    assert_eq!(piece.lines, all[2..4]);
    let bad = host
        .engine
        .logs(&run, filter(0, 10, LogLevel::Warn))
        .await
        .unwrap();
    let indexes: Vec<_> = bad.lines.iter().map(|(index, _)| *index).collect();
    assert_eq!(indexes, [2, 7]);
}

async fn g04_what_a_run_does_not_keep_is_counted(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let input = json!({ "to": "log", "n": 11_000, "bytes": 2 });
    let run = host.start("writes_lines", input).await;
    host.output(&run).await;
    let LogPage { lines, dropped } = page(&host, &run).await;
    // One activation and one attempt, of three times as much.
    assert_eq!((lines.len(), dropped), (2 * LINES, 3 * 11_000 - 2 * LINES as u64));
    assert!(lines[..LINES].iter().all(|(_, line)| line.call.is_none()));
    assert!(lines[LINES..].iter().all(|(_, line)| line.call == Some(0)));
}

async fn a_blocked_run_says_in_its_log_what_led_there(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start("says_why_and_panics", json!({})).await;
    host.reached(&run, RunStatus::Blocked).await;
    let written = lines(&host, &run).await;
    assert_eq!(written[0], "info - this goes wrong");
    assert!(
        written
            .iter()
            .any(|line| line.starts_with("error - panicked at ")),
        "{written:?}"
    );
    // Once more, with the same component: it was all said.
    let host = host.restart().await;
    assert_eq!(lines(&host, &run).await, written);
}

async fn hostile_lines_are_kept_as_they_are(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (run, _) = host.completes("writes_hostile_lines", json!({})).await;
    let written = lines(&host, &run).await;
    let expected = [
        "info 0.1 \u{1b}[2J\u{7}two\nlines\r\0'; DROP TABLE runs; --",
        "info 0.1 \u{fffd}\u{fffd}\0\u{1b}]0;title",
        "warn 0.1 no end",
    ];
    assert_eq!(written, expected);
}

async fn next_line(following: &mut FollowingLogs) -> String {
    match following.next().await.unwrap() {
        FollowedLogs::Lines(lines) if lines.len() == 1 => lines[0].1.text.to_string(),
        other => panic!("one line is there: {other:?}"),
    }
}

async fn readers_follow_a_log(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start("says_what_comes", json!({ "token": "say" })).await;
    let mut following = host
        .engine
        .follow_logs(run.clone(), 0, LogLevel::Info)
        .await
        .unwrap();
    for word in ["a", "b", "end"] {
        host.deliver("say", json!(word)).await.unwrap();
        assert_eq!(next_line(&mut following).await, word);
    }
    let status = RunStatus::Completed;
    let end = FollowedLogs::Ended { status, dropped: 0 };
    assert_eq!(following.next().await.unwrap(), end);
    let nobody = host
        .engine
        .follow_logs(RunId::new("nobody").unwrap(), 0, LogLevel::Info);
    assert!(nobody.await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_an_attempt_are_there_before_it_ends_and_survive_its_end() {
    let marks = Marks::start().await;
    marks.hold("logged");
    let host = TestHost::with_http(&[marks.authority()]).await;
    let run = host
        .start("logs_and_marks", json!({ "marks": marks.url() }))
        .await;
    marks.reached("logged", 1).await;
    let mut following = host
        .engine
        .follow_logs(run.clone(), 0, LogLevel::Info)
        .await
        .unwrap();
    assert_eq!(next_line(&mut following).await, "before, 1");
    drop(following);

    // The attempt is cut off; the next one's lines are beside its own.
    let host = host.restart().await;
    marks.reached("logged", 2).await;
    marks.let_go();
    host.output(&run).await;
    let written = lines(&host, &run).await;
    assert_eq!(
        written,
        ["info 0.1 before, 1", "info 0.2 before, 2", "info 0.2 after, 2"]
    );
}
