//! The commands of the examples' READMEs, run as they are written there.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use onemark_tests::{Asked, Service, onemark_bin, patched};
use serde_json::{Value, json};
use tempfile::TempDir;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests lie in the workspace")
}

/// The lines of each `sh` block of a section.
fn blocks(readme: &str, section: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join(readme)).expect("a readable file");
    let heading = format!("\n## {section}\n");
    let (_, text) = text.split_once(&heading).expect("the section is there");
    let text = text.split("\n## ").next().unwrap_or_default();
    let blocks = text.split("```sh\n").skip(1);
    let lines = blocks.map(|block| block.split("```").next().unwrap_or_default().lines());
    lines.map(|lines| lines.map(str::to_owned).collect()).collect()
}

/// An address that nobody listens at.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound")
}

/// Someone at a terminal: a shell with `onemark` on its path, at the root of the repository.
struct Terminal {
    folder: TempDir,
    host: SocketAddr,
    outside: SocketAddr,
}

impl Terminal {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        std::os::unix::fs::symlink(onemark_bin(), folder.path().join("onemark")).expect("a link");
        let (host, outside) = (free(), free());
        Self {
            folder,
            host,
            outside,
        }
    }

    /// A line of the README, at ports that are free here, with this database.
    fn shell(&self, line: &str) -> Command {
        // Without `exec` a signal would end the shell alone; `env` reads what stands before a command.
        self.script(&format!("exec env {line}"))
    }

    fn script(&self, lines: &str) -> Command {
        let mut lines = lines.replace("127.0.0.1:9000", &self.outside.to_string());
        lines = lines.replace("127.0.0.1:7070", &self.host.to_string());
        let mut folders = vec![PathBuf::from(self.folder.path())];
        let path = std::env::var_os("PATH").unwrap_or_default();
        folders.extend(std::env::split_paths(&path));
        let mut shell = Command::new("sh");
        shell
            .args(["-ec", &lines])
            .current_dir(root())
            .env("PATH", std::env::join_paths(folders).expect("a good path"))
            .env("ONEMARK_DB", self.folder.path().join("onemark.db"))
            .env("ONEMARK_LISTEN", self.host.to_string())
            .env("ONEMARK_URL", format!("http://{}", self.host))
            .stdin(Stdio::null());
        shell
    }

    /// Runs a line to its end; what it printed.
    fn run(&self, line: &str, code: i32) -> String {
        printed(self.shell(line), code)
    }

    /// Runs lines that belong together, up to the first that fails.
    fn run_all(&self, lines: &[String]) -> String {
        printed(self.script(&lines.join("\n")), 0)
    }

    fn runs(&self) -> Vec<Value> {
        let runs: Value = serde_json::from_str(&self.run("onemark runs list -o json", 0)).expect("JSON");
        runs["runs"].as_array().expect("a list").clone()
    }

    /// Waits for a run to complete. Asks again and again, as a person would.
    fn completed(&self, run: &str) {
        loop {
            let shown = self.run(&format!("onemark runs show {run} -o json"), 0);
            let shown: Value = serde_json::from_str(&shown).expect("JSON");
            match shown["status"].as_str() {
                Some("completed") => return,
                Some("pending" | "running" | "suspended") => std::thread::yield_now(),
                _ => panic!("{shown}"),
            }
        }
    }

    /// Begins a line that ends when it is told to; returns once somebody listens at `address`.
    fn begin(&self, line: &str, address: SocketAddr) -> Running {
        let mut shell = self.shell(line);
        let shell = shell.stdout(Stdio::piped()).stderr(Stdio::null());
        let child = shell.spawn().expect("a shell");
        let mut running = Running(child);
        while TcpStream::connect(address).is_err() {
            let ended = running.0.try_wait().expect("a child");
            assert!(ended.is_none(), "{line}: {ended:?}");
            std::thread::yield_now();
        }
        running
    }
}

fn printed(mut command: Command, code: i32) -> String {
    let output = command.output().expect("a shell");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}\n{shown}\n{errors}");
    shown
}

struct Running(Child);

