//! What the order example works on: a bank, a book of notes and a shelf of invoices, in one small HTTP service
//! that counts. Marks are counted here, outside Onemark, so that Onemark's own word is not needed for it.
//!
//! | route | does |
//! |---|---|
//! | `POST /charges` | takes a charge; the same `idempotency-key` again takes nothing and gets the same answer |
//! | `POST /notes` | adds a note |
//! | `POST /invoices` | writes an invoice; one with the same id is written over |
//! | `GET /counts` | [`Counts`] |
//!
//! Demo and tests also decide when it answers: see [`Outside::hold_next`] and [`Outside::fail_next`].

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};

/// The service, on a port of its own until it is dropped.
#[derive(Debug)]
pub struct Outside {
    address: SocketAddr,
    world: World,
    /// Dropped with this value, which ends the server.
    _running: oneshot::Sender<()>,
}

/// Everything that arrived, and what came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Every request to the bank, in order of arrival.
    pub charge_requests: Vec<ChargeRequest>,
    /// The charges that the bank took, by idempotency key.
    pub charges: BTreeMap<String, Charge>,
    pub note_requests: u64,
    /// In order of arrival.
    pub notes: Vec<Note>,
    pub invoice_requests: u64,
    /// By id.
    pub invoices: BTreeMap<String, Invoice>,
}

/// A request to the bank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeRequest {
    pub key: String,
    /// Which attempt of its step it says it is.
    pub attempt: u32,
}

/// A charge that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    pub charge_id: String,
    pub order: String,
    pub amount: u64,
}

/// A note that was added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub order: String,
    pub text: String,
    /// The key of the request, by which a test tells repetitions from equal notes.
    pub key: String,
}

/// An invoice as it was last written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invoice {
    pub order: String,
    pub charge_id: String,
}

/// Where in the service a request goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Desk {
    Charges,
    Notes,
    Invoices,
}

/// All state is in one watched value, so that whoever waits for a fact is woken by the change that makes it
/// true.
type World = watch::Sender<Inside>;

#[derive(Debug, Default)]
struct Inside {
    counts: Counts,
    /// The next request to this desk is to be held.
    hold_next: Option<Desk>,
    /// A request has been counted and carried out, and waits for its answer.
    held: bool,
    /// How many requests more are refused.
    failures: u32,
}

impl Outside {
    /// Starts the service on a free port of the loopback address.
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start() -> io::Result<Self> {
        Self::listen("127.0.0.1:0").await
    }

    /// As [`Outside::start`], on an address of the caller's.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn listen(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let world = World::new(Inside::default());
        let router = Router::new()
            .route("/charges", post(charge))
            .route("/notes", post(note))
            .route("/invoices", post(invoice))
            .route("/counts", get(counts))
            .with_state(world.clone());
        let (running, stopped) = oneshot::channel();
        let server = axum::serve(listener, router).with_graceful_shutdown(async {
            // Only ever an error: the sender sends nothing and is dropped.
            stopped.await.unwrap_or(());
        });
        tokio::spawn(server.into_future());
        Ok(Self {
            address,
            world,
            _running: running,
        })
    }

    /// `http://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `127.0.0.1:PORT`, as `serve --allow-http` takes it.
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    /// What has been counted so far.
    pub fn counts(&self) -> Counts {
        self.world.borrow().counts.clone()
    }

    /// The next request to this desk is counted and carried out, but gets no answer before [`Self::release`].
    pub fn hold_next(&self, desk: Desk) {
        self.world.send_modify(|inside| inside.hold_next = Some(desk));
    }

    /// Returns once a request is held: its effect is there, its sender does not know.
    pub async fn held(&self) -> Counts {
        self.wait(|inside| inside.held).await
    }

    /// Answers the request that is held, and holds none any more.
    pub fn release(&self) {
        self.world.send_modify(|inside| {
            inside.hold_next = None;
            inside.held = false;
        });
    }

    /// The next `requests` requests are refused with status 503. They count as requests and do nothing else.
    pub fn fail_next(&self, requests: u32) {
        self.world.send_modify(|inside| inside.failures = requests);
    }

    /// Returns once the counts are as wanted.
    pub async fn until(&self, wanted: impl Fn(&Counts) -> bool) -> Counts {
        self.wait(|inside| wanted(&inside.counts)).await
    }

    async fn wait(&self, fact: impl Fn(&Inside) -> bool) -> Counts {
        let mut changes = self.world.subscribe();
        match changes.wait_for(|inside| fact(inside)).await {
            Ok(inside) => inside.counts.clone(),
            Err(_) => unreachable!("the sender lives as long as `self`"),
        }
    }
}

