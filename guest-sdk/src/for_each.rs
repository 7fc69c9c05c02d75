//! Working through many items, so many at a time.

use std::fmt;
use std::pin::pin;

use futures::stream::{self, StreamExt as _};

use crate::cancel::{self, Part};

/// Does `work` for every item, at most `at_once` of them at a time, and goes on when some fail.
///
/// `work` makes a future of an item: a step, a child, an `async` block of several. The first `at_once` begin together,
/// and whenever one ends the next begins, so that a slow item holds up nobody. All [`Results`] are there at the end, in
/// the order of the items. `progress` is told after each item; `|_| ()` says nothing.
///
/// The host has a bound of its own on the attempts of one run at once, whatever a workflow asks for. This one is for the
/// sake of those who are called, and keeps what has not begun out of the journal. That grows with each item: thousands
/// are well in one run; for more, start a child for each thousand.
///
/// When the run is asked to cancel, each item is told on its own, by the failure
/// [`Cancelled`](crate::FailureKind::Cancelled) of the next thing that it calls; so those that have not begun do nothing.
/// Where the workflow was told before, and works through what it has to undo, all are done as ever.
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::for_each_bounded;
/// # #[step] async fn send(address: &str) -> Result<u64, StepFailed> { Ok(address.len() as u64) }
/// # async fn example(addresses: Vec<String>) -> WorkflowResult<()> {
/// let tell = |progress| log::info!("{progress}"); // `30 of 200 done, 2 failed`
/// let sent = for_each_bounded(10, &addresses, |address| send(address), tell).await;
/// for (n, failure) in sent.failures() {
///     log::warn!("{}: {failure}", addresses[n]);
/// }
/// # Ok(()) }
/// ```
///
/// # Panics
///
/// When `at_once` is 0: nothing would ever begin.
pub async fn for_each_bounded<I, T, E, F>(
    at_once: usize,
    items: impl IntoIterator<Item = I>,
    mut work: impl FnMut(I) -> F,
    mut progress: impl FnMut(Progress),
) -> Results<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    assert!(at_once > 0, "nothing ever begins when none may be at work");
    let items: Vec<_> = items.into_iter().collect();
    let mut so_far = Progress {
        done: 0,
        failed: 0,
        of: items.len(),
    };
    let mut results: Vec<_> = items.iter().map(|_| None).collect();
    let told = cancel::is_told();
    let numbered = stream::iter(items).enumerate().map(|(n, item)| {
        let result = Part::new(work(item), told);
        async move { (n, result.await) }
    });
    let mut ended = pin!(numbered.buffer_unordered(at_once));
    while let Some((n, result)) = ended.next().await {
        so_far.done += 1;
        so_far.failed += usize::from(result.is_err());
        results[n] = Some(result);
        progress(so_far);
    }
    let all = results
        .into_iter()
        .map(|result| result.expect("every item has ended"));
    Results(all.collect())
}

/// How far [`for_each_bounded`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// How many items have ended, well or not.
    pub done: usize,
    /// How many of those failed.
    pub failed: usize,
    /// How many items there are.
    pub of: usize,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} done, {} failed", self.done, self.of, self.failed)
    }
}

/// What [`for_each_bounded`] came to: a result for every item, in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Results<T, E>(pub Vec<Result<T, E>>);

impl<T, E> Results<T, E> {
    /// The values, with the numbers of their items, from 0.
    pub fn successes(&self) -> impl Iterator<Item = (usize, &T)> {
        let numbered = self.0.iter().enumerate();
        numbered.filter_map(|(n, result)| Some((n, result.as_ref().ok()?)))
    }

    /// The failures, with the numbers of their items, from 0.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &E)> {
        let numbered = self.0.iter().enumerate();
        numbered.filter_map(|(n, result)| Some((n, result.as_ref().err()?)))
    }

    /// All values, or the failure of the first item that failed, when one failure spoils the whole.
    ///
    /// # Errors
    ///
    /// That failure.
    pub fn all(self) -> Result<Vec<T>, E> {
        self.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;
    use std::pin::Pin;

    use super::*;
    use crate::executor::{Completion, run};

    #[test]
    fn results_keep_the_order_of_the_items_and_failures_stop_nobody() {
        let begun = RefCell::new(Vec::new());
        let work = |n: u32| {
            begun.borrow_mut().push(n);
            let completion = Completion::new(n);
            async move {
                completion.await;
                if [0, 2, 4].contains(&n) { Ok(n) } else { Err(n) }
            }
        };
        let mut told = Vec::new();
        // Which ends, and who has begun by then.
        let mut ends = [1, 2, 0, 4, 3].into_iter();
        let begun_by = [2, 3, 4, 5, 5];
        let mut rounds = begun_by.into_iter();
        let wait = || {
            assert_eq!(begun.borrow().len(), rounds.next().unwrap());
            ends.next().unwrap()
        };
        let results = run(
            async { for_each_bounded(2, 0..5, work, |progress| told.push(progress.to_string())).await },
            wait,
        );
        assert_eq!(results.0, [Ok(0), Err(1), Ok(2), Err(3), Ok(4)]);
        assert_eq!(*begun.borrow(), [0, 1, 2, 3, 4]);
        assert_eq!(told.first().unwrap(), "1 of 5 done, 1 failed");
        assert_eq!(told.last().unwrap(), "5 of 5 done, 2 failed");
        assert_eq!(results.successes().map(|(n, _)| n).collect::<Vec<_>>(), [0, 2, 4]);
        assert_eq!(results.failures().collect::<Vec<_>>(), [(1, &1), (3, &3)]);
        assert_eq!(results.all(), Err(1));
    }

    #[test]
    fn no_items_need_no_time() {
        let results = crate::block_on(for_each_bounded(
            1,
            [],
            async |item: Result<(), ()>| item,
            |_| unreachable!("nothing ends"),
        ));
        assert_eq!(results.all(), Ok(vec![]));
    }

    #[test]
    #[should_panic(expected = "nothing ever begins")]
    fn none_at_once_is_refused() {
        crate::block_on(for_each_bounded(0, [Ok::<_, ()>(())], async |item| item, |_| ()));
    }

    /// No item is polled but for its first time and when it completed.
    #[test]
    fn f15_many_items_are_linear() {
        const N: u32 = 10_000;
        let polls = &Cell::new(0);
        let work = |n: u32| {
            let mut completion = Completion::new(n);
            poll_fn(move |context| {
                polls.update(|polls| polls + 1);
                Pin::new(&mut completion).poll(context).map(Ok::<_, ()>)
            })
        };
        let mut ends = (0..N).collect::<std::collections::VecDeque<_>>();
        run(for_each_bounded(100, 0..N, work, |_| ()), || {
            ends.pop_front().unwrap()
        });
        assert_eq!(polls.get(), 2 * N);
    }
}
