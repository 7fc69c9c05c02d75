//! Child runs: runs that a workflow starts.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{FusedFuture, LocalBoxFuture};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bindings::onemark::workflow::children;
use crate::cancel;
use crate::failure::{Failure, FailureKind};
use crate::json::{NotJson, to_json};
use crate::operation::{Operation, WhenDropped};
use crate::sandbox;
use crate::time::milliseconds;

/// Starts a run of another workflow, or of this one, and awaits what it returns.
///
/// `workflow` is a name as in a start request (`deployment/workflow` where several deployments have one of that name),
/// `input` what becomes a JSON object keyed by parameter name. The child is started once, whatever happens to this run:
/// no step around it is needed. It claims its tokens as by any start, so a token can make sure that there is one child
/// for one thing.
///
/// Awaited, it starts the child and gives its value. [`start`](ChildCall::start) gives a handle instead.
///
/// # Errors
///
/// A [`Failure`]: the child's, or why it could not be started ([`FailureKind::HookConflict`] with the owner in its
/// `value`, [`FailureKind::UnknownWorkflow`], [`FailureKind::Invalid`], …). [`FailureKind::Cancelled`] only when this
/// run is asked to cancel; that a child was cancelled is an [`Error`](FailureKind::Error).
///
/// ```
/// # use onemark_sdk::prelude::*;
/// # use onemark_sdk::child;
/// # async fn example() -> WorkflowResult<()> {
/// let total: u64 = child("count_stock", serde_json::json!({ "shop": "Ulm" })).await?;
/// let parcels = ["a", "b", "c"].map(|id| child::<String>("ship", serde_json::json!({ "id": id })).hook(format!("ship:{id}")));
/// let labels = try_join_all(parcels).await?;
/// # let _ = (total, labels); Ok(()) }
/// ```
pub fn child<T: DeserializeOwned>(workflow: impl Into<String>, input: impl Serialize) -> ChildCall<T> {
    ChildCall {
        workflow: workflow.into(),
        input: to_json(&input),
        options: Options::default(),
        on_parent_end: ParentEnd::Cancel,
        state: State::New,
        value: PhantomData,
    }
}

/// What becomes of a child that this run does not wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ParentEnd {
    /// When this run ends first, the child is asked to cancel.
    #[default]
    Cancel,
    /// The child goes on.
    Leave,
    /// This run does not end before the child has ended. A run that is terminated leaves it.
    Wait,
}

#[derive(Default, Serialize)]
struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<HookOption>,
    on_parent_end: &'static str,
}

#[derive(Serialize)]
struct HookOption {
    token: String,
    min_retention_ms: u64,
}

/// A child run, to be awaited; see [`child`].
#[must_use = "a child is not started unless this is awaited"]
pub struct ChildCall<T> {
    workflow: String,
    input: Result<String, NotJson>,
    options: Options,
    on_parent_end: ParentEnd,
    state: State<T>,
    value: PhantomData<fn() -> T>,
}

enum State<T> {
    New,
    Running(LocalBoxFuture<'static, Result<T, Failure>>),
    Done,
}

impl<T> ChildCall<T> {
    /// The child's id. By default the host makes one.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.options.id = Some(id.into());
        self
    }

    /// A token that the child claims beside the one that its workflow declares.
    pub fn hook(self, token: impl Into<String>) -> Self {
        self.hook_retained(token, Duration::ZERO)
    }

    /// As [`hook`](Self::hook), and the token stays claimed for at least this long from the start.
    pub fn hook_retained(mut self, token: impl Into<String>, length: Duration) -> Self {
        self.options.hooks.push(HookOption {
            token: token.into(),
            min_retention_ms: milliseconds(length),
        });
        self
    }

    /// What becomes of the child when this run ends first.
    pub fn on_parent_end(mut self, then: ParentEnd) -> Self {
        self.on_parent_end = then;
        self
    }
}

