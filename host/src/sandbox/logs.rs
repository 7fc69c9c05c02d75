//! Where a guest's log lines and standard streams go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::journal::shortened;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// Takes the lines that a guest writes.
pub trait LogSink: Send + Sync {
    fn log(&self, level: LogLevel, line: &str);
}

/// Throws lines away: for replay, which has no effects.
#[derive(Debug)]
pub struct NoLogs;

impl LogSink for NoLogs {
    fn log(&self, _: LogLevel, _: &str) {}
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
    sink: Arc<dyn LogSink>,
    /// An earlier activation wrote what the guest writes now.
    silent: AtomicBool,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
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
            sink,
            silent: AtomicBool::new(false),
            written: Mutex::default(),
        })
    }

    /// Whether lines are not passed on, since they were before.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self, level: LogLevel, line: &str) {
        let line = shortened(line, MAX_LINE_BYTES);
        let mut written = self.written();
        if line.starts_with("panicked at ") {
            written.panic = Some(line.to_string());
        }
        if self.silent.load(Ordering::Relaxed) {
            return;
        }
        let full = written.lines >= MAX_LINES || written.bytes + line.len() > MAX_BYTES;
        // Nothing follows a gap, so that what is there is the beginning of what was written.
        if full || written.dropped > 0 {
            written.dropped += 1;
            return;
        }
        written.lines += 1;
        written.bytes += line.len();
        drop(written);
        self.sink.log(level, &line);
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
        let dropped = self.written().dropped;
        if dropped > 0 {
            let text = format!(
                "{dropped} more lines were dropped: the log takes {MAX_LINES} lines and {} MiB of one activation or \
                 attempt",
                MAX_BYTES >> 20
            );
            self.sink.log(LogLevel::Warn, &text);
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
