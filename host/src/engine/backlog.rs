//! What could not be written yet: while there is some, or too much is on its way, no attempt begins.

use std::sync::Arc;

use tokio::sync::watch;

/// Outcomes on their way to the store, in bytes: beyond this no attempt begins. What runs by then adds at most
/// one outcome an attempt.
const MAX_BYTES: u64 = 64 << 20;

/// Shared by all activations of an engine.
#[derive(Debug, Clone)]
pub struct Backlog(Arc<watch::Sender<State>>);

#[derive(Debug, Default)]
struct State {
    /// Writes that the store could not take and that are tried again.
    refused: usize,
    /// Of outcomes that are not saved.
    bytes: u64,
}

impl State {
    fn is_open(&self) -> bool {
        self.refused == 0 && self.bytes <= MAX_BYTES
    }
}

/// A write that is tried again, or an outcome that is kept meanwhile; until dropped.
#[derive(Debug)]
pub struct Kept {
    backlog: Backlog,
    refused: usize,
    bytes: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.backlog.change(|state| {
            state.refused -= self.refused;
            state.bytes -= self.bytes;
        });
    }
}

impl Backlog {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }

    /// The store could not take a write.
    pub fn refused(&self) -> Kept {
        self.keep(1, 0)
    }

    /// An attempt ended, with an outcome of that size.
    pub fn outcome(&self, bytes: u64) -> Kept {
        self.keep(0, bytes)
    }

    fn keep(&self, refused: usize, bytes: u64) -> Kept {
        self.change(|state| {
            state.refused += refused;
            state.bytes += bytes;
        });
        Kept {
            backlog: self.clone(),
            refused,
            bytes,
        }
    }

    /// Only who waits for the store to be open again is told.
    fn change(&self, change: impl FnOnce(&mut State)) {
        self.0.send_if_modified(|state| {
            let before = state.is_open();
            change(state);
            state.is_open() != before
        });
    }

    /// Whether attempts may begin.
    pub fn is_open(&self) -> bool {
        self.0.borrow().is_open()
    }

    /// Returns once attempts may begin.
    pub async fn open(&self) {
        // The sender is here, so this ends no other way.
        let _ = self.0.subscribe().wait_for(State::is_open).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn attempts_begin_while_nothing_is_refused_and_little_is_kept() {
        let backlog = Backlog::new();
        backlog.open().await;
        let refused = [backlog.refused(), backlog.refused()];
        assert!(!backlog.is_open());
        drop(refused);
        assert!(backlog.is_open());

        let kept = [backlog.outcome(MAX_BYTES), backlog.outcome(1)];
        assert!(!backlog.is_open());
        let opens = tokio::spawn({
            let backlog = backlog.clone();
            async move { backlog.open().await }
        });
        drop(kept);
        opens.await.unwrap();
    }
}
