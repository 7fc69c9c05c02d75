//! What an operator lets steps reach.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One server that steps may call over HTTP or HTTPS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpGrant {
    /// Lower case; an IPv6 address without its brackets.
    host: String,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no HOST:PORT; write for example `api.example.com:443` or `[::1]:8080`")]
pub struct HttpGrantError(String);

impl FromStr for HttpGrant {
    type Err = HttpGrantError;
    fn from_str(text: &str) -> Result<Self, HttpGrantError> {
        let bad = || HttpGrantError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        let host = bare(host);
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        if host.is_empty() || port == 0 || !host.chars().all(allowed) {
            return Err(bad());
        }
        Ok(Self { host, port })
    }
}

fn bare(host: &str) -> String {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host).to_ascii_lowercase()
}

impl HttpGrant {
    /// Whether this grant covers a request to that host and port.
    pub fn covers(&self, host: &str, port: u16) -> bool {
        self.port == port && self.host == bare(host)
    }
}

impl fmt::Display for HttpGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl TryFrom<String> for HttpGrant {
    type Error = HttpGrantError;
    fn try_from(text: String) -> Result<Self, HttpGrantError> {
        text.parse()
    }
}

impl From<HttpGrant> for String {
    fn from(grant: HttpGrant) -> String {
        grant.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_exactly_one_host_and_port() {
        let grant: HttpGrant = "Api.Example.com:443".parse().unwrap();
        assert!(grant.covers("api.example.COM", 443));
        assert!(!grant.covers("api.example.com", 80));
        assert!(!grant.covers("api.example.com.evil.test", 443));
        let six: HttpGrant = "[::1]:80".parse().unwrap();
        assert!(six.covers("[::1]", 80));
        for bad in [
            "",
            "host",
            ":80",
            "host:",
            "host:0",
            "host:70000",
            "http://host:80",
            "a b:1",
            "*:1",
        ] {
            assert!(bad.parse::<HttpGrant>().is_err(), "{bad}");
        }
    }
}