impl Drop for Outside {
    /// A request that is still held would keep its connection open for ever.
    fn drop(&mut self) {
        self.release();
    }
}

#[derive(Deserialize)]
struct NewCharge {
    order: String,
    amount: u64,
}

async fn charge(State(world): State<World>, headers: HeaderMap, Json(new): Json<NewCharge>) -> Response {
    let Some(key) = header(&headers, "idempotency-key").map(str::to_owned) else {
        return (StatusCode::BAD_REQUEST, "a charge needs an idempotency-key").into_response();
    };
    let attempt = header(&headers, "onemark-attempt")
        .and_then(|n| n.parse().ok())
        .unwrap_or(1);
    let request = ChargeRequest {
        key: key.clone(),
        attempt,
    };
    world.send_modify(|inside| inside.counts.charge_requests.push(request));
    let take = |counts: &mut Counts| {
        let next = counts.charges.len() + 1;
        let charge = counts.charges.entry(key).or_insert_with(|| Charge {
            charge_id: format!("charge-{next}"),
            order: new.order,
            amount: new.amount,
        });
        Json(charge.clone()).into_response()
    };
    answer(&world, Desk::Charges, take).await
}

#[derive(Deserialize)]
struct NewNote {
    order: String,
    text: String,
}

async fn note(State(world): State<World>, headers: HeaderMap, Json(new): Json<NewNote>) -> Response {
    let key = header(&headers, "idempotency-key").unwrap_or_default().to_owned();
    world.send_modify(|inside| inside.counts.note_requests += 1);
    let add = |counts: &mut Counts| {
        counts.notes.push(Note {
            order: new.order,
            text: new.text,
            key,
        });
        Json(()).into_response()
    };
    answer(&world, Desk::Notes, add).await
}

#[derive(Deserialize)]
struct NewInvoice {
    id: String,
    #[serde(flatten)]
    invoice: Invoice,
}

async fn invoice(State(world): State<World>, Json(new): Json<NewInvoice>) -> Response {
    world.send_modify(|inside| inside.counts.invoice_requests += 1);
    let write = |counts: &mut Counts| {
        counts.invoices.insert(new.id, new.invoice);
        Json(()).into_response()
    };
    answer(&world, Desk::Invoices, write).await
}

