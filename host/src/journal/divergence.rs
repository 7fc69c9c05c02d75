//! A guest that asks for something else than its journal holds: what people are told about it.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use similar::TextDiff;

use super::entry::{CallNo, Seq, Timestamp};
use super::outcome::shortened;
use crate::ids::{Digest, HookToken};

/// Longest text of one of the two calls in a message, in bytes; the whole calls stand beside it.
const MAX_SIDE_BYTES: usize = 1 << 10;

/// What a guest asks for, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Call {
    Step {
        name: String,
        #[serde(serialize_with = "as_json")]
        input: Arc<str>,
    },
    Closure {
        name: String,
    },
    Sleep {
        length_ms: u64,
    },
    SleepUntil {
        at: Timestamp,
    },
    OpenHook {
        token: Option<HookToken>,
    },
    CloseHook {
        token: HookToken,
    },
    DisposeHook {
        token: HookToken,
    },
    StartChild {
        workflow: String,
        /// Over its canonical form.
        input: Digest,
    },
    SetTag {
        name: String,
        value: String,
    },
    Emit {
        event: String,
        /// Over its canonical form.
        payload: Digest,
    },
    /// The guest waits for something, where its journal has it call.
    Wait,
    Return {
        #[serde(serialize_with = "as_json")]
        value: Arc<str>,
    },
    Fail {
        #[serde(serialize_with = "as_json")]
        error: Arc<str>,
    },
    /// The workflow ended and goes on as another run.
    Continue {
        #[serde(serialize_with = "as_json")]
        input: Arc<str>,
    },
}

fn as_json<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(raw) => raw.serialize(serializer),
        Err(_) => serializer.serialize_str(text),
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { name, input } => write!(f, "step {name} {input}"),
            Self::Closure { name } => write!(f, "closure step {name}"),
            Self::Sleep { length_ms } => write!(f, "sleep {length_ms} ms"),
            Self::SleepUntil { at } => write!(f, "sleep until {at}"),
            Self::OpenHook { token: Some(token) } => write!(f, "open hook {token}"),
            Self::OpenHook { token: None } => write!(f, "open a hook with a token of the host's"),
            Self::CloseHook { token } => write!(f, "close hook {token}"),
            Self::DisposeHook { token } => write!(f, "dispose hook {token}"),
            Self::StartChild { workflow, input } => {
                write!(f, "start {workflow} with the input of digest {}", input.short())
            }
            Self::SetTag { name, value } => write!(f, "set tag {name}={value}"),
            Self::Emit { event, payload } => {
                write!(f, "emit {event} with the payload of digest {}", payload.short())
            }
            Self::Wait => write!(f, "wait"),
            Self::Return { value } => write!(f, "return {value}"),
            Self::Continue { input } => write!(f, "continue as new with {input}"),
            Self::Fail { error } => write!(f, "fail with {error}"),
        }
    }
}

/// Where journal and guest part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// The call's number in the guest's program order.
    pub call: CallNo,
    /// The recorded entry's position, when there is one.
    pub seq: Option<Seq>,
    pub recorded: Option<Call>,
    pub requested: Option<Call>,
    /// Where in the guest's source the request was made, where debug info is there.
    pub source: Option<String>,
}

impl Divergence {
    /// Recorded and requested call, line by line, as `-` and `+`.
    pub fn diff(&self) -> String {
        let pretty = |call: &Option<Call>| {
            let call = call.as_ref().map(serde_json::to_value);
            let Some(Ok(value)) = call else {
                return String::new();
            };
            serde_json::to_string_pretty(&value).unwrap_or_default() + "\n"
        };
        let (old, new) = (pretty(&self.recorded), pretty(&self.requested));
        let diff = TextDiff::from_lines(&old, &new);
        diff.iter_all_changes()
            .map(|change| format!("{}{}", change.tag(), change.value()))
            .collect()
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |call: &Option<Call>| match call {
            Some(call) => shortened(&call.to_string(), MAX_SIDE_BYTES).into_owned(),
            None => "nothing more".to_owned(),
        };
        write!(f, "call {} differs from the journal", self.call)?;
        if let Some(seq) = self.seq {
            write!(f, " (entry {seq})")?;
        }
        write!(f, ": recorded `{}`", side(&self.recorded))?;
        write!(f, ", requested `{}`", side(&self.requested))?;
        if let Some(source) = &self.source {
            write!(f, " at {source}")?;
        }
        Ok(())
    }
}
