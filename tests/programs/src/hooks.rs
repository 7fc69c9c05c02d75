//! Hooks: read, closed, disposed, opened again, conflicting.

use onemark_sdk::prelude::*;
use onemark_sdk::{HookOptions, Webhook, Within, cancelled, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[step]
async fn record(payload: Value) -> Result<(), StepFailed> {
    let _ = payload;
    Ok(())
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Update {
    n: u64,
    last: bool,
}

/// Reads updates on the token that start claimed, a step each; closes at the last and drains.
#[workflow(token = "order:{id}", retain = "1h", hook = Update)]
async fn follow(id: String) -> WorkflowResult<Vec<u64>> {
    let _ = id;
    let mut seen = Vec::new();
    let mut updates = start_hook::<Update>()?;
    while let Some(update) = updates.next().await? {
        record(json!(update.n)).await?;
        seen.push(update.n);
        if update.last {
            updates.close().await?;
        }
    }
    Ok(seen)
}

/// Never opens the hook that start claims.
#[workflow(token = "key:{id}")]
async fn keyed_only(id: String) -> WorkflowResult<String> {
    Ok(id)
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Order {
    id: Option<u64>,
}

/// Its token comes from inside the input, from a field that the schema does not ask for.
#[workflow(token = "nested:{order.id}", retain = "24h", hook = Update)]
async fn keyed_by_order(order: Order) -> WorkflowResult<u64> {
    Ok(order.id.unwrap_or_default())
}

/// Reads any JSON from its first start hook until `"end"`; no declared type.
#[workflow]
async fn read_any() -> WorkflowResult<Vec<Value>> {
    let mut seen = Vec::new();
    let mut hook = start_hook::<Value>()?;
    while let Some(payload) = hook.next().await? {
        if payload == json!("end") {
            break;
        }
        seen.push(payload);
    }
    Ok(seen)
}

/// Reads from all its start hooks and a timer at once, in the order in which things happen.
#[workflow]
async fn two_hooks_and_timer(n: usize, timer_ms: u64) -> WorkflowResult<Vec<String>> {
    let tokens = start_hooks()?;
    let mut first = Hook::<Value>::open(tokens[0].clone())?;
    let mut second = Hook::<Value>::open(tokens[1].clone())?;
    let mut timer = sleep(Duration::from_millis(timer_ms));
    let mut seen = Vec::new();
    while seen.len() < n {
        select! {
            payload = first.next() => seen.push(format!("first {}", payload?.unwrap_or_default())),
            payload = second.next() => seen.push(format!("second {}", payload?.unwrap_or_default())),
            result = timer => { result?; seen.push("timer".into()) }
        }
    }
    Ok(seen)
}

/// Opens a token of its own making; says who owns it when another does.
#[workflow]
async fn opens(token: String) -> WorkflowResult<Value> {
    let mut hook = Hook::<Value>::open(token)?;
    if let Some(conflict) = hook.conflict() {
        let owner = conflict.run_id.clone();
        let awaited = hook.next().await.err().map(|error| error.to_string());
        record(json!("went on")).await?;
        return Ok(json!({ "owner": owner, "awaited": awaited }));
    }
    Ok(json!({ "payload": hook.next().await? }))
}

/// What opening a hook with these options comes to; goes on in any case.
#[workflow]
async fn opens_with(token: String, retain_ms: u64, metadata_bytes: usize) -> WorkflowResult<String> {
    let opened = HookOptions::new()
        .retain(Duration::from_millis(retain_ms))
        .metadata(json!("m".repeat(metadata_bytes)))
        .open::<Value>(token);
    record(json!("went on")).await?;
    match opened {
        Ok(hook) => Ok(hook.token().to_owned()),
        Err(HookError::Invalid(why)) => Ok(format!("invalid: {why}")),
        Err(error) => Err(error.into()),
    }
}

/// Opens a token when it hears that it is to end, or when its last one from the start says so, and a step of it is done;
/// `before` says whether it had it open already. Reads what is there, as long as it is closed, then opens it anew: whether
/// that is its own, and what it reads there.
#[workflow]
async fn opens_late(token: String, before: bool) -> WorkflowResult<Value> {
    let go = start_hooks()?.pop().unwrap_or_default();
    let mut go = Hook::<Value>::open(go)?;
    if before {
        Hook::<Value>::open(token.as_str())?;
    }
    select! {
        _ = cancelled() => {}
        // Asked to end, this wait ends as well.
        said = go.next() => drop(said),
    }
    record(json!("late")).await?;
    let mut late = Hook::<Value>::open(token.as_str())?;
    let mut own = vec![late.conflict().is_none()];
    let mut read = Vec::new();
    while let Some(payload) = late.next().await? {
        read.push(payload);
        if read.last() == Some(&json!("anew")) {
            return Ok(json!({ "own": own, "read": read }));
        }
    }
    let mut again = Hook::<Value>::open(token.as_str())?;
    own.push(again.conflict().is_none());
    if own == [true, true] {
        read.push(json!(again.next().await?));
    }
    Ok(json!({ "own": own, "read": read }))
}

/// Claims a token that the host makes.
#[workflow]
async fn opens_unique() -> WorkflowResult<String> {
    let hook = HookOptions::new().open_unique::<Value>()?;
    Ok(hook.token().to_owned())
}

/// Claims a token for numbers and takes one.
#[workflow]
async fn opens_for_numbers(token: String) -> WorkflowResult<Option<u64>> {
    Ok(Hook::<u64>::open(token)?.next().await?)
}

/// Opens one token twice, takes a payload on each handle, disposes, opens again, `rounds` times.
#[workflow]
async fn reopens(token: String, rounds: u64) -> WorkflowResult<Vec<Value>> {
    let mut seen = Vec::new();
    for _ in 0..rounds {
        let mut one = Hook::<Value>::open(token.clone())?;
        let mut same = Hook::<Value>::open(token.clone())?;
        seen.push(json!(one.conflict().is_none() && same.conflict().is_none()));
        seen.push(one.next().await?.unwrap_or_default());
        seen.push(same.next().await?.unwrap_or_default());
        one.dispose().await?;
    }
    Ok(seen)
}

/// Waits for a step to say go, then closes or disposes its start hook and drains it.
#[workflow]
async fn ends_hook(dispose: bool) -> WorkflowResult<Vec<Value>> {
    let tokens = start_hooks()?;
    let mut hook = Hook::<Value>::open(tokens[0].clone())?;
    let mut go = Hook::<Value>::open(tokens[1].clone())?;
    go.next().await?;
    if dispose {
        hook.dispose().await?;
    } else {
        hook.close().await?;
    }
    let mut seen = Vec::new();
    while let Some(payload) = hook.next().await? {
        seen.push(payload);
    }
    // Holds the token, if closed, until told to end.
    go.next().await?;
    Ok(seen)
}

/// Reads numbers from an undeclared hook; what is no number is kept as it came.
#[workflow]
async fn reads_numbers() -> WorkflowResult<Vec<String>> {
    let mut seen = Vec::new();
    let mut hook = start_hook::<u64>()?;
    loop {
        match hook.next().await {
            Ok(Some(number)) => seen.push(format!("number {number}")),
            Ok(None) => return Ok(seen),
            Err(HookError::Mismatch { raw, .. }) if raw == "\"end\"" => return Ok(seen),
            Err(HookError::Mismatch { raw, .. }) => seen.push(format!("other {raw}")),
            Err(error) => return Err(error.into()),
        }
    }
}

#[step]
async fn quick(n: u64) -> Result<u64, StepFailed> {
    Ok(n)
}

/// `rounds` times a step and a payload at the same moment, awaited together; which came first.
#[workflow]
async fn races(rounds: u64) -> WorkflowResult<String> {
    let mut hook = start_hook::<Value>()?;
    let mut seen = String::new();
    for round in 0..rounds {
        let mut step = quick(round);
        select! {
            result = step => {
                result?;
                hook.next().await?;
                seen.push_str("sp");
            }
            payload = hook.next() => {
                payload?;
                step.await?;
                seen.push_str("ps");
            }
        }
    }
    Ok(seen)
}

/// Waits for payloads, a little at a time, until one is 0: how many waits were in vain, and what came.
#[workflow]
async fn looks_now_and_then(ms: u64, within: bool) -> WorkflowResult<(u64, Vec<u64>)> {
    let mut hook = start_hook::<u64>()?;
    let (mut vain, mut came) = (0, Vec::new());
    loop {
        let wait = Duration::from_millis(ms);
        let payload = if within {
            match hook.next_within(wait).await? {
                Within::Payload(payload) => Some(payload),
                Within::Late => None,
                Within::Closed => break,
            }
        } else {
            select! {
                slept = sleep(wait) => {
                    slept?;
                    None
                }
                payload = hook.next() => payload?,
            }
        };
        match payload {
            None => vain += 1,
            Some(0) => break,
            Some(payload) => came.push(payload),
        }
    }
    Ok((vain, came))
}

/// Gives out the URL of a webhook, and returns what two callers sent.
#[workflow]
async fn asks_by_url() -> WorkflowResult<Vec<Value>> {
    let mut webhook = Webhook::<Value>::open()?;
    stream("urls").write(webhook.url())?;
    let mut requests = Vec::new();
    while requests.len() < 2
        && let Some(request) = webhook.next().await?
    {
        // The host has answered already.
        request.respond(418, &Value::Null)?;
        requests.push(request.payload);
    }
    Ok(requests)
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Opinion {
    stars: u8,
    agree: bool,
    ratio: Option<f64>,
    note: Option<String>,
    #[serde(default)]
    kinds: Vec<u32>,
}

/// Takes one opinion at a URL, such as a form sends.
#[workflow]
async fn asks_by_form() -> WorkflowResult<Option<Opinion>> {
    let mut webhook = Webhook::<Opinion>::open()?;
    stream("urls").write(webhook.url())?;
    Ok(webhook.next().await?.map(|request| request.payload))
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Sum {
    a: i64,
    b: i64,
}

/// Answers callers itself, but for those that ask for nothing.
#[workflow]
async fn adds_for_callers(rounds: u32) -> WorkflowResult<Option<String>> {
    let mut webhook = Webhook::<Sum>::open_responding()?;
    stream("urls").write(webhook.url())?;
    let mut refused = None;
    for _ in 0..rounds {
        let Some(request) = webhook.next().await? else {
            break;
        };
        match request.payload {
            Sum { a: 0, b: 0 } => {
                refused = request
                    .respond(99, &0)
                    .err()
                    .map(|failure| failure.message.clone());
            }
            Sum { a, b } => request.respond(201, &json!({ "sum": a + b }))?,
        }
    }
    Ok(refused)
}

#[workflow]
async fn binds_a_webhook_to_a_plain_token() -> WorkflowResult<String> {
    Hook::<Value>::open("plain")?;
    let bound = Webhook::<Value>::bind("plain");
    Ok(bound.err().map(|error| error.to_string()).unwrap_or_default())
}

/// Answers one caller a run, so many runs after each other.
#[workflow]
async fn adds_one_a_run(token: Option<String>, rounds: u32) -> WorkflowResult<()> {
    let mut webhook = match &token {
        Some(token) => Webhook::<Sum>::bind(token.as_str())?,
        None => Webhook::<Sum>::open_responding()?,
    };
    if token.is_none() {
        stream("urls").write(webhook.url())?;
    }
    if let Some(request) = webhook.next().await? {
        let Sum { a, b } = request.payload;
        request.respond(200, &json!({ "sum": a + b }))?;
    }
    match rounds {
        1 => Ok(()),
        _ => Err(onemark_sdk::continue_as_new(
            json!({ "token": webhook.hook().token(), "rounds": rounds - 1 }),
        )),
    }
}

/// Has a URL, and reads nothing of what comes there.
#[workflow]
async fn hands_out_a_url() -> WorkflowResult<()> {
    let webhook = Webhook::<Value>::open()?;
    stream("urls").write(webhook.url())?;
    sleep(Duration::from_secs(3_600)).await?;
    Ok(())
}
