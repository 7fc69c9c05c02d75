//! What the machine does without us: the same writes, the same instances, the same HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rusqlite::{Connection, params};

use super::lab::Lab;
use crate::engine::verify;
use crate::ids::{RunId, Tags};
use crate::journal::{Body, Entry, Event, Limits, Started, StepOptions};
use crate::sandbox::{Attempt, AttemptEnd, AttemptRequest, NoBlobs, NoEffects, NoLogs};

/// The rows that one step leaves, as the store writes them.
pub const ROWS_PER_STEP: u64 = 3;

/// How long a bare measurement lasts.
const SPELL: Duration = Duration::from_millis(700);

/// A table shaped as the journal's, written with the same settings.
struct BareTable {
    conn: Connection,
    run: i64,
    seq: i64,
}

impl BareTable {
    fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("bare.db");
        for file in ["bare.db", "bare.db-wal", "bare.db-shm"] {
            let _ = std::fs::remove_file(folder.join(file));
        }
        let conn = Connection::open(path)?;
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "FULL")?;
        conn.execute_batch(
            "CREATE TABLE entries (run INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL,
                event TEXT NOT NULL, body TEXT, body_len INTEGER, body_sha256 BLOB, chain BLOB NOT NULL,
                PRIMARY KEY (run, seq)) STRICT, WITHOUT ROWID",
        )?;
        Ok(Self { conn, run: 1, seq: 0 })
    }

    fn insert(&mut self, rows: u64) -> Result<()> {
        let transaction = self.conn.transaction()?;
        {
            let mut insert =
                transaction.prepare_cached("INSERT INTO entries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
            for row in 0..rows {
                let (event, body): (_, Option<&str>) = match row % ROWS_PER_STEP {
                    0 => (
                        r#"{"step_scheduled":{"call":1234,"step":"nothing"}}"#,
                        Some(r#"{"n":1234}"#),
                    ),
                    1 => (r#"{"attempt_started":{"call":1234,"attempt":1}}"#, None),
                    _ => (r#"{"step_completed":{"call":1234,"attempt":1}}"#, Some("1234")),
                };
                let digest = body.map(|_| [7u8; 32]);
                let length = body.map(str::len);
                let values = params![
                    self.run,
                    self.seq,
                    1_800_000_000_000_i64,
                    event,
                    body,
                    length,
                    digest,
                    [9u8; 32]
                ];
                insert.execute(values)?;
                self.seq += 1;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

/// Commits per second of one writer, each with the rows of one step.
pub fn commits_per_second(folder: &Path) -> Result<f64> {
    let mut table = BareTable::open(folder)?;
    let (began, mut commits) = (Instant::now(), 0);
    while began.elapsed() < SPELL {
        table.insert(ROWS_PER_STEP)?;
        commits += 1;
    }
    Ok(f64::from(commits) / began.elapsed().as_secs_f64())
}

/// Rows per second of one writer in large transactions.
pub fn rows_per_second(folder: &Path) -> Result<f64> {
    let mut table = BareTable::open(folder)?;
    let (began, mut rows) = (Instant::now(), 0);
    while began.elapsed() < SPELL {
        table.insert(1_000)?;
        rows += 1_000;
    }
    Ok(f64::from(rows) / began.elapsed().as_secs_f64())
}

/// Seconds of one core that an attempt takes in a fresh instance.
pub async fn attempt_seconds(lab: &Lab) -> Result<f64> {
    let (began, mut attempts) = (Instant::now(), 0);
    while began.elapsed() < SPELL {
        let request = AttemptRequest {
            step: "nothing".into(),
            input: r#"{"n":1234}"#.into(),
            limits: Limits::default(),
            attempt: Attempt {
                number: 1,
                idempotency_key: "bench".into(),
                timeout: Duration::from_secs(60),
                logs: Arc::new(NoLogs),
                effects: Arc::new(NoEffects),
                blobs: Arc::new(NoBlobs),
            },
        };
        let end = lab.sandbox.run_step(&lab.component, request).await;
        ensure!(matches!(end, AttemptEnd::Returned(Ok(_))), "an attempt: {end:?}");
        attempts += 1;
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(attempts))
}

/// Seconds of one core that a workflow of one step takes in a fresh instance.
pub async fn activation_seconds(lab: &Lab) -> Result<f64> {
    let journal = sequence_journal(lab, 1);
    let (began, mut activations) = (Instant::now(), 0);
    while began.elapsed() < SPELL {
        verify(&lab.sandbox, &lab.component, &RunId::generate(), journal.clone()).await;
        activations += 1;
    }
    Ok(began.elapsed().as_secs_f64() / f64::from(activations))
}

/// The journal of a completed `sequence` of `steps`, as a live run writes it.
pub fn sequence_journal(lab: &Lab, steps: u64) -> Vec<Entry> {
    let started = Started {
        timeout: None,
        workflow: "sequence".into(),
        component: lab.component.digest,
        seed: 7,
        limits: Limits::default(),
        hooks: Vec::new(),
        lineage: None,
        start_at: None,
        predecessors: Vec::new(),
        tags: Tags::default(),
        concurrency: None,
    };
    let input = Body::new(format!(r#"{{"n":{steps}}}"#));
    let mut events = vec![(Event::Started(Box::new(started)), Some(input))];
    for n in 0..steps {
        let call = u32::try_from(n).unwrap_or(u32::MAX);
        let scheduled = Event::StepScheduled {
            closure: false,
            call,
            step: "nothing".into(),
            options: StepOptions::default(),
        };
        events.push((scheduled, Some(Body::new(format!(r#"{{"n":{n}}}"#)))));
        events.push((Event::AttemptStarted { call, attempt: 1 }, None));
        let completed = Event::StepCompleted {
            call,
            attempt: 1,
            resolved: false,
        };
        events.push((completed, Some(Body::new(n.to_string()))));
    }
    let last = steps.saturating_sub(1);
    events.push((Event::Completed, Some(Body::new(last.to_string()))));
    let entries = events.into_iter().zip(0..);
    let entry = |((event, body), seq)| Entry {
        seq,
        at: 1_800_000_000_000,
        event,
        body,
    };
    entries.map(entry).collect()
}
