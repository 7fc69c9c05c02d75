//! The writer: one thread that owns the writing connection.
//!
//! ```text
//! requests ──▶ bounded queue ──▶ [ begin │ request │ request │ … │ commit ] ──▶ answers
//! ```
//!
//! It takes everything that waits, applies it in one transaction and commits once, then answers: the more
//! callers wait, the more of them share a commit. A request that breaks a rule fails alone. Most do before they have
//! written anything; where one did write, the transaction begins again, with a savepoint before each request. Those
//! cost as much as a small request, since pages are copied for them.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hashlink::LruCache;
use rusqlite::Connection;
use rusqlite::config::DbConfig;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::duplicates::Duplicates;
use super::failure::{Failure, ends_batch};
use super::host;
use super::requests::Head;
use crate::ids::RunId;
use crate::store::{Result, StoreError};

/// Requests that wait at most; beyond that callers wait to send.
const QUEUE: usize = 1024;

/// How long the writer looks for the next request before it sleeps: as long as a run takes from one short step's
/// commit to the next.
const LINGER: Duration = Duration::from_micros(120);

/// A request that came this long after the last was far from the time in which the writer looks for it. Being woken
/// takes a part of this.
const FAR: Duration = Duration::from_micros(400);

/// With so many requests in a commit the machine is busy, and more are on their way.
const CROWD: usize = 8;

/// How long the writer lets requests gather then: less than a commit takes, whose cost they share.
const GATHER: Duration = Duration::from_micros(200);

/// Runs whose heads are remembered: some 200 bytes each.
const HEADS: usize = 16 * 1024;

/// Called right after the n-th commit, counted from 1, before its requests are answered. For crash tests.
pub type AfterCommit = Arc<dyn Fn(u64) + Send + Sync>;

/// What requests work on.
pub struct Writing {
    pub conn: Connection,
    /// What is known of runs, in step with the transaction. Dropped whenever one is rolled back.
    pub heads: LruCache<RunId, Head>,
    pub duplicates: Duplicates,
    /// Runs that a start met in this transaction, to be counted once it is sure.
    pub met: Vec<RunId>,
    pub epoch: Option<u64>,
    /// Set by a request that takes the database over; counts once it is committed.
    pub taking: Option<u64>,
}

/// A request on its way, its answer type hidden.
trait Request: Send {
    /// Carries it out, once more if it was before.
    fn apply(&mut self, writing: &mut Writing) -> Result<()>;
    /// Answers what was applied, or `failed` if its transaction failed.
    fn answer(self: Box<Self>, failed: Option<&StoreError>);
}

struct Job<F, T> {
    work: F,
    outcome: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<F, T> Request for Job<F, T>
where
    F: Fn(&mut Writing) -> std::result::Result<T, Failure> + Send,
    T: Send,
{
    fn apply(&mut self, writing: &mut Writing) -> Result<()> {
        let outcome = (self.work)(writing).map_err(StoreError::from);
        let result = outcome.as_ref().map(drop).map_err(Clone::clone);
        self.outcome = Some(outcome);
        result
    }

    fn answer(self: Box<Self>, failed: Option<&StoreError>) {
        let outcome = match failed {
            Some(error) => Some(Err(error.clone())),
            None => self.outcome,
        };
        if let Some(outcome) = outcome {
            // Whoever asked may have gone.
            let _ = self.reply.send(outcome);
        }
    }
}

/// The handle through which requests reach the writer.
pub struct Writer {
    requests: Option<mpsc::Sender<Box<dyn Request>>>,
    thread: Option<JoinHandle<()>>,
    /// Why the writer stopped.
    stopped: Arc<OnceLock<StoreError>>,
}

impl Writer {
    pub fn spawn(
        conn: Connection,
        duplicates: Duplicates,
        after_commit: Option<AfterCommit>,
    ) -> std::io::Result<Self> {
        let (requests, queue) = mpsc::channel(QUEUE);
        let stopped = Arc::new(OnceLock::new());
        let thread = Thread {
            writing: Writing {
                conn,
                heads: LruCache::new(HEADS),
                duplicates,
                met: Vec::new(),
                epoch: None,
                taking: None,
            },
            queue,
            commits: 0,
            shared_by: 1,
            in_time: true,
            after_commit,
            stopped: stopped.clone(),
            taken: None,
        };
        let thread = std::thread::Builder::new()
            .name("onemark-writer".into())
            .spawn(move || thread.run())?;
        Ok(Self {
            requests: Some(requests),
            thread: Some(thread),
            stopped,
        })
    }

