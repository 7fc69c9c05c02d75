//! Queries on output streams.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::column;
use super::failure::Failure;
use super::runs::RunKey;
use crate::ids::StreamName;
use crate::journal::{CallNo, StreamWrite, Timestamp};
use crate::store::decide::Streamed;
use crate::store::{Chunk, StreamInfo};

/// Stands for workflow code among the calls that write.
const WORKFLOW: i64 = -1;

pub fn writer(call: Option<CallNo>) -> i64 {
    call.map_or(WORKFLOW, i64::from)
}

fn find(conn: &Connection, run: RunKey, name: &StreamName) -> Result<Option<i64>, Failure> {
    let mut query = conn.prepare_cached("SELECT stream FROM streams WHERE run = ?1 AND name = ?2")?;
    let found = query.query_row(params![run, name.as_str()], |row| row.get(0));
    Ok(found.optional()?)
}

/// What decides about a write.
pub fn streamed(conn: &Connection, run: RunKey, write: &StreamWrite) -> Result<Streamed, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT count(*), ifnull(sum(bytes), 0), max(CASE WHEN name = ?2 THEN chunks END),
             max(CASE WHEN name = ?2 THEN stream END)
         FROM streams WHERE run = ?1",
    )?;
    let (mut streamed, stream): (Streamed, Option<i64>) =
        query.query_row(params![run, write.stream.as_str()], |row| {
            let streamed = Streamed {
                streams: row.get(0)?,
                bytes: row.get(1)?,
                chunks: row.get(2)?,
                next: 0,
            };
            Ok((streamed, row.get(3)?))
        })?;
    if let Some(stream) = stream {
        streamed.next = conn
            .prepare_cached(
                "SELECT ifnull(max(number) + 1, 0) FROM chunks WHERE stream = ?1 AND writer = ?2",
            )?
            .query_row(params![stream, writer(write.call)], |row| row.get(0))?;
    }
    Ok(streamed)
}

pub fn add(conn: &Connection, run: RunKey, write: &StreamWrite, at: Timestamp) -> Result<(), Failure> {
    let mut counted = conn.prepare_cached(
        "INSERT INTO streams (run, name, chunks, bytes) VALUES (?1, ?2, 1, ?3)
         ON CONFLICT (run, name) DO UPDATE SET chunks = chunks + 1, bytes = bytes + ?3
         RETURNING stream, chunks - 1",
    )?;
    let values = params![run, write.stream.as_str(), write.chunk.len()];
    let (stream, index): (i64, u64) = counted.query_row(values, |row| Ok((row.get(0)?, row.get(1)?)))?;
    conn.prepare_cached(
        r#"INSERT INTO chunks (stream, "index", at, writer, attempt, number, chunk)
           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"#,
    )?
    .execute(params![
        stream,
        index,
        at,
        writer(write.call),
        write.attempt,
        write.number,
        &*write.chunk
    ])?;
    Ok(())
}

/// By name.
pub fn of_run(conn: &Connection, run: RunKey) -> Result<Vec<StreamInfo>, Failure> {
    let mut query =
        conn.prepare_cached("SELECT name, chunks, bytes FROM streams WHERE run = ?1 ORDER BY name")?;
    let rows = query.query_map([run], |row| {
        Ok(StreamInfo {
            name: column::parse(row, 0)?,
            chunks: row.get(1)?,
            bytes: row.get(2)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// How many chunks workflow code has written, by stream.
pub fn of_workflow(conn: &Connection, run: RunKey) -> Result<BTreeMap<StreamName, u64>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT name, (SELECT max(number) + 1 FROM chunks c WHERE c.stream = s.stream AND writer = ?2) AS own
         FROM streams s WHERE run = ?1 AND own IS NOT NULL",
    )?;
    let rows = query.query_map(params![run, WORKFLOW], |row| {
        Ok((column::parse(row, 0)?, row.get(1)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// In order, from `from` on.
pub fn read(
    conn: &Connection,
    run: RunKey,
    name: &StreamName,
    from: u64,
    limit: usize,
) -> Result<Vec<Chunk>, Failure> {
    let Some(stream) = find(conn, run, name)? else {
        return Ok(Vec::new());
    };
    let mut query = conn.prepare_cached(
        r#"SELECT "index", at, writer, attempt, chunk FROM chunks
           WHERE stream = ?1 AND "index" >= ?2 ORDER BY "index" LIMIT ?3"#,
    )?;
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let rows = query.query_map(params![stream, from, column::limit(limit)], |row| {
        let writer: i64 = row.get(2)?;
        let chunk: String = row.get(4)?;
        Ok(Chunk {
            index: row.get(0)?,
            at: row.get(1)?,
            call: CallNo::try_from(writer).ok(),
            attempt: row.get(3)?,
            chunk: chunk.into(),
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
