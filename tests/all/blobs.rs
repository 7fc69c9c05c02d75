//! Blobs: what steps write outside of the journal.

use std::path::{Path, PathBuf};

use onemark::engine::EngineConfig;
use onemark::ids::Digest;
use onemark::sandbox::BlobLimits;
use onemark_tests::{Marks, StoreKind, TestHost, on_each_store};
use serde_json::{Value, json};

use crate::api::Server;

on_each_store! {
    blobs_are_read_by_later_steps_closures_and_other_runs,
    blobs_in_workflow_code_are_a_typed_error,
    what_is_no_blob_is_a_typed_error,
    a_damaged_blob_is_a_typed_error,
    blobs_are_streamed_through_little_memory,
    writers_that_never_finish_leave_nothing,
    a_blob_and_an_attempt_take_so_many_bytes_and_no_more,
}

fn folder(host: &TestHost) -> PathBuf {
    host.folder().join("onemark.db.blobs")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect()
}

fn blob(text: &str) -> Value {
    json!({ "digest": Digest::of(text), "bytes": text.len() })
}

async fn blobs_are_read_by_later_steps_closures_and_other_runs(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let input = json!({ "text": "large" });
    let (_, output) = host.completes("hands_blobs_on", input.clone()).await;
    let (first, second) = (blob("large"), blob("large and large"));
    let read = json!(["large", "large and large", "large"]);
    assert_eq!(output, json!([first, second, read]));
    // Another run writes the same: it is there once.
    host.completes("hands_blobs_on", input).await;
    assert_eq!(files(&folder(&host)).len(), 2);

    let host = host.restart().await;
    let (_, output) = host.completes("reads_blob", json!({ "blob": second })).await;
    assert_eq!(output, "large and large");
}

async fn blobs_in_workflow_code_are_a_typed_error(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (_, told) = host.completes("blobs_in_workflow_code", json!({})).await;
    for text in told.as_array().unwrap() {
        let text = text.as_str().unwrap();
        assert!(text.contains("do it in a `#[step]`"), "{text}");
    }
}

async fn what_is_no_blob_is_a_typed_error(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let unknown = Digest::of("never written").to_string();
    for (digest, kind) in [
        (unknown.as_str(), "unknown_blob"),
        ("../../../../../../../etc/passwd", "invalid"),
        (
            "ab/../../../../../../../../../../../../../../../../../etc/passwd",
            "invalid",
        ),
        ("", "invalid"),
    ] {
        let input = json!({ "blob": { "digest": digest, "bytes": 1 } });
        let (_, output) = host.completes("reads_blob", input).await;
        assert_eq!(output, kind, "{digest}");
    }
}

async fn a_damaged_blob_is_a_typed_error(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    host.completes("hands_blobs_on", json!({ "text": "good" })).await;
    let digest = Digest::of("good").to_string();
    let path = folder(&host).join(&digest[..2]).join(&digest[2..]);
    std::fs::write(path, "g00d").unwrap();
    let (_, output) = host
        .completes("reads_blob", json!({ "blob": blob("good") }))
        .await;
    assert_eq!(output, "corrupt_blob");
}

async fn blobs_are_streamed_through_little_memory(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    // An attempt has 64 MiB of memory in all.
    let (_, output) = host.completes("streams_a_blob", json!({ "mib": 64 })).await;
    assert_eq!(output["bytes"], 64 << 20);
    let digest: Digest = output["digest"].as_str().unwrap().parse().unwrap();
    let mut reading = host.engine.blob(digest).await.unwrap();
    let mut bytes = 0;
    loop {
        match reading.next(1 << 20).await.unwrap().len() {
            0 => break,
            more => bytes += more,
        }
    }
    assert_eq!(bytes, 64 << 20);
}

async fn writers_that_never_finish_leave_nothing(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (_, output) = host.completes("hoards_writers", json!({})).await;
    assert_eq!(output, json!([16, "invalid"]));
    // Their attempt's instance is wiped beside the run.
    host.engine.idle().await;
    assert_eq!(files(&folder(&host)), [""; 0].map(PathBuf::from));
}

async fn a_blob_and_an_attempt_take_so_many_bytes_and_no_more(kind: StoreKind) {
    let config = EngineConfig {
        blob_limits: BlobLimits {
            blob_bytes: 1_000,
            attempt_bytes: 1_500,
        },
        ..EngineConfig::default()
    };
    let host = TestHost::with(kind, config, None, &[]).await;
    for _ in 0..2 {
        // Each attempt has its own.
        let sizes = [1_001, 1_000, 501, 500, 1];
        let (_, told) = host.completes("overfills", json!({ "sizes": sizes })).await;
        let expected = ["too_large, 0", "1000", "too_large, 0", "500", "too_large, 0"];
        assert_eq!(told, json!(expected));
    }
}

/// Whoever fetches it is not given less than there was.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_blob_is_not_sent() {
    let server = Server::new().await;
    let host = &server.host;
    host.completes("hands_blobs_on", json!({ "text": "good" })).await;
    let digest = Digest::of("good").to_string();
    let path = format!("/v1/blobs/{digest}");
    let good = server.request("GET", &path).send().await.unwrap();
    assert_eq!(good.text().await.unwrap(), "good");
    for damaged in ["", "goo", "g00d", "goods"] {
        let file = folder(host).join(&digest[..2]).join(&digest[2..]);
        std::fs::write(file, damaged).unwrap();
        let answer = server.get(&path).await;
        assert_eq!(answer.json["error"]["code"], "corrupt_blob", "{damaged}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_of_saved_steps_survive_a_crash_and_halves_do_not() {
    let marks = Marks::start().await;
    marks.hold("blob");
    let host = TestHost::with_http(&[marks.authority()]).await;
    let input = json!({ "marks": marks.url(), "text": "kept" });
    let run = host.start("reads_after_a_crash", input).await;
    marks.reached("blob", 1).await;
    let half = folder(&host).join("unfinished").join("half");
    std::fs::write(&half, "ke").unwrap();

    let host = host.restart().await;
    assert!(!half.exists());
    marks.reached("blob", 2).await;
    marks.let_go();
    assert_eq!(host.output(&run).await, "kept");
    let events = host.events(&run).await;
    let kept = events.iter().filter(|event| **event == "step_completed");
    assert_eq!(kept.count(), 2, "{events:?}");
}
