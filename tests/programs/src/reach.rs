//! What tries how far it may go.

use onemark_sdk::prelude::*;
use serde_json::{Value, json};
use wstd::http::{Body, Client, Request};

/// Makes a request, and gives the status, the header `location` and the size of the answer, or what went wrong.
#[step(retries = 0)]
async fn fetch(method: &str, url: &str, body: usize) -> Result<Value, StepFailed> {
    let request = Request::builder().method(method).uri(url);
    let request = request.body(match body {
        0 => Body::empty(),
        length => Body::from(vec![b'x'; length]),
    })?;
    let mut answer = match Client::new().send(request).await {
        Ok(answer) => answer,
        Err(error) => return Ok(json!({ "error": format!("{error:?}") })),
    };
    let status = answer.status().as_u16();
    let location = answer
        .headers()
        .get("location")
        .map(|it| it.to_str().unwrap_or_default().to_owned());
    Ok(match answer.body_mut().contents().await {
        Ok(bytes) => json!({ "status": status, "location": location, "bytes": bytes.len() }),
        Err(error) => json!({ "status": status, "error": format!("{error:?}") }),
    })
}

/// What went wrong with everything that it tries; null where nothing did.
#[step(retries = 0)]
async fn looks_around(address: &str) -> Result<Value, StepFailed> {
    use std::net::{TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
    fn failure<T>(tried: std::io::Result<T>) -> Option<String> {
        tried.err().map(|error| error.to_string())
    }
    let send = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"hello", address));
    Ok(json!({
        "connect": failure(TcpStream::connect(address)),
        "listen": failure(TcpListener::bind("127.0.0.1:0")),
        "send": failure(send),
        "resolve": failure("localhost:80".to_socket_addrs()),
        "read": failure(std::fs::read("/etc/passwd")),
        "write": failure(std::fs::write("/tmp/onemark", "x")),
        "list": failure(std::fs::read_dir(".")),
        "env": std::env::vars().collect::<Vec<_>>(),
        "args": std::env::args().collect::<Vec<_>>(),
    }))
}

/// As many bytes as it is asked for.
#[step(retries = 0)]
async fn makes(bytes: usize) -> Result<String, StepFailed> {
    Ok("x".repeat(bytes))
}

/// Waits, and then uses so much: bytes of a step's result, or MiB of its own memory.
#[workflow]
async fn uses(what: String, much: usize) -> WorkflowResult<String> {
    let mut go = Hook::<Value>::open(format!("go of {}", run_id()))?;
    go.next().await?;
    match what.as_str() {
        "result" => Ok(match makes(much).await {
            Ok(made) => format!("made {}", made.len()),
            Err(failure) => failure.kind.to_string(),
        }),
        _ => {
            let memory = std::hint::black_box(vec![1_u8; much << 20]);
            Ok(format!("has {}", memory.len() >> 20))
        }
    }
}