impl<T: DeserializeOwned + 'static> ChildCall<T> {
    /// Starts the child and gives a handle to it.
    ///
    /// # Errors
    ///
    /// When it cannot be started; see [`child`].
    pub async fn start(self) -> Result<Child<T>, Failure> {
        let child = self.begin()?;
        #[derive(Deserialize)]
        struct Started {
            run_id: String,
        }
        let started = Operation::new(child.handle.started(), WhenDropped::Release).await;
        let started = started.map_err(|document| Failure::untyped(&child.workflow, &document))?;
        let Started { run_id } = serde_json::from_str(&started)
            .map_err(|error| Failure::local(&child.workflow, FailureKind::TypeMismatch, error.to_string()))?;
        Ok(Child { run_id, begun: child })
    }

    fn begin(mut self) -> Result<Begun<T>, Failure> {
        sandbox::require_workflow("child", "start the run in the workflow, before or after the step")?;
        cancel::check(&self.workflow)?;
        let input = self.input.map_err(|error| {
            Failure::local(
                &self.workflow,
                FailureKind::NotJson,
                format!("its input is not JSON: {error}"),
            )
        })?;
        self.options.on_parent_end = match self.on_parent_end {
            ParentEnd::Cancel => "cancel",
            ParentEnd::Leave | ParentEnd::Wait => "leave",
        };
        let options = to_json(&self.options)
            .map_err(|error| Failure::local(&self.workflow, FailureKind::NotJson, error.to_string()))?;
        let handle = Rc::new(children::Child::start(&self.workflow, &input, &options));
        if self.on_parent_end == ParentEnd::Wait {
            AWAITED.with_borrow_mut(|awaited| awaited.push(handle.clone()));
        }
        Ok(Begun {
            workflow: self.workflow,
            handle,
            value: PhantomData,
        })
    }
}

thread_local! {
    /// Children that this run must not end before.
    static AWAITED: RefCell<Vec<Rc<children::Child>>> = const { RefCell::new(Vec::new()) };
}

/// Returns once the children have ended that this run must not end before.
pub(crate) async fn awaited_children() {
    let awaited = AWAITED.with_borrow_mut(std::mem::take);
    for child in awaited {
        // How they end is their own affair, and a run that is asked to cancel still waits.
        let ended = async { Operation::new(child.outcome(), WhenDropped::Release).await };
        drop(cancel::shielded(ended).await);
    }
}

struct Begun<T> {
    workflow: String,
    handle: Rc<children::Child>,
    value: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Begun<T> {
    async fn outcome(&self) -> Result<T, Failure> {
        cancel::check(&self.workflow)?;
        let outcome = Operation::new(self.handle.outcome(), WhenDropped::Release).await;
        let value = outcome.map_err(|document| Failure::untyped(&self.workflow, &document))?;
        serde_json::from_str(&value).map_err(|error| {
            let message = format!("its result does not fit its type: {error}");
            Failure::local(&self.workflow, FailureKind::TypeMismatch, message)
        })
    }
}

impl<T: DeserializeOwned + 'static> Future for ChildCall<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::New = this.state {
            this.state = State::Done;
            let call = ChildCall {
                workflow: std::mem::take(&mut this.workflow),
                input: std::mem::replace(&mut this.input, Ok(String::new())),
                options: std::mem::take(&mut this.options),
                on_parent_end: this.on_parent_end,
                state: State::New,
                value: PhantomData,
            };
            let begun: Begun<T> = call.begin()?;
            this.state = State::Running(Box::pin(async move { begun.outcome().await }));
        }
        let State::Running(running) = &mut this.state else {
            panic!("a child was polled after its end");
        };
        let result = ready!(running.as_mut().poll(context));
        this.state = State::Done;
        Poll::Ready(result)
    }
}

impl<T: DeserializeOwned + 'static> FusedFuture for ChildCall<T> {
    fn is_terminated(&self) -> bool {
        matches!(self.state, State::Done)
    }
}

/// A child run that was started. Dropping it changes nothing for the child.
pub struct Child<T> {
    run_id: String,
    begun: Begun<T>,
}

impl<T: DeserializeOwned> Child<T> {
    /// The child's id.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Waits for the child's end. May be asked again.
    ///
    /// # Errors
    ///
    /// The child's failure; see [`child`].
    pub async fn outcome(&self) -> Result<T, Failure> {
        self.begun.outcome().await
    }
}
