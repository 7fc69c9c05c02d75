//! Short ways to ask a store for things.

use std::num::NonZeroU32;

use onemark::ids::{ConcurrencyGroup, Digest, HookToken, IdempotencyKey, RunId, Tags};
use onemark::journal::{
    Body, CallNo, Concurrency, Event, HookNo, HookSpec, Limits, LogBatch, NewEntry, PayloadType, Seq,
    Started, StepOptions, Timestamp,
};
use onemark::store::{
    Admission, Append, Cap, Delivery, Fence, NewRun, OnConflict, Park, SqliteOptions, SqliteStore, Store,
    StoredComponent,
};

pub fn run_id(id: &str) -> RunId {
    RunId::new(id).unwrap()
}

pub fn token(token: &str) -> HookToken {
    HookToken::new(token).unwrap()
}

pub fn key(key: &str) -> IdempotencyKey {
    IdempotencyKey::new(key).unwrap()
}

pub fn spec(name: &str, retain_ms: u64) -> HookSpec {
    HookSpec {
        token: token(name),
        retain_ms,
        metadata: None,
        payload: PayloadType::Any,
        webhook: None,
    }
}

pub fn component(code: &str) -> StoredComponent {
    StoredComponent {
        digest: Digest::of(code),
        bytes: code.as_bytes().into(),
        manifest: "{}".into(),
    }
}

/// A run of workflow `w` of component `c`, that claims `hooks`.
pub fn new_run(id: &str, hooks: Vec<HookSpec>, now: Timestamp) -> NewRun {
    let started = Started {
        timeout: None,
        workflow: "w".into(),
        component: Digest::of("c"),
        seed: u64::MAX,
        limits: Limits::default(),
        hooks,
        lineage: None,
        start_at: None,
        predecessors: Vec::new(),
        tags: Tags::default(),
        concurrency: None,
    };
    NewRun {
        id: run_id(id),
        started,
        input: Body::new(r#"{"n":1}"#),
        request: Digest::of(id),
        key: None,
        on_conflict: OnConflict::Fail,
        now,
    }
}

pub fn append(id: &str, fence: Fence, seen: Seq, entries: Vec<NewEntry>) -> Append {
    Append {
        run: run_id(id),
        fence,
        seen,
        entries,
        park: None,
        logs: LogBatch::default(),
        now: 1_000,
    }
}

pub const REST: Option<Park> = Some(Park { wake_at: None });

pub fn deliver(name: &str, payload: &str, now: Timestamp) -> Delivery {
    Delivery {
        token: token(name),
        payload: Body::new(payload),
        request: Digest::of(payload),
        key: None,
        hook: None,
        cap: Cap::default(),
        now,
    }
}

pub fn scheduled(call: CallNo) -> NewEntry {
    let event = Event::StepScheduled {
        closure: false,
        call,
        step: "charge".into(),
        options: StepOptions::default(),
    };
    NewEntry::with_body(event, Body::new(r#"{"order":"42"}"#))
}

pub fn step_completed(call: CallNo) -> NewEntry {
    let event = Event::StepCompleted {
        call,
        attempt: 1,
        resolved: false,
    };
    NewEntry::with_body(event, Body::new("true"))
}

/// What a short step leaves: three entries.
pub fn step(call: CallNo) -> Vec<NewEntry> {
    let began = NewEntry::event(Event::AttemptStarted { call, attempt: 1 });
    vec![scheduled(call), began, step_completed(call)]
}

pub fn open_hook(call: CallNo, hook: HookNo, spec: HookSpec) -> NewEntry {
    NewEntry::OpenHook {
        call,
        hook,
        spec,
        generated: false,
    }
}

pub fn completed() -> NewEntry {
    NewEntry::with_body(Event::Completed, Body::new("null"))
}

/// A store in a file, and the folder that it lives in.
pub struct File {
    pub folder: tempfile::TempDir,
}

impl File {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("onemark.db")
    }

    pub fn open(&self) -> SqliteStore {
        SqliteStore::open(self.path(), SqliteOptions::default()).unwrap()
    }
}

pub async fn start(store: &dyn Store, id: &str, hooks: Vec<HookSpec>, now: Timestamp) {
    let admission = store.admit(new_run(id, hooks, now)).await.unwrap();
    assert_eq!(admission, started(id, true));
}

/// The answer to a start that replaced nobody.
pub fn started(id: &str, fresh: bool) -> Admission {
    Admission::Started {
        run: run_id(id),
        replaced: Vec::new(),
        fresh,
        woken: Vec::new(),
    }
}

/// The runs that are due, of all groups.
pub async fn due(store: &dyn Store, now: Timestamp, limit: usize) -> Vec<RunId> {
    let due = store.due(now, limit, &[]).await.unwrap();
    due.into_iter().map(|due| due.run).collect()
}

/// A group by its number.
pub fn limited(group: usize) -> Concurrency {
    Concurrency {
        group: ConcurrencyGroup::of("w", [None, Some("a/b")][group]).unwrap(),
        limit: NonZeroU32::new(2).unwrap(),
    }
}
