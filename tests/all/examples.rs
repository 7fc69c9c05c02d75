//! The small examples: what can happen twice is made to, and the marks that it leaves are counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onemark::clock::ManualClock;
use onemark::engine::{EngineConfig, Error};
use onemark::ids::{RunId, StreamName};
use onemark::journal::RunStatus;
use onemark::store::RunFilter;
use onemark_tests::{Asked, Refuse, Service, StoreKind, TestHost, example, json_of, patched};
use serde_json::{Value, json};

use crate::api::Server;
use crate::crash::{Supervisor, finished};
use crate::webhooks::{call, signature};

/// A host with this example deployed, whose steps reach the service.
async fn host(name: &str, service: &Service) -> TestHost {
    let host = TestHost::with_http(&[service.authority()]).await;
    host.engine.deploy(name, example(name)).await.unwrap();
    host
}

/// As [`host`], with a clock that moves when told to.
async fn host_with_clock(name: &str, service: &Service) -> TestHost {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let http = [service.authority()];
    let host = TestHost::with(StoreKind::Sqlite, EngineConfig::default(), Some(clock), &http).await;
    host.engine.deploy(name, example(name)).await.unwrap();
    host
}

/// State that a service and its test share.
fn shared<T: Default>() -> (Arc<Mutex<T>>, Arc<Mutex<T>>) {
    let state = Arc::new(Mutex::new(T::default()));
    (state.clone(), state)
}

/// A bank that pays for each key once, and what it paid, by key.
async fn bank() -> (Service, Arc<Mutex<BTreeMap<String, Value>>>) {
    let (paid, seen) = shared::<BTreeMap<String, Value>>();
    let service = Service::start(move |asked| {
        let mut paid = paid.lock().unwrap();
        let receipt = format!("refund-{}", paid.len() + 1);
        let new = json!({ "receipt": receipt, "of": asked.body });
        let known = paid.entry(asked.key.clone()).or_insert(new);
        (200, known["receipt"].clone())
    });
    (service.await, seen)
}

const PAY: &str = "POST /refunds";

fn refund(bank: &Service) -> Value {
    json!({ "order": "42", "cents": 1_200, "bank": bank.url() })
}

/// What every case of the refund comes to: it was asked for twice with one key, and paid once.
fn paid_once(bank: &Service, paid: &Mutex<BTreeMap<String, Value>>) {
    let asked: Vec<_> = bank.asked().into_iter().map(|asked| asked.key).collect();
    assert_eq!(asked, ["refund:42"; 2]);
    let of = json!({ "order": "42", "cents": 1_200 });
    let paid: Vec<_> = paid.lock().unwrap().values().cloned().collect();
    assert_eq!(paid, [json!({ "receipt": "refund-1", "of": of })]);
}

/// A real process, and a real SIGKILL between the effect and its result.
#[tokio::test(flavor = "multi_thread")]
async fn d01_a_refund_whose_step_a_crash_cuts_off_is_paid_once() {
    let (bank, paid) = bank().await;
    let mut hosts = Supervisor::new(bank.authority());
    hosts.start(0);
    let put = |client: &reqwest::Client, url: &str| {
        let component = example("refund").to_vec();
        client.put(format!("{url}/v1/components/refund")).body(component)
    };
    assert_eq!(hosts.ask(put).await.0, 200);
    bank.withhold(PAY);
    let start = json!({ "workflow": "refund", "input": refund(&bank) });
    let post = |client: &reqwest::Client, url: &str| client.post(format!("{url}/v1/runs")).json(&start);
    let (status, started) = hosts.ask(post).await;
    assert_eq!(status, 201, "{started}");
    bank.reached(PAY, 1).await;
    hosts.kill();
    let run = started["run_id"].as_str().unwrap();
    assert_eq!(finished(&mut hosts, run).await, "refund-1");
    paid_once(&bank, &paid);
}

