//! The `onemark` program once more: cargo builds a binary for the tests of its own package only.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    onemark::cli::main().await
}
