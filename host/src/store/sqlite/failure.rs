//! What goes wrong below the trait, and how far it reaches.

use rusqlite::ErrorCode;

use crate::store::StoreError;

/// Why a request was not carried out.
#[derive(Debug)]
pub enum Failure {
    /// A rule, or damage of one run: this request fails, others go on.
    Refused(StoreError),
    Sql(rusqlite::Error),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) => error,
            Failure::Sql(error) => from_sql(&error),
        }
    }
}

fn from_sql(error: &rusqlite::Error) -> StoreError {
    let message = error.to_string();
    match error.sqlite_error_code() {
        // In these two the database refuses for now; what is in it is well.
        Some(ErrorCode::DiskFull) => StoreError::Full(message),
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::CannotOpen
            | ErrorCode::OutOfMemory,
        ) => StoreError::Unavailable(message),
        // The request does not fit the tables.
        Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig) | None => {
            StoreError::Invalid(message)
        }
        Some(_) => StoreError::Fatal(message),
    }
}

/// Whether an error concerns more than the request that met it.
pub fn ends_batch(error: &StoreError) -> bool {
    error.may_retry() || matches!(error, StoreError::Fatal(_))
}
