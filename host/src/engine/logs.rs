//! A run's log: what its guests write is kept here until the run's next commit takes it along.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::Engine;
use super::error::{Error, Result};
use crate::clock::Clock;
use crate::ids::RunId;
use crate::journal::{CallNo, LogBatch, LogLevel, LogLine, LogMark, RunStatus, Seq};
use crate::sandbox::{Line, LogSink};
use crate::store::{LogFilter, LogPage};

// Text that waits for a commit, in bytes: of one run, and of all. What comes beyond is dropped and counted, so that no
// guest waits for a store that stalls.
const MAX_RUN_BYTES: u64 = 4 << 20;
const MAX_BYTES: u64 = 64 << 20;

/// What a line takes beside its text.
const LINE_BYTES: u64 = 64;

/// Lines that are read at a time by who follows.
const AT_ONCE: usize = 100;

/// The bytes of all runs' lines that wait. Shared by all activations of an engine.
pub type Waiting = Arc<AtomicU64>;

/// The log of one activation and its attempts.
pub struct RunLog {
    run: RunId,
    clock: Arc<dyn Clock>,
    waiting: Waiting,
    /// What an earlier activation wrote of workflow code.
    known: Option<LogMark>,
    /// The run's last entry.
    seq: AtomicU64,
    unsaved: Mutex<Unsaved>,
    news: Notify,
}

#[derive(Default)]
struct Unsaved {
    batch: LogBatch,
    bytes: u64,
}

