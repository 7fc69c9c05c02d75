//! The HTTP surface of a real server: what it answers, what it refuses, and that a refusal writes nothing.

use onemark::api::{self, Secrets, ServerConfig};
use onemark::engine::EngineConfig;
use onemark::ids::RunId;
use onemark::journal::RunStatus;
use onemark::store::RunInfo;
use onemark_tests::{Marks, StoreKind, TestHost, onemark_bin, programs, scheduled, variant};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Map, Value, json};

/// A server on a free port, over a host with the programs deployed.
pub struct Server {
    pub host: TestHost,
    http: reqwest::Client,
    url: String,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

pub struct Answer {
    pub status: StatusCode,
    pub text: String,
    pub json: Value,
}

impl Server {
    pub async fn new() -> Self {
        Self::over(TestHost::new().await).await
    }

    pub async fn over(host: TestHost) -> Self {
        let listener = api::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let serving = tokio::spawn(api::serve(
            listener,
            host.engine.clone(),
            ServerConfig {
                secrets: Secrets::new(|name| (name == "SHOP_SECRET").then(|| "s3cret".to_owned())),
                ..ServerConfig::default()
            },
            std::future::pending(),
        ));
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self {
            host,
            http,
            url,
            serving,
        }
    }

    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request("GET", path)).await
    }

    pub async fn post(&self, path: &str, body: impl ToString) -> Answer {
        send(as_json(self.request("POST", path), &body)).await
    }

    pub async fn post_with_key(&self, path: &str, key: &str, body: impl ToString) -> Answer {
        send(as_json(self.request("POST", path), &body).header("idempotency-key", key)).await
    }

    pub async fn put(&self, name: &str, bytes: impl Into<Vec<u8>>) -> Answer {
        let request = self.request("PUT", &format!("/v1/components/{name}"));
        send(
            request
                .body(bytes.into())
                .header("content-type", "application/wasm"),
        )
        .await
    }

    async fn start(&self, workflow: &str, input: Value, token: &str) -> String {
        let body = json!({ "workflow": workflow, "input": input, "hooks": [{ "token": token }] });
        let answer = self.post("/v1/runs", body).await;
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json["run_id"].as_str().expect("a string").to_owned()
    }

    async fn ended(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}/result?wait=60s")).await.json
    }

    /// Everything that a refused request could have changed. How often a run was met is no part of that.
    async fn contents(&self) -> Value {
        let mut runs = self.get("/v1/runs").await.json;
        for run in runs["runs"].as_array_mut().expect("a list") {
            run["duplicates"].take();
        }
        let mut journals = Vec::new();
        for run in runs["runs"].as_array().expect("a list") {
            let id = run["id"].as_str().expect("a string");
            let mut shown = self.get(&format!("/v1/runs/{id}")).await.json;
            shown["duplicates"].take();
            journals.push(shown);
            journals.push(self.get(&format!("/v1/runs/{id}/journal")).await.json);
        }
        let components = self.get("/v1/components").await.json;
        let components = components["components"].as_array().expect("a list").iter();
        let names: Vec<_> = components
            .map(|it| (it["name"].clone(), it["digest"].clone()))
            .collect();
        json!([runs, journals, names])
    }

    /// Sends a request that must be refused with this status and code, and must leave no trace.
    async fn refused(&self, request: RequestBuilder, status: u16, code: &str) -> Answer {
        let before = self.contents().await;
        let answer = send(request).await;
        assert_eq!(
            (answer.status.as_u16(), answer.code()),
            (status, code),
            "{}",
            answer.text
        );
        assert_eq!(
            self.contents().await,
            before,
            "written by a request that was refused as {code}"
        );
        answer
    }

    async fn refused_post(&self, path: &str, body: impl ToString, status: u16, code: &str) -> Answer {
        self.refused(as_json(self.request("POST", path), &body), status, code)
            .await
    }
}

pub fn as_json(request: RequestBuilder, body: &impl ToString) -> RequestBuilder {
    request
        .header("content-type", "application/json")
        .body(body.to_string())
}

pub async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.expect("an answer");
    let status = response.status();
    let text = response.text().await.expect("a text");
    let json = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: no JSON: {text}"));
    Answer { status, text, json }
}

impl Answer {
    fn code(&self) -> &str {
        self.json["error"]["code"].as_str().unwrap_or("")
    }

    fn message(&self) -> &str {
        self.json["error"]["message"].as_str().unwrap_or("")
    }

    fn says(&self, words: &str) {
        assert!(
            self.message().contains(words),
            "{words:?} is not in {:?}",
            self.message()
        );
    }
}

// ---- what it does -----------------------------------------------------------------------------------

// A01, A02
#[tokio::test(flavor = "multi_thread")]
async fn a_start_is_answered_once_with_201_and_its_duplicate_names_the_owner() {
    let server = Server::new().await;
    let body = json!({ "workflow": "follow", "input": { "id": "42" } });
    let first = server.post("/v1/runs", &body).await;
    assert_eq!(first.status, 201);
    assert_eq!(first.json["started"], true);
    server.host.reached(&run_id(&first), RunStatus::Suspended).await;

    let conflict = server.refused_post("/v1/runs", &body, 409, "hook_conflict").await;
    let error = &conflict.json["error"];
    assert_eq!(error["token"], "order:42");
    assert_eq!(error["conflicting_run_id"], first.json["run_id"]);
    assert_eq!(error["status"], "suspended");
    assert_eq!(error["workflow"], "follow");
    assert!(error["hint"].is_string());
}

fn run_id(answer: &Answer) -> RunId {
    RunId::new(answer.json["run_id"].as_str().expect("a string")).expect("a good id")
}

// A14, A15
#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_leads_to_the_same_run() {
    let server = Server::new().await;
    let mut body = json!({ "workflow": "sequence", "input": { "n": 2 }, "id": "order/42: first" });
    let first = server.post("/v1/runs", &body).await;
    assert_eq!(
        (first.status.as_u16(), &first.json["started"]),
        (201, &json!(true))
    );
    server.ended("order%2F42:%20first").await;
    let again = server.post("/v1/runs", &body).await;
    assert_eq!(
        (again.status.as_u16(), &again.json["started"]),
        (200, &json!(false))
    );
    assert_eq!(again.json["run_id"], "order/42: first");

    body["input"]["n"] = json!(3);
    let conflict = server
        .refused_post("/v1/runs", &body, 409, "run_id_conflict")
        .await;
    assert_eq!(conflict.json["error"]["run_id"], "order/42: first");
}

