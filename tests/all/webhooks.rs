//! Requests of other services: signed, to the paths that workflows declare; and to the URLs of hooks.

use std::collections::HashSet;

use hmac::{Hmac, Mac as _};
use onemark::engine::EngineConfig;
use onemark::ids::{RunId, StreamName};
use onemark::store::Cap;
use onemark_tests::{StoreKind, TestHost, webhooks};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::api::{Answer, Server, send};

/// Hexadecimal, as services write it.
pub fn signature(parts: &[&str]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(b"s3cret").unwrap();
    parts.iter().for_each(|part| mac.update(part.as_bytes()));
    mac.finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub async fn call(server: &Server, path: &str, body: &str, headers: &[(&str, &str)]) -> Answer {
    let request = server
        .request("POST", &format!("/webhooks/{path}"))
        .body(body.to_owned());
    let request = headers
        .iter()
        .fold(request, |request, (name, value)| request.header(*name, *value));
    send(request).await
}

/// A server with the workflows deployed that other services call.
async fn called(host: TestHost) -> Server {
    let server = Server::over(host).await;
    let deployed = server.put("webhooks", webhooks().to_vec()).await;
    assert_eq!(deployed.status, StatusCode::OK, "{}", deployed.text);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn e11_two_events_for_one_order_reach_one_run() {
    for kind in StoreKind::ALL {
        let server = called(TestHost::on(kind).await).await;
        let send = async |body: &str, id: &str| {
            let signature = format!("sha256={}", signature(&[body]));
            call(
                &server,
                "shop/orders",
                body,
                &[("x-signature", &signature), ("idempotency-key", id)],
            )
            .await
        };
        let first = send(r#"{"order":{"id":"7"},"paid":true}"#, "d1").await;
        assert_eq!(
            (first.status, &first.json["started"]),
            (StatusCode::OK, &json!(true))
        );
        let again = send(r#"{"order":{"id":"7"},"paid":true}"#, "d1").await;
        assert_eq!((again.status, &again.text), (StatusCode::OK, &first.text));
        // Told again with other words, as some services do.
        let reworded = send(r#"{"order":{"id":"7"},"paid":true,"try":2}"#, "d1").await;
        assert_eq!((reworded.status, &reworded.text), (StatusCode::OK, &first.text));

        let second = send(r#"{"order":{"id":"7"},"sent":true}"#, "d2").await;
        assert_eq!(second.json["run_id"], first.json["run_id"]);
        assert_eq!(second.json["started"], false);
        assert!(second.json["delivered"].is_u64());
        let again = send(r#"{"order":{"id":"7"},"sent":true}"#, "d2").await;
        assert_eq!(again.text, second.text);

        let run = RunId::new(first.json["run_id"].as_str().unwrap()).unwrap();
        let output = server.host.output(&run).await;
        assert_eq!(output[1], json!({ "order": { "id": "7" }, "sent": true }));
        // The token is kept, and its run has ended: nobody need send that again.
        let late = send(r#"{"order":{"id":"7"},"late":true}"#, "d3").await;
        assert_eq!((late.status, &late.json["ended"]), (StatusCode::OK, &json!(true)));
        assert_eq!(late.json["run_id"], first.json["run_id"]);
        // A25
        let lacks = send(r#"{"paid":true}"#, "d4").await;
        assert_eq!(lacks.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
}

/// A request that cannot be told from another, or from its own repetition, would be carried out twice or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn e11_delivery_ids_of_any_text_are_ids_and_others_are_refused() {
    let server = called(TestHost::on(StoreKind::Sqlite).await).await;
    let body = r#"{"order":{"id":"9"},"paid":true}"#;
    let signature = format!("sha256={}", signature(&[body]));
    let ask = async |ids: &[&[u8]]| {
        let request = server.request("POST", "/webhooks/shop/orders").body(body);
        let request = request.header("x-signature", &signature);
        let with_id = |request: reqwest::RequestBuilder, id: &&[u8]| request.header("idempotency-key", *id);
        send(ids.iter().fold(request, with_id)).await
    };
    for refused in [&[b"\xff".as_slice()][..], &[b"a", b"b"]] {
        let answer = ask(refused).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
    }
    assert_eq!(server.get("/v1/runs").await.json["runs"], json!([]));
    let long = "x".repeat(5_000);
    for id in ["größe ☃", "a/b%", &long] {
        let first = ask(&[id.as_bytes()]).await;
        assert_eq!(first.status, StatusCode::OK, "{}", first.text);
        assert_eq!(ask(&[id.as_bytes()]).await.text, first.text);
    }
    let run = RunId::new(
        server.get("/v1/runs").await.json["runs"][0]["id"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    let hook = server.host.engine.hooks_of(&run).await.unwrap();
    assert_eq!(hook[0].token.as_str(), "shop:9");
}

#[tokio::test(flavor = "multi_thread")]
async fn e11_bad_and_old_signatures_write_nothing() {
    let server = called(TestHost::with_clock(StoreKind::Memory).await).await;
    let now = 1_800_000_000u64;
    let body = r#"{"id":"evt_1"}"#;
    let plain = signature(&[body]);
    let github = format!("sha256={plain}");
    let stripe = |time: u64| format!("t={time},v1={}", signature(&[&time.to_string(), ".", body]));
    let timed = |time: u64| (time.to_string(), signature(&[&time.to_string(), ".", body]));
    let (old, old_signature) = timed(now - 301);
    let (recent, recent_signature) = timed(now - 299);
    let wrong = "0".repeat(64);
    let refused: [(&str, Vec<(&str, String)>); 12] = [
        ("github", vec![]),
        ("github", vec![("x-hub-signature-256", format!("sha256={wrong}"))]),
        ("github", vec![("x-hub-signature-256", plain.clone())]),
        ("github", vec![("x-signature", github.clone())]),
        ("stripe", vec![]),
        ("stripe", vec![("stripe-signature", stripe(now - 301))]),
        ("stripe", vec![("stripe-signature", stripe(now + 301))]),
        (
            "stripe",
            vec![("stripe-signature", format!("t={now},v1={wrong}"))],
        ),
        ("stripe", vec![("stripe-signature", format!("v1={plain}"))]),
        ("shop/orders", vec![("x-signature", "é".to_owned())]),
        (
            "shop/orders",
            vec![("x-signature", old_signature), ("x-signature-timestamp", old)],
        ),
        // Signed with its time, sent without.
        ("shop/orders", vec![("x-signature", recent_signature.clone())]),
    ];
    for (path, headers) in &refused {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let answer = call(&server, path, body, &headers).await;
        assert_eq!(
            answer.status,
            StatusCode::UNAUTHORIZED,
            "{path} {headers:?}: {}",
            answer.text
        );
        assert_eq!(answer.json["error"]["code"], "bad_signature");
        assert!(!answer.text.contains("s3cret"));
    }
    assert!(server.host.everything().await.is_empty());

    let unset = call(&server, "unset", body, &[("stripe-signature", &stripe(now))]).await;
    assert_eq!(unset.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!unset.text.contains("NO_SECRET"), "{}", unset.text);
    let nowhere = call(&server, "nowhere", body, &[]).await;
    assert_eq!(nowhere.json["error"]["code"], "unknown_webhook");
    assert!(server.host.everything().await.is_empty());

    let good = [
        (
            "github",
            vec![
                ("x-hub-signature-256", github),
                ("x-github-delivery", "g1".into()),
            ],
        ),
        (
            "stripe",
            vec![("stripe-signature", format!("{},v1={wrong}", stripe(now - 299)))],
        ),
    ];
    for (path, headers) in &good {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
            .collect();
        let first = call(&server, path, body, &headers).await;
        assert_eq!(
            (first.status, &first.json["started"]),
            (StatusCode::OK, &json!(true)),
            "{}",
            first.text
        );
        let again = call(&server, path, body, &headers).await;
        assert_eq!((again.status, &again.text), (StatusCode::OK, &first.text));
    }
    let signed = [
        ("x-signature", recent_signature.as_str()),
        ("x-signature-timestamp", recent.as_str()),
    ];
    let timed = call(&server, "shop/orders", body, &signed).await;
    assert_eq!(
        timed.status,
        StatusCode::UNPROCESSABLE_ENTITY,
        "signed, and without an order: {}",
        timed.text
    );
}

/// Under another name not even the same component has it, before the first is gone.
#[tokio::test(flavor = "multi_thread")]
async fn e11_a_path_belongs_to_one_deployment() {
    let server = called(TestHost::new().await).await;
    let refuses = async |name: &str, component: Vec<u8>, owner: &str| {
        let refused = server.put(name, component).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text);
        let message = refused.json["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("deployment `{owner}`")), "{message}");
        assert!(
            message.contains(&format!("`onemark components remove {owner}`")),
            "{message}"
        );
    };
    refuses("again", webhooks().to_vec(), "webhooks").await;
    let deployed = server.put("webhooks", webhooks().to_vec()).await;
    assert_eq!(deployed.status, StatusCode::OK, "{}", deployed.text);
    let mut other = webhooks().to_vec();
    let name = other.windows(6).rposition(|bytes| bytes == b"pushed").unwrap();
    other[name..name + 6].copy_from_slice(b"shoved");
    refuses("other", other.clone(), "webhooks").await;
    let listed = server.get("/v1/components").await;
    assert_eq!(
        listed.json["components"].as_array().unwrap().len(),
        2,
        "{}",
        listed.text
    );

    let removed = send(server.request("DELETE", "/v1/components/webhooks")).await;
    assert_eq!(
        (removed.status, &removed.json),
        (
            StatusCode::OK,
            &json!({ "name": "webhooks", "digest": deployed.json["digest"] })
        )
    );
    let gone = call(&server, "github", "{}", &[]).await;
    assert_eq!(
        (gone.status, gone.json["error"]["code"].as_str()),
        (StatusCode::NOT_FOUND, Some("unknown_webhook"))
    );
    let unknown = send(server.request("DELETE", "/v1/components/webhooks")).await;
    assert_eq!(
        (unknown.status, unknown.json["error"]["code"].as_str()),
        (StatusCode::NOT_FOUND, Some("unknown_component"))
    );
    assert_eq!(server.put("other", other).await.status, StatusCode::OK);
    refuses("webhooks", webhooks().to_vec(), "other").await;
}

/// Who deploys is told what keeps a webhook from working, before somebody calls it.
#[tokio::test(flavor = "multi_thread")]
async fn e11_a_webhook_without_its_secret_is_told_when_it_is_deployed() {
    let server = Server::new().await;
    let deployed = server.put("webhooks", webhooks().to_vec()).await;
    let warnings = deployed.json["warnings"].as_array().unwrap();
    let [warning] = warnings.as_slice() else {
        panic!("{}", deployed.text);
    };
    let warning = warning.as_str().unwrap();
    assert!(
        warning.contains("`unset`") && warning.contains("`NO_SECRET`"),
        "{warning}"
    );
    let without = server.put("programs", onemark_tests::programs().to_vec()).await;
    assert_eq!(without.json["warnings"], json!([]), "{}", without.text);
}

/// The URL that a run gave out, without the host.
async fn url_of(server: &Server, run: &RunId) -> String {
    let urls = StreamName::new("urls").unwrap();
    let url = loop {
        let chunks = server.host.engine.chunks(run, &urls, 0, 1).await.unwrap();
        if let Some(chunk) = chunks.first() {
            break serde_json::from_str::<String>(&chunk.chunk).unwrap();
        }
        tokio::task::yield_now().await;
    };
    url.strip_prefix("http://127.0.0.1:7070").unwrap().to_owned()
}

async fn started(server: &Server, workflow: &str, input: Value) -> RunId {
    let answer = server
        .post("/v1/runs", json!({ "workflow": workflow, "input": input }))
        .await;
    RunId::new(answer.json["run_id"].as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_with_a_url_takes_json_and_forms() {
    for kind in StoreKind::ALL {
        let server = Server::over(TestHost::on(kind).await).await;
        let run = started(&server, "asks_by_url", json!({})).await;
        let url = url_of(&server, &run).await;
        let shown = server.get(&format!("/v1{url}")).await;
        assert_eq!(shown.json["webhook"]["response"], "automatic", "{}", shown.text);

        let plain = server
            .request("POST", &url)
            .body("yes")
            .header("content-type", "text/plain");
        assert_eq!(send(plain).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let first = server.post_with_key(&url, "1", json!({ "n": 1 })).await;
        assert_eq!(
            (first.status, first.text.as_str()),
            (StatusCode::ACCEPTED, r#"{"accepted":true}"#)
        );
        let again = server.post_with_key(&url, "1", json!({ "n": 1 })).await;
        assert_eq!((again.status, &again.text), (first.status, &first.text));
        let form = server
            .request("POST", &url)
            .body("approve=yes&note=a%20b+c&to=1&to=&to=2");
        let form = send(form.header("content-type", "application/x-www-form-urlencoded")).await;
        assert_eq!(form.status, StatusCode::ACCEPTED, "{}", form.text);
        // As `curl -d` sends it unless told otherwise.
        let json = server.request("POST", &url).body(r#"{"n":2}"#);
        let json = send(json.header("content-type", "application/x-www-form-urlencoded")).await;
        assert_eq!(json.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", json.text);
        says_how_to_send_json(&json.json);
        let output = server.host.output(&run).await;
        assert_eq!(
            output,
            json!([{ "n": 1 }, { "approve": "yes", "note": "a b c", "to": ["1", "", "2"] }])
        );

        let late = server.post(&url, json!(1)).await;
        assert_eq!(late.status, StatusCode::GONE, "{}", late.text);
        assert!(!late.text.contains(run.as_str()));
    }
}

#[track_caller]
fn says_how_to_send_json(refused: &Value) {
    let error = &refused["error"];
    assert_eq!(error["code"], "invalid_payload", "{refused}");
    assert!(
        error["hint"]
            .as_str()
            .unwrap()
            .contains("`Content-Type: application/json`"),
        "{refused}"
    );
    assert!(
        error["message"].as_str().unwrap().contains("content type says"),
        "{refused}"
    );
}

/// Values of a form are texts; the type of the hook says what they are meant as.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_fills_the_fields_of_a_hooks_type() {
    for kind in StoreKind::ALL {
        let server = Server::over(TestHost::on(kind).await).await;
        let run = started(&server, "asks_by_form", json!({})).await;
        let url = url_of(&server, &run).await;
        let post = async |form: &str| {
            let form = server.request("POST", &url).body(form.to_owned());
            send(form.header("content-type", "application/x-www-form-urlencoded; charset=utf-8")).await
        };
        for unfit in [
            "stars=x&agree=true",
            "stars=5&agree=on",
            "stars=500&agree=true",
            "",
        ] {
            let refused = post(unfit).await;
            assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{unfit}");
            says_how_to_send_json(&refused.json);
            assert!(!refused.text.contains(run.as_str()));
        }
        let kept = post("stars=5&agree=true&ratio=0.50&note=7&kinds=1&kinds=2").await;
        assert_eq!(kept.status, StatusCode::ACCEPTED, "{}", kept.text);
        assert_eq!(
            server.host.output(&run).await,
            json!({ "stars": 5, "agree": true, "ratio": 0.5, "note": "7", "kinds": [1, 2] })
        );
        server.host.agrees(&run).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_answers_its_callers_itself() {
    for kind in StoreKind::ALL {
        let server = Server::over(TestHost::on(kind).await).await;
        let run = started(&server, "adds_for_callers", json!({ "rounds": 4 })).await;
        let url = url_of(&server, &run).await;
        let unfit = server.post(&url, json!({ "a": 1 })).await;
        assert_eq!(unfit.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", unfit.text);
        assert!(!unfit.text.contains(run.as_str()));

        let asked = [(1, 2), (3, 4)].map(|(a, b)| server.post(&url, json!({ "a": a, "b": b })));
        let [three, seven] = asked;
        let (three, seven) = tokio::join!(three, seven);
        assert_eq!(
            (three.status, &three.json),
            (StatusCode::CREATED, &json!({ "sum": 3 }))
        );
        assert_eq!(
            (seven.status, &seven.json),
            (StatusCode::CREATED, &json!({ "sum": 7 }))
        );
        let keyed = server.post_with_key(&url, "k", json!({ "a": 5, "b": 5 })).await;
        assert_eq!(
            (keyed.status, &keyed.json),
            (StatusCode::CREATED, &json!({ "sum": 10 }))
        );
        // Answered as before, and not delivered again.
        let again = server.post_with_key(&url, "k", json!({ "a": 5, "b": 5 })).await;
        assert_eq!((again.status, &again.text), (keyed.status, &keyed.text));
        // The run ends and has not answered.
        let none = server.post(&url, json!({ "a": 0, "b": 0 })).await;
        assert_eq!(
            (none.status, none.text.as_str()),
            (StatusCode::ACCEPTED, r#"{"accepted":true}"#)
        );
        let output = server.host.output(&run).await;
        assert_eq!(output, "99 is no status of an answer; it is 200 to 599");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_hooks_that_were_opened_so_have_a_url() {
    let server = Server::new().await;
    let run = started(&server, "binds_a_webhook_to_a_plain_token", json!({})).await;
    let output = server.host.output(&run).await;
    let refused = output.as_str().unwrap();
    assert!(
        refused.ends_with("`plain` is the token of no webhook"),
        "{refused}"
    );
    let token = "order:1";
    let start = json!({ "workflow": "asks_by_url", "input": {}, "hooks": [{ "token": token }] });
    let started = server.post("/v1/runs", start).await;
    assert_eq!(started.status, StatusCode::CREATED);
    for path in ["order:1", "nobody", "plain", "%00", "a%0Ab"] {
        let answer = server.post(&format!("/hooks/{path}"), json!(1)).await;
        assert_eq!(
            (answer.status, answer.json["error"]["code"].as_str()),
            (StatusCode::NOT_FOUND, Some("hook_not_found"))
        );
        assert!(!answer.text.contains("run"), "{}", answer.text);
    }
    let delivered = server.post(&format!("/v1/hooks/{token}"), json!(1)).await;
    assert_eq!(delivered.status, StatusCode::ACCEPTED);
}

/// A token that somebody chose can be guessed: the fork's hook has it, and no URL.
#[tokio::test(flavor = "multi_thread")]
async fn a_forks_hook_under_a_chosen_token_has_no_url() {
    for kind in StoreKind::ALL {
        let server = Server::over(TestHost::on(kind).await).await;
        let run = started(&server, "asks_by_url", json!({})).await;
        let url = url_of(&server, &run).await;
        let opened = server.host.engine.run(&run).await.unwrap().entries - 1;
        let fork = json!({ "at": opened, "hooks": [{ "token": "chosen" }] });
        let fork = server.post(&format!("/v1/runs/{run}/fork"), fork).await;
        assert_eq!(fork.status, StatusCode::CREATED, "{}", fork.text);
        let hook = server.get("/v1/hooks/chosen").await;
        assert_eq!(hook.json["run_id"], fork.json["run_id"]);
        assert!(hook.json["webhook"].is_null(), "{}", hook.text);
        let guessed = server.post("/hooks/chosen", json!(1)).await;
        assert_eq!(guessed.status, StatusCode::NOT_FOUND, "{}", guessed.text);
        assert_eq!(server.post(&url, json!(1)).await.status, StatusCode::ACCEPTED);
    }
}

/// What others sent under no id is no repetition, and who sends two ids is not understood.
#[tokio::test(flavor = "multi_thread")]
async fn e11_an_empty_delivery_id_is_none() {
    for kind in StoreKind::ALL {
        let server = called(TestHost::on(kind).await).await;
        let mut runs = HashSet::new();
        for body in [r#"{"order":{"id":"1"}}"#, r#"{"order":{"id":"2"}}"#] {
            let signature = format!("sha256={}", signature(&[body]));
            for (path, header, id) in [
                ("shop/orders", "x-signature", "idempotency-key"),
                ("github", "x-hub-signature-256", "x-github-delivery"),
            ] {
                let signed = (header, signature.as_str());
                let twice = call(&server, path, body, &[signed, (id, "1"), (id, "2")]).await;
                assert_eq!(twice.status, StatusCode::BAD_REQUEST, "{}", twice.text);
                let answer = call(&server, path, body, &[signed, (id, "")]).await;
                assert_eq!(answer.json["started"], true, "{path}: {}", answer.text);
                runs.insert(answer.json["run_id"].to_string());
            }
        }
        let time = server.host.engine.now() / 1_000;
        for body in [r#"{"id":"","n":1}"#, r#"{"id":"","n":2}"#, r#"{"id":7}"#] {
            let signature = signature(&[&time.to_string(), ".", body]);
            let signature = format!("t={time},v1={signature}");
            let answer = call(&server, "stripe", body, &[("stripe-signature", &signature)]).await;
            assert_eq!(answer.json["started"], true, "{}", answer.text);
            runs.insert(answer.json["run_id"].to_string());
        }
        assert_eq!(runs.len(), 7);
    }
}

/// The runs after each other count their entries anew: an answer is that of the run that was asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_its_own_answer_whoever_has_the_url_now() {
    for kind in StoreKind::ALL {
        let server = Server::over(TestHost::on(kind).await).await;
        let run = started(&server, "adds_one_a_run", json!({ "token": null, "rounds": 3 })).await;
        let url = url_of(&server, &run).await;
        let mut answers = Vec::new();
        for n in 1..=3 {
            let key = n.to_string();
            let answer = server.post_with_key(&url, &key, json!({ "a": n, "b": 0 })).await;
            assert_eq!(
                (answer.status, &answer.json),
                (StatusCode::OK, &json!({ "sum": n }))
            );
            answers.push((n, key, answer.text));
        }
        server.host.output(&run).await;
        for (n, key, text) in answers {
            let again = server.post_with_key(&url, &key, json!({ "a": n, "b": 0 })).await;
            assert_eq!((again.status, again.text), (StatusCode::OK, text));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_is_full_says_nothing_of_its_run() {
    let config = EngineConfig {
        unread: Cap {
            payloads: 2,
            ..Cap::default()
        },
        ..EngineConfig::default()
    };
    let host = TestHost::with(StoreKind::Memory, config, None, &[]).await;
    let server = Server::over(host).await;
    let run = started(&server, "hands_out_a_url", json!({})).await;
    let url = url_of(&server, &run).await;
    for _ in 0..2 {
        assert_eq!(server.post(&url, json!(1)).await.status, StatusCode::ACCEPTED);
    }
    let full = server.post(&url, json!(1)).await;
    assert_eq!(full.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(full.json["error"]["code"], "hook_full");
    assert!(!full.text.contains(run.as_str()), "{}", full.text);
    assert!(
        !full.text.contains(url.rsplit('/').next().unwrap()),
        "{}",
        full.text
    );
}