/// Lines that are taken along; counted as waiting until dropped.
pub struct Taken {
    pub batch: LogBatch,
    bytes: u64,
    waiting: Waiting,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl RunLog {
    pub fn new(engine: &Engine, run: RunId, seq: Seq, known: Option<LogMark>) -> Arc<Self> {
        Arc::new(Self {
            run,
            clock: engine.0.clock.clone(),
            waiting: engine.0.log_bytes.clone(),
            known,
            seq: AtomicU64::new(seq),
            unsaved: Mutex::default(),
            news: Notify::new(),
        })
    }

    fn unsaved(&self) -> MutexGuard<'_, Unsaved> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run's journal has come to this entry.
    pub fn set_position(&self, seq: Seq) {
        self.seq.store(seq, Ordering::Relaxed);
    }

    /// Everything that waits, for a commit.
    pub fn take(&self) -> Taken {
        let Unsaved { batch, bytes } = std::mem::take(&mut *self.unsaved());
        Taken {
            batch,
            bytes,
            waiting: self.waiting.clone(),
        }
    }

    pub fn is_waiting(&self) -> bool {
        !self.unsaved().batch.is_empty()
    }

    /// Returns once there is something to take.
    pub async fn written(&self) {
        while !self.is_waiting() {
            self.news.notified().await;
        }
    }

    /// Whether an earlier activation wrote this line.
    fn is_known(&self, step: Option<(CallNo, u32)>, line: &Line<'_>) -> bool {
        step.is_none() && self.known >= Some((line.seq, line.number))
    }

    fn add(&self, step: Option<(CallNo, u32)>, line: Line<'_>) {
        if self.is_known(step, &line) {
            return;
        }
        trace(&self.run, step, line);
        let (call, attempt) = step.unzip();
        let made = LogLine {
            at: self.clock.now(),
            level: line.level,
            call,
            attempt: attempt.unwrap_or(0),
            seq: match step {
                Some(_) => self.seq.load(Ordering::Relaxed),
                None => line.seq,
            },
            number: line.number,
            text: line.text.into(),
        };
        let bytes = line.text.len() as u64 + LINE_BYTES;
        let mut unsaved = self.unsaved();
        if step.is_none() {
            unsaved.batch.mark = Some((line.seq, line.number));
        }
        let fits = unsaved.bytes + bytes <= MAX_RUN_BYTES
            && self.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_BYTES;
        if fits {
            unsaved.bytes += bytes;
            unsaved.batch.lines.push(made);
        } else {
            if unsaved.bytes + bytes <= MAX_RUN_BYTES {
                self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            }
            unsaved.batch.dropped += 1;
        }
        drop(unsaved);
        self.news.notify_one();
    }

    fn drop_line(&self, step: Option<(CallNo, u32)>, line: Line<'_>) {
        if self.is_known(step, &line) {
            return;
        }
        let mut unsaved = self.unsaved();
        if step.is_none() {
            unsaved.batch.mark = Some((line.seq, line.number));
        }
        unsaved.batch.dropped += 1;
        drop(unsaved);
        self.news.notify_one();
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl LogSink for RunLog {
    fn log(&self, line: Line<'_>) {
        self.add(None, line);
    }

    fn dropped(&self, line: Line<'_>) {
        self.drop_line(None, line);
    }

    fn dropped_in_all(&self, text: &str) {
        tracing::warn!(target: "onemark::guest", run = %self.run, "{text}");
    }
}

/// What one attempt writes.
pub struct StepLog {
    pub log: Arc<RunLog>,
    pub call: CallNo,
    pub attempt: u32,
}

impl LogSink for StepLog {
    fn log(&self, line: Line<'_>) {
        self.log.add(Some((self.call, self.attempt)), line);
    }

    fn dropped(&self, line: Line<'_>) {
        self.log.drop_line(Some((self.call, self.attempt)), line);
    }

    fn dropped_in_all(&self, text: &str) {
        let Self { log, call, attempt } = self;
        tracing::warn!(target: "onemark::guest", run = %log.run, call, attempt, "{text}");
    }
}

/// The operator's view.
fn trace(run: &RunId, step: Option<(CallNo, u32)>, Line { level, text, .. }: Line<'_>) {
    let (call, attempt) = step.unzip();
    match level {
        LogLevel::Debug => tracing::debug!(target: "onemark::guest", %run, call, attempt, "{text}"),
        LogLevel::Info => tracing::info!(target: "onemark::guest", %run, call, attempt, "{text}"),
        LogLevel::Warn => tracing::warn!(target: "onemark::guest", %run, call, attempt, "{text}"),
        LogLevel::Error => tracing::error!(target: "onemark::guest", %run, call, attempt, "{text}"),
    }
}

impl Engine {
    /// A piece of a run's log.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn logs(&self, run: &RunId, filter: LogFilter) -> Result<LogPage> {
        let page = self.0.store.logs(run, filter).await?;
        page.ok_or_else(|| Error::RunNotFound(run.clone()))
    }

    /// Reads a run's log from index `from` on, of this level or above, and what is written to it from now on.
    ///
    /// # Errors
    /// [`Error::RunNotFound`].
    pub async fn follow_logs(&self, run: RunId, from: u64, level: LogLevel) -> Result<FollowingLogs> {
        let changes = self.0.registry.watch_output(&run);
        self.run(&run).await?;
        Ok(FollowingLogs {
            engine: self.clone(),
            run,
            next: from,
            level,
            changes,
        })
    }
}

/// A log that is read as it is written.
pub struct FollowingLogs {
    engine: Engine,
    run: RunId,
    next: u64,
    level: LogLevel,
    changes: watch::Receiver<()>,
}

/// What comes next in a log that is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowedLogs {
    /// With their places.
    Lines(Vec<(u64, LogLine)>),
    /// The run has ended, and everything is read. `dropped` counts lines that were not kept.
    Ended { status: RunStatus, dropped: u64 },
    /// This host stops; the log goes on at the next start.
    Stopping,
}

impl FollowingLogs {
    /// Waits for more.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn next(&mut self) -> Result<FollowedLogs> {
        loop {
            // Before the lines: nothing is written after the end.
            let status = self.engine.run(&self.run).await?.status;
            let filter = LogFilter {
                from: self.next,
                limit: AT_ONCE,
                level: self.level,
            };
            let LogPage { lines, dropped } = self.engine.logs(&self.run, filter).await?;
            if let Some((last, _)) = lines.last() {
                self.next = last + 1;
                return Ok(FollowedLogs::Lines(lines));
            }
            if status.is_terminal() {
                return Ok(FollowedLogs::Ended { status, dropped });
            }
            if self.changes.changed().await.is_err() {
                return Ok(FollowedLogs::Stopping);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    /// Nobody commits, and the guest goes on.
    #[test]
    fn what_waits_is_bounded_and_the_rest_is_counted() {
        let waiting = Waiting::default();
        let log = || RunLog {
            run: RunId::new("run").unwrap(),
            clock: Arc::new(SystemClock),
            waiting: waiting.clone(),
            known: Some((3, 4)),
            seq: AtomicU64::new(0),
            unsaved: Mutex::default(),
            news: Notify::new(),
        };
        let text = "x".repeat(8 << 10);
        let logs: Vec<_> = (0..20).map(|_| log()).collect();
        for log in &logs {
            for number in 0..1_000 {
                log.log(Line {
                    level: LogLevel::Info,
                    text: &text,
                    seq: 3,
                    number,
                });
            }
        }
        let held = waiting.load(Ordering::Relaxed);
        assert!(held <= MAX_BYTES && held > MAX_BYTES - 10_000, "{held}");
        let taken: Vec<_> = logs.iter().map(RunLog::take).collect();
        for Taken { batch, bytes, .. } in &taken {
            assert!(*bytes <= MAX_RUN_BYTES);
            // Five were known from before.
            assert_eq!(batch.lines.len() as u64 + batch.dropped, 995);
            assert_eq!(batch.mark, Some((3, 999)));
        }
        drop(taken);
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
    }
}
