pub mod clock;
pub mod engine;
pub mod guest_build;
pub mod ids;
pub mod journal;
pub mod sandbox;
pub mod store;
