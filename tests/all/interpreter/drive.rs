//! Carries a program to its end, whatever is done to its host on the way.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use onemark::clock::{Clock as _, ManualClock};
use onemark::engine::{DeliverRequest, EngineConfig, Error, StartRequest};
use onemark::ids::{IdempotencyKey, RunId};
use onemark::journal::{Event, RunStatus, Timestamp};
use onemark::sandbox::Sandbox;
use onemark::store::{HookState, RunFilter, RunInfo};
use onemark_tests::{Killer, TestHost, json_of, request, token};
use programs::interpreter::Op;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::generate::{Kind, tokens};

/// Longer than any program should take; one that gets here is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is done to a host while its program is at work.
#[derive(Clone, Debug)]
pub struct Disturbance {
    idle_ms: u64,
    max_resident: usize,
    kills: Vec<Kill>,
    /// Decides when payloads are delivered and when the clock moves.
    moves: u64,
    /// The run is asked to cancel at that move.
    cancel: Option<u32>,
}

impl Disturbance {
    /// Decides what comes next from outside.
    pub fn moves(&self) -> u64 {
        self.moves
    }
}

/// Counted from the start of the host.
#[derive(Clone, Copy, Debug)]
enum Kill {
    /// Right after that commit, before anybody is answered.
    AtCommit(u64),
    /// Between two moves, wherever what is at work has come.
    AtMove(u32),
}

pub fn disturbance(kind: Kind) -> impl Strategy<Value = Disturbance> {
    let kill = prop_oneof![
        2 => (1..12u64).prop_map(Kill::AtCommit),
        1 => (0..40u32).prop_map(Kill::AtMove),
    ];
    let idle = prop_oneof![Just(0), Just(3_600_000)];
    let kills = prop::collection::vec(kill, 1..5);
    let cancel = match kind {
        Kind::Wild => prop::option::weighted(0.3, 0..40u32).boxed(),
        Kind::RaceFree | Kind::Scripted => Just(None).boxed(),
    };
    (idle, 1..4usize, kills, any::<u64>(), cancel).prop_map(
        |(idle_ms, max_resident, kills, moves, cancel)| Disturbance {
            idle_ms,
            max_resident,
            kills,
            moves,
            cancel,
        },
    )
}

/// How a program ended: what does not depend on when things happened.
#[derive(Debug, PartialEq)]
pub struct Ending {
    status: RunStatus,
    /// Without what it saw beside it.
    outcome: Value,
    tags: String,
    streams: BTreeMap<String, Vec<Value>>,
    /// All runs by workflow and status.
    runs: BTreeMap<String, u32>,
    /// Of a scripted program, what came from outside.
    script: Vec<Outside>,
}

/// Something that comes from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Outside {
    Payload { token: String, n: u32 },
    Time(Timestamp),
}

pub struct Drive {
    pub host: TestHost,
    killer: Option<Arc<Killer>>,
    kills: std::vec::IntoIter<Kill>,
    /// Moves until the host is killed.
    moves_left: Option<u32>,
    cancel: Option<u32>,
    killed: u32,
    state: State,
}

/// What whoever is outside knows, which no kill of the host makes it forget.
struct State {
    kind: Kind,
    run: RunId,
    start: StartRequest,
    started: bool,
    tokens: Vec<(String, u32)>,
    /// Payloads that were acknowledged, by token.
    delivered: HashMap<String, u32>,
    script: Vec<Outside>,
    /// Begun, and not known to be done: asked for again before anything else.
    begun: Option<Outside>,
    /// Two sleeps ended at one time, so that the script does not say which came first.
    tied: bool,
    random: Random,
}

/// Why a host was left.
enum Left {
    Done,
    Killed,
}

impl Drive {
    /// On a host in memory that nobody disturbs.
    pub async fn undisturbed(sandbox: &Sandbox, kind: Kind, program: &[Op], moves: u64) -> Self {
        Self {
            host: TestHost::within(sandbox.clone()).await,
            killer: None,
            kills: Vec::new().into_iter(),
            moves_left: None,
            cancel: None,
            killed: 0,
            state: State::new(kind, program, moves),
        }
    }

