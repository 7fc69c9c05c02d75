//! The macros of `onemark-sdk`, which documents them where it exports them.
//!
//! Each goes the same way: `parse` reads what was written, `validate` checks it and says what is wrong at
//! the place where it is wrong, `expand` writes the code.

mod expand;
mod literal;
mod parse;
mod validate;

use proc_macro::TokenStream;

/// Makes an `async fn` a workflow that the host can start by its name.
///
/// Its input is a JSON object keyed by parameter name; parameters are types that implement `Serialize`,
/// `Deserialize` and `JsonSchema`. It returns `WorkflowResult<T>`.
///
/// The host checks an input against the schema before it starts a run: also the widths of integers, which are
/// written without fraction and exponent, and formats of texts. A key that is there twice is refused. What no
/// schema says the workflow is the first to notice, and then the run fails and says so; its token was claimed.
/// So it is with the keys of maps that are no texts, exponents in integers of 128 bits, fields that a
/// `Duration` does not have, and whatever a `Deserialize` of your own refuses. Where that matters, say it in the
/// schema (`#[schemars(range(…))]`, `#[schemars(regex(…))]`), or take a type that reads everything and check it
/// in the workflow.
///
/// | option | meaning |
/// |---|---|
/// | `token = "order:{order.id}"` | every start of this workflow claims this token; `{a.b}` is replaced by the value at that path of the input, `{{` and `}}` stand for braces |
/// | `retain = "24h"` | keeps the token claimed for at least this long from the start |
/// | `timeout = "1h"` | after this long from its start the run is asked to cancel |
/// | `timeout_grace = "5m"` | this long after that the run ends, whatever it does; a minute unless given |
/// | `hook = OrderUpdate` | the type of the payloads of that token's hook, checked by the host at delivery |
/// | `on = "order.paid"` | every event of this name starts the workflow; a sole parameter named `event` gets the payload, else the payload is the input |
/// | `cron = "0 9 * * 1-5"` | starts it at these times: minute, hour, day, month, weekday; a parameter named `slot` gets the time, `"2030-01-31T08:00:00Z"` |
/// | `time_zone = "Europe/Berlin"` | whose clock that is; UTC unless given |
/// | `catch_up = "one"` | of the times that passed while the host was down the last starts it; with `"all"` each does, with `"skip"` none |
/// | `webhook(path = "shop/orders", signature = "github", secret_env = "SHOP_SECRET")` | a signed `POST /webhooks/shop/orders` starts it, as an event would, or is delivered to the run that holds its `token`; `signature` is `"github"`, `"stripe"` or `"hmac"`, the secret is in that variable of the host's environment |
/// | `concurrency = 5` | at most so many of its runs are at work at once; a run that sleeps or waits for a hook or a child is not at work |
/// | `concurrency_key = "customer:{customer.id}"` | counts the runs of each value of this template by themselves, so that the limit is that of a customer |
/// | `name = "…"` | the workflow's name, by default the function's |
///
/// Durations are numbers with a unit: `ms`, `s`, `m`, `h`, `d`, also several: `1h30m`.
#[proc_macro_attribute]
pub fn workflow(options: TokenStream, item: TokenStream) -> TokenStream {
    let item = proc_macro2::TokenStream::from(item);
    let code = parse::function(options.into(), item.clone())
        .and_then(validate::workflow)
        .map(expand::workflow);
    code.unwrap_or_else(|error| expand::errors(error, &item)).into()
}

/// Makes an `async fn` a step: work that runs in a sandbox of its own, and whose result is saved once.
///
/// Parameters are types that implement `Serialize` and `Deserialize`, or references to them: they are
/// serialised at the call, and the step borrows from what it read. It returns `Result<T, E>` with an `E`
/// that is a `StepError`. Called, the function gives a `StepCall`, to be awaited.
///
/// | option | meaning |
/// |---|---|
/// | `retries = 3` | how often to try again after a failed attempt; 0 means one attempt, 10,000 is the most |
/// | `timeout = "20s"` | how long one attempt may take |
/// | `backoff = "500ms"` | how long to wait before the first retry |
/// | `backoff(initial = "500ms", factor = 2.0, max = "1m")` | and by how much longer each wait is, up to which; each may be left out |
/// | `key = "charge:{order.id}"` | the idempotency key, a template over the input like a workflow's `token` |
/// | `key_ttl = "24h"` | for how long whoever is given the key knows it, from when the first attempt begins: where another would begin later, the run is blocked until a person decides |
/// | `at_most_once` | no second attempt without a person, whatever became of the first; a returned error is final |
/// | `on_unknown = "block"` | when nobody knows whether the step took effect (an at-most-once attempt did not return, or the error is marked `#[unknown]`), the run is blocked until a person decides; with `"fail"` the workflow gets a failure with `outcome_unknown` |
/// | `on_exhausted = "fail"` | when no retries are left, the workflow gets the failure; with `"block"` the run keeps its tokens and waits until somebody lets the step be tried again |
/// | `name = "…"` | the step's name in the journal, by default the function's |
///
/// Durations are numbers with a unit: `ms`, `s`, `m`, `h`, `d`, also several: `1m30s`.
#[proc_macro_attribute]
pub fn step(options: TokenStream, item: TokenStream) -> TokenStream {
    let item = proc_macro2::TokenStream::from(item);
    let code = parse::function(options.into(), item.clone())
        .and_then(validate::step)
        .map(expand::step);
    code.unwrap_or_else(|error| expand::errors(error, &item)).into()
}

/// Makes an enum or a struct the error type of steps.
///
/// Each variant (or the struct) says what to do after it:
///
/// | attribute | meaning |
/// |---|---|
/// | `#[retry]`, or none | try again after the step's backoff |
/// | `#[retry_after("30s")]` | try again, but not before that |
/// | `#[retry_after(wait)]` | as long as that field says, a `Duration`; `#[retry_after(0)]` in a tuple |
/// | `#[fatal]` | trying again cannot help |
/// | `#[unknown]` | it may have taken effect: not tried again by itself, see the step's `on_unknown` |
///
/// The message is the type's `Display` if it has one, and else what its JSON says.
#[proc_macro_derive(StepError, attributes(retry, retry_after, fatal, unknown))]
pub fn step_error(item: TokenStream) -> TokenStream {
    let code = parse::error(item.into())
        .and_then(validate::error)
        .map(expand::error);
    code.unwrap_or_else(syn::Error::into_compile_error).into()
}
