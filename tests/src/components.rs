//! Guest components, built once from their sources by cargo.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use onemark::guest_build::{BuildOptions, build_component};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the tests lie in the workspace")
}

fn built(folder: &str) -> PathBuf {
    let options = BuildOptions {
        quiet: true,
        ..BuildOptions::default()
    };
    build_component(&root().join(folder), &options).expect("the guest builds")
}

fn bytes(path: &Path) -> Arc<[u8]> {
    std::fs::read(path).expect("the component was just built").into()
}

/// The component of a folder, built once. Who wants another one does not wait for it.
fn component(folder: &str) -> Arc<[u8]> {
    type Built = Arc<OnceLock<Arc<[u8]>>>;
    static BUILT: Mutex<Option<HashMap<String, Built>>> = Mutex::new(None);
    let built_once = {
        let mut all = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        all.entry(folder.to_owned()).or_default().clone()
    };
    built_once.get_or_init(|| bytes(&built(folder))).clone()
}

/// The component of `tests/programs`.
pub fn programs() -> Arc<[u8]> {
    component("tests/programs")
}

/// The component of `tests/scheduled`.
pub fn scheduled() -> Arc<[u8]> {
    component("tests/scheduled")
}

/// The component of `tests/webhooks`.
pub fn webhooks() -> Arc<[u8]> {
    component("tests/webhooks")
}

/// A component as if its source said something else of the same length, wherever it says this.
pub fn patched(component: &[u8], written: &str, instead: &str) -> Arc<[u8]> {
    assert_eq!(written.len(), instead.len());
    let mut bytes = component.to_vec();
    let found = (0..bytes.len() - written.len()).filter(|at| bytes[*at..].starts_with(written.as_bytes()));
    let found: Vec<_> = found.collect();
    assert!(!found.is_empty(), "the source says `{written}`");
    for at in found {
        bytes[at..at + written.len()].copy_from_slice(instead.as_bytes());
    }
    bytes.into()
}

/// `tests/programs` as if its source said another variant: see `programs/src/changing.rs`.
pub fn variant(name: &str) -> Arc<[u8]> {
    const MARKER: &[u8] = b"onemark-variant:";
    let mut bytes = programs().to_vec();
    let at = bytes
        .windows(MARKER.len())
        .position(|window| window == MARKER)
        .expect("the component holds its variant's name");
    let start = at + MARKER.len();
    bytes[start..start + 12].copy_from_slice(format!("{name:<12}").as_bytes());
    bytes.into()
}

/// The component of `examples/order`, as a file.
pub fn order() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| built("examples/order")).clone()
}

/// The component of `examples/{name}`.
pub fn example(name: &str) -> Arc<[u8]> {
    component(&format!("examples/{name}"))
}
