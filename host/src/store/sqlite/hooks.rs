//! Queries on hooks and the claims of tokens.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column;
use super::failure::Failure;
use super::runs::RunKey;
use crate::ids::{HookToken, RunId};
use crate::journal::{Body, HookNo, HookSpec, Seq, Timestamp};
use crate::store::decide::{self, Claim, Unread};
use crate::store::{HookInfo, HookRef, Owner, ReceivedPayload};

/// Adds a claim; the token leads to it from now on.
pub fn claim(
    conn: &Connection,
    run: RunKey,
    hook: HookNo,
    spec: &HookSpec,
    at: Timestamp,
) -> Result<(), Failure> {
    copy(conn, run, hook, spec, at)?;
    lead_to(conn, run, hook, spec)
}

/// Adds a claim that another run made. The token leads where it led.
pub fn copy(
    conn: &Connection,
    run: RunKey,
    hook: HookNo,
    spec: &HookSpec,
    at: Timestamp,
) -> Result<(), Failure> {
    let metadata = spec.metadata.as_ref().map(column::to_json).transpose()?;
    let webhook = spec.webhook.as_ref().map(column::to_json).transpose()?;
    conn.prepare_cached(
        "INSERT INTO hooks (run, hook, token, metadata, payload, claimed_at, retained_until, webhook)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        run,
        hook,
        spec.token.as_str(),
        metadata,
        column::to_json(&spec.payload)?,
        at,
        decide::retained_until(at, spec),
        webhook,
    ])?;
    Ok(())
}

/// Makes another claim of a hook. False when there is no such hook.
pub fn claim_anew(
    conn: &Connection,
    run: RunKey,
    hook: HookNo,
    spec: &HookSpec,
    at: Timestamp,
) -> Result<bool, Failure> {
    let claimed = copy_anew(conn, run, hook, spec, at)?;
    lead_to(conn, run, hook, spec)?;
    Ok(claimed)
}

/// As [`claim_anew`], of a claim that another run made.
pub fn copy_anew(
    conn: &Connection,
    run: RunKey,
    hook: HookNo,
    spec: &HookSpec,
    at: Timestamp,
) -> Result<bool, Failure> {
    let metadata = spec.metadata.as_ref().map(column::to_json).transpose()?;
    let webhook = spec.webhook.as_ref().map(column::to_json).transpose()?;
    let mut query = conn.prepare_cached(
        "UPDATE hooks SET token = ?3, metadata = ?4, payload = ?5, claimed_at = ?6, retained_until = ?7,
             webhook = ?8
         WHERE run = ?1 AND hook = ?2",
    )?;
    let claimed = query.execute(params![
        run,
        hook,
        spec.token.as_str(),
        metadata,
        column::to_json(&spec.payload)?,
        at,
        decide::retained_until(at, spec),
        webhook,
    ])?;
    Ok(claimed == 1)
}

fn lead_to(conn: &Connection, run: RunKey, hook: HookNo, spec: &HookSpec) -> Result<(), Failure> {
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

/// Notes a payload at `seq`.
pub fn add_payload(
    conn: &Connection,
    run: RunKey,
    hook: HookNo,
    seq: Seq,
    bytes: u64,
) -> Result<bool, Failure> {
    let mut query = conn.prepare_cached(
        "UPDATE hooks SET received = received + 1, unread = unread + 1, unread_bytes = unread_bytes + ?3
         WHERE run = ?1 AND hook = ?2 RETURNING received - 1",
    )?;
    let number = query.query_row(params![run, hook, bytes], |row| row.get::<_, u64>(0));
    let Some(number) = number.optional()? else {
        return Ok(false);
    };
    conn.prepare_cached("INSERT INTO payloads (run, hook, number, seq, bytes) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![run, hook, number, seq, bytes])?;
    Ok(true)
}

/// What is unread, and how many bytes the next `count` of it have.
pub fn unread(
    conn: &Connection,
    run: RunKey,
    hook: HookNo,
    count: u32,
) -> Result<Option<(Unread, u64)>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT unread, unread_bytes,
             (SELECT ifnull(sum(bytes), 0) FROM payloads p WHERE p.run = h.run AND p.hook = h.hook
                  AND p.number >= h.received - h.unread AND p.number < h.received - h.unread + ?3)
         FROM hooks h WHERE run = ?1 AND hook = ?2",
    )?;
    let found = query.query_row(params![run, hook, count], |row| {
        let unread = Unread {
            payloads: row.get(0)?,
            bytes: row.get(1)?,
        };
        Ok((unread, row.get(2)?))
    });
    Ok(found.optional()?)
}

