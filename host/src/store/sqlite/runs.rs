//! Queries on runs.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column;
use super::failure::Failure;
use crate::ids::{ConcurrencyGroup, Digest, HookToken, RunId, Tags};
use crate::journal::{CallNo, Concurrency, Lineage, ParentEnd, RunStatus, Seq, Timestamp};
use crate::store::decide::{self, Activity, Standing, Wait};
use crate::store::{Blocked, DueRun, RunFilter, RunInfo, StoreError};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

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
    pub parent: Option<ParentLink>,
}

/// The run that started another, and by which of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParentLink {
    pub run: RunKey,
    pub call: CallNo,
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
    pub tags: &'a Tags,
    pub concurrency: Option<&'a Concurrency>,
    pub created_at: Timestamp,
    pub standing: Standing,
    pub anchor: Anchor,
    pub lineage: Option<&'a Lineage>,
    pub parent: Option<(ParentLink, ParentEnd)>,
}

pub fn insert(conn: &Connection, run: &NewRow<'_>) -> Result<RunKey, Failure> {
    conn.prepare_cached(
        "INSERT INTO runs (id, workflow, component, request, tokens, created_at, folded, status,
             ready_since, wake_at, waits, anchor_seq, anchor_chain, parent, parent_call, on_parent_end, lineage,
             concurrency_group, concurrency_limit)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
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
        run.standing.wake_at(),
        waits(run.standing)?,
        run.anchor.seq,
        run.anchor.chain.0,
        run.parent.map(|(link, _)| link.run),
        run.parent.map(|(link, _)| link.call),
        run.parent
            .map(|(_, on_end)| column::to_json(&on_end))
            .transpose()?,
        run.lineage.map(column::to_json).transpose()?,
        run.concurrency.map(|it| it.group.as_str()),
        run.concurrency.map(|it| it.limit),
    ])?;
    let key = conn.last_insert_rowid();
    for (name, value) in run.tags.iter() {
        conn.prepare_cached("INSERT INTO tags (run, name, value, created_at) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![key, name, value, run.created_at])?;
    }
    Ok(key)
}

/// Gives a run a tag, or another value of it.
pub fn set_tag(conn: &Connection, key: RunKey, name: &str, value: &str) -> Result<(), Failure> {
    let tags = conn
        .prepare_cached("SELECT json_group_object(name, value) FROM tags WHERE run = ?1")?
        .query_row([key], |row| column::json(row, 0))?;
    decide::tagged(&tags, name, value)?;
    conn.prepare_cached(
        "INSERT INTO tags (run, name, value, created_at)
         SELECT key, ?2, ?3, created_at FROM runs WHERE key = ?1
         ON CONFLICT (run, name) DO UPDATE SET value = excluded.value",
    )?
    .execute(params![key, name, value])?;
    Ok(())
}

fn waits(standing: Standing) -> Result<Option<String>, StoreError> {
    standing.waits().as_ref().map(column::to_json).transpose()
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
             component = ?7, anchor_seq = ?8, anchor_chain = ?9, waits = ?10, cancel_requested = ?11,
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
        waits(standing)?,
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
        "UPDATE runs SET status = ?2, ready_since = ?3, wake_at = ?4, blocked = ?5, waits = ?6
         WHERE key = ?1",
    )?
    .execute(params![
        key,
        standing.status().as_str(),
        standing.ready_since(),
        standing.wake_at(),
        column::to_json(blocked)?,
        waits(standing)?,
    ])?;
    Ok(())
}

pub fn find(conn: &Connection, id: &RunId) -> Result<Option<RunRow>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT key, request, component, folded, status, ended_at, ready_since, wake_at, anchor_seq,
             anchor_chain, waits, cancel_requested, parent, parent_call, concurrency_group IS NOT NULL
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
            parent: match (row.get(12)?, row.get(13)?) {
                (Some(run), Some(call)) => Some(ParentLink { run, call }),
                _ => None,
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
        RunStatus::Pending | RunStatus::Running => match column::opt_json(row, 10)? {
            Some(waits) => Activity::Waiting(waits),
            None => Activity::Ready { since: row.get(6)? },
        },
        RunStatus::Suspended => match row.get(6)? {
            Some(since) => Activity::Woken { since },
            None => Activity::Parked { wake_at: row.get(7)? },
        },
        RunStatus::Blocked => Activity::Blocked,
        RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled | RunStatus::Continued => {
            Activity::Ended { at: row.get(5)? }
        }
    };
    Ok(Standing {
        folded: column::parse(row, 3)?,
        activity,
        cancel_requested: column::opt_json(row, 11)?,
        limited: row.get(14)?,
    })
}