    /// Carries out `work` in a transaction. Once this answers with success, what it wrote survives. It may be carried
    /// out again, where the transaction has to begin again.
    pub async fn run<F, T>(&self, work: F) -> Result<T>
    where
        F: Fn(&mut Writing) -> std::result::Result<T, Failure> + Send + 'static,
        T: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Job {
            work,
            outcome: None,
            reply,
        };
        let Some(requests) = &self.requests else {
            return Err(self.why_stopped());
        };
        if requests.send(Box::new(job)).await.is_err() {
            return Err(self.why_stopped());
        }
        answer.await.unwrap_or_else(|_| Err(self.why_stopped()))
    }

    fn why_stopped(&self) -> StoreError {
        let why = self.stopped.get().cloned();
        why.unwrap_or_else(|| StoreError::Fatal("the writing thread has ended".into()))
    }
}

impl Drop for Writer {
    /// Waits until everything that was sent is done and the connection is closed.
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A panic in there was told to whoever waited for an answer.
            let _ = thread.join();
        }
    }
}

struct Thread {
    writing: Writing,
    queue: mpsc::Receiver<Box<dyn Request>>,
    commits: u64,
    /// How many requests shared the last commit.
    shared_by: usize,
    /// It came while the writer looked for it, or not much later.
    in_time: bool,
    after_commit: Option<AfterCommit>,
    stopped: Arc<OnceLock<StoreError>>,
    /// The epoch of this process, once it has taken the database over.
    taken: Option<u64>,
}

impl Thread {
    fn run(mut self) {
        let mut batch = Vec::new();
        while self.receive(&mut batch) {
            let failed = self.transact(&mut batch).err();
            if let Some(error @ (StoreError::Fatal(_) | StoreError::Fenced)) = &failed {
                self.stop(error);
            }
            self.shared_by = batch.len();
            for request in batch.drain(..) {
                request.answer(failed.as_ref());
            }
            if self.stopped.get().is_some() {
                return;
            }
        }
        if self.writing.duplicates.is_any_unsaved()
            && let Err(error) = self.transact(&mut [])
        {
            tracing::warn!(%error, "the last duplicates are not counted");
        }
    }

