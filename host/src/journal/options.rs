//! How steps are retried and what a run may use: pinned when first seen.

use serde::{Deserialize, Serialize};

use super::entry::Timestamp;

/// Most further attempts that a step gets, whatever it asks for: each leaves entries in the journal.
pub const MAX_RETRIES: u32 = 10_000;

/// Retries that may come as soon as the step asks for. Later ones wait [`MIN_WAIT_MS`] at least, so that a step
/// that always fails at once does not fill the disk.
const EARLY_RETRIES: u32 = 10;

/// Milliseconds.
const MIN_WAIT_MS: u64 = 1_000;

/// How a step is run. The defaults are part of the journal's format: an entry leaves out what equals them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StepOptions {
    /// Further attempts after the first that failed. A call is pinned with [`MAX_RETRIES`] at most.
    pub retries: u32,
    pub backoff: Backoff,
    /// Milliseconds that one attempt may take.
    pub timeout_ms: u64,
    /// The idempotency key, or in a manifest its template. Made from run and call when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Milliseconds for which whoever is given the key knows it, counted from when the first attempt began: no
    /// attempt begins later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_ttl_ms: Option<u64>,
    /// No second attempt without a person, whatever became of the first: `retries` means nothing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_most_once: bool,
    /// What follows an attempt of which nobody knows whether it took effect.
    #[serde(skip_serializing_if = "Then::is_block")]
    pub on_unknown: Then,
    /// What follows the last attempt, when another could have helped.
    #[serde(skip_serializing_if = "Then::is_fail")]
    pub on_exhausted: Then,
}

/// What follows when no further attempt does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The run is blocked until a person decides.
    Block,
    /// The workflow gets the failure.
    Fail,
}

impl Then {
    fn is_block(&self) -> bool {
        *self == Self::Block
    }

    fn is_fail(&self) -> bool {
        *self == Self::Fail
    }
}

// Factors come from JSON, which has no NaN.
impl Eq for StepOptions {}
impl Eq for Backoff {}

impl Default for StepOptions {
    fn default() -> Self {
        Self {
            retries: 3,
            backoff: Backoff::default(),
            timeout_ms: 5 * 60 * 1000,
            key: None,
            key_ttl_ms: None,
            at_most_once: false,
            on_unknown: Then::Block,
            on_exhausted: Then::Fail,
        }
    }
}

impl StepOptions {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// When to try again after attempt `attempt` (from 1) failed at `now`: as the error asks for (in milliseconds),
    /// else by the backoff, and after the first ten retries a second later at the soonest. `jitter` is any number;
    /// the same number gives the same time.
    pub fn retry_at(&self, now: Timestamp, attempt: u32, retry_after: Option<u64>, jitter: u64) -> Timestamp {
        let wait = retry_after.unwrap_or_else(|| self.backoff.wait(attempt, jitter));
        let soonest = if attempt > EARLY_RETRIES { MIN_WAIT_MS } else { 0 };
        now.saturating_add(wait.max(soonest))
    }

    /// These options with the fields that a call overrides, as they are pinned.
    pub fn with(&self, overrides: &StepOverrides) -> Self {
        let mut options = self.clone();
        if let Some(retries) = overrides.retries {
            options.retries = retries;
        }
        if let Some(timeout_ms) = overrides.timeout_ms {
            options.timeout_ms = timeout_ms;
        }
        if let Some(key) = &overrides.key {
            options.key = Some(key.clone());
        }
        options.key_ttl_ms = overrides.key_ttl_ms.or(options.key_ttl_ms);
        options.at_most_once = overrides.at_most_once.unwrap_or(options.at_most_once);
        options.on_unknown = overrides.on_unknown.unwrap_or(options.on_unknown);
        options.on_exhausted = overrides.on_exhausted.unwrap_or(options.on_exhausted);
        if let Some(backoff) = &overrides.backoff {
            options.backoff.initial_ms = backoff.initial_ms.unwrap_or(options.backoff.initial_ms);
            options.backoff.factor = backoff.factor.unwrap_or(options.backoff.factor);
            options.backoff.max_ms = backoff.max_ms.unwrap_or(options.backoff.max_ms);
        }
        options.retries = options.retries.min(MAX_RETRIES);
        options
    }

    /// Further attempts that follow by themselves.
    pub fn automatic_retries(&self) -> u32 {
        if self.at_most_once { 0 } else { self.retries }
    }

    /// That an attempt began must be known before it begins: what follows depends on it.
    pub fn begins_committed(&self) -> bool {
        self.at_most_once || self.key_ttl_ms.is_some()
    }
}

/// What one call overrides; see `steps.call` in the WIT.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepOverrides {
    pub retries: Option<u32>,
    pub backoff: Option<BackoffOverrides>,
    pub timeout_ms: Option<u64>,
    pub key: Option<String>,
    pub key_ttl_ms: Option<u64>,
    pub at_most_once: Option<bool>,
    pub on_unknown: Option<Then>,
    pub on_exhausted: Option<Then>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackoffOverrides {
    initial_ms: Option<u64>,
    factor: Option<f64>,
    max_ms: Option<u64>,
}

