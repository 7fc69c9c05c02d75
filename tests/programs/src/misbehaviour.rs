//! Code that comes to no good end, in workflows and in steps.

/// Misbehaves as asked; a word that it does not know is given back.
pub fn misbehave(how: &str) -> String {
    match how {
        "panic" => panic!("as asked"),
        "long panic" => panic!("{}", "ä".repeat(100_000)),
        "raw panic" => raw_panic(),
        "loop" => spin(),
        "memory" => hoard(),
        "stack" => deep(0).to_string(),
        other => other.to_owned(),
    }
}

/// As a guest that is built without the SDK panics: the standard library reports it.
fn raw_panic() -> ! {
    drop(std::panic::take_hook());
    panic!("without the SDK")
}

#[inline(never)]
fn spin() -> ! {
    let mut n = 0_u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

fn hoard() -> ! {
    let mut all = Vec::new();
    loop {
        all.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
}

#[expect(unconditional_recursion, reason = "that is the point")]
fn deep(n: u64) -> u64 {
    std::hint::black_box(deep(std::hint::black_box(n + 1)) + 1)
}
