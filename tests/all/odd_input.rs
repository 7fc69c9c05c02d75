//! What nobody expects: odd names in every place that takes one, times at the end of time, children of nobody, runs
//! that go on for ever. Each works with the very same bytes, or is refused with its reason; nothing is lost.

use std::time::Duration;

use onemark::clock::Clock as _;
use onemark::engine::Error;
use onemark::ids::RunId;
use onemark::journal::{Event, RunStatus};
use onemark::store::RunFilter;
use onemark_tests::{StoreKind, TestHost, on_each_store};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::api::{Answer, Server, as_json, send};

on_each_store! {
    odd_names_inside_a_workflow,
    sleeps_until_the_end_of_time,
    a_run_that_goes_on_for_ever_starves_nobody_and_can_be_ended,
    the_parent_of_a_child_that_cannot_be_goes_on,
}

/// Each is a name.
fn odd() -> Vec<String> {
    let mut names: Vec<String> = [
        "a/b//c/",
        "/",
        "/../v1/runs",
        "..a",
        "...",
        "%",
        "%2e%2e",
        "100%25 sure",
        "two  spaces",
        "größe ☃ 🦀 e\u{301}",
        "\u{202e}right to left\u{feff}",
        "?a=b&c=d#e;f",
        "quotes \"'`\\",
        "--help",
        "null",
        "{event}",
        "'; DROP TABLE runs; --",
    ]
    .map(str::to_owned)
    .into();
    names.push("x".repeat(255));
    names.push("☃".repeat(85));
    names
}

/// None is a name; with the words that say why.
fn refused() -> Vec<(String, &'static str)> {
    vec![
        (String::new(), "is empty"),
        (".".into(), "cannot stand in a URL"),
        ("..".into(), "cannot stand in a URL"),
        ("a\nb".into(), "control character"),
        ("\0".into(), "control character"),
        ("\u{85}".into(), "control character"),
        ("x".repeat(256), "256 bytes"),
        ("☃".repeat(86), "258 bytes"),
    ]
}

/// Every byte percent-encoded, also dots: what reads URLs must not take it for a folder.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

