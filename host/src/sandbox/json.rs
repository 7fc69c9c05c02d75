//! JSON from outside, read as guests read it: what they would refuse is refused before anything is written.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::journal::checked_json;

/// Why a text was not taken.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error("it is no JSON: {0}")]
    Malformed(serde_json::Error),
    /// More levels than readers of JSON bear.
    #[error("{0}")]
    TooDeep(String),
    /// JSON that readers understand differently or give up on: a key that is there twice, a number beyond all
    /// floats, half a surrogate pair.
    #[error("{0}")]
    Unreadable(serde_json::Error),
}

/// Reads a text of which every reader makes the same.
///
/// # Errors
/// When it is no JSON, or JSON that a guest may refuse or understand differently.
pub fn read_json(text: &str) -> Result<Value, JsonError> {
    match serde_json::from_str(text) {
        Ok(Strict(value)) => Ok(value),
        Err(error) => Err(match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => match checked_json(text) {
                Ok(()) => JsonError::Unreadable(error),
                Err(deep) => JsonError::TooDeep(deep),
            },
            Err(_) => JsonError::Malformed(error),
        }),
    }
}

/// A value without the keys that `Value` itself would let pass: of those given twice it keeps the last, and a
/// struct refuses them.
struct Strict(Value);

/// With such keys `serde_json` tells itself what JSON has no form for; `Value` acts on them also when they come
/// from outside.
const RESERVED: &str = "$serde_json::private::";

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any).map(Self)
    }
}

struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if key.starts_with(RESERVED) {
                return Err(de::Error::custom(format_args!("the key `{key}` is reserved")));
            }
            if object.contains_key(&key) {
                return Err(de::Error::custom(format_args!("the key `{key}` is there twice")));
            }
            let Strict(value) = entries.next_value()?;
            object.insert(key, value);
        }
        Ok(object.into())
    }
}
