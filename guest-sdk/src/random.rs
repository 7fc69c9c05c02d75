//! Numbers that a replay draws again.

use std::ops::Range;

use crate::sandbox::{self, Sandbox};

/// A random number.
///
/// In a workflow it comes from a stream that the run's first journal entry seeds, so that a replay draws
/// the same; elsewhere from the system. Not for secrets.
pub fn random() -> u64 {
    match sandbox::current() {
        Sandbox::Workflow => crate::bindings::onemark::workflow::context::random(),
        Sandbox::Step | Sandbox::None => system_random(),
    }
}

/// A random number in `range`.
///
/// # Panics
///
/// When `range` is empty.
pub fn random_range(range: Range<u64>) -> u64 {
    assert!(
        !range.is_empty(),
        "`random_range` needs a range with something in it"
    );
    // The upper half of the product is spread over the range evenly, but for one part in 2⁶⁴ ÷ its length.
    let length = u128::from(range.end - range.start);
    range.start + ((u128::from(random()) * length) >> 64) as u64
}

#[cfg(target_family = "wasm")]
fn system_random() -> u64 {
    let mut bytes = [0; 8];
    wstd::rand::get_random_bytes(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// The standard library seeds each hasher from the system's randomness.
#[cfg(not(target_family = "wasm"))]
fn system_random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept() {
        let drawn: Vec<_> = (0..1_000).map(|_| random_range(5..8)).collect();
        assert!(drawn.iter().all(|n| (5..8).contains(n)));
        assert!((5..8).all(|n| drawn.contains(&n)));
        assert_eq!(random_range(u64::MAX - 1..u64::MAX), u64::MAX - 1);
    }
}
