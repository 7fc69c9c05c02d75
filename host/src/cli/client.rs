//! The API as the command line uses it.

use std::time::Duration;

use anyhow::{Context as _, bail};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A server of Onemark.
pub struct Client {
    http: reqwest::Client,
    base: Url,
}

/// Why a request was not answered with success.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("there is no server at {0}")]
    NoServer(Url),
    #[error("{}", .0.message)]
    Refused(Box<Refusal>),
    #[error("what answers at {url} is no Onemark server, or another version (status {status})")]
    Foreign { url: Url, status: u16 },
    #[error("the connection to {url} broke")]
    Broken { url: Url, source: reqwest::Error },
}

/// The server's own words.
#[derive(Debug)]
pub struct Refusal {
    code: String,
    message: String,
    hint: Option<String>,
    /// The whole answer.
    document: String,
}

impl ClientError {
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::NoServer(_) => {
                Some("start one with `onemark serve`, or say where it is with `--url` or ONEMARK_URL")
            }
            Self::Refused(refusal) => super::hints::of(&refusal.code).or(refusal.hint.as_deref()),
            Self::Foreign { .. } => Some("say where the server is with `--url` or ONEMARK_URL"),
            Self::Broken { .. } => Some("with `--key` or `--id` the same request can be sent again safely"),
        }
    }

    /// For programs.
    pub fn code(&self) -> &str {
        match self {
            Self::NoServer(_) => "no_server",
            Self::Refused(refusal) => &refusal.code,
            Self::Foreign { .. } => "foreign_server",
            Self::Broken { .. } => "connection_broken",
        }
    }

    /// The server's answer as it came.
    pub fn document(&self) -> Option<&str> {
        match self {
            Self::Refused(refusal) => Some(&refusal.document),
            _ => None,
        }
    }
}

/// A successful answer, as text: reading and writing it anew could change its numbers.
pub struct Answer {
    pub text: String,
    url: Url,
    status: u16,
}

impl Answer {
    /// # Errors
    /// When the answer is not what this version of the API gives.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_str(&self.text).map_err(|_| ClientError::Foreign {
            url: self.url.clone(),
            status: self.status,
        })
    }
}

impl Client {
    /// # Errors
    /// When `url` is no URL of an HTTP server.
    pub fn new(url: &str) -> anyhow::Result<Self> {
        let base = Url::parse(url).with_context(|| format!("`{url}` is no URL"))?;
        if base.scheme() != "http" || base.cannot_be_a_base() {
            bail!("`{url}` is no URL of a server; write for example `http://127.0.0.1:7070`");
        }
        // The server is on this machine: a proxy would not find it.
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(Duration::from_secs(5));
        Ok(Self {
            http: http.build()?,
            base,
        })
    }

    /// # Errors
    /// See [`ClientError`]; also when the path cannot be written as a URL.
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<Answer> {
        Ok(self.send(self.request(Method::GET, path)?.query(query)).await?)
    }

    /// Sends JSON, with a key if there is one.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post(
        &self,
        path: &[&str],
        json: impl Into<String>,
        key: Option<&str>,
    ) -> anyhow::Result<Answer> {
        let mut request = self.request(Method::POST, path)?;
        if let Some(key) = key {
            let key = HeaderValue::from_bytes(key.as_bytes())
                .with_context(|| format!("the key {key:?} holds a control character"))?;
            request = request.header("idempotency-key", key);
        }
        let request = request.header(CONTENT_TYPE, "application/json").body(json.into());
        Ok(self.send(request).await?)
    }

    /// Sends the bytes of a component.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send_component(
        &self,
        method: Method,
        path: &[&str],
        bytes: Vec<u8>,
    ) -> anyhow::Result<Answer> {
        let request = self
            .request(method, path)?
            .header(CONTENT_TYPE, "application/wasm");
        Ok(self.send(request.body(bytes)).await?)
    }

    /// # Errors
    /// As [`Client::get`].
    pub async fn delete(&self, path: &[&str]) -> anyhow::Result<Answer> {
        Ok(self.send(self.request(Method::DELETE, path)?).await?)
    }

    /// Server-sent events, as they come.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn follow(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<Events> {
        let request = self.request(Method::GET, path)?.query(query);
        let response = self.respond(request).await?;
        Ok(Events {
            response,
            unread: Vec::new(),
        })
    }

    /// Bytes, as they come.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn download(&self, path: &[&str]) -> anyhow::Result<Response> {
        Ok(self.respond(self.request(Method::GET, path)?).await?)
    }

    fn request(&self, method: Method, path: &[&str]) -> anyhow::Result<RequestBuilder> {
        let mut url = self.base.clone();
        // In URLs these two mean folders, however they are written.
        if let Some(part) = path.iter().find(|part| matches!(**part, "" | "." | "..")) {
            bail!("`{part}` cannot stand in a URL");
        }
        // URLs are written without some of these: another run or hook would be meant.
        if let Some(part) = path.iter().find(|part| part.contains(char::is_control)) {
            bail!("{part:?} holds a control character");
        }
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        Ok(self.http.request(method, url))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Answer, ClientError> {
        let response = self.respond(request).await?;
        let status = response.status().as_u16();
        Ok(Answer {
            text: response.text().await.map_err(|source| self.broken(source))?,
            url: self.base.clone(),
            status,
        })
    }

    fn broken(&self, source: reqwest::Error) -> ClientError {
        let url = self.base.clone();
        match source.is_connect() {
            true => ClientError::NoServer(url),
            false => ClientError::Broken { url, source },
        }
    }

    /// A successful answer, of which the head has come.
    async fn respond(&self, request: RequestBuilder) -> Result<Response, ClientError> {
        let url = self.base.clone();
        let response = request.send().await.map_err(|source| self.broken(source))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|source| self.broken(source))?;
        match serde_json::from_str::<ErrorDocument>(&text) {
            Ok(ErrorDocument {
                error: ErrorBody { code, message, hint },
            }) => {
                let refusal = Refusal {
                    code,
                    message,
                    hint,
                    document: text,
                };
                Err(ClientError::Refused(Box::new(refusal)))
            }
            Err(_) => Err(ClientError::Foreign {
                url,
                status: status.as_u16(),
            }),
        }
    }
}

/// Server-sent events of an answer.
pub struct Events {
    response: Response,
    /// What came of the event that is not whole yet.
    unread: Vec<u8>,
}

pub struct ServerEvent {
    /// `None` where the server gives no name.
    pub name: Option<String>,
    pub data: String,
}

impl Events {
    /// The next event; `None` at the end of the answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> anyhow::Result<Option<ServerEvent>> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.unread.drain(..end + 2).collect();
                let event = read_event(&String::from_utf8_lossy(&event));
                // Without data it keeps the connection alive, and no more.
                if event.data.is_empty() {
                    continue;
                }
                return Ok(Some(event));
            }
            match self.response.chunk().await? {
                Some(bytes) => self.unread.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

fn read_event(text: &str) -> ServerEvent {
    let field = |line: &str, name: &str| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(value.strip_prefix(' ').unwrap_or(value).to_owned())
    };
    let data: Vec<_> = text.lines().filter_map(|line| field(line, "data")).collect();
    ServerEvent {
        name: text.lines().find_map(|line| field(line, "event")),
        data: data.join("\n"),
    }
}

#[derive(Deserialize)]
struct ErrorDocument {
    error: ErrorBody,
}

#[derive(Deserialize)]
struct ErrorBody {
    code: String,
    message: String,
    hint: Option<String>,
}
