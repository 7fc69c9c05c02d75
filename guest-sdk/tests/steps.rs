//! Steps in unit tests: on a native target they are plain functions (C16).

use std::fmt;

use onemark_sdk::prelude::*;
use onemark_sdk::{Backoff, Retry, block_on};

#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
struct Item {
    name: String,
    price: f64,
}

#[step(retries = 2, timeout = "1m", key = "item:{item.name}", backoff(factor = 3))]
async fn describe(
    item: &Item,
    label: &str,
    items: &[Item],
    best: Option<&Item>,
    note: Option<&str>,
    digits: Option<&[u8]>,
    mut owned: Vec<String>,
    r#type: (u8, bool),
) -> Result<String, StepFailed> {
    owned.push(label.into());
    Ok(format!(
        "{} {} {:?} {note:?} {digits:?} {owned:?} {type:?}",
        item.name,
        items.len(),
        best.map(|best| &best.name)
    ))
}

#[derive(Serialize, Deserialize, StepError, Debug, PartialEq)]
enum OutsideError {
    #[fatal]
    Refused(String),
    #[retry]
    Busy {
        queue: u32,
    },
    Unmarked,
    #[retry_after("1m30s")]
    Closed,
    #[retry_after(wait)]
    Limited {
        wait: Duration,
        why: String,
    },
    #[retry_after(1)]
    Throttled(u8, Duration),
}

#[derive(Serialize, Deserialize, StepError, Debug)]
#[fatal]
struct Displayed(u8);

impl fmt::Display for Displayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "code {}", self.0)
    }
}

#[step]
async fn refuse(why: &str) -> Result<(), OutsideError> {
    Err(OutsideError::Refused(why.into()))
}

#[step]
async fn refuse_indirectly() -> Result<(), StepFailed> {
    refuse("no funds").await?;
    Ok(())
}

#[step]
async fn nap() -> Result<(), StepFailed> {
    sleep(Duration::from_secs(1)).await?;
    Ok(())
}

#[step]
async fn attempt() -> Result<(u32, String), StepFailed> {
    let info = step_info();
    Ok((info.attempt, info.idempotency_key))
}

fn item() -> Item {
    Item {
        name: "pen".into(),
        price: 1.5,
    }
}

#[test]
fn c16_a_step_called_outside_of_a_workflow_is_a_plain_function() {
    let item = item();
    let call = describe(
        &item,
        "label",
        std::slice::from_ref(&item),
        Some(&item),
        None,
        Some(&[1, 2]),
        vec![],
        (1, true),
    );
    // Options are taken, and mean nothing here.
    let call = call
        .retries(1)
        .timeout(Duration::ZERO)
        .key("k")
        .backoff(Duration::from_secs(1));
    let call = call.backoff(Backoff::initial(Duration::from_secs(1)).factor(1.5));
    let text = block_on(call).unwrap();
    assert_eq!(text, r#"pen 1 Some("pen") None Some([1, 2]) ["label"] (1, true)"#);
}

#[test]
fn c16_it_has_a_first_attempt_and_a_key() {
    assert_eq!(block_on(attempt()).unwrap(), (1, "test".into()));
}

#[test]
fn calls_borrow_nothing_and_can_be_joined() {
    let calls: Vec<_> = (0..40).map(|n| refuse(&format!("no {n}"))).collect();
    let errors = block_on(join_all(calls))
        .into_iter()
        .map(|result| result.unwrap_err().error);
    assert!(errors.eq((0..40).map(|n| Some(OutsideError::Refused(format!("no {n}"))))));
}

#[test]
fn a_failure_holds_the_steps_error() {
    let failure = block_on(refuse("no funds")).unwrap_err();
    assert_eq!(failure.error, Some(OutsideError::Refused("no funds".into())));
    assert_eq!(failure.kind, FailureKind::Error);
    assert_eq!(failure.attempts, Some(1));
    assert_eq!(failure.to_string(), "`refuse` failed: Refused: no funds");
}

#[test]
fn what_an_error_says_about_retries() {
    let retries = [
        (OutsideError::Refused("a".into()), Retry::Never),
        (OutsideError::Busy { queue: 3 }, Retry::Backoff),
        (OutsideError::Unmarked, Retry::Backoff),
        (OutsideError::Closed, Retry::After(Duration::from_secs(90))),
        (
            OutsideError::Limited {
                wait: Duration::from_millis(5),
                why: "a".into(),
            },
            Retry::After(Duration::from_millis(5)),
        ),
        (
            OutsideError::Throttled(1, Duration::from_secs(2)),
            Retry::After(Duration::from_secs(2)),
        ),
    ];
    for (error, retry) in retries {
        assert_eq!(error.retry(), retry, "{error:?}");
    }
    assert_eq!(Displayed(1).retry(), Retry::Never);
}

#[test]
fn the_message_of_an_error_is_its_display_or_its_json() {
    assert_eq!(Displayed(7).message(), "code 7");
    assert_eq!(OutsideError::Unmarked.message(), "Unmarked");
    assert_eq!(OutsideError::Busy { queue: 3 }.message(), "Busy: queue: 3");
}

#[test]
fn fatal_stays_fatal_when_a_step_calls_a_step() {
    let failure = block_on(refuse_indirectly()).unwrap_err();
    let error = failure.error.as_ref().unwrap();
    assert_eq!(error.retry(), Retry::Never);
    assert_eq!(error.message(), "`refuse` failed: Refused: no funds");
}

#[test]
fn arguments_that_json_cannot_hold_are_refused() {
    let nan = Item {
        price: f64::NAN,
        ..item()
    };
    let failure = block_on(describe(&nan, "", &[], None, None, None, vec![], (0, false))).unwrap_err();
    assert_eq!(failure.kind, FailureKind::NotJson);
    assert!(
        failure
            .message
            .contains("item.price: JSON cannot hold the number NaN"),
        "{failure}"
    );
}

#[test]
fn durable_calls_outside_of_a_workflow_are_typed_errors() {
    assert_eq!(
        block_on(sleep(Duration::ZERO)).unwrap_err().kind,
        FailureKind::NotInStep
    );
    let Err(HookError::Failed(failure)) = start_hook::<u8>() else {
        panic!("no error")
    };
    assert_eq!(failure.kind, FailureKind::NotInStep);
    assert!(failure.message.contains("not in a workflow"), "{failure}");
    let nap = block_on(nap()).unwrap_err().error.unwrap();
    assert_eq!(nap.retry(), Retry::Never);
}
