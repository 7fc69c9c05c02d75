//! The ground truth: what happened in a run, in order, and what follows from it.
//!
//! Pure: no I/O, no clock, no randomness. Times come in as arguments.

mod codec;
mod divergence;
mod entry;
mod log;
mod fork;
mod options;
mod outcome;
mod replay;
mod status;
mod stream;
mod template;
mod work;

pub use codec::{CodecError, ENTRY_FORMAT, chain, decode_event, encode_event};
pub use divergence::{Call, Divergence};
pub use entry::{
    Body, CallNo, CancelReason, ChildAdmission, ChildHook, ChildOptions, ChildStart, Concurrency,
    Continuation, EmitAdmission, EmitPart, Entry, Event, Forked, HookNo, HookResponse, HookSpec, HookUrl,
    Lineage, MAX_METADATA_BYTES, NewEmit, NewEntry, ParentEnd, PayloadType, RESPONSES, RunTimeout, Seq,
    Started, Timestamp,
};
pub use fork::{Copied, CopiedHook};
pub use log::{LogBatch, LogLevel, LogLine, LogMark, UnknownLevel};
pub use options::{Backoff, Limits, MAX_RETRIES, StepOptions, StepOverrides, Then};
pub use outcome::{
    AttemptError, Failure, FailureKind, MAX_MESSAGE_BYTES, checked_json, continued_with, is_not_continued,
    kept, not_continued, shortened,
};
pub use replay::{Begun, GuestError, HookHandle, Opened, PromiseId, Replay, Waited};
pub use status::{IllegalTransition, RunStatus};
pub use stream::{MAX_CHUNK_BYTES, StreamWrite, check_chunk};
pub use template::{Template, TemplateError};
pub use work::{Deadline, Hold, LastAttempt, OpenStep, OpenTimer, Work};