impl Running {
    /// Presses ctrl-c; what was printed.
    fn interrupt(mut self) -> String {
        let id = self.0.id().to_string();
        let told = Command::new("kill").args(["-INT", &id]).status();
        assert!(told.expect("kill runs").success());
        let stdout = BufReader::new(self.0.stdout.take().expect("a pipe"));
        let lines: Result<Vec<_>, _> = stdout.lines().collect();
        assert!(self.0.wait().expect("a child").success());
        lines.expect("text").join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_order_example_goes_by_hand_as_its_readme_says() {
    let blocks = blocks("examples/order/README.md", "By hand");
    let [servers, commands, replay] = blocks.as_slice() else {
        panic!("the section has other blocks: {blocks:?}");
    };
    let [outside, serve] = servers.as_slice() else {
        panic!("other servers: {servers:?}");
    };
    let terminal = Terminal::new();
    let outside = terminal.begin(outside, terminal.outside);
    let serve = terminal.begin(serve, terminal.host);

    let mut shown = Vec::new();
    for line in commands {
        shown.push(terminal.run(line, 0));
    }
    // The list, last, has the run, at work or done.
    let list = shown.last().expect("there are commands");
    assert!(list.contains("process_order"), "{list}");
    let run = terminal.runs()[0]["id"].as_str().expect("a run").to_owned();
    terminal.completed(&run);

    let [build, replay] = replay.as_slice() else {
        panic!("other commands: {replay:?}");
    };
    terminal.run(build, 0);
    // Four: it differs.
    let replayed = terminal.run(&replay.replace("RUN", &run), 4);
    assert!(replayed.contains("all updates are in"), "{replayed}");

    serve.interrupt();
    let counts: Value = serde_json::from_str(&outside.interrupt()).expect("it says what it counted");
    let charged = counts["charges"]["charge:42"]["amount"].clone();
    assert_eq!(charged, 1200, "{counts}");
    assert_eq!(counts["notes"].as_array().expect("a list").len(), 2, "{counts}");
}

const SMALL: [&str; 8] = [
    "refund", "contacts", "mail", "invoice", "ticket", "saga", "approval", "fanout",
];

/// How a README says to serve an example, and what to do then. The test that it names is there.
fn by_hand(example: &str) -> (String, Vec<String>) {
    let blocks = blocks(&format!("examples/{example}/README.md"), "Try it");
    let [counted, commands] = blocks.as_slice() else {
        panic!("{example} has other blocks: {blocks:?}");
    };
    let tests = std::fs::read_to_string(root().join("tests/all/examples.rs")).expect("a readable file");
    let (_, filter) = counted[0].split_once("examples::").expect("a filter");
    let test = format!("fn {}", filter.split(' ').next().unwrap_or_default());
    assert!(tests.contains(&test), "no test of {example}: {test}");
    let (serve, commands) = commands.split_first().expect("there are commands");
    (serve.clone(), commands.to_vec())
}

/// Each with a service that answers what its README says.
#[tokio::test(flavor = "multi_thread")]
async fn the_small_examples_go_by_hand_as_their_readmes_say() {
    let service = Service::start(|asked| match asked.line().as_str() {
        "POST /refunds" => (200, json!("refund-1")),
        "POST /tickets" => (201, json!({ "number": 1 })),
        line if line.starts_with("GET ") => (404, Value::Null),
        _ => (200, Value::Null),
    });
    let service = service.await;
    let mut terminal = Terminal::new();
    terminal.outside = service.authority().parse().expect("an address");
    let mut serve = None;
    for example in SMALL {
        let (first, commands) = by_hand(example);
        serve.get_or_insert_with(|| terminal.begin(&first, terminal.host));
        for line in &commands {
            terminal.run(line, 0);
        }
        terminal.completed(terminal.runs()[0]["id"].as_str().expect("a run"));
    }
    assert_eq!(service.asked().len(), 13);
}

/// A terminal whose host reaches this service.
fn beside(service: &Service) -> Terminal {
    let mut terminal = Terminal::new();
    terminal.outside = service.authority().parse().expect("an address");
    terminal
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fulfillment_example_goes_by_hand_as_its_readme_says() {
    let service = Service::start(|asked| match asked.line().as_str() {
        "POST /parcels" => (200, json!("parcel-1")),
        _ => (200, Value::Null),
    });
    let service = service.await;
    let terminal = beside(&service);
    let (serve, commands) = by_hand("fulfillment");
    let _serve = terminal.begin(&serve, terminal.host);
    let shown = terminal.run_all(&commands);
    assert_eq!(shown.matches("\"run_id\"").count(), 3, "{shown}");
    let runs = terminal.runs();
    let [run] = runs.as_slice() else {
        panic!("one order, one run: {runs:?}");
    };
    terminal.completed(run["id"].as_str().expect("a run"));
    let lines: Vec<_> = service.asked().iter().map(Asked::line).collect();
    assert_eq!(lines, ["PUT /picked/42", "DELETE /picked/42"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_report_example_goes_by_hand_as_its_readme_says() {
    let service = Service::start(|asked| match asked.method.as_str() {
        "GET" => (200, json!([1200, 350])),
        _ => (200, Value::Null),
    });
    let service = service.await;
    let terminal = beside(&service);
    let (serve, mut commands) = by_hand("cron-report");
    // The office is at a port that others may have here.
    const OFFICE: &str = "127.0.0.1:19000";
    let _serve = terminal.begin(&serve.replace(OFFICE, "127.0.0.1:9000"), terminal.host);
    let build = commands.remove(0);
    terminal.run(&build, 0);
    let built = commands[0].split(' ').next_back().expect("a file").to_owned();
    let bytes = std::fs::read(root().join(&built)).expect("the component was built");
    let here = terminal.folder.path().join("here.wasm");
    std::fs::write(&here, patched(&bytes, OFFICE, &service.authority())).expect("a writable folder");
    commands[0] = format!("onemark deploy --name cron_report {}", here.display());
    terminal.run_all(&commands);
    let runs = terminal.runs();
    assert_eq!(runs.len(), 4, "{runs:?}");
    for run in runs {
        terminal.completed(run["id"].as_str().expect("a run"));
    }
    assert_eq!(service.asked().len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_example_goes_by_hand_as_its_readme_says() {
    let service = Service::start(|asked| match asked.method.as_str() {
        "GET" => (200, json!("in Kassel")),
        _ => {
            let turns = asked.body.as_array().expect("the turns");
            (
                200,
                match turns.last().expect("one")["who"].as_str() {
                    Some("tool") => json!({ "say": "It is in Kassel." }),
                    _ => json!({ "look": "parcel" }),
                },
            )
        }
    });
    let service = service.await;
    let terminal = beside(&service);
    let (serve, commands) = by_hand("agent-loop");
    let _serve = terminal.begin(&serve, terminal.host);
    let shown = terminal.run_all(&commands);
    assert!(shown.contains("It is in Kassel."), "{shown}");
    terminal.completed("ada");
    assert_eq!(service.asked().len(), 3);
}
