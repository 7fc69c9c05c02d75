//! Queries on components and the names given to them.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::column;
use super::failure::Failure;
use crate::ids::Digest;
use crate::journal::Timestamp;
use crate::store::{Deployment, StoredComponent};

/// Keeps a component; what is stored already stays as it is, unless it was damaged.
pub fn put(conn: &Connection, component: &StoredComponent) -> Result<(), Failure> {
    conn.prepare_cached(
        "INSERT INTO components (digest, bytes, manifest) VALUES (?1, ?2, ?3)
         ON CONFLICT (digest) DO UPDATE SET bytes = excluded.bytes WHERE bytes <> excluded.bytes",
    )?
    .execute(params![
        component.digest.0,
        &*component.bytes,
        &*component.manifest
    ])?;
    Ok(())
}

pub fn is_stored(conn: &Connection, digest: Digest) -> Result<bool, Failure> {
    let mut query = conn.prepare_cached("SELECT 1 FROM components WHERE digest = ?1")?;
    Ok(query.exists([digest.0])?)
}

pub fn get(conn: &Connection, digest: Digest) -> Result<Option<StoredComponent>, Failure> {
    let mut query = conn.prepare_cached("SELECT bytes, manifest FROM components WHERE digest = ?1")?;
    let component = query.query_row([digest.0], |row| {
        Ok(StoredComponent {
            digest,
            bytes: row.get_ref(0)?.as_blob()?.into(),
            manifest: row.get_ref(1)?.as_str()?.into(),
        })
    });
    Ok(component.optional()?)
}

pub fn name(conn: &Connection, name: &str, digest: Digest, at: Timestamp) -> Result<(), Failure> {
    conn.prepare_cached(
        "INSERT INTO deployments (name, digest, deployed_at) VALUES (?1, ?2, ?3)
         ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, deployed_at = excluded.deployed_at",
    )?
    .execute(params![name, digest.0, column::time(at)])?;
    Ok(())
}

/// False when nothing has the name.
pub fn remove_name(conn: &Connection, name: &str) -> Result<bool, Failure> {
    let removed = conn
        .prepare_cached("DELETE FROM deployments WHERE name = ?1")?
        .execute([name])?;
    Ok(removed > 0)
}

/// By name.
pub fn deployments(conn: &Connection) -> Result<Vec<Deployment>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT d.name, d.digest, c.manifest, d.deployed_at
         FROM deployments d JOIN components c USING (digest) ORDER BY d.name",
    )?;
    let rows = query.query_map([], |row| {
        Ok(Deployment {
            name: row.get(0)?,
            digest: column::digest(row, 1)?,
            manifest: row.get_ref(2)?.as_str()?.into(),
            deployed_at: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
