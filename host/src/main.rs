use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    onemark::cli::main().await
}