/// Exponential backoff: the delay after the n-th failed attempt is `initial × factor^(n-1)`, at most `max`,
/// then spread by jitter over the upper half of that.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backoff {
    pub initial_ms: u64,
    pub factor: f64,
    pub max_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial_ms: 500,
            factor: 2.0,
            max_ms: 60_000,
        }
    }
}

impl Backoff {
    /// Milliseconds to wait after attempt `attempt` (from 1).
    fn wait(&self, attempt: u32, jitter: u64) -> u64 {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let full = self.initial_ms as f64 * self.factor.max(1.0).powi(exponent);
        // A float that is too large saturates in the cast.
        let full = (full.min(self.max_ms as f64)) as u64;
        let half = full / 2;
        half + jitter % (full - half + 1)
    }
}

/// What a run may use; pinned in entry 0, so that a changed configuration never changes a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wasm instructions (roughly) that workflow code may run between two things that it observes or asks
    /// for.
    pub workflow_fuel: u64,
    /// Bytes of linear memory of the workflow.
    pub workflow_memory: u64,
    /// Wasm instructions (roughly) that one attempt may run.
    pub step_fuel: u64,
    /// Bytes of linear memory of one attempt.
    pub step_memory: u64,
    /// Bytes of one input, result or payload.
    pub body_bytes: u64,
    /// Longest retention that a claim may ask for, in milliseconds.
    #[serde(default = "year")]
    pub max_retention_ms: u64,
}

/// Of runs whose entry 0 does not say.
fn year() -> u64 {
    366 * 24 * 60 * 60 * 1000
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A few seconds of pure computation: far more than orchestration needs, little enough that an
            // endless loop is found soon.
            workflow_fuel: 5_000_000_000,
            workflow_memory: 64 << 20,
            // Wall time is what usually ends an attempt; this ends one that computes for minutes.
            step_fuel: 500_000_000_000,
            step_memory: 64 << 20,
            body_bytes: 1 << 20,
            max_retention_ms: year(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_and_is_capped() {
        let backoff = Backoff {
            initial_ms: 100,
            factor: 2.0,
            max_ms: 1_000,
        };
        for (attempt, full) in [(1, 100), (2, 200), (4, 800), (5, 1_000), (4_000_000_000, 1_000)] {
            for jitter in [0, 1, u64::MAX] {
                let delay = backoff.wait(attempt, jitter);
                assert!((full / 2..=full).contains(&delay), "{attempt}: {delay}");
            }
        }
    }

    #[test]
    fn late_retries_wait_and_are_counted() {
        let overrides: StepOverrides =
            serde_json::from_str(r#"{"retries":4000000000,"backoff":{"initial_ms":0}}"#).unwrap();
        let options = StepOptions::default().with(&overrides);
        assert_eq!(options.retries, MAX_RETRIES);
        for (attempt, retry_after, at) in [
            (1, None, 5),
            (10, None, 5),
            (11, None, 1_005),
            (10, Some(0), 5),
            (11, Some(0), 1_005),
            (11, Some(7_000), 7_005),
        ] {
            assert_eq!(options.retry_at(5, attempt, retry_after, 3), at, "{attempt}");
        }
    }

    #[test]
    fn a_limit_that_an_old_journal_lacks_is_its_default() {
        let mut old = serde_json::to_value(Limits::default()).unwrap();
        old.as_object_mut().unwrap().remove("max_retention_ms");
        assert_eq!(serde_json::from_value::<Limits>(old).unwrap(), Limits::default());
    }

    #[test]
    fn overrides_replace_field_by_field() {
        let overrides: StepOverrides =
            serde_json::from_str(r#"{"retries":9,"backoff":{"max_ms":7},"on_unknown":"fail"}"#).unwrap();
        let options = StepOptions::default().with(&overrides);
        assert_eq!(options.retries, 9);
        assert_eq!(options.backoff.max_ms, 7);
        assert_eq!(options.backoff.initial_ms, 500);
        assert_eq!(
            (options.on_unknown, options.on_exhausted),
            (Then::Fail, Then::Fail)
        );
    }

    #[test]
    fn options_that_are_not_known_are_refused_by_name() {
        for (json, named) in [
            (r#"{"at_most_twice":true}"#, "unknown field `at_most_twice`"),
            (r#"{"on_unknown":"retry"}"#, "unknown variant `retry`"),
        ] {
            let declared = serde_json::from_str::<StepOptions>(json).unwrap_err();
            let overridden = serde_json::from_str::<StepOverrides>(json).unwrap_err();
            for error in [declared, overridden] {
                assert!(error.to_string().contains(named), "{error}");
            }
        }
    }

    #[test]
    fn an_entry_leaves_out_what_is_default() {
        let options = StepOptions {
            at_most_once: true,
            ..StepOptions::default()
        };
        let json = serde_json::to_value(&options).unwrap();
        for (field, written) in [
            ("at_most_once", true),
            ("key_ttl_ms", false),
            ("on_unknown", false),
            ("on_exhausted", false),
        ] {
            assert_eq!(json.get(field).is_some(), written, "{field}");
        }
        assert_eq!(serde_json::from_value::<StepOptions>(json).unwrap(), options);
    }
}
