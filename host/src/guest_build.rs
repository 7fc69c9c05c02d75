//! Building guest components with cargo, and getting the `wasm32-wasip2` target for it.
//!
//! Everything here happens at run time, at the user's request; compiling this crate needs no target but the
//! host's. The target is looked for, and got if need be, in this order:
//!
//! 1. `ONEMARK_WASM_SYSROOT`, a sysroot that holds the target's standard library;
//! 2. the toolchain that cargo uses in the guest's folder;
//! 3. the private sysroot that an earlier build made for this toolchain;
//! 4. `rustup target add`, except with `CI=true` or without rustup;
//! 5. a private sysroot made from Debian's sources (`toolchain/wasm32-wasip2-sysroot.sh`).
//!
//! Of these only the last two use the network, and both give up after a time.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::{self, Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The compilation target of guests.
pub const TARGET: &str = "wasm32-wasip2";

const SYSROOT_VARIABLE: &str = "ONEMARK_WASM_SYSROOT";
const SYSROOT_SCRIPT: &str = include_str!("../toolchain/wasm32-wasip2-sysroot.sh");
const SYSROOT_SCRIPT_NAME: &str = "wasm32-wasip2-sysroot.sh";

/// How long rustup may take in all. A slow line needs minutes; one that is silent is given up by
/// [`RUSTUP_SILENCE_SECONDS`] long before.
const RUSTUP_LIMIT: Duration = Duration::from_mins(3);
/// How long rustup waits for its server to send something.
const RUSTUP_SILENCE_SECONDS: &str = "15";

/// How [`build_component`] builds.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Where cargo puts what it builds; by default `guests` in the target folder of the guest's workspace,
    /// apart from the host's builds, so that neither waits for the other's lock.
    pub target_dir: Option<PathBuf>,
    /// Features of the guest crate to turn on beside its default ones.
    pub features: Vec<String>,
    /// Keeps cargo's progress off stderr. Warnings, errors and the news that a target is being got still
    /// show.
    pub quiet: bool,
}

/// Where the standard library of the target is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sysroot {
    /// In the toolchain that cargo uses.
    Toolchain,
    /// In a folder of its own, which guests are compiled with as `--sysroot`.
    Private(PathBuf),
}

/// Builds the crate in `manifest_dir` into a component, in release mode with line tables, and returns the
/// path of the `.wasm` file. Gets the target first if it is missing.
///
/// Flags for guests are taken from `CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS` and cargo's configuration.
/// `RUSTFLAGS` is left to the host's own builds. `CARGO_PROFILE_RELEASE_DEBUG` is respected when set.
///
/// # Errors
///
/// When the folder holds no crate, or one without a `cdylib`; when the target is missing and cannot be got;
/// when the crate does not compile, after the compiler's messages went to stderr.
pub fn build_component(manifest_dir: &Path, options: &BuildOptions) -> Result<PathBuf> {
    let dir = absolute(manifest_dir)?;
    let guest = GuestCrate::find(&dir)?;
    let target_dir = match &options.target_dir {
        Some(target_dir) => absolute(target_dir)?,
        None => guest.target_dir,
    };
    let sysroot = ensure_target(&dir)?;

    let mut cargo = cargo(&dir);
    cargo
        .args(["build", "--lib", "--release", "--target", TARGET])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--package", &guest.package_id])
        .arg("--target-dir")
        .arg(target_dir);
    if !options.features.is_empty() {
        cargo.args(["--features", &options.features.join(",")]);
    }
    if options.quiet {
        cargo.arg("--quiet");
    }
    if let Sysroot::Private(sysroot) = &sysroot {
        cargo.args(["--config", &sysroot_config(sysroot)?]);
    }
    if env::var_os("CARGO_PROFILE_RELEASE_DEBUG").is_none() {
        cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    }

    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .context("could not start `cargo`")?;
    let mut component = None;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line.context("could not read what `cargo build` prints")?;
            component = component_in_message(&line, &guest.package_id).or(component);
        }
    }
    let status = child.wait().context("could not wait for `cargo build`")?;
    ensure!(
        status.success(),
        "the guest crate `{}` did not build ({status}); cargo's messages are above",
        guest.name
    );
    component.with_context(|| format!("`cargo build` made no component of `{}`", guest.name))
}

