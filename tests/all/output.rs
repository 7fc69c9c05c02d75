//! What runs show of themselves while they go on: streams and tags.

use std::collections::BTreeMap;
use std::time::Duration;

use onemark::engine::{Error, Followed, Following};
use onemark::ids::{RunId, StreamName, Tags};
use onemark::journal::RunStatus;
use onemark::store::{Chunk, RunFilter};
use onemark_tests::{Marks, StoreKind, TestHost, on_each_store};
use serde_json::{Value, json};

on_each_store! {
    e15_chunks_of_workflow_steps_and_closures_are_in_order,
    e15_a_second_attempt_does_not_write_twice,
    e15_readers_follow_what_is_written,
    e15_what_streams_refuse_is_typed,
    e14_a_workflow_sets_tags,
}

fn name(text: &str) -> StreamName {
    StreamName::new(text).unwrap()
}

fn json_of(chunk: &Chunk) -> Value {
    serde_json::from_str(&chunk.chunk).unwrap()
}

async fn chunks(host: &TestHost, run: &RunId, stream: &str) -> Vec<Value> {
    let chunks = host.engine.chunks(run, &name(stream), 0, 1_000).await.unwrap();
    for (index, chunk) in (0..).zip(&chunks) {
        assert_eq!(chunk.index, index);
    }
    chunks.iter().map(json_of).collect()
}

async fn e15_chunks_of_workflow_steps_and_closures_are_in_order(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start("tells", json!({ "words": ["a", "b"] })).await;
    host.reached(&run, RunStatus::Suspended).await;
    let told = json!(["begin", "a", "b", 2, 1]);
    assert_eq!(json!(chunks(&host, &run, "told").await), told);

    // Another activation writes nothing of that again, and goes on.
    let host = host.restart().await;
    assert_eq!(json!(chunks(&host, &run, "told").await), told);
    host.advance(Duration::from_secs(1));
    host.output(&run).await;
    let told = json!(["begin", "a", "b", 2, 1, "end"]);
    assert_eq!(json!(chunks(&host, &run, "told").await), told);

    let all = host.engine.chunks(&run, &name("told"), 0, 100).await.unwrap();
    let writers: Vec<_> = all.iter().map(|chunk| (chunk.call, chunk.attempt)).collect();
    let (workflow, step, closure) = ((None, 0), (Some(0), 1), (Some(1), 1));
    assert_eq!(writers, [workflow, step, step, closure, workflow, workflow]);

    let page = host.engine.chunks(&run, &name("told"), 1, 2).await.unwrap();
    assert_eq!(page, all[1..3]);
    let beyond = host
        .engine
        .chunks(&run, &name("told"), u64::MAX, 2)
        .await
        .unwrap();
    assert_eq!(beyond, []);
    assert_eq!(json!(chunks(&host, &run, "other").await), json!([]));
    let streams = host.engine.streams_of(&run).await.unwrap();
    assert_eq!(
        json!(streams),
        json!([{ "name": "told", "chunks": 6, "bytes": 20 }])
    );

    // A replay has no effects.
    host.agrees(&run).await;
    assert_eq!(json!(chunks(&host, &run, "told").await), told);
    let nobody = RunId::new("nobody").unwrap();
    let missing = host.engine.streams_of(&nobody).await;
    assert!(matches!(missing, Err(Error::RunNotFound(_))), "{missing:?}");
}

