//! Blobs: files beside the database, each named after its content.
//!
//! ```text
//! onemark.db.blobs/unfinished/…      while it is written; gone at the next start
//! onemark.db.blobs/ab/cdef…          what a saved step may name
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};
use tempfile::{NamedTempFile, TempDir, TempPath};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Engine;
use super::error::Result;
use crate::ids::Digest;
use crate::journal::{Failure, FailureKind};
use crate::sandbox::{BlobLimits, BlobReader, BlobStore, BlobWriter};

const UNFINISHED: &str = "unfinished";

/// Blobs that are open at once, of all attempts and of those who fetch them: each takes a file of those that the
/// process may open.
const MAX_OPEN: usize = 256;

/// Why a blob cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    #[error("there is no blob {0}")]
    NotFound(Digest),
    #[error("blob {0} is not as it was written: the disk has changed it")]
    Corrupt(Digest),
    #[error("the folder of blobs cannot be used: {0}; make room there, or mend it")]
    Storage(#[from] io::Error),
}

impl From<BlobError> for Failure {
    fn from(error: BlobError) -> Self {
        let kind = match &error {
            BlobError::NotFound(_) => FailureKind::UnknownBlob,
            BlobError::Corrupt(_) => FailureKind::CorruptBlob,
            BlobError::Storage(_) => FailureKind::StorageFailed,
        };
        Self::new(kind, error.to_string())
    }
}

/// The folder.
pub struct Blobs {
    folder: PathBuf,
    limits: BlobLimits,
    open: Arc<Semaphore>,
    /// Of a host that keeps nothing: removed with it.
    _temporary: Option<TempDir>,
}

impl Blobs {
    /// Removes what an earlier host did not finish. The folder itself is made with the first blob.
    pub fn open(folder: Option<&Path>, limits: BlobLimits) -> io::Result<Self> {
        let temporary = match folder {
            Some(_) => None,
            None => Some(TempDir::new()?),
        };
        let kept = folder.or(temporary.as_ref().map(TempDir::path));
        let folder = kept.map(Path::to_path_buf).unwrap_or_default();
        match std::fs::remove_dir_all(folder.join(UNFINISHED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self {
            folder,
            limits,
            open: Arc::new(Semaphore::new(MAX_OPEN)),
            _temporary: temporary,
        })
    }

    /// Nobody waits for a place: two attempts that hold some could wait for each other.
    fn place_for_one(&self) -> io::Result<OwnedSemaphorePermit> {
        let place = self.open.clone().try_acquire_owned();
        place.map_err(|_| io::Error::other(format!("{MAX_OPEN} blobs are open at once, as many as may be")))
    }

    async fn begin(&self) -> io::Result<Writing> {
        let open = self.place_for_one()?;
        let folder = self.folder.clone();
        let made = move || {
            let unfinished = folder.join(UNFINISHED);
            private_folder(&unfinished)?;
            Ok((NamedTempFile::new_in(unfinished)?.into_parts(), folder))
        };
        let ((file, path), folder) = blocking(made).await?;
        Ok(Writing {
            folder,
            file: File::from_std(file),
            path,
            hash: Sha256::new(),
            _open: open,
        })
    }

    async fn read(&self, digest: Digest) -> std::result::Result<Reading, BlobError> {
        let open = self.place_for_one()?;
        let file = match File::open(place(&self.folder, digest)).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BlobError::NotFound(digest)),
            opened => opened?,
        };
        Ok(Reading {
            left: file.metadata().await?.len(),
            file,
            digest,
            hash: Some(Sha256::new()),
            _open: open,
        })
    }
}

fn place(folder: &Path, digest: Digest) -> PathBuf {
    let name = digest.to_string();
    let (first, rest) = name.split_at(2);
    folder.join(first).join(rest)
}

/// Readable and writable by the host's user alone.
fn private_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

/// A blob on its way. Dropped, its file is gone.
struct Writing {
    folder: PathBuf,
    file: File,
    path: TempPath,
    hash: Sha256,
    _open: OwnedSemaphorePermit,
}

impl Writing {
    async fn finish(self) -> io::Result<Digest> {
        let Self {
            folder,
            mut file,
            path,
            hash,
            _open,
        } = self;
        file.flush().await?;
        file.sync_all().await?;
        let digest = Digest(hash.finalize().into());
        let named = move || {
            let place = place(&folder, digest);
            let shelf = place.parent().unwrap_or(&folder);
            private_folder(shelf)?;
            // Where there is such a blob this has the same content, and mends it if it was damaged.
            path.persist(&place)?;
            // The names must survive too: of the file, and of its folders.
            let beside = folder.parent().filter(|beside| !beside.as_os_str().is_empty());
            for folder in [shelf, &folder, beside.unwrap_or(Path::new("."))] {
                std::fs::File::open(folder)?.sync_all()?;
            }
            Ok(())
        };
        blocking(named).await?;
        Ok(digest)
    }
}

/// A blob that is read. The last bytes are given only when all are as they were written.
pub struct Reading {
    file: File,
    left: u64,
    digest: Digest,
    /// `None` once it is checked.
    hash: Option<Sha256>,
    _open: OwnedSemaphorePermit,
}

impl Reading {
    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next bytes, at most `max`; none at the end.
    ///
    /// # Errors
    /// When the blob is not as it was written, or cannot be read.
    pub async fn next(&mut self, max: usize) -> std::result::Result<Vec<u8>, BlobError> {
        let wanted = usize::try_from(self.left).map_or(max, |left| left.min(max));
        let mut bytes = vec![0; wanted];
        let mut read = 0;
        while read < wanted {
            match self.file.read(&mut bytes[read..]).await? {
                0 => return Err(BlobError::Corrupt(self.digest)),
                more => read += more,
            }
        }
        if let Some(hash) = &mut self.hash {
            hash.update(&bytes);
        }
        self.left -= wanted as u64;
        if self.left == 0
            && let Some(hash) = self.hash.take()
            && self.digest != Digest(hash.finalize().into())
        {
            return Err(BlobError::Corrupt(self.digest));
        }
        Ok(bytes)
    }
}

