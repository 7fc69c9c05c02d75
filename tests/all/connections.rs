//! Clients that keep a connection without using it well, on real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use onemark::api::{self, ServerConfig};
use onemark::journal::RunStatus;
use onemark_tests::{StoreKind, TestHost};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// A server whose clients have little time and room.
struct Server {
    host: TestHost,
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn new(config: ServerConfig) -> Self {
        let host = TestHost::on(StoreKind::Memory).await;
        let listener = api::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(api::serve(listener, host.engine.clone(), config, stopped));
        Self {
            host,
            address,
            stop,
            serving,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address)
            .await
            .expect("the server listens")
    }

    /// Sends what may be a part of a request, and reads until the server closes the connection.
    async fn send(&self, text: &str) -> String {
        finish(self.connect().await, text).await
    }
}

async fn finish(mut connection: TcpStream, text: &str) -> String {
    connection
        .write_all(text.as_bytes())
        .await
        .expect("the server reads");
    let mut answer = String::new();
    connection
        .read_to_string(&mut answer)
        .await
        .expect("the server closes in order");
    answer
}

/// For clients that never finish.
fn impatient() -> ServerConfig {
    ServerConfig {
        request_timeout: Duration::from_millis(200),
        ..ServerConfig::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_finish_its_request_is_left() {
    let server = Server::new(impatient()).await;
    for head in [
        "",
        "GET",
        "GET /healthz HTTP/1.1\r\n",
        "GET /healthz HTTP/1.1\r\nhost: x\r\nx: y",
    ] {
        let answer = server.send(head).await;
        assert!(!answer.contains(" 200 "), "{head:?}: {answer}");
    }
    // One that keeps its connection after an answer is left too.
    let answer = server.send("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_is_answered_and_writes_nothing() {
    let server = Server::new(impatient()).await;
    for request in [
        "POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{",
        "POST /v1/runs HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n1\r\n{",
        "PUT /v1/components/x HTTP/1.1\r\nhost: x\r\ncontent-type: application/wasm\r\ncontent-length: 99\r\n\r\n",
    ] {
        let answer = server.send(request).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{request}: {answer}");
        assert!(answer.contains("\"code\":\"request_timeout\""), "{answer}");
    }
    assert_eq!(server.host.everything().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_room_waits_for_it() {
    let server = Server::new(ServerConfig {
        max_connections: 2,
        ..ServerConfig::default()
    })
    .await;
    let run = server.host.start_with("read_any", json!({}), &["t"]).await;
    server.host.reached(&run, RunStatus::Suspended).await;

    let (answered, mut answers) = mpsc::unbounded_channel();
    let wait = format!("GET /v1/runs/{run}/result?wait=60s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let mut clients = Vec::new();
    // The first two take all the room for as long as the run is at work.
    for number in 0..4 {
        let connection = server.connect().await;
        let (wait, answered) = (wait.clone(), answered.clone());
        let live = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        clients.push(tokio::spawn(async move {
            let answer = finish(connection, if number < 2 { &wait } else { live }).await;
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            answered.send(()).expect("the test listens");
        }));
    }
    // Long enough for those without room to be answered, were they let in.
    for _ in 0..50 {
        let other = server.host.start("sequence", json!({ "n": 2 })).await;
        server.host.output(&other).await;
    }
    assert!(answers.try_recv().is_err(), "somebody was answered without room");
    server.host.deliver("t", json!("end")).await.unwrap();
    for client in clients {
        client.await.expect("the client is answered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_answers_what_it_has_begun_and_waits_for_nobody_else() {
    let server = Server::new(ServerConfig::default()).await;
    server.host.start_with("read_any", json!({}), &["t"]).await;
    let mut idle = server.connect().await;
    let mut busy = server.connect().await;
    reads(
        &mut idle,
        "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        "HTTP/1.1 200 OK",
    )
    .await;
    // The server says that it begins to read the body.
    let head = "POST /v1/hooks/t HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
                content-length: 5\r\nexpect: 100-continue\r\n\r\n";
    reads(&mut busy, head, "HTTP/1.1 100 Continue\r\n\r\n").await;

    server.stop.send(()).expect("the server runs");
    let mut rest = String::new();
    idle.read_to_string(&mut rest).await.expect("closed in order");
    TcpStream::connect(server.address)
        .await
        .expect_err("nobody listens");
    let answer = finish(busy, "\"end\"").await;
    assert!(answer.starts_with("HTTP/1.1 202 Accepted\r\n"), "{answer}");
    server.serving.await.expect("the server ends");
}

/// Sends a request, and reads the beginning of its answer.
async fn reads(connection: &mut TcpStream, request: &str, wanted: &str) {
    connection
        .write_all(request.as_bytes())
        .await
        .expect("the server reads");
    let mut start = vec![0; wanted.len()];
    connection.read_exact(&mut start).await.expect("an answer");
    assert_eq!(String::from_utf8_lossy(&start), wanted);
}