    pub async fn disturbed(sandbox: &Sandbox, kind: Kind, program: &[Op], disturbance: &Disturbance) -> Self {
        let config = EngineConfig {
            idle: Duration::from_millis(disturbance.idle_ms),
            max_resident: disturbance.max_resident,
            ..EngineConfig::default()
        };
        let (host, killer) = TestHost::with_killer(sandbox.clone(), config).await;
        Self {
            host,
            killer: Some(killer),
            kills: disturbance.kills.clone().into_iter(),
            moves_left: None,
            cancel: disturbance.cancel,
            killed: 0,
            state: State::new(kind, program, disturbance.moves),
        }
    }

    /// Until every run has ended.
    pub async fn run_to_end(mut self) -> Self {
        let driven = async {
            loop {
                self.next_kill();
                match self.until_killed().await {
                    Left::Done => return self,
                    Left::Killed => {
                        self.host = self.host.restart().await;
                        self.killed += 1;
                    }
                }
            }
        };
        tokio::time::timeout(PATIENCE, driven)
            .await
            .expect("the program gets to its end")
    }

    fn next_kill(&mut self) {
        self.moves_left = None;
        match (self.kills.next(), &self.killer) {
            (Some(Kill::AtCommit(commit)), Some(killer)) => killer.arm(commit),
            (Some(Kill::AtMove(moves)), _) => self.moves_left = Some(moves),
            _ => {}
        }
    }

