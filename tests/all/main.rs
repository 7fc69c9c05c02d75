//! One binary for all tests: they share components, which are built once.

#![allow(
    clippy::unwrap_used,
    reason = "a test that unwraps what is not there has failed"
)]

mod api;
mod blobs;
mod cancel;
mod children;
mod cli;
mod closures;
mod connections;
mod continued;
mod crash;
mod demo;
mod deployments;
mod determinism;
mod events;
mod eviction;
mod examples;
mod fanout;
mod faults;
mod forks;
mod grants;
mod flow_control;
mod held;
mod hooks;
mod interpreter;
mod logs;
mod odd_input;
mod output;
mod policies;
mod readme;
mod replace;
mod rerun;
mod schedules;
mod start;
mod store_contract;
mod store_files;
mod store_rules;
mod store_support;
mod tidy;
mod steps;
mod time;
mod typed;
mod webhooks;
