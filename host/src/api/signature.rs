//! Whether a request comes from whom it says: the forms in which services sign.

use axum::http::HeaderMap;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::ids::Digest;
use crate::journal::Timestamp;
use crate::sandbox::SignatureForm;

/// How far the time in a signature may be from the host's, in seconds.
const TOLERANCE_S: u64 = 300;

/// Whether one of the signatures of a request is made with the secret, not long ago. Takes as long for a wrong
/// signature as for a right one.
pub fn is_signed(
    form: SignatureForm,
    secret: &[u8],
    headers: &HeaderMap,
    body: &[u8],
    now: Timestamp,
) -> bool {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    match form {
        SignatureForm::Github => {
            let signature = header("x-hub-signature-256").and_then(|text| text.strip_prefix("sha256="));
            signature.is_some_and(|signature| fits(secret, &[body], signature))
        }
        SignatureForm::Hmac => {
            let Some(signature) = header("x-signature") else {
                return false;
            };
            let signature = signature.strip_prefix("sha256=").unwrap_or(signature);
            match headers.contains_key("x-signature-timestamp") {
                false => fits(secret, &[body], signature),
                true => header("x-signature-timestamp").is_some_and(|time| {
                    is_recent(time, now) && fits(secret, &[time.as_bytes(), b".", body], signature)
                }),
            }
        }
        SignatureForm::Stripe => {
            let fields = || {
                let text = header("stripe-signature").unwrap_or_default();
                text.split(',').filter_map(|field| field.trim().split_once('='))
            };
            let Some((_, time)) = fields().find(|(name, _)| *name == "t") else {
                return false;
            };
            // Several while its secret is being changed.
            let mut signatures = fields().filter(|(name, _)| *name == "v1");
            is_recent(time, now)
                && signatures.any(|(_, signature)| fits(secret, &[time.as_bytes(), b".", body], signature))
        }
    }
}

/// `time` is in seconds since 1970.
fn is_recent(time: &str, now: Timestamp) -> bool {
    let time = time.parse::<u64>();
    time.is_ok_and(|time| time.abs_diff(now / 1_000) <= TOLERANCE_S)
}

fn fits(secret: &[u8], parts: &[&[u8]], signature: &str) -> bool {
    let Ok(signature) = signature.parse::<Digest>() else {
        return false;
    };
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret) else {
        return false;
    };
    parts.iter().for_each(|part| mac.update(part));
    mac.verify_slice(&signature.0).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of GitHub's documentation.
    #[test]
    fn e11_githubs_own_example() {
        let mut headers = HeaderMap::new();
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        headers.insert("x-hub-signature-256", signature.parse().unwrap());
        let signed = |secret: &[u8], body: &[u8]| is_signed(SignatureForm::Github, secret, &headers, body, 0);
        assert!(signed(b"It's a Secret to Everybody", b"Hello, World!"));
        assert!(!signed(b"It's a Secret to Everybody", b"Hello, World?"));
        assert!(!signed(b"another", b"Hello, World!"));
    }
}
