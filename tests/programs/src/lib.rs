//! Small workflows, one per behaviour that a test needs.

mod broken;
mod changing;
mod clocks;
mod forbidden;
mod hooks;
mod marks;
mod steps;
mod timers;
mod typed;
