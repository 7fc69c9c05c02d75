//! Errors of steps, and what each says about trying again.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::failure::{chain, failure_in};

/// What a step's error says about trying again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retry {
    /// Try again after the step's backoff, while it has retries left.
    #[default]
    Backoff,
    /// Try again, but not before this long from now.
    After(Duration),
    /// Trying again cannot help.
    Never,
    /// Nobody knows whether the step took effect: it is not tried again by itself. What follows is as the step's
    /// `on_unknown` says.
    Unknown,
}

/// The error type of a step: derive it, or take [`StepFailed`].
///
/// The value travels as JSON to the workflow, where it is the `error` of a
/// [`Failure`](crate::Failure).
///
/// ```
/// use onemark_sdk::prelude::*;
///
/// #[derive(Serialize, Deserialize, StepError)]
/// enum ChargeError {
///     #[fatal]
///     Declined(String),
///     #[retry]                // also what a variant without an attribute does
///     Busy,
///     #[retry_after("30s")]
///     Maintenance,
///     #[retry_after(wait)]    // a field of type `Duration`
///     RateLimited { wait: Duration },
///     #[unknown]              // it may have taken effect: not run again by itself
///     ConnectionLost,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a step",
    note = "derive `StepError` (with `Serialize` and `Deserialize`) for it, or return `StepFailed`"
)]
pub trait StepError: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Whether, and when, another attempt can help.
    fn retry(&self) -> Retry;

    /// What people read. Derived, it is the error's `Display` if it has one, and else its JSON.
    fn message(&self) -> String;
}

/// The error for people in a hurry: any message, and `?` from any error.
///
/// Made by `?` it is retried, unless what it was made from is the failure of a step that said otherwise.
///
/// ```
/// use onemark_sdk::prelude::*;
///
/// #[step]
/// async fn parse(amount: &str) -> Result<u64, StepFailed> {
///     if amount.is_empty() {
///         return Err(StepFailed::fatal("no amount"));
///     }
///     Ok(amount.parse()?)
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepFailed {
    message: String,
    #[serde(skip)]
    retry: Retry,
}

impl StepFailed {
    /// Another attempt may help.
    pub fn retry(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            retry: Retry::Backoff,
        }
    }

    /// Another attempt may help, but not before `wait` from now.
    pub fn retry_after(message: impl fmt::Display, wait: Duration) -> Self {
        Self {
            message: message.to_string(),
            retry: Retry::After(wait),
        }
    }

    /// Another attempt cannot help.
    pub fn fatal(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            retry: Retry::Never,
        }
    }

    /// Nobody knows whether the step took effect: it is not run again by itself.
    pub fn unknown(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
            retry: Retry::Unknown,
        }
    }
}

impl StepError for StepFailed {
    fn retry(&self) -> Retry {
        self.retry
    }

    fn message(&self) -> String {
        self.message.clone()
    }
}

impl fmt::Display for StepFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// `StepFailed` is no `std::error::Error`, or this would overlap with `From<T> for T`.
impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for StepFailed {
    fn from(error: E) -> Self {
        let error = error.into();
        if let Some(failure) = failure_in(&*error) {
            return Self {
                message: error.to_string(),
                retry: failure.retry,
            };
        }
        let messages: Vec<_> = chain(&*error).map(ToString::to_string).collect();
        Self::retry(messages.join(": "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Failure, FailureKind};

    #[test]
    fn question_mark_takes_any_error_and_keeps_its_causes() {
        let parse = || -> Result<u8, StepFailed> { Ok("x".parse::<u8>()?) };
        assert_eq!(
            parse().unwrap_err(),
            StepFailed::retry("invalid digit found in string")
        );
        let text = || -> Result<u8, StepFailed> { Err("out of luck")? };
        assert_eq!(text().unwrap_err(), StepFailed::retry("out of luck"));
    }

    #[test]
    fn what_an_inner_failure_says_about_retries_is_kept() {
        let inner = Failure::<StepFailed>::local("charge", FailureKind::NotJson, "no");
        let outer = StepFailed::from(inner);
        assert_eq!(outer.retry, Retry::Never);
        assert_eq!(outer.to_string(), "`charge` failed: no");
    }
}
