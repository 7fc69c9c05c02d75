//! Taste that a machine can keep: who may know whom, and that every promise has its test.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests lie in the workspace")
        .into()
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, "rs")
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            files.extend(self::files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            files.push(path);
        }
    }
    files
}

/// Text without line comments, so that docs may speak of what code may not use.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a readable file");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// The arrows of `host/ARCHITECTURE.md`: what each module of the host may name.
#[test]
fn modules_keep_their_arrows() {
    let allowed: [(&str, &[&str]); 6] = [
        ("ids.rs", &["ids"]),
        ("clock.rs", &["clock", "journal"]),
        ("journal", &["ids", "journal"]),
        ("store", &["ids", "journal", "store"]),
        ("sandbox", &["clock", "ids", "journal", "sandbox"]),
        (
            "engine",
            &["clock", "engine", "ids", "journal", "sandbox", "store"],
        ),
    ];
    let source = root().join("host/src");
    for (module, may_name) in allowed {
        let path = source.join(module);
        let files = if path.is_dir() {
            rust_files(&path)
        } else {
            vec![path]
        };
        for file in files {
            for (at, _) in code(&file).match_indices("crate::") {
                let text = code(&file);
                let name = text[at + "crate::".len()..]
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next();
                let name = name.unwrap_or_default();
                assert!(
                    name.is_empty() || may_name.contains(&name),
                    "{} names `crate::{name}`; it may name {may_name:?}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn the_journal_is_pure() {
    for file in rust_files(&root().join("host/src/journal")) {
        for banned in [
            "tokio",
            "wasmtime",
            "rusqlite",
            "std::time",
            "std::fs",
            "std::io",
            "random_u64",
        ] {
            assert!(!code(&file).contains(banned), "{} uses {banned}", file.display());
        }
    }
}

#[test]
fn guests_depend_on_no_host() {
    let examples = fs::read_dir(root().join("examples")).expect("a folder of examples");
    let examples = examples.map(|example| example.expect("a readable entry").path());
    let examples = examples.filter(|path| path.is_dir());
    let sdk = ["guest-sdk", "guest-sdk/macros"].map(|folder| root().join(folder));
    for folder in sdk.into_iter().chain(examples) {
        let manifest = folder.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).expect("a readable manifest");
        for banned in ["wasmtime", "rusqlite", "path = \"../host", "path = \"../../host"] {
            assert!(!text.contains(banned), "{} names {banned}", manifest.display());
        }
    }
}

/// In every page that people read, what a link to a file leads to is there.
#[test]
fn links_lead_somewhere() {
    let mut pages = vec![root().join("README.md"), root().join("CHANGELOG.md")];
    for folder in ["host", "examples"] {
        pages.extend(files(&root().join(folder), "md"));
    }
    for page in pages {
        let text = fs::read_to_string(&page).expect("a readable page");
        let folder = page.parent().expect("a page lies in a folder");
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap_or_default();
            if !link.is_empty() && !link.contains("://") {
                assert!(folder.join(link).exists(), "{}: {link}", page.display());
            }
        }
    }
}

/// The cases of the contract that are promised so far; see the names of the tests.
const PROMISED: &str = "A01 A02 A03 A04 A05 A06 A07 A08 A09 A10 A11 A12 A13 A14 A15 A16 A17 A18 A19 A20 A21 \
    A22 A23 A24 A25 A26 A27 \
    B01 B02 B03 B04 B05 B06 B07 B08 B09 B10 B11 B12 B13 B14 B15 B16 B17 B18 \
    C01 C02 C03 C04 C05 C06 C07 C08 C09 C10 C11 C12 C13 C14 C15 C16 C17 C18 C19 C20 C21 C22 \
    D01 D02 D03 D04 D05 D06 D07 \
    E01 E02 E03 E04 E05 E06 E07 E08 E09 E10 E11 E12 E13 E14 E15 E16 E17 F01 F03 F04 F06 F07 F08 F09 F12 F14 F15 G01 G02 H02 H05 H06";

#[test]
fn every_promised_case_has_a_test_of_its_name() {
    let mut text = String::new();
    for folder in ["tests/all", "tests/sleepers", "guest-sdk/tests", "guest-sdk/src"] {
        for file in rust_files(&root().join(folder)) {
            // This list is no test.
            if !file.ends_with("tidy.rs") {
                text.push_str(&fs::read_to_string(file).expect("a readable file"));
            }
        }
    }
    let missing: Vec<_> = PROMISED
        .split_whitespace()
        .filter(|case| {
            let test = format!("fn {}_", case.to_lowercase());
            let comment = format!("// {case}");
            let macro_case = format!("{}_", case.to_lowercase());
            !text.contains(&test) && !text.contains(&comment) && !text.contains(&macro_case)
        })
        .collect();
    assert!(missing.is_empty(), "no test is named after {missing:?}");
}
