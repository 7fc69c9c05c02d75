//! F02: random programs, killed at random points, and their replays.
//!
//! The gate runs 100 programs; `ONEMARK_PROGRAMS=2000` runs so many. What fails is told with its program, what was done
//! to its host, and a seed: `PROPTEST_RNG_SEED` makes the same programs again.

mod drive;
mod generate;
mod invariants;

use std::sync::atomic::{AtomicU32, Ordering};

use drive::{Disturbance, Drive, disturbance};
use generate::{Kind, program};
use onemark::sandbox::Sandbox;
use onemark_tests::sandbox_with;
use programs::interpreter::Op;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

/// In tenths, how many of all programs are of each kind.
const RACE_FREE: u32 = 4;
const SCRIPTED: u32 = 3;
const WILD: u32 = 3;

/// That all hosts of a test have room for.
const INSTANCES: u32 = 60;

fn programs_in_tenths(tenths: u32) -> u32 {
    let all =
        std::env::var("ONEMARK_PROGRAMS").map_or(100, |text| text.parse().expect("a number of programs"));
    (all * tenths / 10).max(1)
}

/// Runs random programs of a kind, each on hosts of its own.
fn on_random_programs<F>(kind: Kind, tenths: u32, check: impl Fn(Sandbox, Vec<Op>, Disturbance) -> F)
where
    F: Future<Output = ()>,
{
    let mut config = ProptestConfig {
        cases: programs_in_tenths(tenths),
        failure_persistence: None,
        // In milliseconds: each is a few hosts, and may be stuck.
        max_shrink_time: 30_000,
        ..ProptestConfig::default()
    };
    if let RngSeed::Random = config.rng_seed {
        config.rng_seed = RngSeed::Fixed(onemark::clock::random_u64());
    }
    let seed = config.rng_seed;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let sandbox = sandbox_with(&[], INSTANCES);
    let cases = (program(kind), disturbance(kind));
    let outcome = TestRunner::new(config).run(&cases, |(program, disturbance)| {
        runtime.block_on(check(sandbox.clone(), program, disturbance));
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{kind:?} programs, PROPTEST_RNG_SEED={seed}: {error}");
    }
}

/// Nothing in them depends on what comes first: killed or not, they end the same.
#[test]
fn f02_race_free_programs_end_as_their_unkilled_twins() {
    on_random_programs(
        Kind::RaceFree,
        RACE_FREE,
        |sandbox, program, disturbance| async move {
            let twin = Drive::undisturbed(&sandbox, Kind::RaceFree, &program, 1).await;
            let twin = twin.to_its_end().await;
            let killed = Drive::disturbed(&sandbox, Kind::RaceFree, &program, &disturbance).await;
            let killed = killed.to_its_end().await;
            assert_eq!(killed.ending().await, twin.ending().await);
            invariants::hold(&twin).await;
            invariants::hold(&killed).await;
            twin.leave().await;
            killed.leave().await;
        },
    );
}

/// What comes first is what came first from outside, where one thing comes after another, in the order of a script.
#[test]
fn f02_scripted_programs_end_as_their_unkilled_twins() {
    let undecided = AtomicU32::new(0);
    on_random_programs(Kind::Scripted, SCRIPTED, |sandbox, program, disturbance| {
        let undecided = &undecided;
        async move {
            let twin = Drive::undisturbed(&sandbox, Kind::Scripted, &program, disturbance.script()).await;
            let twin = twin.to_its_end().await;
            let killed = Drive::disturbed(&sandbox, Kind::Scripted, &program, &disturbance).await;
            let killed = killed.to_its_end().await;
            if twin.is_decided() && killed.is_decided() {
                assert_eq!(killed.ending().await, twin.ending().await);
            } else {
                undecided.fetch_add(1, Ordering::Relaxed);
            }
            invariants::hold(&twin).await;
            invariants::hold(&killed).await;
            twin.leave().await;
            killed.leave().await;
        }
    });
    println!("{} were not decided by their script", undecided.into_inner());
}

/// Whatever came first came first in every replay.
#[test]
fn f02_any_program_agrees_with_its_replay() {
    on_random_programs(Kind::Wild, WILD, |sandbox, program, disturbance| async move {
        let killed = Drive::disturbed(&sandbox, Kind::Wild, &program, &disturbance).await;
        let killed = killed.to_its_end().await;
        invariants::hold(&killed).await;
        killed.leave().await;
    });
}
