//! Names of things: validated once at the rim, then passed around as they are.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Longest run id, hook token and idempotency key, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("{what} is empty; give it 1 to {MAX_NAME_BYTES} bytes")]
    Empty { what: &'static str },
    #[error("{what} has {bytes} bytes; the limit is {MAX_NAME_BYTES}")]
    TooLong { what: &'static str, bytes: usize },
    #[error("{what} holds a control character; use printable text")]
    Control { what: &'static str },
    #[error("{what} is `{text}`, which cannot stand in a URL")]
    Dots { what: &'static str, text: String },
}

fn check(what: &'static str, text: &str) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > MAX_NAME_BYTES {
        return Err(NameError::TooLong {
            what,
            bytes: text.len(),
        });
    }
    if text.chars().any(char::is_control) {
        return Err(NameError::Control { what });
    }
    if matches!(text, "." | "..") {
        let text = text.to_owned();
        return Err(NameError::Dots { what, text });
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text: 1 to [`MAX_NAME_BYTES`] bytes, no control characters.
            pub fn new(text: impl AsRef<str>) -> Result<Self, NameError> {
                check($what, text.as_ref())?;
                Ok(Self(text.as_ref().into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

name!(
    /// One execution of a workflow. Made by the host (a UUID of version 7) unless the caller names it.
    RunId,
    "run id"
);
name!(
    /// The business key that names a hook, e.g. `order:42`.
    HookToken,
    "hook token"
);
name!(
    /// What a caller sends so that a request that it repeats is carried out once.
    IdempotencyKey,
    "idempotency key"
);

name!(
    /// An output stream of a run, e.g. `progress`.
    StreamName,
    "stream name"
);

name!(
    /// What happened, as whoever emits an event and whoever waits for it call it, e.g. `order.paid`.
    EventName,
    "event name"
);

name!(
    /// Runs that are counted together against a limit: a workflow, or a workflow, a slash and a key, e.g.
    /// `process_order/customer:7`.
    ConcurrencyGroup,
    "concurrency group"
);

impl ConcurrencyGroup {
    /// The group of a workflow, whose name holds no slash, or of one key of it.
    pub fn of(workflow: &str, key: Option<&str>) -> Result<Self, NameError> {
        match key {
            None => Self::new(workflow),
            Some(key) => Self::new(format!("{workflow}/{key}")),
        }
    }

    pub fn workflow(&self) -> &str {
        self.parts().0
    }

    pub fn key(&self) -> Option<&str> {
        self.parts().1
    }

    fn parts(&self) -> (&str, Option<&str>) {
        match self.0.split_once('/') {
            Some((workflow, key)) => (workflow, Some(key)),
            None => (&*self.0, None),
        }
    }
}

impl RunId {
    /// A fresh id; ids made later sort later.
    pub fn generate() -> Self {
        Self(uuid::Uuid::now_v7().to_string().into())
    }
}

impl HookToken {
    /// A fresh token that nobody can guess: two UUIDs, as one has less than 128 random bits.
    pub fn generate() -> Self {
        let (one, two) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        Self(format!("hook_{}{}", one.simple(), two.simple()).into())
    }
}

/// Most tags of one run.
pub const MAX_TAGS: usize = 32;

/// Why tags were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("tag name `{0}` holds `=`, which stands between name and value in lists")]
    Equals(String),
    #[error("{0} tags are given; the limit is {MAX_TAGS}")]
    TooMany(usize),
}

/// What runs are found by: names with one value each, e.g. `customer` and `7`. Names and values have 1 to
/// [`MAX_NAME_BYTES`] bytes and no control characters, names no `=`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Tags(BTreeMap<String, String>);

impl Tags {
    /// Checks names, values and their number.
    pub fn new(tags: BTreeMap<String, String>) -> Result<Self, TagError> {
        if tags.len() > MAX_TAGS {
            return Err(TagError::TooMany(tags.len()));
        }
        for (name, value) in &tags {
            check("tag name", name)?;
            check("tag value", value)?;
            if name.contains('=') {
                return Err(TagError::Equals(name.clone()));
            }
        }
        Ok(Self(tags))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// These and one more, or with another value.
    pub fn with(&self, name: &str, value: &str) -> Result<Self, TagError> {
        let mut tags = self.0.clone();
        tags.insert(name.to_owned(), value.to_owned());
        Self::new(tags)
    }

    /// By name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether all of `wanted` are among these.
    pub fn contain(&self, wanted: &Self) -> bool {
        wanted
            .iter()
            .all(|(name, value)| self.0.get(name).is_some_and(|own| own == value))
    }
}

impl TryFrom<BTreeMap<String, String>> for Tags {
    type Error = TagError;
    fn try_from(tags: BTreeMap<String, String>) -> Result<Self, TagError> {
        Self::new(tags)
    }
}

/// A SHA-256 digest: of a component, a body, or a link of a journal's chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes.as_ref()).into())
    }

    /// The first 12 hex digits: enough for people to tell components apart.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

/// Text that is no SHA-256 digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a digest; it has 64 hexadecimal digits")]
pub struct DigestError(String);

impl FromStr for Digest {
    type Err = DigestError;
    fn from_str(text: &str) -> Result<Self, DigestError> {
        let bad = || DigestError(text.chars().take(80).collect());
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
