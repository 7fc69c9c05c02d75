//! How often runs were started again: counted in memory, so that a duplicate's answer costs no commit, and written
//! with whatever is committed next.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use super::failure::Failure;
use super::runs;
use crate::ids::RunId;
use crate::store::RunInfo;

/// With so many runs to be written they are written at once.
const MAX_UNSAVED: usize = 1024;

/// Runs whose number is remembered after it was written: some 100 bytes each.
const MAX_KEPT: usize = 16 * 1024;

/// Shared by the writer, which counts, and the readers, which may see an older database.
#[derive(Clone, Default)]
pub struct Duplicates(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    totals: HashMap<RunId, u64>,
    unsaved: HashSet<RunId>,
}

impl Duplicates {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more start met this run.
    pub fn count(&self, conn: &Connection, run: &RunId) -> Result<(), Failure> {
        let mut counts = self.lock();
        let total = match counts.totals.get(run) {
            Some(total) => *total,
            None => match runs::duplicates(conn, run)? {
                Some(saved) => saved,
                None => return Ok(()),
            },
        };
        counts.totals.insert(run.clone(), total + 1);
        counts.unsaved.insert(run.clone());
        Ok(())
    }

    pub fn is_any_unsaved(&self) -> bool {
        !self.lock().unsaved.is_empty()
    }

    pub fn are_many_unsaved(&self) -> bool {
        self.lock().unsaved.len() >= MAX_UNSAVED
    }

    /// Writes what is not written yet.
    pub fn save(&self, conn: &Connection) -> Result<(), Failure> {
        let mut counts = self.lock();
        let Counts { totals, unsaved } = &mut *counts;
        if totals.len() > MAX_KEPT {
            totals.retain(|run, _| unsaved.contains(run));
        }
        for run in unsaved.drain() {
            if let Some(total) = totals.get(&run) {
                runs::set_duplicates(conn, &run, *total)?;
            }
        }
        Ok(())
    }

    /// What was written may have been rolled back.
    pub fn forget_saved(&self) {
        let mut counts = self.lock();
        counts.unsaved = counts.totals.keys().cloned().collect();
    }

    /// Brings what was read from the database up to date.
    pub fn update(&self, run: &mut RunInfo) {
        if let Some(total) = self.lock().totals.get(&run.id) {
            run.duplicates = run.duplicates.max(*total);
        }
    }
}
