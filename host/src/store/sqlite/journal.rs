//! Queries on entries, and the check of their chain.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::column;
use super::failure::Failure;
use super::runs::{Anchor, RunKey};
use crate::ids::{Digest, RunId};
use crate::journal::{Body, Entry, Seq, Timestamp, chain, decode_event, encode_event};
use crate::store::StoreError;

/// What entry 0 follows.
pub const NOTHING: Digest = Digest([0; 32]);

/// An entry's event as written, and its checksum.
pub struct Link {
    event: String,
    pub chain: Digest,
}

/// Links an entry to one with checksum `before`.
pub fn link(entry: &Entry, before: Digest) -> Result<Link, StoreError> {
    let invalid = |error: &dyn std::error::Error| StoreError::Invalid(error.to_string());
    let event = encode_event(&entry.event).map_err(|error| invalid(&error))?;
    let chain = chain(before, entry.seq, entry.at, &event, entry.body.as_ref());
    let event = String::from_utf8(event).map_err(|error| invalid(&error))?;
    Ok(Link { event, chain })
}

pub fn insert(conn: &Connection, run: RunKey, entry: &Entry, link: &Link) -> Result<(), Failure> {
    let body = entry.body.as_ref();
    conn.prepare_cached(
        "INSERT INTO entries (run, seq, at, event, body, body_len, body_sha256, chain)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        run,
        entry.seq,
        entry.at,
        link.event,
        body.and_then(|body| body.text.as_deref()),
        body.map(|body| body.len),
        body.map(|body| body.digest.0),
        link.chain.0,
    ])?;
    Ok(())
}

/// The end of a journal.
#[derive(Debug, Clone, Copy)]
pub struct Tail {
    pub seq: Seq,
    pub at: Timestamp,
    pub chain: Digest,
}

/// The last entry's place, time and checksum; the checksum is not verified.
pub fn tail(conn: &Connection, run: RunKey) -> Result<Option<Tail>, Failure> {
    let mut query =
        conn.prepare_cached("SELECT seq, at, chain FROM entries WHERE run = ?1 ORDER BY seq DESC LIMIT 1")?;
    let tail = query.query_row([run], |row| {
        Ok(Tail {
            seq: row.get(0)?,
            at: row.get(1)?,
            chain: column::digest(row, 2)?,
        })
    });
    Ok(tail.optional()?)
}

/// An entry as it is stored.
struct Stored {
    seq: Seq,
    at: Timestamp,
    event: Vec<u8>,
    body: Option<Body>,
    chain: Digest,
}

fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let len: Option<u64> = row.get(4)?;
    let digest = column::opt_digest(row, 5)?;
    let text = row.get_ref(3)?.as_str_or_null()?;
    let body = len.zip(digest).map(|(len, digest)| Body {
        len,
        digest,
        text: text.map(Into::into),
    });
    Ok(Stored {
        seq: row.get(0)?,
        at: row.get(1)?,
        event: row.get_ref(2)?.as_bytes()?.to_owned(),
        body,
        chain: column::digest(row, 6)?,
    })
}

/// What reading stops at, and why.
struct Damage(String);

impl Stored {
    /// Its checksum, over the one before.
    fn link(&self, before: Digest) -> Digest {
        chain(before, self.seq, self.at, &self.event, self.body.as_ref())
    }

    fn verify(&self, expected: Seq, before: Digest) -> Result<(), Damage> {
        let seq = self.seq;
        if seq != expected {
            return Err(Damage(format!("entry {expected} is missing")));
        }
        if self.link(before) != self.chain {
            return Err(Damage(format!("the checksum of entry {seq} does not match")));
        }
        let body = self.body.as_ref().and_then(|b| Some((b, b.text.as_ref()?)));
        if body.is_some_and(|(body, text)| Digest::of(&**text) != body.digest) {
            return Err(Damage(format!(
                "the body of entry {seq} does not match its digest"
            )));
        }
        Ok(())
    }

    fn decode(self) -> Result<Entry, Damage> {
        let Self {
            seq, at, event, body, ..
        } = self;
        let event = decode_event(&event).map_err(|e| Damage(format!("entry {seq}: {e}")))?;
        Ok(Entry { seq, at, event, body })
    }
}

