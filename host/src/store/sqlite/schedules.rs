//! Queries on schedules.

use rusqlite::{Connection, params};

use super::column;
use super::failure::Failure;
use crate::journal::Timestamp;
use crate::store::{NewSchedule, ScheduleName, StoredSchedule};

/// The schedules of a deployment from now on. Of one that was there with the same spec it is kept how far it is.
pub fn replace(
    conn: &Connection,
    deployment: &str,
    schedules: &[NewSchedule],
    now: Timestamp,
) -> Result<(), Failure> {
    let workflows: Vec<_> = schedules.iter().map(|schedule| &schedule.workflow).collect();
    conn.prepare_cached(
        "DELETE FROM schedules WHERE deployment = ?1 AND workflow NOT IN (SELECT value FROM json_each(?2))",
    )?
    .execute(params![deployment, column::to_json(&workflows)?])?;
    let mut insert = conn.prepare_cached(
        "INSERT INTO schedules (deployment, workflow, spec, done_until) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (deployment, workflow)
         DO UPDATE SET spec = excluded.spec, done_until = excluded.done_until WHERE spec <> excluded.spec",
    )?;
    for NewSchedule { workflow, spec } in schedules {
        insert.execute(params![deployment, workflow, spec, column::time(now)])?;
    }
    Ok(())
}

/// Ends the schedules of a deployment.
pub fn remove(conn: &Connection, deployment: &str) -> Result<(), Failure> {
    conn.prepare_cached("DELETE FROM schedules WHERE deployment = ?1")?
        .execute([deployment])?;
    Ok(())
}

/// Says how far a schedule is; false when it is not there or as far already.
pub fn advance(conn: &Connection, name: &ScheduleName, until: Timestamp) -> Result<bool, Failure> {
    let advanced = conn
        .prepare_cached(
            "UPDATE schedules SET done_until = ?3
             WHERE deployment = ?1 AND workflow = ?2 AND done_until < ?3",
        )?
        .execute(params![name.deployment, name.workflow, column::time(until)])?;
    Ok(advanced > 0)
}

/// By name.
pub fn all(conn: &Connection) -> Result<Vec<StoredSchedule>, Failure> {
    let mut query = conn.prepare_cached(
        "SELECT deployment, workflow, spec, done_until FROM schedules ORDER BY deployment, workflow",
    )?;
    let rows = query.query_map([], |row| {
        Ok(StoredSchedule {
            name: ScheduleName {
                deployment: row.get(0)?,
                workflow: row.get(1)?,
            },
            spec: row.get(2)?,
            done_until: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}
