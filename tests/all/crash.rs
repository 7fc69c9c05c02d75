//! Hosts that are killed with SIGKILL, a real process and a real file each time, and what is left.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use onemark::demo::Outside;
use onemark_tests::{crash_host_bin, order};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than any answer should take; a test that gets here has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps a host alive: starts another whenever one has died.
pub struct Supervisor {
    folder: TempDir,
    outside: String,
    code: PathBuf,
    host: Option<Running>,
    deaths: u32,
}

struct Running {
    child: Child,
    url: String,
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if let Some(host) = &mut self.host {
            let _ = host.child.kill();
            let _ = host.child.wait();
        }
    }
}

impl Supervisor {
    /// Steps may reach this server (`HOST:PORT`).
    pub fn new(outside: String) -> Self {
        Self {
            folder: TempDir::new().expect("a temporary folder"),
            outside,
            code: std::env::temp_dir().join("onemark-test-code"),
            host: None,
            deaths: 0,
        }
    }

    /// Starts a host that dies at this commit; 0 never comes.
    pub fn start(&mut self, commit: u64) {
        let mut child = Command::new(crash_host_bin())
            .arg(self.folder.path().join("onemark.db"))
            .arg(&self.code)
            .arg(&self.outside)
            .arg(commit.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the host starts");
        let mut url = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout)
            .read_line(&mut url)
            .expect("it can be read");
        self.host = Some(Running {
            child,
            url: url.trim().to_owned(),
        });
    }

    /// The address of a host that lives, as far as anybody knows.
    fn url(&mut self) -> String {
        let ended = match &mut self.host {
            Some(host) => host.child.try_wait().expect("it can be asked").is_some(),
            None => true,
        };
        if ended {
            self.deaths += 1;
            self.start(0);
        }
        let host = self.host.as_ref().expect("just started");
        host.url.clone()
    }

    pub fn kill(&mut self) {
        let host = self.host.as_mut().expect("a host runs");
        host.child.kill().expect("it can be killed");
        host.child.wait().expect("it ends");
    }

