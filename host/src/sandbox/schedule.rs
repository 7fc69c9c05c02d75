//! When a workflow starts by itself.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp as Instant, Zoned};
use serde::{Deserialize, Serialize};

use crate::journal::Timestamp;

/// A cron expression in a time zone. A slot is a time at which it fires.
///
/// Five fields. Where a clock is set forward over a slot, a fixed time fires right after the gap and what repeats within
/// the day is left out; where it is set back, a fixed time fires once, the first time.
#[derive(Debug)]
pub struct Schedule {
    pub spec: ScheduleSpec,
    cron: Cron,
    zone: TimeZone,
}

/// As the manifest says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    pub cron: String,
    #[serde(default = "utc")]
    pub time_zone: String,
    #[serde(default)]
    pub catch_up: CatchUp,
}

/// What becomes of slots that passed while no host was there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    /// The last starts a run.
    #[default]
    One,
    /// None does.
    Skip,
    /// Each starts a run.
    All,
}

fn utc() -> String {
    "UTC".into()
}

/// A schedule that cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    #[error("cron expression `{cron}` cannot be read: {error}")]
    Cron { cron: String, error: String },
    #[error("cron expression `{0}` never comes due")]
    Never(String),
    #[error("time zone `{0}` is unknown; write a name of the IANA database, such as `Europe/Berlin`")]
    Zone(String),
}

impl Schedule {
    /// # Errors
    /// When the expression or the time zone is no good, or it would never fire.
    pub fn new(spec: ScheduleSpec) -> Result<Self, ScheduleError> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed);
        let cron = parser
            .build()
            .parse(&spec.cron)
            .map_err(|error| ScheduleError::Cron {
                cron: spec.cron.clone(),
                error: error.to_string(),
            })?;
        // From the database in this program: what the machine has may differ.
        let zone = jiff::tz::TimeZoneDatabase::bundled().get(&spec.time_zone);
        let zone = zone.map_err(|_| ScheduleError::Zone(spec.time_zone.clone()))?;
        let schedule = Self { spec, cron, zone };
        match schedule.after(0) {
            Some(_) => Ok(schedule),
            None => Err(ScheduleError::Never(schedule.spec.cron)),
        }
    }

    /// The first slot after a time.
    pub fn after(&self, at: Timestamp) -> Option<Timestamp> {
        from_zoned(&self.cron.find_next_occurrence(&self.zoned(at)?, false).ok()?)
    }

    /// The last slot up to a time.
    pub fn last_until(&self, at: Timestamp) -> Option<Timestamp> {
        from_zoned(&self.cron.find_previous_occurrence(&self.zoned(at)?, true).ok()?)
    }

    fn zoned(&self, at: Timestamp) -> Option<Zoned> {
        let at = Instant::from_millisecond(i64::try_from(at).ok()?).ok()?;
        Some(at.to_zoned(self.zone.clone()))
    }
}

fn from_zoned(at: &Zoned) -> Option<Timestamp> {
    u64::try_from(at.timestamp().as_millisecond()).ok()
}

/// A slot as people and workflows are told of it: `2030-01-31T08:00:00Z`.
pub fn slot_text(slot: Timestamp) -> String {
    let at = i64::try_from(slot)
        .ok()
        .and_then(|slot| Instant::from_millisecond(slot).ok());
    at.map_or_else(|| slot.to_string(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(cron: &str, time_zone: &str) -> Result<Schedule, ScheduleError> {
        Schedule::new(ScheduleSpec {
            cron: cron.into(),
            time_zone: time_zone.into(),
            catch_up: CatchUp::One,
        })
    }

    fn ms(text: &str) -> Timestamp {
        u64::try_from(text.parse::<Instant>().unwrap().as_millisecond()).unwrap()
    }

    fn slots(cron: &str, from: &str, n: usize) -> Vec<String> {
        let schedule = schedule(cron, "Europe/Berlin").unwrap();
        let slots = std::iter::successors(schedule.after(ms(from)), |at| schedule.after(*at));
        slots.take(n).map(slot_text).collect()
    }

    /// A fixed time of the day is kept on both sides of a change, fires once a day, and moves out of the gap.
    #[test]
    fn e10_daylight_saving() {
        assert_eq!(
            slots("0 9 * * *", "2027-03-27T00:00:00Z", 3),
            [
                "2027-03-27T08:00:00Z",
                "2027-03-28T07:00:00Z",
                "2027-03-29T07:00:00Z"
            ]
        );
        assert_eq!(
            slots("30 2 * * *", "2027-03-27T12:00:00Z", 2),
            ["2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"]
        );
        assert_eq!(
            slots("30 2 * * *", "2027-10-30T12:00:00Z", 2),
            ["2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"]
        );
        assert_eq!(
            slots("0 * * * *", "2027-10-30T23:30:00Z", 3),
            [
                "2027-10-31T00:00:00Z",
                "2027-10-31T01:00:00Z",
                "2027-10-31T02:00:00Z"
            ]
        );
    }

    #[test]
    fn the_last_slot_up_to_a_time() {
        let schedule = schedule("0 9 * * 1-5", "Europe/Berlin").unwrap();
        let friday = ms("2027-01-08T08:00:00Z");
        for at in ["2027-01-08T08:00:00Z", "2027-01-10T12:00:00Z"] {
            assert_eq!(schedule.last_until(ms(at)), Some(friday), "{at}");
        }
    }

    #[test]
    fn e10_what_cannot_be_kept_is_refused() {
        for (cron, zone) in [
            ("", "UTC"),
            ("* * * *", "UTC"),
            ("0 0 9 * * *", "UTC"),
            ("61 9 * * *", "UTC"),
            ("0 0 31 2 *", "UTC"),
            ("0 9 * * *", "Europe/Nowhere"),
            ("0 9 * * *", ""),
        ] {
            assert!(schedule(cron, zone).is_err(), "{cron} {zone}");
        }
    }
}