/// Makes sure that guests in `dir` can be compiled, and tells where the target's standard library is. Says on
/// stderr when it has to be got, and how that goes.
///
/// # Errors
///
/// When rustc does not work or does not know the target, or the target is missing and neither rustup nor the
/// build from Debian's sources could get it.
pub fn ensure_target(dir: &Path) -> Result<Sysroot> {
    // Parallel builds within this process wait here for the one that gets the target.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);

    if let Some(sysroot) = env::var_os(SYSROOT_VARIABLE).filter(|value| !value.is_empty()) {
        // cargo and rustc run in other folders than ours.
        let sysroot = absolute(Path::new(&sysroot))?;
        let lib = sysroot.join("lib/rustlib").join(TARGET).join("lib");
        ensure!(
            holds_standard_library(&lib),
            "{SYSROOT_VARIABLE} is set to `{}`, and there is no standard library in `{}`",
            sysroot.display(),
            lib.display()
        );
        return Ok(Sysroot::Private(sysroot));
    }
    if target_is_in_toolchain(dir)? {
        return Ok(Sysroot::Toolchain);
    }
    if let Some(sysroot) = existing_private_sysroot(dir) {
        return Ok(Sysroot::Private(sysroot));
    }

    progress("the target is not installed in the Rust toolchain; getting it");
    if is_ci() {
        progress("not asking rustup, since CI is set");
    } else if let Err(error) = add_target_with_rustup(dir) {
        progress(&format!("not installed by rustup: {error:#}"));
    }
    // rustup may also have installed it into another toolchain than the one in use here.
    if target_is_in_toolchain(dir)? {
        return Ok(Sysroot::Toolchain);
    }
    build_private_sysroot(dir).map(Sysroot::Private)
}

/// What cargo knows of the crate in a folder.
struct GuestCrate {
    name: String,
    package_id: String,
    target_dir: PathBuf,
}

impl GuestCrate {
    /// Asks before anything is fetched or compiled, so that a wrong folder is told at once.
    fn find(dir: &Path) -> Result<Self> {
        let manifest = dir.join("Cargo.toml");
        ensure!(
            manifest.is_file(),
            "there is no crate in `{}`: it has no Cargo.toml",
            dir.display()
        );
        let output = cargo(dir)
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .arg("--manifest-path")
            .arg(&manifest)
            .stderr(Stdio::inherit())
            .output()
            .context("could not start `cargo`; is Rust installed?")?;
        ensure!(
            output.status.success(),
            "cargo cannot make sense of `{}`; its message is above",
            manifest.display()
        );
        Self::from_metadata(&output.stdout, &manifest)
    }

    fn from_metadata(metadata: &[u8], manifest: &Path) -> Result<Self> {
        let metadata: Value = serde_json::from_slice(metadata).context("could not read `cargo metadata`")?;
        let Some(package) = array(&metadata["packages"])
            .iter()
            .find(|package| is_same_file(&package["manifest_path"], manifest))
        else {
            bail!(
                "`{}` is a workspace without a package of its own; name the folder of one of its members",
                manifest.display()
            );
        };
        let name = text(&package["name"])?;
        ensure!(
            array(&package["targets"]).iter().any(is_cdylib),
            "the crate `{name}` makes no component; add this to `{}`:\n\n[lib]\ncrate-type = [\"cdylib\"]\n",
            manifest.display()
        );
        Ok(Self {
            name,
            package_id: text(&package["id"])?,
            target_dir: Path::new(&text(&metadata["target_directory"])?).join("guests"),
        })
    }
}

/// The `.wasm` file of the package's `cdylib`, if `line` is cargo's message that it has been built.
fn component_in_message(line: &str, package_id: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_guest = message["reason"] == "compiler-artifact"
        && message["package_id"] == package_id
        && is_cdylib(&message["target"]);
    if !is_guest {
        return None;
    }
    array(&message["filenames"])
        .iter()
        .filter_map(Value::as_str)
        .map(PathBuf::from)
        .find(|file| file.extension() == Some(OsStr::new("wasm")))
}

