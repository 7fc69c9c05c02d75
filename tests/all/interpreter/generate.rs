//! Random programs for `tests/programs/src/interpreter.rs`.

use programs::interpreter::{End, Op};
use proptest::collection::vec;
use proptest::prelude::*;

/// What may decide how a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing that comes first: it has no `Select`, and no limit that is ever reached.
    RaceFree,
    /// What comes first, where all that can come first comes from outside, one after another.
    Scripted,
    /// Anything.
    Wild,
}

const YEAR_MS: u64 = 366 * 24 * 60 * 60 * 1_000;
/// Of scripted programs, each of another power of 8.
const MAX_SLEEPS: u32 = 12;

pub fn program(kind: Kind) -> impl Strategy<Value = Vec<Op>> {
    vec(op(kind), 1..5).prop_map(move |mut program| {
        Names::of(kind).give(&mut program);
        program
    })
}

fn op(kind: Kind) -> impl Strategy<Value = Op> {
    leaf().prop_recursive(3, 12, 3, move |inner| {
        let body = vec(inner, 1..4);
        let bodies = vec(body.clone(), 1..4);
        let by_handle = any::<bool>();
        let everywhere = prop_oneof![
            bodies.clone().prop_map(Op::Join),
            (1..3usize, bodies.clone()).prop_map(|(at_once, parts)| Op::Bounded { at_once, parts }),
            (body.clone(), by_handle).prop_map(|(program, by_handle)| Op::Child { program, by_handle }),
            (1..3u64, body.clone()).prop_map(|(times, body)| Op::Repeat { times, body }),
            body.clone().prop_map(Op::Catch),
            body.prop_map(|body| Op::Timeout { ms: 0, body }),
        ];
        match kind {
            Kind::RaceFree => everywhere.boxed(),
            Kind::Scripted => prop_oneof![2 => everywhere, 1 => bodies.prop_map(Op::Select)].boxed(),
            Kind::Wild => prop_oneof![
                3 => everywhere,
                1 => bodies.clone().prop_map(Op::Select),
                1 => bodies.prop_map(Op::TryJoin),
            ]
            .boxed(),
        }
    })
}

fn leaf() -> impl Strategy<Value = Op> {
    let end = prop_oneof![Just(End::Leave), Just(End::Close), Just(End::Dispose)];
    let busy = || prop_oneof![4 => Just(0), 1 => 1..3u32];
    let step = (0..100u64, busy(), prop::bool::weighted(0.1), 0..3u64);
    prop_oneof![
        4 => step.prop_map(|(n, busy, fatal, ms)| Op::Step { n, busy, fatal, ms }),
        2 => (0..100u64, busy()).prop_map(|(n, busy)| Op::Closure { n, busy }),
        2 => Just(Op::Sleep { ms: 0 }),
        3 => (1..4u32, end).prop_map(|(take, end)| Op::Hook { token: String::new(), take, end }),
        1 => (0..100u64).prop_map(|n| Op::Emit { n }),
        1 => (0..100u64).prop_map(|value| Op::Tag { name: String::new(), value }),
        1 => (1..4u64).prop_map(|chunks| Op::Write { stream: String::new(), chunks }),
        1 => (0..100u64).prop_map(|n| Op::Log { n }),
        1 => Just(Op::Random),
        1 => Just(Op::Now),
        1 => (0..40u64).prop_map(|n| Op::Map { n }),
        1 => prop::num::f64::NORMAL.prop_map(|x| Op::Float { x }),
        1 => Just(Op::Address),
    ]
}

/// Gives what needs a name or a length one of its own, wherever it came to stand.
struct Names {
    kind: Kind,
    given: u64,
    sleeps: u32,
}

impl Names {
    fn of(kind: Kind) -> Self {
        Self {
            kind,
            given: 0,
            sleeps: 0,
        }
    }

    fn give(&mut self, ops: &mut [Op]) {
        for op in ops {
            self.given += 1;
            let given = self.given;
            match op {
                Op::Hook { token, .. } => *token = format!("h{given}"),
                Op::Tag { name, .. } => *name = format!("t{given}"),
                Op::Write { stream, .. } => *stream = format!("s{given}"),
                Op::Sleep { ms } => match self.length() {
                    Some(length) => *ms = length,
                    None => *op = hook(format!("h{given}")),
                },
                Op::Timeout { ms, body } => {
                    *ms = match self.kind {
                        Kind::RaceFree => YEAR_MS,
                        Kind::Wild | Kind::Scripted => self.length().unwrap_or(YEAR_MS),
                    };
                    self.give(body);
                }
                Op::Select(bodies) => {
                    if self.kind == Kind::Scripted {
                        for body in &mut *bodies {
                            body.insert(0, self.wait());
                        }
                    }
                    self.give_all(bodies);
                }
                Op::Join(bodies) | Op::TryJoin(bodies) | Op::Bounded { parts: bodies, .. } => {
                    self.give_all(bodies);
                }
                Op::Child { program: body, .. } | Op::Repeat { body, .. } | Op::Catch(body) => {
                    self.give(body);
                }
                Op::Step { .. }
                | Op::Closure { .. }
                | Op::Emit { .. }
                | Op::Log { .. }
                | Op::Random
                | Op::Now
                | Op::Map { .. }
                | Op::Float { .. }
                | Op::Address => {}
            }
        }
    }

    fn give_all(&mut self, bodies: &mut [Vec<Op>]) {
        for body in bodies {
            self.give(body);
        }
    }

    /// How long to sleep. In scripted programs no sum of others, so that no two sleeps end at one time; `None` where
    /// no such length is left.
    fn length(&mut self) -> Option<u64> {
        self.sleeps += 1;
        match self.kind {
            Kind::RaceFree | Kind::Wild => Some(self.given * 7 % 40),
            Kind::Scripted => (self.sleeps <= MAX_SLEEPS).then(|| 8_u64.pow(self.sleeps - 1)),
        }
    }

    /// What a branch of a scripted program begins with: only what comes from outside decides which is first.
    fn wait(&mut self) -> Op {
        self.given += 1;
        match self.given % 2 {
            0 => Op::Sleep { ms: 0 },
            _ => hook(String::new()),
        }
    }
}

fn hook(token: String) -> Op {
    Op::Hook {
        token,
        take: 1,
        end: End::Leave,
    }
}

/// The tokens that a program may open, each with how many payloads it takes there.
pub fn tokens(program: &[Op]) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    collect(program, "", &mut found);
    found
}

fn collect(program: &[Op], path: &str, found: &mut Vec<(String, u32)>) {
    for op in program {
        match op {
            Op::Hook { token, take, .. } => found.push((format!("{token}{path}"), *take)),
            Op::Repeat { times, body } => {
                for n in 0..*times {
                    collect(body, &format!("{path}.{n}"), found);
                }
            }
            Op::Join(bodies)
            | Op::TryJoin(bodies)
            | Op::Select(bodies)
            | Op::Bounded { parts: bodies, .. } => {
                for body in bodies {
                    collect(body, path, found);
                }
            }
            Op::Child { program: body, .. } | Op::Timeout { body, .. } | Op::Catch(body) => {
                collect(body, path, found);
            }
            _ => {}
        }
    }
}
