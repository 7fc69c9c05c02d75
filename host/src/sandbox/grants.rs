//! What an operator lets steps reach.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use http::Method;
use serde::{Deserialize, Serialize};

/// Requests that steps may make over HTTP or HTTPS: `[METHOD[,METHOD]… ][SCHEME://]HOST[:PORT]`.
///
/// `HOST` is a name or an address, `*.example.com` (every name below that), or `*`. Without a scheme the port must be
/// named, and both schemes are covered; with one it is 80 or 443 unless named. A host that a grant names may be anywhere.
/// Where only a pattern covers it, its address must be a public one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpGrant {
    /// Empty for all.
    methods: Vec<String>,
    scheme: Option<Scheme>,
    host: HostPattern,
    port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl FromStr for Scheme {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.to_ascii_lowercase().as_str() {
            "http" => Ok(Self::Http),
            "https" => Ok(Self::Https),
            _ => Err(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    /// Lower case; an IPv6 address without its brackets.
    Named(String),
    /// Every name that ends so, dot included.
    Below(String),
    Any,
}

/// What is asked of a grant.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub method: &'a Method,
    pub scheme: Scheme,
    /// As it stands in the address.
    pub host: &'a str,
    pub port: u16,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}://{}", self.method, self.scheme.as_str(), self.host)?;
        match self.port == self.scheme.port() {
            true => Ok(()),
            false => write!(f, ":{}", self.port),
        }
    }
}

/// How far a grant goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// Public addresses only: the grant does not name the host.
    Public,
    Anywhere,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no grant: {what}. Write for example `api.example.com:443`, `https://api.example.com`, \
     `https://*.example.com` or `GET,HEAD http://[::1]:8080`"
)]
pub struct HttpGrantError {
    text: String,
    what: &'static str,
}

impl FromStr for HttpGrant {
    type Err = HttpGrantError;

    fn from_str(text: &str) -> Result<Self, HttpGrantError> {
        let bad = |what| HttpGrantError {
            text: text.to_owned(),
            what,
        };
        let (methods, address) = match text.trim().split_once(char::is_whitespace) {
            Some((methods, address)) => (methods.split(',').collect(), address.trim_start()),
            None => (Vec::new(), text.trim()),
        };
        let is_method = |method: &&str| !method.is_empty() && method.chars().all(|c| c.is_ascii_uppercase());
        if !methods.iter().all(is_method) {
            return Err(bad("methods are in capitals, with commas between them"));
        }
        let (scheme, authority) = match address.split_once("://") {
            Some((scheme, authority)) => {
                let scheme = scheme
                    .parse()
                    .map_err(|()| bad("the scheme is `http` or `https`"))?;
                (Some(scheme), authority)
            }
            None => (None, address),
        };
        if authority.contains(['/', '?', '#', '@']) {
            return Err(bad("it has no path, query or user"));
        }
        // The last colon of an address in brackets may be its own.
        let port = authority
            .rsplit_once(':')
            .filter(|(_, port)| !port.ends_with(']'));
        let (host, port) = match (port, scheme) {
            (Some((host, port)), _) => match port.parse() {
                Ok(port) if port > 0 => (host, port),
                _ => return Err(bad("the port is a number from 1 to 65535")),
            },
            (None, Some(scheme)) => (authority, Scheme::port(scheme)),
            (None, None) => return Err(bad("the port is missing, or the scheme")),
        };
        let (bracketed, any) = (host.starts_with('['), host == "*");
        let host = bare(host);
        let named = |host: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            let name = !host.is_empty() && host.chars().all(allowed);
            name || (bracketed && host.parse::<Ipv6Addr>().is_ok())
        };
        let host = match host.strip_prefix("*.") {
            _ if any => HostPattern::Any,
            Some(below) if named(below) => HostPattern::Below(format!(".{below}")),
            None if named(&host) => HostPattern::Named(host),
            _ => return Err(bad("the host is a name, an address, `*.` and a name, or `*`")),
        };
        Ok(Self {
            methods: methods.into_iter().map(str::to_owned).collect(),
            scheme,
            host,
            port,
        })
    }
}

/// A host in one way of writing: in lower case, without brackets or the dot of a full name.
pub fn bare(host: &str) -> String {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match inner.map(str::parse::<Ipv6Addr>) {
        Some(Ok(address)) => address.to_string(),
        _ => host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase(),
    }
}

impl HttpGrant {
    /// How far this grant covers a request, if it does.
    pub fn covers(&self, asked: &Asked<'_>) -> Option<Reach> {
        let method = self.methods.is_empty() || self.methods.iter().any(|it| it == asked.method.as_str());
        let scheme = self.scheme.is_none_or(|scheme| scheme == asked.scheme);
        if !method || !scheme || self.port != asked.port {
            return None;
        }
        let host = bare(asked.host);
        match &self.host {
            HostPattern::Named(named) => (*named == host).then_some(Reach::Anywhere),
            HostPattern::Below(end) => {
                (host.len() > end.len() && host.ends_with(end)).then_some(Reach::Public)
            }
            HostPattern::Any => Some(Reach::Public),
        }
    }
}

