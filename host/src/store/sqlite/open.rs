//! Opening a database file: whose it is, of which version, and that nobody else has it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::migrations;

/// Prepared statements that a connection keeps: more than there are.
const STATEMENTS: usize = 64;

/// How long the writer waits when another program holds the database, e.g. a shell.
const BUSY: Duration = Duration::from_secs(1);

/// A write-ahead log that grew in a burst is cut to this, in bytes.
const LOG_BYTES: u64 = 64 << 20;

/// Why a database file was not opened. Nothing was written to it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{} is in use by process {pid} on {host}; stop that host, or name another file with `--db`",
        .path.display()
    )]
    InUse {
        path: PathBuf,
        pid: String,
        host: String,
    },
    #[error(
        "{} is not an Onemark database ({found}); name another file with `--db`",
        .path.display()
    )]
    NotOurs { path: PathBuf, found: &'static str },
    #[error(
        "{} was written by a newer Onemark (database version {found}, this build knows {known}); \
         use that build or a newer one",
        .path.display()
    )]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error("{} cannot be opened: {error}; check that the path and its permissions are right", .path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} cannot be opened as a database: {error}", .path.display())]
    Sqlite { path: PathBuf, error: rusqlite::Error },
}

/// The writing connection of a database that is ready, and the lock that keeps others away.
pub struct Opened {
    pub conn: Connection,
    pub lock: File,
}

/// Opens a database, or makes one where there is no file or an empty one.
pub fn open(path: &Path) -> Result<Opened, OpenError> {
    // One file has one lock, by whatever link it is reached.
    let real = std::fs::canonicalize(path);
    let path = real.as_deref().unwrap_or(path);
    let unreadable = |error| OpenError::Unreadable {
        path: path.into(),
        error,
    };
    let sqlite = |error| OpenError::Sqlite {
        path: path.into(),
        error,
    };

    // Before the lock, so that no lock file appears beside a file of somebody else; after it again, as it
    // may have been made meanwhile.
    check_header(path)?;
    let lock = lock(path)?;
    if check_header(path)? == Header::Empty {
        create(path).map_err(unreadable)?;
    }

    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    conn.busy_timeout(BUSY).map_err(sqlite)?;
    prepare_once(&conn).map_err(sqlite)?;
    // The log of a host that was killed may hold a newer version than the file's header. Until that is
    // known, closing must not move it into the file.
    let quiet = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
    conn.set_db_config(quiet, true).map_err(sqlite)?;
    let version = migrations::version(&conn).map_err(sqlite)?;
    check_version(path, version)?;
    conn.set_db_config(quiet, false).map_err(sqlite)?;

    // Tables first, in one ordinary transaction: a file is empty or ours at any moment.
    migrations::apply(&mut conn).map_err(sqlite)?;
    configure(&conn).map_err(sqlite)?;
    Ok(Opened { conn, lock })
}

/// Lets a statement be prepared once and run often.
pub fn prepare_once(conn: &Connection) -> rusqlite::Result<()> {
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Without this, partial indexes make SQLite plan every query on their table anew for every value bound.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn configure(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "journal_mode", "WAL")?;
    // A commit is on the disk before it is answered.
    conn.pragma_update(None, "synchronous", "FULL")?;
    conn.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
    // Savepoints keep their pages in memory.
    conn.pragma_update(None, "temp_store", "MEMORY")?;
    conn.pragma_update(None, "cache_size", "-16384")
}

#[derive(Debug, PartialEq, Eq)]
enum Header {
    /// No file, or nothing in it.
    Empty,
    Ours,
}

/// Looks at the first bytes without SQLite, which might begin recovery or leave files beside.
fn check_header(path: &Path) -> Result<Header, OpenError> {
    let unreadable = |error| OpenError::Unreadable {
        path: path.into(),
        error,
    };
    let foreign = |found| OpenError::NotOurs {
        path: path.into(),
        found,
    };
    let mut header = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(100).read_to_end(&mut header).map_err(unreadable)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Header::Empty),
        Err(error) => return Err(unreadable(error)),
    };
    if header.is_empty() {
        return Ok(Header::Empty);
    }
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(foreign("it is no SQLite database"));
    }
    // Big-endian numbers at fixed places of the file format.
    let number = |at: usize| {
        header[at..at + 4]
            .iter()
            .fold(0, |n, byte| n << 8 | u32::from(*byte))
    };
    let (version, application) = (number(60), number(68));
    if application != migrations::APPLICATION_ID {
        return Err(foreign("it is a SQLite database of another application"));
    }
    check_version(path, version)?;
    Ok(Header::Ours)
}

fn check_version(path: &Path, found: u32) -> Result<(), OpenError> {
    let known = migrations::KNOWN;
    if found > known {
        return Err(OpenError::Newer {
            path: path.into(),
            found,
            known,
        });
    }
    Ok(())
}

/// Takes the lock of a database. It falls with the process, however that ends; its file stays, so that no
/// two hosts can lock two files of the same name.
fn lock(path: &Path) -> Result<File, OpenError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let unreadable = |error| OpenError::Unreadable {
        path: lock_path.clone(),
        error,
    };

    let mut file = private().truncate(false).open(&lock_path).map_err(unreadable)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut owner = String::new();
            file.take(1024).read_to_string(&mut owner).map_err(unreadable)?;
            let mut words = owner.split_whitespace();
            let mut word = || words.next().unwrap_or("unknown").to_owned();
            let (pid, host) = (word(), word());
            return Err(OpenError::InUse {
                path: path.into(),
                pid,
                host,
            });
        }
        Err(TryLockError::Error(error)) => return Err(unreadable(error)),
    }
    let host = gethostname::gethostname();
    file.set_len(0).map_err(unreadable)?;
    writeln!(file, "{} {}", std::process::id(), host.to_string_lossy()).map_err(unreadable)?;
    Ok(file)
}

/// Makes the file, which SQLite's other files take their permissions from.
fn create(path: &Path) -> io::Result<()> {
    private().truncate(false).open(path).map(drop)
}

/// Opens for reading and writing; what gets made only its owner may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
