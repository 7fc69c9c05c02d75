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

/// The component of `tests/programs`.
pub fn programs() -> Arc<[u8]> {
    static BUILT: OnceLock<Arc<[u8]>> = OnceLock::new();
    BUILT.get_or_init(|| bytes(&built("tests/programs"))).clone()
}

/// The component of `tests/scheduled`.
pub fn scheduled() -> Arc<[u8]> {
    static BUILT: OnceLock<Arc<[u8]>> = OnceLock::new();
    BUILT.get_or_init(|| bytes(&built("tests/scheduled"))).clone()
}

/// The component of `tests/webhooks`.
pub fn webhooks() -> Arc<[u8]> {
    static BUILT: OnceLock<Arc<[u8]>> = OnceLock::new();
    BUILT.get_or_init(|| bytes(&built("tests/webhooks"))).clone()
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
    static BUILT: Mutex<Option<HashMap<String, Arc<[u8]>>>> = Mutex::new(None);
    // Nothing is left half done by a build that failed.
    let mut all = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let component = all.get_or_insert_default().entry(name.to_owned());
    component
        .or_insert_with(|| bytes(&built(&format!("examples/{name}"))))
        .clone()
}
