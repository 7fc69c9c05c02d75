//! What users see of their mistakes. To update: `TRYBUILD=overwrite cargo test -p onemark-macros`.
//!
//! The macros refuse these before any of their code refers to the SDK, so the SDK, and all that it depends
//! on, is not compiled for them.

#[test]
fn mistakes_are_errors_where_they_are() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
