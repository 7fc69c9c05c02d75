//! The one seam through which the host reads time and draws randomness.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

use crate::journal::Timestamp;

/// Where the host's time comes from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Wall time now. May jump, as wall clocks do.
    fn now(&self) -> Timestamp;

    /// Returns once `now()` has reached `at`. May return early when the clock moved; callers look again.
    fn sleep_until<'a>(&'a self, at: Timestamp) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
}

/// Returns when the clock has reached `at`, however it moves; never for none.
pub async fn reached(clock: &dyn Clock, at: Option<Timestamp>) {
    match at {
        Some(at) => {
            while clock.now() < at {
                clock.sleep_until(at).await;
            }
        }
        None => std::future::pending().await,
    }
}

/// The machine's clock.
#[derive(Debug, Default)]
pub struct SystemClock;

/// The longest sleep before looking again: a wall clock that is set forward wakes sleepers this late at
/// most.
const RECHECK: Duration = Duration::from_secs(1);

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the seam")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |d| d.as_millis() as Timestamp)
    }

    fn sleep_until<'a>(&'a self, at: Timestamp) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let left = Duration::from_millis(at.saturating_sub(self.now()));
        Box::pin(tokio::time::sleep(left.min(RECHECK)))
    }
}

/// A clock that moves only when told to. For tests.
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<Timestamp>,
    moved: Notify,
}

impl ManualClock {
    pub fn new(now: Timestamp) -> Self {
        Self {
            now: Mutex::new(now),
            moved: Notify::new(),
        }
    }

    /// Sets the time, forward or back, and wakes every sleeper to look again.
    pub fn set(&self, now: Timestamp) {
        *self.lock() = now;
        self.moved.notify_waiters();
    }

    pub fn advance(&self, by: Duration) {
        *self.lock() += by.as_millis() as Timestamp;
        self.moved.notify_waiters();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Timestamp> {
        self.now.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.lock()
    }

    fn sleep_until<'a>(&'a self, at: Timestamp) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            // Listen before looking, so that a move in between is not missed.
            let moved = self.moved.notified();
            if self.now() < at {
                moved.await;
            }
        })
    }
}

/// A number that nobody can guess: seeds, generated tokens, jitter. All its 64 bits are random.
///
/// # Panics
/// When the system has no random numbers: nothing that relies on them may go on then.
pub fn random_u64() -> u64 {
    getrandom::u64().expect("the system gives random numbers")
}
