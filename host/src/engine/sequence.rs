//! A run's attempts one after another: instances are wiped and made while the store commits, so that the run waits
//! for neither.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sandbox::{Replica, SpentInstance, StepInstance};

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
    /// How many attempts in a row were of a step, or of a closure.
    attempts: u32,
    of_closures: bool,
    fresh: Option<(Fresh, OwnedSemaphorePermit)>,
    spent: Option<SpentInstance>,
}

enum Fresh {
    Step(StepInstance),
    /// On its way to where it waits for its closure.
    Closure(Box<Replica>),
}

impl Sequence {
    pub fn new(room: Ahead) -> Self {
        Self {
            room,
            attempts: 0,
            of_closures: false,
            fresh: None,
            spent: None,
        }
    }

    /// Another attempt runs while no other does.
    pub fn goes_on(&mut self, closure: bool) {
        if std::mem::replace(&mut self.of_closures, closure) != closure {
            self.ends();
            self.of_closures = closure;
        }
        self.attempts = self.attempts.saturating_add(1);
    }

    /// Several attempts run at once, or none for a while. Nothing is held any longer.
    pub fn ends(&mut self) {
        *self = Self::new(self.room.clone());
    }

    /// The instance for the next attempt, of a step, if one was made. If not, no other is held when the attempt makes its
    /// own: there might be no room for both.
    pub fn step(&mut self) -> Option<StepInstance> {
        let fresh = match self.fresh.take() {
            Some((Fresh::Step(instance), _)) => Some(instance),
            Some((Fresh::Closure(_), _)) | None => None,
        };
        if fresh.is_none() {
            self.spent = None;
        }
        fresh
    }

    /// As [`Self::step`]: the replica for the next attempt, of a closure.
    pub fn closure(&mut self) -> Option<Replica> {
        self.spent = None;
        match self.fresh.take() {
            Some((Fresh::Closure(replica), _)) => Some(*replica),
            Some((Fresh::Step(_), _)) | None => None,
        }
    }

    /// Keeps an instance that has had its attempt until [`Self::prepare`].
    pub fn keep(&mut self, spent: Option<SpentInstance>) {
        self.spent = spent;
    }

    /// Wipes the last attempt's instance and makes the next one's. Where this is dropped, what was begun is gone on with
    /// later.
    pub async fn prepare(
        &mut self,
        step: impl AsyncFnOnce() -> wasmtime::Result<StepInstance>,
        closure: impl FnOnce() -> Option<Replica>,
    ) {
        self.spent = None;
        if self.attempts < LENGTH {
            return;
        }
        if self.fresh.is_none()
            && let Ok(place) = self.room.0.clone().try_acquire_owned()
        {
            // An attempt whose instance cannot be made says so itself.
            let fresh = match self.of_closures {
                true => closure().map(|replica| Fresh::Closure(Box::new(replica))),
                false => step().await.ok().map(Fresh::Step),
            };
            self.fresh = fresh.map(|fresh| (fresh, place));
        }
        if let Some((Fresh::Closure(replica), _)) = &mut self.fresh
            && !replica.gets_ready().await
        {
            self.fresh = None;
        }
    }
}
