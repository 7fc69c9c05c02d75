//! A service that counts: what steps did to the outside, as the outside saw it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::post;
use tokio::sync::watch;

/// One mark: who left it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub name: String,
    pub key: String,
    pub attempt: u32,
}

#[derive(Default)]
struct Seen {
    marks: Vec<Mark>,
    /// Requests for these names are counted, then kept waiting.
    held: Vec<String>,
    let_go: bool,
    /// Requests for these names are answered, though they were held.
    answered: Vec<String>,
    /// Requests that wait for an answer, now and at most.
    unanswered: usize,
    most_unanswered: usize,
}

/// The counting service, on a port of its own until dropped.
pub struct Marks {
    address: SocketAddr,
    seen: Arc<watch::Sender<Seen>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Marks {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A request until it is answered or its sender is gone.
struct Unanswered(Shared);

impl Unanswered {
    fn new(seen: Shared) -> Self {
        seen.send_modify(|seen| {
            seen.unanswered += 1;
            seen.most_unanswered = seen.most_unanswered.max(seen.unanswered);
        });
        Self(seen)
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.send_modify(|seen| seen.unanswered -= 1);
    }
}

type Shared = Arc<watch::Sender<Seen>>;

async fn leave(
    State(seen): State<Shared>,
    Path(name): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    // Read to its end: a server that answers before that hangs up on a client that still writes.
    _: Bytes,
) -> StatusCode {
    let _unanswered = Unanswered::new(seen.clone());
    let held = seen.borrow().held.contains(&name);
    let answered = {
        let name = name.clone();
        move |seen: &Seen| seen.let_go || seen.answered.contains(&name)
    };
    seen.send_modify(|seen| {
        seen.marks.push(Mark {
            name,
            key: query.get("key").cloned().unwrap_or_default(),
            attempt: query.get("attempt").and_then(|n| n.parse().ok()).unwrap_or(0),
        });
    });
    if held {
        let _ = seen.subscribe().wait_for(answered).await;
    }
    StatusCode::OK
}

impl Marks {
    pub async fn start() -> Self {
        let seen: Shared = Arc::new(watch::Sender::new(Seen::default()));
        let app = Router::new()
            .route("/{name}", post(leave))
            .with_state(seen.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serves until aborted");
        });
        Self {
            address,
            seen,
            server,
        }
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `127.0.0.1:PORT`, for a grant.
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    /// Requests for this name are counted, then not answered, unless they are let go.
    pub fn hold(&self, name: &str) {
        self.seen.send_modify(|seen| seen.held.push(name.to_owned()));
    }

    /// Requests that come from now on are answered.
    pub fn release(&self) {
        self.seen.send_modify(|seen| seen.held.clear());
    }

    /// Answers the requests that were held.
    pub fn let_go(&self) {
        self.seen
            .send_modify(|seen| (seen.let_go, seen.held) = (true, Vec::new()));
    }

    /// Answers the requests for this name, those that were held and those that come.
    pub fn answer(&self, name: &str) {
        self.seen.send_modify(|seen| {
            seen.held.retain(|held| held != name);
            seen.answered.push(name.to_owned());
        });
    }

    /// The most requests that waited for an answer at once.
    pub fn most_at_once(&self) -> usize {
        self.seen.borrow().most_unanswered
    }

    pub fn all(&self) -> Vec<Mark> {
        self.seen.borrow().marks.clone()
    }

    pub fn count(&self, name: &str) -> usize {
        self.seen
            .borrow()
            .marks
            .iter()
            .filter(|mark| mark.name == name)
            .count()
    }

    /// Returns once there are that many marks of this name.
    pub async fn reached(&self, name: &str, count: usize) {
        let enough = |seen: &Seen| seen.marks.iter().filter(|mark| mark.name == name).count() >= count;
        let mut seen = self.seen.subscribe();
        seen.wait_for(enough).await.expect("the service lives");
    }
}
