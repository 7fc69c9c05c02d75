//! Queries on runs.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column;
use super::failure::Failure;
use crate::ids::{Digest, HookToken, RunId};
use crate::journal::{RunStatus, Seq, Timestamp};
use crate::store::decide::{self, Activity, Standing};
use crate::store::{Blocked, RunFilter, RunInfo, StoreError};

/// The integer that stands for a run in other tables.
pub type RunKey = i64;

/// What a writer has to know of a run.
#[derive(Debug, Clone)]
pub struct RunRow {
    pub key: RunKey,
    pub request: Digest,
    pub component: Digest,
    pub standing: Standing,
    pub anchor: Anchor,
}

/// The end of a journal when its run's row was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Anchor {
    pub seq: Seq,
    pub chain: Digest,
}

/// A run's row in full.
pub struct NewRow<'a> {
    pub id: &'a RunId,
    pub workflow: &'a str,
    pub component: Digest,
    pub request: Digest,
    pub tokens: &'a [HookToken],
    pub created_at: Timestamp,
    pub standing: Standing,
    pub anchor: Anchor,
}

pub fn insert(conn: &Connection, run: &NewRow<'_>) -> Result<RunKey, Failure> {
    conn.prepare_cached(
        "INSERT INTO runs (id, workflow, component, request, tokens, created_at, folded, status,
             ready_since, anchor_seq, anchor_chain)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute(params![
        run.id.as_str(),
        run.workflow,
        run.component.0,
        run.request.0,
        column::to_json(&run.tokens)?,
        run.created_at,
        run.standing.folded.as_str(),
        run.standing.status().as_str(),
        run.standing.ready_since(),
        run.anchor.seq,
        run.anchor.chain.0,
    ])?;
    Ok(conn.last_insert_rowid())
}

/// Writes what entries have changed.
pub fn update(
    conn: &Connection,
    key: RunKey,
    standing: Standing,
    component: Digest,
    anchor: Anchor,
) -> Result<(), Failure> {
    conn.prepare_cached(
        "UPDATE runs SET folded = ?2, status = ?3, ended_at = ?4, ready_since = ?5, wake_at = ?6,
             component = ?7, anchor_seq = ?8, anchor_chain = ?9, cancel_requested = ?10,
             blocked = CASE WHEN ?3 = 'blocked' THEN blocked END
         WHERE key = ?1",
    )?
    .execute(params![
        key,
        standing.folded.as_str(),
        standing.status().as_str(),
        standing.ended_at(),
        standing.ready_since(),
        standing.wake_at(),
        component.0,
        anchor.seq,
        anchor.chain.0,
        standing
            .cancel_requested
            .map(|reason| column::to_json(&reason))
            .transpose()?,
    ])?;
    Ok(())
}

/// Marks as blocked; whatever is known of the journal stays.
pub fn block(conn: &Connection, key: RunKey, standing: Standing, blocked: &Blocked) -> Result<(), Failure> {
    conn.prepare_cached(
        "UPDATE runs SET status = ?2, ready_since = ?3, wake_at = ?4, blocked = ?5 WHERE key = ?1",
    )?
    .execute(params![
        key,
        standing.status().as_str(),
        standing.ready_since(),
        standing.wake_at(),
        column::to_json(blocked)?,
    ])?;
    Ok(())
}

pub fn find(conn: &Connection, id: &RunId) -> Result<Option<RunRow>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT key, request, component, folded, status, ended_at, ready_since, wake_at, anchor_seq,
             anchor_chain, cancel_requested
         FROM runs WHERE id = ?1",
    )?;
    let row = query.query_row([id.as_str()], |row| {
        Ok(RunRow {
            key: row.get(0)?,
            request: column::digest(row, 1)?,
            component: column::digest(row, 2)?,
            standing: standing(row)?,
            anchor: Anchor {
                seq: row.get(8)?,
                chain: column::digest(row, 9)?,
            },
        })
    });
    row.optional().map_err(|error| damaged(id, error))
}

/// A row that does not make sense concerns its own run only.
fn damaged(id: &RunId, error: rusqlite::Error) -> Failure {
    if error.sqlite_error_code().is_some() {
        return error.into();
    }
    let what = format!("its row cannot be read: {error}");
    StoreError::Corrupt {
        run: id.clone(),
        what,
    }
    .into()
}

