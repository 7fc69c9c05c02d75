//! Small workflows, one per behaviour that a test needs.

mod blobs;
mod broken;
mod cancel;
mod changing;
mod children;
mod clocks;
mod closures;
mod continued;
mod events;
mod forbidden;
mod forks;
mod held;
mod hooks;
pub mod interpreter;
mod limited;
mod logs;
mod marks;
mod misbehaviour;
mod odd;
mod output;
mod plans;
mod reach;
mod steps;
mod timers;
mod typed;