#[async_trait]
impl BlobWriter for Writing {
    async fn write(&mut self, chunk: &[u8]) -> std::result::Result<(), Failure> {
        self.hash.update(chunk);
        Ok(self.file.write_all(chunk).await.map_err(BlobError::from)?)
    }

    async fn finish(self: Box<Self>) -> std::result::Result<Digest, Failure> {
        Ok(Self::finish(*self).await.map_err(BlobError::from)?)
    }
}

#[async_trait]
impl BlobReader for Reading {
    async fn read(&mut self, max: usize) -> std::result::Result<Vec<u8>, Failure> {
        Ok(self.next(max).await?)
    }
}

#[async_trait]
impl BlobStore for Blobs {
    fn limits(&self) -> BlobLimits {
        self.limits
    }

    async fn create(&self) -> std::result::Result<Box<dyn BlobWriter>, Failure> {
        Ok(Box::new(self.begin().await.map_err(BlobError::from)?))
    }

    async fn open(&self, digest: Digest) -> std::result::Result<Box<dyn BlobReader>, Failure> {
        Ok(Box::new(self.read(digest).await?))
    }
}

impl Engine {
    /// A blob, to be read piece by piece.
    ///
    /// # Errors
    /// When there is none of this digest, or it cannot be read.
    pub async fn blob(&self, digest: Digest) -> Result<Reading> {
        Ok(self.0.blobs.read(digest).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> usize {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return 0;
        };
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .map(|path| if path.is_dir() { files(&path) } else { 1 })
            .sum()
    }

    async fn write(blobs: &Blobs, chunks: &[&[u8]]) -> Digest {
        let mut writer = blobs.create().await.unwrap();
        for chunk in chunks {
            writer.write(chunk).await.unwrap();
        }
        writer.finish().await.unwrap()
    }

    #[tokio::test]
    async fn one_content_is_kept_once_whatever_its_pieces() {
        let blobs = Blobs::open(None, BlobLimits::default()).unwrap();
        let one = write(&blobs, &[b"abc"]).await;
        assert_eq!(one, Digest::of("abc"));
        assert_eq!(write(&blobs, &[b"a", b"", b"bc"]).await, one);
        assert_eq!(files(&blobs.folder), 1);
        let empty = write(&blobs, &[]).await;
        assert_eq!(blobs.read(empty).await.unwrap().next(9).await.unwrap(), b"");
        let mut reading = blobs.read(one).await.unwrap();
        assert_eq!(reading.next(2).await.unwrap(), b"ab");
        assert_eq!(reading.next(2).await.unwrap(), b"c");
        assert_eq!(reading.next(2).await.unwrap(), b"");
    }

    #[tokio::test]
    async fn what_is_not_finished_leaves_nothing() {
        let folder = TempDir::new().unwrap();
        let blobs = Blobs::open(Some(folder.path()), BlobLimits::default()).unwrap();
        let mut writer = blobs.create().await.unwrap();
        writer.write(b"abc").await.unwrap();
        assert_eq!(files(folder.path()), 1);
        drop(writer);
        assert_eq!(files(folder.path()), 0);
        // A process that was killed removes nothing; the next one does.
        std::fs::write(folder.path().join(UNFINISHED).join("left"), "abc").unwrap();
        Blobs::open(Some(folder.path()), BlobLimits::default()).unwrap();
        assert_eq!(files(folder.path()), 0);
    }

    #[tokio::test]
    async fn damage_is_seen_before_the_last_bytes_and_mended_by_writing_again() {
        let blobs = Blobs::open(None, BlobLimits::default()).unwrap();
        let digest = write(&blobs, &[b"abcd"]).await;
        let path = place(&blobs.folder, digest);
        for damaged in ["abcX", "abc", "abcde", ""] {
            std::fs::write(&path, damaged).unwrap();
            let mut reading = blobs.read(digest).await.unwrap();
            let read = loop {
                match reading.next(2).await {
                    Ok(bytes) if bytes.is_empty() => break Ok(()),
                    Ok(_) => {}
                    Err(error) => break Err(error),
                }
            };
            assert!(matches!(read, Err(BlobError::Corrupt(_))), "{damaged}: {read:?}");
        }
        write(&blobs, &[b"abcd"]).await;
        assert_eq!(blobs.read(digest).await.unwrap().next(9).await.unwrap(), b"abcd");
    }

    #[tokio::test]
    async fn so_many_are_open_at_once_and_no_more() {
        let blobs = Blobs::open(None, BlobLimits::default()).unwrap();
        let digest = write(&blobs, &[b"abc"]).await;
        let mut readers = Vec::new();
        for _ in 0..MAX_OPEN {
            readers.push(blobs.read(digest).await.unwrap());
        }
        let failure = blobs.create().await.err().unwrap();
        assert_eq!(failure.kind, FailureKind::StorageFailed);
        readers.pop();
        blobs.create().await.unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_used_is_a_typed_failure() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("blobs");
        let blobs = Blobs::open(Some(&path), BlobLimits::default()).unwrap();
        std::fs::write(&path, "a file").unwrap();
        let failure = blobs.create().await.err().unwrap();
        assert_eq!(failure.kind, FailureKind::StorageFailed);
    }
}
