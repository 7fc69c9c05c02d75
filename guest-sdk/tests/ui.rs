//! What users see of mistakes that the compiler finds. To update: `TRYBUILD=overwrite cargo test -p onemark-sdk`.

/// C11
#[test]
fn c11_closures_cannot_capture_what_they_would_change() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
