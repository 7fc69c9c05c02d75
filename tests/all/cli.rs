//! The program itself: output, exit codes, and what it refuses to start on.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use onemark_tests::{Marks, onemark_bin, programs, scheduled, variant, webhooks};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The program, without what the tester's own environment says to it.
fn onemark(args: &[&str]) -> Command {
    let mut command = Command::new(onemark_bin());
    for variable in ["ONEMARK_URL", "ONEMARK_DB", "ONEMARK_LISTEN", "ONEMARK_LOG"] {
        command.env_remove(variable);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// What a command that ended left behind.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("it ended by itself"),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

impl Ran {
    #[track_caller]
    fn ends_with(self, code: i32) -> Self {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.stdout, self.stderr
        );
        self
    }

    #[track_caller]
    fn says(self, words: &str) -> Self {
        assert!(self.stderr.contains(words), "{words:?} is not in {}", self.stderr);
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|_| panic!("no JSON: {}", self.stdout))
    }
}

fn run(args: &[&str]) -> Ran {
    onemark(args).output().expect("the program runs").into()
}

/// A served database in a folder of its own.
struct Served {
    folder: TempDir,
    host: Child,
    url: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.host.kill();
        let _ = self.host.wait();
    }
}

/// Starts a host on a free port; returns once it listens.
fn serve(folder: &Path, args: &[&str]) -> (Child, String) {
    let mut host = onemark(&["serve", "--listen", "127.0.0.1:0", "-o", "json"])
        .args(args)
        .env("ONEMARK_LOG", "off")
        .current_dir(folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the host starts");
    let mut line = String::new();
    let stdout = host.stdout.take().expect("piped");
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("the host says where it listens");
    let ready: Value = serde_json::from_str(&line).expect("in JSON");
    (host, ready["listening"].as_str().expect("with a URL").to_owned())
}

impl Served {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        // Compiled code is shared by all tests: components are compiled once a build.
        let code = std::env::temp_dir().join("onemark-test-code");
        std::fs::create_dir_all(&code).expect("a temporary folder");
        std::os::unix::fs::symlink(code, folder.path().join("onemark.db.code")).expect("a link");
        let (host, url) = serve(folder.path(), &[]);
        Self { folder, host, url }
    }

    fn with_programs() -> Self {
        let served = Self::new();
        let file = served.file("programs.wasm", &programs());
        served.run(&["deploy", &file]).ends_with(0);
        served
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        file(self.folder.path(), name, bytes)
    }

    fn run(&self, args: &[&str]) -> Ran {
        onemark(args)
            .env("ONEMARK_URL", &self.url)
            .output()
            .expect("the program runs")
            .into()
    }
}

fn file(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("the file can be written");
    path.to_str().expect("a plain path").to_owned()
}

// ---- a run's life -----------------------------------------------------------------------------------