impl fmt::Display for HttpGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.methods.is_empty() {
            write!(f, "{} ", self.methods.join(","))?;
        }
        if let Some(scheme) = self.scheme {
            write!(f, "{}://", scheme.as_str())?;
        }
        match &self.host {
            HostPattern::Named(host) if host.contains(':') => write!(f, "[{host}]")?,
            HostPattern::Named(host) => f.write_str(host)?,
            HostPattern::Below(end) => write!(f, "*{end}")?,
            HostPattern::Any => f.write_str("*")?,
        }
        match self.scheme.is_some_and(|scheme| scheme.port() == self.port) {
            true => Ok(()),
            false => write!(f, ":{}", self.port),
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

/// Whether an address is one of the public internet: not of this machine, of a private network or link, and not set
/// aside for something else (the registries of special-purpose addresses, RFC 6890). An IPv6 address that stands for an
/// IPv4 address is judged by that.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_documentation()
                // This network; shared address space; protocol assignments; 6to4 relays; benchmarks; reserved.
                || a == 0
                || (a == 100 && b & 0xc0 == 64)
                || (a == 192 && b == 0 && c == 0)
                || (a == 192 && b == 88 && c == 99)
                || (a == 198 && b & 0xfe == 18)
                || a >= 240)
        }
        IpAddr::V6(v6) => {
            let s = v6.segments();
            let v4 =
                |high: u16, low: u16| is_public(IpAddr::V4((u32::from(high) << 16 | u32::from(low)).into()));
            match s {
                [0, 0, 0, 0, 0, 0xffff, high, low] => v4(high, low),
                // Translated by the network (RFC 6052), or in a tunnel (RFC 3056).
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
                [0x2002, high, low, ..] => v4(high, low),
                // Only what is handed out; without protocol assignments, documentation and the like.
                [first, ..] if first & 0xe000 != 0x2000 => false,
                [0x2001, second, ..] if second < 0x200 || second == 0xdb8 => false,
                [0x3fff, second, ..] if second < 0x1000 => false,
                _ => true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked<'a>(method: &'a Method, url: &'a http::Uri) -> Asked<'a> {
        let scheme: Scheme = url.scheme_str().unwrap().parse().unwrap();
        Asked {
            method,
            scheme,
            host: url.host().unwrap(),
            port: url.port_u16().unwrap_or(scheme.port()),
        }
    }

    #[test]
    fn grants_cover_what_they_say() {
        use Reach::{Anywhere, Public};
        for (grant, method, url, reach) in [
            (
                "Api.Example.com:443",
                "GET",
                "https://api.example.COM/x",
                Some(Anywhere),
            ),
            (
                "api.example.com:443",
                "GET",
                "https://api.example.com./",
                Some(Anywhere),
            ),
            (
                "api.example.com:443",
                "GET",
                "http://api.example.com:443/",
                Some(Anywhere),
            ),
            ("api.example.com:443", "GET", "http://api.example.com/", None),
            (
                "api.example.com:443",
                "GET",
                "https://api.example.com.evil.test/",
                None,
            ),
            (
                "https://api.example.com",
                "PUT",
                "https://api.example.com/",
                Some(Anywhere),
            ),
            (
                "https://api.example.com",
                "PUT",
                "http://api.example.com:443/",
                None,
            ),
            (
                "https://api.example.com:8443",
                "PUT",
                "https://api.example.com/",
                None,
            ),
            (
                "GET,HEAD https://a.test",
                "HEAD",
                "https://a.test/",
                Some(Anywhere),
            ),
            ("GET,HEAD https://a.test", "POST", "https://a.test/", None),
            (
                "https://*.example.com",
                "GET",
                "https://a.b.example.com/",
                Some(Public),
            ),
            ("https://*.example.com", "GET", "https://example.com/", None),
            ("https://*.example.com", "GET", "https://evilexample.com/", None),
            ("https://*.example.com", "GET", "https://.example.com/", None),
            ("https://*", "GET", "https://127.0.0.1/", Some(Public)),
            ("https://*", "GET", "http://a.test/", None),
            ("[::1]:80", "GET", "http://[::1]/", Some(Anywhere)),
            ("http://[0:0::1]", "GET", "http://[::0:1]/", Some(Anywhere)),
        ] {
            let parsed: HttpGrant = grant.parse().unwrap();
            let (method, url) = (method.parse().unwrap(), url.parse().unwrap());
            assert_eq!(
                parsed.covers(&asked(&method, &url)),
                reach,
                "{grant}: {method} {url}"
            );
            let again: HttpGrant = parsed.to_string().parse().unwrap();
            assert_eq!(again, parsed);
        }
    }

    #[test]
    fn what_is_no_grant_is_refused() {
        for bad in [
            "",
            "host",
            ":80",
            "host:",
            "host:0",
            "host:70000",
            "ftp://host",
            "https://",
            "https://host/path",
            "https://user@host",
            "https://host?q",
            "a b:1",
            "get https://host",
            "GET, https://host",
            "*a.test:1",
            "https://a.*.test",
            "https://*.",
            "https://[::1",
            "https://::1",
            "::1:80",
            "[host]:80",
            "GET POST https://host",
        ] {
            assert!(bad.parse::<HttpGrant>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_of_this_machine_and_of_private_networks_are_not_public() {
        for private in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.1.1",
            "169.254.169.254",
            "172.16.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in [
            "1.1.1.1",
            "100.128.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "2606:4700::1",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }
}
