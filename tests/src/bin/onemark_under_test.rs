//! The `onemark` binary as tests start it: the same code as the real one.

#[tokio::main]
async fn main() -> std::process::ExitCode {
    onemark::cli::main().await
}
