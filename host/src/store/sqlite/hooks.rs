//! Queries on hooks and the claims of tokens.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column;
use super::failure::Failure;
use super::runs::RunKey;
use crate::ids::{HookToken, RunId};
use crate::journal::{HookNo, HookSpec, Timestamp};
use crate::store::decide::{self, Claim};
use crate::store::{HookInfo, HookRef, Owner};

/// Adds a claim; the token leads to it from now on.
pub fn claim(
    conn: &Connection,
    run: RunKey,
    hook: HookNo,
    spec: &HookSpec,
    at: Timestamp,
) -> Result<(), Failure> {
    let metadata = spec.metadata.as_ref().map(column::to_json).transpose()?;
    conn.prepare_cached(
        "INSERT INTO hooks (run, hook, token, metadata, payload, claimed_at, retained_until)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        run,
        hook,
        spec.token.as_str(),
        metadata,
        column::to_json(&spec.payload)?,
        at,
        decide::retained_until(at, spec),
    ])?;
    conn.prepare_cached(
        "INSERT INTO claims (token, run, hook) VALUES (?1, ?2, ?3)
         ON CONFLICT (token) DO UPDATE SET run = excluded.run, hook = excluded.hook",
    )?
    .execute(params![spec.token.as_str(), run, hook])?;
    Ok(())
}

/// How many claims a run has made.
pub fn count(conn: &Connection, run: RunKey) -> Result<HookNo, Failure> {
    let mut query = conn.prepare_cached("SELECT ifnull(max(hook) + 1, 0) FROM hooks WHERE run = ?1")?;
    Ok(query.query_row([run], |row| row.get(0))?)
}

/// Refuses further deliveries. As the other changes here: false when there is no such hook.
pub fn close(conn: &Connection, run: RunKey, hook: HookNo) -> Result<bool, Failure> {
    let mut query = conn.prepare_cached("UPDATE hooks SET closed = 1 WHERE run = ?1 AND hook = ?2")?;
    Ok(query.execute(params![run, hook])? == 1)
}

/// Closes and frees the token; only the first time counts.
pub fn dispose(conn: &Connection, run: RunKey, hook: HookNo, at: Timestamp) -> Result<bool, Failure> {
    let mut query = conn.prepare_cached(
        "UPDATE hooks SET closed = 1, disposed_at = ifnull(disposed_at, ?3)
         WHERE run = ?1 AND hook = ?2",
    )?;
    Ok(query.execute(params![run, hook, at])? == 1)
}

pub fn add_unread(conn: &Connection, run: RunKey, hook: HookNo) -> Result<bool, Failure> {
    let mut query =
        conn.prepare_cached("UPDATE hooks SET unread = unread + 1 WHERE run = ?1 AND hook = ?2")?;
    Ok(query.execute(params![run, hook])? == 1)
}

pub fn unread(conn: &Connection, run: RunKey, hook: HookNo) -> Result<Option<u64>, Failure> {
    let mut query = conn.prepare_cached("SELECT unread FROM hooks WHERE run = ?1 AND hook = ?2")?;
    Ok(query.query_row(params![run, hook], |row| row.get(0)).optional()?)
}

pub fn set_unread(conn: &Connection, run: RunKey, hook: HookNo, unread: u64) -> Result<(), Failure> {
    conn.prepare_cached("UPDATE hooks SET unread = ?3 WHERE run = ?1 AND hook = ?2")?
        .execute(params![run, hook, unread])?;
    Ok(())
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT h.hook, h.closed, h.disposed_at, h.retained_until, r.id, r.workflow, r.status,
                 r.ended_at, h.token, h.metadata, h.payload, h.claimed_at, h.unread, r.component
             FROM hooks h JOIN runs r ON r.key = h.run ",
            $rest
        )
    };
}

fn claim_row(row: &Row<'_>) -> rusqlite::Result<Claim> {
    let run: RunId = column::parse(row, 4)?;
    Ok(Claim {
        address: HookRef {
            run: run.clone(),
            hook: row.get(0)?,
        },
        owner: Owner {
            run,
            workflow: row.get(5)?,
            status: column::parse(row, 6)?,
        },
        owner_ended_at: row.get(7)?,
        closed: row.get(1)?,
        disposed_at: row.get(2)?,
        retained_until: row.get(3)?,
    })
}

/// A hook with the claim that it is.
fn info_row(row: &Row<'_>, now: Timestamp) -> rusqlite::Result<(Claim, HookInfo)> {
    let claim = claim_row(row)?;
    let info = HookInfo {
        token: column::parse(row, 8)?,
        run_id: claim.owner.run.clone(),
        hook: claim.address.hook,
        state: claim.state(now),
        owner: claim.owner.clone(),
        metadata: column::opt_json(row, 9)?,
        unread: row.get(12)?,
        claimed_at: row.get(11)?,
        retained_until: claim.retained_until,
        payload: column::json(row, 10)?,
        component: column::digest(row, 13)?,
    };
    Ok((claim, info))
}

/// The last claim of a token.
pub fn last_claim(conn: &Connection, token: &HookToken) -> Result<Option<Claim>, Failure> {
    let mut query = conn.prepare_cached(select!(
        "JOIN claims c ON c.run = h.run AND c.hook = h.hook WHERE c.token = ?1"
    ))?;
    Ok(query.query_row([token.as_str()], claim_row).optional()?)
}

/// The last claim of a token, with everything about its hook.
pub fn by_token(
    conn: &Connection,
    token: &HookToken,
    now: Timestamp,
) -> Result<Option<(Claim, HookInfo)>, Failure> {
    let mut query = conn.prepare_cached(select!(
        "JOIN claims c ON c.run = h.run AND c.hook = h.hook WHERE c.token = ?1"
    ))?;
    let found = query.query_row([token.as_str()], |row| info_row(row, now));
    Ok(found.optional()?)
}

/// The hooks of a run, in order of claiming.
pub fn of_run(conn: &Connection, run: &RunId, now: Timestamp) -> Result<Vec<HookInfo>, Failure> {
    let mut query = conn.prepare_cached(select!("WHERE r.id = ?1 ORDER BY h.hook"))?;
    let rows = query.query_map([run.as_str()], |row| Ok(info_row(row, now)?.1))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