async fn ok(request: RequestBuilder) -> Answer {
    let answer = send(request).await;
    assert!(answer.status.is_success(), "{}: {}", answer.status, answer.text);
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_names_through_http() {
    let server = Server::new().await;
    let get = async |path: String| ok(server.request("GET", &path)).await.json;
    for name in odd() {
        let path = encoded(&name);
        let key = |request: RequestBuilder| request.header("idempotency-key", name.as_bytes());
        let body = json!({
            "workflow": "echoes",
            "input": { "token": name },
            "id": name,
            "tags": { "odd": name, name.replace('=', "-"): name },
        });
        let start = || key(as_json(server.request("POST", "/v1/runs"), &body));
        let started = ok(start()).await;
        assert_eq!(started.json["run_id"], name);
        assert_eq!(ok(start()).await.text, started.text, "{name}");

        let shown = get(format!("/v1/runs/{path}")).await;
        assert_eq!(
            [&shown["id"], &shown["tags"]["odd"], &shown["hooks"][0]["token"]],
            [&json!(name); 3]
        );
        for part in [
            "tag=odd%3D",
            &format!("tag={}%3D", encoded(&name.replace('=', "-"))),
        ] {
            let found = get(format!("/v1/runs?{part}{path}")).await;
            assert_eq!(found["runs"][0]["id"], name);
        }
        get(format!("/v1/runs?cursor={path}")).await;

        let hook = format!("/v1/hooks/{path}");
        assert_eq!(get(hook.clone()).await["run_id"], name);
        for _ in 0..2 {
            let delivered = ok(key(as_json(server.request("POST", &hook), &json!(name)))).await;
            assert_eq!(delivered.json["run_id"], name);
        }
        assert_eq!(
            get(format!("{hook}/payloads")).await["payloads"][0]["payload"],
            name
        );
        // Its token can be guessed, so it has no URL.
        let guessed = send(as_json(server.request("POST", &format!("/hooks/{path}")), &"1")).await;
        assert_eq!(guessed.status, 404, "{}", guessed.text);
        ok(server.request("DELETE", &hook)).await;
        let result = get(format!("/v1/runs/{path}/result?wait=60s")).await;
        assert_eq!((&result["run_id"], &result["output"]), (&json!(name), &json!(1)));
        assert_eq!(
            get(format!("/v1/runs/{path}/streams/echo")).await["chunks"][0]["chunk"],
            name
        );
        let empty = get(format!("/v1/runs/{path}/streams/{path}")).await;
        assert_eq!(empty["chunks"], json!([]));
        let lines = get(format!("/v1/runs/{path}/logs")).await;
        let text = lines["lines"][0]["text"].as_str().unwrap();
        assert!(text.ends_with(&format!("for {name}")), "{text}");
        get(format!("/v1/runs/{path}/journal")).await;
        ok(server.request("POST", &format!("/v1/runs/{path}/replay"))).await;
        let emitted = ok(key(as_json(
            server.request("POST", &format!("/v1/events/{path}")),
            &"1",
        )))
        .await;
        assert_eq!(emitted.json, json!({ "event": name, "runs": [] }));

        // Of nothing that is called so.
        for (method, path, status) in [
            ("POST", format!("/v1/schedules/{path}/backfill"), 404),
            ("GET", format!("/v1/blobs/{path}"), 400),
            ("POST", format!("/webhooks/{path}"), 404),
            ("POST", format!("/v1/runs/{path}/upgrade"), 404),
            ("POST", format!("/v1/runs/{path}/cancel"), 409),
        ] {
            let body = match path.as_str() {
                path if path.ends_with("backfill") => json!({ "from": 0, "to": 1 }),
                path if path.ends_with("upgrade") => json!({ "component": name }),
                _ => json!({}),
            };
            let answer = send(as_json(server.request(method, &path), &body)).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.text);
        }
        let workflow = json!({ "workflow": name, "input": {} });
        let unknown = server.post("/v1/runs", &workflow).await;
        assert_eq!(
            unknown.json["error"]["code"], "unknown_workflow",
            "{}",
            unknown.text
        );
        assert!(unknown.text.len() < 2_000, "{}", unknown.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_name_is_refused_everywhere() {
    let server = Server::new().await;
    let held = server.host.start_with("read_any", json!({}), &["held"]).await;
    server.host.reached(&held, RunStatus::Suspended).await;
    let start = |more: Value| {
        let mut body = json!({ "workflow": "echoes", "input": { "token": "t" } });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        ("POST", "/v1/runs".to_owned(), body)
    };
    let before = server.host.everything().await;
    let run = before[0].0.id.clone();
    for (name, why) in refused() {
        let path = encoded(&name);
        let mut requests = vec![
            (start(json!({ "id": name })), "run id"),
            (start(json!({ "hooks": [{ "token": name }] })), "hook token"),
            (start(json!({ "tags": { "a": name } })), "tag value"),
            (start(json!({ "tags": { name.clone(): "a" } })), "tag name"),
            (
                start(json!({ "on_conflict": "deliver", "deliver": { "token": name, "payload": 1 } })),
                "hook token",
            ),
            (
                ("POST", format!("/v1/runs/{run}/rerun"), json!({ "id": name })),
                "run id",
            ),
            (
                (
                    "POST",
                    format!("/v1/runs/{run}/fork"),
                    json!({ "at": 0, "id": name }),
                ),
                "run id",
            ),
            (
                (
                    "POST",
                    format!("/v1/runs/{run}/fork"),
                    json!({ "at": 0, "hooks": [{ "token": name }] }),
                ),
                "hook token",
            ),
            (
                (
                    "POST",
                    format!("/v1/runs/{run}/fork"),
                    json!({ "at": 0, "hooks": [{ "token": "t", "for": name }] }),
                ),
                "hook token",
            ),
            (
                ("GET", format!("/v1/runs?tag=a%3D{path}"), Value::Null),
                "tag value",
            ),
            (
                ("GET", format!("/v1/runs?tag={path}%3Da"), Value::Null),
                "tag name",
            ),
            (("GET", format!("/v1/runs?cursor={path}"), Value::Null), "run id"),
        ];
        // Whoever writes URLs makes another path of these; see below.
        if !matches!(name.as_str(), "" | "." | "..") {
            for (method, rest) in [
                ("GET", ""),
                ("GET", "/journal"),
                ("GET", "/result"),
                ("GET", "/logs"),
                ("GET", "/streams"),
                ("GET", "/streams/s"),
                ("POST", "/replay"),
                ("POST", "/rerun"),
                ("POST", "/cancel"),
                ("POST", "/terminate"),
                ("POST", "/retry"),
            ] {
                requests.push(((method, format!("/v1/runs/{path}{rest}"), json!({})), "run id"));
            }
            for (method, rest) in [("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/payloads")] {
                requests.push((
                    (method, format!("/v1/hooks/{path}{rest}"), json!({})),
                    "hook token",
                ));
            }
            requests.push((("POST", format!("/v1/events/{path}"), json!({})), "event name"));
            requests.push((
                ("GET", format!("/v1/runs/{run}/streams/{path}"), Value::Null),
                "stream name",
            ));
        }
        let declared = server
            .post("/v1/runs", start(json!({ "input": { "token": name } })).2)
            .await;
        assert_eq!(
            declared.json["error"]["code"], "invalid_input",
            "{}",
            declared.text
        );
        assert!(
            declared.text.contains("hook token") && declared.text.contains(why),
            "{}",
            declared.text
        );
        for ((method, path, body), what) in requests {
            let request = server.request(method, &path);
            let answer = match path.ends_with("/replay") {
                true => send(request).await,
                false => send(as_json(request, &body)).await,
            };
            assert_eq!(answer.status, 400, "{method} {path}: {}", answer.text);
            let message = answer.json["error"]["message"].as_str().unwrap();
            assert!(
                message.contains(what) && message.contains(why),
                "{method} {path}: {message}"
            );
            assert!(answer.text.len() < 2_000, "{}", answer.text);
        }
    }
    for path in [
        "/v1/runs/",
        "/v1/hooks/",
        "/v1/events/",
        "/hooks/",
        "/webhooks/",
        "/v1/blobs/",
    ] {
        for method in ["GET", "POST", "DELETE"] {
            let answer = send(as_json(server.request(method, path), &json!({}))).await;
            assert_eq!(answer.status, 404, "{path}: {}", answer.text);
            assert_eq!(answer.json["error"]["code"], "unknown_route");
        }
    }
    assert_eq!(server.host.everything().await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_at_their_ends_through_http() {
    let server = Server::new().await;
    let run = server.host.start_with("read_any", json!({}), &["t"]).await;
    server.host.reached(&run, RunStatus::Suspended).await;
    let before = server.host.everything().await;
    let most = u64::MAX;
    for (method, path, body, status) in [
        (
            "GET",
            format!("/v1/runs/{run}/journal?from={most}"),
            Value::Null,
            200,
        ),
        (
            "GET",
            format!("/v1/runs/{run}/logs?from={most}"),
            Value::Null,
            200,
        ),
        (
            "GET",
            format!("/v1/runs/{run}/streams/s?from={most}"),
            Value::Null,
            200,
        ),
        (
            "GET",
            format!("/v1/hooks/t/payloads?from={most}"),
            Value::Null,
            200,
        ),
        ("GET", format!("/v1/runs?created_after={most}"), Value::Null, 200),
        ("GET", format!("/v1/runs?created_before={most}"), Value::Null, 200),
        ("GET", format!("/v1/runs/{run}/journal?from=-1"), Value::Null, 400),
        (
            "GET",
            format!("/v1/runs/{run}/journal?from=1e3"),
            Value::Null,
            400,
        ),
        (
            "GET",
            format!("/v1/runs/{run}/journal?limit={most}"),
            Value::Null,
            400,
        ),
        (
            "GET",
            format!("/v1/runs/{run}/journal?limit={most}0"),
            Value::Null,
            400,
        ),
        (
            "GET",
            format!("/v1/runs/{run}/result?wait={most}days"),
            Value::Null,
            400,
        ),
        ("POST", format!("/v1/runs/{run}/fork"), json!({ "at": most }), 404),
        (
            "POST",
            format!("/v1/runs/{run}/fork"),
            json!({ "at": 1_000 }),
            404,
        ),
        ("POST", format!("/v1/runs/{run}/fork"), json!({ "at": -1 }), 400),
        ("POST", format!("/v1/runs/{run}/fork"), json!({ "at": 0.5 }), 400),
        ("POST", format!("/v1/runs/{run}/fork"), json!({ "at": null }), 400),
        ("POST", format!("/v1/runs/{run}/fork"), json!({}), 400),
        (
            "POST",
            format!("/v1/runs/{run}/fork"),
            json!({ "at": 0, "hooks": [{ "token": "u", "for": most }] }),
            400,
        ),
        (
            "POST",
            format!("/v1/runs/{run}/resolve"),
            json!({ "call": u32::MAX, "retry": true }),
            409,
        ),
        (
            "POST",
            format!("/v1/runs/{run}/resolve"),
            json!({ "call": most, "retry": true }),
            400,
        ),
    ] {
        let answer = send(as_json(server.request(method, &path), &body)).await;
        assert_eq!(answer.status, status, "{method} {path} {body}: {}", answer.text);
        assert!(answer.text.len() < 10_000);
    }
    assert_eq!(server.host.everything().await, before);

    // As late as can be, and shown so.
    let start = |more: Value| {
        let mut body = json!({ "workflow": "sequence", "input": { "n": 1 } });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let late = server
        .post("/v1/runs", start(json!({ "id": "late", "start_at": most })))
        .await;
    assert_eq!(late.status, 201, "{}", late.text);
    let shown = server.get("/v1/runs/late").await;
    assert_eq!(shown.json["status"], "pending", "{}", shown.text);
    let ended = server.post("/v1/runs/late/cancel", "{}").await;
    assert_eq!(ended.json["status"], "cancelled", "{}", ended.text);
    for retention in [
        "584942417years",
        "18446744073709551615ms",
        "99999999999999999999s",
    ] {
        let body = start(json!({ "hooks": [{ "token": "r", "min_retention": retention }] }));
        let answer = server.post("/v1/runs", body).await;
        assert!(answer.status.is_client_error(), "{retention}: {}", answer.text);
    }
    // An earlier end, and a range beyond all times.
    server.put("scheduled", onemark_tests::scheduled().to_vec()).await;
    let backfill = "/v1/schedules/scheduled%2Feach_hour/backfill";
    for (from, to) in [(most, most), (10, 5), (i64::MAX as u64, most)] {
        let answer = server.post(backfill, json!({ "from": from, "to": to })).await;
        assert_eq!(
            (answer.status.as_u16(), answer.json),
            (200, json!({ "slots": [] }))
        );
    }
    let all = server.post(backfill, json!({ "from": 0, "to": most })).await;
    assert_eq!(all.status, 400, "{}", all.text);
    let runs = server.get("/v1/runs?workflow=each_hour").await;
    assert_eq!(runs.json["runs"], json!([]));
}

async fn odd_names_inside_a_workflow(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let used = async |name: &str| {
        let (_, output) = host.completes("uses_name", json!({ "name": name })).await;
        let places: Vec<(String, String)> = serde_json::from_value(output).unwrap();
        places
    };
    for name in odd() {
        for (place, made) in used(&name).await {
            match place.as_str() {
                // Names of tags stand before an `=` in lists.
                "tag" if name.contains('=') => assert!(made.contains("holds `=`"), "{name}: {made}"),
                "closure" if name.len() > 128 => assert!(made.contains("1 to 128 bytes"), "{made}"),
                "workflow" => assert!(made.starts_with("refused: "), "{name}: {made}"),
                _ => assert_eq!(made, name, "{place}"),
            }
        }
    }
    for (name, why) in refused() {
        for (place, made) in used(&name).await {
            match place.as_str() {
                "workflow" => assert!(made.starts_with("refused: "), "{name}: {made}"),
                "closure" if !name.starts_with('.') => {
                    assert!(made.contains("1 to 128 bytes without control"), "{made}");
                }
                "closure" => assert_eq!(made, name),
                _ => assert!(
                    made.starts_with("refused: ") && made.contains(why),
                    "{place} {name:?}: {made}"
                ),
            }
        }
    }
}

async fn sleeps_until_the_end_of_time(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    const YEAR: u64 = 31_557_600_000;
    let now = host.clock.as_ref().unwrap().now();
    let lengths = [1_000 * YEAR, i64::MAX as u64, u64::MAX];
    let mut runs = Vec::new();
    for (n, ms) in lengths.into_iter().enumerate() {
        let token = format!("t{n}");
        let run = host
            .start("sleeps_for_ages", json!({ "token": token, "ms": ms }))
            .await;
        let info = host.reached(&run, RunStatus::Suspended).await;
        let wake_at = info.wake_at.unwrap();
        match n {
            0 => assert_eq!(wake_at, now + 1_000 * YEAR),
            _ => assert!(wake_at > now + 1_000 * YEAR),
        }
        runs.push((run, token));
    }
    for at in [i64::MAX as u64, u64::MAX] {
        let run = host.start("sleeps_until", json!({ "at_ms": at })).await;
        host.reached(&run, RunStatus::Suspended).await;
        host.engine.terminate(&run).await.unwrap();
    }
    for at in [0, 1, now - 1, now] {
        let (run, _) = host.completes("sleeps_until", json!({ "at_ms": at })).await;
        let journal = host.journal(&run).await;
        let due = journal.iter().find_map(|entry| match entry.event {
            Event::TimerSet { due, .. } => Some(due),
            _ => None,
        });
        assert_eq!(due, Some(at));
    }
    host.completes("sleeps", json!({ "lengths_ms": [0, 0] })).await;
    let negative = host.try_start("sleeps", json!({ "lengths_ms": [-1] }), &[]).await;
    assert!(
        matches!(negative, Err(Error::InvalidInput { .. })),
        "{negative:?}"
    );

    // A restart changes nothing; what comes is heard, and a thousand years pass.
    let host = host.restart().await;
    for (run, token) in runs.drain(1..) {
        host.deliver(&token, json!("woken")).await.unwrap();
        assert_eq!(host.output(&run).await, json!("woken"));
        host.agrees(&run).await;
    }
    host.advance(Duration::from_millis(1_000 * YEAR));
    let (run, _) = &runs[0];
    assert_eq!(host.output(run).await, json!("slept"));
    host.agrees(run).await;
}

/// The runs of the chain, newest first.
async fn laps(host: &TestHost) -> Vec<RunId> {
    let filter = RunFilter {
        workflow: Some("circles".into()),
        limit: 100,
        ..RunFilter::default()
    };
    let runs = host.engine.runs(filter).await.unwrap();
    runs.into_iter().map(|run| run.id).collect()
}

async fn a_run_that_goes_on_for_ever_starves_nobody_and_can_be_ended(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for cancels in [true, false] {
        let first = host.start("circles", json!({ "lap": 0 })).await;
        // Others come to their end beside it.
        for n in 0..5 {
            host.completes("sequence", json!({ "n": n })).await;
        }
        host.reached(&first, RunStatus::Continued).await;
        // It goes on faster than anybody can look for the last one.
        let last = match cancels {
            true => host.engine.cancel(&first).await.unwrap(),
            false => host.engine.terminate(&first).await.unwrap(),
        };
        let result = host.ended(&last.id).await;
        assert_eq!(result.status, RunStatus::Cancelled);
        // Whoever asks for the first hears of the last; nobody goes on.
        assert_eq!(host.ended(&first).await.run_id, result.run_id);
        assert_eq!(laps(&host).await[0], result.run_id);
        host.engine.idle().await;
        assert_eq!(laps(&host).await[0], result.run_id);
    }
}

/// The host bounds what a guest holds; over it the run is blocked, and says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_that_holds_too_much_is_told_so() {
    let host = TestHost::on(StoreKind::Memory).await;
    let run = host.start("holds_too_much", json!({})).await;
    let blocked = host.ended(&run).await.blocked.expect("it is blocked");
    for words in ["more than 250000 handles", "for_each_bounded"] {
        assert!(blocked.message.contains(words), "{}", blocked.message);
    }
}

async fn the_parent_of_a_child_that_cannot_be_goes_on(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    for workflow in [
        "nobody",
        "",
        "programs/nobody",
        "others/sequence",
        "a/b/c",
        "größe ☃",
    ] {
        let input = json!({ "workflow": workflow, "input": {}, "token": "t" });
        let (_, output) = host.completes("tries_child", input).await;
        assert_eq!(output[0], "unknown_workflow", "{workflow}: {output}");
    }
    assert!(matches!(host.hook("t").await, Err(Error::HookNotFound(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_name_of_a_deployment_is_refused() {
    let host = TestHost::on(StoreKind::Memory).await;
    let before = host.engine.deployments().await.unwrap().len();
    let (long, digest) = ("x".repeat(101), "0a".repeat(32));
    for name in [
        "", ".", "..", "a/b", "a b", "größe", "a%2Fb", "a\nb", &long, &digest,
    ] {
        let refused = host.engine.deploy(name, onemark_tests::programs()).await;
        let Err(Error::InvalidRequest(text)) = refused else {
            panic!("{name}: {refused:?}");
        };
        assert!(text.contains("no name for a deployment"), "{text}");
    }
    assert_eq!(host.engine.deployments().await.unwrap().len(), before);
    let longest = "x".repeat(100);
    host.engine
        .deploy(&longest, onemark_tests::programs())
        .await
        .unwrap();
    let run = host
        .start(&format!("{longest}/sequence"), json!({ "n": 1 }))
        .await;
    host.output(&run).await;
}
