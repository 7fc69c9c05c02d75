//! `onemark serve`

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use axum::http::Uri;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

use super::{Exit, Global, output};
use crate::api::{self, ServerConfig};
use crate::clock::SystemClock;
use crate::engine::{Engine, EngineConfig};
use crate::sandbox::{HttpGrant, Sandbox, SandboxConfig};
use crate::store::{MemoryStore, SqliteOptions, SqliteStore, Store};

#[derive(clap::Args)]
pub struct Args {
    /// Database file; made if there is none
    #[arg(long, env = "ONEMARK_DB", default_value = "onemark.db", value_name = "FILE")]
    db: PathBuf,
    /// Keep everything in memory, and forget it at the end
    #[arg(long)]
    ephemeral: bool,
    /// Address on this machine to serve the API at; port 0 takes any that is free
    #[arg(
        long,
        env = "ONEMARK_LISTEN",
        default_value = "127.0.0.1:7070",
        value_name = "HOST:PORT"
    )]
    listen: String,
    /// Where callers reach this host: what the URLs of webhooks begin with; the address listened on when absent
    #[arg(long, env = "ONEMARK_PUBLIC_URL", value_name = "URL", value_parser = public_url)]
    public_url: Option<Arc<str>>,
    /// Requests that steps may make: `HOST:PORT`, or `[METHOD,…] SCHEME://HOST[:PORT]`, where `HOST` may be a name, an
    /// address, `*.example.com` or `*` (public addresses only); may be given several times
    #[arg(long, value_name = "GRANT")]
    allow_http: Vec<HttpGrant>,
    /// Certificates of authorities, in PEM, that steps trust beside those of the web; may be given several times
    #[arg(long, value_name = "FILE")]
    trust: Vec<PathBuf>,
    /// Workflow instances alive at once; those that wait longest make room
    #[arg(long, default_value_t = at_least_one(EngineConfig::default().max_resident), value_name = "N")]
    max_resident: NonZeroUsize,
    /// Step attempts at once, of all runs
    #[arg(long, default_value_t = at_least_one(EngineConfig::default().max_attempts), value_name = "N")]
    max_attempts: NonZeroUsize,
    /// Connections at once; others wait until one of them is closed
    #[arg(long, default_value_t = at_least_one(ServerConfig::default().max_connections), value_name = "N")]
    max_connections: NonZeroUsize,
    /// How long a client may take to send a request, and a connection may stay without one
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    request_timeout: Duration,
}

/// Instances beside workflows and attempts: replays, and components that describe themselves.
const SPARE_INSTANCES: usize = 128;

/// How long requests in flight may take once the host was told to stop.
const GRACE: Duration = Duration::from_secs(2);

pub async fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    log_to_stderr()?;
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    // Before the database is opened: a host that cannot listen changes nothing.
    let listener = api::bind(&args.listen).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let config = ServerConfig {
        max_connections: args.max_connections.get(),
        request_timeout: args.request_timeout,
        ..ServerConfig::default()
    };
    let engine = args.open(&url).await?;

    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        // Dropping the sender is the signal.
        let _ = stopped.await;
    };
    let mut server = tokio::spawn(api::serve(listener, engine.clone(), config, stopped));
    // Served also when nobody reads this.
    let _ = match global.json() {
        true => output::print(&serde_json::json!({ "listening": url }).to_string()),
        false => output::print(&format!("listening on {url}")),
    };

    let end = tokio::select! {
        () = signals.next() => Ok(Exit::Done.into()),
        error = engine.failed() => Err(error.into()),
        served = &mut server => {
            served?;
            Ok(Exit::Done.into())
        }
    };
    tracing::info!("stopping; what is committed goes on at the next start");
    drop(stop);
    engine.shutdown().await;
    if !server.is_finished() {
        tokio::select! {
            _ = &mut server => {}
            () = tokio::time::sleep(GRACE) => {}
            () = signals.next() => {}
        }
    }
    end
}

impl Args {
    async fn open(self, listening: &str) -> anyhow::Result<Engine> {
        let (store, code_cache, blobs): (Arc<dyn Store>, _, _) = match self.ephemeral {
            true => (Arc::new(MemoryStore::new()), None, None),
            false => {
                let mut code = OsString::from(&self.db);
                code.push(".code");
                let mut blobs = OsString::from(&self.db);
                blobs.push(".blobs");
                let store = SqliteStore::open(&self.db, SqliteOptions::default())?;
                (Arc::new(store), Some(code.into()), Some(blobs.into()))
            }
        };
        let instances = self.max_resident.saturating_add(self.max_attempts.get()).get();
        let sandbox = Sandbox::new(SandboxConfig {
            code_cache,
            instances: u32::try_from(instances.saturating_add(SPARE_INSTANCES))
                .context("`--max-resident` and `--max-attempts` are more than any machine holds")?,
            http: self.allow_http,
            http_authorities: authorities(&self.trust)?,
            public_url: self.public_url.unwrap_or_else(|| listening.into()),
            ..SandboxConfig::default()
        });
        let sandbox = sandbox
            .map_err(|error| anyhow::anyhow!("this machine cannot hold {instances} instances: {error:#}"))?;
        let config = EngineConfig {
            max_resident: self.max_resident.get(),
            max_attempts: self.max_attempts.get(),
            blobs,
            ..EngineConfig::default()
        };
        Ok(Engine::open(store, sandbox, Arc::new(SystemClock), config).await?)
    }
}

/// What asks the host to stop: ctrl-c and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// `ONEMARK_LOG` says how much, as in `info,onemark=debug`.
fn log_to_stderr() -> anyhow::Result<()> {
    let filter = match std::env::var("ONEMARK_LOG") {
        Ok(text) => EnvFilter::try_new(text).context("ONEMARK_LOG is no log filter")?,
        Err(_) => EnvFilter::new("warn,onemark=info"),
    };
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .with_ansi(colours)
        .init();
    Ok(())
}

/// A URL that others can be appended to.
fn public_url(text: &str) -> Result<Arc<str>, String> {
    let url: Uri = text.parse().map_err(|error| format!("{error}"))?;
    let is_web = matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some();
    if !is_web || url.query().is_some() {
        return Err("write it as https://example.org or https://example.org/onemark".to_owned());
    }
    Ok(text.trim_end_matches('/').into())
}

fn at_least_one(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN)
}

/// The certificates in these files.
fn authorities(files: &[PathBuf]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let mut all = Vec::new();
    for file in files {
        let read = || -> Result<Vec<_>, pem::Error> { CertificateDer::pem_file_iter(file)?.collect() };
        let read = read().with_context(|| format!("`--trust {}` cannot be read", file.display()))?;
        if read.is_empty() {
            bail!(
                "`--trust {}` holds no certificate: it is to be a PEM file",
                file.display()
            );
        }
        all.extend(read);
    }
    Ok(all)
}
