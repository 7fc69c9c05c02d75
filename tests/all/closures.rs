//! Closure steps: pieces of a workflow function that run in a copy of it.

use onemark_tests::{Marks, StoreKind, TestHost};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn c11_a_closure_uses_what_is_around_it() {
    for kind in [StoreKind::Memory, StoreKind::Sqlite] {
        let host = TestHost::on(kind).await;
        let run = host.start("captures", json!({ "words": ["a", "b", "c"] })).await;
        assert_eq!(
            host.output(&run).await,
            json!(["a b c", "3:a", "A B C", "3:c", "3:"])
        );
        let report = host.agrees(&run).await;
        let calls: Vec<_> = report.calls.iter().map(|call| call.text.as_str()).collect();
        assert_eq!(
            calls,
            [
                "closure step join",
                "closure step first",
                r#"step plain_step {"text":"a b c"}"#,
                "closure step last",
                "closure step inner"
            ]
        );
    }
}

/// Heap addresses, hash order, statics and captured state are what a replay sees, which runs no closure at all.
#[tokio::test(flavor = "multi_thread")]
async fn c11_the_live_instance_is_what_a_replay_is() {
    const ROUNDS: u64 = 6;
    let host = TestHost::new().await;
    let run = host.start("wild_closures", json!({ "rounds": ROUNDS })).await;
    let seen = host.output(&run).await;
    let seen = seen.as_array().unwrap();
    assert_eq!(seen.len() as u64, ROUNDS);
    for (round, line) in (0..).zip(seen) {
        let line = line.as_str().unwrap();
        let unchanged = format!("local Ok({round}), changed Ok(0), order ");
        assert!(
            line.starts_with("190 at 0x") && line.contains(&unchanged),
            "{line}"
        );
    }
    // A panic in a closure is the end of its attempt, and of nothing else.
    let failed = host
        .events(&run)
        .await
        .into_iter()
        .filter(|e| *e == "attempt_failed");
    assert_eq!(failed.count() as u64, ROUNDS / 2);
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c11_time_and_random_numbers_are_real_inside_a_closure() {
    let host = TestHost::with_clock(StoreKind::Sqlite).await;
    let run = host.start("closure_sees", json!({})).await;
    let seen: Vec<String> = serde_json::from_value(host.output(&run).await).unwrap();
    // The host's clock stands still, and the closures do not see it.
    let outside: u64 = seen[8].parse().unwrap();
    assert_eq!(outside, 1_800_000_000_000);
    for inside in [&seen[..4], &seen[4..8]] {
        assert_ne!(inside[0].parse::<u64>().unwrap(), outside);
        assert_eq!(inside[3], "9");
    }
    assert_ne!(seen[1], seen[5]);
    assert_eq!([&seen[2], &seen[6]], [&format!("{run}/0"), &format!("{run}/1")]);
    host.agrees(&run).await;
}

/// A saved closure never runs again, and one that was cut off runs again with the same key.
#[tokio::test(flavor = "multi_thread")]
async fn c11_closures_over_a_restart() {
    let marks = Marks::start().await;
    let host = TestHost::with_http(&[marks.authority()]).await;
    marks.hold("b");
    let input = json!({ "marks": marks.url(), "names": ["a", "b", "c"] });
    let run = host.start("marks_from_closures", input).await;
    marks.reached("b", 1).await;
    let begun = |info: &onemark::store::RunInfo| info.entries == 6;
    host.until(&run, begun).await;
    let host = host.restart().await;
    marks.release();
    host.output(&run).await;
    let left: Vec<_> = marks
        .all()
        .into_iter()
        .map(|mark| (mark.name, mark.attempt, mark.key))
        .collect();
    let mark = |name: &str, attempt, call| (name.to_owned(), attempt, format!("{run}/{call}"));
    assert_eq!(
        left,
        [mark("a", 1, 0), mark("b", 1, 1), mark("b", 2, 1), mark("c", 1, 2)]
    );
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closure_fails_as_a_step_does() {
    let host = TestHost::new().await;
    let text = async |how: &str, timeout_ms: u64| {
        let input = json!({ "how": how, "timeout_ms": timeout_ms });
        let run = host.start("closure_trouble", input).await;
        let output = host.output(&run).await;
        host.agrees(&run).await;
        output.as_str().unwrap().to_owned()
    };
    assert_eq!(text("well", 60_000).await, "well");
    assert_eq!(text("fatal", 60_000).await, "error after 1: as asked");
    assert_eq!(text("retry", 60_000).await, "error after 2: as asked");
    let panicked = text("panic", 60_000).await;
    assert!(panicked.starts_with("trap after 2: panicked at "), "{panicked}");
    let endless = text("loop", 100).await;
    assert!(endless.starts_with("timeout after 2: "), "{endless}");
}

/// C22: durable calls inside a closure say what to do instead.
#[tokio::test(flavor = "multi_thread")]
async fn c22_durable_calls_inside_a_closure_are_typed_errors() {
    let host = TestHost::new().await;
    for how in ["sleep", "hook"] {
        let input = json!({ "how": how, "timeout_ms": 60_000 });
        let run = host.start("closure_trouble", input).await;
        let output = host.output(&run).await;
        let output = output.as_str().unwrap();
        assert!(output.contains("works in workflow code only"), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_closures_at_once_after_a_hook_was_opened() {
    let host = TestHost::new().await;
    let run = host.start("closures_together", json!({ "n": 50 })).await;
    let output: Vec<String> = serde_json::from_value(host.output(&run).await).unwrap();
    let expected: Vec<_> = (0..50).map(|n| format!("{n} together:{run}")).collect();
    assert_eq!(output, expected);
    host.agrees(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closures_one_after_another() {
    let host = TestHost::new().await;
    let run = host.start("closure_sequence", json!({ "n": 200 })).await;
    assert_eq!(host.output(&run).await, json!(19_900));
    // Three entries a closure and nothing else, as for a step.
    assert_eq!(host.journal(&run).await.len(), 2 + 3 * 200);
    host.agrees(&run).await;
}

/// In a row of closures replicas are made ahead, for a call that may turn out to be another one, or a second attempt.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_closures_with_others_between() {
    const N: usize = 60;
    for kind in StoreKind::ALL {
        let host = TestHost::on(kind).await;
        let (run, output) = host.completes("closure_rows", json!({ "n": N })).await;
        let output: Vec<String> = serde_json::from_value(output).unwrap();
        let mut letters = 0;
        for (i, entry) in output.iter().enumerate() {
            let expected = match i % 8 {
                5 => "BETWEEN".to_owned(),
                _ => format!("{i}: {i} before, {letters} letters, "),
            };
            assert!(entry.starts_with(&expected), "{i}: {entry}");
            letters += entry.len();
        }
        let failed = host.events(&run).await;
        let failed = failed.iter().filter(|event| **event == "attempt_failed");
        assert_eq!(failed.count(), (0..N).filter(|i| i % 8 == 4).count());
        host.agrees(&run).await;
    }
}
