//! A run's attempts one after another: instances are wiped and made while the store commits, so that the run waits
//! for neither.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sandbox::{SpentInstance, StepInstance};

/// From so many attempts in a row on, the next one's instance is made ahead. Fewer are often all that a run has.
const LENGTH: u32 = 3;

/// Most instances made ahead at once, of all runs. Where more runs are at work, they share commits and the machine is
/// busy anyway.
pub const MAX_AHEAD: usize = 8;

/// Room for instances made ahead, shared by all activations of an engine.
#[derive(Debug, Clone)]
pub struct Ahead(Arc<Semaphore>);

impl Ahead {
    /// For so many instances.
    pub fn new(instances: usize) -> Self {
        Self(Arc::new(Semaphore::new(instances)))
    }
}

/// Of one activation.
pub struct Sequence {
    room: Ahead,
    attempts: u32,
    fresh: Option<(StepInstance, OwnedSemaphorePermit)>,
    spent: Option<SpentInstance>,
}

impl Sequence {
    pub fn new(room: Ahead) -> Self {
        Self {
            room,
            attempts: 0,
            fresh: None,
            spent: None,
        }
    }

    /// Another attempt runs while no other does.
    pub fn goes_on(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
    }

    /// Several attempts run at once, or none for a while. Nothing is held any longer.
    pub fn ends(&mut self) {
        *self = Self::new(self.room.clone());
    }

    /// The instance for the next attempt, if one was made. If not, no other is held when the attempt makes its own: there
    /// might be no room for both.
    pub fn fresh(&mut self) -> Option<StepInstance> {
        let fresh = self.fresh.take().map(|(instance, _)| instance);
        if fresh.is_none() {
            self.spent = None;
        }
        fresh
    }

    /// Keeps an instance that has had its attempt until [`Self::prepare`].
    pub fn keep(&mut self, spent: Option<SpentInstance>) {
        self.spent = spent;
    }

    /// Wipes the last attempt's instance and makes the next one's.
    pub async fn prepare(&mut self, make: impl AsyncFnOnce() -> wasmtime::Result<StepInstance>) {
        self.spent = None;
        if self.attempts < LENGTH || self.fresh.is_some() {
            return;
        }
        if let Ok(place) = self.room.0.clone().try_acquire_owned() {
            // An attempt whose instance cannot be made says so itself.
            self.fresh = make().await.ok().map(|instance| (instance, place));
        }
    }
}
