//! Connections that read, beside the writer and without waiting for it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use super::failure::Failure;
use crate::store::{Result, StoreError};

/// How long a reader waits for another process that holds the database alone.
const BUSY: Duration = Duration::from_secs(5);

/// A few connections, opened when first needed.
pub struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub fn new(path: PathBuf, limit: usize) -> Self {
        Self {
            path,
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(limit.max(1))),
        }
    }

    /// Reads from one state of the database, as the last commit left it.
    pub async fn run<F, T>(&self, read: F) -> Result<T>
    where
        F: FnOnce(&Connection) -> std::result::Result<T, Failure> + Send + 'static,
        T: Send + 'static,
    {
        let permit = self.permits.clone().acquire_owned().await;
        let idle = self.idle.clone();
        let path = self.path.clone();
        let task = tokio::task::spawn_blocking(move || {
            let taken = lock(&idle).pop();
            let conn = taken.map_or_else(|| open(path), Ok)?;
            let result = snapshot(&conn, read);
            lock(&idle).push(conn);
            // Held until here, also when nobody waits for the answer any more.
            drop(permit);
            result
        });
        match task.await {
            Ok(result) => result.map_err(StoreError::from),
            Err(error) => Err(StoreError::Fatal(format!("a read did not end: {error}"))),
        }
    }
}

fn snapshot<T>(
    conn: &Connection,
    read: impl FnOnce(&Connection) -> std::result::Result<T, Failure>,
) -> std::result::Result<T, Failure> {
    let transaction = conn.unchecked_transaction()?;
    let result = read(&transaction);
    transaction.finish()?;
    result
}

fn lock(idle: &Mutex<Vec<Connection>>) -> std::sync::MutexGuard<'_, Vec<Connection>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(path: PathBuf) -> std::result::Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY)?;
    super::open::prepare_once(&conn)?;
    Ok(conn)
}
