//! Runs a workflow's future over the host's blocking `wait`.
//!
//! A leaf future registers a [`Completion`] under the id of its promise. The loop polls the workflow
//! until nothing is left to do, waits, marks the one completion that the host reported and wakes the
//! future that awaits it. So the cost of a completion does not depend on how many others are in flight.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    static COMPLETIONS: RefCell<Completions> = RefCell::default();
}

#[derive(Default)]
struct Completions {
    slots: BTreeMap<u32, Slot>,
    /// How many slots are `Awaited`.
    awaited: usize,
}

enum Slot {
    /// In flight; nobody polled it yet.
    Idle,
    Awaited(Waker),
    Completed,
}

impl Completions {
    /// Puts a slot in place and hands out the old one. Wakers are dropped and woken by the callers, after
    /// the borrow of the table has ended, since both can run code of futures that use the table.
    fn replace(&mut self, id: u32, slot: Slot) -> Option<Slot> {
        self.awaited += usize::from(matches!(slot, Slot::Awaited(_)));
        let old = self.slots.insert(id, slot);
        self.forget(&old);
        old
    }

    fn remove(&mut self, id: u32) -> Option<Slot> {
        let old = self.slots.remove(&id);
        self.forget(&old);
        old
    }

    fn forget(&mut self, old: &Option<Slot>) {
        self.awaited -= usize::from(matches!(old, Some(Slot::Awaited(_))));
    }
}

/// Completes when the host reports the promise with this id.
pub(crate) struct Completion {
    id: u32,
}

impl Completion {
    pub(crate) fn new(id: u32) -> Self {
        COMPLETIONS.with_borrow_mut(|completions| completions.replace(id, Slot::Idle));
        Self { id }
    }

    pub(crate) fn is_complete(&self) -> bool {
        COMPLETIONS.with_borrow(|it| matches!(it.slots.get(&self.id), Some(Slot::Completed)))
    }
}

impl Future for Completion {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_complete() {
            return Poll::Ready(());
        }
        let slot = Slot::Awaited(context.waker().clone());
        let _old = COMPLETIONS.with_borrow_mut(|completions| completions.replace(self.id, slot));
        Poll::Pending
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let _old = COMPLETIONS.with_borrow_mut(|completions| completions.remove(self.id));
    }
}

fn complete(id: u32) {
    let old = COMPLETIONS.with_borrow_mut(|completions| {
        completions
            .slots
            .contains_key(&id)
            .then(|| completions.replace(id, Slot::Completed))
    });
    if let Some(Some(Slot::Awaited(waker))) = old {
        waker.wake();
    }
}

/// Drives `workflow` to its end; `wait` blocks until a promise completes and returns its id.
///
/// # Panics
///
/// When the workflow waits for something that no promise will wake: it would wait for ever.
pub(crate) fn run<F: Future>(workflow: F, mut wait: impl FnMut() -> u32) -> F::Output {
    let mut workflow = pin!(workflow);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        // Combinators may wake themselves while they are polled, to be polled again soon.
        while woken.0.swap(false, Ordering::Relaxed) {
            if let Poll::Ready(output) = workflow.as_mut().poll(&mut context) {
                return output;
            }
        }
        assert!(
            COMPLETIONS.with_borrow(|completions| completions.awaited > 0),
            "this workflow waits for something that is not durable: no step, sleep or hook can wake it. \
             Await such things (I/O, wstd timers, channels that nobody sends to) inside a step"
        );
        complete(wait());
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, poll_fn};

    use super::*;
    use futures::future::join_all;
    use futures::{FutureExt, select_biased};

    fn waits(ids: impl IntoIterator<Item = u32>) -> impl FnMut() -> u32 {
        let mut ids = ids.into_iter();
        move || ids.next().expect("the script is long enough")
    }

    #[test]
    fn completions_may_come_in_any_order() {
        let all = async { join_all((0..100).map(|id| Completion::new(id).map(move |()| id))).await };
        let result = run(all, waits((0..100).rev()));
        assert_eq!(result, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn each_wait_shows_the_workflow_one_completion() {
        let seen = run(
            async {
                let (mut a, mut b) = (Completion::new(0).fuse(), Completion::new(1).fuse());
                let mut seen = Vec::new();
                for _ in 0..2 {
                    select_biased! { () = a => seen.push('a'), () = b => seen.push('b') }
                }
                seen
            },
            waits([1, 0]),
        );
        assert_eq!(seen, ['b', 'a']);
    }

    #[test]
    fn reports_that_nobody_awaits_are_kept_or_ignored() {
        run(
            async {
                let kept = Completion::new(0);
                drop(Completion::new(1));
                Completion::new(2).await;
                assert!(kept.is_complete());
                kept.await;
            },
            waits([0, 1, 2]),
        );
    }

    #[test]
    #[should_panic(expected = "not durable")]
    fn waiting_for_nothing_durable_panics() {
        run(
            async {
                let _held = Completion::new(0);
                pending::<()>().await;
            },
            waits([]),
        );
    }

    /// F15: no future is polled but for its first time and when it completed.
    #[test]
    fn f15_joins_and_selects_are_linear() {
        const N: u32 = 10_000;
        let polls = &Cell::new(0);
        let counted = |id: u32| {
            let mut completion = Completion::new(id);
            poll_fn(move |context| {
                polls.update(|polls| polls + 1);
                Pin::new(&mut completion).poll(context)
            })
        };

        run(
            async { join_all((0..N).map(&counted)).await },
            waits((0..N).rev()),
        );
        assert_eq!(polls.take(), 2 * N);

        let selects = async {
            for round in 0..N {
                let (mut lost, mut won) = (counted(2 * round).fuse(), counted(2 * round + 1).fuse());
                select_biased! { () = lost => unreachable!(), () = won => {} }
            }
        };
        run(selects, waits((0..N).map(|round| 2 * round + 1)));
        assert_eq!(polls.take(), 4 * N);
        assert!(COMPLETIONS.with_borrow(|completions| completions.slots.is_empty()));
    }
}
