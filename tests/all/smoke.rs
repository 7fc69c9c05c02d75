use onemark_tests::*;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn smoke() {
    let host = TestHost::new().await;
    let run = host.start("sequence", json!({"n": 5})).await;
    assert_eq!(host.output(&run).await, json!(10));
    println!("{:?}", host.events(&run).await);
    let report = host.engine.replay(&run, None).await.unwrap();
    println!("{report:?}");
    for (w, input) in [
        ("fanout", json!({"n": 1000})),
        ("select_loop", json!({"n": 100})),
        ("observes", json!({"rounds": 5})),
    ] {
        let t = std::time::Instant::now();
        let run = host.start(w, input).await;
        let out = host.ended(&run).await;
        println!("{w} {:?} {:?}", t.elapsed(), out.status);
        let report = host.engine.replay(&run, None).await.unwrap();
        println!("{:?} {}us", report.verdict, report.took_us);
    }
}
