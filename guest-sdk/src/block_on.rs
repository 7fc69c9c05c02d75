use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a future to its end on this thread: for unit tests of steps.
///
/// ```
/// use onemark_sdk::prelude::*;
///
/// #[step]
/// async fn greet(name: &str) -> Result<String, StepFailed> {
///     Ok(format!("Hello, {name}"))
/// }
///
/// assert_eq!(onemark_sdk::block_on(greet("Ada")).unwrap(), "Hello, Ada");
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
