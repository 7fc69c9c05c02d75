//! `onemark:workflow/blobs`.

use std::sync::Arc;

use serde_json::json;
use wasmtime::component::Resource;

use crate::ids::Digest;
use crate::journal::{Failure, FailureKind};
use crate::sandbox::bindings::onemark::workflow::blobs::{Host, HostReader, HostWriter};
use crate::sandbox::blobs::{BlobLimits, BlobStore};
use crate::sandbox::guest::{Guest, OpenReader, OpenWriter};

const MAX_CHUNK_BYTES: usize = 1 << 20;

/// Writers and readers of one attempt: each holds a file open.
const MAX_OPEN: u32 = 16;

type Answer<T> = wasmtime::Result<Result<T, String>>;

fn document(failure: Failure) -> String {
    failure.to_json()
}

fn invalid(text: impl AsRef<str>) -> Failure {
    Failure::new(FailureKind::Invalid, text)
}

fn too_large(text: String) -> Failure {
    Failure::new(FailureKind::TooLarge, text)
}

/// Whether a chunk may be added to a blob of so many bytes, in an attempt that wrote so many.
fn check_chunk(chunk: usize, blob: u64, attempt: u64, limits: BlobLimits) -> Result<(), Failure> {
    let BlobLimits {
        blob_bytes,
        attempt_bytes,
    } = limits;
    if chunk > MAX_CHUNK_BYTES {
        let text = format!("the chunk has {chunk} bytes; the limit is {MAX_CHUNK_BYTES}");
        return Err(too_large(text));
    }
    if blob + chunk as u64 > blob_bytes {
        let text = format!("the blob would have more than {blob_bytes} bytes, its limit");
        return Err(too_large(text));
    }
    if attempt + chunk as u64 > attempt_bytes {
        let text = format!("the attempt would write blobs of more than {attempt_bytes} bytes, its limit");
        return Err(too_large(text));
    }
    Ok(())
}

impl Guest {
    /// The store, where this guest is a step that may open one more.
    fn opens(&mut self, call: &'static str) -> wasmtime::Result<Result<Arc<dyn BlobStore>, Failure>> {
        let step = self.step(call)?;
        if step.blobs_open >= MAX_OPEN {
            let text = format!("the attempt holds {MAX_OPEN} writers and readers of blobs; drop some first");
            return Ok(Err(invalid(text)));
        }
        Ok(Ok(step.blobs.clone()))
    }
}

impl Host for Guest {}

impl HostWriter for Guest {
    async fn create(&mut self) -> Answer<Resource<OpenWriter>> {
        let blobs = match self.opens("blobs.writer.create")? {
            Ok(blobs) => blobs,
            Err(failure) => return Ok(Err(document(failure))),
        };
        match blobs.create().await {
            Ok(writer) => {
                self.step("blobs.writer.create")?.blobs_open += 1;
                let open = OpenWriter {
                    writer: Some(writer),
                    bytes: 0,
                };
                Ok(Ok(self.table.push(open)?))
            }
            Err(failure) => Ok(Err(document(failure))),
        }
    }

    async fn write(&mut self, writer: Resource<OpenWriter>, chunk: Vec<u8>) -> Answer<()> {
        let step = self.step("blobs.writer.write")?;
        let (written, limits) = (step.blob_bytes, step.blobs.limits());
        let open = self.table.get_mut(&writer)?;
        let Some(writer) = &mut open.writer else {
            return Ok(Err(document(invalid(
                "the blob is finished, or could not be written",
            ))));
        };
        if let Err(failure) = check_chunk(chunk.len(), open.bytes, written, limits) {
            return Ok(Err(document(failure)));
        }
        if let Err(failure) = writer.write(&chunk).await {
            // What is there of it cannot be known.
            open.writer = None;
            return Ok(Err(document(failure)));
        }
        open.bytes += chunk.len() as u64;
        self.step("blobs.writer.write")?.blob_bytes += chunk.len() as u64;
        Ok(Ok(()))
    }

    async fn finish(&mut self, writer: Resource<OpenWriter>) -> Answer<String> {
        self.step("blobs.writer.finish")?;
        let open = self.table.get_mut(&writer)?;
        let bytes = open.bytes;
        let Some(writer) = open.writer.take() else {
            return Ok(Err(document(invalid(
                "the blob is finished, or could not be written",
            ))));
        };
        let finished = writer.finish().await;
        let blob = finished.map(|digest| json!({ "digest": digest, "bytes": bytes }).to_string());
        Ok(blob.map_err(document))
    }

    fn drop(&mut self, writer: Resource<OpenWriter>) -> wasmtime::Result<()> {
        self.table.delete(writer)?;
        self.step("blobs.writer.drop")?.blobs_open -= 1;
        Ok(())
    }
}

impl HostReader for Guest {
    async fn open(&mut self, digest: String) -> Answer<Resource<OpenReader>> {
        let blobs = match self.opens("blobs.reader.open")? {
            Ok(blobs) => blobs,
            Err(failure) => return Ok(Err(document(failure))),
        };
        let digest: Digest = match digest.parse() {
            Ok(digest) => digest,
            Err(error) => {
                return Ok(Err(document(invalid(format!(
                    "a blob is named by its digest: {error}"
                )))));
            }
        };
        match blobs.open(digest).await {
            Ok(reader) => {
                self.step("blobs.reader.open")?.blobs_open += 1;
                Ok(Ok(self.table.push(OpenReader(reader))?))
            }
            Err(failure) => Ok(Err(document(failure))),
        }
    }

    async fn read(&mut self, reader: Resource<OpenReader>, max: u32) -> Answer<Vec<u8>> {
        self.step("blobs.reader.read")?;
        if max == 0 {
            return Ok(Err(document(invalid("to read no bytes would look like the end"))));
        }
        let max = MAX_CHUNK_BYTES.min(max as usize);
        let OpenReader(reader) = self.table.get_mut(&reader)?;
        Ok(reader.read(max).await.map_err(document))
    }

    fn drop(&mut self, reader: Resource<OpenReader>) -> wasmtime::Result<()> {
        self.table.delete(reader)?;
        self.step("blobs.reader.drop")?.blobs_open -= 1;
        Ok(())
    }
}
