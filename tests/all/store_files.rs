//! The SQLite store and its real files: whose they are, what a commit promises, what damage does.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use onemark::journal::{Event, NewEntry, RunStatus};
use onemark::store::{
    Admission, BlockReason, Blocked, Fence, OpenError, RunFilter, SqliteOptions, SqliteStore, Store,
    StoreError,
};
use rusqlite::Connection;

use crate::store_support::*;

fn open_error(path: &std::path::Path) -> OpenError {
    match SqliteStore::open(path, SqliteOptions::default()) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

/// Names of the files in a folder.
fn names(folder: &std::path::Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

// ---- opening ---------------------------------------------------------------------------------------

#[tokio::test]
async fn h02_a_second_host_is_refused_with_the_first_ones_pid_and_host() {
    let file = File::new();
    let first = file.open();
    let OpenError::InUse { pid, host, .. } = open_error(&file.path()) else {
        panic!()
    };
    assert_eq!(pid, std::process::id().to_string());
    assert!(!host.is_empty() && host != "unknown");
    assert_eq!(first.take_over(1).await.unwrap(), Fence(1));
    drop(first);
    assert_eq!(
        file.open().take_over(2).await.unwrap(),
        Fence(2),
        "the epoch survived"
    );
}

#[tokio::test]
async fn h02_a_link_leads_to_the_same_lock() {
    let file = File::new();
    let first = file.open();
    let link = file.path().with_extension("link");
    std::os::unix::fs::symlink(file.path(), &link).unwrap();
    let OpenError::InUse { .. } = open_error(&link) else {
        panic!()
    };
    drop(first);
}

#[tokio::test]
async fn h02_where_the_lock_was_removed_the_host_that_was_there_stops() {
    let file = File::new();
    let first = file.open();
    let fence = first.take_over(1).await.unwrap();
    start(&first, "before", vec![], 1).await;
    let mut lock = file.path().into_os_string();
    lock.push(".lock");
    std::fs::remove_file(lock).unwrap();
    let second = file.open();
    second.take_over(2).await.unwrap();
    // Whatever it is asked to write: it has no part in this database any more.
    let refused = first.admit(new_run("late", vec![], 3)).await;
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
    let refused = first.append(append("before", fence, 0, step(0))).await;
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
    assert!(second.run(&run_id("late")).await.unwrap().is_none());
}

#[test]
fn h05_files_of_something_else_are_refused_and_left_alone() {
    let other = File::new();
    let conn = Connection::open(other.path()).unwrap();
    conn.execute_batch("CREATE TABLE mine (x); PRAGMA user_version = 1")
        .unwrap();
    for (found, bytes) in [
        ("no SQLite database", b"a text of mine".to_vec()),
        ("no SQLite database", vec![0; 4096]),
        ("another application", std::fs::read(other.path()).unwrap()),
    ] {
        let file = File::new();
        std::fs::write(file.path(), &bytes).unwrap();
        let error = open_error(&file.path());
        assert!(matches!(error, OpenError::NotOurs { .. }), "{error:?}");
        assert!(error.to_string().contains(found), "{error}");
        assert_eq!(std::fs::read(file.path()).unwrap(), bytes);
        assert_eq!(names(file.folder.path()), ["onemark.db"]);
    }
}

#[test]
fn h05_what_cannot_be_read_is_refused() {
    let file = File::new();
    let missing = file.folder.path().join("no/such/folder/onemark.db");
    for path in [file.folder.path().to_owned(), missing] {
        let error = open_error(&path);
        assert!(matches!(error, OpenError::Unreadable { .. }), "{error:?}");
    }
    assert_eq!(names(file.folder.path()), [""; 0]);
}

#[test]
fn h05_a_newer_database_is_refused_and_left_alone() {
    let file = File::new();
    drop(file.open());
    Connection::open(file.path())
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let before = std::fs::read(file.path()).unwrap();
    let error = open_error(&file.path());
    let OpenError::Newer { found: 99, .. } = error else {
        panic!("{error:?}")
    };
    assert!(error.to_string().contains("newer"), "{error}");
    assert_eq!(std::fs::read(file.path()).unwrap(), before);
}

/// A host that was killed leaves what it committed in the log, not in the file.
#[test]
fn h05_a_newer_version_in_the_log_alone_is_seen() {
    let file = File::new();
    drop(file.open());
    let newer = Connection::open(file.path()).unwrap();
    newer.pragma_update(None, "user_version", 99).unwrap();
    let copy = File::new();
    for end in ["", "-wal"] {
        let name = |file: &File| file.folder.path().join(format!("onemark.db{end}"));
        std::fs::copy(name(&file), name(&copy)).unwrap();
    }
    let before = std::fs::read(copy.path()).unwrap();
    let error = open_error(&copy.path());
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error:?}");
    assert_eq!(std::fs::read(copy.path()).unwrap(), before);
}

#[tokio::test]
async fn an_empty_file_becomes_a_database() {
    let file = File::new();
    std::fs::write(file.path(), "").unwrap();
    assert_eq!(file.open().runs(RunFilter::default()).await.unwrap(), []);
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let file = File::new();
    let store = file.open();
    store.take_over(1).await.unwrap();
    let names = names(file.folder.path());
    assert_eq!(
        names,
        [
            "onemark.db",
            "onemark.db-shm",
            "onemark.db-wal",
            "onemark.db.lock"
        ]
    );
    for name in names {
        let mode = std::fs::metadata(file.folder.path().join(&name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

// ---- commits ---------------------------------------------------------------------------------------

/// A writer that stops after each commit, before it answers, until told to go on.
struct Held {
    committed: Receiver<u64>,
    go_on: Sender<()>,
}

impl Held {
    fn open(file: &File) -> (SqliteStore, Self) {
        let (commits, committed) = channel();
        let (go_on, wait) = channel();
        let wait = Mutex::new(wait);
        let after_commit = move |number| {
            commits.send(number).unwrap();
            // Once the test holds nothing any more, nothing is held.
            let _ = wait.lock().unwrap().recv();
        };
        let options = SqliteOptions {
            after_commit: Some(Arc::new(after_commit)),
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(file.path(), options).unwrap();
        (store, Self { committed, go_on })
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends a request by asking once for its answer, which must not be there yet.
async fn send<T>(answer: &mut Answer<'_, T>) {
    let there = poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx).is_ready())).await;
    assert!(!there);
}

#[tokio::test]
async fn an_answer_comes_after_its_commit() {
    let file = File::new();
    let (store, held) = Held::open(&file);
    let mut answer = store.admit(new_run("r", vec![spec("t", 0)], 1));
    send(&mut answer).await;
    assert_eq!(held.committed.recv().unwrap(), 1);
    // What a crash here would leave: all of it. Readers have it, and do not wait for the writer.
    let run = store.run(&run_id("r")).await.unwrap().unwrap();
    assert_eq!((run.status, run.entries), (RunStatus::Pending, 1));
    assert!(store.hook(&token("t"), 1).await.unwrap().is_some());
    send(&mut answer).await;
    held.go_on.send(()).unwrap();
    assert_eq!(answer.await.unwrap(), started("r", true));
}

#[tokio::test]
async fn who_waits_shares_a_commit_and_fails_alone() {
    let file = File::new();
    let (store, held) = Held::open(&file);
    let mut first = store.take_over(1);
    send(&mut first).await;
    assert_eq!(held.committed.recv().unwrap(), 1);
    // The writer is busy now; what comes meanwhile waits.
    let mut admitted: Vec<_> = (0..64)
        .map(|n| {
            store.admit(new_run(
                &format!("r{n}"),
                vec![spec(&format!("t{}", n / 2), 0)],
                1,
            ))
        })
        .collect();
    for answer in &mut admitted {
        send(answer).await;
    }
    let twice = vec![spec("twice", 0), spec("twice", 0)];
    let mut bad = store.admit(new_run("bad", twice, 1));
    send(&mut bad).await;
    let broken = NewEntry::event(Event::HookClosed {
        call: Some(0),
        hook: 9,
    });
    let entries = vec![open_hook(1, 1, spec("left", 0)), broken];
    let mut half = store.append(append("r0", Fence(1), 0, entries));
    send(&mut half).await;
    let mut good = store.append(append("r0", Fence(1), 0, step(0)));
    send(&mut good).await;
    held.go_on.send(()).unwrap();
    assert_eq!(held.committed.recv().unwrap(), 2, "one commit for all of them");
    held.go_on.send(()).unwrap();

    assert!(matches!(bad.await, Err(StoreError::Invalid(_))));
    assert!(matches!(half.await, Err(StoreError::Invalid(_))));
    assert_eq!(good.await.unwrap().entries.len(), 3);
    for (n, answer) in admitted.into_iter().enumerate() {
        let answer = answer.await.unwrap();
        assert_eq!(
            matches!(answer, Admission::Started { .. }),
            n % 2 == 0,
            "{n}: {answer:?}"
        );
    }
    assert_eq!(store.hook(&token("left"), 1).await.unwrap(), None);
    drop((first, held));
    drop(store);
    let store = file.open();
    let filter = RunFilter {
        limit: 100,
        ..RunFilter::default()
    };
    assert_eq!(store.runs(filter).await.unwrap().len(), 32);
    assert_eq!(
        store.load(&run_id("r0"), 0).await.unwrap().unwrap().entries.len(),
        4
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_nobody_sees_a_run_without_its_claim_or_a_claim_without_its_run() {
    let file = File::new();
    let store = Arc::new(file.open());
    let done = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for _ in 0..2 {
        let (store, done) = (store.clone(), done.clone());
        readers.push(tokio::spawn(async move {
            let mut looked = 0;
            while !done.load(Ordering::Relaxed) {
                let filter = RunFilter {
                    limit: 20,
                    ..RunFilter::default()
                };
                for run in store.runs(filter).await.unwrap() {
                    let hook = store.hook(&run.tokens[0], 1).await.unwrap().unwrap();
                    assert_eq!(hook.run_id, run.id);
                    assert_eq!(run.entries, 1);
                }
                for n in (0..320).step_by(7) {
                    if let Some(hook) = store.hook(&token(&format!("t{n}")), 1).await.unwrap() {
                        assert!(store.run(&hook.run_id).await.unwrap().is_some());
                    }
                }
                looked += 1;
            }
            looked
        }));
    }
    for round in 0..5 {
        let starts: Vec<_> = (64 * round..64 * (round + 1))
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move {
                    let (id, hook) = (format!("r{n}"), spec(&format!("t{n}"), 0));
                    start(&*store, &id, vec![hook], 1).await;
                })
            })
            .collect();
        for start in starts {
            start.await.unwrap();
        }
    }
    done.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
}

/// A03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_64_starts_with_one_token_wins() {
    let file = File::new();
    let store = Arc::new(file.open());
    for round in 0..50 {
        let starts: Vec<_> = (0..64)
            .map(|n| {
                let store = store.clone();
                let hooks = vec![spec(&format!("order:{round}"), 0)];
                let run = new_run(&format!("{round}-{n}"), hooks, 1);
                tokio::spawn(async move { store.admit(run).await.unwrap() })
            })
            .collect();
        let (mut started, mut owners) = (Vec::new(), Vec::new());
        for start in starts {
            match start.await.unwrap() {
                Admission::Started { run, .. } => started.push(run),
                Admission::HookConflict { owner, .. } => owners.push(owner.run),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((started.len(), owners.len()), (1, 63));
        assert!(owners.iter().all(|owner| *owner == started[0]));
    }
}

// ---- when the disk or somebody else is in the way --------------------------------------------------

#[tokio::test]
async fn a_busy_database_refuses_and_recovers_by_itself() {
    let file = File::new();
    let store = file.open();
    let fence = store.take_over(1).await.unwrap();
    start(&store, "r", vec![], 1).await;
    let other = Connection::open(file.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = store.append(append("r", fence, 0, step(0))).await.unwrap_err();
    assert!(
        matches!(refused, StoreError::Unavailable(_)) && refused.may_retry(),
        "{refused:?}"
    );
    assert_eq!(
        store.load(&run_id("r"), 0).await.unwrap().unwrap().entries.len(),
        1
    );
    other.execute_batch("ROLLBACK").unwrap();
    let appended = store.append(append("r", fence, 0, step(0))).await.unwrap();
    assert_eq!(appended.entries.len(), 3);
}

#[tokio::test]
async fn a_damaged_database_stops_the_writer_for_good() {
    let file = File::new();
    drop(file.open());
    // The page that every writer reads first. Those that say what is in the file are whole.
    let conn = Connection::open(file.path()).unwrap();
    let page: usize = conn
        .query_row(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'host'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    drop(conn);
    let mut bytes = std::fs::read(file.path()).unwrap();
    bytes[4096 * (page - 1)..4096 * page].fill(0xAB);
    std::fs::write(file.path(), &bytes).unwrap();
    let store = file.open();
    for _ in 0..2 {
        let error = store.take_over(1).await.unwrap_err();
        assert!(
            matches!(error, StoreError::Fatal(_)) && !error.may_retry(),
            "{error:?}"
        );
    }
    drop(store);
    assert_eq!(
        std::fs::read(file.path()).unwrap(),
        bytes,
        "nothing more was written"
    );
}

// ---- damaged journals ------------------------------------------------------------------------------

/// F10: two runs of seven entries, one of which `damage` is done to.
async fn damaged(damage: &str) -> (File, SqliteStore, Fence) {
    let file = File::new();
    let store = file.open();
    let fence = store.take_over(1).await.unwrap();
    for id in ["hurt", "well"] {
        start(&store, id, vec![spec(&format!("t-{id}"), 0)], 1).await;
        let mut entries = append(id, fence, 0, [step(0), step(1)].concat());
        entries.park = REST;
        store.append(entries).await.unwrap();
    }
    drop(store);
    let conn = Connection::open(file.path()).unwrap();
    let changed = conn.execute(&format!("{damage} AND run = 1"), []).unwrap();
    assert_eq!(changed, 1);
    drop(conn);
    let store = file.open();
    let fence = store.take_over(2).await.unwrap();
    (file, store, fence)
}

#[tokio::test]
async fn f10_damage_of_a_journal_is_detected_and_concerns_its_run_only() {
    for damage in [
        "UPDATE entries SET event = replace(event, 'charge', 'refund') WHERE seq = 4",
        "UPDATE entries SET event = '{' WHERE seq = 6",
        "UPDATE entries SET at = at + 1 WHERE seq = 2",
        "UPDATE entries SET body = '{\"order\":\"43\"}' WHERE seq = 1",
        "UPDATE entries SET body_len = 3 WHERE seq = 1",
        "UPDATE entries SET body_len = NULL WHERE seq = 1",
        "UPDATE entries SET chain = zeroblob(32) WHERE seq = 5",
        "DELETE FROM entries WHERE seq = 0",
        "DELETE FROM entries WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 6",
    ] {
        let (_file, store, fence) = damaged(damage).await;
        let error = store.load(&run_id("hurt"), 0).await.unwrap_err();
        let StoreError::Corrupt { run, .. } = &error else {
            panic!("{damage}: {error:?}")
        };
        assert_eq!(run.as_str(), "hurt");
        let why = Blocked {
            reason: BlockReason::CorruptJournal,
            message: error.to_string(),
            step: None,
            detail: serde_json::Value::Null,
        };
        store.block(&run_id("hurt"), fence, why).await.unwrap();
        assert_eq!(
            store
                .load(&run_id("well"), 0)
                .await
                .unwrap()
                .unwrap()
                .entries
                .len(),
            7
        );
        store.append(append("well", fence, 6, step(2))).await.unwrap();
    }
}

#[tokio::test]
async fn damage_of_a_runs_row_concerns_its_run_only() {
    for damage in [
        "status = 'dancing'",
        "id = ''",
        "tokens = '{'",
        "created_at = -1",
        "component = x'00'",
    ] {
        let file = File::new();
        let store = file.open();
        for id in ["hurt", "well"] {
            start(&store, id, vec![], 1).await;
        }
        drop(store);
        let conn = Connection::open(file.path()).unwrap();
        let sql = format!("UPDATE runs SET {damage} WHERE key = 1");
        assert_eq!(conn.execute(&sql, []).unwrap(), 1);
        drop(conn);
        let store = file.open();
        let limit = 10;
        let filter = RunFilter {
            limit,
            ..RunFilter::default()
        };
        let listed = store.runs(filter).await.unwrap();
        let ids: Vec<_> = listed.iter().map(|run| run.id.as_str()).collect();
        assert_eq!(ids, ["well"], "{damage}");
        let due = due(&store, 5, limit).await;
        assert!(due.contains(&run_id("well")), "{damage}: {due:?}");
    }
}

#[tokio::test]
async fn f10_nothing_is_written_after_the_end_that_was_cut_off() {
    let (_file, store, fence) = damaged("DELETE FROM entries WHERE seq = 6").await;
    for error in [
        store.append(append("hurt", fence, 5, step(2))).await.map(drop),
        store.deliver(deliver("t-hurt", "1", 3)).await.map(drop),
    ] {
        assert!(matches!(error, Err(StoreError::Corrupt { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn an_erased_body_leaves_a_journal_that_verifies() {
    let (_file, store, _) = damaged("UPDATE entries SET body = NULL WHERE seq = 1").await;
    let loaded = store.load(&run_id("hurt"), 0).await.unwrap().unwrap();
    let body = loaded.entries[1].body.as_ref().unwrap();
    assert_eq!((&body.text, body.len), (&None, 14));
}
