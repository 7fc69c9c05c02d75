//! One binary for all tests: they share components, which are built once.

mod api;
mod cli;
mod crash;
mod determinism;
mod smoke;
mod steps;
mod time;
