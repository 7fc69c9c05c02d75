//! `wasi:http`: what leaves a step, checked against the operator's grants.
//!
//! Connections are kept and used again, by steps of any run, each only for requests that may go as far as it does.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, timeout};
use tokio_rustls::TlsConnector;
use tower_service::Service;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use crate::sandbox::grants::{Asked, HttpGrant, Reach, Scheme, bare, is_public};

/// How long a connection may take, from the look at its name to the end of its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an answer may take to begin, and between two pieces of it, unless the guest says: in any case as long as its
/// attempt.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Largest bodies that steps may send and receive over HTTP, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpLimits {
    pub request_bytes: u64,
    pub response_bytes: u64,
}

impl Default for HttpLimits {
    /// 64 MiB each: what does not fit into a step's memory helps none.
    fn default() -> Self {
        Self {
            request_bytes: 64 << 20,
            response_bytes: 64 << 20,
        }
    }
}

/// The connections of a host.
pub struct HttpClients {
    public: Client<Connector, Limited<Sent>>,
    anywhere: Client<Connector, Limited<Sent>>,
    limits: HttpLimits,
}

impl fmt::Debug for HttpClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClients")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl HttpClients {
    /// Trusts the authorities of the web, and these.
    ///
    /// # Errors
    /// When one of them is no certificate of an authority.
    pub fn new(authorities: &[CertificateDer<'static>], limits: HttpLimits) -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.into(),
        };
        for authority in authorities {
            roots.add(authority.clone())?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls = TlsConnector::from(Arc::new(config));
        let client = |reach| {
            let connector = Connector {
                reach,
                tls: tls.clone(),
            };
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_max_idle_per_host(32)
                .build(connector)
        };
        Ok(Self {
            public: client(Reach::Public),
            anywhere: client(Reach::Anywhere),
            limits,
        })
    }

    async fn send(
        &self,
        request: http::Request<Sent>,
        reach: Reach,
        options: Option<RequestOptions>,
    ) -> Result<http::Response<WasiBody>, Error> {
        let client = match reach {
            Reach::Public => &self.public,
            Reach::Anywhere => &self.anywhere,
        };
        let options = options.unwrap_or(RequestOptions {
            connect_timeout: None,
            first_byte_timeout: None,
            between_bytes_timeout: None,
        });
        let connect = options
            .connect_timeout
            .unwrap_or(CONNECT_TIMEOUT)
            .min(CONNECT_TIMEOUT);
        let begin = connect.saturating_add(options.first_byte_timeout.unwrap_or(ANSWER_TIMEOUT));
        let limit = usize::try_from(self.limits.request_bytes).unwrap_or(usize::MAX);
        let request = request.map(|body| Limited::new(body, limit));
        let response = match timeout(begin, client.request(request)).await {
            Ok(response) => response.map_err(|error| self.failure(&error))?,
            Err(_) => return Err(Error::ConnectionReadTimeout),
        };
        let between = options.between_bytes_timeout.unwrap_or(ANSWER_TIMEOUT);
        let limit = self.limits.response_bytes;
        Ok(response.map(|incoming| Answer::new(incoming, between, limit).boxed_unsync()))
    }

    /// An error of the client as guests know it.
    fn failure(&self, error: &hyper_util::client::legacy::Error) -> Error {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
        let mut words = Vec::new();
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<ConnectError>() {
                return error.as_seen_by_guests();
            }
            if error.is::<LengthLimitError>() {
                return Error::HttpRequestBodySize(Some(self.limits.request_bytes));
            }
            words.push(error.to_string());
            cause = error.source();
        }
        Error::InternalError(Some(words.join(": ")))
    }
}

/// The way out of one instance. By default it leads nowhere.
#[derive(Debug, Clone, Default)]
pub struct HttpEgress {
    pub grants: Arc<[HttpGrant]>,
    pub clients: Option<Arc<HttpClients>>,
}

type Transfer = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// Where a request goes: what is checked is what is connected to.
fn target(uri: &Uri) -> Option<(Scheme, &str, u16)> {
    let scheme: Scheme = uri.scheme_str()?.parse().ok()?;
    let port = uri.port_u16().unwrap_or(scheme.port());
    Some((scheme, uri.host()?, port))
}

impl HttpEgress {
    /// Where this request may go, if it may.
    fn check(&self, request: &http::Request<WasiBody>) -> Result<(Reach, Arc<HttpClients>), Error> {
        let (scheme, host, port) = target(request.uri()).ok_or(Error::HttpRequestUriInvalid)?;
        let asked = Asked {
            method: request.method(),
            scheme,
            host,
            port,
        };
        let reach = self.grants.iter().filter_map(|grant| grant.covers(&asked)).max();
        if let Some((reach, clients)) = reach.zip(self.clients.clone()) {
            return Ok((reach, clients));
        }
        let text = format!(
            "no grant for {asked}; the operator can give it with `serve --allow-http {host}:{port}`, or `--allow-http \
             \"{asked}\"` for this method alone"
        );
        Err(Error::InternalError(Some(text)))
    }
}

