//! A service outside, made of one closure: what the steps of an example reach, as the test wants it to be.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::Value;
use tokio::sync::watch;

/// A request, as the service saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub method: String,
    pub path: String,
    /// The header `idempotency-key`.
    pub key: String,
    /// The header `onemark-attempt`.
    pub attempt: u32,
    pub body: Value,
}

impl Asked {
    /// `METHOD /path`
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// Carries a request out: status and body of the answer.
type Carry = dyn FnMut(&Asked) -> (u16, Value) + Send;

struct Inside {
    carry: Mutex<Box<Carry>>,
    seen: watch::Sender<Seen>,
}

#[derive(Default)]
struct Seen {
    /// In the order in which they were carried out.
    asked: Vec<Asked>,
    /// The next request of this line, or of any, gets no answer, or a bad one.
    next: Option<(Option<String>, Fate)>,
    /// Requests that wait for an answer, now and at most.
    unanswered: usize,
    most_unanswered: usize,
}

/// A request until it is answered or its sender is gone.
struct Unanswered(Arc<Inside>);

impl Unanswered {
    fn new(inside: &Arc<Inside>) -> Self {
        inside.seen.send_modify(|seen| {
            seen.unanswered += 1;
            seen.most_unanswered = seen.most_unanswered.max(seen.unanswered);
        });
        Self(inside.clone())
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.seen.send_modify(|seen| seen.unanswered -= 1);
    }
}

/// What becomes of an answer. The request itself was carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It does not come while the service lives.
    Withheld,
    /// 502 comes in its place.
    Lost,
}

/// The service, on a port of its own until dropped.
pub struct Service {
    address: SocketAddr,
    inside: Arc<Inside>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Service {
    pub async fn start(carry: impl FnMut(&Asked) -> (u16, Value) + Send + 'static) -> Self {
        let inside = Arc::new(Inside {
            carry: Mutex::new(Box::new(carry)),
            seen: watch::Sender::default(),
        });
        let app = Router::new().fallback(answer).with_state(inside.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serves until aborted");
        });
        Self {
            address,
            inside,
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

    /// The next request of this line (`METHOD /path`) is carried out and never answered.
    pub fn withhold(&self, line: &str) {
        self.next(Some(line), Fate::Withheld);
    }

    /// As [`Service::withhold`], whatever the next request is.
    pub fn withhold_any(&self) {
        self.next(None, Fate::Withheld);
    }

    /// The next request of this line is carried out, and its answer gets lost: the sender is told 502.
    pub fn lose(&self, line: &str) {
        self.next(Some(line), Fate::Lost);
    }

    fn next(&self, line: Option<&str>, fate: Fate) {
        let next = Some((line.map(str::to_owned), fate));
        self.inside.seen.send_modify(|seen| seen.next = next);
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.inside.seen.borrow().asked.clone()
    }

    /// `METHOD /path` of every request, in order.
    pub fn lines(&self) -> Vec<String> {
        self.asked().iter().map(Asked::line).collect()
    }

    /// Returns once that many requests of this line were carried out.
    pub async fn reached(&self, line: &str, count: usize) {
        self.until(|seen| seen.asked.iter().filter(|asked| asked.line() == line).count() >= count)
            .await;
    }

    /// Returns once that many requests were carried out.
    pub async fn asked_for(&self, count: usize) {
        self.until(|seen| seen.asked.len() >= count).await;
    }

    async fn until(&self, enough: impl FnMut(&Seen) -> bool) {
        let mut seen = self.inside.seen.subscribe();
        seen.wait_for(enough).await.expect("the service lives");
    }

    /// The most requests that waited for an answer at once.
    pub fn most_at_once(&self) -> usize {
        self.inside.seen.borrow().most_unanswered
    }
}

async fn answer(
    State(inside): State<Arc<Inside>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let _unanswered = Unanswered::new(&inside);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let asked = Asked {
        method: method.to_string(),
        path: uri.path().to_owned(),
        key: header("idempotency-key").unwrap_or_default().to_owned(),
        attempt: header("onemark-attempt")
            .and_then(|n| n.parse().ok())
            .unwrap_or(0),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let (status, answer) = {
        let mut carry = inside.carry.lock().unwrap_or_else(PoisonError::into_inner);
        carry(&asked)
    };
    let mut fate = None;
    inside.seen.send_modify(|seen| {
        fate = seen
            .next
            .take_if(|(line, _)| line.as_ref().is_none_or(|line| *line == asked.line()));
        seen.asked.push(asked);
    });
    match fate {
        None => (),
        Some((_, Fate::Withheld)) => std::future::pending().await,
        Some((_, Fate::Lost)) => return (StatusCode::BAD_GATEWAY, "the answer got lost".into()),
    }
    let status = StatusCode::from_u16(status).expect("a good status");
    (status, answer.to_string())
}