#[test]
fn a_run_from_start_to_replay() {
    let served = Served::with_programs();
    let started = served.run(&["start", "follow", r#"{"id":"7"}"#]).ends_with(0);
    let run = started.stdout.trim().to_owned();

    let conflict = served.run(&["start", "follow", r#"{"id":"7"}"#]).ends_with(3);
    let conflict = conflict
        .says("error: hook token `order:7` is held by run")
        .says("\nhint: ");
    assert_eq!(conflict.stdout, "", "messages go to stderr");
    let conflict = served
        .run(&["start", "follow", r#"{"id":"7"}"#, "-o", "json"])
        .ends_with(3);
    assert_eq!(conflict.json()["error"]["conflicting_run_id"], json!(run));

    let payload = r#"{"n":1,"last":true}"#;
    let delivered = served
        .run(&["deliver", "order:7", payload, "--key", "k", "-o", "json"])
        .ends_with(0);
    let again = served
        .run(&["deliver", "order:7", payload, "--key", "k", "-o", "json"])
        .ends_with(0);
    assert_eq!(delivered.json(), again.json());

    let waited = ["start", "follow", r#"{"id":"8"}"#, "--id", &run, "--wait"];
    served
        .run(&waited)
        .ends_with(1)
        .says("was used for another request");
    // No other command waits for a run; a start of the same id does, also when the run exists.
    let other = [
        "start",
        "sequence",
        r#"{"n":4}"#,
        "--id",
        "seq",
        "--wait",
        "-o",
        "json",
    ];
    let first = served.run(&other).ends_with(0).json();
    assert_eq!((&first["started"], &first["output"]), (&json!(true), &json!(6)));
    assert_eq!(served.run(&other).ends_with(0).json()["started"], json!(false));

    let shown = served.run(&["runs", "show", "seq"]).ends_with(0).stdout;
    assert!(
        shown.contains("completed") && shown.ends_with("output      6\n"),
        "{shown}"
    );
    let listed = served
        .run(&["runs", "list", "--workflow", "sequence", "-o", "json"])
        .ends_with(0);
    assert_eq!(listed.json()["runs"][0]["id"], "seq");
    assert!(served.run(&["runs", "list"]).ends_with(0).stdout.contains(&run));

    let journal = served.run(&["journal", "seq"]).ends_with(0).stdout;
    let lines: Vec<_> = journal.lines().collect();
    assert!(lines[0].starts_with("SEQ"), "{journal}");
    assert!(
        lines[1].contains("started") && lines[1].ends_with(r#"{"n":4}"#),
        "{journal}"
    );
    assert!(
        lines[2].contains("step_scheduled") && lines[2].contains("add"),
        "{journal}"
    );
    let entries = served.run(&["journal", "seq", "-o", "json"]).ends_with(0).json();
    assert_eq!(entries["entries"].as_array().unwrap().len(), lines.len() - 1);

    let replayed = served.run(&["replay", "seq"]).ends_with(0).stdout;
    assert!(replayed.contains("agrees: 4 of 4 calls matched"), "{replayed}");
    assert!(
        !replayed.contains('\u{1b}'),
        "no colours where there is no terminal"
    );
}

// A16, A17, A22, B09, E14
#[test]
fn a_second_start_does_as_it_is_told() {
    let served = Served::with_programs();
    let start = |more: &[&str]| {
        let args = [
            &["start", "read_any", "--hook", "t", "--min-retention", "1h"],
            more,
        ]
        .concat();
        served.run(&args)
    };
    let first = start(&["--deliver", "1", "--deliver-always", "--tag", "customer=7"]).ends_with(0);
    let run = first.says("started, with the payload").stdout.trim().to_owned();
    let attached = start(&["--on-conflict", "attach"]).ends_with(0);
    assert_eq!(
        attached.says("the token is held by a run that is").stdout.trim(),
        run
    );
    start(&["--on-conflict", "fail"]).ends_with(3);
    let delivered = start(&["--deliver", "\"end\"", "--deliver-token", "t"]).ends_with(0);
    assert_eq!(
        delivered
            .says("delivered to the run that holds the token")
            .stdout
            .trim(),
        run
    );
    assert_eq!(
        start(&["--on-conflict", "attach", "--wait"]).ends_with(0).stdout,
        "[1]\n"
    );
    start(&["--deliver", "2"])
        .ends_with(1)
        .says("takes no more payloads");
    start(&["--on-conflict", "deliver"]).ends_with(2);
    start(&["--deliver-always"]).ends_with(2);
    start(&["--tag", "customer"]).ends_with(2);

    let later = [
        "--start-at",
        "2100-01-01T00:00:00Z",
        "--id",
        "later",
        "--tag",
        "customer=7",
        "--tag",
        "n=2",
    ];
    let args = [&["start", "sequence", r#"{"n":1}"#], &later[..]].concat();
    served.run(&args).ends_with(0);
    let shown = served.run(&["runs", "show", "later"]).ends_with(0).stdout;
    for fact in [
        "waits for  start_at",
        "wakes      2100-01-01T00:00:00Z",
        "customer=7 n=2",
    ] {
        assert!(shown.contains(fact), "{fact} is not in {shown}");
    }
    let shown = served.run(&["runs", "show", &run]).ends_with(0).stdout;
    assert!(shown.contains("duplicates  5\n"), "{shown}");

    let owner = served
        .run(&["start", "read_any", "--hook", "u"])
        .ends_with(0)
        .stdout;
    let replace = ["start", "read_any", "--hook", "u", "--on-conflict", "replace"];
    let new = served.run(&replace).ends_with(0);
    new.says(&format!("started, in place of run {}", owner.trim()));
    served.run(&["start", "read_any", "--hook", "u"]).ends_with(3);
    let shown = served.run(&["runs", "show", owner.trim()]).ends_with(0).stdout;
    assert!(shown.contains("another run takes its place"), "{shown}");

    let listed = |more: &[&str]| {
        let args = [&["runs", "list", "-o", "json", "--tag", "customer=7"], more].concat();
        let listed = served.run(&args).ends_with(0).json();
        let runs = listed["runs"].as_array().unwrap().iter();
        runs.map(|run| run["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["later", &run]);
    assert_eq!(listed(&["--tag", "n=2"]), ["later"]);
    assert_eq!(listed(&["--created-before", "2000-01-01T00:00:00Z"]), [""; 0]);
    assert_eq!(
        listed(&["--created-after", "2000-01-01T00:00:00Z", "--status", "completed"]),
        [run]
    );

    let payloads = served
        .run(&["hooks", "show", "t", "--payloads"])
        .ends_with(0)
        .stdout;
    let lines: Vec<_> = payloads.lines().collect();
    assert_eq!(lines.len(), 3, "{payloads}");
    assert!(
        lines[2].starts_with("1 ") && lines[2].ends_with("\"end\""),
        "{payloads}"
    );
    let page = served
        .run(&["hooks", "show", "t", "--payloads", "--from", "1", "-o", "json"])
        .ends_with(0)
        .json();
    assert_eq!(page["payloads"][0]["payload"], "end");
    assert_eq!(
        (&page["payloads"][0]["read"], &page["next"]),
        (&json!(true), &json!(null))
    );
}

#[test]
fn exit_codes_tell_how_it_ended() {
    let served = Served::with_programs();
    served
        .run(&["start", "fails", r#"{"message":"no luck"}"#, "--wait"])
        .ends_with(5)
        .says("no luck");
    let blocked = ["start", "broken", r#"{"how":"panic"}"#, "--id", "b", "--wait"];
    served
        .run(&blocked)
        .ends_with(5)
        .says("run b is blocked")
        .says("runs upgrade b --component");

    let changed = served.file("changed.wasm", &variant("renamed"));
    served
        .run(&["start", "changing", "--id", "c", "--hook", "t"])
        .ends_with(0);
    served.run(&["deliver", "t", "1"]).ends_with(0);
    served
        .run(&["start", "changing", "--id", "c", "--hook", "t", "--wait"])
        .ends_with(0);
    let diverged = served.run(&["replay", "c", "--component", &changed]).ends_with(4);
    assert!(
        diverged.stdout.contains("changing.rs:"),
        "the source line: {}",
        diverged.stdout
    );
    assert!(
        diverged.stdout.contains("+  \"name\": \"two\""),
        "the diff: {}",
        diverged.stdout
    );
    served
        .run(&["replay", "c", "--component", &changed, "-o", "json"])
        .ends_with(4)
        .json();

    served
        .run(&["deploy", &changed, "--name", "changed"])
        .ends_with(0);
    let upgraded = served
        .run(&["runs", "upgrade", "b", "--component", "changed", "-o", "json"])
        .ends_with(0);
    assert!(upgraded.json()["blocked"].is_null());
    let again = ["start", "broken", r#"{"how":"panic"}"#, "--id", "b", "--wait"];
    assert!(served.run(&again).ends_with(0).stdout.contains("mended"));
}

/// E13
#[test]
fn a_fork_says_where_it_comes_from() {
    let served = Served::with_programs();
    let start = [
        "start",
        "keys",
        r#"{"seed":"a"}"#,
        "--id",
        "first",
        "--hook",
        "x",
        "--wait",
    ];
    served.run(&start).ends_with(0);
    // The second step is saved at entry 6, and has no key made from data.
    let refused = served
        .run(&["runs", "fork", "first", "--at", "6", "--id", "second"])
        .ends_with(1);
    refused.says("`--yes`");
    let fork = [
        "runs",
        "fork",
        "first",
        "--at",
        "6",
        "--id",
        "second",
        "--hook-for",
        "x",
        "y",
        "--yes",
    ];
    assert_eq!(served.run(&fork).ends_with(0).stdout.trim(), "second");
    let again = served.run(&fork).ends_with(0);
    assert_eq!(
        again.says("was forked at entry 6 before, as second").stdout,
        "second\n"
    );
    let shown = served.run(&["runs", "show", "second"]).ends_with(0);
    assert!(shown.stdout.contains("first at entry 6"), "{}", shown.stdout);
    assert!(shown.stdout.contains("y "), "{}", shown.stdout);
    let journal = served.run(&["journal", "second"]).ends_with(0);
    assert!(journal.stdout.contains("of first at 6,"), "{}", journal.stdout);
    let by_place = ["runs", "fork", "first", "--at", "1", "--hook", "z", "--yes"];
    served.run(&by_place).ends_with(0);
    served.run(&["runs", "fork", "first"]).ends_with(2);
    served.run(&["runs", "fork", "first", "--at", "99"]).ends_with(1);
    served
        .run(&["runs", "fork", "nobody", "--at", "1", "--yes"])
        .ends_with(1);
}

#[test]
fn a_host_that_starts_says_which_webhooks_have_no_secret() {
    let mut served = Served::new();
    let Served { folder, host, url } = &mut served;
    let component = file(folder.path(), "webhooks.wasm", &webhooks());
    let ran = onemark(&["deploy", &component, "--url", url]).output().unwrap();
    Ran::from(ran).ends_with(0);
    host.kill().unwrap();
    host.wait().unwrap();
    let mut again = onemark(&["serve", "--listen", "127.0.0.1:0", "-o", "json"])
        .env("ONEMARK_LOG", "warn")
        .env("SHOP_SECRET", "s3cret")
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = again.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    // It answers once it has looked.
    let url = ready["listening"].as_str().unwrap();
    let ran = onemark(&["components", "list", "--url", url]).output().unwrap();
    again.kill().unwrap();
    Ran::from(ran).ends_with(0);
    let said = again.wait_with_output().unwrap().stderr;
    let said = String::from_utf8(said).unwrap();
    assert!(
        said.contains("secret of a webhook is not set") && said.contains("NO_SECRET"),
        "{said}"
    );
    assert!(!said.contains("SHOP_SECRET"), "{said}");
}

#[test]
fn a_deployment_that_is_removed_is_gone_from_the_list() {
    let served = Served::with_programs();
    let file = served.file("webhooks.wasm", &webhooks());
    let deployed = served.run(&["deploy", &file]).ends_with(0);
    // The host of these tests has no secrets.
    deployed.says("warning: webhook `shop/orders` refuses every request: `SHOP_SECRET`");
    let listed = served.run(&["components", "list"]).ends_with(0).stdout;
    assert!(
        listed.contains("programs") && listed.contains("webhooks"),
        "{listed}"
    );
    let removed = served.run(&["components", "remove", "webhooks"]).ends_with(0);
    assert!(removed.stdout.contains("webhooks"), "{}", removed.stdout);
    let listed = served
        .run(&["components", "list", "-o", "json"])
        .ends_with(0)
        .json();
    let names: Vec<_> = listed["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["programs"]);
    let again = served.run(&["components", "remove", "webhooks"]).ends_with(1);
    again.says("error: no component is deployed as `webhooks`");
    served
        .run(&["start", "charged", "{}"])
        .ends_with(1)
        .says("no workflow `charged` is deployed");
}

#[test]
fn a_rerun_asks_about_steps_without_keys() {
    let served = Served::with_programs();
    let start = ["start", "keys", r#"{"seed":"a"}"#, "--id", "first", "--wait"];
    served.run(&start).ends_with(0);
    let refused = served
        .run(&["runs", "rerun", "first", "--id", "second"])
        .ends_with(1);
    refused.says("`--yes`");
    let rerun = [
        "runs", "rerun", "first", "--id", "second", "--hook", "mine", "--yes",
    ];
    let first = served.run(&rerun).ends_with(0).says("runs again as second");
    assert_eq!(first.stdout.trim(), "second");
    let again = served.run(&rerun).ends_with(0);
    assert_eq!(again.says("was run again before, as second").stdout, "second\n");
    served.run(&["runs", "rerun", "nobody", "--yes"]).ends_with(1);
    served
        .run(&["start", "follow", r#"{"id":"9"}"#, "--id", "follows"])
        .ends_with(0);
    served
        .run(&["runs", "rerun", "follows", "--yes"])
        .ends_with(1)
        .says("workflow `follow` reads the hook of its token")
        .says("`onemark runs rerun RUN --hook TOKEN`");
    served.run(&["runs", "cancel", "nobody"]).ends_with(1);
    let ended = served.run(&["runs", "terminate", "second", "-o", "json"]);
    assert!(
        ended.stdout.contains("run_ended") || ended.stdout.contains("\"cancelled\""),
        "{}",
        ended.stdout
    );
}

#[test]
fn steps_that_block_their_run_are_decided_about() {
    let served = Served::with_programs();
    let stuck = |id: &str| {
        let input = format!(r#"{{"good_from_attempt":3,"fatal":false,"token":"{id}"}}"#);
        served
            .run(&["start", "waits_for_help", &input, "--id", id, "--wait"])
            .ends_with(5)
            .says("step `stubborn` (call 0, key `")
            .says(&format!("`onemark runs retry {id}`"));
    };
    let result = |id: &str| served.run(&["runs", "show", id, "-o", "json"]).json();

    stuck("a");
    served.run(&["runs", "resolve", "a"]).ends_with(2);
    served
        .run(&["runs", "resolve", "a", "--retry", "--error", "e"])
        .ends_with(2);
    served
        .run(&["runs", "resolve", "a", "--result", "no JSON"])
        .ends_with(1)
        .says("the result is no JSON");
    served
        .run(&["runs", "resolve", "a", "--call", "1", "--retry"])
        .ends_with(1)
        .says("blocked at call 0");
    served
        .run(&[
            "runs",
            "resolve",
            "a",
            "--call",
            "0",
            "--result",
            r#"[7,"found"]"#,
        ])
        .ends_with(0);
    let input = r#"{"good_from_attempt":3,"fatal":false,"token":"a"}"#;
    let ended = served
        .run(&["start", "waits_for_help", input, "--id", "a", "--wait"])
        .ends_with(0);
    assert_eq!(ended.stdout.trim().lines().last(), Some(r#"[7,"found"]"#));

    stuck("b");
    served.run(&["runs", "retry"]).ends_with(2);
    served.run(&["runs", "retry", "b", "--all"]).ends_with(2);
    served.run(&["runs", "retry", "b"]).ends_with(0);
    let input = r#"{"good_from_attempt":3,"fatal":false,"token":"b"}"#;
    served
        .run(&["start", "waits_for_help", input, "--id", "b", "--wait"])
        .ends_with(0);
    assert_eq!(result("b")["status"], "completed");

    stuck("c");
    stuck("d");
    let all = [
        "runs",
        "retry",
        "--all",
        "--workflow",
        "waits_for_help",
        "--reason",
        "step_failed",
    ];
    let retried = served.run(&all).ends_with(0).says("2 runs go on");
    let mut runs: Vec<_> = retried.stdout.lines().collect();
    runs.sort_unstable();
    assert_eq!(runs, ["c", "d"]);
    served
        .run(&["runs", "retry", "--all", "--reason", "trap"])
        .ends_with(1)
        .says("for others decide run by run");
}

#[test]
fn hooks_are_shown_and_freed() {
    let served = Served::with_programs();
    let args = [
        "start",
        "read_any",
        "--hook",
        "a/b:1",
        "--hook",
        "second",
        "--min-retention",
        "24h",
    ];
    served.run(&args).ends_with(0);
    let shown = served
        .run(&["hooks", "show", "a/b:1", "-o", "json"])
        .ends_with(0)
        .json();
    assert_eq!(shown["state"], "open");
    let kept = shown["retained_until"].as_u64().unwrap() - shown["claimed_at"].as_u64().unwrap();
    assert_eq!(kept, 24 * 60 * 60 * 1000);
    served.run(&["hooks", "dispose", "a/b:1"]).ends_with(0);
    assert!(
        served
            .run(&["hooks", "show", "a/b:1"])
            .ends_with(0)
            .stdout
            .contains("freed")
    );
}

// ---- bad input --------------------------------------------------------------------------------------

#[test]
fn refuses_bad_usage() {
    for args in [
        &["nope"][..],
        &["start"],
        &["start", "w", "--hook", "t", "--min-retention", "soon"],
        &["runs", "list", "--status", "nope"],
        &["serve", "--allow-http", "http://host/path"],
        &["serve", "--allow-http", "any"],
        &["-o", "yaml", "runs", "list"],
    ] {
        run(args).ends_with(2).says("error: ");
    }
}

#[test]
fn inspect_says_what_a_component_is_and_asks_for() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("webhooks.wasm");
    let path = file.to_str().unwrap();
    std::fs::write(&file, webhooks()).unwrap();
    let shown = run(&["inspect", path]).ends_with(0).stdout;
    for words in [
        "digest ",
        "workflow ",
        "webhook ",
        "onemark:workflow@0.1.0",
        "wasi:filesystem@",
        "no folder",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let shown = run(&["inspect", path, "-o", "json"]).ends_with(0).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(shown["manifest"]["workflows"].is_array());
    assert!(
        shown["imports"]
            .as_array()
            .unwrap()
            .iter()
            .all(|import| import["given"].is_string())
    );

    // What it asks for is told also where it cannot be deployed.
    let unknown = br#"(component (import "their:own/thing@1.0.0" (instance)))"#;
    std::fs::write(&file, wat::parse_bytes(unknown).unwrap()).unwrap();
    let shown = run(&["inspect", path])
        .ends_with(1)
        .says("cannot be deployed")
        .stdout;
    assert!(
        shown.contains("their:own@1.0.0") && shown.contains("unknown to this host"),
        "{shown}"
    );
    let shown = run(&["inspect", path, "-o", "json"]).ends_with(1).stdout;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["imports"][0]["given"], &shown["manifest"]),
        (&Value::Null, &Value::Null)
    );
    assert!(shown["error"].is_string());

    for (bytes, why) in [
        (&b""[..], "empty"),
        (b"text", "does not begin"),
        (&webhooks()[..5_000], "cannot be deployed"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        run(&["inspect", path]).ends_with(1).says(why);
    }
}

#[test]
fn refuses_authorities_that_are_none() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("ca.pem");
    let trust = file.to_str().unwrap();
    let serve = [
        "serve",
        "--ephemeral",
        "--listen",
        "127.0.0.1:0",
        "--trust",
        trust,
    ];
    run(&serve).ends_with(1).says("ca.pem` cannot be read");
    std::fs::write(&file, "no certificate").unwrap();
    run(&serve).ends_with(1).says("holds no certificate");
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(&file, nonsense).unwrap();
    run(&serve)
        .ends_with(1)
        .says("an authority that steps are to trust is none");
}

/// The server's hints speak of requests, the program of its own arguments.
#[test]
fn hints_are_in_words_of_the_command_line() {
    let served = Served::with_programs();
    let twice = served.file("twice.wasm", &programs());
    served
        .run(&["start", "keys", r#"{"seed":"a"}"#, "--id", "keys", "--wait"])
        .ends_with(0);
    served.run(&["start", "read_any", "--hook", "held"]).ends_with(0);
    served
        .run(&["start", "changing", "--id", "c", "--hook", "t"])
        .ends_with(0);
    let changed = served.file("changed.wasm", &variant("renamed"));
    served.run(&["deploy", &changed]).ends_with(0);
    served.run(&["deploy", &twice]).ends_with(0);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["start", "nope"], 1, "`onemark workflows` lists"),
        (&["start", "read_any"], 1, "DEPLOYMENT/WORKFLOW"),
        (&["start", "twice/sequence"], 1, "`onemark workflows NAME`"),
        (&["start", "twice/read_any", "--hook", "held"], 3, "--on-conflict"),
        (&["runs", "rerun", "keys"], 1, "say `--yes`"),
        (
            &["runs", "fork", "keys", "--at", "99"],
            1,
            "`onemark journal RUN`",
        ),
        (&["runs", "show", "nobody"], 1, "`onemark runs list`"),
        (
            &["runs", "upgrade", "c", "--component", "nope"],
            1,
            "`onemark deploy FILE",
        ),
        (&["deliver", "nobody", "1"], 1, "`onemark runs show RUN`"),
        (
            &["schedules", "backfill", "nope", "--from", "0", "--to", "1"],
            1,
            "`onemark schedules list`",
        ),
        (
            &[
                "start",
                "twice/read_any",
                "--deliver",
                "1",
                "--on-conflict",
                "attach",
                "--hook",
                "h",
            ],
            2,
            "`--deliver` goes with",
        ),
        (&["runs", "list", "--tag", "nope"], 2, "NAME=VALUE"),
        (&["runs", "list", "--limit", "5000"], 2, "1..=1000"),
    ];
    for (args, code, says) in cases {
        let ran = served.run(args).ends_with(*code).says(says);
        for words in ["GET ", "POST ", "PUT ", "%2F", ": true", "/v1/", "tag=NAME"] {
            assert!(!ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
        }
    }
}

#[test]
fn workflows_are_listed_with_what_they_take() {
    let served = Served::new();
    let none = served.run(&["workflows"]).ends_with(0).says("no workflows");
    assert_eq!(none.stdout, "");
    let file = served.file("webhooks.wasm", &webhooks());
    let deployed = served.run(&["deploy", &file]).ends_with(0).stdout;
    assert!(
        deployed.contains("webhook    pushed: /webhooks/github, secret in SHOP_SECRET\n"),
        "{deployed}"
    );
    let file = served.file("scheduled.wasm", &scheduled());
    let deployed = served.run(&["deploy", &file]).ends_with(0).stdout;
    assert!(
        deployed.contains("schedule   morning: 0 9 * * 1-5 (Europe/Berlin)\n"),
        "{deployed}"
    );
    let file = served.file("programs.wasm", &programs());
    let deployed = served.run(&["deploy", &file]).ends_with(0).stdout;
    assert!(deployed.contains("event      ships: order.paid\n"), "{deployed}");
    assert!(!deployed.contains("schedule "), "{deployed}");

    let listed = served.run(&["workflows"]).ends_with(0).stdout;
    let line = |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line("ships ").contains("event order.paid"), "{listed}");
    assert!(
        line("half_past ").contains("schedule 30 * * * * (UTC)"),
        "{listed}"
    );
    let shown = served.run(&["workflows", "programs/ships"]).ends_with(0).stdout;
    for fact in [
        "token       ship:{id}\n",
        "event       order.paid\n",
        "input       {",
    ] {
        assert!(shown.contains(fact), "{shown}");
    }
    let shown = served.run(&["workflows", "two_per_customer"]).ends_with(0).stdout;
    assert!(
        shown.contains("2 at once of each customer:{customer.id}\n"),
        "{shown}"
    );
    let both = served
        .run(&["workflows", "one_at_a_time", "-o", "json"])
        .ends_with(0)
        .json();
    assert_eq!(both["workflows"].as_array().unwrap().len(), 2);
    served
        .run(&["workflows", "programs/morning"])
        .ends_with(1)
        .says("no workflow `programs/morning`");
}

#[test]
fn runs_are_listed_by_workflow_as_starts_name_it() {
    let served = Served::with_programs();
    served
        .run(&[
            "start",
            "programs/sequence",
            r#"{"n":1}"#,
            "--id",
            "one",
            "--wait",
        ])
        .ends_with(0);
    let list = |workflow: &str| served.run(&["runs", "list", "--workflow", workflow]).ends_with(0);
    for workflow in ["sequence", "programs/sequence"] {
        let listed = list(workflow);
        assert!(listed.stdout.contains("one "), "{}", listed.stdout);
        assert_eq!(listed.stderr, "");
    }
    assert!(!list("keys").stderr.contains("hint"));
    list("nope")
        .says("no workflow `nope` is deployed")
        .says("no runs");
    let elsewhere = list("elsewhere/sequence").says("no workflow `elsewhere/sequence` is deployed");
    assert!(elsewhere.stdout.contains("one "), "{}", elsewhere.stdout);
    let again = served.file("again.wasm", &programs());
    served.run(&["deploy", &again]).ends_with(0);
    list("programs/sequence").says("these are of `sequence` in again, programs");
    let all = ["runs", "retry", "--all", "--workflow", "programs/sequence"];
    served.run(&all).ends_with(2).says("name alone");
}

// A05
#[test]
fn retention_is_asked_for_without_a_hook_of_ones_own() {
    let served = Served::with_programs();
    let start = ["start", "follow", r#"{"id":"7"}"#, "--min-retention", "2h"];
    served.run(&start).ends_with(0);
    let hook = served
        .run(&["hooks", "show", "order:7", "-o", "json"])
        .ends_with(0)
        .json();
    let kept = hook["retained_until"].as_u64().unwrap() - hook["claimed_at"].as_u64().unwrap();
    assert_eq!(kept, 2 * 60 * 60 * 1000);
    served
        .run(&["start", "read_any", "--min-retention", "2h"])
        .ends_with(1)
        .says("no token to keep");
}

#[test]
fn a_run_shows_its_children_and_what_it_waits_for() {
    let served = Served::with_programs();
    let parent = r#"{"workflow":"sequence","input":{"n":1}}"#;
    let ran = served
        .run(&["start", "parent", parent, "--id", "p", "--wait"])
        .ends_with(0);
    let child: Value = serde_json::from_str(&ran.stdout).unwrap();
    let child = child["run_id"].as_str().unwrap();
    let shown = served.run(&["runs", "show", "p"]).ends_with(0).stdout;
    let line = shown.lines().last().unwrap();
    assert_eq!(
        line.split_whitespace().collect::<Vec<_>>(),
        [child, "completed", "sequence"],
        "{shown}"
    );
    let listed = served
        .run(&["runs", "list", "--parent", "p", "-o", "json"])
        .ends_with(0)
        .json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 1);
    assert_eq!(listed["runs"][0]["id"], child);

    let journal = served.run(&["journal", "p"]).ends_with(0).stdout;
    let what = |event: &str| {
        journal
            .lines()
            .find(|line| line.contains(event))
            .unwrap()
            .to_owned()
    };
    for words in [format!("sequence {child}"), format!("sequence {child} completed")] {
        let event = if words.ends_with("completed") {
            "child_ended"
        } else {
            "child_started"
        };
        assert!(what(event).contains(&words), "{journal}");
    }
    let journal = served.run(&["journal", child]).ends_with(0).stdout;
    assert!(journal.contains("sequence child of p"), "{journal}");

    served
        .run(&["start", "many_children", r#"{"n":25}"#, "--id", "m", "--wait"])
        .ends_with(0);
    let shown = served.run(&["runs", "show", "m"]).ends_with(0);
    assert_eq!(
        shown.stdout.matches("completed  sequence").count(),
        20,
        "{}",
        shown.stdout
    );
    shown.says("`onemark runs list --parent m`");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_says_who_waits_for_its_turn() {
    let marks = Marks::start().await;
    marks.hold("first");
    let folder = TempDir::new().unwrap();
    let (host, url) = serve(
        folder.path(),
        &["--ephemeral", "--allow-http", &marks.authority()],
    );
    let served = Served { folder, host, url };
    let file = served.file("programs.wasm", &programs());
    served.run(&["deploy", &file]).ends_with(0);
    let start = |name: &str| {
        let input = json!({ "marks": marks.url(), "name": name }).to_string();
        served
            .run(&["start", "one_at_a_time", &input, "--id", name])
            .ends_with(0);
    };
    start("first");
    marks.reached("first", 1).await;
    start("second");
    let listed = served.run(&["runs", "list"]).ends_with(0).stdout;
    assert!(listed.contains("pending, waits for its turn"), "{listed}");
    let shown = served.run(&["runs", "show", "second"]).ends_with(0).stdout;
    assert!(shown.contains("its turn, 1 at once"), "{shown}");
}

#[test]
fn a_journal_says_what_each_entry_is_about() {
    let served = Served::with_programs();
    let events = r#"{"events":[["order.paid",{"id":"9"}],["",1]]}"#;
    served
        .run(&["start", "emits", events, "--id", "e", "--wait"])
        .ends_with(0);
    let journal = served.run(&["journal", "e"]).ends_with(0).stdout;
    assert!(journal.contains("order.paid started 3 runs"), "{journal}");
    assert!(journal.contains("emit_refused"), "{journal}");
    // Waits a second after the first tag.
    served
        .run(&["start", "tags_itself", "--id", "t", "--wait"])
        .ends_with(0);
    let journal = served.run(&["journal", "t"]).ends_with(0).stdout;
    for tag in ["state=new", "state=paid", "customer=8"] {
        assert!(journal.contains(tag), "{journal}");
    }
    served
        .run(&["start", "sleeps", r#"{"lengths_ms":[3600000]}"#, "--id", "s"])
        .ends_with(0);
    served.run(&["runs", "cancel", "s"]).ends_with(0);
    let journal = served.run(&["journal", "s"]).ends_with(0).stdout;
    let line = journal.lines().find(|line| line.contains("cancel_requested"));
    assert!(line.is_some_and(|line| line.ends_with("requested")), "{journal}");
}

#[test]
fn what_is_counted_is_said_as_people_say_it() {
    let served = Served::with_programs();
    let keyed = ["start", "keyed_only", r#"{"id":"1"}"#, "--id", "k", "--wait"];
    let one = [&keyed[..], &["--deliver", "1", "--deliver-always"]].concat();
    served.run(&one).ends_with(0);
    let shown = served.run(&["runs", "show", "k"]).ends_with(0).stdout;
    assert!(shown.contains(" 1 payload\n"), "{shown}");
    for (nothing, says) in [
        (&["runs", "logs", "k"][..], "no lines"),
        (&["runs", "stream", "k", "none"], "no chunks"),
        (&["journal", "k", "--from", "99"], "no entry has position 99"),
        (&["runs", "list", "--parent", "k"], "no runs"),
    ] {
        assert_eq!(served.run(nothing).ends_with(0).says(says).stdout, "");
    }
    served
        .run(&["start", "sequence", r#"{"n":1}"#, "--id", "s", "--wait"])
        .ends_with(0);
    let replayed = served.run(&["replay", "s"]).ends_with(0).stdout;
    assert!(replayed.contains("1 of 1 call matched"), "{replayed}");
}

/// Whoever read the output, or pressed ctrl-c, has enough.
#[test]
fn following_ends_quietly() {
    let served = Served::with_programs();
    let start = ["start", "echoes", r#"{"token":"echo"}"#, "--id", "e"];
    served.run(&start).ends_with(0);
    let follow = || {
        onemark(&["runs", "stream", "e", "echo", "-f", "--url", &served.url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program runs")
    };
    let mut closed = follow();
    let mut interrupted = follow();
    served.run(&["deliver", "echo", r#""a""#]).ends_with(0);
    let read = |of: &mut Child| {
        let mut line = String::new();
        let mut stdout = BufReader::new(of.stdout.take().expect("piped"));
        stdout.read_line(&mut line).expect("a line");
        assert_eq!(line, "\"a\"\n");
        stdout
    };
    let _open = read(&mut interrupted);
    drop(read(&mut closed));

    let killed = Command::new("kill")
        .args(["-INT", &interrupted.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let ended = interrupted.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    served.run(&["deliver", "echo", r#""b""#]).ends_with(0);
    let ended = closed.wait_with_output().unwrap();
    assert_eq!(
        (
            ended.status.code(),
            String::from_utf8_lossy(&ended.stderr).as_ref()
        ),
        (Some(0), "")
    );
}

#[test]
fn odd_names_by_command() {
    let served = Served::with_programs();
    for name in [
        "a/b//c/",
        "/../v1/runs",
        "%2e%2e",
        "größe ☃ 🦀",
        "?a&b#c",
        "--help",
        "two  spaces",
        "\"'`\\",
    ] {
        let input = json!({ "token": name }).to_string();
        let (id, tag, key) = (
            format!("--id={name}"),
            format!("--tag=odd={name}"),
            format!("--key={name}"),
        );
        served
            .run(&["start", "echoes", &input, &id, &tag, &key])
            .ends_with(0);
        let shown = served
            .run(&["-o", "json", "runs", "show", "--", name])
            .ends_with(0);
        assert_eq!(
            (&shown.json()["id"], &shown.json()["tags"]["odd"]),
            (&json!(name), &json!(name))
        );
        let found = served.run(&["-o", "json", "runs", "list", &tag]).ends_with(0);
        assert_eq!(found.json()["runs"][0]["id"], name);
        let hook = served
            .run(&["-o", "json", "hooks", "show", "--", name])
            .ends_with(0);
        assert_eq!(hook.json()["token"], name);
        served.run(&["deliver", &key, "--", name, "\"end\""]).ends_with(0);
        served.run(&["emit", &id, "--", name, "{}"]).ends_with(0);
        served.run(&["runs", "stream", "--", name, name]).ends_with(0);
        served.run(&["journal", "--", name]).ends_with(0);
        served.run(&["runs", "logs", "--", name]).ends_with(0);
    }
    // Not of the run or hook whose name is the rest of it.
    served
        .run(&["start", "read_any", "{}", "--id=ab", "--hook=ab"])
        .ends_with(0);
    for (name, says) in [
        ("a\nb", "control character"),
        ("a\tb", "control character"),
        ("..", "URL"),
        ("", "URL"),
    ] {
        for args in [
            &["runs", "show", name][..],
            &["runs", "terminate", name],
            &["runs", "fork", name, "--at", "0"],
            &["hooks", "dispose", name],
            &["deliver", name, "1"],
            &["emit", name, "1"],
            &["journal", name],
            &["runs", "stream", "ab", name],
        ] {
            served.run(args).ends_with(1).says(says);
        }
    }
    served
        .run(&["deliver", "ab", "1", "--key", "a\nb"])
        .ends_with(1)
        .says("control character");
    served
        .run(&["deliver", "ab", "1", "--key", ""])
        .ends_with(1)
        .says("idempotency key is empty");
    let kept = served.run(&["-o", "json", "hooks", "show", "ab"]).ends_with(0);
    assert_eq!(
        (&kept.json()["state"], &kept.json()["unread"]),
        (&json!("open"), &json!(0))
    );
}

#[test]
fn says_when_there_is_no_server() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let url = format!("http://127.0.0.1:{port}");
    let none = run(&["runs", "list", "--url", &url, "-o", "json"]).ends_with(1);
    let none = none
        .says(&format!("error: there is no server at {url}"))
        .says("`onemark serve`");
    assert_eq!(none.json()["error"]["code"], "no_server");
    run(&["runs", "list", "--url", "nonsense"])
        .ends_with(1)
        .says("`nonsense` is no URL");
}

#[test]
fn refuses_bad_requests_with_the_servers_words() {
    let served = Served::new();
    let empty = served.file("empty.wasm", b"");
    let module = served.file("module.wasm", b"\0asm\x01\0\0\0");
    let component = served.file("component.wasm", b"\0asm\x0d\0\x01\0");
    let text = served.file("text.wasm", b"hello");
    served
        .run(&["deploy", "/nowhere/at-all.wasm"])
        .ends_with(1)
        .says("cannot read /nowhere");
    served
        .run(&["deploy", &empty])
        .ends_with(1)
        .says("the file is empty");
    served
        .run(&["deploy", &module])
        .ends_with(1)
        .says("core WebAssembly module");
    served
        .run(&["deploy", &component])
        .ends_with(1)
        .says("does not offer");
    served
        .run(&["deploy", &text])
        .ends_with(1)
        .says("no WebAssembly component");
    served
        .run(&["start", "nope"])
        .ends_with(1)
        .says("no workflow `nope`")
        .says("hint: ");
    served
        .run(&["start", "nope", "{"])
        .ends_with(1)
        .says("the input is no JSON");
    served
        .run(&["start", "nope", "--hook", &"x".repeat(256)])
        .ends_with(1)
        .says("256 bytes");
    served
        .run(&["deliver", "nope", "1"])
        .ends_with(1)
        .says("no hook `nope`");
    served
        .run(&["deliver", "..", "1"])
        .ends_with(1)
        .says("cannot stand in a URL");
    served
        .run(&["runs", "show", "nope"])
        .ends_with(1)
        .says("no run `nope`");
    served
        .run(&["runs", "upgrade", "nope", "--component", "nope"])
        .ends_with(1)
        .says("`nope`");
    served
        .run(&["journal", "nope"])
        .ends_with(1)
        .says("no run `nope`");
    served.run(&["replay", "nope"]).ends_with(1).says("no run `nope`");
    assert_eq!(
        served.run(&["runs", "list", "-o", "json"]).json()["runs"],
        json!([])
    );
}

#[test]
fn serve_refuses_addresses_that_are_used_or_public() {
    let folder = TempDir::new().unwrap();
    let db = folder.path().join("onemark.db");
    let db = db.to_str().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(&["serve", "--db", db, "--listen", &address])
        .ends_with(1)
        .says("is in use")
        .says("`--listen`");
    run(&["serve", "--db", db, "--listen", "0.0.0.0:0"])
        .ends_with(1)
        .says("other machines");
    run(&["serve", "--db", db, "--listen", "nonsense"])
        .ends_with(1)
        .says("no HOST:PORT");
    assert_eq!(names(folder.path()), [""; 0], "nothing was written");
}

fn names(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("a file").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

// H05
#[test]
fn serve_refuses_files_that_are_not_its_database() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    std::fs::write(path("text.db"), "some notes\n".repeat(100)).unwrap();
    let sqlite = |name: &str, sql: &str| {
        rusqlite::Connection::open(path(name))
            .unwrap()
            .execute_batch(sql)
            .unwrap();
    };
    sqlite(
        "foreign.db",
        "CREATE TABLE notes (text); INSERT INTO notes VALUES ('mine');",
    );
    {
        let served = Served::new();
        std::fs::copy(served.folder.path().join("onemark.db"), path("newer.db")).unwrap();
    }
    sqlite("newer.db", "PRAGMA user_version = 9999;");

    let before = names(folder.path());
    for (name, words) in [
        ("text.db", "it is no SQLite database"),
        ("foreign.db", "another application"),
        ("newer.db", "newer Onemark"),
    ] {
        let bytes = std::fs::read(path(name)).unwrap();
        let db = path(name);
        let args = ["serve", "--listen", "127.0.0.1:0", "--db", db.to_str().unwrap()];
        run(&args).ends_with(1).says(words);
        assert_eq!(std::fs::read(path(name)).unwrap(), bytes, "{name} is as it was");
    }
    assert_eq!(names(folder.path()), before, "nothing appeared beside them");
}

#[test]
fn serve_says_once_why_it_does_not_start() {
    let folder = TempDir::new().unwrap();
    let nowhere = folder.path().join("no/such/onemark.db");
    let nowhere = nowhere.to_str().unwrap();
    for (args, why) in [
        (["--listen", "127.0.0.1:0", "--db", nowhere], "No such file"),
        (
            ["--listen", "127.0.0.1:x", "--db", "unused"],
            "invalid port value",
        ),
    ] {
        let refused = onemark(&["serve"]).args(args).output().expect("the program runs");
        let refused = Ran::from(refused).ends_with(1).says(why);
        assert_eq!(refused.stderr.matches(why).count(), 1, "{}", refused.stderr);
    }
}

/// A host that was killed while it wrote compiled code leaves a part of it, under a name of its own.
#[test]
fn code_that_is_not_as_it_was_written_is_neither_run_nor_in_the_way() {
    let folder = TempDir::new().unwrap();
    let program = file(folder.path(), "programs.wasm", &programs());
    let code = folder.path().join("onemark.db.code");
    let compiled = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&code)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let compiled = entries.filter(|path| path.extension().is_some_and(|it| it == "cwasm"));
        compiled.collect()
    };
    let (mut host, url) = serve(folder.path(), &[]);
    let ran = onemark(&["deploy", &program, "--url", &url]).output().unwrap();
    Ran::from(ran).ends_with(0);
    host.kill().unwrap();
    host.wait().unwrap();

    let whole = compiled();
    let [whole] = whole.as_slice() else {
        panic!("{whole:?}")
    };
    let half = std::fs::read(whole).unwrap();
    let half = &half[..half.len() / 2];
    std::fs::remove_file(whole).unwrap();
    let left = [".tmpAbCdEf", ".tmp123456"].map(|name| code.join(name));
    for left in &left {
        std::fs::write(left, half).unwrap();
    }

    let (mut host, url) = serve(folder.path(), &[]);
    let start = [
        "start",
        "sequence",
        r#"{"n":3}"#,
        "--wait",
        "-o",
        "json",
        "--url",
        &url,
    ];
    let ran = Ran::from(onemark(&start).output().unwrap()).ends_with(0);
    assert_eq!(ran.json()["output"], json!(3));
    host.kill().unwrap();
    host.wait().unwrap();
    assert_eq!(compiled(), std::slice::from_ref(whole), "compiled anew, whole");
    let mut compiled = std::fs::read(whole).unwrap();
    assert!(compiled.len() > half.len());

    // Nor what a disk made of it.
    let middle = compiled.len() / 2;
    compiled[middle] ^= 1;
    std::fs::write(whole, &compiled).unwrap();
    let (mut host, url) = serve(folder.path(), &[]);
    let start = ["start", "sequence", r#"{"n":3}"#, "--wait", "--url", &url];
    Ran::from(onemark(&start).output().unwrap()).ends_with(0);
    host.kill().unwrap();
    host.wait().unwrap();
    compiled[middle] ^= 1;
    assert!(
        std::fs::read(whole).unwrap() == compiled,
        "compiled anew, the same"
    );
}

#[test]
fn serve_limits_its_clients_as_told() {
    use std::io::Read as _;
    run(&["serve", "--max-connections", "0"]).ends_with(2);
    run(&["serve", "--request-timeout", "soon"]).ends_with(2);
    let folder = TempDir::new().unwrap();
    let args = [
        "--ephemeral",
        "--request-timeout",
        "100ms",
        "--max-connections",
        "1",
    ];
    let (mut host, url) = serve(folder.path(), &args);
    let address = url.strip_prefix("http://").unwrap();
    // The second gets its turn when the server has left the first.
    for _ in 0..2 {
        let mut connection = std::net::TcpStream::connect(address).unwrap();
        assert_eq!(connection.read(&mut [0; 1]).unwrap(), 0);
    }
    host.kill().unwrap();
    host.wait().unwrap();
}

// H02
#[test]
fn serve_refuses_a_database_that_another_host_has() {
    let served = Served::new();
    let db = served.folder.path().join("onemark.db");
    let args = ["serve", "--listen", "127.0.0.1:0", "--db", db.to_str().unwrap()];
    let pid = format!("process {} on ", served.host.id());
    run(&args).ends_with(1).says("is in use by").says(&pid);
}

// H01
#[test]
fn serve_ends_when_asked_and_frees_its_database() {
    let mut served = Served::with_programs();
    served
        .run(&["start", "sleeps", r#"{"lengths_ms":[3600000]}"#])
        .ends_with(0);
    let killed = Command::new("kill")
        .args(["-TERM", &served.host.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    assert_eq!(served.host.wait().unwrap().code(), Some(0));
    // Everything is in the file: the log that SQLite keeps beside it is gone.
    let left = names(served.folder.path());
    assert!(!left.iter().any(|name| name.ends_with("-wal")), "{left:?}");
}

#[test]
fn serve_ephemeral_leaves_no_files() {
    let folder = TempDir::new().unwrap();
    let (host, url) = serve(folder.path(), &["--ephemeral"]);
    let mut served = Served { folder, host, url };
    let listed = served.run(&["runs", "list", "-o", "json"]).ends_with(0);
    assert_eq!(listed.json()["runs"], json!([]));
    served.host.kill().unwrap();
    served.host.wait().unwrap();
    assert_eq!(names(served.folder.path()), [""; 0]);
}

// E15
#[test]
fn streams_are_listed_printed_and_followed() {
    let served = Served::with_programs();
    let start = ["start", "echoes", r#"{"token":"echo"}"#, "--id", "e"];
    served.run(&start).ends_with(0);
    served
        .run(&["runs", "streams", "e"])
        .ends_with(0)
        .says("no streams");
    let following = onemark(&["runs", "stream", "e", "echo", "--follow", "--url", &served.url])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    for word in [r#""a""#, r#""b""#, r#""end""#] {
        served.run(&["deliver", "echo", word]).ends_with(0);
    }
    let followed = following.wait_with_output().expect("it ends with the run");
    assert_eq!(Ran::from(followed).ends_with(0).stdout, "\"a\"\n\"b\"\n\"end\"\n");

    let printed = served.run(&["runs", "stream", "e", "echo", "--from", "1"]);
    assert_eq!(printed.ends_with(0).stdout, "\"b\"\n\"end\"\n");
    let whole = served.run(&["runs", "stream", "e", "echo", "--from", "2", "-o", "json"]);
    let whole = whole.ends_with(0).json();
    assert_eq!((&whole["index"], &whole["chunk"]), (&json!(2), &json!("end")));
    let listed = served.run(&["runs", "streams", "e"]).ends_with(0).stdout;
    assert!(listed.contains("echo") && listed.contains("11"), "{listed}");
    served
        .run(&["runs", "stream", "nobody", "echo", "--follow"])
        .ends_with(1)
        .says("no run `nobody`");
}

#[test]
fn events_and_schedules_by_command() {
    let served = Served::with_programs();
    let emitted = served
        .run(&["emit", "order.paid", r#"{"id":"7","note":"wait"}"#, "--id", "e1"])
        .ends_with(0);
    let lines: Vec<_> = emitted.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{}", emitted.stdout);
    assert!(
        lines[2].contains("programs/ships") && lines[2].contains("started "),
        "{}",
        emitted.stdout
    );
    let again = served
        .run(&["emit", "order.paid", r#"{"id":"7","note":"wait"}"#, "--id", "e1"])
        .ends_with(0);
    assert_eq!(again.stdout, emitted.stdout);
    let other = served
        .run(&["emit", "order.paid", r#"{"id":"7"}"#, "-o", "json"])
        .ends_with(0)
        .json();
    assert_eq!(other["runs"][1]["conflict"]["token"], "ship:7");
    let told = served.run(&["emit", "order.paid", r#"{"id":"7"}"#]).ends_with(0);
    assert!(
        told.stdout.contains("`ship:7` is held by run "),
        "{}",
        told.stdout
    );
    served
        .run(&["emit", "nobody.waits", "1"])
        .ends_with(0)
        .says("no workflow waits for this event");
    for args in [&["emit", "order.paid", "text"], &["deliver", "order:7", "text"]] {
        served
            .run(args)
            .ends_with(1)
            .says("a text is written with its quotes");
    }
    served
        .run(&["emit", "order.paid", r#"{"id":"8"}"#, "--id", "e1"])
        .ends_with(1)
        .says("key");

    let none = served.run(&["schedules", "list"]).ends_with(0);
    assert_eq!(none.stdout, "");
    none.says("no schedules");
    let file = served.file("scheduled.wasm", &scheduled());
    served.run(&["deploy", &file]).ends_with(0);
    let listed = served.run(&["schedules", "list"]).ends_with(0);
    let lines: Vec<_> = listed.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{}", listed.stdout);
    assert!(
        lines[3].contains("0 9 * * 1-5") && lines[3].contains("Europe/Berlin"),
        "{}",
        listed.stdout
    );
    let range = ["--from", "2020-01-01T00:00:00Z", "--to", "2020-01-01T01:00:00Z"];
    let backfill = [&["schedules", "backfill", "scheduled/each_hour"][..], &range].concat();
    let first = served.run(&backfill).ends_with(0);
    assert_eq!(first.stdout.lines().count(), 3, "{}", first.stdout);
    let again = served.run(&backfill).ends_with(0);
    assert_eq!(again.stdout.matches("was there").count(), 2, "{}", again.stdout);
    let unknown = [&["schedules", "backfill", "each_minute"][..], &range].concat();
    served.run(&unknown).ends_with(1).says("each_minute");
    let wrong = [
        "schedules",
        "backfill",
        "scheduled/each_hour",
        "--from",
        "monday",
        "--to",
        "tuesday",
    ];
    served
        .run(&wrong)
        .ends_with(2)
        .says("from")
        .says("such as `2030-01-31`");

    let backfill = |from: &str, to: &str| {
        let range = [
            "schedules",
            "backfill",
            "scheduled/each_hour",
            "--from",
            from,
            "--to",
            to,
        ];
        served.run(&range)
    };
    backfill("2020-01-02", "2020-01-01")
        .ends_with(2)
        .says("`--from` is after `--to`");
    let none = backfill("2020-01-01T00:10:00Z", "2020-01-01T00:20:00Z").ends_with(0);
    assert_eq!(none.stdout, "");
    none.says("no slot from 2020-01-01T00:10:00Z to 2020-01-01T00:20:00Z");
    backfill("2100-01-01", "2100-01-02")
        .ends_with(0)
        .says("no slot from");
    let dates = backfill("2020-02-01", "2020-02-02").ends_with(0);
    assert_eq!(dates.stdout.lines().count(), 26, "{}", dates.stdout);
}

#[test]
fn times_may_be_plain_dates() {
    let served = Served::with_programs();
    let start = [
        "start",
        "sequence",
        r#"{"n":1}"#,
        "--id",
        "later",
        "--start-at",
        "2100-01-01",
    ];
    served.run(&start).ends_with(0);
    let shown = served.run(&["runs", "show", "later"]).ends_with(0).stdout;
    assert!(shown.contains("wakes      2100-01-01T00:00:00Z"), "{shown}");
    let listed = |range: &[&str]| {
        served
            .run(&[&["runs", "list"], range].concat())
            .ends_with(0)
            .stdout
    };
    let all = listed(&["--created-after", "2000-01-01"]);
    assert!(all.contains("pending until 2100-01-01T00:00:00Z"), "{all}");
    assert_eq!(listed(&["--created-before", "2000-01-01"]), "");
    for args in [
        &["runs", "list", "--created-after", "01.02.2030"][..],
        &["start", "sequence", "--start-at", "tomorrow"],
    ] {
        let words = "`2030-01-31T08:00:00Z`, or a date such as `2030-01-31`";
        served.run(args).ends_with(2).says(words);
    }
}

#[test]
fn logs_are_printed_and_followed_and_no_terminal_obeys_them() {
    let served = Served::with_programs();
    let start = ["start", "says_what_comes", r#"{"token":"say"}"#, "--id", "s"];
    served.run(&start).ends_with(0);
    let following = [
        "runs",
        "logs",
        "s",
        "--follow",
        "--level",
        "info",
        "--url",
        &served.url,
    ];
    let following = onemark(&following)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    for word in [r#""a""#, r#""end""#] {
        served.run(&["deliver", "say", word]).ends_with(0);
    }
    let followed = following.wait_with_output().expect("it ends with the run");
    let printed = Ran::from(followed).ends_with(0).stdout;
    let ends: Vec<_> = printed
        .lines()
        .map(|line| line.split_once("Z  ").unwrap().1)
        .collect();
    assert_eq!(ends, ["info   workflow  a", "info   workflow  end"]);

    let whole = served.run(&["runs", "logs", "s", "--from", "2", "-o", "json"]);
    assert_eq!(whole.ends_with(0).json()["text"], "end");
    served
        .run(&["runs", "logs", "nobody"])
        .ends_with(1)
        .says("no run `nobody`");
    served.run(&["runs", "logs", "s", "--level", "loud"]).ends_with(2);

    served
        .run(&["start", "writes_hostile_lines", "{}", "--id", "h", "--wait"])
        .ends_with(0);
    let printed = served.run(&["runs", "logs", "h"]).ends_with(0).stdout;
    let obeyed = |c: char| c.is_control() && c != '\n';
    assert!(!printed.contains(obeyed), "{printed:?}");
    assert_eq!(printed.lines().count(), 3, "{printed}");
    assert!(printed.contains("warn   step 0.1  no end"), "{printed}");
}

#[test]
fn blobs_are_fetched_and_checked() {
    let served = Served::with_programs();
    served
        .run(&["start", "hands_blobs_on", r#"{"text":"large"}"#, "--wait"])
        .ends_with(0);
    let digest = onemark::ids::Digest::of("large and large").to_string();
    let printed = served.run(&["blobs", "get", &digest]).ends_with(0).stdout;
    assert_eq!(printed, "large and large");
    let file = served.folder.path().join("fetched");
    let to_file = ["blobs", "get", &digest, file.to_str().unwrap()];
    served.run(&to_file).ends_with(0);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "large and large");

    // One that the disk has changed breaks off, and leaves what was there.
    let kept = served.folder.path().join("onemark.db.blobs").join(&digest[..2]);
    std::fs::write(kept.join(&digest[2..]), "large and lurge").unwrap();
    served.run(&to_file).ends_with(1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "large and large");
    let unknown = ["blobs", "get", &"0".repeat(64)];
    served.run(&unknown).ends_with(1).says("there is no blob");
    served.run(&["blobs", "get", "../x"]).ends_with(2);
}