    /// Takes everything that waits; false once nobody can send any more.
    fn receive(&mut self, batch: &mut Vec<Box<dyn Request>>) -> bool {
        // Whoever was just answered often asks again at once. To sleep and be woken costs more than to look
        // for a moment; others that want this core get it. Not so where several share commits, since then the machine
        // is busy, nor where the last request was far from coming in time.
        let lingered = Instant::now();
        while self.shared_by == 1 && self.in_time && lingered.elapsed() < LINGER {
            match self.queue.try_recv() {
                Ok(request) => {
                    batch.push(request);
                    while batch.len() < QUEUE
                        && let Ok(request) = self.queue.try_recv()
                    {
                        batch.push(request);
                    }
                    return true;
                }
                Err(TryRecvError::Empty) => std::thread::yield_now(),
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        if self.shared_by >= CROWD {
            std::thread::sleep(GATHER);
        }
        let received = self.queue.blocking_recv_many(batch, QUEUE) > 0;
        self.in_time = lingered.elapsed() < FAR;
        received
    }

    /// Applies a batch in one transaction. On an error nothing of it is written, or, if it is fatal, nobody
    /// knows.
    fn transact(&mut self, batch: &mut [Box<dyn Request>]) -> Result<()> {
        let before = self.writing.conn.total_changes();
        let outcome = self.apply(batch).and_then(|()| {
            for run in std::mem::take(&mut self.writing.met) {
                self.writing.duplicates.count(&self.writing.conn, &run)?;
            }
            // Figures travel with what is written anyway, and by themselves when they are many or the last.
            let writes = self.writing.conn.total_changes() != before || batch.is_empty();
            if writes || self.writing.duplicates.are_many_unsaved() {
                self.writing.duplicates.save(&self.writing.conn)?;
            }
            self.execute("COMMIT")
        });
        if outcome.is_err() {
            self.forget();
            self.writing.duplicates.forget_saved();
            // Some errors have rolled back already.
            if !self.writing.conn.is_autocommit() {
                self.execute("ROLLBACK")
                    .map_err(|error| StoreError::Fatal(error.to_string()))?;
            }
        } else if self.writing.conn.total_changes() != before {
            self.taken = self.writing.taking.take().or(self.taken);
            self.commits += 1;
            if let Some(after_commit) = &self.after_commit {
                after_commit(self.commits);
            }
        }
        outcome
    }

    fn apply(&mut self, batch: &mut [Box<dyn Request>]) -> Result<()> {
        self.begin()?;
        for request in batch.iter_mut() {
            let before = self.writing.conn.total_changes();
            let met = self.writing.met.len();
            if let Err(error) = request.apply(&mut self.writing) {
                if ends_batch(&error) {
                    return Err(error);
                }
                if self.writing.conn.total_changes() != before {
                    return self.apply_guarded(batch);
                }
                self.writing.met.truncate(met);
            }
        }
        Ok(())
    }

    /// Begins again after a request that broke a rule when it had written something.
    fn apply_guarded(&mut self, batch: &mut [Box<dyn Request>]) -> Result<()> {
        self.execute("ROLLBACK")?;
        self.forget();
        self.begin()?;
        for request in batch {
            let (met, taking) = (self.writing.met.len(), self.writing.taking);
            self.execute("SAVEPOINT request")?;
            if let Err(error) = request.apply(&mut self.writing) {
                if ends_batch(&error) {
                    return Err(error);
                }
                self.execute("ROLLBACK TO request")?;
                self.forget();
                self.writing.met.truncate(met);
                // What an earlier request took over is still to be committed.
                self.writing.taking = taking;
            }
            self.execute("RELEASE request")?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.writing.met.clear();
        // Immediate: a transaction that begins reading may find that it cannot write any more.
        self.execute("BEGIN IMMEDIATE")?;
        self.check_epoch()
    }

    /// Whether this process is still the one that took the database over last. Read each time: the lock is the
    /// first guard, and this holds where somebody removed it.
    fn check_epoch(&self) -> Result<()> {
        let Some(taken) = self.taken else {
            return Ok(());
        };
        let epoch = host::epoch(&self.writing.conn).map_err(StoreError::from)?;
        if epoch == taken {
            Ok(())
        } else {
            Err(StoreError::Fenced)
        }
    }

    /// Drops what is remembered: it may be of a transaction that was rolled back.
    fn forget(&mut self) {
        self.writing.heads.clear();
        self.writing.epoch = None;
        self.writing.taking = None;
    }

    fn execute(&self, sql: &str) -> Result<()> {
        let done = self
            .writing
            .conn
            .prepare_cached(sql)
            .and_then(|mut s| s.execute([]));
        done.map(drop).map_err(|error| Failure::from(error).into())
    }

    /// Never writes again, not even what closing a database would write.
    fn stop(&self, why: &StoreError) {
        let quiet = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        // Whether or not this is heard, the file is as sound as it was.
        let _ = self.writing.conn.set_db_config(quiet, true);
        let _ = self.stopped.set(why.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::ids::Digest;
    use crate::store::StoredComponent;
    use crate::store::sqlite::{components, migrations, requests};

    #[tokio::test]
    async fn a_full_database_refuses_and_goes_on_when_there_is_room() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrations::apply(&mut conn).unwrap();
        let writer = Writer::spawn(conn, Duplicates::default(), None).unwrap();
        let limit =
            |pages: u32| writer.run(move |w| Ok(w.conn.pragma_update(None, "max_page_count", pages)?));
        let deploy = |bytes: usize| {
            let bytes: Arc<[u8]> = vec![7; bytes].into();
            let digest = Digest::of(&bytes);
            let manifest = "{}".into();
            let component = StoredComponent {
                digest,
                bytes,
                manifest,
            };
            writer.run(move |w| requests::deploy(w, "name", &component, &[], 1))
        };
        limit(100).await.unwrap();
        let refused = deploy(1 << 20).await.unwrap_err();
        assert!(matches!(refused, StoreError::Full(_)), "{refused:?}");
        let deployed = |w: &mut Writing| Ok(components::deployments(&w.conn)?.len());
        assert_eq!(writer.run(deployed).await.unwrap(), 0);
        limit(10_000).await.unwrap();
        deploy(1 << 20).await.unwrap();
        assert_eq!(writer.run(deployed).await.unwrap(), 1);
    }

    /// Requests that share a commit: each writes a number, and those in `refused` break a rule, before or after.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_breaks_a_rule_fails_alone() {
        let broken = || Failure::from(StoreError::Invalid("broken".into()));
        for (early, late) in [
            (vec![], vec![]),
            (vec![2], vec![]),
            (vec![1], vec![3]),
            (vec![], vec![0, 1, 4]),
        ] {
            let mut conn = Connection::open_in_memory().unwrap();
            migrations::apply(&mut conn).unwrap();
            conn.execute_batch("CREATE TABLE numbers (n INTEGER PRIMARY KEY)")
                .unwrap();
            let writer = Writer::spawn(conn, Duplicates::default(), None).unwrap();
            let held = Arc::new(AtomicBool::new(true));
            let first = writer.run({
                let held = held.clone();
                move |_| {
                    while held.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                    Ok(())
                }
            });
            let rest = (0..5).map(|n| {
                let (early, late) = (early.contains(&n), late.contains(&n));
                writer.run(move |w| {
                    if early {
                        return Err(broken());
                    }
                    w.conn.execute("INSERT INTO numbers VALUES (?1)", [n])?;
                    if late { Err(broken()) } else { Ok(n) }
                })
            });
            let rest = futures_util::future::join_all(rest);
            // Polled in this order, so that all wait when the first is let go.
            let letting_go = async { held.store(false, Ordering::Relaxed) };
            let (_, answers, ()) = tokio::join!(first, rest, letting_go);
            let wanted = |n: &i64| !early.contains(n) && !late.contains(n);
            for (n, answer) in (0..5).zip(answers) {
                assert_eq!(
                    answer.is_ok(),
                    wanted(&n),
                    "{n} of {early:?} {late:?}: {answer:?}"
                );
            }
            let written = writer.run(|w| {
                let mut numbers = w.conn.prepare("SELECT n FROM numbers")?;
                let numbers = numbers.query_map([], |row| row.get::<_, i64>(0))?;
                Ok(numbers.collect::<rusqlite::Result<Vec<_>>>()?)
            });
            let wanted: Vec<_> = (0..5).filter(wanted).collect();
            assert_eq!(written.await.unwrap(), wanted, "{early:?} {late:?}");
        }
    }

    /// Who takes the database over, and whom a start met, is kept where another request of the commit fails late.
    #[test]
    fn a_batch_that_begins_again_keeps_what_its_requests_leave_beside_the_database() {
        let late = |w: &mut Writing| {
            w.conn.execute("INSERT INTO numbers VALUES (7)", [])?;
            w.met.push(RunId::new("refused").unwrap());
            Err::<(), _>(Failure::from(StoreError::Invalid("broken".into())))
        };
        let early = |w: &mut Writing| {
            w.met.push(RunId::new("refused").unwrap());
            Err::<(), _>(Failure::from(StoreError::Invalid("broken".into())))
        };
        let takes = |w: &mut Writing| {
            w.conn.execute("INSERT INTO numbers VALUES (1)", [])?;
            w.met.push(RunId::new("met").unwrap());
            w.taking = Some(3);
            Ok(())
        };
        for late_too in [false, true] {
            let conn = Connection::open_in_memory().unwrap();
            conn.execute_batch("CREATE TABLE numbers (n INTEGER)").unwrap();
            let mut thread = Thread {
                writing: Writing {
                    conn,
                    heads: LruCache::new(HEADS),
                    duplicates: Duplicates::default(),
                    met: Vec::new(),
                    epoch: None,
                    taking: None,
                },
                queue: mpsc::channel(1).1,
                commits: 0,
                shared_by: 1,
                in_time: true,
                after_commit: None,
                stopped: Arc::default(),
                taken: None,
            };
            let mut batch = vec![job(takes), job(early)];
            if late_too {
                batch.push(job(late));
            }
            thread.apply(&mut batch).unwrap();
            assert_eq!(thread.writing.taking, Some(3), "{late_too}");
            assert_eq!(thread.writing.met, [RunId::new("met").unwrap()], "{late_too}");
        }
    }

    fn job<F>(work: F) -> Box<dyn Request>
    where
        F: Fn(&mut Writing) -> std::result::Result<(), Failure> + Send + 'static,
    {
        Box::new(Job {
            work,
            outcome: None,
            reply: oneshot::channel().0,
        })
    }

    #[tokio::test]
    async fn a_writer_that_panicked_says_so() {
        let writer =
            Writer::spawn(Connection::open_in_memory().unwrap(), Duplicates::default(), None).unwrap();
        for _ in 0..2 {
            let error = writer.run(|_| -> std::result::Result<(), Failure> { panic!("a bug") });
            assert!(matches!(error.await, Err(StoreError::Fatal(_))));
        }
    }
}