    async fn until_killed(&mut self) -> Left {
        let killer = self.killer.clone();
        let killed = async {
            match &killer {
                Some(killer) => killer.struck().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = killed => Left::Killed,
            left = self.go_on() => left,
        }
    }

    async fn go_on(&mut self) -> Left {
        if !self.state.started {
            self.host
                .engine
                .start(self.state.start.clone())
                .await
                .expect("the run starts");
            self.state.started = true;
        }
        loop {
            self.finish().await;
            let runs = all_runs(&self.host).await;
            if let Some(run) = runs.iter().find(|run| run.blocked.is_some()) {
                panic!("run {} is blocked: {:?}", run.id, run.blocked);
            }
            if runs.iter().all(|run| run.status.is_terminal()) {
                return Left::Done;
            }
            match &mut self.moves_left {
                Some(0) => return Left::Killed,
                Some(moves) => *moves -= 1,
                None => {}
            }
            if let Some(moves) = &mut self.cancel {
                match moves.checked_sub(1) {
                    Some(left) => *moves = left,
                    None => {
                        // The request is as often repeated as it was cut off.
                        match self.host.engine.cancel(&self.state.run).await {
                            Ok(_) | Err(Error::RunEnded { .. }) => self.cancel = None,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }
            match self.state.kind {
                Kind::RaceFree | Kind::Wild => self.move_at_random().await,
                Kind::Scripted => self.move_by_script(&runs).await,
            }
            tokio::task::yield_now().await;
        }
    }

    /// Something from outside, whatever the runs are at.
    async fn move_at_random(&mut self) {
        match self.state.random.below(4) {
            0 => {
                let length = 1 + self.state.random.below(4);
                self.host.advance(Duration::from_millis(length));
            }
            1 | 2 if !self.state.tokens.is_empty() => {
                let chosen = self.state.random.below(self.state.tokens.len() as u64);
                let (token, take) = self.state.tokens[chosen as usize].clone();
                let n = self.state.delivered.get(&token).copied().unwrap_or(0);
                if n < take {
                    self.state.begun = Some(Outside::Payload { token, n });
                    self.finish().await;
                }
            }
            _ => {}
        }
    }

    /// Something from outside, once all runs have done what they can without.
    async fn move_by_script(&mut self, runs: &[RunInfo]) {
        let now = self.clock().now();
        let live = || runs.iter().filter(|run| !run.status.is_terminal());
        let rests =
            |run: &RunInfo| run.status == RunStatus::Suspended && run.wake_at.is_none_or(|at| at > now);
        if !live().all(rests) {
            return;
        }
        let mut possible = Vec::new();
        for (name, take) in &self.state.tokens {
            let n = self.state.delivered.get(name).copied().unwrap_or(0);
            let hook = self.host.engine.hook(&token(name)).await;
            if n < *take && hook.is_ok_and(|hook| hook.state == HookState::Open) {
                possible.push(Outside::Payload {
                    token: name.clone(),
                    n,
                });
            }
        }
        if let Some(due) = live().filter_map(|run| run.wake_at).min() {
            possible.push(Outside::Time(due));
            self.state.tied |= sleepers(&self.host, live(), due).await > 1;
        }
        assert!(!possible.is_empty(), "nothing can go on: {runs:?}");
        let chosen = self.state.random.below(possible.len() as u64);
        let chosen = possible.swap_remove(chosen as usize);
        self.state.script.push(chosen.clone());
        self.state.begun = Some(chosen);
        self.finish().await;
    }

    /// Does what was begun, also when nobody knows whether it was done before a kill.
    async fn finish(&mut self) {
        match self.state.begun.clone() {
            None => {}
            Some(Outside::Time(due)) => self.clock().set(due),
            Some(Outside::Payload { token, n }) => self.deliver(&token, n).await,
        }
        self.state.begun = None;
    }

    fn clock(&self) -> &ManualClock {
        self.host.clock.as_ref().expect("made with a clock")
    }

    /// The n-th payload of this token, if a run takes it now or took it before.
    async fn deliver(&mut self, name: &str, n: u32) {
        let key = IdempotencyKey::new(format!("{name}:{n}")).expect("a good key");
        let request = DeliverRequest {
            token: token(name),
            payload: payload(name, n).to_string().into(),
            key: Some(key),
        };
        match self.host.engine.deliver(request).await {
            Ok(_) => {
                self.state.delivered.insert(name.to_owned(), n + 1);
            }
            Err(Error::HookNotFound(_) | Error::HookEnded { .. }) if self.state.kind != Kind::Scripted => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Leaves nothing at work: the next host may have its place.
    pub async fn leave(&self) {
        self.host.engine.shutdown().await;
    }

    /// How often its host was killed.
    pub fn killed(&self) -> u32 {
        self.killed
    }

    /// How many payloads were acknowledged, by token.
    pub fn delivered(&self) -> &HashMap<String, u32> {
        &self.state.delivered
    }

    /// Whether the script said what came first.
    pub fn is_decided(&self) -> bool {
        !self.state.tied
    }

    pub async fn ending(&self) -> Ending {
        let run = &self.state.run;
        let result = self.host.ended(run).await;
        let outcome = match &result.output {
            Some(output) => json_of(Some(output))["value"].take(),
            None => json_of(result.error.as_deref()),
        };
        let mut streams = BTreeMap::new();
        for stream in self.host.engine.streams_of(run).await.expect("the run is there") {
            let chunks = self.host.engine.chunks(run, &stream.name, 0, usize::MAX).await;
            let chunks = chunks.expect("the stream is there").into_iter();
            let chunks = chunks.map(|chunk| serde_json::from_str(&chunk.chunk).expect("chunks are JSON"));
            streams.insert(stream.name.to_string(), chunks.collect());
        }
        let mut runs = BTreeMap::new();
        for run in all_runs(&self.host).await {
            *runs
                .entry(format!("{} {}", run.workflow, run.status))
                .or_insert(0) += 1;
        }
        let tags = self.host.engine.run(run).await.expect("the run is there").tags;
        Ending {
            status: result.status,
            outcome,
            tags: json!(tags).to_string(),
            streams,
            runs,
            script: self.state.script.clone(),
        }
    }
}

impl State {
    fn new(kind: Kind, program: &[Op], moves: u64) -> Self {
        let run = RunId::new("program").expect("a good id");
        let input = json!({ "program": program, "path": "" });
        Self {
            kind,
            start: StartRequest {
                id: Some(run.clone()),
                ..request("interprets", input, &[])
            },
            run,
            started: false,
            tokens: tokens(program),
            delivered: HashMap::new(),
            script: Vec::new(),
            begun: None,
            tied: false,
            random: Random(moves),
        }
    }
}

pub fn payload(token: &str, n: u32) -> Value {
    json!([token, n])
}

pub async fn all_runs(host: &TestHost) -> Vec<RunInfo> {
    let all = RunFilter {
        limit: usize::MAX,
        ..RunFilter::default()
    };
    host.engine.runs(all).await.expect("runs can be listed")
}

/// How many sleeps of these runs end then.
async fn sleepers(host: &TestHost, runs: impl Iterator<Item = &RunInfo>, then: Timestamp) -> usize {
    let mut sleepers = 0;
    for run in runs {
        let mut due = HashMap::new();
        for entry in host.journal(&run.id).await {
            match entry.event {
                Event::TimerSet { call, due: at, .. } => {
                    due.insert(call, at);
                }
                Event::TimerFired { call } | Event::Abandoned { call } => {
                    due.remove(&call);
                }
                _ => {}
            }
        }
        sleepers += due.values().filter(|at| **at == then).count();
    }
    sleepers
}

/// A stream of numbers that follows from the first.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