async fn counts(State(world): State<World>) -> Json<Counts> {
    Json(world.borrow().counts.clone())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Carries a request out and answers it, unless it is to fail or to wait. A sender that goes away while its
/// request is held ends the wait, not the effect.
async fn answer(world: &World, desk: Desk, effect: impl FnOnce(&mut Counts) -> Response) -> Response {
    let (mut response, mut held) = (StatusCode::SERVICE_UNAVAILABLE.into_response(), false);
    world.send_modify(|inside| {
        if inside.failures > 0 {
            inside.failures -= 1;
            return;
        }
        response = effect(&mut inside.counts);
        held = inside.hold_next.take_if(|next| *next == desk).is_some();
        inside.held |= held;
    });
    if held {
        let mut changes = world.subscribe();
        // An error means that the service is gone, and with it whoever could release.
        let _ = changes.wait_for(|inside| !inside.held).await.is_ok();
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    async fn post(outside: &Outside, path: &str, key: &str, body: Value) -> (u16, Value) {
        let request = reqwest::Client::new()
            .post(format!("{}/{path}", outside.url()))
            .header("idempotency-key", key)
            .header("onemark-attempt", "2")
            .json(&body);
        let response = request.send().await.unwrap();
        (
            response.status().as_u16(),
            response.json().await.unwrap_or_default(),
        )
    }

    fn charge() -> Value {
        json!({ "order": "42", "amount": 4200 })
    }

    #[tokio::test]
    async fn a_key_is_charged_once_and_every_request_counted() {
        let outside = Outside::start().await.unwrap();
        let first = post(&outside, "charges", "a", charge()).await;
        assert_eq!(first, post(&outside, "charges", "a", charge()).await);
        let other = post(&outside, "charges", "b", charge()).await;
        assert_ne!(first.1["charge_id"], other.1["charge_id"]);

        let counts = reqwest::get(format!("{}/counts", outside.url())).await.unwrap();
        let counts: Counts = counts.json().await.unwrap();
        assert_eq!(counts, outside.counts());
        assert_eq!(counts.charges.len(), 2);
        let request = |key: &str| ChargeRequest {
            key: key.to_owned(),
            attempt: 2,
        };
        assert_eq!(counts.charge_requests, [request("a"), request("a"), request("b")]);
    }

    #[tokio::test]
    async fn an_invoice_is_written_over_and_a_note_is_added() {
        let outside = Outside::start().await.unwrap();
        for charge_id in ["charge-1", "charge-2"] {
            let invoice = json!({ "id": "i", "order": "42", "charge_id": charge_id });
            assert_eq!(post(&outside, "invoices", "", invoice).await, (200, json!(null)));
            let note = json!({ "order": "42", "text": charge_id });
            assert_eq!(post(&outside, "notes", "", note).await, (200, json!(null)));
        }
        let counts = outside.counts();
        assert_eq!((counts.invoice_requests, counts.invoices.len()), (2, 1));
        assert_eq!(counts.invoices["i"].charge_id, "charge-2");
        assert_eq!((counts.note_requests, counts.notes.len()), (2, 2));
    }

    #[tokio::test]
    async fn a_held_request_has_its_effect_though_its_sender_never_knows() {
        let outside = Outside::start().await.unwrap();
        outside.hold_next(Desk::Charges);
        // Goes by: another desk is to be held.
        post(&outside, "notes", "", json!({ "order": "42", "text": "a" })).await;
        let url = format!("{}/charges", outside.url());
        let sender = tokio::spawn(
            reqwest::Client::new()
                .post(url)
                .header("idempotency-key", "a")
                .json(&charge())
                .send(),
        );
        assert_eq!(outside.held().await.charges.len(), 1);
        assert!(!sender.is_finished());
        sender.abort();
        // Only the next one was to be held.
        assert_eq!(post(&outside, "charges", "a", charge()).await.0, 200);
        let counts = outside.counts();
        assert_eq!((counts.charge_requests.len(), counts.charges.len()), (2, 1));
    }

    #[tokio::test]
    async fn a_released_request_is_answered() {
        let outside = Outside::start().await.unwrap();
        outside.hold_next(Desk::Charges);
        let release = async {
            outside.held().await;
            outside.release();
        };
        let (answer, ()) = tokio::join!(post(&outside, "charges", "a", charge()), release);
        assert_eq!(answer.0, 200);
    }

    #[tokio::test]
    async fn as_many_requests_fail_as_told() {
        let outside = Outside::start().await.unwrap();
        outside.fail_next(2);
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(post(&outside, "charges", "a", charge()).await.0);
        }
        assert_eq!(statuses, [503, 503, 200]);
        let counts = outside.until(|counts| counts.charge_requests.len() == 3).await;
        assert_eq!(counts.charges.len(), 1);
    }
}