impl WasiHttpHooks for HttpEgress {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Transfer,
    ) -> Box<dyn Future<Output = Result<(http::Response<WasiBody>, Transfer), Error>> + Send> {
        let checked = self.check(&request);
        let request = request.map(|body| Sent(Some(body)));
        Box::new(async move {
            let (reach, clients) = checked?;
            let response = clients.send(request, reach, options).await?;
            // The connection is driven by the client.
            Ok((response, Box::new(std::future::ready(Ok(()))) as Transfer))
        })
    }
}

/// The body of a request. A guest that is still writing it when nobody reads it any more would be told of that, and not
/// of the answer or of what went wrong: so what is left of it is read.
struct Sent(Option<WasiBody>);

impl Body for Sent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some(body) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(mut body), Ok(runtime)) = (self.0.take(), runtime) {
            // Ends with the body, and that with its guest.
            runtime.spawn(async move { while let Some(Ok(_)) = body.frame().await {} });
        }
    }
}

/// The body of an answer, with bounds on its size and on the time between two pieces.
struct Answer {
    incoming: Incoming,
    between: Duration,
    late: Pin<Box<Sleep>>,
    limit: u64,
    so_far: u64,
}

impl Answer {
    fn new(incoming: Incoming, between: Duration, limit: u64) -> Self {
        Self {
            incoming,
            between,
            late: Box::pin(tokio::time::sleep(between)),
            limit,
            so_far: 0,
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.incoming).poll_frame(context) else {
            let late = this.late.as_mut().poll(context);
            return late.map(|()| Some(Err(Error::ConnectionReadTimeout)));
        };
        let deadline = Instant::now().checked_add(this.between);
        if let Some(deadline) = deadline {
            this.late.as_mut().reset(deadline);
        }
        Poll::Ready(frame.map(|frame| {
            let frame = frame?;
            this.so_far += frame.data_ref().map_or(0, |data| data.len() as u64);
            match this.so_far > this.limit {
                true => Err(Error::HttpResponseBodySize(Some(this.limit))),
                false => Ok(frame),
            }
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

// ---- connections -------------------------------------------------------------------------------------

/// Makes connections that go as far as they may.
#[derive(Clone)]
struct Connector {
    reach: Reach,
    tls: TlsConnector,
}

#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("the address cannot be read")]
    Address,
    #[error("{host} is not known: {error}")]
    Unknown { host: String, error: io::Error },
    #[error(
        "{host} is {address}, which is no address of the public internet; only a grant that names the host reaches it: \
         `serve --allow-http {host}:{port}`"
    )]
    Private {
        host: String,
        address: std::net::IpAddr,
        port: u16,
    },
    #[error("{0}")]
    Tcp(io::Error),
    #[error("{0}")]
    Tls(io::Error),
    #[error("no connection within {CONNECT_TIMEOUT:?}")]
    Timeout,
}

impl ConnectError {
    fn as_seen_by_guests(&self) -> Error {
        let again = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        match self {
            Self::Address => Error::HttpRequestUriInvalid,
            Self::Unknown { .. } => Error::DnsError {
                rcode: Some(self.to_string()),
                info_code: None,
            },
            Self::Private { .. } => Error::InternalError(Some(self.to_string())),
            Self::Tcp(error) if error.kind() == io::ErrorKind::ConnectionRefused => Error::ConnectionRefused,
            Self::Tcp(error) => Error::Connect(again(error)),
            Self::Tls(error) => Error::InternalError(Some(format!("no secure connection: {error}"))),
            Self::Timeout => Error::ConnectionTimeout,
        }
    }
}

impl Connector {
    async fn connect(self, uri: Uri) -> Result<Stream, ConnectError> {
        let (scheme, host, port) = target(&uri).ok_or(ConnectError::Address)?;
        let host = bare(host);
        let found = tokio::net::lookup_host((host.clone(), port)).await;
        let found: Vec<SocketAddr> = match found {
            Ok(found) => found.collect(),
            Err(error) => return Err(ConnectError::Unknown { host, error }),
        };
        // What the name leads to is looked at, and then connected to: it is not asked for again in between.
        let reached = |address: &SocketAddr| self.reach == Reach::Anywhere || is_public(address.ip());
        let (allowed, refused): (Vec<_>, Vec<_>) = found.into_iter().partition(reached);
        if let (true, Some(address)) = (allowed.is_empty(), refused.first()) {
            let address = address.ip();
            return Err(ConnectError::Private { host, address, port });
        }
        let stream = TcpStream::connect(allowed.as_slice())
            .await
            .map_err(ConnectError::Tcp)?;
        stream.set_nodelay(true).map_err(ConnectError::Tcp)?;
        Ok(match scheme {
            Scheme::Http => Stream::new(stream),
            Scheme::Https => {
                let name = ServerName::try_from(host).map_err(|_| ConnectError::Address)?;
                Stream::new(self.tls.connect(name, stream).await.map_err(ConnectError::Tls)?)
            }
        })
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connect = self.clone().connect(uri);
        Box::pin(async move {
            let connected = timeout(CONNECT_TIMEOUT, connect).await;
            connected.unwrap_or(Err(ConnectError::Timeout))
        })
    }
}

trait Io: Read + Write + Send + Unpin {}

impl<T: Read + Write + Send + Unpin> Io for T {}

/// A connection, secured or not.
struct Stream(Box<dyn Io>);

impl Stream {
    fn new(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static) -> Self {
        Self(Box::new(TokioIo::new(stream)))
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