fn standing(row: &Row<'_>) -> rusqlite::Result<Standing> {
    let status: RunStatus = column::parse(row, 4)?;
    let activity = match status {
        RunStatus::Pending | RunStatus::Running => Activity::Ready { since: row.get(6)? },
        RunStatus::Suspended => Activity::Parked { wake_at: row.get(7)? },
        RunStatus::Blocked => Activity::Blocked,
        RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled | RunStatus::Continued => {
            Activity::Ended { at: row.get(5)? }
        }
    };
    Ok(Standing {
        folded: column::parse(row, 3)?,
        activity,
        cancel_requested: column::opt_json(row, 10)?,
    })
}

macro_rules! select_info {
    ($rest:literal) => {
        concat!(
            "SELECT key, id, workflow, component, status, created_at, ended_at, wake_at, blocked, tokens,
                 (SELECT ifnull(max(seq) + 1, 0) FROM entries WHERE run = key), cancel_requested
             FROM runs ",
            $rest
        )
    };
}

fn info(row: &Row<'_>) -> rusqlite::Result<RunInfo> {
    Ok(RunInfo {
        id: column::parse(row, 1)?,
        workflow: row.get(2)?,
        component: column::digest(row, 3)?,
        status: column::parse(row, 4)?,
        created_at: row.get(5)?,
        ended_at: row.get(6)?,
        wake_at: row.get(7)?,
        cancel_requested: column::opt_json(row, 11)?,
        blocked: column::opt_json(row, 8)?,
        tokens: column::json(row, 9)?,
        entries: row.get(10)?,
    })
}

pub fn get(conn: &Connection, id: &RunId) -> Result<Option<RunInfo>, Failure> {
    let mut query = conn.prepare_cached(select_info!("WHERE id = ?1"))?;
    let row = query.query_row([id.as_str()], info).optional();
    row.map_err(|error| damaged(id, error))
}

/// Newest first.
pub fn list(conn: &Connection, filter: &RunFilter) -> Result<Vec<RunInfo>, Failure> {
    let before = match &filter.after {
        None => RunKey::MAX,
        Some(after) => key(conn, after)?.ok_or_else(|| decide::no_run(after))?,
    };
    let mut query = conn.prepare_cached(select_info!(
        "WHERE key < ?1 AND (?2 IS NULL OR status = ?2) AND (?3 IS NULL OR workflow = ?3)
         ORDER BY key DESC"
    ))?;
    let status = filter.status.map(RunStatus::as_str);
    let rows = query.query_map(params![before, status, filter.workflow], info)?;
    Ok(readable(rows)
        .take(filter.limit)
        .collect::<rusqlite::Result<_>>()?)
}

/// Leaves out rows that do not make sense: they concern their own runs only.
fn readable<T>(rows: impl Iterator<Item = rusqlite::Result<T>>) -> impl Iterator<Item = rusqlite::Result<T>> {
    rows.filter(|row| match row {
        Err(error) if error.sqlite_error_code().is_none() => {
            tracing::error!(%error, "the row of a run cannot be read and is left out");
            false
        }
        _ => true,
    })
}

pub fn key(conn: &Connection, id: &RunId) -> Result<Option<RunKey>, Failure> {
    let mut query = conn.prepare_cached("SELECT key FROM runs WHERE id = ?1")?;
    Ok(query.query_row([id.as_str()], |row| row.get(0)).optional()?)
}

/// Runs with something to do, longest first.
pub fn due(conn: &Connection, now: Timestamp, limit: usize) -> Result<Vec<RunId>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT id, ready_since AS since, key FROM runs WHERE ready_since IS NOT NULL
         UNION ALL
         SELECT id, wake_at, key FROM runs WHERE wake_at <= ?1
         ORDER BY since, key",
    )?;
    let rows = query.query_map([column::time(now)], |row| column::parse(row, 0))?;
    Ok(readable(rows).take(limit).collect::<rusqlite::Result<_>>()?)
}

pub fn next_wake(conn: &Connection, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let mut query = conn.prepare_cached("SELECT min(wake_at) FROM runs WHERE wake_at > ?1")?;
    Ok(query.query_row([column::time(now)], |row| row.get(0))?)
}
