//! A host in a process of its own, and talking to it over HTTP.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;

/// Longer than anything here should take. Whoever waits this long has found a fault.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Where a host is to run, the same in each of its lives.
pub struct Place {
    /// The `onemark` program.
    pub program: PathBuf,
    pub database: PathBuf,
    /// What the host logs is added here.
    pub log: PathBuf,
    /// The server that its steps may call, `HOST:PORT`.
    pub allow_http: String,
}

/// A running host; ended with SIGKILL when dropped.
pub struct Host {
    child: Child,
    pub api: Api,
}

/// The way to a host's HTTP API.
#[derive(Clone)]
pub struct Api {
    pub url: String,
    http: reqwest::Client,
}

/// The answer to a request to start a run.
pub enum Start {
    Started {
        run_id: String,
    },
    /// A token is held by that run.
    Conflict {
        owner: String,
    },
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Entry {
    pub seq: u64,
    pub event: String,
    #[serde(default)]
    pub fields: Map<String, Value>,
    #[serde(default)]
    pub body: Value,
}

impl Entry {
    /// The number of the call that the entry belongs to.
    pub fn call(&self) -> Option<u64> {
        self.fields.get("call")?.as_u64()
    }
}

impl Host {
    /// Starts `onemark serve` and waits until it says where it listens.
    pub async fn start(place: &Place) -> Result<Self> {
        // The host is on this machine: a proxy would not find it.
        let http = reqwest::Client::builder().no_proxy().build()?;
        let log = OpenOptions::new().create(true).append(true).open(&place.log);
        let log = log.with_context(|| format!("could not open `{}`", place.log.display()))?;
        let mut child = Command::new(&place.program)
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--allow-http",
                &place.allow_http,
            ])
            .arg("--db")
            .arg(&place.database)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .with_context(|| format!("could not start `{}`", place.program.display()))?;
        let stdout = child.stdout.take();
        let api = Api {
            url: String::new(),
            http,
        };
        let mut host = Self { child, api };
        let stdout = stdout.context("the host's stdout is not a pipe")?;
        let line = within("the host is ready", first_line(stdout))
            .await?
            .unwrap_or_default();
        let url = line.split_whitespace().find(|word| word.starts_with("http://"));
        host.api.url = url.context("`onemark serve` did not start")?.to_owned();
        Ok(host)
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process as a crash would: SIGKILL. Returns once it is gone.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("could not kill the host")?;
        self.child.wait().context("could not wait for the host's end")?;
        Ok(())
    }
}

impl Api {
    pub async fn deploy(&self, name: &str, component: Vec<u8>) -> Result<Value> {
        self.send_component(Method::PUT, &format!("/v1/components/{name}"), component)
            .await
    }

    pub async fn start(&self, workflow: &str, input: &Value) -> Result<Start> {
        let body = json!({ "workflow": workflow, "input": input });
        let (status, answer) = self.send(Method::POST, "/v1/runs", Some(&body)).await?;
        if status == StatusCode::CONFLICT {
            let error = &answer["error"];
            ensure!(error["code"] == "hook_conflict", "unexpected conflict: {answer}");
            return Ok(Start::Conflict {
                owner: text(error, "conflicting_run_id")?,
            });
        }
        let receipt = expect(status, StatusCode::CREATED, answer)?;
        Ok(Start::Started {
            run_id: text(&receipt, "run_id")?,
        })
    }

    /// Delivers a payload; the run that owns the hook and the payload's position in its journal.
    pub async fn deliver(&self, token: &str, payload: &Value) -> Result<(String, u64)> {
        let path = format!("/v1/hooks/{token}");
        let (status, answer) = self.send(Method::POST, &path, Some(payload)).await?;
        let receipt = expect(status, StatusCode::ACCEPTED, answer)?;
        let seq = receipt["seq"].as_u64().context("the receipt has no seq")?;
        Ok((text(&receipt, "run_id")?, seq))
    }

    pub async fn runs(&self) -> Result<Vec<Value>> {
        Ok(serde_json::from_value(
            self.get("/v1/runs").await?["runs"].take(),
        )?)
    }

    pub async fn run(&self, run_id: &str) -> Result<Value> {
        self.get(&format!("/v1/runs/{run_id}")).await
    }

    pub async fn journal(&self, run_id: &str) -> Result<Vec<Entry>> {
        let mut page = self.get(&format!("/v1/runs/{run_id}/journal?limit=1000")).await?;
        Ok(serde_json::from_value(page["entries"].take())?)
    }

    /// How the run ended; waits for it.
    pub async fn result(&self, run_id: &str) -> Result<Value> {
        self.get(&format!("/v1/runs/{run_id}/result?wait=60s")).await
    }

    /// Replays a run against another component; what was found.
    pub async fn replay(&self, run_id: &str, component: Vec<u8>) -> Result<Value> {
        self.send_component(Method::POST, &format!("/v1/runs/{run_id}/replay"), component)
            .await
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let (status, answer) = self.send(Method::GET, path, None).await?;
        expect(status, StatusCode::OK, answer)
    }

    async fn send_component(&self, method: Method, path: &str, bytes: Vec<u8>) -> Result<Value> {
        let request = self.http.request(method, format!("{}{path}", self.url));
        let request = request.header(CONTENT_TYPE, "application/wasm").body(bytes);
        let (status, answer) = answer(request).await?;
        expect(status, StatusCode::OK, answer)
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        answer(request).await
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Fails only when the process is gone already.
        let _ = self.child.kill().is_ok();
        let _ = self.child.wait().is_ok();
    }
}

/// Waits for a fact, but not for ever.
pub async fn within<T>(fact: &str, waiting: impl Future<Output = T>) -> Result<T> {
    let waited = tokio::time::timeout(PATIENCE, waiting).await;
    waited.with_context(|| format!("waited {} s in vain until {fact}", PATIENCE.as_secs()))
}

/// The first line that a program prints. What follows is read and dropped, so that the program never waits.
fn first_line(stdout: ChildStdout) -> oneshot::Receiver<String> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        if stdout.read_line(&mut line).is_ok() && sender.send(line).is_ok() {
            // Ends with the program.
            let _ = io::copy(&mut stdout, &mut io::sink()).is_ok();
        }
    });
    receiver
}

async fn answer(request: reqwest::RequestBuilder) -> Result<(StatusCode, Value)> {
    let response = request.timeout(PATIENCE).send().await?;
    let status = response.status();
    let body = response.bytes().await?;
    let value = serde_json::from_slice(&body)
        .with_context(|| format!("the answer is no JSON: {}", String::from_utf8_lossy(&body)))?;
    Ok((status, value))
}

fn expect(status: StatusCode, expected: StatusCode, answer: Value) -> Result<Value> {
    ensure!(status == expected, "expected {expected}, got {status}: {answer}");
    Ok(answer)
}

pub fn text(value: &Value, field: &str) -> Result<String> {
    let text = value[field]
        .as_str()
        .with_context(|| format!("no `{field}` in {value}"))?;
    Ok(text.to_owned())
}
