//! Where a guest's log lines and standard streams go.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

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

/// A guest's stdout or stderr: whole lines go to the log.
#[derive(Clone)]
pub(super) struct LogStream {
    pub sink: Arc<dyn LogSink>,
    pub level: LogLevel,
}

/// A line longer than this is cut into several.
const MAX_LINE_BYTES: usize = 8 << 10;

struct LineWriter {
    stream: LogStream,
    line: Vec<u8>,
}

impl LineWriter {
    fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte != b'\n' {
                self.line.push(byte);
            }
            if byte == b'\n' || self.line.len() >= MAX_LINE_BYTES {
                self.emit();
            }
        }
    }

    fn emit(&mut self) {
        let line = String::from_utf8_lossy(&self.line);
        self.stream.sink.log(self.stream.level, &line);
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
