//! The model and SQLite give the same answers, whatever is asked of them in whatever order.

use std::collections::{HashMap, HashSet};

use onemark::ids::{Digest, EventName, StreamName, Tags};
use onemark::journal::{
    Body, CancelReason, ChildAdmission, ChildOptions, ChildStart, Continuation, EmitAdmission, EmitPart,
    Event, Failure, FailureKind, Forked, HookSpec, Lineage, LogBatch, LogLevel, LogLine, NewEmit, NewEntry,
    ParentEnd, RunStatus, Started, StreamWrite, Timestamp,
};
use onemark::store::{
    Admission, Append, BlockReason, Blocked, Cap, ChunkWrite, Decision, Emission, Ending, Fence, HeldStep,
    HookRef, HookState, LogFilter, MemoryStore, NewFork, NewPart, NewSchedule, OnConflict, Park, RunFilter,
    ScheduleName, Settled, Settlement, Source, SqliteStore, StartDelivery, Store, TOMBSTONE_MS, Waits,
    Written,
};
use proptest::prelude::*;

use crate::store_support::{
    File, component, deliver, key, limited, new_run, open_hook, run_id, scheduled, spec, token,
};

const IDS: [&str; 12] = [
    "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11",
];
const STREAMS: [&str; 2] = ["s0", "s1"];
const TOKENS: [&str; 3] = ["a", "b", "c"];
const KEYS: [&str; 2] = ["k0", "k1"];
const HELD: [BlockReason; 3] = [
    BlockReason::UnknownOutcome,
    BlockReason::StepFailed,
    BlockReason::KeyExpired,
];
/// One value and two spellings of it, and another.
const INPUTS: [&str; 3] = [r#"{"n":1,"m":2}"#, r#"{ "m": 2, "n": 1 }"#, r#"{"n":2}"#];
/// Soon full.
const CAP: Cap = Cap {
    payloads: 3,
    bytes: 5,
};
const RETENTIONS: [u64; 3] = [0, 1_000, TOMBSTONE_MS];

#[derive(Debug, Clone)]
enum Op {
    Admit {
        id: usize,
        key: Option<usize>,
        request: u8,
        tokens: Vec<(usize, usize)>,
        input: usize,
        policy: Policy,
        start_after: Option<u64>,
        tags: Vec<(usize, usize)>,
        limited: Option<usize>,
    },
    /// `upto`: how many entries short of the end it is made. Each claim: a hook and its new token.
    Fork {
        id: usize,
        of: usize,
        upto: u8,
        key: Option<usize>,
        request: u8,
        claims: Vec<(u32, usize)>,
    },
    Recall {
        id: usize,
        key: usize,
        request: u8,
    },
    /// Each part: a run and its token, or none.
    Emit {
        event: u8,
        key: Option<usize>,
        request: u8,
        parts: Vec<Option<(usize, usize)>>,
    },
    /// `stale`: how many entries short of the end the sender is; -1 is beyond it.
    Append {
        id: usize,
        stale: i8,
        wants: Vec<Want>,
        park: Option<Option<u64>>,
        fence: u64,
    },
    /// The last append again.
    AppendAgain,
    /// A step's chunk.
    Write {
        id: usize,
        stream: usize,
        call: u32,
        number: u64,
        fence: u64,
    },
    Deliver {
        token: usize,
        key: Option<usize>,
        payload: u8,
        checked: Option<(usize, u32)>,
    },
    Dispose {
        token: usize,
    },
    /// `at`: the call of a step that waits for a person, and why it does.
    Block {
        id: usize,
        at: Option<(u32, usize)>,
    },
    Settle {
        id: usize,
        call: Option<u32>,
        decision: u8,
    },
    Cancel {
        id: usize,
        how: u8,
    },
    Upgrade {
        id: usize,
        stored: bool,
    },
    Deploy {
        name: u8,
        code: u8,
        schedules: u8,
    },
    TakeOver,
    RemoveDeployment {
        name: u8,
    },
    Clock {
        by: i64,
    },
    Reopen,
}

#[derive(Debug, Clone)]
enum Policy {
    Fail,
    Attach,
    Replace,
    /// `checked`: against the hook that the token leads to.
    Deliver {
        token: usize,
        payload: u8,
        always: bool,
        checked: bool,
    },
}

/// An entry, with the numbers that the owner would give it.
#[derive(Debug, Clone)]
enum Want {
    Schedule,
    Complete {
        call: u32,
    },
    Timer {
        due: u64,
    },
    Fire {
        call: u32,
    },
    Open {
        token: usize,
        retention: usize,
        off: u32,
    },
    Close {
        hook: u32,
    },
    Dispose {
        hook: u32,
    },
    Take {
        hook: u32,
        count: u32,
    },
    Child {
        id: usize,
        token: Option<usize>,
        leave: bool,
        refused: bool,
    },
    Tag {
        name: usize,
        value: usize,
    },
    /// `off`: how far the number is from the next of workflow code.
    Write {
        stream: usize,
        off: i8,
    },
    /// Each part: a run and its token, or none.
    Emit {
        parts: Vec<Option<(usize, usize)>>,
    },
    End,
    Continue {
        id: usize,
        carries_cancel: bool,
    },
    Illegal,
}

fn parts() -> impl Strategy<Value = Vec<Option<(usize, usize)>>> {
    let part = prop::option::weighted(0.7, (0..IDS.len(), 0..TOKENS.len()));
    prop::collection::vec(part, 0..4)
}

fn wants() -> impl Strategy<Value = Vec<Want>> {
    let want = prop_oneof![
        4 => Just(Want::Schedule),
        2 => (0..4u32).prop_map(|call| Want::Complete { call }),
        1 => prop_oneof![0..10_000u64, Just(u64::MAX)].prop_map(|due| Want::Timer { due }),
        1 => (0..4u32).prop_map(|call| Want::Fire { call }),
        5 => (0..TOKENS.len(), 0..RETENTIONS.len(), prop_oneof![9 => Just(0u32), 1 => Just(1)])
            .prop_map(|(token, retention, off)| Want::Open { token, retention, off }),
        5 => (0..2u32).prop_map(|hook| Want::Close { hook }),
        2 => (0..3u32).prop_map(|hook| Want::Dispose { hook }),
        2 => (0..2u32, 1..3u32).prop_map(|(hook, count)| Want::Take { hook, count }),
        3 => (0..IDS.len(), prop::option::of(0..TOKENS.len()), any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(id, token, leave, refused)| Want::Child { id, token, leave, refused }),
        2 => (0..3usize, 0..2usize).prop_map(|(name, value)| Want::Tag { name, value }),
        3 => (0..STREAMS.len(), prop_oneof![8 => Just(0i8), 2 => Just(-1), 1 => Just(1)])
            .prop_map(|(stream, off)| Want::Write { stream, off }),
        2 => parts().prop_map(|parts| Want::Emit { parts }),
        6 => Just(Want::End),
        3 => (0..IDS.len(), any::<bool>())
            .prop_map(|(id, carries_cancel)| Want::Continue { id, carries_cancel }),
        1 => Just(Want::Illegal),
    ];
    prop::collection::vec(want, 0..4)
}

fn policy() -> impl Strategy<Value = Policy> {
    let deliver = (0..TOKENS.len(), 0..12u8, any::<bool>(), any::<bool>());
    prop_oneof![
        1 => Just(Policy::Fail),
        2 => Just(Policy::Attach),
        3 => Just(Policy::Replace),
        5 => deliver.prop_map(|(token, payload, always, checked)| Policy::Deliver {
            token,
            payload,
            always,
            checked,
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..IDS.len();
    let token = 0..TOKENS.len();
    let maybe_key = prop::option::weighted(0.4, 0..KEYS.len());
    let claims = prop::collection::vec((token.clone(), 0..RETENTIONS.len()), 0..3);
    let kept = prop::collection::vec((0..2u32, token.clone()), 0..2);
    let stale = prop_oneof![6 => Just(0i8), 3 => 1..4i8, 1 => Just(-1)];
    let wake = prop::option::weighted(0.7, prop_oneof![0..20_000u64, Just(u64::MAX)]);
    let park = prop::option::of(wake);
    let fence = prop_oneof![9 => Just(0u64), 1 => Just(1)];
    let checked = prop::option::weighted(0.3, (id.clone(), 0..2u32));
    let tick = prop_oneof![
        4 => 0..1_000i64,
        2 => Just(1_000),
        2 => Just(50_000),
        1 => -2_000..0i64,
        1 => Just(TOMBSTONE_MS as i64 - 1),
        1 => Just(TOMBSTONE_MS as i64),
    ];
    let start_after = prop::option::weighted(0.3, prop_oneof![0..20_000u64, Just(u64::MAX)]);
    let tags = prop::collection::vec((0..2usize, 0..2usize), 0..3);
    prop_oneof![
        16 => (
            id.clone(),
            maybe_key.clone(),
            0..2u8,
            claims,
            0..INPUTS.len(),
            policy(),
            start_after,
            tags,
            prop::option::of(0..2usize),
        )
            .prop_map(|(id, key, request, tokens, input, policy, start_after, tags, limited)| Op::Admit {
                id,
                key,
                request,
                tokens,
                input,
                policy,
                start_after,
                tags,
                limited,
            }),
        8 => (id.clone(), id.clone(), 0..5u8, maybe_key.clone(), 0..2u8, kept)
            .prop_map(|(id, of, upto, key, request, claims)| Op::Fork { id, of, upto, key, request, claims }),
        1 => (id.clone(), 0..KEYS.len(), 0..2u8).prop_map(|(id, key, request)| Op::Recall { id, key, request }),
        5 => (0..3u8, maybe_key.clone(), 0..2u8, parts())
            .prop_map(|(event, key, request, parts)| Op::Emit { event, key, request, parts }),
        20 => (id.clone(), stale, wants(), park, fence.clone())
            .prop_map(|(id, stale, wants, park, fence)| Op::Append { id, stale, wants, park, fence }),
        2 => Just(Op::AppendAgain),
        4 => (id.clone(), 0..STREAMS.len(), 0..2u32, 0..3u64, fence.clone())
            .prop_map(|(id, stream, call, number, fence)| Op::Write { id, stream, call, number, fence }),
        7 => (token.clone(), maybe_key, 0..12u8, checked)
            .prop_map(|(token, key, payload, checked)| Op::Deliver { token, key, payload, checked }),
        2 => token.prop_map(|token| Op::Dispose { token }),
        3 => (id.clone(), prop::option::weighted(0.7, (0..2u32, 0..HELD.len())))
            .prop_map(|(id, at)| Op::Block { id, at }),
        6 => (id.clone(), prop::option::of(0..2u32), 0..3u8)
            .prop_map(|(id, call, decision)| Op::Settle { id, call, decision }),
        4 => (id.clone(), 0..4u8).prop_map(|(id, how)| Op::Cancel { id, how }),
        2 => (id, any::<bool>()).prop_map(|(id, stored)| Op::Upgrade { id, stored }),
        2 => (0..2u8, 0..2u8, 0..6u8)
            .prop_map(|(name, code, schedules)| Op::Deploy { name, code, schedules }),
        1 => (0..2u8).prop_map(|name| Op::RemoveDeployment { name }),
        1 => Just(Op::TakeOver),
        5 => tick.prop_map(|by| Op::Clock { by }),
        1 => Just(Op::Reopen),
    ]
}

/// Later values of a name replace earlier ones.
fn tags_of(tags: &[(usize, usize)]) -> Tags {
    let tags = tags
        .iter()
        .map(|(name, value)| (format!("t{name}"), format!("v{value}")));
    Tags::new(tags.collect()).unwrap()
}

/// Both stores, and what their caller knows.
struct Pair {
    model: MemoryStore,
    sqlite: Option<SqliteStore>,
    file: File,
    now: Timestamp,
    fence: Fence,
    last_append: Option<Append>,
    /// Statuses and outcomes met, so that the test can tell that it tested something.
    met: HashMap<String, usize>,
}

/// The same question to both; their one answer.
macro_rules! both {
    ($pair:expr, $store:ident => $ask:expr) => {{
        let $store: &dyn Store = &$pair.model;
        let expected = $ask.await.map_err(|error| format!("{error:?}"));
        let $store: &dyn Store = $pair.sqlite.as_ref().unwrap();
        let actual = $ask.await.map_err(|error| format!("{error:?}"));
        assert_eq!(
            actual,
            expected,
            "SQLite (left) and the model differ: {}",
            stringify!($ask)
        );
        expected
    }};
}

impl Pair {
    async fn new() -> Self {
        let file = File::new();
        let sqlite = Some(file.open());
        let mut pair = Self {
            model: MemoryStore::new(),
            sqlite,
            file,
            now: 1_000_000,
            fence: Fence(0),
            last_append: None,
            met: HashMap::new(),
        };
        pair.take_over().await;
        both!(pair, store => store.deploy("c", component("c"), Vec::new(), pair.now)).unwrap();
        pair
    }

    async fn take_over(&mut self) {
        self.fence = both!(self, store => store.take_over(self.now)).unwrap();
    }

    fn meet(&mut self, what: &impl std::fmt::Debug) {
        let text = format!("{what:?}");
        let name = text
            .split(|c: char| !c.is_alphanumeric() && c != '(')
            .take(1)
            .collect();
        *self.met.entry(name).or_default() += 1;
    }

    async fn perform(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Admit {
                id,
                key: key_index,
                request,
                tokens,
                input,
                policy,
                start_after,
                tags,
                limited: group,
            } => {
                let mut specs = Vec::new();
                for (token, retention) in tokens {
                    specs.push(spec(TOKENS[token], RETENTIONS[retention]));
                }
                let mut run = new_run(IDS[id], specs, now);
                run.started.workflow = format!("w{request}");
                run.started.start_at = start_after.map(|after| now.saturating_add(after));
                run.started.tags = tags_of(&tags);
                run.started.concurrency = group.map(limited);
                run.input = Body::new(INPUTS[input]);
                run.on_conflict = self.policy(policy, run.started.hooks.first()).await;
                run.request = Digest::of([request]);
                run.key = key_index.map(|index| key(KEYS[index]));
                let answer = both!(self, store => store.admit(run.clone()));
                self.meet(&answer);
            }
            Op::Fork {
                id,
                of,
                upto,
                key: key_index,
                request,
                claims,
            } => {
                let of = run_id(IDS[of]);
                let entries = self.model.run(&of).await.unwrap().map_or(0, |run| run.entries);
                let claims = claims
                    .into_iter()
                    .map(|(hook, token)| (hook, spec(TOKENS[token], 1_000)));
                let fork = NewFork {
                    id: run_id(IDS[id]),
                    forked: Forked {
                        of,
                        upto: entries.saturating_sub(u64::from(upto)),
                        seed: now,
                        component: Digest::of("c"),
                        hooks: claims.collect(),
                    },
                    request: Digest::of([request, 1]),
                    key: key_index.map(|index| key(KEYS[index])),
                    now,
                };
                let answer = both!(self, store => store.fork(fork.clone()));
                if let Ok(Admission::Started { .. }) = answer {
                    *self.met.entry("Fork".into()).or_default() += 1;
                    if !fork.forked.hooks.is_empty() {
                        *self.met.entry("ForkedHook".into()).or_default() += 1;
                    }
                }
                self.meet(&answer);
            }
            Op::Recall {
                id,
                key: index,
                request,
            } => {
                let (id, key, request) = (run_id(IDS[id]), key(KEYS[index]), Digest::of([request]));
                let _ = both!(self, store => store.recall(Some(&id), Some(&key), request, now));
            }
            Op::Emit {
                event,
                key: key_index,
                request,
                parts,
            } => {
                let part = |part: Option<(usize, usize)>| NewPart {
                    workflow: "w".into(),
                    start: match part {
                        Some((id, token)) => {
                            Ok(Box::new(new_run(IDS[id], vec![spec(TOKENS[token], 0)], now)))
                        }
                        None => Err("does not fit".into()),
                    },
                };
                let emission = Emission {
                    source: match event {
                        0 => Source::Event(EventName::new("e").unwrap()),
                        event => Source::Schedule {
                            name: ScheduleName {
                                deployment: "n0".into(),
                                workflow: "v".into(),
                            },
                            done_until: (event == 1).then_some(now),
                        },
                    },
                    id: key_index.map(|index| key(KEYS[index])),
                    request: Digest::of([request]),
                    parts: parts.into_iter().map(part).collect(),
                    now,
                };
                let answer = both!(self, store => store.emit(emission.clone()));
                self.meet(&answer);
            }
            Op::Append {
                id,
                stale,
                wants,
                park,
                fence,
            } => {
                let append = self.append(id, stale, wants, park, fence).await;
                let answer = both!(self, store => store.append(append.clone()));
                self.meet(&answer.map(|answer| answer.status));
                self.last_append = Some(append);
            }
            Op::AppendAgain => {
                if let Some(append) = self.last_append.clone() {
                    let _ = both!(self, store => store.append(append.clone()));
                }
            }
            Op::Write {
                id,
                stream,
                call,
                number,
                fence,
            } => {
                let write = ChunkWrite {
                    run: run_id(IDS[id]),
                    fence: Fence(self.fence.0.saturating_sub(fence)),
                    write: StreamWrite {
                        stream: StreamName::new(STREAMS[stream]).unwrap(),
                        call: Some(call),
                        attempt: 1,
                        number,
                        chunk: now.to_string().into(),
                    },
                    now,
                };
                let answer = both!(self, store => store.write_chunk(write.clone()));
                if let Ok(Written::Done) = answer {
                    *self.met.entry("Chunk".into()).or_default() += 1;
                }
            }
            Op::Deliver {
                token,
                key: key_index,
                payload,
                checked,
            } => {
                let mut delivery = deliver(TOKENS[token], &payload.to_string(), now);
                delivery.cap = CAP;
                delivery.key = key_index.map(|index| key(KEYS[index]));
                delivery.hook = checked.map(|(id, hook)| HookRef {
                    run: run_id(IDS[id]),
                    hook,
                });
                let answer = both!(self, store => store.deliver(delivery.clone()));
                self.meet(&answer);
            }
            Op::Dispose { token: index } => {
                let token = token(TOKENS[index]);
                let answer = both!(self, store => store.dispose(&token, now));
                self.meet(&answer);
            }
            Op::Block { id, at } => {
                let blocked = Blocked {
                    reason: at.map_or(BlockReason::Trap, |(_, reason)| HELD[reason]),
                    message: "trapped".into(),
                    step: at.map(|(call, _)| HeldStep {
                        call,
                        name: "charge".into(),
                        attempt: 2,
                        key: "k".into(),
                    }),
                    detail: serde_json::json!({ "at": now }),
                };
                let (run, fence) = (run_id(IDS[id]), self.fence);
                let _ = both!(self, store => store.block(&run, fence, blocked.clone()));
            }
            Op::Settle { id, call, decision } => {
                let settlement = Settlement {
                    run: run_id(IDS[id]),
                    call,
                    reasons: &HELD[..2],
                    decision: match decision {
                        0 => Decision::Result(Body::new("1")),
                        1 => Decision::Failure(Body::new(r#"{"kind":"error","message":"m"}"#)),
                        _ => Decision::Retry,
                    },
                    now,
                };
                let answer = both!(self, store => store.settle_step(settlement.clone()));
                if let Ok(Settled::Done) = answer {
                    let run = both!(self, store => store.run(&settlement.run)).unwrap();
                    assert_eq!(run.unwrap().status, RunStatus::Running);
                }
                self.meet(&answer);
            }
            Op::Cancel { id, how } => {
                let ending = match how {
                    0 => Ending::Terminate,
                    1 => Ending::Ask {
                        reason: CancelReason::Timeout,
                        executing: false,
                    },
                    how => Ending::Ask {
                        reason: CancelReason::Requested,
                        executing: how == 2,
                    },
                };
                let run = run_id(IDS[id]);
                let answer = both!(self, store => store.cancel(&run, ending, now));
                self.meet(&answer.map(|(cancelled, _)| cancelled));
            }
            Op::Upgrade { id, stored } => {
                let code = Digest::of(if stored { "c" } else { "missing" });
                let run = run_id(IDS[id]);
                let _ = both!(self, store => store.upgrade(&run, code, now));
            }
            Op::Deploy {
                name,
                code,
                schedules,
            } => {
                let (name, code) = (format!("n{name}"), format!("code {code}"));
                let workflows = ["v", "w"].iter().take(usize::from(schedules % 3));
                let schedules: Vec<_> = workflows
                    .map(|workflow| NewSchedule {
                        workflow: (*workflow).into(),
                        spec: format!("{}", schedules / 3),
                    })
                    .collect();
                both!(self, store => store.deploy(&name, component(&code), schedules.clone(), now)).unwrap();
                let found = both!(self, store => store.component(Digest::of(&code)));
                assert_eq!(found.unwrap().map(|c| c.bytes), Some(code.as_bytes().into()));
            }
            Op::RemoveDeployment { name } => {
                let name = format!("n{name}");
                let removed = both!(self, store => store.remove_deployment(&name)).unwrap();
                let left = both!(self, store => store.deployments()).unwrap();
                assert!(left.iter().all(|deployment| deployment.name != name));
                let left = both!(self, store => store.schedules()).unwrap();
                assert!(left.iter().all(|schedule| schedule.name.deployment != name));
                self.meet(&format!("RemovedDeployment({removed})"));
            }
            Op::TakeOver => self.take_over().await,
            Op::Clock { by } => self.now = now.saturating_add_signed(by),
            Op::Reopen => {
                self.sqlite = None;
                self.sqlite = Some(self.file.open());
            }
        }
    }

    async fn policy(&self, policy: Policy, first: Option<&HookSpec>) -> OnConflict {
        match policy {
            Policy::Fail => OnConflict::Fail,
            Policy::Attach => OnConflict::Attach,
            Policy::Replace => OnConflict::Replace,
            Policy::Deliver {
                token: index,
                payload,
                always,
                checked,
            } => {
                let named = token(TOKENS[index]);
                // A token that the start does not claim makes it invalid: most have one that it does.
                let token = first
                    .filter(|_| payload > 0)
                    .map_or(named, |spec| spec.token.clone());
                let hook = self.model.hook(&token, self.now).await.unwrap();
                let hook = hook.filter(|_| checked);
                OnConflict::Deliver(StartDelivery {
                    payload: Body::new(payload.to_string()),
                    always,
                    checked: hook.map(|hook| HookRef {
                        run: hook.run_id,
                        hook: hook.hook,
                    }),
                    cap: CAP,
                    token,
                })
            }
        }
    }

    async fn append(
        &self,
        id: usize,
        stale: i8,
        wants: Vec<Want>,
        park: Option<Option<u64>>,
        fence: u64,
    ) -> Append {
        let run = run_id(IDS[id]);
        let entries = self
            .model
            .journal(&run, 0, usize::MAX)
            .await
            .unwrap()
            .unwrap_or_default();
        let mut hooks = self.model.hooks_of(&run, self.now).await.unwrap().len() as u32;
        let mut call = entries
            .iter()
            .filter_map(|entry| entry.event.made_by_call())
            .count() as u32;
        let loaded = self.model.load(&run, 0).await.unwrap();
        let mut written = loaded.map(|loaded| loaded.written).unwrap_or_default();
        let mut number = || {
            call += 1;
            call - 1
        };
        let mut used = HashSet::new();
        for (index, id) in (0..).zip(IDS) {
            if self.model.run(&run_id(id)).await.unwrap().is_some() {
                used.insert(index);
            }
        }
        let parts = wants.iter().flat_map(|want| match want {
            Want::Child { id, .. } => vec![*id],
            Want::Emit { parts } => parts.iter().flatten().map(|(id, _)| *id).collect(),
            _ => Vec::new(),
        });
        used.extend(parts);
        let mut new = Vec::new();
        for want in wants {
            new.push(match want {
                Want::Schedule => scheduled(number()),
                Want::Complete { call } => {
                    let event = Event::StepCompleted {
                        call,
                        attempt: 1,
                        resolved: false,
                    };
                    NewEntry::with_body(event, Body::new("{}"))
                }
                Want::Timer { due } => {
                    let event = Event::TimerSet {
                        call: number(),
                        due,
                        length: None,
                    };
                    NewEntry::event(event)
                }
                Want::Fire { call } => NewEntry::event(Event::TimerFired { call }),
                Want::Open {
                    token,
                    retention,
                    off,
                } => {
                    let mut spec = spec(TOKENS[token], RETENTIONS[retention]);
                    spec.metadata = Some(serde_json::json!({ "retention": retention }));
                    hooks += 1;
                    open_hook(number(), hooks - 1 + off, spec)
                }
                Want::Close { hook } => {
                    let call = Some(number());
                    NewEntry::event(Event::HookClosed { call, hook })
                }
                Want::Dispose { hook } => NewEntry::event(Event::hook_disposed(number(), hook)),
                Want::Take { hook, count } => NewEntry::event(Event::PayloadsTaken { hook, count }),
                Want::Child {
                    id,
                    token,
                    leave,
                    refused,
                } => {
                    let call = number();
                    let hooks = token.map(|token| spec(TOKENS[token], 0));
                    let child = new_run(IDS[id], hooks.into_iter().collect(), self.now);
                    let lineage = Lineage::Child {
                        parent: run.clone(),
                        call,
                    };
                    let started = Started {
                        lineage: Some(lineage),
                        ..child.started
                    };
                    let admission = ChildAdmission {
                        run: child.id,
                        started,
                    };
                    let admission = match refused {
                        true => Err(Failure::new(FailureKind::UnknownWorkflow, "no such workflow")),
                        false => Ok(Box::new(admission)),
                    };
                    NewEntry::StartChild(Box::new(ChildStart {
                        call,
                        workflow: "w".into(),
                        input: child.input,
                        input_digest: Digest::of("w"),
                        options: ChildOptions {
                            on_parent_end: match leave {
                                true => ParentEnd::Leave,
                                false => ParentEnd::Cancel,
                            },
                            ..ChildOptions::default()
                        },
                        admission: Some(admission),
                    }))
                }
                Want::Tag { name, value } => NewEntry::event(Event::Tagged {
                    call: number(),
                    name: format!("t{name}"),
                    value: format!("v{value}"),
                }),
                Want::Write { stream, off } => {
                    let stream = StreamName::new(STREAMS[stream]).unwrap();
                    let next = written.entry(stream.clone()).or_default();
                    *next += 1;
                    NewEntry::Write(StreamWrite {
                        stream,
                        call: None,
                        attempt: 0,
                        number: (*next - 1).saturating_add_signed(i64::from(off)),
                        chunk: self.now.to_string().into(),
                    })
                }
                Want::Emit { parts } => {
                    let call = number();
                    let part = |part: Option<(usize, usize)>| EmitPart {
                        workflow: "w".into(),
                        start: match part {
                            Some((id, token)) => {
                                let run = new_run(IDS[id], vec![spec(TOKENS[token], 0)], self.now);
                                Ok(EmitAdmission {
                                    run: run.id,
                                    started: run.started,
                                    input: run.input,
                                })
                            }
                            None => Err("does not fit".into()),
                        },
                    };
                    NewEntry::Emit(Box::new(NewEmit {
                        call,
                        name: "e0".into(),
                        payload: Body::new("1"),
                        payload_digest: Digest::of("1"),
                        parts: Some(Ok(parts.into_iter().map(part).collect())),
                    }))
                }
                Want::End => NewEntry::with_body(Event::Completed, Body::new("1")),
                // An id that was used before is never asked for: the host makes it.
                Want::Continue { id, .. } if used.contains(&id) => NewEntry::event(Event::Failed),
                Want::Continue { id, carries_cancel } => {
                    used.insert(id);
                    let next = new_run(IDS[id], Vec::new(), self.now);
                    let lineage = Some(Lineage::Continued { from: run.clone() });
                    NewEntry::Continue(Box::new(Continuation {
                        input: next.input,
                        admission: ChildAdmission {
                            run: next.id,
                            started: Started {
                                lineage,
                                ..next.started
                            },
                        },
                        carries_cancel,
                    }))
                }
                Want::Illegal => NewEntry::event(Event::PayloadReceived { hook: 0 }),
            });
        }
        let last = (entries.len() as u64).saturating_sub(1);
        Append {
            run,
            fence: Fence(self.fence.0.saturating_sub(fence)),
            seen: last.saturating_add_signed(-i64::from(stale)),
            entries: new,
            park: park.map(|wake| Park {
                wake_at: wake.map(|after| self.now.saturating_add(after)),
            }),
            logs: self.lines(last),
            now: self.now,
        }
    }

    /// Some lines, of which some are there already.
    fn lines(&self, last: u64) -> LogBatch {
        let now = self.now;
        let line = |call: Option<u32>, number| LogLine {
            at: now,
            level: LogLevel::ALL[now as usize % 4],
            call,
            attempt: u32::from(call.is_some()),
            seq: last,
            number,
            text: format!("line of {now}").into(),
        };
        match now % 4 {
            0 => LogBatch::default(),
            1 => LogBatch {
                lines: vec![line(None, now % 3), line(Some(0), now % 5)],
                dropped: 0,
                mark: Some((last, now % 3)),
            },
            2 => LogBatch {
                lines: vec![line(Some(1), 0)],
                dropped: 2,
                mark: None,
            },
            _ => LogBatch {
                lines: Vec::new(),
                dropped: 1,
                mark: Some((last, 7)),
            },
        }
    }

    /// Everything that can be looked at is the same in both.
    async fn compare(&mut self) {
        let now = self.now;
        for id in IDS.map(run_id) {
            let run = both!(self, store => store.run(&id)).unwrap();
            if let Some(run) = run {
                self.meet(&run.status);
                if run.parent.is_some() {
                    *self.met.entry("Child".into()).or_default() += 1;
                }
                if let Some(waits) = run.waits {
                    self.meet(&waits);
                    if let Waits::Predecessors { runs, .. } = waits {
                        assert!(!runs.is_empty(), "{id} waits for nobody");
                        for other in runs {
                            let other = self.model.run(&other).await.unwrap().unwrap();
                            assert!(!other.status.is_terminal(), "{id} waits for {other:?}");
                        }
                    }
                }
                let due = both!(self, store => store.due(now, 100, &[])).unwrap();
                let due = due.iter().any(|due| due.run == id);
                if due && run.status == RunStatus::Suspended && run.wake_at.is_none() {
                    assert!(run.concurrency.is_some());
                    *self.met.entry("Woken".into()).or_default() += 1;
                }
            }
            both!(self, store => store.hooks_of(&id, now)).unwrap();
            both!(self, store => store.streams_of(&id)).unwrap();
            both!(self, store => store.load(&id, 0)).unwrap();
            for (from, limit, level) in [(0, 100, LogLevel::Debug), (1, 2, LogLevel::Warn)] {
                let filter = LogFilter { from, limit, level };
                let page = both!(self, store => store.logs(&id, filter)).unwrap();
                if page.is_some_and(|page| !page.lines.is_empty()) {
                    *self.met.entry("Line".into()).or_default() += 1;
                }
            }
            for stream in STREAMS {
                let stream = StreamName::new(stream).unwrap();
                both!(self, store => store.chunks(&id, &stream, 0, 100)).unwrap();
                both!(self, store => store.chunks(&id, &stream, 1, 2)).unwrap();
            }
        }
        for token in TOKENS.map(token) {
            let hook = both!(self, store => store.hook(&token, now)).unwrap();
            if let Some(hook) = hook {
                self.meet(&hook.state);
            }
            for (from, limit) in [(0, 100), (1, 2)] {
                both!(self, store => store.payloads(&token, from, limit, now)).unwrap();
            }
        }
        for limit in [0, 2, 100] {
            let due = both!(self, store => store.due(now, limit, &[])).unwrap();
            let of_group = due.iter().any(|due| due.concurrency == Some(limited(1)));
            let others = both!(self, store => store.due(now, limit, &[limited(1).group])).unwrap();
            if of_group {
                assert!(!others.iter().any(|due| due.concurrency == Some(limited(1))));
                *self.met.entry("Limited".into()).or_default() += 1;
            }
        }
        both!(self, store => store.next_due(now)).unwrap();
        both!(self, store => store.deployments()).unwrap();
        both!(self, store => store.schedules()).unwrap();
        for status in [None, Some(RunStatus::Suspended), Some(RunStatus::Completed)] {
            for after in [None, Some(run_id("r1"))] {
                let workflow = status.is_some().then(|| "w0".to_owned());
                let filter = RunFilter {
                    status,
                    workflow,
                    after: after.clone(),
                    limit: 3,
                    ..RunFilter::default()
                };
                let _ = both!(self, store => store.runs(filter.clone()));
                for parent in ["r0", "r1", "r2", "nobody"] {
                    let filter = RunFilter {
                        parent: Some(run_id(parent)),
                        ..filter.clone()
                    };
                    let _ = both!(self, store => store.runs(filter.clone()));
                }
                for tags in [&[(0, 0)][..], &[(0, 1), (1, 1)]] {
                    let filter = RunFilter {
                        tags: tags_of(tags),
                        ..filter.clone()
                    };
                    let _ = both!(self, store => store.runs(filter.clone()));
                }
                let filter = RunFilter {
                    created_after: Some(1_000_100),
                    created_before: Some(now),
                    ..filter
                };
                let _ = both!(self, store => store.runs(filter.clone()));
            }
        }
    }

    /// Journals, from every position, and what must be true of them.
    async fn check_journals(&mut self) {
        let mut held = HashMap::new();
        for id in IDS.map(run_id) {
            both!(self, store => store.journal(&id, 1, 2)).unwrap();
            let Some(whole) = both!(self, store => store.load(&id, 0)).unwrap() else {
                continue;
            };
            let mut folded = None;
            for (seq, entry) in (0..).zip(&whole.entries) {
                assert_eq!(entry.seq, seq);
                folded = Some(RunStatus::next(folded, &entry.event).unwrap());
            }
            assert!(whole.entries.is_sorted_by_key(|entry| entry.at));
            let marked = [RunStatus::Suspended, RunStatus::Blocked].contains(&whole.run.status);
            assert!(marked || Some(whole.run.status) == folded);
            assert_eq!(
                whole.run.blocked.is_some(),
                whole.run.status == RunStatus::Blocked
            );
            for from in 1..whole.entries.len() as u64 + 2 {
                both!(self, store => store.load(&id, from)).unwrap();
            }
            for hook in both!(self, store => store.hooks_of(&id, self.now)).unwrap() {
                // The run that goes on has the tokens.
                let moved = whole.run.status == RunStatus::Continued;
                if hook.state != HookState::Freed && !moved {
                    *held.entry(hook.token).or_insert(0) += 1;
                }
            }
        }
        assert!(held.values().all(|owners| *owners == 1), "{held:?}");
    }
}

fn agree(ops: Vec<Op>) -> HashMap<String, usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut pair = Pair::new().await;
        let mut latest = pair.now;
        for op in ops {
            pair.perform(op).await;
            pair.compare().await;
            latest = latest.max(pair.now);
        }
        // A retention that was over stays over: who owns what is judged at the latest time.
        pair.now = latest;
        pair.check_journals().await;
        pair.met
    })
}

/// Few cases, as each waits for the disk; more with `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = std::env::var_os("PROPTEST_CASES").map_or(64, |_| asked.cases);
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..asked
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_model_and_sqlite_agree(ops in prop::collection::vec(op(), 1..60)) {
        agree(ops);
    }
}

/// What the random operations reach: without this they might all be refused.
#[test]
fn random_operations_reach_every_state() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let ops = prop::collection::vec(op(), 100);
    let mut met = HashMap::new();
    for _ in 0..80 {
        for (what, count) in agree(ops.new_tree(&mut runner).unwrap().current()) {
            *met.entry(what).or_insert(0) += count;
        }
    }
    println!("{met:?}");
    for state in ["Pending", "Running", "Suspended", "Blocked", "Completed"] {
        assert!(met.contains_key(state), "no run was {state}: {met:?}");
    }
    assert!(met.contains_key("Line"), "no line was kept: {met:?}");
    assert!(met.contains_key("Chunk"), "no chunk was written: {met:?}");
    assert!(met.contains_key("Fork"), "no run was forked: {met:?}");
    assert!(met.contains_key("ForkedHook"), "no fork claimed a token: {met:?}");
    assert!(met.contains_key("Child"), "no child was started: {met:?}");
    assert!(met.contains_key("Cancelled"), "no run was cancelled: {met:?}");
    assert!(met.contains_key("Limited"), "no run of a group was due: {met:?}");
    assert!(met.contains_key("Woken"), "no run waited for its turn: {met:?}");
    assert!(met.contains_key("StartAt"), "no run waited to begin: {met:?}");
    assert!(
        met.contains_key("Predecessors"),
        "no run waited for others: {met:?}"
    );
    assert!(
        met.contains_key("Continued"),
        "no run went on as another: {met:?}"
    );
    for state in ["Open", "Closed", "Retained", "Freed"] {
        assert!(met.contains_key(state), "no hook was {state}: {met:?}");
    }
    for outcome in [
        "Started",
        "Existing",
        "HookConflict",
        "IdConflict",
        "KeyConflict",
        "Accepted",
        "Ended",
        "Moved",
        "Done",
        "NotBlocked",
        "OtherReason",
        "OtherCall",
        "Full",
        "Attached",
        "Delivered",
        "HookEnded",
        "HookFull",
        "Requested",
        "Over",
    ] {
        assert!(
            met.contains_key(&format!("Ok({outcome}")),
            "no {outcome}: {met:?}"
        );
    }
}
