//! Error types that do not say what to do after them.
#![allow(unused)]

use onemark_macros::StepError;
use std::time::Duration;

#[derive(StepError)]
#[fatal]
enum OnTheEnum {
    A,
}

#[derive(StepError)]
enum Both {
    #[fatal]
    #[retry]
    A,
}

#[derive(StepError)]
enum FatalAndUnknown {
    #[fatal]
    #[unknown]
    A,
}

#[derive(StepError)]
enum Arguments {
    #[fatal("now")]
    A,
    #[retry_after]
    B,
    #[retry_after(5)]
    C(u8),
    #[retry_after("soon")]
    D,
    #[retry_after(wait)]
    E { pause: Duration },
    #[retry_after(1 + 1)]
    F,
}

#[derive(StepError)]
struct Generic<T>(T);

#[derive(StepError)]
union Neither {
    a: u8,
}

fn main() {}
