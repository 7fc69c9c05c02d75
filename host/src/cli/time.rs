//! Moments as people write them on the command line.

use std::time::UNIX_EPOCH;

use crate::journal::Timestamp;

/// A date and time in UTC, a plain date for its midnight, or milliseconds since 1970.
///
/// # Errors
/// What may be written instead.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let midnight = format!("{text}T00:00:00Z");
    let time = humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339(&midnight));
    let since = time.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let at = since.and_then(|since| Timestamp::try_from(since.as_millis()).ok());
    at.ok_or_else(|| {
        "write a time in UTC such as `2030-01-31T08:00:00Z`, or a date such as `2030-01-31` for its midnight"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times_and_dates() {
        let midnight = 1_896_048_000_000;
        for (text, at) in [
            ("2030-01-31", midnight),
            ("2030-01-31T00:00:00Z", midnight),
            ("2030-01-31 00:00:01", midnight + 1_000),
            ("2030-01-31T08:00:00.250Z", midnight + 8 * 3_600_000 + 250),
            ("1896048000000", midnight),
        ] {
            assert_eq!(parse(text), Ok(at), "{text}");
        }
        for text in ["", "monday", "2030-02-31", "2030-01", "08:00", "1969-12-31"] {
            assert!(
                parse(text).is_err_and(|says| says.contains("2030-01-31")),
                "{text}"
            );
        }
    }
}
