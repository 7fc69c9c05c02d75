//! F02: random programs, killed at random points, and their replays.
//!
//! The gate runs 100 programs, the same each time; `ONEMARK_PROGRAMS=2000` draws so many anew. What fails is told with
//! its program, what was done to its host, and a seed: `PROPTEST_RNG_SEED` makes the same programs again.

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

/// Of those that are the same each time.
const SEED: u64 = 1;

/// How many programs are asked for anew.
fn asked() -> Option<u32> {
    let asked = std::env::var("ONEMARK_PROGRAMS").ok();
    asked.map(|text| text.parse().expect("a number of programs"))
}

fn programs_in_tenths(tenths: u32) -> u32 {
    (asked().unwrap_or(100) * tenths / 10).max(1)
}

/// Runs random programs of a kind, each on hosts of its own. `check` says how often one was killed.
fn on_random_programs(kind: Kind, tenths: u32, check: impl AsyncFn(Sandbox, Vec<Op>, Disturbance) -> u32) {
    let mut config = ProptestConfig {
        cases: programs_in_tenths(tenths),
        failure_persistence: None,
        // In milliseconds: each is a few hosts, and may be stuck.
        max_shrink_time: 30_000,
        ..ProptestConfig::default()
    };
    if let RngSeed::Random = config.rng_seed {
        config.rng_seed = RngSeed::Fixed(asked().map_or(SEED, |_| onemark::clock::random_u64()));
    }
    let (programs, seed) = (config.cases, config.rng_seed);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let sandbox = sandbox_with(&[], INSTANCES);
    let kills = AtomicU32::new(0);
    let cases = (program(kind), disturbance(kind));
    let outcome = TestRunner::new(config).run(&cases, |(program, disturbance)| {
        let killed = runtime.block_on(check(sandbox.clone(), program, disturbance));
        kills.fetch_add(killed, Ordering::Relaxed);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{kind:?} programs, PROPTEST_RNG_SEED={seed}: {error}");
    }
    let kills = kills.into_inner();
    println!("{programs} programs, {kills} kills");
    assert!(kills > programs / 2, "hosts die where their programs are at work");
}

/// Drives a program with and without kills, and compares how it ends. Says how often it was killed, and whether it was
/// compared: a script may leave open what comes first.
async fn with_twin(kind: Kind, sandbox: Sandbox, program: Vec<Op>, disturbance: Disturbance) -> (u32, bool) {
    let twin = Drive::undisturbed(&sandbox, kind, &program, disturbance.moves());
    let twin = twin.await.run_to_end().await;
    let killed = Drive::disturbed(&sandbox, kind, &program, &disturbance);
    let killed = killed.await.run_to_end().await;
    let decided = twin.is_decided() && killed.is_decided();
    if decided {
        assert_eq!(killed.ending().await, twin.ending().await);
    }
    for drive in [&twin, &killed] {
        invariants::hold(drive).await;
        drive.leave().await;
    }
    (killed.killed(), decided)
}

/// Nothing in them depends on what comes first: killed or not, they end the same.
#[test]
#[ignore = "a program now and then does not end within its patience; see what hangs first"]
fn f02_race_free_programs_end_as_their_unkilled_twins() {
    on_random_programs(
        Kind::RaceFree,
        RACE_FREE,
        async |sandbox, program, disturbance| {
            let (kills, decided) = with_twin(Kind::RaceFree, sandbox, program, disturbance).await;
            assert!(decided);
            kills
        },
    );
}

/// What comes first is what came first from outside, where one thing comes after another, in the order of a script.
#[test]
#[ignore = "a program now and then does not end within its patience; see what hangs first"]
fn f02_scripted_programs_end_as_their_unkilled_twins() {
    let undecided = AtomicU32::new(0);
    on_random_programs(Kind::Scripted, SCRIPTED, async |sandbox, program, disturbance| {
        let (kills, decided) = with_twin(Kind::Scripted, sandbox, program, disturbance).await;
        undecided.fetch_add(u32::from(!decided), Ordering::Relaxed);
        kills
    });
    let undecided = undecided.into_inner();
    assert!(
        undecided <= programs_in_tenths(SCRIPTED) / 4,
        "{undecided} programs were not decided by their script"
    );
}

/// Whatever came first came first in every replay.
#[test]
#[ignore = "a program now and then does not end within its patience; see what hangs first"]
fn f02_any_program_agrees_with_its_replay() {
    on_random_programs(Kind::Wild, WILD, async |sandbox, program, disturbance| {
        let killed = Drive::disturbed(&sandbox, Kind::Wild, &program, &disturbance).await;
        let killed = killed.run_to_end().await;
        invariants::hold(&killed).await;
        killed.leave().await;
        killed.killed()
    });
}
