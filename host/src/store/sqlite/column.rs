//! How values stand in columns.

use std::str::FromStr;

use rusqlite::Row;
use rusqlite::types::{FromSqlError, Type};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ids::Digest;
use crate::journal::Timestamp;
use crate::store::StoreError;
use crate::store::decide::LATEST;

type Result<T> = rusqlite::Result<T>;

fn bad<E>(column: usize, error: E) -> rusqlite::Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
}

/// Text that parses.
pub fn parse<T>(row: &Row<'_>, column: usize) -> Result<T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|error| bad(column, error))
}

pub fn opt_parse<T>(row: &Row<'_>, column: usize) -> Result<Option<T>>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text = row.get_ref(column)?.as_str_or_null()?;
    text.map(str::parse)
        .transpose()
        .map_err(|error| bad(column, error))
}

pub fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    serde_json::from_str(text).map_err(|error| bad(column, error))
}

pub fn opt_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Result<Option<T>> {
    let text = row.get_ref(column)?.as_str_or_null()?;
    text.map(serde_json::from_str)
        .transpose()
        .map_err(|error| bad(column, error))
}

pub fn digest(row: &Row<'_>, column: usize) -> Result<Digest> {
    Ok(opt_digest(row, column)?.ok_or(FromSqlError::InvalidType)?)
}

pub fn opt_digest(row: &Row<'_>, column: usize) -> Result<Option<Digest>> {
    let bytes = row.get_ref(column)?.as_bytes_or_null()?;
    let digest = bytes.map(|bytes| bytes.try_into().map(Digest)).transpose();
    digest.map_err(|error| bad(column, error))
}

/// # Errors
/// When a value inside cannot be JSON: a request that nobody should have sent.
pub fn to_json<T: Serialize>(value: &T) -> std::result::Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Invalid(error.to_string()))
}

/// A time that fits.
pub fn time(at: Timestamp) -> Timestamp {
    at.min(LATEST)
}

/// A row count that fits.
pub fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
