//! Queries on the one host row.

use rusqlite::Connection;

use super::failure::Failure;

pub fn epoch(conn: &Connection) -> Result<u64, Failure> {
    let mut query = conn.prepare_cached("SELECT epoch FROM host WHERE id = 1")?;
    Ok(query.query_row([], |row| row.get(0))?)
}

pub fn set_epoch(conn: &Connection, epoch: u64) -> Result<(), Failure> {
    conn.prepare_cached("UPDATE host SET epoch = ?1 WHERE id = 1")?
        .execute([epoch])?;
    Ok(())
}
