//! Small workflows, one per behaviour that a test needs.

mod broken;
mod changing;
mod clocks;
mod closures;
mod forbidden;
mod held;
mod hooks;
mod marks;
mod steps;
mod timers;
