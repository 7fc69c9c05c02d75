//! The numbered files that make and change the tables. A database's `user_version` is the number of the
//! last one applied. A released file never changes.

use rusqlite::{Connection, TransactionBehavior};

/// "ONMK", as in `0001_init.sql`.
pub const APPLICATION_ID: u32 = 0x4F4E_4D4B;

const FILES: [&str; 11] = [
    include_str!("migrations/0001_init.sql"),
    include_str!("migrations/0002_start_policies.sql"),
    include_str!("migrations/0003_family.sql"),
    include_str!("migrations/0004_streams.sql"),
    include_str!("migrations/0005_events.sql"),
    include_str!("migrations/0006_hook_urls.sql"),
    include_str!("migrations/0007_logs.sql"),
    include_str!("migrations/0008_forks.sql"),
    include_str!("migrations/0009_replace.sql"),
    include_str!("migrations/0010_concurrency.sql"),
    include_str!("migrations/0011_children.sql"),
];

/// The version that this build works with.
pub const KNOWN: u32 = FILES.len() as u32;

pub fn version(conn: &Connection) -> rusqlite::Result<u32> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Brings a database to the known version, all of the way or not at all.
pub fn apply(conn: &mut Connection) -> rusqlite::Result<()> {
    if version(conn)? == KNOWN {
        return Ok(());
    }
    let transaction = conn.transaction_with_behavior(TransactionBehavior::Exclusive)?;
    let from = version(&transaction)?;
    for (file, number) in FILES.iter().zip(1..).skip(from as usize) {
        transaction.execute_batch(file)?;
        transaction.pragma_update(None, "user_version", number)?;
    }
    transaction.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migrated() -> Connection {
        let mut conn = Connection::open_in_memory().unwrap();
        apply(&mut conn).unwrap();
        conn
    }

    #[test]
    fn migrations_apply_to_an_empty_database_and_only_once() {
        let mut conn = migrated();
        assert_eq!(version(&conn).unwrap(), KNOWN);
        apply(&mut conn).unwrap();
        let check = conn.pragma_query_value(None, "integrity_check", |row| row.get::<_, String>(0));
        assert_eq!(check.unwrap(), "ok");
    }

    #[test]
    fn payloads_from_before_they_were_counted_are_found() {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(FILES[0]).unwrap();
        conn.execute_batch(
            r#"
            PRAGMA user_version = 1;
            INSERT INTO runs VALUES
                (1, 'r', 'w', x'00', x'00', '[]', 5, 'running', 'running', NULL, 5, NULL, NULL, 0, x'00');
            INSERT INTO hooks (run, hook, token, payload, claimed_at, retained_until, unread)
            VALUES (1, 0, 'a', '"any"', 5, 5, 1), (1, 1, 'b', '"any"', 5, 5, 0);
            INSERT INTO entries VALUES
                (1, 0, 5, '{"started":{}}', '{}', 2, x'00', x'00'),
                (1, 1, 5, '{"payload_received":{"hook":0}}', '12', 2, x'00', x'00'),
                (1, 2, 5, '{"payload_received":{"hook":1}}', '123', 3, x'00', x'00'),
                (1, 3, 5, '{"payload_received":{"hook":0}}', '1234', 4, x'00', x'00'),
                (1, 4, 5, '{"payloads_taken":{"hook":0,"count":1}}', NULL, NULL, NULL, x'00');
            "#,
        )
        .unwrap();
        apply(&mut conn).unwrap();
        let numbers = |sql: &str| {
            let mut query = conn.prepare(sql).unwrap();
            let columns = query.column_count();
            let rows = query.query_map([], |row| (0..columns).map(|i| row.get(i)).collect());
            rows.unwrap()
                .collect::<rusqlite::Result<Vec<Vec<u64>>>>()
                .unwrap()
        };
        assert_eq!(
            numbers("SELECT hook, number, seq, bytes FROM payloads"),
            [[0, 0, 1, 2], [0, 1, 3, 4], [1, 0, 2, 3]]
        );
        assert_eq!(
            numbers("SELECT hook, received, unread, unread_bytes FROM hooks"),
            [[0, 2, 1, 4], [1, 1, 0, 0]]
        );
    }

    #[test]
    fn migrations_mark_the_file_as_ours() {
        let id = migrated().pragma_query_value(None, "application_id", |row| row.get::<_, u32>(0));
        assert_eq!(id.unwrap(), APPLICATION_ID);
    }

    /// Numbers may be left out: they tell the order, and no two files have the same.
    #[test]
    fn every_file_is_listed_by_its_number() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sqlite/migrations");
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let numbers: Vec<usize> = names.iter().map(|name| name[..4].parse().unwrap()).collect();
        assert!(numbers.into_iter().eq(1..=FILES.len()), "{names:?}");
    }
}
