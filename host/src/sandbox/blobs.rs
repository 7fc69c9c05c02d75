//! Where blobs of steps go, and where they come from.

use async_trait::async_trait;

use crate::ids::Digest;
use crate::journal::{Failure, FailureKind};

/// Most bytes that attempts write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobLimits {
    /// Of one blob.
    pub blob_bytes: u64,
    /// Of all blobs of one attempt.
    pub attempt_bytes: u64,
}

impl Default for BlobLimits {
    fn default() -> Self {
        Self {
            blob_bytes: 1 << 30,
            attempt_bytes: 4 << 30,
        }
    }
}

/// Keeps the blobs that attempts write. Failures are for the guest.
#[async_trait]
pub trait BlobStore: Send + Sync {
    fn limits(&self) -> BlobLimits;

    async fn create(&self) -> Result<Box<dyn BlobWriter>, Failure>;

    async fn open(&self, digest: Digest) -> Result<Box<dyn BlobReader>, Failure>;
}

/// A blob that is being written. Dropped before it is finished, it leaves nothing.
#[async_trait]
pub trait BlobWriter: Send {
    async fn write(&mut self, chunk: &[u8]) -> Result<(), Failure>;

    /// Returns once the blob survives: its digest.
    async fn finish(self: Box<Self>) -> Result<Digest, Failure>;
}

#[async_trait]
pub trait BlobReader: Send {
    /// The next bytes, at most `max`; none at the end.
    async fn read(&mut self, max: usize) -> Result<Vec<u8>, Failure>;
}

/// Keeps nothing: for attempts of no run.
#[derive(Debug)]
pub struct NoBlobs;

#[async_trait]
impl BlobStore for NoBlobs {
    fn limits(&self) -> BlobLimits {
        BlobLimits::default()
    }

    async fn create(&self) -> Result<Box<dyn BlobWriter>, Failure> {
        Err(Failure::new(FailureKind::StorageFailed, "no blobs are kept here"))
    }

    async fn open(&self, _: Digest) -> Result<Box<dyn BlobReader>, Failure> {
        Err(Failure::new(FailureKind::StorageFailed, "no blobs are kept here"))
    }
}
