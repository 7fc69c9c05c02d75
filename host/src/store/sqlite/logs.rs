//! Queries on the log of runs.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::column;
use super::failure::Failure;
use super::runs::RunKey;
use super::streams::writer;
use crate::journal::{CallNo, LogBatch, LogLevel, LogLine, LogMark};
use crate::store::decide;
use crate::store::{LogFilter, LogPage};

/// What the log of a run has come to.
#[derive(Default)]
struct Logged {
    lines: u64,
    bytes: u64,
    dropped: u64,
    mark: Option<LogMark>,
}

fn logged(conn: &Connection, run: RunKey) -> Result<Logged, Failure> {
    let mut query =
        conn.prepare_cached("SELECT lines, bytes, dropped, mark_seq, mark_number FROM logs WHERE run = ?1")?;
    let logged = query.query_row([run], |row| {
        let seq: Option<u64> = row.get(3)?;
        let number: Option<u64> = row.get(4)?;
        Ok(Logged {
            lines: row.get(0)?,
            bytes: row.get(1)?,
            dropped: row.get(2)?,
            mark: seq.zip(number),
        })
    });
    Ok(logged.optional()?.unwrap_or_default())
}

/// How far workflow code has come in writing.
pub fn mark(conn: &Connection, run: RunKey) -> Result<Option<LogMark>, Failure> {
    Ok(logged(conn, run)?.mark)
}

/// Adds what is not there yet and fits.
pub fn add(conn: &Connection, run: RunKey, batch: &LogBatch) -> Result<(), Failure> {
    let mut held = logged(conn, run)?;
    let mut insert = conn.prepare_cached(
        r#"INSERT INTO log_lines (run, "index", at, level, writer, attempt, seq, number, text)
           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
           ON CONFLICT (run, writer, attempt, seq, number) DO NOTHING"#,
    )?;
    let mut upsert = conn.prepare_cached(
        "INSERT INTO logs (run, lines, bytes, dropped, mark_seq, mark_number) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (run) DO UPDATE SET lines = ?2, bytes = ?3, dropped = ?4, mark_seq = ?5, mark_number = ?6",
    )?;
    let mut write = |held: &Logged| {
        let (seq, number) = held.mark.unzip();
        upsert.execute(params![run, held.lines, held.bytes, held.dropped, seq, number])
    };
    // Lines refer to this row.
    write(&held)?;
    for line in &batch.lines {
        if !decide::takes_line(held.lines, held.bytes, line) {
            held.dropped += 1;
            continue;
        }
        let added = insert.execute(params![
            run,
            held.lines,
            column::time(line.at),
            line.level as u8,
            writer(line.call),
            line.attempt,
            line.seq,
            line.number,
            &*line.text
        ])?;
        if added > 0 {
            held.lines += 1;
            held.bytes += line.text.len() as u64;
        }
    }
    held.dropped += batch.dropped;
    held.mark = held.mark.max(batch.mark);
    write(&held)?;
    Ok(())
}

pub fn read(conn: &Connection, run: RunKey, filter: LogFilter) -> Result<LogPage, Failure> {
    let mut query = conn.prepare_cached(
        r#"SELECT "index", at, level, writer, attempt, seq, number, text FROM log_lines
           WHERE run = ?1 AND "index" >= ?2 AND level >= ?3 ORDER BY "index" LIMIT ?4"#,
    )?;
    let from = i64::try_from(filter.from).unwrap_or(i64::MAX);
    let values = params![run, from, filter.level as u8, column::limit(filter.limit)];
    let rows = query.query_map(values, |row| {
        let (level, writer): (usize, i64) = (row.get(2)?, row.get(3)?);
        let text: String = row.get(7)?;
        let line = LogLine {
            at: row.get(1)?,
            level: *LogLevel::ALL.get(level).unwrap_or(&LogLevel::Error),
            call: CallNo::try_from(writer).ok(),
            attempt: row.get(4)?,
            seq: row.get(5)?,
            number: row.get(6)?,
            text: text.into(),
        };
        Ok((row.get(0)?, line))
    })?;
    Ok(LogPage {
        lines: rows.collect::<rusqlite::Result<_>>()?,
        dropped: logged(conn, run)?.dropped,
    })
}
