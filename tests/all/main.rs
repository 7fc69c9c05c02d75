//! One binary for all tests: they share components, which are built once.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps what is not there has failed"
)]

mod api;
mod cli;
mod closures;
mod crash;
mod demo;
mod determinism;
mod eviction;
mod hooks;
mod policies;
mod start;
mod store_contract;
mod store_files;
mod store_rules;
mod store_support;
mod tidy;
mod steps;
mod time;
