//! Listening, and serving until told to stop.

use std::io;
use std::net::SocketAddr;

use axum::serve::ListenerExt as _;
use tokio::net::{TcpListener, lookup_host};

use super::router;
use crate::engine::Engine;

/// Why an address was not listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("`{address}` is no HOST:PORT to listen on: {source}")]
    Address { address: String, source: io::Error },
    #[error("{0} can be reached from other machines, and requests are not authenticated yet")]
    NotLoopback(SocketAddr),
    #[error("{0} is in use by another program")]
    InUse(SocketAddr),
    #[error("cannot listen on {address}: {source}")]
    Io { address: SocketAddr, source: io::Error },
}

/// Listens on `HOST:PORT`, an address of this machine's loopback. Port 0 takes any that is free.
///
/// # Errors
/// When the address is of another kind, or in use.
pub async fn bind(address: &str) -> Result<TcpListener, BindError> {
    let wrong = |source| BindError::Address {
        address: address.to_owned(),
        source,
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
        .map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(address),
            _ => BindError::Io { address, source },
        })
}

/// Serves the API of an engine until `shutdown` returns and the requests in flight are answered.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // Answers are small and wanted now.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
    });
    axum::serve(listener, router(engine))
        .with_graceful_shutdown(shutdown)
        .await
}