async fn e15_a_second_attempt_does_not_write_twice(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start("stumbles", json!({})).await;
    host.output(&run).await;
    // What the first attempt wrote stands; the second goes on after it.
    assert_eq!(
        json!(chunks(&host, &run, "stumbled").await),
        json!(["1.0", "1.1", "2.2"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn e15_chunks_survive_a_cut_off_attempt() {
    let marks = Marks::start().await;
    marks.hold("told");
    let host = TestHost::with_http(&[marks.authority()]).await;
    let run = host
        .start("tells_and_marks", json!({ "marks": marks.url() }))
        .await;
    marks.reached("told", 1).await;
    // Started, tagged, scheduled, and the attempt begun.
    host.until(&run, |info| info.entries == 4).await;
    let begun = json!(["begin", "before, 1"]);
    assert_eq!(json!(chunks(&host, &run, "marked").await), begun);

    let host = host.restart().await;
    marks.reached("told", 2).await;
    marks.let_go();
    host.output(&run).await;
    let all = json!(["begin", "before, 1", "after, 2", "end"]);
    assert_eq!(json!(chunks(&host, &run, "marked").await), all);
    host.agrees(&run).await;
}

async fn next_chunk(following: &mut Following) -> Chunk {
    match following.next().await.unwrap() {
        Followed::Chunks(mut chunks) if chunks.len() == 1 => chunks.remove(0),
        other => panic!("one chunk is there: {other:?}"),
    }
}

async fn e15_readers_follow_what_is_written(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let run = host.start("echoes", json!({ "token": "echo" })).await;
    let mut early = host.engine.follow(run.clone(), name("echo"), 0).await.unwrap();
    for (index, word) in (0..).zip(["a", "b"]) {
        host.deliver("echo", json!(word)).await.unwrap();
        let chunk = next_chunk(&mut early).await;
        assert_eq!((chunk.index, json_of(&chunk)), (index, json!(word)));
    }
    let mut late = host.engine.follow(run.clone(), name("echo"), 1).await.unwrap();
    assert_eq!(json_of(&next_chunk(&mut late).await), json!("b"));
    host.deliver("echo", json!("end")).await.unwrap();
    for following in [&mut early, &mut late] {
        assert_eq!(json_of(&next_chunk(following).await), json!("end"));
        let end = following.next().await.unwrap();
        assert_eq!(end, Followed::Ended(RunStatus::Completed));
    }

    // Who follows when the host stops is told.
    let run = host.start("echoes", json!({ "token": "other" })).await;
    let mut cut_off = host.engine.follow(run, name("echo"), 0).await.unwrap();
    let (followed, ()) = tokio::join!(cut_off.next(), host.engine.shutdown());
    assert_eq!(followed.unwrap(), Followed::Stopping);
}

async fn e15_what_streams_refuse_is_typed(kind: StoreKind) {
    let host = TestHost::on(kind).await;
    let (run, output) = host.completes("writes_too_much", json!({})).await;
    let refused = json!(["invalid", "invalid", "too_large", "not_json"]);
    let fit = (8 << 20) / 60_002;
    assert_eq!(output, json!([refused, refused, fit, "stream_full"]));
    assert_eq!(chunks(&host, &run, "flood").await.len(), fit);
}

async fn found(host: &TestHost, tag: &str, value: &str) -> Vec<RunId> {
    let tags = BTreeMap::from([(tag.to_owned(), value.to_owned())]);
    let filter = RunFilter {
        tags: Tags::new(tags).unwrap(),
        limit: 10,
        ..RunFilter::default()
    };
    let runs = host.engine.runs(filter).await.unwrap();
    runs.into_iter().map(|run| run.id).collect()
}

async fn e14_a_workflow_sets_tags(kind: StoreKind) {
    let host = TestHost::with_clock(kind).await;
    let run = host.start("tags_itself", json!({})).await;
    host.reached(&run, RunStatus::Suspended).await;
    assert_eq!(found(&host, "state", "new").await, std::slice::from_ref(&run));

    // The next activation sets it again, and that changes nothing.
    let host = host.restart().await;
    assert_eq!(found(&host, "state", "new").await, std::slice::from_ref(&run));
    host.advance(Duration::from_secs(1));
    host.until(&run, |info| info.tags.get("state") == Some("paid"))
        .await;
    assert_eq!(found(&host, "state", "new").await, []);
    assert_eq!(found(&host, "state", "paid").await, std::slice::from_ref(&run));
    assert_eq!(found(&host, "customer", "8").await, std::slice::from_ref(&run));

    host.reached(&run, RunStatus::Suspended).await;
    host.advance(Duration::from_secs(1));
    let kinds = json!(["invalid", "invalid", "invalid", "invalid at 30"]);
    assert_eq!(host.output(&run).await, kinds);
    let tagged = host
        .events(&run)
        .await
        .into_iter()
        .filter(|event| *event == "tagged");
    assert_eq!(tagged.count(), 3 + 30);
    let report = host.agrees(&run).await;
    assert_eq!(report.calls[0].text, "set tag state=new");
    assert_eq!(found(&host, "state", "paid").await, std::slice::from_ref(&run));
}
