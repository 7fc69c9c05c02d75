//! What a schema lets through and a Rust type may not: refused at the door, or read by the guest.

use std::collections::BTreeSet;

use onemark::engine::{DeliverRequest, Error, StartRequest};
use onemark::journal::RunStatus;
use onemark_tests::{StoreKind, TestHost, request, token};
use serde_json::{Value, json};

/// Values as they are written: many have the same meaning to one reader and another to the next.
const VALUES: &[&str] = &[
    "null",
    "true",
    // Integers at the edges of their types, and one beyond.
    "0",
    "-0",
    "1",
    "-1",
    "127",
    "128",
    "255",
    "256",
    "-128",
    "-129",
    "32767",
    "32768",
    "-32768",
    "-32769",
    "65535",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483648",
    "-2147483649",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "-18446744073709551616",
    "170141183460469231731687303715884105727",
    "-170141183460469231731687303715884105728",
    "340282366920938463463374607431768211455",
    "3402823669209384634633746074317682114550",
    // Floats, some of them whole numbers.
    "1.0",
    "-0.0",
    "1.5",
    "1e3",
    "1E0",
    "1e-400",
    "1e38",
    "1e39",
    "1e400",
    "-1e400",
    // Texts.
    r#""""#,
    r#""a""#,
    r#""ab""#,
    r#""1""#,
    r#""é""#,
    r#""e\u0301""#,
    r#""\ud83d\ude00""#,
    r#""\ud800""#,
    r#""\u0000""#,
    r#""A""#,
    r#""C""#,
    r#""127.0.0.1""#,
    r#""127.0.0.01""#,
    r#""127.1""#,
    r#""::1""#,
    r#""::ffff:1.2.3.4""#,
    r#""::g""#,
    r#""fe80::1%1""#,
    // Lists.
    "[]",
    "[1]",
    "[1,2]",
    "[2,1]",
    "[1,1]",
    "[1,2,3]",
    "[1.0,2]",
    "[1,256]",
    r#"[1,"a"]"#,
    "[null]",
    // Objects.
    "{}",
    r#"{"a":1}"#,
    r#"{"a":1.0}"#,
    r#"{"a":256}"#,
    r#"{"a":null}"#,
    r#"{"a":1,"a":1}"#,
    r#"{"a":1,"\u0061":2}"#,
    r#"{"x":{"a":1,"a":2}}"#,
    r#"{"a":1,"b":null}"#,
    r#"{"a":1,"b":2}"#,
    r#"{"a":1,"b":65536}"#,
    r#"{"ab":1}"#,
    r#"{"":1}"#,
    r#"{"1":1}"#,
    r#"{"1":1,"1":1}"#,
    r#"{"kind":"A","a":1}"#,
    r#"{"kind":"A","a":1.0}"#,
    r#"{"kind":"B","a":1}"#,
    r#"{"kind":"B","b":-1}"#,
    r#"{"kind":"B","b":9223372036854775808}"#,
    r#"{"kind":"C"}"#,
    r#"{"kind":"A","kind":"A","a":1}"#,
    r#"{"Ok":1}"#,
    r#"{"Ok":1.0}"#,
    r#"{"Err":"a"}"#,
    r#"{"Ok":1,"Err":"a"}"#,
    r#"{"start":1,"end":2}"#,
    r#"{"start":2,"end":1}"#,
    r#"{"start":0,"end":256}"#,
    r#"{"secs":1,"nanos":1}"#,
    r#"{"secs":1.0,"nanos":1}"#,
    r#"{"secs":1,"nanos":4294967296}"#,
    r#"{"$serde_json::private::RawValue":"1"}"#,
    r#"{"$serde_json::private::RawValue":1}"#,
    r#"{"$serde_json::private::Number":"x"}"#,
];

