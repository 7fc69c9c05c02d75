//! One binary for all tests: they share components, which are built once.

mod smoke;
