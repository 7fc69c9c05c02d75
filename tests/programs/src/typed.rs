//! Values of many types: what the host lets through must be readable here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroI8, NonZeroU64};
use std::ops::Range;

use onemark_sdk::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One value; the name of the variant is its type.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Typed {
    Bool(bool),
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    U128(u128),
    Usize(usize),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    I128(i128),
    Isize(isize),
    NonZeroU64(NonZeroU64),
    NonZeroI8(NonZeroI8),
    F32(f32),
    F64(f64),
    Char(char),
    Text(String),
    Nothing(()),
    Option(Option<u8>),
    List(Vec<u8>),
    Array([u8; 2]),
    Tuple(u8, String),
    Set(BTreeSet<u8>),
    Map(BTreeMap<String, u8>),
    ByCharacter(BTreeMap<char, bool>),
    Newtype(Newtype),
    Fields { a: u8, b: Option<u8> },
    Strict(Strict),
    Flattened(Flattened),
    Unit(Unit),
    Tagged(Tagged),
    Adjacent(Adjacent),
    Untagged(Untagged),
    Outcome(Result<u8, String>),
    Range(Range<u8>),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Ip(IpAddr),
    Any(Value),
    ByNumber(BTreeMap<u8, u8>),
    Duration(Duration),
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Newtype(i16);

#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Strict {
    a: u8,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Flattened {
    a: u8,
    #[serde(flatten)]
    more: BTreeMap<String, u16>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub enum Unit {
    A,
    B,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
pub enum Tagged {
    A { a: u8 },
    B { b: i64 },
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "a")]
pub enum Adjacent {
    A(u8),
    B(f64),
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Untagged {
    Byte(u8),
    Text(String),
    Fields { a: u64 },
}

/// Returns what it was given.
#[workflow]
async fn reads_typed(value: Typed) -> WorkflowResult<Typed> {
    Ok(value)
}

/// Reads payloads until there are no more; how many there were.
#[workflow(token = "typed:{id}", hook = Option<Typed>)]
async fn reads_typed_payloads(id: String) -> WorkflowResult<u64> {
    let _ = id;
    let mut read = 0;
    let mut payloads = start_hook::<Option<Typed>>()?;
    while let Some(Some(_)) = payloads.next().await? {
        read += 1;
    }
    Ok(read)
}
