//! Where a guest's log lines and standard streams go.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::journal::{LogLevel, Seq, shortened};

/// A line that a guest wrote.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    pub level: LogLevel,
    pub text: &'a str,
    /// The last entry that a workflow's guest had observed; of other guests 0.
    pub seq: Seq,
    /// Counts what the guest wrote at this `seq`, also what is not passed on; from 0.
    pub number: u64,
}

/// Takes the lines that a guest writes. Never waits.
pub trait LogSink: Send + Sync {
    fn log(&self, line: Line<'_>);

    /// A line was over the limit of one activation or attempt.
    fn dropped(&self, _line: Line<'_>) {}

    /// Those lines in words, once the guest is gone.
    fn dropped_in_all(&self, _text: &str) {}
}

/// Throws lines away: for replay, which has no effects.
#[derive(Debug)]
pub struct NoLogs;

impl LogSink for NoLogs {
    fn log(&self, _: Line<'_>) {}
}

/// Most lines and bytes that one activation or attempt may write. What comes then is dropped and counted.
const MAX_LINES: u64 = 10_000;
const MAX_BYTES: usize = 4 << 20;

/// A longer line is cut: of the log into one that says so, of a standard stream into several.
const MAX_LINE_BYTES: usize = 8 << 10;

/// How much of the end of stderr is kept, for guests that report there what ends them.
const STDERR_BYTES: usize = 1 << 10;

/// The log of one activation or attempt: passes on what the guest writes, within bounds.
pub struct GuestLog {
    written: Mutex<Written>,
}

struct Written {
    sink: Arc<dyn LogSink>,
    /// An earlier activation wrote what the guest writes now.
    silent: bool,
    /// Where the guest is, and how much it has written there.
    seq: Seq,
    number: u64,
    lines: u64,
    bytes: usize,
    dropped: u64,
    /// The message of a panic, which guests of the SDK log before they trap.
    panic: Option<String>,
    /// The end of stderr.
    stderr: Vec<u8>,
}

/// What a guest said before it trapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastWords {
    Panic(String),
    Stderr(String),
}

impl GuestLog {
    pub fn new(sink: Arc<dyn LogSink>) -> Arc<Self> {
        Arc::new(Self {
            written: Mutex::new(Written {
                sink,
                silent: false,
                seq: 0,
                number: 0,
                lines: 0,
                bytes: 0,
                dropped: 0,
                panic: None,
                stderr: Vec::new(),
            }),
        })
    }

    /// Of an instance that was made before it was known for what.
    pub fn set_sink(&self, sink: Arc<dyn LogSink>) {
        self.written().sink = sink;
    }

    /// Whether lines are not passed on, since they were before.
    pub fn set_silent(&self, silent: bool) {
        self.written().silent = silent;
    }

    /// A workflow's guest has observed the journal up to there.
    pub fn set_position(&self, seq: Seq) {
        let mut written = self.written();
        if written.seq != seq {
            (written.seq, written.number) = (seq, 0);
        }
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self, level: LogLevel, line: &str) {
        let text = shortened(line, MAX_LINE_BYTES);
        let mut written = self.written();
        if text.starts_with("panicked at ") {
            written.panic = Some(text.to_string());
        }
        let (seq, number) = (written.seq, written.number);
        written.number += 1;
        if written.silent {
            return;
        }
        let line = Line {
            level,
            text: &text,
            seq,
            number,
        };
        let full = written.lines >= MAX_LINES || written.bytes + text.len() > MAX_BYTES;
        // Nothing follows a gap, so that what is there is the beginning of what was written.
        if full || written.dropped > 0 {
            written.dropped += 1;
            written.sink.dropped(line);
            return;
        }
        written.lines += 1;
        written.bytes += text.len();
        written.sink.log(line);
    }

    /// What the guest said of the trap that ended it.
    pub fn last_words(&self) -> Option<LastWords> {
        let mut written = self.written();
        if let Some(panic) = written.panic.take() {
            return Some(LastWords::Panic(panic));
        }
        let end = written.stderr.len().saturating_sub(STDERR_BYTES);
        let text = String::from_utf8_lossy(&written.stderr[end..]);
        let text = text.trim();
        (!text.is_empty()).then(|| LastWords::Stderr(text.to_owned()))
    }
}

impl Drop for GuestLog {
    fn drop(&mut self) {
        let written = self.written();
        let dropped = written.dropped;
        if dropped > 0 {
            let text = format!(
                "{dropped} more lines were dropped: the log takes {MAX_LINES} lines and {} MiB of one activation or \
                 attempt",
                MAX_BYTES >> 20
            );
            written.sink.dropped_in_all(&text);
        }
    }
}

/// A guest's stdout or stderr: whole lines go to the log.
#[derive(Clone)]
pub(super) enum LogStream {
    Stdout(Arc<GuestLog>),
    Stderr(Arc<GuestLog>),
}

struct LineWriter {
    stream: LogStream,
    line: Vec<u8>,
}

impl LineWriter {
    fn push(&mut self, bytes: &[u8]) {
        if let LogStream::Stderr(log) = &self.stream {
            let stderr = &mut log.written().stderr;
            stderr.extend_from_slice(bytes);
            // Seldom, so that many short writes cost little.
            if stderr.len() > 4 * STDERR_BYTES {
                stderr.drain(..stderr.len() - STDERR_BYTES);
            }
        }
        for &byte in bytes {
            // A long line is cut between two characters, of which none has more than four bytes.
            let begins = byte & 0b1100_0000 != 0b1000_0000;
            let full = self.line.len() > MAX_LINE_BYTES - 4;
            if byte == b'\n' || full && begins || self.line.len() == MAX_LINE_BYTES {
                self.emit();
            }
            if byte != b'\n' {
                self.line.push(byte);
            }
        }
    }

    fn emit(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        match &self.stream {
            LogStream::Stdout(log) => log.write(LogLevel::Info, &line),
            LogStream::Stderr(log) => log.write(LogLevel::Warn, &line),
        }
        self.line.clear();
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        if !self.line.is_empty() {
            self.emit();
        }
    }
}

#[async_trait::async_trait]
impl Pollable for LineWriter {
    async fn ready(&mut self) {}
}

impl OutputStream for LineWriter {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 << 10)
    }
}

impl IsTerminal for LogStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LogStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        // Only components of WASI 0.3 ask for this; none is loaded here.
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(LineWriter {
            stream: self.clone(),
            line: Vec::new(),
        })
    }
}
