//! The demo checks all that it shows, so that it is a test of the whole, on real processes: among others
//! C01, C02, C09 and, of D01, the crash.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

use onemark_tests::onemark_bin;
use tempfile::TempDir;

/// `onemark demo`, with its temporary files in a folder of the test's.
fn demo(folder: &Path) -> Command {
    let mut demo = Command::new(onemark_bin());
    demo.arg("demo").env("TMPDIR", folder).stdin(Stdio::null());
    // What a user has set for their own host is nothing to the demo.
    demo.env("ONEMARK_DB", "/nowhere/onemark.db")
        .env("ONEMARK_URL", "http://127.0.0.1:1");
    demo
}

fn assert_tidy(folder: &Path) {
    let left: Vec<_> = folder.read_dir().expect("the folder is there").collect();
    assert!(left.is_empty(), "the demo left {left:?}");
}

#[test]
fn the_demo_goes_as_promised_and_leaves_nothing() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = demo(folder.path()).output().expect("the demo starts");
    let shown = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown}\n{errors}");
    for line in [
        "1 × 201 Created: run ",
        "19 × 409 hook_conflict",
        "\"started\":false",
        "is killed with SIGKILL",
        "5 saved steps did not run again; `charge` did, with the same key",
        "bank      2 requests  1 charge   attempts 1 and 2, key `charge:42`",
        "notes     5 requests  5 notes",
        "invoices  1 request   1 invoice",
        "9 of 9 calls matched",
        "6 of 9 calls matched",
        "the difference is at lib.rs:",
        "Everything as promised",
    ] {
        assert!(shown.contains(line), "`{line}` is missing in\n{shown}");
    }
    assert!(!shown.contains('\x1b'), "colours where no terminal is:\n{shown}");
    assert_tidy(folder.path());
}

#[test]
fn a_demo_that_is_ended_takes_its_host_and_its_files_with_it() {
    let folder = TempDir::new().expect("a temporary folder");
    let mut child = demo(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the demo starts");
    let mut shown = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let listens = shown
        .by_ref()
        .map(|line| line.expect("the demo prints text"))
        .find(|line| line.contains("listens at http://"))
        .expect("the host starts");
    let (_, address) = listens.rsplit_once("http://").expect("the line has an address");

    let killed = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .expect("kill runs");
    assert!(killed.success());
    // The pipe ends with the last process that holds it.
    assert!(shown.all(|line| line.is_ok()));
    let mut errors = String::new();
    child
        .stderr
        .take()
        .expect("a pipe")
        .read_to_string(&mut errors)
        .expect("the demo prints text");
    let status = child.wait().expect("the demo ends");
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("terminated"), "{errors}");
    std::net::TcpStream::connect(address).expect_err("the host has ended");
    assert_tidy(folder.path());
}

#[test]
fn without_the_example_the_demo_says_where_to_get_it() {
    let folder = TempDir::new().expect("a temporary folder");
    let output = demo(folder.path())
        .arg("--example")
        .arg(folder.path())
        .output()
        .expect("the demo starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("--example PATH"), "{errors}");
    assert!(output.stdout.is_empty());
}
