//! Queries on receipts.

use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::column;
use super::failure::Failure;
use crate::ids::IdempotencyKey;
use crate::journal::Timestamp;
use crate::store::decide::Receipt;

pub fn find<T: DeserializeOwned>(
    conn: &Connection,
    scope: &str,
    key: &IdempotencyKey,
) -> Result<Option<Receipt<T>>, Failure> {
    let mut query =
        conn.prepare_cached("SELECT request, answer, at FROM receipts WHERE scope = ?1 AND key = ?2")?;
    let receipt = query.query_row([scope, key.as_str()], |row| {
        Ok(Receipt {
            request: column::digest(row, 0)?,
            answer: column::json(row, 1)?,
            at: row.get(2)?,
        })
    });
    Ok(receipt.optional()?)
}

/// Keeps a receipt, in place of one that is over.
pub fn put<T: Serialize>(
    conn: &Connection,
    scope: &str,
    key: &IdempotencyKey,
    receipt: &Receipt<T>,
) -> Result<(), Failure> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO receipts (scope, key, request, answer, at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?
    .execute(params![
        scope,
        key.as_str(),
        receipt.request.0,
        column::to_json(&receipt.answer)?,
        column::time(receipt.at),
    ])?;
    Ok(())
}

/// Removes the oldest receipt when it is not after `over`. One for each that comes bounds the table.
pub fn prune(conn: &Connection, over: Timestamp) -> Result<(), Failure> {
    conn.prepare_cached("DELETE FROM receipts WHERE id = (SELECT min(id) FROM receipts) AND at <= ?1")?
        .execute([column::time(over)])?;
    Ok(())
}