/// Calls `each` for every entry from `from` on, at most `limit`.
fn scan(
    conn: &Connection,
    run: (RunKey, &RunId),
    from: Seq,
    limit: usize,
    mut each: impl FnMut(Stored) -> Result<(), Damage>,
) -> Result<(), Failure> {
    let (key, id) = run;
    let corrupt = |what| StoreError::Corrupt {
        run: id.clone(),
        what,
    };
    let mut query = conn.prepare_cached(
        "SELECT seq, at, event, body, body_len, body_sha256, chain FROM entries
         WHERE run = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3",
    )?;
    let mut rows = query.query(params![key, column::time(from), column::limit(limit)])?;
    while let Some(row) = rows.next()? {
        let stored = stored(row).map_err(|e| corrupt(format!("an entry cannot be read: {e}")))?;
        each(stored).map_err(|Damage(what)| corrupt(what))?;
    }
    Ok(())
}

/// The body of entry 0: what a run was started with.
pub fn input(conn: &Connection, run: (RunKey, &RunId)) -> Result<Body, Failure> {
    let started = read(conn, run, 0, 1)?.into_iter().next();
    Ok(started
        .and_then(|entry| entry.body)
        .unwrap_or_else(|| Body::new("null")))
}

/// Entries from `from` on, as they are.
pub fn read(
    conn: &Connection,
    run: (RunKey, &RunId),
    from: Seq,
    limit: usize,
) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    scan(conn, run, from, limit, |stored| {
        entries.push(stored.decode()?);
        Ok(())
    })?;
    Ok(entries)
}

/// Entries with their checksums verified.
pub struct Verified {
    pub entries: Vec<Entry>,
    /// Of each of `entries`.
    pub chain: Vec<Digest>,
}

/// Every entry from `from` on, verified against the one before it.
pub fn read_verified(conn: &Connection, run: (RunKey, &RunId), from: Seq) -> Result<Verified, Failure> {
    read_verified_part(conn, run, from, usize::MAX)
}

/// The first entries, verified, up to this one.
pub fn read_upto(conn: &Connection, run: (RunKey, &RunId), upto: Seq) -> Result<Verified, Failure> {
    let count = usize::try_from(upto.saturating_add(1)).unwrap_or(usize::MAX);
    read_verified_part(conn, run, 0, count)
}

/// Copies the first entries of a run to another one, up to this one, as they are written.
pub fn copy(conn: &Connection, from: RunKey, to: RunKey, upto: Seq) -> Result<(), Failure> {
    conn.prepare_cached(
        "INSERT INTO entries (run, seq, at, event, body, body_len, body_sha256, chain)
         SELECT ?2, seq, at, event, body, body_len, body_sha256, chain FROM entries
         WHERE run = ?1 AND seq <= ?3",
    )?
    .execute(params![from, to, column::time(upto)])?;
    Ok(())
}

/// As [`read_verified`]; of the entry before and those from `from` on, at most `limit`.
fn read_verified_part(
    conn: &Connection,
    run: (RunKey, &RunId),
    from: Seq,
    limit: usize,
) -> Result<Verified, Failure> {
    let mut verified = Verified {
        entries: Vec::new(),
        chain: Vec::new(),
    };
    // The entry before is read for its checksum only.
    let mut before = (from == 0).then_some(NOTHING);
    let mut expected = from;
    scan(conn, run, from.saturating_sub(1), limit, |stored| {
        let Some(link) = before.replace(stored.chain) else {
            if stored.seq + 1 == from {
                return Ok(());
            }
            return Err(Damage(format!("entry {} is missing", from - 1)));
        };
        stored.verify(expected, link)?;
        expected += 1;
        verified.chain.push(stored.chain);
        verified.entries.push(stored.decode()?);
        Ok(())
    })?;
    Ok(verified)
}

/// As [`read_verified`], and the journal must pass the anchor or begin after it.
pub fn read_to_anchor(
    conn: &Connection,
    run: (RunKey, &RunId),
    from: Seq,
    anchor: Anchor,
) -> Result<Vec<Entry>, Failure> {
    let Verified { entries, chain } = read_verified(conn, run, from)?;
    let corrupt = |what: String| StoreError::Corrupt {
        run: run.1.clone(),
        what,
    };
    let Some(index) = anchor.seq.checked_sub(from) else {
        return Ok(entries);
    };
    match chain.get(usize::try_from(index).unwrap_or(usize::MAX)) {
        Some(chain) if *chain == anchor.chain => Ok(entries),
        Some(_) => Err(corrupt(format!("entry {} is not the one that was written", anchor.seq)).into()),
        None => Err(corrupt(format!("it is cut off before entry {}", anchor.seq)).into()),
    }
}