macro_rules! select_info {
    ($($rest:literal),+) => {
        concat!(
            "SELECT key, id, workflow, component, status, runs.created_at, ended_at, wake_at, blocked, tokens,
                 (SELECT ifnull(max(seq) + 1, 0) FROM entries WHERE run = key), waits, duplicates,
                 (SELECT json_group_object(name, value) FROM tags own WHERE own.run = key),
                 cancel_requested, (SELECT p.id FROM runs p WHERE p.key = runs.parent), lineage,
                 (SELECT json_group_array(json_array(id, live)) FROM (
                     SELECT p.id, p.ended_at IS NULL AS live
                     FROM predecessors CROSS JOIN runs p ON p.key = predecessor
                     WHERE run = runs.key ORDER BY predecessor)),
                 concurrency_group, concurrency_limit
             FROM runs ",
            $($rest),+
        )
    };
}

fn info(row: &Row<'_>) -> rusqlite::Result<RunInfo> {
    let predecessors: Vec<(RunId, u8)> = column::json(row, 17)?;
    let waits: Option<Wait> = column::opt_json(row, 11)?;
    let live = predecessors.iter().filter(|(_, live)| *live == 1);
    let live = live.map(|(run, _)| run.clone()).collect();
    Ok(RunInfo {
        id: column::parse(row, 1)?,
        workflow: row.get(2)?,
        component: column::digest(row, 3)?,
        status: column::parse(row, 4)?,
        created_at: row.get(5)?,
        ended_at: row.get(6)?,
        wake_at: row.get(7)?,
        blocked: column::opt_json(row, 8)?,
        tokens: column::json(row, 9)?,
        entries: row.get(10)?,
        waits: waits.map(|wait| wait.shown(live)),
        predecessors: predecessors.into_iter().map(|(run, _)| run).collect(),
        duplicates: row.get(12)?,
        tags: column::json(row, 13)?,
        cancel_requested: column::opt_json(row, 14)?,
        parent: column::opt_parse(row, 15)?,
        lineage: column::opt_json(row, 16)?,
        concurrency: concurrency(row, 18)?,
    })
}

