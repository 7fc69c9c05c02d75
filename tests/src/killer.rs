//! A death at a chosen commit, inside this process: what is committed stays, and nobody is answered.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use onemark::store::AfterCommit;
use tokio::sync::Notify;

/// Stops the thread that writes right after a commit. The host is started again then, and its thread let go of once
/// nobody is left who waits for its answers.
#[derive(Default)]
pub struct Killer {
    state: Mutex<State>,
    released: Condvar,
    struck: Notify,
}

#[derive(Default)]
struct State {
    /// Commits that are left to a host that is to die.
    left: Option<u64>,
    stopped: bool,
}

impl Killer {
    pub(crate) fn after_commit(self: &Arc<Self>) -> AfterCommit {
        let killer = self.clone();
        Arc::new(move |_| killer.committed())
    }

    /// The host dies at the n-th commit from here, the first being 1.
    pub fn arm(&self, commits: u64) {
        self.lock().left = Some(commits);
    }

    /// Returns when the host is to be started again; never if it does not get there.
    pub async fn struck(&self) {
        while !self.lock().stopped {
            self.struck.notified().await;
        }
    }

    /// Nobody waits for answers any more.
    pub(crate) fn release(&self) {
        let mut state = self.lock();
        *state = State::default();
        self.released.notify_all();
    }

    fn committed(&self) {
        let mut state = self.lock();
        let Some(left) = &mut state.left else {
            return;
        };
        *left -= 1;
        if *left > 0 {
            return;
        }
        state.left = None;
        state.stopped = true;
        self.struck.notify_one();
        while state.stopped {
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
