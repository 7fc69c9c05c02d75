//! What guests write: passed on once and within bounds, in order, and the rest counted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use onemark::journal::{Entry, Event, Limits, NewEntry, Replay};
use onemark::sandbox::{AttemptEnd, AttemptRequest, LogLevel, LogSink, NoEffects, Owner, WorkflowEnd};
use onemark_tests::{TestHost, programs, sandbox};
use serde_json::json;

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
    fn log(&self, level: LogLevel, line: &str) {
        self.0.lock().unwrap().push((level, line.to_owned()));
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
        attempt: 1,
        idempotency_key: "key".into(),
        timeout: Duration::from_secs(60),
        limits: Limits::default(),
        logs: lines.clone(),
        effects: Arc::new(NoEffects),
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
    let run = onemark::ids::RunId::new("run").unwrap();
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
