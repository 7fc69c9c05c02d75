//! Large values that steps hand to each other by name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bindings::onemark::workflow::blobs;
use crate::failure::{Failure, FailureKind};
use crate::sandbox::{self, Sandbox};

/// Bytes that the host keeps outside of the journal, named by their SHA-256 digest. Up to 1 GiB each.
///
/// A step writes one and returns it; the journal holds the name and the length, and later steps read the bytes: of the
/// same run, of another that got it as input, after any restart. It is kept once, however often it is written.
///
/// ```
/// # use onemark_sdk::{Blob, prelude::*};
/// #[step]
/// async fn render(report: u64) -> Result<Blob, StepFailed> {
///     let mut writer = Blob::writer()?;
///     for page in 0..report {
///         writer.write(format!("page {page}\n").as_bytes())?;
///     }
///     Ok(writer.finish()?)
/// }
///
/// #[step]
/// async fn count_lines(report: &Blob) -> Result<usize, StepFailed> {
///     let mut reader = report.reader()?;
///     let mut lines = 0;
///     while let Some(chunk) = reader.next()? {
///         lines += chunk.iter().filter(|&&byte| byte == b'\n').count();
///     }
///     Ok(lines)
/// }
/// ```
///
/// Reading and writing work in steps and closures. In workflow code they fail with [`FailureKind::NotInWorkflow`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Blob {
    /// SHA-256, in lower-case hex.
    pub digest: String,
    pub bytes: u64,
}

/// Largest chunk that the host takes or gives.
const CHUNK_BYTES: usize = 1 << 20;

fn require_step(call: &str) -> Result<(), Failure> {
    let (kind, message) = match sandbox::current() {
        Sandbox::Step => return Ok(()),
        Sandbox::Workflow => (
            FailureKind::NotInWorkflow,
            "workflow code cannot read or write blobs; do it in a `#[step]` and hand the `Blob` on",
        ),
        Sandbox::None => (
            FailureKind::NotInStep,
            "not in a step: only a step that the host runs can do this",
        ),
    };
    Err(Failure::local(call, kind, message))
}

impl Blob {
    /// Writes a blob that is in memory as a whole.
    ///
    /// # Errors
    ///
    /// As [`BlobWriter::write`] and [`BlobWriter::finish`].
    pub fn write(bytes: impl AsRef<[u8]>) -> Result<Self, Failure> {
        let mut writer = Self::writer()?;
        writer.write(bytes.as_ref())?;
        writer.finish()
    }

    /// Begins a blob that is written piece by piece.
    ///
    /// # Errors
    ///
    /// `not_in_workflow` in workflow code; `storage_failed` when the host's disk does not take it; `invalid` when the
    /// attempt holds 16 writers and readers.
    pub fn writer() -> Result<BlobWriter, Failure> {
        require_step("Blob::writer")?;
        let writer =
            blobs::Writer::create().map_err(|document| Failure::untyped("Blob::writer", &document))?;
        Ok(BlobWriter { writer })
    }

    /// Reads the whole blob into memory.
    ///
    /// # Errors
    ///
    /// As [`Blob::reader`] and [`BlobReader::next`].
    pub fn read(&self) -> Result<Vec<u8>, Failure> {
        let mut reader = self.reader()?;
        let mut bytes = Vec::new();
        while let Some(chunk) = reader.next()? {
            bytes.extend(chunk);
        }
        Ok(bytes)
    }

    /// Reads the blob piece by piece.
    ///
    /// # Errors
    ///
    /// `not_in_workflow` in workflow code; `unknown_blob` when the host has none of this digest; `invalid` when the
    /// digest is none, or the attempt holds 16 writers and readers.
    pub fn reader(&self) -> Result<BlobReader, Failure> {
        require_step("Blob::reader")?;
        let reader = blobs::Reader::open(&self.digest);
        let reader = reader.map_err(|document| Failure::untyped("Blob::reader", &document))?;
        Ok(BlobReader { reader })
    }
}

/// A blob that is being written; see [`Blob::writer`]. Dropped, it leaves nothing.
#[derive(Debug)]
#[must_use = "a blob is there once it is finished"]
pub struct BlobWriter {
    writer: blobs::Writer,
}

impl BlobWriter {
    /// Adds bytes.
    ///
    /// # Errors
    ///
    /// `too_large` when the blob would have more than 1 GiB, or those of this attempt more than 4 GiB;
    /// `storage_failed` when the host's disk does not take it, as when it is full. A step that fails because of that is
    /// tried again.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for chunk in bytes.chunks(CHUNK_BYTES) {
            let written = self.writer.write(chunk);
            written.map_err(|document| Failure::untyped("BlobWriter::write", &document))?;
        }
        Ok(())
    }

    /// Keeps the blob: once this returns, it survives a crash.
    ///
    /// # Errors
    ///
    /// `storage_failed` when the host's disk does not take it.
    pub fn finish(self) -> Result<Blob, Failure> {
        let call = "BlobWriter::finish";
        let blob = self.writer.finish();
        let blob = blob.map_err(|document| Failure::untyped(call, &document))?;
        serde_json::from_str(&blob)
            .map_err(|error| Failure::local(call, FailureKind::TypeMismatch, error.to_string()))
    }
}

/// A blob that is being read; see [`Blob::reader`].
#[derive(Debug)]
pub struct BlobReader {
    reader: blobs::Reader,
}

impl BlobReader {
    /// The next bytes, at most 1 MiB; `None` at the end. The last are given only when the whole blob is as it was
    /// written.
    ///
    /// # Errors
    ///
    /// `corrupt_blob` when it is not, `storage_failed` when the host's disk does not give it.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would go on after an error"
    )]
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let chunk = self.reader.read(CHUNK_BYTES as u32);
        let chunk = chunk.map_err(|document| Failure::untyped("BlobReader::next", &document))?;
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }
}