/// From two columns.
fn concurrency(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Concurrency>> {
    let group = column::opt_parse(row, column)?;
    let limit: Option<NonZeroU32> = row.get(column + 1)?;
    Ok(group
        .zip(limit)
        .map(|(group, limit)| Concurrency { group, limit }))
}

pub fn get(conn: &Connection, id: &RunId) -> Result<Option<RunInfo>, Failure> {
    let mut query = conn.prepare_cached(select_info!("WHERE id = ?1"))?;
    let row = query.query_row([id.as_str()], info).optional();
    row.map_err(|error| damaged(id, error))
}

/// The runs of a list, each way by one index in the order of the list. `?6` holds the tags.
macro_rules! select_list {
    ($from:literal, $which:literal, $created_at:literal, $key:literal) => {
        select_info!(
            $from,
            " WHERE ",
            $which,
            " AND (",
            $created_at,
            ", ",
            $key,
            ") < (?1, ?2) AND ",
            $created_at,
            " >= ?3
                 AND (?4 IS NULL OR status = ?4) AND (?5 IS NULL OR workflow = ?5)
                 AND NOT EXISTS (
                     SELECT 1 FROM json_each(?6) wanted LEFT JOIN tags own
                         ON own.run = runs.key AND own.name = wanted.key AND own.value = wanted.value
                     WHERE own.run IS NULL)
             ORDER BY ",
            $created_at,
            " DESC, ",
            $key,
            " DESC"
        )
    };
}

const LIST: &str = select_list!("", "TRUE", "runs.created_at", "runs.key");
const LIST_CHILDREN: &str = select_list!("", "runs.parent = ?7", "runs.created_at", "runs.key");
const LIST_TAGGED: &str = select_list!(
    "JOIN tags found ON found.run = runs.key",
    "found.name = ?7 AND found.value = ?8",
    "found.created_at",
    "found.run"
);

/// The newest first.
pub fn list(conn: &Connection, filter: &RunFilter) -> Result<Vec<RunInfo>, Failure> {
    let after = filter.after.as_ref();
    let after = after.map(|id| place(conn, id)?.ok_or_else(|| Failure::from(decide::no_run(id))));
    let until = filter.created_before.map(|at| (column::time(at), RunKey::MIN));
    let end = [after.transpose()?, until].into_iter().flatten().min();
    let (created_at, before) = end.unwrap_or((decide::LATEST, RunKey::MAX));
    let since = column::time(filter.created_after.unwrap_or(0));
    let status = filter.status.map(RunStatus::as_str);
    let tags = column::to_json(&filter.tags)?;
    let common = params![created_at, before, since, status, filter.workflow, tags];
    let parent = filter.parent.as_ref().map(|id| key(conn, id));
    let runs: rusqlite::Result<_> = match (parent.transpose()?, filter.tags.iter().next()) {
        (Some(None), _) => Ok(Vec::new()),
        (Some(Some(parent)), _) => {
            let of_parent: Vec<_> = [common, params![parent]].concat();
            readable(
                conn.prepare_cached(LIST_CHILDREN)?
                    .query_map(&of_parent[..], info)?,
            )
            .take(filter.limit)
            .collect()
        }
        (None, None) => readable(conn.prepare_cached(LIST)?.query_map(common, info)?)
            .take(filter.limit)
            .collect(),
        (None, Some((name, value))) => {
            let tagged: Vec<_> = [common, params![name, value]].concat();
            readable(conn.prepare_cached(LIST_TAGGED)?.query_map(&tagged[..], info)?)
                .take(filter.limit)
                .collect()
        }
    };
    Ok(runs?)
}

/// Where a run stands in lists.
fn place(conn: &Connection, id: &RunId) -> Result<Option<(Timestamp, RunKey)>, Failure> {
    let mut query = conn.prepare_cached("SELECT created_at, key FROM runs WHERE id = ?1")?;
    let found = query.query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(found.optional()?)
}

/// How often a run was started again, as last saved.
pub fn duplicates(conn: &Connection, id: &RunId) -> Result<Option<u64>, Failure> {
    let mut query = conn.prepare_cached("SELECT duplicates FROM runs WHERE id = ?1")?;
    Ok(query.query_row([id.as_str()], |row| row.get(0)).optional()?)
}

pub fn set_duplicates(conn: &Connection, id: &RunId, duplicates: u64) -> Result<(), Failure> {
    conn.prepare_cached("UPDATE runs SET duplicates = ?2 WHERE id = ?1")?
        .execute(params![id.as_str(), duplicates])?;
    Ok(())
}

/// Names the runs that have to end before a run begins, or had to.
pub fn add_predecessors(
    conn: &Connection,
    key: RunKey,
    predecessors: &BTreeSet<RunKey>,
) -> Result<(), Failure> {
    for predecessor in predecessors {
        conn.prepare_cached("INSERT INTO predecessors (run, predecessor) VALUES (?1, ?2)")?
            .execute([key, *predecessor])?;
    }
    Ok(())
}

/// Those that a run waits for and that have not ended, in order of admission.
pub fn live_predecessors(conn: &Connection, key: RunKey) -> Result<Vec<RunKey>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT key FROM predecessors JOIN runs ON key = predecessor
         WHERE run = ?1 AND ended_at IS NULL ORDER BY key",
    )?;
    let rows = query.query_map([key], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The live runs that have or had this one as a predecessor, in order of admission.
pub fn followers(conn: &Connection, key: RunKey) -> Result<Vec<RunId>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT id FROM predecessors JOIN runs ON key = run
         WHERE predecessor = ?1 AND ended_at IS NULL ORDER BY key",
    )?;
    let rows = query.query_map([key], |row| column::parse(row, 0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Whoever waits for one run waits for another in its place.
pub fn move_followers(conn: &Connection, from: RunKey, to: RunKey) -> Result<(), Failure> {
    conn.prepare_cached("UPDATE predecessors SET predecessor = ?2 WHERE predecessor = ?1")?
        .execute([from, to])?;
    Ok(())
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

/// The id of the run that this integer stands for.
pub fn id(conn: &Connection, key: RunKey) -> Result<RunId, Failure> {
    let mut query = conn.prepare_cached("SELECT id FROM runs WHERE key = ?1")?;
    Ok(query.query_row([key], |row| column::parse(row, 0))?)
}

/// Who started this run, and what becomes of it when that one ends first.
pub fn parent(conn: &Connection, key: RunKey) -> Result<Option<(ParentLink, ParentEnd)>, Failure> {
    let mut query =
        conn.prepare_cached("SELECT parent, parent_call, on_parent_end FROM runs WHERE key = ?1")?;
    let parent = query.query_row([key], |row| {
        Ok(match (row.get(0)?, row.get(1)?, column::opt_json(row, 2)?) {
            (Some(run), Some(call), Some(on_end)) => Some((ParentLink { run, call }, on_end)),
            _ => None,
        })
    });
    Ok(parent?)
}

/// Live runs that this one started, with what becomes of them when it ends.
pub fn children(conn: &Connection, parent: RunKey) -> Result<Vec<(RunId, ParentEnd)>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT id, on_parent_end FROM runs WHERE parent = ?1 AND ended_at IS NULL ORDER BY key",
    )?;
    let rows = query.query_map([parent], |row| {
        Ok((column::parse(row, 0)?, column::json(row, 1)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Runs with something to do, longest first, without those of the groups in `but`.
pub fn due(
    conn: &Connection,
    now: Timestamp,
    limit: usize,
    but: &[ConcurrencyGroup],
) -> Result<Vec<DueRun>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT id, concurrency_group, concurrency_limit, ready_since AS since, key FROM runs
         WHERE ready_since IS NOT NULL
             AND (concurrency_group IS NULL OR concurrency_group NOT IN (SELECT value FROM json_each(?2)))
         UNION ALL
         SELECT id, concurrency_group, concurrency_limit, wake_at, key FROM runs
         WHERE wake_at <= ?1
             AND (concurrency_group IS NULL OR concurrency_group NOT IN (SELECT value FROM json_each(?2)))
         ORDER BY since, key",
    )?;
    let rows = query.query_map(params![column::time(now), column::to_json(&but)?], |row| {
        Ok(DueRun {
            run: column::parse(row, 0)?,
            concurrency: concurrency(row, 1)?,
        })
    })?;
    Ok(readable(rows).take(limit).collect::<rusqlite::Result<_>>()?)
}

pub fn next_wake(conn: &Connection, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    let mut query = conn.prepare_cached("SELECT min(wake_at) FROM runs WHERE wake_at > ?1")?;
    Ok(query.query_row([column::time(now)], |row| row.get(0))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::migrations;

    /// A page costs what it holds, however many runs there are: no list sorts, and each begins where its index says.
    #[test]
    fn e14_lists_go_along_an_index() {
        let mut conn = Connection::open_in_memory().unwrap();
        migrations::apply(&mut conn).unwrap();
        for (sql, index) in [
            (
                LIST,
                "SEARCH runs USING INDEX runs_created (created_at>? AND created_at<?)",
            ),
            (
                LIST_CHILDREN,
                "SEARCH runs USING INDEX runs_of_parent (parent=? AND created_at>? AND created_at<?)",
            ),
            (
                LIST_TAGGED,
                "SEARCH found USING COVERING INDEX tags_found (name=? AND value=? AND created_at>? AND (created_at,run)<(?,?))",
            ),
        ] {
            let mut query = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let nothing = rusqlite::params_from_iter(vec![rusqlite::types::Null; query.parameter_count()]);
            let plan = query.query_map(nothing, |row| row.get::<_, String>(3)).unwrap();
            let plan = plan.collect::<rusqlite::Result<Vec<_>>>().unwrap();
            assert_eq!(plan[0], index, "{plan:?}");
            assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{plan:?}");
        }
    }
}