/// What no schema can say, so that the guest is the first to notice: a type, and a value of it.
const BEYOND: &[(&str, &str)] = &[
    // The host keeps no digits past 64 bits: this may have been written as an integer.
    ("u128", "1e38"),
    ("i128", "1e38"),
    // Of the keys of a map the schema says nothing, or a pattern.
    ("by_character", r#"{"ab":true}"#),
    ("by_number", r#"{"01":1}"#),
    ("by_number", r#"{"256":1}"#),
    // The schema allows other fields.
    ("duration", r#"{"secs":1,"nanos":1,"more":1}"#),
    ("duration", r#"{"secs":18446744073709551615,"nanos":1000000000}"#),
];

/// Every value as each type that the workflow knows from its schema.
async fn values(host: &TestHost) -> Vec<String> {
    let workflows = host.engine.workflows().await.expect("workflows can be listed");
    let workflow = workflows.iter().find(|it| it.name == "reads_typed");
    let schema = &workflow.expect("it is deployed").manifest["input"]["$defs"]["Typed"];
    let variants = schema["oneOf"].as_array().expect("an enum").iter();
    let names = variants.filter_map(|variant| variant["required"][0].as_str());
    let all = names.flat_map(|name| VALUES.iter().map(move |value| (name, *value)));
    all.filter(|it| !BEYOND.contains(it))
        .map(|(name, value)| typed(name, value))
        .collect()
}

/// Deep enough to need every level that readers allow, or one more.
fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

fn typed(name: &str, value: &str) -> String {
    format!(r#"{{"{name}":{value}}}"#)
}

fn reads_typed(value: &str) -> StartRequest {
    let text = format!(r#"{{"value":{value}}}"#);
    StartRequest {
        input: text.into(),
        ..request("reads_typed", json!({}), &[])
    }
}

fn deliver(name: &str, payload: &str) -> DeliverRequest {
    DeliverRequest {
        token: token(name),
        payload: payload.into(),
        key: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_is_refused_or_read() {
    let host = TestHost::on(StoreKind::Memory).await;
    let mut runs = Vec::new();
    let mut values = values(&host).await;
    // Two levels are around it.
    values.extend([125, 126].map(|levels| typed("any", &nested(levels))));
    for value in values {
        match host.engine.start(reads_typed(&value)).await {
            Ok(receipt) => runs.push((value, receipt.run_id)),
            Err(Error::InvalidInput { .. }) => {}
            Err(error) => panic!("{value}: {error}"),
        }
    }
    // What was refused is not there.
    assert_eq!(host.everything().await.len(), runs.len());
    for (value, run) in &runs {
        let result = host.ended(run).await;
        assert_eq!(result.status, RunStatus::Completed, "{value}: {result:?}");
    }

    let accepted: BTreeSet<&str> = runs.iter().map(|(value, _)| value.as_str()).collect();
    for (name, value, fits) in [
        ("u8", "255", true),
        ("u8", "256", false),
        ("u64", "18446744073709551615", true),
        ("u64", "1.0", false),
        ("u64", "1e3", false),
        ("u128", "340282366920938463463374607431768211455", true),
        ("usize", "4294967296", false),
        ("f64", "1.0", true),
        ("f64", "1", true),
        ("f64", "340282366920938463463374607431768211455", true),
        ("f32", "1e39", false),
        ("any", "1.0", true),
        ("any", "340282366920938463463374607431768211455", true),
        ("any", "1e400", false),
        ("any", r#"{"x":{"a":1,"a":2}}"#, false),
        ("ip", r#""::1""#, true),
        ("ip", r#""::g""#, false),
        ("char", r#""\ud83d\ude00""#, true),
        ("any", &nested(125), true),
        ("any", &nested(126), false),
    ] {
        let value = typed(name, value);
        assert_eq!(accepted.contains(value.as_str()), fits, "{value}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_refused_or_read() {
    let host = TestHost::on(StoreKind::Memory).await;
    let run = host.start("reads_typed_payloads", json!({ "id": "1" })).await;
    let mut accepted = 0;
    for payload in values(&host).await {
        match host.engine.deliver(deliver("typed:1", &payload)).await {
            Ok(_) => accepted += 1,
            Err(Error::InvalidPayload { .. }) => {}
            Err(error) => panic!("{payload}: {error}"),
        }
    }
    host.deliver("typed:1", Value::Null).await.unwrap();
    // Each that was accepted was read, and none that was refused.
    assert_eq!(host.output(&run).await, json!(accepted));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_schema_can_say_fails_the_run_and_says_why() {
    let host = TestHost::on(StoreKind::Memory).await;
    for (name, value) in BEYOND {
        let started = host.engine.start(reads_typed(&typed(name, value))).await;
        let result = host.ended(&started.unwrap().run_id).await;
        let error = result.error.unwrap();
        assert_eq!(result.status, RunStatus::Failed, "{name} {value}");
        assert!(
            error
                .get()
                .contains("the input does not fit the workflow's parameters: "),
            "{name} {value}: {error}"
        );
    }
}