pub fn set_unread(conn: &Connection, run: RunKey, hook: HookNo, unread: Unread) -> Result<(), Failure> {
    conn.prepare_cached("UPDATE hooks SET unread = ?3, unread_bytes = ?4 WHERE run = ?1 AND hook = ?2")?
        .execute(params![run, hook, unread.payloads, unread.bytes])?;
    Ok(())
}

/// The hooks of a run that take deliveries: their numbers, what they were claimed with, and until when their tokens
/// stay taken.
pub fn open(conn: &Connection, run: RunKey) -> Result<Vec<(HookNo, HookSpec, Timestamp)>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT h.hook, h.token, h.metadata, h.payload, h.retained_until, h.webhook FROM hooks h
         JOIN claims c ON c.token = h.token AND c.run = h.run AND c.hook = h.hook
         WHERE h.run = ?1 AND h.closed = 0 ORDER BY h.hook",
    )?;
    let rows = query.query_map([run], |row| {
        let spec = HookSpec {
            token: column::parse(row, 1)?,
            retain_ms: 0,
            metadata: column::opt_json(row, 2)?,
            payload: column::json(row, 3)?,
            webhook: column::opt_json(row, 5)?,
        };
        Ok((row.get(0)?, spec, row.get(4)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Where the payloads of a hook are that were not read.
pub fn unread_seqs(conn: &Connection, run: RunKey, hook: HookNo) -> Result<Vec<Seq>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT p.seq FROM hooks h JOIN payloads p ON p.run = h.run AND p.hook = h.hook
         WHERE h.run = ?1 AND h.hook = ?2 AND p.number >= h.received - h.unread ORDER BY p.number",
    )?;
    let rows = query.query_map(params![run, hook], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// The payloads of a hook from number `from` on.
pub fn payloads(
    conn: &Connection,
    hook: &HookRef,
    from: u64,
    limit: usize,
) -> Result<Vec<ReceivedPayload>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT p.number, p.seq, e.at, p.number < h.received - h.unread, e.body, e.body_len, e.body_sha256
         FROM runs r
         JOIN hooks h ON h.run = r.key
         JOIN payloads p ON p.run = h.run AND p.hook = h.hook
         JOIN entries e ON e.run = p.run AND e.seq = p.seq
         WHERE r.id = ?1 AND h.hook = ?2 AND p.number >= ?3 ORDER BY p.number LIMIT ?4",
    )?;
    let (from, limit) = (column::time(from), column::limit(limit));
    let rows = query.query_map(params![hook.run.as_str(), hook.hook, from, limit], |row| {
        let text = row.get_ref(4)?.as_str_or_null()?;
        Ok(ReceivedPayload {
            number: row.get(0)?,
            seq: row.get(1)?,
            at: row.get(2)?,
            read: row.get(3)?,
            body: Body {
                len: row.get(5)?,
                digest: column::digest(row, 6)?,
                text: text.map(Into::into),
            },
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

macro_rules! select {
    ($rest:literal) => {
        concat!(
            "SELECT h.hook, h.closed, h.disposed_at, h.retained_until, r.id, r.workflow, r.status,
                 r.ended_at, h.token, h.metadata, h.payload, h.claimed_at, h.unread, r.component,
                 h.unread_bytes, h.webhook
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
        unread: Unread {
            payloads: row.get(12)?,
            bytes: row.get(14)?,
        },
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
        unread: claim.unread.payloads,
        claimed_at: row.get(11)?,
        retained_until: claim.retained_until,
        payload: column::json(row, 10)?,
        webhook: column::opt_json(row, 15)?,
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