/// A new host takes over from one that was told to stop, and the run moves to a new build.
#[tokio::test(flavor = "multi_thread")]
async fn d01_a_refund_whose_step_a_deploy_cuts_off_is_paid_once() {
    for new_host in [true, false] {
        let (bank, paid) = bank().await;
        let mut host = host("refund", &bank).await;
        // Stored before the step begins, which has a time limit too.
        let build = host
            .engine
            .deploy("refund", another_build("refund"))
            .await
            .unwrap();
        host.engine.deploy("refund", example("refund")).await.unwrap();
        bank.withhold(PAY);
        let run = host.start("refund", refund(&bank)).await;
        bank.reached(PAY, 1).await;
        if new_host {
            host = host.restart().await;
        } else {
            let moved = host.engine.upgrade(&run, build.digest, false).await.unwrap();
            assert_eq!(moved.component, build.digest);
        }
        assert_eq!(host.output(&run).await, json!("refund-1"));
        paid_once(&bank, &paid);
        host.agrees(&run).await;
    }
}

/// The same code under another digest: with an empty custom section at its end.
fn another_build(name: &str) -> Arc<[u8]> {
    let mut bytes = example(name).to_vec();
    bytes.extend([0, 1, 0]);
    bytes.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn d01_a_refund_whose_step_a_time_limit_cuts_off_is_paid_once() {
    let (bank, paid) = bank().await;
    let host = host("refund", &bank).await;
    bank.withhold(PAY);
    let (_, receipt) = host.completes("refund", refund(&bank)).await;
    assert_eq!(receipt, json!("refund-1"));
    let attempts: Vec<_> = bank.asked().iter().map(|asked| asked.attempt).collect();
    assert_eq!(attempts, [1, 2]);
    paid_once(&bank, &paid);
}

/// A database over HTTP, in which a contact is known by its email address.
fn contacts() -> impl FnMut(&Asked) -> (u16, Value) + Send + 'static {
    let database = rusqlite::Connection::open_in_memory().unwrap();
    database
        .execute_batch("create table contacts (id integer primary key, email text unique, name text)")
        .unwrap();
    move |asked| match asked.method.as_str() {
        "PUT" => {
            let (email, name) = (asked.body["email"].as_str(), asked.body["name"].as_str());
            let upsert = "insert into contacts (email, name) values (?, ?)
                on conflict (email) do update set name = excluded.name";
            database.execute(upsert, (email, name)).unwrap();
            (200, Value::Null)
        }
        _ => {
            let rows = "select json_group_array(json_array(id, email, name)) from contacts";
            let rows: String = database.query_row(rows, (), |row| row.get(0)).unwrap();
            (200, serde_json::from_str(&rows).unwrap())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d02_a_contact_whose_result_could_not_be_saved_is_one_row() {
    let database = Service::start(contacts()).await;
    let http = [database.authority()];
    let (host, journal) =
        TestHost::with_faults(StoreKind::Sqlite, EngineConfig::default(), None, &http).await;
    host.engine.deploy("contacts", example("contacts")).await.unwrap();
    journal.refuse(Refuse::Appends);
    let contact = json!({ "email": "ada@shop.example", "name": "Ada" });
    let input = json!({ "contact": contact, "database": database.url() });
    let run = host.start("save_contact", input).await;
    // The step is done, its result cannot be written, and then the host is gone with it.
    let put = "PUT /contacts/ada@shop.example";
    database.reached(put, 1).await;
    journal.refused(&run, 1).await;
    drop(journal);
    let host = host.restart().await;
    assert_eq!(host.output(&run).await, json!(null));
    assert_eq!(database.lines(), [put, put]);
    let rows = reqwest::get(format!("{}/contacts", database.url()))
        .await
        .unwrap();
    let rows: Value = rows.json().await.unwrap();
    assert_eq!(rows, json!([[1, "ada@shop.example", "Ada"]]));
    host.agrees(&run).await;
}

/// The result is lost with the answer, and with the host.
#[tokio::test(flavor = "multi_thread")]
async fn d07_a_mail_whose_result_is_lost_arrives_once() {
    for crash in [false, true] {
        let (inbox, seen) = shared::<BTreeMap<String, Value>>();
        let mail = Service::start(move |asked| {
            let id = asked.body["message_id"].as_str().unwrap().to_owned();
            inbox.lock().unwrap().entry(id).or_insert(asked.body.clone());
            (202, Value::Null)
        });
        let mail = mail.await;
        let mut host = host("mail", &mail).await;
        let send = "POST /messages";
        match crash {
            true => mail.withhold(send),
            false => mail.lose(send),
        }
        let input = json!({ "customer": "7", "address": "ada@shop.example", "mail": mail.url() });
        let run = host.start("welcome", input).await;
        if crash {
            mail.reached(send, 1).await;
            host = host.restart().await;
        }
        assert_eq!(host.output(&run).await, json!(null));
        assert_eq!(mail.lines(), [send, send]);
        let inbox: Vec<_> = seen.lock().unwrap().keys().cloned().collect();
        assert_eq!(inbox, ["<welcome-7@shop.example>"]);
        host.agrees(&run).await;
    }
}

/// D04 and C12: a second start is refused, and a second attempt writes the number that was drawn before.
#[tokio::test(flavor = "multi_thread")]
async fn d04_an_invoice_that_is_asked_for_twice_and_cut_off_has_one_number() {
    let books = Service::start(|_| (200, Value::Null)).await;
    let host = host("invoice", &books).await;
    // Which line it will be is drawn by the run, so it is the answer to any that is kept back.
    books.withhold_any();
    let input = json!({ "order": "42", "cents": 1_200, "books": books.url() });
    let run = host.start("invoice", input.clone()).await;
    let again = host.try_start("invoice", input, &[]).await;
    let Err(Error::HookConflict { owner, .. }) = again else {
        panic!("{again:?}");
    };
    assert_eq!(owner.run, run);
    books.asked_for(1).await;
    let host = host.restart().await;
    let number = host.output(&run).await;
    let line = format!("PUT /invoices/{}", number.as_str().unwrap());
    assert_eq!(books.lines(), [line.clone(), line]);
    host.agrees(&run).await;
}

const CREATE: &str = "POST /tickets";

/// A desk that takes no key: each request to create makes another ticket.
async fn desk() -> Service {
    let mut tickets: Vec<Value> = Vec::new();
    Service::start(move |asked| match asked.method.as_str() {
        "POST" => {
            let ticket = json!({ "number": tickets.len() + 1, "alert": asked.body["alert"] });
            tickets.push(ticket.clone());
            (201, ticket)
        }
        _ => {
            let alert = asked.path.rsplit('/').next();
            let found = tickets.iter().find(|ticket| ticket["alert"].as_str() == alert);
            found.map_or((404, Value::Null), |ticket| (200, ticket.clone()))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn d04_a_webhook_that_is_called_twice_opens_one_ticket() {
    let desk = desk().await;
    let host = host("ticket", &desk).await;
    let alert = json!({ "alert": "disk-7", "text": "the disk is full", "desk": desk.url() });
    desk.withhold(CREATE);
    let run = host.start("open_ticket", alert.clone()).await;
    desk.reached(CREATE, 1).await;
    // Again at once: that run is at it. Then it is cut off.
    let meanwhile = host.try_start("open_ticket", alert.clone(), &[]).await;
    assert!(
        matches!(meanwhile, Err(Error::HookConflict { .. })),
        "{meanwhile:?}"
    );
    let host = host.restart().await;
    assert_eq!(host.output(&run).await, json!(1));
    // Again when it is over: another run, the same ticket.
    let (later, ticket) = host.completes("open_ticket", alert).await;
    assert_ne!(later, run);
    assert_eq!(ticket, json!(1));
    let look = "GET /tickets/by-alert/disk-7";
    assert_eq!(desk.lines(), [look, CREATE, look, look]);
}

/// Whatever starts it, and how often: D06 needs no table of claims, only the token.
#[tokio::test(flavor = "multi_thread")]
async fn d06_many_starts_for_one_order_leave_one_run_and_one_charge() {
    let outside = onemark::demo::Outside::start().await.unwrap();
    let host = TestHost::with_http(&[outside.authority()]).await;
    let order = std::fs::read(onemark_tests::order()).unwrap();
    host.engine.deploy("order", order.into()).await.unwrap();
    let order = json!({ "id": "42", "note": "no onions", "amount": 1_200, "outside": outside.url() });
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (engine, input) = (host.engine.clone(), json!({ "order": order }));
        starts.spawn(async move {
            let request = onemark_tests::request("process_order", input, &[]);
            engine.start(request).await
        });
    }
    let (started, refused): (Vec<_>, Vec<_>) = starts.join_all().await.into_iter().partition(Result::is_ok);
    let run = started[0].as_ref().unwrap().run_id.clone();
    assert_eq!((started.len(), refused.len()), (1, 19));
    for conflict in refused {
        let Err(Error::HookConflict { owner, .. }) = conflict else {
            panic!("{conflict:?}");
        };
        assert_eq!(owner.run, run);
    }
    host.deliver("order:42", json!({ "note": "that is all", "last": true }))
        .await
        .unwrap();
    host.output(&run).await;
    let counts = outside.counts();
    assert_eq!((counts.charge_requests.len(), counts.charges.len()), (1, 1));
    assert_eq!((counts.notes.len(), counts.invoices.len()), (2, 1));
    assert_eq!(host.engine.runs(all_runs()).await.unwrap().len(), 1);
}

fn all_runs() -> RunFilter {
    RunFilter {
        limit: 1_000,
        ..RunFilter::default()
    }
}

/// E06, with and without a crash between two compensations.
#[tokio::test(flavor = "multi_thread")]
async fn e06_a_trip_whose_third_booking_fails_is_undone_in_reverse() {
    for crash in [false, true] {
        let (booked, left) = shared::<BTreeSet<String>>();
        let agency = Service::start(move |asked| {
            let mut booked = booked.lock().unwrap();
            match asked.method.as_str() {
                "PUT" if asked.path.starts_with("/car") => return (409, json!("no car is left")),
                "PUT" => booked.insert(asked.path.clone()),
                _ if booked.remove(&asked.path) => true,
                _ => return (404, Value::Null),
            };
            (200, Value::Null)
        });
        let agency = agency.await;
        let mut host = host("saga", &agency).await;
        let cut_off = "DELETE /flight/7";
        if crash {
            agency.withhold(cut_off);
        }
        let input = json!({ "trip": "7", "agency": agency.url() });
        let run = host.start("book_trip", input).await;
        if crash {
            agency.reached(cut_off, 1).await;
            host = host.restart().await;
        }
        let ended = host.ended(&run).await;
        assert_eq!(ended.status, RunStatus::Failed);
        let error = json_of(ended.error.as_deref());
        assert!(
            error["message"].as_str().unwrap().contains("no car is left"),
            "{error}"
        );
        let mut expected = vec![
            "PUT /hotel/7",
            "PUT /flight/7",
            "PUT /car/7",
            "DELETE /car/7",
            cut_off,
        ];
        if crash {
            expected.push(cut_off);
        }
        expected.push("DELETE /hotel/7");
        assert_eq!(agency.lines(), expected);
        assert!(left.lock().unwrap().is_empty());
        host.agrees(&run).await;
    }
}

const ASK: &str = "PUT /questions/7";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// An office that hears what it is asked and told, and an expense that waits for its answer.
async fn expense(kept_back: bool) -> (TestHost, Service, RunId) {
    let office = Service::start(|_| (200, Value::Null)).await;
    if kept_back {
        office.withhold(ASK);
    }
    let host = host_with_clock("approval", &office).await;
    let run = host
        .start("approval", json!({ "expense": "7", "office": office.url() }))
        .await;
    office.reached(ASK, 1).await;
    (host, office, run)
}

/// The run's outcome, of which the office was told once.
async fn told(host: &TestHost, office: &Service, run: &RunId) -> Value {
    let outcome = host.output(run).await;
    let told: Vec<_> = office
        .asked()
        .into_iter()
        .filter(|asked| asked.line() != ASK)
        .collect();
    let [told] = told.as_slice() else {
        panic!("told more than once, or never: {told:?}");
    };
    assert_eq!((told.line(), &told.body), ("PUT /outcomes/7".into(), &outcome));
    host.agrees(run).await;
    outcome
}

fn answer(approved: bool) -> Value {
    json!({ "approved": approved, "by": "Ada" })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_time_is_heard() {
    for (approved, outcome) in [(true, "approved by Ada"), (false, "declined by Ada")] {
        let (host, office, run) = expense(false).await;
        host.until(&run, |info| info.wake_at.is_some()).await;
        host.advance(2 * DAY);
        host.deliver("expense:7", answer(approved)).await.unwrap();
        assert_eq!(told(&host, &office, &run).await, outcome);
    }
}

/// Before anybody listens: the question itself is not answered yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_early_waits() {
    let (host, office, run) = expense(true).await;
    host.deliver("expense:7", answer(true)).await.unwrap();
    let host = host.restart().await;
    assert_eq!(told(&host, &office, &run).await, "approved by Ada");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_never_comes_is_a_no_and_a_late_one_is_refused() {
    let (host, office, run) = expense(false).await;
    host.until(&run, |info| info.wake_at.is_some()).await;
    host.advance(3 * DAY);
    assert_eq!(told(&host, &office, &run).await, "declined: nobody answered");
    let late = host.deliver("expense:7", answer(true)).await;
    assert!(matches!(late, Err(Error::HookEnded { .. })), "{late:?}");
    // Two starts for one expense are one.
    let again = host
        .try_start("approval", json!({ "expense": "7", "office": office.url() }), &[])
        .await;
    assert!(matches!(again, Err(Error::HookConflict { .. })), "{again:?}");
}

/// It was taken in before the run heard that the time was over, so whoever sent it was told that it counts.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_taken_in_counts_though_the_time_is_over() {
    let (host, office, run) = expense(false).await;
    host.until(&run, |info| info.wake_at.is_some()).await;
    // While no host is there: after the time is over, and before anybody knows.
    host.engine.shutdown().await;
    host.advance(3 * DAY);
    host.deliver("expense:7", answer(true)).await.unwrap();
    let host = host.restart().await;
    assert_eq!(told(&host, &office, &run).await, "approved by Ada");
}

/// At most ten at once, and who failed in order, also when the host is gone in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_newsletter_reaches_each_reader_once_and_lists_who_it_did_not_reach() {
    let (inbox, seen) = shared::<BTreeSet<String>>();
    let mail = Service::start(move |asked| {
        let to = asked.body["to"].as_str().unwrap();
        if to.ends_with("@gone.example") {
            return (404, json!("no such address"));
        }
        inbox.lock().unwrap().insert(asked.key.clone());
        (202, Value::Null)
    });
    let mail = mail.await;
    let readers: Vec<_> = (0..60)
        .map(|n| format!("{n}@{}.example", if n % 20 == 3 { "gone" } else { "shop" }))
        .collect();
    let host = host("fanout", &mail).await;
    mail.withhold_any();
    let input = json!({ "issue": "may", "readers": readers, "mail": mail.url() });
    let run = host.start("newsletter", input).await;
    // All but the one that waits for its answer.
    mail.asked_for(60).await;
    let host = host.restart().await;
    let sent = host.output(&run).await;
    assert_eq!(sent["sent"], 57);
    let failed: Vec<_> = sent["failed"].as_array().unwrap().iter().map(|f| &f[0]).collect();
    assert_eq!(failed, ["3@gone.example", "23@gone.example", "43@gone.example"]);
    assert_eq!(seen.lock().unwrap().len(), 57, "one for each key");
    assert!(mail.most_at_once() <= 10, "{}", mail.most_at_once());
    host.agrees(&run).await;
}

/// What the warehouse has picked and sent, by order.
#[derive(Default)]
struct Warehouse {
    picked: BTreeSet<String>,
    parcels: BTreeMap<String, Value>,
}

async fn warehouse() -> (Service, Arc<Mutex<Warehouse>>) {
    let (goods, seen) = shared::<Warehouse>();
    let service = Service::start(move |asked| {
        let mut goods = goods.lock().unwrap();
        let line = asked.line();
        let order = line.rsplit('/').next().unwrap_or_default().to_owned();
        match asked.method.as_str() {
            "PUT" => goods.picked.insert(order),
            "DELETE" => goods.picked.remove(&order),
            _ => {
                let number = format!("parcel-{}", goods.parcels.len() + 1);
                let parcel = goods.parcels.entry(asked.key.clone());
                return (200, parcel.or_insert(json!(number)).clone());
            }
        };
        (200, Value::Null)
    });
    (service.await, seen)
}

/// The shop says so: status and body of the answer.
async fn shop_says(server: &Server, id: &str, body: &Value) -> (u16, Value) {
    let body = body.to_string();
    let signature = format!("sha256={}", signature(&[&body]));
    let headers = [("x-signature", signature.as_str()), ("idempotency-key", id)];
    let answer = call(server, "shop", &body, &headers).await;
    (answer.status.as_u16(), answer.json)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_paid_twice_is_sent_once() {
    let (warehouse, goods) = warehouse().await;
    let server = Server::over(host_with_clock("fulfillment", &warehouse).await).await;
    let paid = json!({ "order": { "id": "42" }, "what": "paid", "warehouse": warehouse.url() });
    let (status, first) = shop_says(&server, "1", &paid).await;
    assert_eq!((status, &first["started"]), (200, &json!(true)), "{first}");
    // The answer got lost: the very same again. Then the same under another id, before the hour is over.
    assert_eq!(shop_says(&server, "1", &paid).await, (200, first.clone()));
    let (status, other) = shop_says(&server, "2", &paid).await;
    assert_eq!((status, &other["run_id"]), (200, &first["run_id"]));
    assert_eq!(shop_says(&server, "2", &paid).await, (200, other));

    warehouse.lose("POST /parcels");
    let run = RunId::new(first["run_id"].as_str().unwrap()).unwrap();
    let waits =
        |info: &onemark::store::RunInfo| info.wake_at.is_some() && info.status == RunStatus::Suspended;
    server.host.until(&run, waits).await;
    server.host.advance(Duration::from_secs(60 * 60));
    // The time of the next attempt of the step whose answer got lost.
    let output = loop {
        server.host.advance(Duration::from_secs(1));
        let info = server.host.engine.run(&run).await.unwrap();
        if info.status.is_terminal() {
            break server.host.output(&run).await;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(output, "sent as parcel-1");
    let (status, late) = shop_says(&server, "3", &paid).await;
    assert_eq!((status, &late["ended"]), (200, &json!(true)), "{late}");
    assert_eq!(server.host.everything().await.len(), 1);
    {
        let goods = goods.lock().unwrap();
        assert_eq!(goods.picked, BTreeSet::from(["42".to_owned()]));
        assert_eq!(
            goods.parcels,
            BTreeMap::from([("parcel:42".to_owned(), json!("parcel-1"))])
        );
    }
    server.host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_is_called_off_in_time_is_not_sent() {
    let (warehouse, goods) = warehouse().await;
    let server = Server::over(host_with_clock("fulfillment", &warehouse).await).await;
    let say = |id: &'static str, order: &str, what: &str| {
        let body = json!({ "order": { "id": order }, "what": what, "warehouse": warehouse.url() });
        let server = &server;
        async move { shop_says(server, id, &body).await.1 }
    };
    let paid = say("1", "7", "paid").await;
    let off = say("2", "7", "called_off").await;
    assert_eq!(off["run_id"], paid["run_id"]);
    let run = RunId::new(paid["run_id"].as_str().unwrap()).unwrap();
    assert_eq!(server.host.output(&run).await, "called off");
    // The other way round, as webhooks come.
    let off = say("3", "8", "called_off").await;
    let run = RunId::new(off["run_id"].as_str().unwrap()).unwrap();
    assert_eq!(server.host.output(&run).await, "called off before it was paid");
    assert_eq!(say("4", "8", "paid").await["ended"], true);
    let goods = goods.lock().unwrap();
    assert!(goods.picked.is_empty() && goods.parcels.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_for_each_monday_also_of_those_without_a_host() {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
    let (reports, seen) = shared::<BTreeMap<String, Value>>();
    let office = Service::start(move |asked| match asked.line().split_once("/reports/") {
        Some((_, slot)) => {
            reports
                .lock()
                .unwrap()
                .insert(slot.to_owned(), asked.body.clone());
            (200, Value::Null)
        }
        None => (200, json!([1_200, 350])),
    });
    let office = office.await;
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let http = [office.authority()];
    let host = TestHost::with(StoreKind::Sqlite, EngineConfig::default(), Some(clock), &http).await;
    let component = patched(&example("cron-report"), "127.0.0.1:19000", &office.authority());
    host.engine.deploy("cron-report", component).await.unwrap();

    let reported = async |mondays: &[&str]| {
        loop {
            let slots: Vec<_> = seen.lock().unwrap().keys().cloned().collect();
            if slots.len() >= mondays.len() {
                break assert_eq!(slots, mondays);
            }
            tokio::task::yield_now().await;
        }
    };
    let mondays = [
        "2027-01-18T05:00:00Z",
        "2027-01-25T05:00:00Z",
        "2027-02-01T05:00:00Z",
    ];
    host.advance(WEEK / 2);
    reported(&mondays[..1]).await;
    // Else its last step is cut off, and filed once more over what is there.
    let [(first, ..)] = &host.everything().await[..] else {
        panic!("one slot has come");
    };
    host.output(&first.id).await;
    host.engine.shutdown().await;
    host.advance(2 * WEEK);
    let host = host.restart().await;
    reported(&mondays).await;
    let runs = host.everything().await;
    assert_eq!(runs.len(), 3, "one for each slot");
    for (run, ..) in &runs {
        assert_eq!(host.output(&run.id).await["cents"], 1_550);
    }
    let host = host.restart().await;
    assert_eq!(host.everything().await.len(), 3);
    let asked = office.asked();
    let filed = asked.iter().filter(|asked| asked.method == "PUT").count();
    assert_eq!(filed, 3);
}

/// A model that looks up whatever is asked of it, and charges for each key once.
async fn model() -> (Service, Arc<Mutex<BTreeMap<String, Value>>>) {
    let (paid, seen) = shared::<BTreeMap<String, Value>>();
    let service = Service::start(move |asked| {
        if asked.method == "GET" {
            return (200, json!("in Kassel"));
        }
        let turns = asked.body.as_array().unwrap();
        let last = turns.last().unwrap();
        let thought = match (last["who"].as_str(), last["text"].as_str()) {
            (Some("user"), Some(text)) if text.ends_with('?') => json!({ "look": "parcel" }),
            (Some("user"), Some(text)) => json!({ "say": format!("you said {text}") }),
            _ => json!({ "say": "it is in Kassel" }),
        };
        let known = paid
            .lock()
            .unwrap()
            .entry(asked.key.clone())
            .or_insert(thought)
            .clone();
        (200, known)
    });
    (service.await, seen)
}

async fn chunks(host: &TestHost, run: &RunId, stream: &str) -> Vec<String> {
    let stream = StreamName::new(stream).unwrap();
    let chunks = host.engine.chunks(run, &stream, 0, 1_000).await.unwrap();
    let text = |chunk: &onemark::store::Chunk| serde_json::from_str(&chunk.chunk).unwrap();
    chunks.iter().map(text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_through_restarts_and_no_answer_is_paid_for_twice() {
    let (model, paid) = model().await;
    let host = host("agent-loop", &model).await;
    let run = host
        .start("agent_loop", json!({ "chat": "ada", "model": model.url() }))
        .await;
    model.withhold("POST /think");
    host.deliver("chat:ada", json!({ "text": "hello" }))
        .await
        .unwrap();
    model.reached("POST /think", 1).await;
    // Cut off while it thinks, and more is said meanwhile.
    host.deliver("chat:ada", json!({ "text": "where?" }))
        .await
        .unwrap();
    let host = host.restart().await;
    let answered = async |host: &TestHost, run: &RunId, n: usize| {
        loop {
            let answers = chunks(host, run, "answers").await;
            if answers.len() >= n {
                break answers;
            }
            tokio::task::yield_now().await;
        }
    };
    assert_eq!(
        answered(&host, &run, 2).await,
        ["you said hello", "it is in Kassel"]
    );
    let words = chunks(&host, &run, "words").await;
    assert_eq!(words.concat(), "you said helloit is in Kassel");
    host.agrees(&run).await;

    // Up to forty turns, of which the question took four and its answer was looked up; and one more message.
    for n in 2..=20 {
        host.deliver("chat:ada", json!({ "text": format!("{n}") }))
            .await
            .unwrap();
    }
    let next = loop {
        let hook = host.hook("chat:ada").await.unwrap();
        if hook.run_id != run {
            break hook.run_id;
        }
        tokio::task::yield_now().await;
    };
    let before = answered(&host, &run, 20).await;
    let after = answered(&host, &next, 1).await;
    assert_eq!(before.last().unwrap(), "you said 19");
    assert_eq!(after, ["you said 20"]);
    let asked: Vec<_> = model
        .asked()
        .into_iter()
        .filter(|it| it.method == "POST")
        .collect();
    let paid = paid.lock().unwrap();
    // Each answer, the question twice since it looked something up; the one that was cut off was asked for again.
    assert_eq!((paid.len(), asked.len()), (22, 23));
}
