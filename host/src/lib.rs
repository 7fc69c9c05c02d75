#![doc = include_str!("../ARCHITECTURE.md")]

pub mod ids;
pub mod clock;
pub mod journal;
pub mod store;
pub mod sandbox;
pub mod engine;
pub mod api;
pub mod cli;
pub mod guest_build;
pub mod demo;
pub mod bench;