fn is_cdylib(target: &Value) -> bool {
    array(&target["crate_types"]).iter().any(|kind| kind == "cdylib")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> Result<String> {
    let text = value.as_str().context("could not read `cargo metadata`")?;
    Ok(text.to_owned())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path::absolute(path).with_context(|| format!("`{}` is not a path", path.display()))
}

fn is_same_file(path: &Value, other: &Path) -> bool {
    let canonical = path.as_str().map(fs::canonicalize);
    matches!((canonical, fs::canonicalize(other)), (Some(Ok(a)), Ok(b)) if a == b)
}

/// cargo in the guest's folder, where its configuration and toolchain apply, without what a cargo that runs
/// this program has set for itself or for the host.
fn cargo(dir: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(dir).stdin(Stdio::null());
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_outer_build) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Whether an environment variable describes the crate that an outer cargo builds or runs, or holds flags
/// that are meant for the host (and would displace those of the guests' target).
fn is_of_outer_build(name: &str) -> bool {
    const NAMES: [&str; 4] = [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_CRATE_NAME",
        "CARGO_PRIMARY_PACKAGE",
    ];
    const PREFIXES: [&str; 5] = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_BIN_",
        "CARGO_CFG_",
        "CARGO_FEATURE_",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The argument of `cargo --config` that compiles guests against a private sysroot. Unlike an environment
/// variable it adds to the flags that the user has set for the target, and a path may hold spaces.
fn sysroot_config(sysroot: &Path) -> Result<String> {
    let sysroot = sysroot
        .to_str()
        .with_context(|| format!("the sysroot's path `{}` is not UTF-8", sysroot.display()))?;
    // A JSON string is a TOML string.
    let flag = Value::from(format!("--sysroot={sysroot}"));
    Ok(format!("target.{TARGET}.rustflags=[{flag}]"))
}

fn target_is_in_toolchain(dir: &Path) -> Result<bool> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", TARGET])
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .context("could not start `rustc`; is Rust installed?")?;
    ensure!(
        output.status.success(),
        "rustc does not know the target {TARGET}, which came with Rust 1.82:\n{}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(holds_standard_library(&path_printed(&output.stdout)))
}

fn holds_standard_library(lib: &Path) -> bool {
    fs::read_dir(lib).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libstd-") && name.ends_with(".rlib")
        })
    })
}

fn path_printed(stdout: &[u8]) -> PathBuf {
    PathBuf::from(String::from_utf8_lossy(stdout).trim())
}

fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

fn add_target_with_rustup(dir: &Path) -> Result<()> {
    let mut rustup = Command::new("rustup");
    rustup
        .args(["target", "add", TARGET])
        .current_dir(dir)
        .stdin(Stdio::null())
        // rustup prints its progress to stderr; our stdout is not for it.
        .stdout(Stdio::null())
        .env_remove("RUST_BACKTRACE");
    if env::var_os("RUSTUP_DOWNLOAD_TIMEOUT").is_none() {
        rustup.env("RUSTUP_DOWNLOAD_TIMEOUT", RUSTUP_SILENCE_SECONDS);
    }
    let mut child = match rustup.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("there is no `rustup` on this machine")
        }
        Err(error) => return Err(error).context("could not start `rustup`"),
    };
    match wait_at_most(&mut child, RUSTUP_LIMIT).context("could not wait for `rustup`")? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("it failed ({status})"),
        None => bail!("it took longer than {} s", RUSTUP_LIMIT.as_secs()),
    }
}

