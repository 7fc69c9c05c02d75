//! What steps reach: nothing, but for what the operator grants.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Redirect;
use axum::routing::{any, get};
use axum::{Router, extract::State};
use onemark::journal::Limits;
use onemark::sandbox::{
    Attempt, AttemptEnd, AttemptRequest, Component, HttpLimits, NoBlobs, NoEffects, NoLogs, Sandbox,
    SandboxConfig,
};
use onemark_tests::programs;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

/// A server on this machine that counts the requests that reach it.
struct Outside {
    port: u16,
    requests: Arc<AtomicUsize>,
}

impl Outside {
    async fn start() -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let endless = || {
            let piece = axum::body::Bytes::from_static(&[7; 64 << 10]);
            Body::from_stream(futures_util::stream::repeat_with(move || {
                Ok::<_, std::io::Error>(piece.clone())
            }))
        };
        let routes = Router::new()
            // Reads the body first: a server that answers before that may close the connection on who still sends.
            .route("/", any(|_: axum::body::Bytes| async { "done" }))
            .route(
                "/away",
                get(|| async { Redirect::temporary("http://169.254.169.254/latest/meta-data") }),
            )
            .route("/endless", get(move || async move { endless() }))
            .route(
                "/slow",
                get(|| async { std::future::pending::<StatusCode>().await }),
            )
            .layer(axum::middleware::from_fn_with_state(
                requests.clone(),
                async |State(requests): State<Arc<AtomicUsize>>, request, next: axum::middleware::Next| {
                    requests.fetch_add(1, Ordering::Relaxed);
                    next.run(request).await
                },
            ));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { port, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// A sandbox and the component whose step tries.
struct Inside {
    sandbox: Sandbox,
    component: Component,
}

impl Inside {
    async fn with(grants: &[&str]) -> Self {
        Self::configured(grants, SandboxConfig::default()).await
    }

    async fn configured(grants: &[&str], config: SandboxConfig) -> Self {
        let sandbox = Sandbox::new(SandboxConfig {
            code_cache: Some(std::env::temp_dir().join("onemark-test-code")),
            instances: 10,
            http: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
            ..config
        });
        let sandbox = sandbox.unwrap();
        let component = sandbox.load(programs()).await.unwrap();
        Self { sandbox, component }
    }

    async fn fetch(&self, method: &str, url: &str) -> Value {
        self.send(method, url, 0, Duration::from_secs(60)).await
    }

    async fn send(&self, method: &str, url: &str, body: usize, timeout: Duration) -> Value {
        let input = json!({ "method": method, "url": url, "body": body });
        self.attempt("fetch", input, timeout).await
    }

    async fn attempt(&self, step: &str, input: Value, timeout: Duration) -> Value {
        let request = AttemptRequest {
            step: step.into(),
            input: input.to_string().into(),
            limits: Limits::default(),
            attempt: Attempt {
                number: 1,
                idempotency_key: "key".into(),
                timeout,
                logs: Arc::new(NoLogs),
                effects: Arc::new(NoEffects),
                blobs: Arc::new(NoBlobs),
            },
        };
        match self.sandbox.run_step(&self.component, request).await {
            AttemptEnd::Returned(Ok(value)) => serde_json::from_str(&value).unwrap(),
            AttemptEnd::TimedOut => json!("timed out"),
            other => panic!("{other:?}"),
        }
    }

    async fn is_refused(&self, method: &str, url: &str, why: &str) {
        let answer = self.fetch(method, url).await;
        let error = answer["error"]
            .as_str()
            .unwrap_or_else(|| panic!("{method} {url}: {answer}"));
        assert!(error.contains(why), "{method} {url}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g01_a_step_reaches_nothing_by_default() {
    let outside = Outside::start().await;
    let inside = Inside::with(&[]).await;
    let port = outside.port;
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        "https://example.com/".into(),
    ] {
        inside.is_refused("GET", &url, "no grant for GET http").await;
        inside.is_refused("GET", &url, "serve --allow-http").await;
    }
    assert_eq!(outside.requests(), 0);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let seen = inside
        .attempt(
            "looks_around",
            json!({ "address": address }),
            Duration::from_secs(60),
        )
        .await;
    for what in ["connect", "listen", "send", "resolve", "read", "write", "list"] {
        assert!(seen[what].is_string(), "{what}: {seen}");
    }
    assert_eq!((&seen["env"], &seen["args"]), (&json!([]), &json!([])), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g02_a_grant_covers_its_host_port_scheme_and_methods_alone() {
    let (outside, other) = (Outside::start().await, Outside::start().await);
    let (port, url) = (outside.port, format!("http://127.0.0.1:{}/", outside.port));
    for (grant, method, reached) in [
        (format!("127.0.0.1:{port}"), "DELETE", true),
        (format!("http://127.0.0.1:{port}"), "DELETE", true),
        (format!("GET,POST http://127.0.0.1:{port}"), "POST", true),
        (format!("GET,POST http://127.0.0.1:{port}"), "PUT", false),
        (format!("https://127.0.0.1:{port}"), "GET", false),
        (format!("http://localhost:{port}"), "GET", false),
        (format!("http://127.0.0.1:{}", other.port), "GET", false),
    ] {
        let inside = Inside::with(&[&grant]).await;
        let before = outside.requests();
        let answer = inside.fetch(method, &url).await;
        assert_eq!(answer["status"] == json!(200), reached, "{grant}: {answer}");
        assert_eq!(outside.requests() - before, usize::from(reached), "{grant}");
    }
    // A name that leads here, for who names it.
    let inside = Inside::with(&[&format!("http://localhost:{port}")]).await;
    let answer = inside.fetch("GET", &format!("http://localhost:{port}/")).await;
    assert_eq!(answer["status"], 200, "{answer}");
}

/// However this machine is written, a pattern does not reach it.
#[tokio::test(flavor = "multi_thread")]
async fn g02_patterns_reach_public_addresses_alone() {
    let outside = Outside::start().await;
    let port = outside.port;
    let any = format!("http://*:{port}");
    let below = format!("http://*.localhost:{port}");
    let inside = Inside::with(&[&any, &below, "http://*"]).await;
    for host in [
        "127.0.0.1",
        "localhost",
        "LOCALHOST.",
        "app.localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
    ] {
        let answer = inside.fetch("GET", &format!("http://{host}:{port}/")).await;
        assert!(answer["error"].is_string(), "{host}: {answer}");
    }
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://[fd00::1]/",
    ] {
        inside
            .is_refused("GET", url, "no address of the public internet")
            .await;
    }
    assert_eq!(outside.requests(), 0);
}

/// What an answer says to go to is asked for like anything else.
#[tokio::test(flavor = "multi_thread")]
async fn g02_redirects_are_not_followed_on_the_way() {
    let outside = Outside::start().await;
    let here = format!("http://127.0.0.1:{}", outside.port);
    let inside = Inside::with(&[&here, "http://*"]).await;
    let answer = inside.fetch("GET", &format!("{here}/away")).await;
    assert_eq!(answer["status"], 307, "{answer}");
    inside
        .is_refused(
            "GET",
            answer["location"].as_str().unwrap(),
            "no address of the public internet",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_answers_are_bounded_in_size_and_time() {
    let outside = Outside::start().await;
    let here = format!("http://127.0.0.1:{}", outside.port);
    let config = SandboxConfig {
        http_limits: HttpLimits {
            request_bytes: 1_000,
            response_bytes: 1 << 20,
        },
        ..SandboxConfig::default()
    };
    let inside = Inside::configured(&[&here], config).await;
    let patience = Duration::from_secs(60);
    assert_eq!(inside.send("POST", &here, 1_000, patience).await["status"], 200);
    let answer = inside.send("POST", &here, 1_001, patience).await;
    assert!(
        answer["error"].as_str().unwrap().contains("HttpRequestBodySize"),
        "{answer}"
    );
    let answer = inside.fetch("GET", &format!("{here}/endless")).await;
    assert!(
        answer["error"].as_str().unwrap().contains("response body size"),
        "{answer}"
    );
    // An attempt ends at its time, whatever it waits for.
    let answer = inside
        .send("GET", &format!("{here}/slow"), 0, Duration::from_millis(300))
        .await;
    assert_eq!(answer, "timed out");
    // And none of that is in the way of others.
    assert_eq!(inside.fetch("GET", &here).await["status"], 200);
}

/// A server with a certificate that it made itself.
async fn secure() -> (u16, CertificateDer<'static>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not trust it goes away.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone";
            let _ = stream.write_all(answer).await;
            let _ = stream.shutdown().await;
        }
    });
    (port, cert.der().clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_verified() {
    let (port, certificate) = secure().await;
    let grants = [
        format!("https://localhost:{port}"),
        format!("https://127.0.0.1:{port}"),
    ];
    let grants: Vec<_> = grants.iter().map(String::as_str).collect();
    let inside = Inside::with(&grants).await;
    inside
        .is_refused(
            "GET",
            &format!("https://localhost:{port}/"),
            "no secure connection",
        )
        .await;
    let config = SandboxConfig {
        http_authorities: vec![certificate],
        ..SandboxConfig::default()
    };
    let inside = Inside::configured(&grants, config).await;
    let answer = inside.fetch("GET", &format!("https://localhost:{port}/")).await;
    assert_eq!(answer["bytes"], 4, "{answer}");
    // The certificate is for another name.
    inside
        .is_refused(
            "GET",
            &format!("https://127.0.0.1:{port}/"),
            "no secure connection",
        )
        .await;
}
