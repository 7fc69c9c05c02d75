//! A step that tries what it is let reach.

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
