//! Listening, and serving until told to stop.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::Semaphore;

use super::webhooks::warn_of_secrets;
use super::{Secrets, router};
use crate::engine::Engine;

/// As good as for ever, and still a time that clocks can tell.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why an address was not listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("`{address}` is no HOST:PORT to listen on: {error}")]
    Address { address: String, error: io::Error },
    #[error("{0} can be reached from other machines, and requests are not authenticated yet")]
    NotLoopback(SocketAddr),
    #[error("{0} is in use by another program")]
    InUse(SocketAddr),
    #[error("cannot listen on {address}: {error}")]
    Io { address: SocketAddr, error: io::Error },
}

/// What clients are granted.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Connections at once; others wait until one of them is closed.
    pub max_connections: usize,
    /// How long a client may take to send the head of a request, and then its body. A connection without a
    /// request is closed after as long.
    pub request_timeout: Duration,
    /// Where the secrets of webhooks are.
    pub secrets: Secrets,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            max_connections: 1_024,
            request_timeout: Duration::from_secs(30),
            secrets: Secrets::default(),
        }
    }
}

/// Listens on `HOST:PORT`, an address of this machine's loopback. Port 0 takes any that is free.
///
/// # Errors
/// When the address is of another kind, or in use.
pub async fn bind(address: &str) -> Result<TcpListener, BindError> {
    let wrong = |error| BindError::Address {
        address: address.to_owned(),
        error,
    };
    let mut found = lookup_host(address).await.map_err(wrong)?;
    let address = found
        .next()
        .ok_or_else(|| wrong(io::ErrorKind::NotFound.into()))?;
    if !address.ip().is_loopback() {
        return Err(BindError::NotLoopback(address));
    }
    TcpListener::bind(address)
        .await
        .map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(address),
            _ => BindError::Io { address, error },
        })
}

/// Serves the API of an engine until `shutdown` returns and the requests in flight are answered.
pub async fn serve(
    mut listener: TcpListener,
    engine: Engine,
    config: ServerConfig,
    shutdown: impl Future<Output = ()>,
) {
    // Who deployed it may be long gone.
    if let Err(error) = warn_of_secrets(&engine, &config.secrets, None).await {
        tracing::error!(%error, "whether webhooks have their secrets is not known");
    }
    let request_timeout = config.request_timeout.min(LONGEST_TIMEOUT);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(request_timeout);
    let service = TowerToHyperService::new(router(engine, request_timeout, config.secrets));
    let room = Arc::new(Semaphore::new(config.max_connections.min(Semaphore::MAX_PERMITS)));
    let connections = GracefulShutdown::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            // Nobody closes the semaphore. Who finds no room waits in the backlog of the listener.
            let place = room.clone().acquire_owned().await;
            (place, Listener::accept(&mut listener).await)
        };
        let (place, (connection, _)) = tokio::select! {
            next = next => next,
            () = &mut shutdown => break,
        };
        // Answers are small and wanted now.
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let connection = http.serve_connection(TokioIo::new(connection), service.clone());
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(place);
        });
    }
    // Whoever comes now is refused by the system.
    drop(listener);
    connections.shutdown().await;
}