// A24
#[tokio::test(flavor = "multi_thread")]
async fn a_keyed_start_gets_its_first_answer_again() {
    let server = Server::new().await;
    let body = json!({ "workflow": "sequence", "input": { "n": 2 } });
    let first = server.post_with_key("/v1/runs", "k1", &body).await;
    let again = server.post_with_key("/v1/runs", "k1", &body).await;
    assert_eq!((first.status, &first.json), (again.status, &again.json));
    assert_eq!(
        server.get("/v1/runs").await.json["runs"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    server.ended(run_id(&first).as_str()).await;
    let other = json!({ "workflow": "sequence", "input": { "n": 3 } });
    let request = as_json(server.request("POST", "/v1/runs"), &other).header("idempotency-key", "k1");
    server.refused(request, 409, "key_conflict").await;
}

// B04, B05, B16
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_any_printable_text_work_in_paths() {
    let server = Server::new().await;
    for token in [
        "order:42",
        "a/b/c",
        "100% sure?",
        "#1 & more=less",
        "naïve ☃ +",
        "a%2Fb",
        "...",
    ] {
        let run = server.start("read_any", json!({}), token).await;
        let path = format!("/v1/hooks/{}", encoded(token));
        let hook = server.get(&path).await.json;
        assert_eq!(
            (&hook["token"], &hook["run_id"]),
            (&json!(token), &json!(run)),
            "{token}"
        );

        let receipt = server.post_with_key(&path, "k", "1").await;
        assert_eq!(
            (receipt.status.as_u16(), &receipt.json["run_id"]),
            (202, &json!(run)),
            "{token}"
        );
        assert_eq!(
            server.post_with_key(&path, "k", "1").await.json,
            receipt.json,
            "{token}"
        );
        assert_eq!(
            server.post_with_key(&path, "k", "2").await.code(),
            "key_conflict",
            "{token}"
        );

        server.post(&path, "\"end\"").await;
        assert_eq!(server.ended(&run).await["output"], json!([1]), "{token}");
    }
}

/// Every byte but letters and digits percent-encoded.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

// A07, B07
#[tokio::test(flavor = "multi_thread")]
async fn a_disposed_hook_is_gone_and_its_token_free() {
    let server = Server::new().await;
    let run = server.start("read_any", json!({}), "t").await;
    let disposed = send(server.request("DELETE", "/v1/hooks/t")).await;
    assert_eq!(
        (disposed.status.as_u16(), &disposed.json["state"]),
        (200, &json!("freed"))
    );
    server.ended(&run).await;
    let ended = server.refused_post("/v1/hooks/t", "1", 410, "hook_ended").await;
    assert_eq!(ended.json["error"]["run_id"], json!(run));
    assert_eq!(ended.json["error"]["status"], "completed");
    server.start("read_any", json!({}), "t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_database_refuses_what_it_cannot_write_and_answers_the_rest() {
    let server = Server::new().await;
    let other = rusqlite::Connection::open(server.host.folder().join("onemark.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let body = json!({ "workflow": "sequence", "input": { "n": 1 } });
    let refused = server
        .refused_post("/v1/runs", &body, 503, "store_unavailable")
        .await;
    refused.says("cannot be written now");
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(server.post("/v1/runs", &body).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_keep_every_digit() {
    let server = Server::new().await;
    let payload = "{\"n\": 123456789012345678901234567890.10, \"m\": 1e2}";
    let run = server.start("read_any", json!({}), "t").await;
    server.post("/v1/hooks/t", payload).await;
    let journal = server.get(&format!("/v1/runs/{run}/journal")).await;
    assert!(journal.text.contains(payload), "{}", journal.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages() {
    let server = Server::new().await;
    let mut started = Vec::new();
    for n in 0..5 {
        let body = json!({ "workflow": "sequence", "input": { "n": n } });
        started.push(server.post("/v1/runs", body).await.json["run_id"].clone());
        server.ended(started[n].as_str().unwrap()).await;
    }
    let mut listed = Vec::new();
    let mut path = "/v1/runs?limit=2&status=completed&workflow=sequence".to_owned();
    loop {
        let page = server.get(&path).await.json;
        listed.extend(
            page["runs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|run| run["id"].clone()),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/runs?limit=2&status=completed&workflow=sequence&cursor={cursor}");
    }
    started.reverse();
    assert_eq!(listed, started);
    assert_eq!(server.get("/v1/runs?status=failed").await.json["runs"], json!([]));
    let by_deployment = server.get("/v1/runs?workflow=programs/sequence").await.json;
    assert_eq!(by_deployment["runs"].as_array().unwrap().len(), 5);

    let run = listed[0].as_str().unwrap();
    let whole = server.get(&format!("/v1/runs/{run}/journal")).await.json;
    let mut entries = Vec::new();
    let mut from = json!(0);
    while !from.is_null() {
        let page = server
            .get(&format!("/v1/runs/{run}/journal?limit=3&from={from}"))
            .await
            .json;
        entries.extend(page["entries"].as_array().unwrap().clone());
        from = page["next"].clone();
    }
    assert_eq!(json!(entries), whole["entries"]);
    assert_eq!(entries[0]["event"], "started");
    assert_eq!(entries[0]["fields"]["workflow"], "sequence");
    assert_eq!(entries[0]["body"], json!({ "n": 4 }));
}

// A16, A17, A18, B09
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_meets_a_run_does_as_it_says() {
    let server = Server::new().await;
    let start = async |more: Value| {
        let mut body = json!({
            "workflow": "read_any",
            "input": {},
            "hooks": [{ "token": "a/b", "min_retention": "1h" }],
        });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        server.post("/v1/runs", body).await
    };
    let deliver = |payload: Value, when: &str| json!({ "on_conflict": "deliver", "deliver": { "token": "a/b", "payload": payload, "when": when } });
    let first = start(deliver(json!(1.0), "always")).await;
    assert_eq!(first.status, 201);
    let run = run_id(&first);
    assert_eq!(
        first.json,
        json!({ "run_id": run, "started": true, "delivered": 1 })
    );
    server.host.reached(&run, RunStatus::Suspended).await;
    let attached = start(json!({ "on_conflict": "attach" })).await;
    let told = json!({ "run_id": run, "started": false, "status": "suspended", "input_matches": true });
    assert_eq!((attached.status, attached.json), (StatusCode::OK, told));
    let end = start(deliver(json!("end"), "conflict")).await;
    assert_eq!(end.status, 200);
    assert_eq!(
        (&end.json["run_id"], &end.json["started"]),
        (&json!(run), &json!(false))
    );
    assert_eq!(server.ended(run.as_str()).await["unread"], 0);
    let result = start(json!({ "on_conflict": "attach" })).await;
    assert!(result.text.ends_with(r#""output":[1.0]}"#), "{}", result.text);
    let late = start(deliver(json!(2), "always")).await;
    assert_eq!((late.status, late.code()), (StatusCode::GONE, "hook_ended"));
    assert_eq!(
        (&late.json["error"]["run_id"], &late.json["error"]["status"]),
        (&json!(run), &json!("completed"))
    );

    let payloads = server.get("/v1/hooks/a%2Fb/payloads?limit=1").await.json;
    assert_eq!(
        (&payloads["payloads"][0]["payload"], &payloads["next"]),
        (&json!(1.0), &json!(1))
    );
    let payloads = server.get("/v1/hooks/a%2Fb/payloads?from=1").await.json;
    assert_eq!(payloads["payloads"].as_array().unwrap().len(), 1);
    assert_eq!(
        (
            &payloads["payloads"][0]["number"],
            &payloads["payloads"][0]["read"],
            &payloads["next"]
        ),
        (&json!(1), &json!(true), &json!(null))
    );
}

/// Over HTTP and on the command line.
#[tokio::test(flavor = "multi_thread")]
async fn e12_a_run_that_waits_for_its_turn_says_so() {
    let marks = Marks::start().await;
    let server = Server::over(TestHost::with_http(&[marks.authority()]).await).await;
    marks.hold("7");
    let mut runs = Vec::new();
    for _ in 0..4 {
        let input = json!({ "marks": marks.url(), "customer": { "id": "7" } });
        let body = json!({ "workflow": "two_per_customer", "input": input });
        runs.push(run_id(&server.post("/v1/runs", body).await));
    }
    marks.reached("7", 2).await;
    let shown = server.get(&format!("/v1/runs/{}", runs[3])).await.json;
    assert_eq!(
        shown["waits"],
        json!({ "reason": "concurrency", "key": "customer:7", "limit": 2, "ahead": 1 })
    );
    assert_eq!(shown["status"], "pending");
    assert_eq!(
        shown["concurrency"],
        json!({ "group": "two_per_customer/customer:7", "limit": 2 })
    );
    let listed = server.get("/v1/runs").await.json;
    let waits = |n: usize| &listed["runs"][n]["waits"];
    assert_eq!((&waits(1)["ahead"], waits(2)), (&json!(0), &Value::Null));
    let (url, run) = (server.url.clone(), runs[3].clone());
    let ran = tokio::task::spawn_blocking(move || {
        std::process::Command::new(onemark_bin())
            .args(["runs", "show", run.as_str()])
            .env("ONEMARK_URL", url)
            .output()
    });
    let printed = String::from_utf8(ran.await.unwrap().unwrap().stdout).unwrap();
    let why = "waits for  its turn, 2 of customer:7 at once; 1 waits before it\n";
    assert!(printed.contains(why), "{printed}");
    let body = json!({ "workflow": "one_of", "input": { "of": {} } });
    let refused = server.post("/v1/runs", body).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.text.contains("`of.customer`"), "{}", refused.text);
    marks.let_go();
    for run in &runs {
        server.host.output(run).await;
    }
}

// A22, E14
#[tokio::test(flavor = "multi_thread")]
async fn a_run_can_begin_later_and_be_found_by_its_tags() {
    let server = Server::new().await;
    let mut started = Vec::new();
    for (n, when) in [json!(4_102_444_800_000_u64), json!("2100-01-01T00:00:00Z")]
        .iter()
        .enumerate()
    {
        let body = json!({
            "workflow": "sequence",
            "input": { "n": 1 },
            "start_at": when,
            "tags": { "customer": "7 & co", "n": n.to_string() },
        });
        let run = run_id(&server.post("/v1/runs", body).await);
        let shown = server.get(&format!("/v1/runs/{run}")).await.json;
        assert_eq!(
            shown["waits"],
            json!({ "reason": "start_at", "until": 4_102_444_800_000_u64 })
        );
        assert_eq!(shown["status"], "pending");
        assert_eq!(shown["tags"]["customer"], "7 & co");
        started.push(json!(run));
    }
    server
        .post("/v1/runs", json!({ "workflow": "sequence", "input": { "n": 1 } }))
        .await;
    let found = async |query: &str| {
        let listed = server.get(&format!("/v1/runs?{query}")).await.json;
        let runs = listed["runs"].as_array().expect("a list").iter();
        (
            runs.map(|run| run["id"].clone()).collect::<Vec<_>>(),
            listed["next_cursor"].clone(),
        )
    };
    let tag = "tag=customer%3D7%20%26%20co";
    let (first, cursor) = found(&format!("{tag}&limit=1&created_after=1")).await;
    let second = found(&format!(
        "{tag}&limit=1&created_after=1&cursor={}",
        cursor.as_str().unwrap()
    ))
    .await;
    assert_eq!(
        [&first[..], &second.0].concat(),
        [started[1].clone(), started[0].clone()]
    );
    assert_eq!(second.1, json!(null));
    assert_eq!(found(&format!("{tag}&tag=n%3D0")).await.0, started[..1]);
    assert_eq!(
        found("created_before=2000-01-01T00:00:00Z").await.0,
        [json!(null); 0]
    );
    assert_eq!(found("").await.0.len(), 3);
}

// A19
#[tokio::test(flavor = "multi_thread")]
async fn a_start_can_replace_and_says_whom_it_waits_for() {
    let marks = Marks::start().await;
    marks.hold("tidy");
    let server = Server::over(TestHost::with_http(&[marks.authority()]).await).await;
    let body = |policy: &str| {
        json!({
            "workflow": "works",
            "input": { "marks": marks.url() },
            "hooks": [{ "token": "t" }],
            "on_conflict": policy,
        })
    };
    let first = server.post("/v1/runs", body("replace")).await;
    assert_eq!(
        (first.status, &first.json["replaced"]),
        (StatusCode::CREATED, &json!(null))
    );
    let old = run_id(&first);
    server.host.reached(&old, RunStatus::Suspended).await;
    let second = server.post("/v1/runs", body("replace")).await;
    assert_eq!(
        (second.status, &second.json["replaced"]),
        (StatusCode::CREATED, &json!([old]))
    );
    assert_eq!(second.json["started"], true);
    let new = run_id(&second);
    marks.reached("tidy", 1).await;
    let waits = json!({ "reason": "predecessors", "runs": [old] });
    let shown = server.get(&format!("/v1/runs/{new}")).await.json;
    assert_eq!((&shown["status"], &shown["waits"]), (&json!("pending"), &waits));
    let listed = server.get("/v1/runs?status=pending").await.json;
    assert_eq!(listed["runs"][0]["waits"], waits);
    let asked = server.get(&format!("/v1/runs/{old}")).await.json;
    assert_eq!(asked["cancel_requested"], "replaced");
    marks.let_go();
    server.host.reached(&new, RunStatus::Suspended).await;
    let begun = server.get(&format!("/v1/runs/{new}")).await.json;
    assert_eq!(
        (&begun["waits"], &begun["predecessors"]),
        (&json!(null), &json!([old]))
    );

    let mut both = body("replace");
    both["deliver"] = json!({ "payload": 1 });
    server
        .refused_post("/v1/runs", both, 400, "invalid_request")
        .await;
}

// B18
#[tokio::test(flavor = "multi_thread")]
async fn a_full_hook_answers_429() {
    let config = EngineConfig {
        unread: onemark::store::Cap {
            payloads: 1,
            bytes: 100,
        },
        ..EngineConfig::default()
    };
    let server = Server::over(TestHost::with(StoreKind::Sqlite, config, None, &[]).await).await;
    let body = json!({
        "workflow": "read_any",
        "input": {},
        "hooks": [{ "token": "t" }],
        "start_at": "2100-01-01T00:00:00Z",
    });
    let run = run_id(&server.post("/v1/runs", body).await);
    assert_eq!(server.post("/v1/hooks/t", "1").await.status, 202);
    let full = server.refused_post("/v1/hooks/t", "2", 429, "hook_full").await;
    let told = &full.json["error"];
    assert_eq!(
        (&told["run_id"], &told["limit"], &told["limit_bytes"]),
        (&json!(run), &json!(1), &json!(100))
    );
}

// F01, F04
#[tokio::test(flavor = "multi_thread")]
async fn replays_against_its_own_component_and_another() {
    let server = Server::new().await;
    let run = server.start("changing", json!({}), "t").await;
    server.post("/v1/hooks/t", "4").await;
    assert_eq!(server.ended(&run).await["output"], 7);

    let path = format!("/v1/runs/{run}/replay");
    let own = send(server.request("POST", &path)).await;
    assert_eq!(
        (own.status.as_u16(), &own.json["verdict"]),
        (200, &json!("agrees"))
    );
    let calls = own.json["calls"].as_array().unwrap();
    assert!(calls.iter().all(|call| call["matched"] == true), "{}", own.text);

    let other = server
        .request("POST", &path)
        .header("content-type", "application/wasm");
    let other = send(other.body(variant("renamed").to_vec())).await;
    let diverged = &other.json["verdict"]["diverged"];
    assert_eq!(
        (&diverged["call"], &diverged["recorded"]["name"]),
        (&json!(0), &json!("one"))
    );
    assert!(
        diverged["diff"]
            .as_str()
            .unwrap()
            .contains("+  \"name\": \"two\""),
        "{}",
        other.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_by_name_and_by_digest() {
    let server = Server::new().await;
    let run = server.start("broken", json!({ "how": "panic" }), "t").await;
    assert_eq!(server.ended(&run).await["blocked"]["reason"], "trap");
    let mended = server.put("mended", variant("mended").to_vec()).await.json;

    let path = format!("/v1/runs/{run}/upgrade");
    let unknown = "0".repeat(64);
    server
        .refused_post(&path, json!({ "component": unknown }), 404, "unknown_component")
        .await;
    server
        .refused_post(&path, json!({ "component": "nope" }), 404, "unknown_component")
        .await;
    server
        .refused_post(&path, json!({ "digest": unknown }), 400, "invalid_request")
        .await;
    let upgraded = server.post(&path, json!({ "component": "mended" })).await;
    assert_eq!(upgraded.json["component"], mended["digest"], "{}", upgraded.text);
    assert_eq!(server.ended(&run).await["output"], "saved, mended");
    let body = json!({ "component": mended["digest"] });
    server.refused_post(&path, body, 409, "run_ended").await;
}

/// E13: forks over HTTP, and those that are refused.
#[tokio::test(flavor = "multi_thread")]
async fn forks_at_an_entry() {
    let server = Server::new().await;
    let run = server.start("keys", json!({ "seed": "a" }), "t").await;
    let first = server.ended(&run).await["output"].clone();
    let path = format!("/v1/runs/{run}/fork");
    let journal = server.get(&format!("/v1/runs/{run}/journal")).await.json;
    let entries = journal["entries"].as_array().unwrap();
    let saved = entries.iter().filter(|entry| entry["event"] == "step_completed");
    // Of four steps one is keyed by data and one by its caller.
    let at = saved.clone().nth(1).unwrap()["seq"].clone();
    let end = entries.len() - 1;

    let refused = server
        .refused_post(&path, json!({ "at": at }), 409, "unkeyed_steps")
        .await;
    assert_eq!(refused.json["error"]["steps"], json!(["unkeyed"]));
    let past_end = json!({ "at": end });
    let refused = server.refused_post(&path, past_end, 409, "run_ends_there").await;
    assert_eq!(refused.json["error"]["last"], json!(end - 1));
    let missing = json!({ "at": end + 1 });
    let refused = server.refused_post(&path, missing, 404, "entry_not_found").await;
    assert_eq!(refused.json["error"]["last"], json!(end));
    for body in [
        json!({}),
        json!({ "at": -1 }),
        json!({ "at": 1, "hooks": [{ "token": "x", "for": {} }] }),
        json!({ "at": 1, "hooks": [{ "token": "x", "for": 3 }] }),
        json!({ "at": 1, "on_conflict": "fail" }),
    ] {
        server.refused_post(&path, body, 400, "invalid_request").await;
    }
    let unknown = json!({ "at": 1, "component": "nope", "repeat_unkeyed": true });
    server
        .refused_post(&path, unknown, 404, "unknown_component")
        .await;
    let held = json!({ "at": 1, "repeat_unkeyed": true, "hooks": [{ "token": "t2", "for": "t" }] });
    let owner = server.start("read_any", json!({}), "t2").await;
    let id = RunId::new(&owner).unwrap();
    server.host.reached(&id, RunStatus::Suspended).await;
    let refused = server.refused_post(&path, held, 409, "hook_conflict").await;
    assert_eq!(refused.json["error"]["conflicting_run_id"], owner.as_str());
    let nobody = "/v1/runs/nobody/fork";
    server
        .refused_post(nobody, json!({ "at": 0 }), 404, "run_not_found")
        .await;

    let body = json!({
        "at": at,
        "repeat_unkeyed": true,
        "hooks": [{ "token": "u", "for": "t", "min_retention": "1h" }],
    });
    let forked = server.post_with_key(&path, "once", &body).await;
    assert_eq!(forked.status, StatusCode::CREATED, "{}", forked.text);
    let fork = forked.json["run_id"].as_str().unwrap().to_owned();
    let second = server.ended(&fork).await["output"].clone();
    let same: Vec<_> = (0..4).map(|n| first[n] == second[n]).collect();
    assert_eq!(same, [true, true, false, true]);
    let shown = server.get(&format!("/v1/runs/{fork}")).await.json;
    assert_eq!(shown["lineage"], json!({ "fork": { "of": run, "upto": at } }));
    assert_eq!(shown["tokens"], json!(["u"]));
    assert_eq!(shown["hooks"][0]["state"], "retained");
    // The answer again, whatever is there by now.
    server.put("other", variant("mended").to_vec()).await;
    let again = server.post_with_key(&path, "once", &body).await;
    assert_eq!(again.json["run_id"], fork.as_str());
    let other = json!({ "at": 0, "repeat_unkeyed": true });
    let conflict = server.post_with_key(&path, "once", other).await;
    assert_eq!(conflict.json["error"]["code"], "key_conflict");

    let renamed = server.put("renamed", variant("renamed").to_vec()).await.json;
    let changing = server.start("programs/changing", json!({}), "c").await;
    let id = RunId::new(&changing).unwrap();
    // Asleep for a moment, then waiting for a payload.
    let waits = |run: &RunInfo| run.entries == 9 && run.status == RunStatus::Suspended;
    let at = server.host.until(&id, waits).await.entries - 1;
    let path = format!("/v1/runs/{changing}/fork");
    let body = json!({ "at": at, "component": renamed["digest"], "repeat_unkeyed": true });
    let refused = server.refused_post(&path, body, 409, "does_not_replay").await;
    assert!(
        refused.json["error"]["verdict"]["diverged"]["diff"].is_string(),
        "{}",
        refused.text
    );
}

/// C10, C18: decisions about steps that block their run.
#[tokio::test(flavor = "multi_thread")]
async fn decides_about_steps_that_block_their_run() {
    let server = Server::new().await;
    let nowhere = json!({ "marks": "http://127.0.0.1:1", "how": "panic", "fail": false, "token": "t" });
    // The step gets nowhere, and says so: that is known.
    let run = server.start("runs_once", nowhere, "a").await;
    assert_eq!(server.ended(&run).await["status"], "completed");
    let stuck = async |n: u32| {
        let input = json!({ "good_from_attempt": 3, "fatal": false, "token": format!("stuck:{n}") });
        let run = server.start("waits_for_help", input, &format!("more:{n}")).await;
        let ended = server.ended(&run).await;
        assert_eq!(ended["blocked"]["reason"], "step_failed", "{ended}");
        assert_eq!(
            ended["blocked"]["step"],
            json!({
                "call": 0, "name": "stubborn", "attempt": 2, "key": format!("{run}/0")
            })
        );
        run
    };

    let run = stuck(0).await;
    let path = format!("/v1/runs/{run}/resolve");
    for body in [
        json!({}),
        json!({ "retry": false }),
        json!({ "result": 1, "retry": true }),
        json!({ "result": 1, "error": "e" }),
        json!({ "error": { "text": "e" } }),
        json!({ "result": 1, "step": "stubborn" }),
    ] {
        server.refused_post(&path, body, 400, "invalid_request").await;
    }
    let large = json!({ "result": "x".repeat(1 << 20) });
    server.refused_post(&path, large, 413, "too_large").await;
    let other = server.refused_post(
        &path,
        json!({ "call": 7, "retry": true }),
        409,
        "blocked_elsewhere",
    );
    assert_eq!(other.await.json["error"]["call"], 0);
    let unknown = "/v1/runs/nobody/resolve";
    server
        .refused_post(unknown, json!({ "retry": true }), 404, "run_not_found")
        .await;
    // A result of `null` is one, here of another type than the step's.
    let unfit = json!({ "call": 0, "result": null });
    let unfit = server.refused_post(&path, unfit, 422, "invalid_result").await;
    assert_eq!(
        (&unfit.json["error"]["step"], &unfit.json["error"]["call"]),
        (&json!("stubborn"), &json!(0))
    );
    let found = json!({ "call": 0, "result": [7, "found out"] });
    let resolved = server.post(&path, found).await;
    assert_eq!(
        (resolved.status.as_u16(), &resolved.json["blocked"]),
        (200, &json!(null)),
        "{}",
        resolved.text
    );
    assert_eq!(server.ended(&run).await["status"], "completed");
    server
        .refused_post(&path, json!({ "retry": true }), 409, "run_ended")
        .await;

    let run = stuck(1).await;
    let error = json!({ "error": { "message": "declined", "error": "Declined" } });
    server.post(&format!("/v1/runs/{run}/resolve"), error).await;
    assert_eq!(server.ended(&run).await["error"]["error"], "Declined");

    let run = stuck(2).await;
    let retry = format!("/v1/runs/{run}/retry");
    server
        .refused_post(&retry, json!({ "call": 0 }), 400, "invalid_request")
        .await;
    assert_eq!(server.post(&retry, json!({})).await.status.as_u16(), 200);
    assert_eq!(server.ended(&run).await["output"], json!([3, format!("{run}/0")]));
    server.refused_post(&retry, json!({}), 409, "run_ended").await;

    let runs = [stuck(3).await, stuck(4).await];
    let all = "/v1/runs/retry";
    server
        .refused_post(all, json!({ "reason": "trap" }), 400, "invalid_request")
        .await;
    let none = server.post(all, json!({ "workflow": "sleeps" })).await;
    assert_eq!(none.json, json!({ "retried": 0, "runs": [] }));
    let two = server
        .post(
            all,
            json!({ "workflow": "waits_for_help", "reason": "step_failed" }),
        )
        .await;
    assert_eq!(two.json["retried"], 2, "{}", two.text);
    for run in &runs {
        server.ended(run).await;
    }

    let hooked = server.start("broken", json!({ "how": "panic" }), "b").await;
    assert_eq!(server.ended(&hooked).await["blocked"]["reason"], "trap");
    let retry = format!("/v1/runs/{hooked}/retry");
    let refused = server
        .refused_post(&retry, json!({}), 409, "blocked_otherwise")
        .await;
    assert_eq!(refused.json["error"]["reason"], "trap");
    let asleep = server
        .start("sleeps", json!({ "lengths_ms": [1_000_000] }), "c")
        .await;
    let shown = format!("/v1/runs/{asleep}");
    while server.get(&shown).await.json["status"] != "suspended" {}
    let retry = format!("/v1/runs/{asleep}/retry");
    server.refused_post(&retry, json!({}), 409, "not_blocked").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn says_what_is_deployed_and_that_it_lives() {
    let server = Server::new().await;
    let components = server.get("/v1/components").await.json;
    assert_eq!(components["components"][0]["name"], "programs");
    assert_eq!(components["components"][0]["manifest"]["manifest"], 1);
    let workflows = server.get("/v1/workflows").await.json;
    let follow = workflows["workflows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|w| w["name"] == "follow");
    assert_eq!(follow.unwrap()["deployment"], "programs");
    assert_eq!(server.get("/healthz").await.json, json!({ "status": "ok" }));
    assert_eq!(server.get("/readyz").await.json, json!({ "status": "ok" }));
}

// ---- what it refuses --------------------------------------------------------------------------------

// A21
#[tokio::test(flavor = "multi_thread")]
async fn refuses_bad_starts() {
    let server = Server::new().await;
    let long = "x".repeat(256);
    let workflow = |fields: Value| {
        let mut body = json!({ "workflow": "follow", "input": { "id": "42" } });
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        body.to_string()
    };
    let hook = |fields: Value| workflow(json!({ "hooks": [fields] }));
    let delivers = |deliver: Value| workflow(json!({ "on_conflict": "deliver", "deliver": deliver }));
    let many: Map<_, _> = (0..33).map(|n| (format!("tag{n}"), json!("x"))).collect();
    let deep = format!(
        r#"{{"workflow":"read_any","input":{}1{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    let cases = [
        (String::new(), 400, "invalid_request", "a JSON object"),
        (
            "[\"sequence\",{\"n\":1}]".into(),
            400,
            "invalid_request",
            "a JSON object",
        ),
        ("{".into(), 400, "invalid_request", "EOF"),
        ("[]".into(), 400, "invalid_request", "a JSON object"),
        (
            workflow(json!({})) + " x",
            400,
            "invalid_request",
            "trailing characters",
        ),
        (
            r#"{"workflow":"follow"}"#.into(),
            400,
            "invalid_request",
            "missing field `input`",
        ),
        (
            r#"{"workflow":"follow","input":{id:1}}"#.into(),
            400,
            "invalid_request",
            "input",
        ),
        (
            workflow(json!({ "inptu": 1 })),
            400,
            "invalid_request",
            "unknown field `inptu`",
        ),
        (
            workflow(json!({ "workflow": 1 })),
            400,
            "invalid_request",
            "workflow: invalid type",
        ),
        (
            workflow(json!({ "on_conflict": "retry" })),
            400,
            "invalid_request",
            "on_conflict: unknown variant",
        ),
        (
            workflow(json!({ "on_conflict": "deliver" })),
            400,
            "invalid_request",
            "`deliver` has no payload",
        ),
        (
            workflow(json!({ "deliver": { "payload": 1 } })),
            400,
            "invalid_request",
            "\"on_conflict\": \"deliver\"",
        ),
        (
            delivers(json!({ "payload": 1, "when": "never" })),
            400,
            "invalid_request",
            "deliver.when: unknown variant",
        ),
        (
            delivers(json!({ "payload": 1, "token": "other" })),
            400,
            "invalid_request",
            "does not claim",
        ),
        (
            delivers(json!({ "payload": 1, "token": "" })),
            400,
            "invalid_name",
            "hook token is empty",
        ),
        (
            delivers(json!({ "payload": { "n": "1" }, "when": "always" })),
            422,
            "invalid_payload",
            "does not fit hook `order:42`",
        ),
        (
            delivers(json!({ "payload": "x".repeat(1 << 20) })),
            413,
            "too_large",
            "the payload has",
        ),
        (
            json!({
                "workflow": "sequence",
                "input": { "n": 1 },
                "on_conflict": "deliver",
                "deliver": { "payload": 1 },
            })
            .to_string(),
            400,
            "invalid_request",
            "claims no hook",
        ),
        (
            workflow(json!({ "start_at": "2030-01-01" })),
            400,
            "invalid_request",
            "`2030-01-01` is no time",
        ),
        (
            workflow(json!({ "start_at": -1 })),
            400,
            "invalid_request",
            "start_at: expected milliseconds",
        ),
        (
            workflow(json!({ "tags": { "a": 1 } })),
            400,
            "invalid_request",
            "tags.a: invalid type",
        ),
        (
            workflow(json!({ "tags": { "a": "" } })),
            400,
            "invalid_tag",
            "tag value is empty",
        ),
        (
            workflow(json!({ "tags": { "a=b": "c" } })),
            400,
            "invalid_tag",
            "`a=b` holds `=`",
        ),
        (workflow(json!({ "tags": many })), 400, "invalid_tag", "33 tags"),
        (
            workflow(json!({ "workflow": "nope" })),
            404,
            "unknown_workflow",
            "`nope`",
        ),
        (
            workflow(json!({ "workflow": "nope/follow" })),
            404,
            "unknown_workflow",
            "`nope/follow`",
        ),
        (
            workflow(json!({ "input": { "id": 42 } })),
            422,
            "invalid_input",
            "/id: 42 is not of type",
        ),
        (
            workflow(json!({ "input": {} })),
            422,
            "invalid_input",
            "\"id\" is a required property",
        ),
        (
            workflow(json!({ "input": [1] })),
            422,
            "invalid_input",
            "must be an object",
        ),
        (
            workflow(json!({ "input": { "id": long } })),
            422,
            "invalid_input",
            "hook token has 262 bytes",
        ),
        (
            workflow(json!({ "input": { "id": "x".repeat(1 << 20) } })),
            413,
            "too_large",
            "the input has",
        ),
        (
            workflow(json!({ "input": { "id": "x".repeat(3 << 20) } })),
            413,
            "too_large",
            "the body",
        ),
        (deep, 422, "invalid_input", "nested more than 127 deep"),
        (
            r#"{"workflow":"sequence","input":{"n":1.0}}"#.into(),
            422,
            "invalid_input",
            "/n: 1.0 is no `uint64`",
        ),
        (
            r#"{"workflow":"sequence","input":{"n":1,"n":1}}"#.into(),
            422,
            "invalid_input",
            "`n` is there twice",
        ),
        (
            workflow(json!({ "id": "" })),
            400,
            "invalid_name",
            "run id is empty",
        ),
        (
            workflow(json!({ "id": long })),
            400,
            "invalid_name",
            "run id has 256 bytes",
        ),
        (
            hook(json!({ "token": "" })),
            400,
            "invalid_name",
            "hook token is empty",
        ),
        (
            hook(json!({ "token": long })),
            400,
            "invalid_name",
            "hook token has 256 bytes",
        ),
        (
            hook(json!({ "token": "a\nb" })),
            400,
            "invalid_name",
            "control character",
        ),
        (
            hook(json!({ "token": "t", "ttl": 1 })),
            400,
            "invalid_request",
            "hooks[0].ttl: unknown field `ttl`",
        ),
        (
            hook(json!({ "token": "t", "min_retention": "soon" })),
            400,
            "invalid_request",
            "`soon`",
        ),
        (
            hook(json!({ "token": "t", "min_retention": 5 })),
            400,
            "invalid_request",
            "hooks[0].min_retention",
        ),
        (
            json!({ "workflow": "read_any", "input": {}, "min_retention": "1h" }).to_string(),
            400,
            "invalid_request",
            "no token to keep",
        ),
        (
            hook(json!({ "token": "t", "min_retention": "400days" })),
            422,
            "retention_too_long",
            "over the limit",
        ),
        (
            workflow(json!({ "hooks": [{ "token": "t" }, { "token": "t" }] })),
            400,
            "invalid_request",
            "twice",
        ),
    ];
    for (body, status, code, words) in cases {
        server
            .refused_post("/v1/runs", body, status, code)
            .await
            .says(words);
    }
    assert_eq!(server.get("/v1/runs").await.json["runs"], json!([]));
    assert_eq!(
        server.get("/v1/hooks/order:42").await.status,
        404,
        "the token is still free"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_bad_headers_paths_and_queries() {
    let server = Server::new().await;
    let start = json!({ "workflow": "sequence", "input": { "n": 1 } }).to_string();
    let plain = |kind: Option<&str>| {
        let request = server.request("POST", "/v1/runs").body(start.clone());
        match kind {
            Some(kind) => request.header("content-type", kind),
            None => request,
        }
    };
    for kind in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
    ] {
        server.refused(plain(kind), 415, "wrong_content_type").await;
    }
    let keyed = |key: &str| plain(Some("application/json; charset=utf-8")).header("idempotency-key", key);
    server
        .refused(keyed(""), 400, "invalid_name")
        .await
        .says("idempotency key is empty");
    server
        .refused(keyed(&"x".repeat(256)), 400, "invalid_name")
        .await
        .says("256 bytes");
    server
        .refused(keyed("a").header("idempotency-key", "b"), 400, "invalid_request")
        .await;

    for (method, path, status, code) in [
        ("GET", "/", 404, "unknown_route"),
        ("GET", "/v1/nope", 404, "unknown_route"),
        ("POST", "/v1/hooks/a/b", 404, "unknown_route"),
        ("DELETE", "/v1/runs", 405, "method_not_allowed"),
        ("GET", "/v1/components/programs", 405, "method_not_allowed"),
        ("GET", "/v1/runs/nope", 404, "run_not_found"),
        ("GET", "/v1/runs/nope/journal", 404, "run_not_found"),
        ("GET", "/v1/runs/nope/result?wait=1s", 404, "run_not_found"),
        ("POST", "/v1/runs/nope/replay", 404, "run_not_found"),
        ("GET", "/v1/hooks/nope", 404, "hook_not_found"),
        ("DELETE", "/v1/hooks/nope", 404, "hook_not_found"),
        ("GET", "/v1/hooks/%FF", 400, "invalid_request"),
        ("GET", "/v1/hooks/a%0Ab", 400, "invalid_name"),
        ("GET", "/v1/runs?status=nope", 400, "invalid_request"),
        ("GET", "/v1/runs?limit=0", 400, "invalid_request"),
        ("GET", "/v1/runs?limit=1001", 400, "invalid_request"),
        ("GET", "/v1/runs?limit=-1", 400, "invalid_request"),
        ("GET", "/v1/runs?cursor=nope", 400, "invalid_request"),
        ("GET", "/v1/runs?cursor=", 400, "invalid_name"),
        ("GET", "/v1/runs?parent=", 400, "invalid_name"),
        ("GET", "/v1/runs?sort=name", 400, "invalid_request"),
        ("GET", "/v1/runs?limit=1&limit=2", 400, "invalid_request"),
        ("GET", "/v1/runs?tag=customer", 400, "invalid_request"),
        ("GET", "/v1/runs?tag=customer=", 400, "invalid_tag"),
        ("GET", "/v1/runs?tag=a=1&tag=a=2", 400, "invalid_request"),
        ("GET", "/v1/runs?created_after=soon", 400, "invalid_request"),
        ("GET", "/v1/hooks/nope/payloads", 404, "hook_not_found"),
        ("GET", "/v1/hooks/nope/payloads?limit=0", 400, "invalid_request"),
        ("GET", "/v1/runs/nope/result?wait=soon", 400, "invalid_request"),
        ("GET", "/v1/runs/nope/result?wait=1h", 400, "invalid_request"),
    ] {
        server.refused(server.request(method, path), status, code).await;
    }
}

// B06, B13, B17
#[tokio::test(flavor = "multi_thread")]
async fn refuses_bad_deliveries() {
    let server = Server::new().await;
    let body = json!({ "workflow": "follow", "input": { "id": "42" } });
    let run = run_id(&server.post("/v1/runs", body).await);
    server.host.reached(&run, RunStatus::Suspended).await;
    let hook = "/v1/hooks/order:42";

    server
        .refused_post("/v1/hooks/nope", "1", 404, "hook_not_found")
        .await;
    server
        .refused_post(
            &format!("/v1/hooks/{}", "x".repeat(256)),
            "1",
            400,
            "invalid_name",
        )
        .await;
    for body in ["", "{", "{\"n\":1}}", "nul", "'1'"] {
        server
            .refused_post(hook, body, 400, "invalid_request")
            .await
            .says("no JSON");
    }
    let deep = "[".repeat(200) + &"]".repeat(200);
    server
        .refused_post(hook, deep, 400, "invalid_request")
        .await
        .says("nested more than 127 deep");
    for (body, words) in [
        (r#"{"n":1,"n":1,"last":true}"#, "`n` is there twice"),
        (r#"{"n":1e400,"last":true}"#, "out of range"),
        (r#"{"n":1.0,"last":true}"#, "/n: 1.0 is no `uint64`"),
    ] {
        server
            .refused_post(hook, body, 422, "invalid_payload")
            .await
            .says(words);
    }
    let large = json!({ "n": 1, "last": false, "more": "x".repeat(1 << 20) });
    server.refused_post(hook, large, 413, "too_large").await;
    let mismatch = server
        .refused_post(hook, json!({ "n": "1", "last": 2 }), 422, "invalid_payload")
        .await;
    mismatch.says("/n:");
    mismatch.says("/last:");
    let not_utf8 = server
        .request("POST", hook)
        .header("content-type", "application/json");
    server
        .refused(not_utf8.body(vec![b'"', 0xff, b'"']), 400, "invalid_request")
        .await;
    let plain = server
        .request("POST", hook)
        .header("content-type", "text/plain")
        .body("1");
    server.refused(plain, 415, "wrong_content_type").await;
}

/// A component with nothing in it.
const EMPTY_COMPONENT: [u8; 8] = *b"\0asm\x0d\0\x01\0";
const EMPTY_MODULE: [u8; 8] = *b"\0asm\x01\0\0\0";

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_says_too_much_of_itself_is_refused() {
    let server = Server::new().await;
    let put = server
        .request("PUT", "/v1/components/wordy")
        .header("content-type", "application/wasm")
        .body(variant("wordy").to_vec());
    let refused = server.refused(put, 422, "invalid_manifest").await;
    refused.says("the manifest has ");
    refused.says("the limit is 1048576");
}

#[tokio::test(flavor = "multi_thread")]
async fn workflows_of_many_deployments_are_listed_and_follow_what_is_deployed() {
    let server = Server::new().await;
    let mut expected = std::collections::BTreeMap::new();
    let deploy = async |name: &str, bytes: std::sync::Arc<[u8]>| {
        let deployed = server.put(name, bytes.to_vec()).await;
        assert_eq!(deployed.status, 200, "{}", deployed.text);
        deployed.json
    };
    let listed = async || {
        let answer = server.get("/v1/workflows").await;
        answer.json["workflows"].as_array().expect("a list").clone()
    };
    for number in 0..30 {
        let name = format!("many-{number}");
        let bytes = if number % 2 == 0 {
            programs()
        } else {
            variant("added")
        };
        expected.insert(name.clone(), deploy(&name, bytes).await);
        // In between, so that what was listed before is out of date.
        let workflows = listed().await;
        assert!(workflows.iter().any(|it| it["deployment"] == name), "{name}");
    }
    // Given to another component, while others keep theirs.
    expected.insert("many-0".into(), deploy("many-0", variant("removed")).await);
    expected.insert("programs".into(), deploy("programs", programs()).await);

    let workflows = listed().await;
    let names: Vec<_> = workflows
        .iter()
        .map(|it| (it["deployment"].as_str().unwrap(), it["name"].as_str().unwrap()))
        .collect();
    assert!(names.is_sorted(), "{names:?}");
    let mut declared = 0;
    for (name, receipt) in &expected {
        for manifest in receipt["manifest"]["workflows"].as_array().unwrap() {
            let it = (name.as_str(), manifest["name"].as_str().unwrap());
            let at = names.binary_search(&it).unwrap_or_else(|_| panic!("{it:?}"));
            assert_eq!(workflows[at]["component"], receipt["digest"], "{it:?}");
            assert_eq!(workflows[at]["manifest"], *manifest, "{it:?}");
            declared += 1;
        }
    }
    assert_eq!(workflows.len(), declared);
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_what_is_no_workflow_component() {
    let server = Server::new().await;
    let cut = programs()[..10_000].to_vec();
    let cases: [(&[u8], &str, &str); 5] = [
        (b"", "not_a_component", "the file is empty"),
        (b"#!/bin/sh\n", "not_a_component", "no WebAssembly component"),
        (&EMPTY_MODULE, "core_module", "wasm32-wasip2"),
        (&EMPTY_COMPONENT, "missing_exports", "onemark:workflow/"),
        (&cut, "not_a_component", "no WebAssembly component"),
    ];
    let put = |name: &str| {
        let request = server.request("PUT", &format!("/v1/components/{name}"));
        request.header("content-type", "application/wasm")
    };
    for (bytes, code, words) in cases {
        server
            .refused(put("new").body(bytes.to_vec()), 422, code)
            .await
            .says(words);
    }
    for name in ["a%20b", "a%2Fb", &"x".repeat(101)] {
        let request = put(name).body(programs().to_vec());
        server
            .refused(request, 400, "invalid_request")
            .await
            .says("is no name for a deployment");
    }
    let form = server.request("PUT", "/v1/components/new");
    let form = form
        .header("content-type", "multipart/form-data; boundary=x")
        .body("--x");
    server.refused(form, 415, "wrong_content_type").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_that_two_components_have_must_be_named_in_full() {
    let server = Server::new().await;
    server.put("other", variant("other").to_vec()).await;
    let body = json!({ "workflow": "sequence", "input": { "n": 1 } });
    let ambiguous = server
        .refused_post("/v1/runs", &body, 409, "workflow_ambiguous")
        .await;
    let candidates = &ambiguous.json["error"]["candidates"];
    assert_eq!(*candidates, json!(["other/sequence", "programs/sequence"]));
    server.start("other/sequence", json!({ "n": 1 }), "t").await;
}

#[tokio::test]
async fn listens_on_this_machine_only() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7070"] {
        let error = api::bind(address).await.unwrap_err();
        assert!(matches!(error, api::BindError::NotLoopback(_)), "{error}");
    }
    for address in ["", "7070", "127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1:1"] {
        let error = api::bind(address).await.unwrap_err();
        assert!(matches!(error, api::BindError::Address { .. }), "{error}");
    }
    let taken = api::bind("127.0.0.1:0").await.unwrap();
    let error = api::bind(&taken.local_addr().unwrap().to_string())
        .await
        .unwrap_err();
    assert!(matches!(error, api::BindError::InUse(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_answers_as_the_database_does() {
    for kind in StoreKind::ALL {
        let host = TestHost::with(kind, EngineConfig::default(), None, &[]).await;
        let server = Server::over(host).await;
        let run = server.start("read_any", json!({}), "t").await;
        server
            .host
            .reached(&RunId::new(&run).unwrap(), RunStatus::Suspended)
            .await;
        let conflict = json!({ "workflow": "read_any", "input": {}, "hooks": [{ "token": "t" }] });
        server
            .refused_post("/v1/runs", conflict, 409, "hook_conflict")
            .await;
        server.post("/v1/hooks/t", "\"end\"").await;
        assert_eq!(server.ended(&run).await["status"], "completed");
        server.refused_post("/v1/hooks/t", "1", 410, "hook_ended").await;
    }
}

// E15
#[tokio::test(flavor = "multi_thread")]
async fn streams_are_read_by_page_and_followed_from_an_index() {
    let server = Server::new().await;
    let run = server.start("echoes", json!({ "token": "echo" }), "other").await;
    let base = format!("/v1/runs/{run}/streams");
    assert_eq!(server.get(&base).await.json, json!({ "streams": [] }));

    let mut early = Events::of(&server, &format!("{base}/echo?follow=true"), None).await;
    for word in ["a", "b"] {
        server.post("/v1/hooks/echo", json!(word)).await;
    }
    for (index, word) in ["a", "b"].into_iter().enumerate() {
        let (id, data) = early.next().await.expect("an event");
        assert_eq!(id, index.to_string());
        assert_eq!(
            [&data["chunk"], &data["call"], &data["attempt"]],
            [&json!(word), &json!(null), &json!(0)]
        );
    }
    // Who was cut off goes on after the last that it has.
    let mut late = Events::of(&server, &format!("{base}/echo?follow=true"), Some("0")).await;
    assert_eq!(late.next().await.expect("an event").1["chunk"], "b");

    let page = server.get(&format!("{base}/echo?from=0&limit=1")).await.json;
    assert_eq!(
        (&page["chunks"][0]["chunk"], &page["next"]),
        (&json!("a"), &json!(1))
    );
    let page = server.get(&format!("{base}/echo?from=1")).await.json;
    assert_eq!(
        (&page["chunks"][0]["chunk"], &page["next"]),
        (&json!("b"), &json!(null))
    );

    server.post("/v1/hooks/echo", json!("end")).await;
    for events in [&mut early, &mut late] {
        assert_eq!(events.next().await.expect("an event").1["chunk"], "end");
        let (id, data) = events.next().await.expect("the end");
        assert_eq!((&*id, data), ("end", json!({ "status": "completed" })));
        assert!(events.next().await.is_none());
    }
    let listed = server.get(&base).await.json;
    assert_eq!(
        listed,
        json!({ "streams": [{ "name": "echo", "chunks": 3, "bytes": 11 }] })
    );

    for (path, status) in [
        ("/v1/runs/nobody/streams".to_owned(), 404),
        ("/v1/runs/nobody/streams/echo".to_owned(), 404),
        ("/v1/runs/nobody/streams/echo?follow=true".to_owned(), 404),
        (format!("{base}/echo?limit=0"), 400),
        (format!("{base}/echo?follow=true&limit=1"), 400),
        (format!("{base}/echo?from=x"), 400),
        (format!("{base}/a%0Ab"), 400),
    ] {
        assert_eq!(server.get(&path).await.status, status, "{path}");
    }
    let path = format!("{base}/echo?follow=true");
    let answer = send(server.request("GET", &path).header("last-event-id", "x")).await;
    assert_eq!(answer.status, 400, "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_read_by_page_and_followed_from_an_index() {
    let server = Server::new().await;
    let run = server
        .start("says_what_comes", json!({ "token": "say" }), "said")
        .await;
    let base = format!("/v1/runs/{run}/logs");
    let mut early = Events::of(&server, &format!("{base}?follow=true&level=info"), None).await;
    for word in ["a", "b"] {
        server.post("/v1/hooks/say", json!(word)).await;
    }
    for (index, word) in [(1, "a"), (2, "b")] {
        let (id, line) = early.next().await.expect("an event");
        assert_eq!((id, &line["text"]), (index.to_string(), &json!(word)));
        assert_eq!(
            [&line["level"], &line["call"], &line["attempt"]],
            [&json!("info"), &json!(null), &json!(0)]
        );
        assert!(line["seq"].is_u64() && line["at"].is_u64(), "{line}");
    }
    let page = server.get(&format!("{base}?limit=1")).await.json;
    assert_eq!(
        [&page["lines"][0]["level"], &page["next"], &page["dropped"]],
        [&json!("debug"), &json!(1), &json!(0)]
    );
    let page = server.get(&format!("{base}?from=2&level=info")).await.json;
    assert_eq!(
        [&page["lines"][0]["text"], &page["next"]],
        [&json!("b"), &json!(null)]
    );

    // Who was cut off goes on after the last that it has; what is accepted says how it is read, too.
    let request = server.request("GET", &base).header("last-event-id", "1");
    let response = request
        .header("accept", "text/event-stream")
        .send()
        .await
        .unwrap();
    let mut late = Events {
        response,
        unread: String::new(),
    };
    assert_eq!(late.next().await.expect("an event").1["text"], "b");
    server.post("/v1/hooks/say", json!("end")).await;
    for events in [&mut early, &mut late] {
        assert_eq!(events.next().await.expect("an event").1["text"], "end");
        let (id, data) = events.next().await.expect("the end");
        assert_eq!(
            (&*id, data),
            ("end", json!({ "status": "completed", "dropped": 0 }))
        );
        assert!(events.next().await.is_none());
    }
    for (path, status) in [
        ("/v1/runs/nobody/logs".to_owned(), 404),
        ("/v1/runs/nobody/logs?follow=true".to_owned(), 404),
        (format!("{base}?level=loud"), 400),
        (format!("{base}?limit=0"), 400),
        (format!("{base}?follow=true&limit=1"), 400),
        (format!("{base}?form=1"), 400),
    ] {
        assert_eq!(server.get(&path).await.status, status, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_are_fetched_by_digest() {
    let server = Server::new().await;
    let run = server
        .start("hands_blobs_on", json!({ "text": "large" }), "blobs")
        .await;
    let result = server.get(&format!("/v1/runs/{run}/result?wait=60s")).await.json;
    let digest = result["output"][1]["digest"].as_str().expect("a digest");
    let response = server
        .request("GET", &format!("/v1/blobs/{digest}"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/octet-stream");
    assert_eq!(response.headers()["content-length"], "15");
    assert_eq!(response.text().await.unwrap(), "large and large");
    let unknown = server.get(&format!("/v1/blobs/{}", "0".repeat(64))).await;
    assert_eq!(
        (unknown.status.as_u16(), &unknown.json["error"]["code"]),
        (404, &json!("blob_not_found"))
    );
    for bad in ["..%2F..%2Fetc%2Fpasswd", "x"] {
        assert_eq!(server.get(&format!("/v1/blobs/{bad}")).await.status, 400, "{bad}");
    }
}

/// Server-sent events of one answer.
struct Events {
    response: reqwest::Response,
    unread: String,
}

impl Events {
    async fn of(server: &Server, path: &str, last: Option<&str>) -> Self {
        let mut request = server.request("GET", path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.expect("an answer");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            unread: String::new(),
        }
    }

    /// Id or else name of the next event, and its data.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let id = field("id: ").or(field("event: ")).map(str::to_owned);
                let data = field("data: ").map(|data| serde_json::from_str(data).expect("JSON"));
                self.unread = rest.to_owned();
                if let Some(found) = id.zip(data) {
                    return Some(found);
                }
            } else {
                let bytes = self.response.chunk().await.expect("it goes on")?;
                self.unread.push_str(std::str::from_utf8(&bytes).expect("text"));
            }
        }
    }
}
#[tokio::test(flavor = "multi_thread")]
async fn e09_events_through_http() {
    let server = Server::new().await;
    let body = json!({ "id": "7", "note": "wait" });
    let first = server.post_with_key("/v1/events/order.paid", "e1", &body).await;
    assert_eq!(first.status, StatusCode::OK);
    let runs = first.json["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    assert!(
        runs.iter()
            .all(|run| run["started"] == true && run["run_id"].is_string())
    );
    let again = server.post_with_key("/v1/events/order.paid", "e1", &body).await;
    assert_eq!((again.status, again.text), (StatusCode::OK, first.text));
    let other = server
        .post_with_key("/v1/events/order.paid", "e1", json!({ "id": "8" }))
        .await;
    assert_eq!(
        (other.status, &other.json["error"]["code"]),
        (StatusCode::CONFLICT, &json!("key_conflict"))
    );

    let next = server.post_with_key("/v1/events/order.paid", "e2", &body).await;
    let ships = &next.json["runs"][1];
    assert_eq!(ships["started"], false);
    assert_eq!(ships["conflict"]["token"], "ship:7");
    assert_eq!(ships["conflict"]["run"], runs[1]["run_id"]);

    let odd = "/v1/events/gr%C3%B6%C3%9Fe%2Fa%20b%252F";
    let odd_event = server.post(odd, json!({ "n": 1 })).await;
    assert_eq!(odd_event.json["runs"][0]["workflow"], "programs/odd_event");
    let unfit = server.post(odd, json!({})).await;
    assert_eq!(
        (unfit.status, &unfit.json["error"]["code"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid_event"))
    );
    let name = "x".repeat(256);
    for bad in [name.as_str(), "a%0Ab"] {
        let answer = server.post(&format!("/v1/events/{bad}"), json!({})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e10_schedules_through_http() {
    let server = Server::new().await;
    server.put("scheduled", scheduled().to_vec()).await;
    let listed = server.get("/v1/schedules").await;
    let hourly = &listed.json["schedules"][0];
    assert_eq!(hourly["name"], "scheduled/each_hour");
    assert_eq!(
        (&hourly["cron"], &hourly["time_zone"]),
        (&json!("0 * * * *"), &json!("UTC"))
    );
    assert!(hourly["next"].is_u64());
    let path = "/v1/schedules/scheduled%2Feach_hour/backfill";
    let range = json!({ "from": "2020-01-01T00:00:00Z", "to": "2020-01-01T02:30:00Z" });
    let first = server.post(path, &range).await;
    let slots = first.json["slots"].as_array().unwrap();
    assert_eq!(slots.len(), 3, "{}", first.text);
    assert!(
        slots
            .iter()
            .all(|slot| slot["existing"] == false && slot["run_id"].is_string())
    );
    let again = server.post(path, &range).await;
    assert_eq!(again.json["slots"][2]["run_id"], slots[2]["run_id"]);
    assert_eq!(again.json["slots"][2]["existing"], true);
    let unknown = server.post("/v1/schedules/nobody/backfill", &range).await;
    assert_eq!(unknown.json["error"]["code"], "schedule_not_found");
    assert_eq!(
        server.post(path, json!({ "from": 1 })).await.status,
        StatusCode::BAD_REQUEST
    );
}