/// Waits for a child; kills it and returns `None` when it takes longer than `limit`.
fn wait_at_most(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    const PAUSE: Duration = Duration::from_millis(50);
    let mut waited = Duration::ZERO;
    while waited < limit {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(PAUSE);
        waited += PAUSE;
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// The script knows where private sysroots are; it is asked rather than repeated here. Where it cannot run,
/// there is none.
fn existing_private_sysroot(dir: &Path) -> Option<PathBuf> {
    let output = sysroot_script(dir).arg("--existing").output().ok()?;
    (output.status.success()).then(|| path_printed(&output.stdout))
}

fn build_private_sysroot(dir: &Path) -> Result<PathBuf> {
    let output = sysroot_script(dir)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| {
            format!(
                "the target {TARGET} is not installed, and there is no `sh` to build its standard \
                 library; install it with `rustup target add {TARGET}`"
            )
        })?;
    ensure!(
        output.status.success(),
        "the target {TARGET} is not installed and could not be got; what to do is told above"
    );
    Ok(path_printed(&output.stdout))
}

fn sysroot_script(dir: &Path) -> Command {
    let mut script = Command::new("sh");
    script
        .args(["-c", SYSROOT_SCRIPT, SYSROOT_SCRIPT_NAME])
        .current_dir(dir)
        .stdin(Stdio::null());
    script
}

fn progress(message: &str) {
    eprintln!("{TARGET}: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(manifest: &Path, crate_type: &str) -> Vec<u8> {
        let metadata = serde_json::json!({
            "target_directory": "/build/target",
            "packages": [{
                "name": "guest",
                "id": "path+file:///guest#0.1.0",
                "manifest_path": manifest,
                "targets": [{ "crate_types": [crate_type] }],
            }],
        });
        metadata.to_string().into_bytes()
    }

    /// A file that exists, to stand for a manifest.
    fn this_manifest() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")
    }

    #[test]
    fn metadata_tells_package_and_target_folder() {
        let manifest = this_manifest();
        let guest = GuestCrate::from_metadata(&metadata(&manifest, "cdylib"), &manifest).unwrap();
        assert_eq!(guest.name, "guest");
        assert_eq!(guest.package_id, "path+file:///guest#0.1.0");
        assert_eq!(guest.target_dir, Path::new("/build/target/guests"));
    }

    #[test]
    fn a_crate_without_cdylib_is_refused_with_what_to_add() {
        let manifest = this_manifest();
        let error = GuestCrate::from_metadata(&metadata(&manifest, "lib"), &manifest)
            .err()
            .unwrap();
        assert!(error.to_string().contains("crate-type = [\"cdylib\"]"));
    }

    #[test]
    fn a_workspace_without_package_is_refused() {
        let manifest = this_manifest();
        let other = metadata(Path::new("/elsewhere/Cargo.toml"), "cdylib");
        let error = GuestCrate::from_metadata(&other, &manifest).err().unwrap();
        assert!(error.to_string().contains("workspace without a package"));
    }

    #[test]
    fn a_folder_without_crate_is_refused() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let error = build_component(&dir, &BuildOptions::default()).unwrap_err();
        assert!(error.to_string().contains("no Cargo.toml"));
    }

    #[test]
    fn component_is_the_wasm_file_of_the_packages_cdylib() {
        let message = |reason: &str, id: &str, kind: &str| {
            serde_json::json!({
                "reason": reason,
                "package_id": id,
                "target": { "crate_types": [kind, "rlib"] },
                "filenames": ["/t/libguest.rlib", "/t/guest.wasm"],
            })
            .to_string()
        };
        let found = |line: &str| component_in_message(line, "guest");
        assert_eq!(
            found(&message("compiler-artifact", "guest", "cdylib")),
            Some(PathBuf::from("/t/guest.wasm"))
        );
        assert_eq!(found(&message("compiler-artifact", "other", "cdylib")), None);
        assert_eq!(found(&message("compiler-artifact", "guest", "lib")), None);
        assert_eq!(found(&message("build-finished", "guest", "cdylib")), None);
        assert_eq!(found("not a message of cargo"), None);
    }

    #[test]
    fn sysroot_flag_keeps_spaces_and_quotes() {
        assert_eq!(
            sysroot_config(Path::new("/a b/\"c\"")).unwrap(),
            r#"target.wasm32-wasip2.rustflags=["--sysroot=/a b/\"c\""]"#
        );
    }

    #[test]
    fn only_what_an_outer_build_set_is_kept_from_cargo() {
        for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_PKG_NAME"] {
            assert!(is_of_outer_build(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS", "PATH"] {
            assert!(!is_of_outer_build(name), "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_child_that_takes_too_long_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let status = wait_at_most(&mut child, Duration::from_millis(100)).unwrap();
        assert_eq!(status, None);
        assert!(child.try_wait().unwrap().is_some());
    }
}