    /// Sends a request until it is answered, whatever happens to hosts meanwhile: as a client does that has a
    /// key for it.
    pub async fn ask(
        &mut self,
        request: impl Fn(&reqwest::Client, &str) -> reqwest::RequestBuilder,
    ) -> (u16, Value) {
        let asking = async {
            loop {
                let url = self.url();
                if url.is_empty() {
                    // It died before it was ready.
                    let host = self.host.as_mut().expect("a host was started");
                    host.child.wait().expect("it ends");
                    continue;
                }
                // A connection of its own: one that is kept open may lead to a host that has died.
                let client = reqwest::Client::new();
                if let Ok(response) = request(&client, &url).send().await {
                    let status = response.status().as_u16();
                    if let Ok(answer) = response.json().await {
                        return (status, answer);
                    }
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, asking)
            .await
            .expect("an answer in time")
    }
}

const UPDATES: [&str; 3] = ["first", "second", "last"];

/// Deploys, starts the order and delivers its updates, everything keyed; returns the run.
async fn place_order(hosts: &mut Supervisor, outside: &Outside) -> String {
    let component = std::fs::read(order()).expect("the example is built");
    let put = |client: &reqwest::Client, url: &str| {
        client
            .put(format!("{url}/v1/components/order"))
            .body(component.clone())
    };
    let (status, answer) = hosts.ask(put).await;
    assert_eq!(status, 200, "{answer}");

    let order = json!({ "id": "42", "note": "leave at the door", "amount": 4200, "outside": outside.url() });
    let start = json!({ "workflow": "process_order", "input": { "order": order } });
    let post = |client: &reqwest::Client, url: &str| {
        client
            .post(format!("{url}/v1/runs"))
            .header("idempotency-key", "start-42")
            .json(&start)
    };
    let (status, answer) = hosts.ask(post).await;
    assert!(status == 200 || status == 201, "{status} {answer}");
    let run = answer["run_id"].as_str().expect("a run id").to_owned();

    for (n, note) in UPDATES.iter().enumerate() {
        let update = json!({ "note": note, "last": n + 1 == UPDATES.len() });
        let post = |client: &reqwest::Client, url: &str| {
            let key = format!("update-{n}");
            client
                .post(format!("{url}/v1/hooks/order:42"))
                .header("idempotency-key", key)
                .json(&update)
        };
        let (status, answer) = hosts.ask(post).await;
        assert!((200..300).contains(&status), "{status} {answer}");
        assert_eq!(answer["run_id"], *run);
    }
    run
}

/// Waits for the run to complete with a text, such as an invoice.
pub async fn finished(hosts: &mut Supervisor, run: &str) -> String {
    let result = loop {
        let get =
            |client: &reqwest::Client, url: &str| client.get(format!("{url}/v1/runs/{run}/result?wait=5s"));
        let (_, answer) = hosts.ask(get).await;
        if answer["status"] == "completed" {
            break answer;
        }
        assert_ne!(answer["status"], "failed", "{answer}");
        assert_ne!(answer["status"], "blocked", "{answer}");
    };
    result["output"].as_str().expect("a text").to_owned()
}

/// Everything that must hold after an order, whatever happened on the way.
async fn check_order(hosts: &mut Supervisor, outside: &Outside, run: &str, invoice: &str) {
    let kills = hosts.deaths as usize;
    let counts = outside.counts();
    let notes: Vec<_> = counts.notes.iter().map(|note| note.text.as_str()).collect();
    let mut wanted = vec!["leave at the door"];
    wanted.extend(UPDATES);
    for text in &wanted {
        let times = notes.iter().filter(|note| *note == text).count();
        assert!((1..=1 + kills).contains(&times), "note {text:?}: {notes:?}");
    }
    // A kill cuts at most one step of this sequential workflow off.
    let requests = notes.len() + counts.charge_requests.len() + counts.invoice_requests as usize;
    assert!(
        requests <= wanted.len() + 2 + kills,
        "{requests} requests after {kills} kills"
    );
    assert_eq!(counts.charges.len(), 1, "one charge");
    assert!(
        counts
            .charge_requests
            .iter()
            .all(|request| request.key == "charge:42"),
        "the same key"
    );
    let invoices: Vec<_> = counts.invoices.keys().collect();
    assert_eq!(invoices, [invoice], "one invoice");

    let get =
        |client: &reqwest::Client, url: &str| client.get(format!("{url}/v1/runs/{run}/journal?limit=1000"));
    let (_, journal) = hosts.ask(get).await;
    let entries = journal["entries"].as_array().expect("entries");
    let of = |event: &str| entries.iter().filter(|entry| entry["event"] == event).count();
    for (n, entry) in entries.iter().enumerate() {
        assert_eq!(entry["seq"], n, "dense");
    }
    assert_eq!(of("step_completed"), 7, "four notes, charge, id, invoice");
    assert_eq!(
        of("payload_received"),
        UPDATES.len(),
        "each acknowledged payload once"
    );
    assert_eq!(
        entries.last().map(|entry| &entry["event"]),
        Some(&json!("completed"))
    );

    let get = |client: &reqwest::Client, url: &str| client.get(format!("{url}/v1/hooks/order:42"));
    let (status, hook) = hosts.ask(get).await;
    assert_eq!(
        (status, hook["run_id"].as_str()),
        (200, Some(run)),
        "retained: {hook}"
    );
    let get = |client: &reqwest::Client, url: &str| client.get(format!("{url}/v1/runs"));
    let (_, runs) = hosts.ask(get).await;
    assert_eq!(runs["runs"].as_array().map(Vec::len), Some(1), "one run: {runs}");
    let post = |client: &reqwest::Client, url: &str| client.post(format!("{url}/v1/runs/{run}/replay"));
    let (_, report) = hosts.ask(post).await;
    assert_eq!(report["verdict"], "agrees", "{report}");
}

/// H06, and with it A20, B03 and C01: a kill at every commit of the order example, one after another.
#[tokio::test(flavor = "multi_thread")]
async fn h06_sigkill_at_every_commit_of_the_order_example() {
    let mut commit = 1;
    loop {
        let outside = Outside::start().await.expect("the outside starts");
        let mut hosts = Supervisor::new(outside.authority());
        hosts.start(commit);
        let run = place_order(&mut hosts, &outside).await;
        let invoice = finished(&mut hosts, &run).await;
        let deaths = hosts.deaths;
        check_order(&mut hosts, &outside, &run, &invoice).await;
        if deaths == 0 {
            break;
        }
        assert_eq!(deaths, 1, "killed at commit {commit}, and only there");
        commit += 1;
    }
    // Deploy, start, three payloads, seven steps and the end: there is much to be killed at.
    assert!(commit > 12, "only {commit} commits");
}

/// C02 and D01 in the form of a cut-off step: killed after the bank has charged, before the result is saved.
#[tokio::test(flavor = "multi_thread")]
async fn c02_sigkill_inside_a_step_repeats_that_step_alone() {
    let outside = Outside::start().await.expect("the outside starts");
    let mut hosts = Supervisor::new(outside.authority());
    hosts.start(0);
    outside.hold_next(onemark::demo::Desk::Charges);
    let run = place_order(&mut hosts, &outside).await;
    outside.held().await;
    hosts.kill();
    outside.release();
    let invoice = finished(&mut hosts, &run).await;
    check_order(&mut hosts, &outside, &run, &invoice).await;
    let counts = outside.counts();
    assert_eq!(counts.charge_requests.len(), 2, "two requests, one charge");
    assert_eq!(
        counts.notes.len(),
        1 + UPDATES.len(),
        "saved steps did not run again"
    );
}
