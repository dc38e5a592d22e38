//! When a schedule starts its task: five fields of cron, in a time zone.
//!
//! A clock that is set forward or back starts nothing twice and skips nothing: a time that does not exist is taken as much
//! later, of a time that exists twice the first counts. Schedules of every hour go by the time that passes.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::{AgentId, Millis, Priority};

/// How far to look for a day: 29 February on a certain weekday is rare.
const FARTHEST_DAYS: i32 = 366 * 30;
/// Longer than any clock is set back.
const FOLD_MINUTES: i64 = 180;
const LONGEST: usize = 200;
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// What a schedule does while its last task is open.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Overlap {
    /// Nothing, until that one is done, cancelled or archived.
    #[default]
    Skip,
    /// It starts another.
    Start,
}

names!(Overlap);

/// The task that a schedule creates and starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskTemplate {
    pub title: String,
    pub description: String,
    pub priority: Option<Priority>,
    pub labels: Vec<String>,
    pub repository: Option<String>,
    pub base_branch: Option<String>,
    pub agent: Option<AgentId>,
    pub model: Option<String>,
    pub check_command: Option<String>,
    pub check_tries: Option<i64>,
    pub budget_nanos: Option<i64>,
    pub context_id: Option<String>,
}

impl TaskTemplate {
    /// The template at a time: `{{date}}` is that day in the zone.
    #[must_use]
    pub fn at(&self, ms: Millis, zone: &str) -> Self {
        let zone = time_zone(zone).unwrap_or(TimeZone::UTC);
        let date = zone.to_datetime(Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH)).date();
        let filled = |text: &str| text.replace("{{date}}", &date.to_string());
        Self { title: filled(&self.title), description: filled(&self.description), ..self.clone() }
    }
}

/// Why a schedule cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSchedule {
    #[error(
        "must have five fields (minute, hour, day, month, weekday), or be one of @hourly, @daily, @weekly, @monthly"
    )]
    Fields,
    #[error(
        "has `{text}` for the {field}, which must be {from} to {to}, `*`, a list or a range, with or without `/step`"
    )]
    Field { field: &'static str, text: String, from: u8, to: u8 },
    #[error("names a time that never comes")]
    Never,
    #[error("`{0}` is not a time zone that this server knows, such as Europe/Berlin or UTC")]
    Zone(String),
}

/// Five fields of cron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether days and weekdays are restricted: if both are, one of them suffices.
    has_days: bool,
    has_weekdays: bool,
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A field: its values as bits.
fn field(
    name: &'static str,
    text: &str,
    (from, to): (u8, u8),
    names: &[&str],
    first_name: u8,
) -> Result<u64, BadSchedule> {
    let bad = || BadSchedule::Field { field: name, text: text.chars().take(40).collect(), from, to };
    let value = |word: &str| -> Option<u8> {
        let named = names.iter().position(|known| word.eq_ignore_ascii_case(known));
        let value = match named {
            Some(at) => u8::try_from(at).ok()? + first_name,
            None if word.len() <= 2 && word.bytes().all(|letter| letter.is_ascii_digit()) => {
                word.parse().ok()?
            }
            None => return None,
        };
        (from..=to).contains(&value).then_some(value)
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                (range, Some(step.parse::<u8>().ok().filter(|step| *step > 0).ok_or_else(bad)?))
            }
            None => (part, None),
        };
        let (first, last) = match (range, range.split_once('-')) {
            ("*", _) => (from, to),
            (_, Some((first, last))) => (value(first).ok_or_else(bad)?, value(last).ok_or_else(bad)?),
            (_, None) => {
                let only = value(range).ok_or_else(bad)?;
                // `5/10` is from 5 on.
                (only, if step.is_some() { to } else { only })
            }
        };
        if first > last {
            return Err(bad());
        }
        for value in (first..=last).step_by(usize::from(step.unwrap_or(1))) {
            bits |= 1 << value;
        }
    }
    Ok(bits)
}

impl FromStr for Cron {
    type Err = BadSchedule;

    fn from_str(text: &str) -> Result<Self, BadSchedule> {
        let text = text.trim();
        let plain = match text.to_ascii_lowercase().as_str() {
            "@hourly" => "0 * * * *".to_string(),
            "@daily" | "@midnight" => "0 0 * * *".to_string(),
            "@weekly" => "0 0 * * 0".to_string(),
            "@monthly" => "0 0 1 * *".to_string(),
            other => other.to_string(),
        };
        let fields: Vec<&str> = plain.split_ascii_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else { return Err(BadSchedule::Fields) };
        if text.len() > LONGEST {
            return Err(BadSchedule::Fields);
        }
        // Sunday is 0 and 7.
        let of_week = field("weekday", weekdays, (0, 7), &WEEKDAYS, 0)?;
        let cron = Self {
            text: text.to_string(),
            minutes: field("minute", minutes, (0, 59), &[], 0)?,
            hours: field("hour", hours, (0, 23), &[], 0)?,
            days: field("day", days, (1, 31), &[], 0)?,
            months: field("month", months, (1, 12), &MONTHS, 1)?,
            weekdays: (of_week | (of_week >> 7)) & 0x7f,
            has_days: !days.starts_with('*'),
            has_weekdays: !weekdays.starts_with('*'),
        };
        // In a zone without changes, so that it is not the zone's fault.
        cron.next_after(0, &TimeZone::UTC).map(|_| cron).ok_or(BadSchedule::Never)
    }
}

const fn has(bits: u64, value: i8) -> bool {
    bits & (1 << value) != 0
}

impl Cron {
    fn fits_day(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        let fits = match (self.has_days, self.has_weekdays) {
            (true, true) => day || weekday,
            _ => day && weekday,
        };
        fits && has(self.months, date.month())
    }

    fn fits(&self, time: DateTime) -> bool {
        self.fits_day(time.date()) && has(self.hours, time.hour()) && has(self.minutes, time.minute())
    }

    /// The first time after `after`, both in milliseconds since the Unix epoch.
    pub fn next_after(&self, after: Millis, zone: &TimeZone) -> Option<Millis> {
        let after = Timestamp::from_millisecond(after).ok()?;
        let local = zone.to_datetime(after);
        if self.hours == (1 << 24) - 1
            && let Some(soon) = self.soon_after(after, zone)
        {
            return Some(soon.as_millisecond());
        }
        let mut date = local.date();
        for _ in 0..FARTHEST_DAYS {
            if self.fits_day(date) {
                for hour in (0..24).filter(|hour| has(self.hours, *hour)) {
                    for minute in (0..60).filter(|minute| has(self.minutes, *minute)) {
                        let at = date.at(hour, minute, 0, 0);
                        // A time that is skipped is as much later; of one that comes twice the first counts.
                        let time = zone.to_ambiguous_timestamp(at).compatible().ok()?;
                        if at > local && time > after {
                            return Some(time.as_millisecond());
                        }
                    }
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// The first time within the next hours, by the minutes that really pass.
    fn soon_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let minute = after.as_second().div_euclid(60);
        (1..=FOLD_MINUTES).find_map(|ahead| {
            let at = Timestamp::from_second((minute + ahead) * 60).ok()?;
            self.fits(zone.to_datetime(at)).then_some(at)
        })
    }
}

/// The time zone of this name.
pub fn time_zone(name: &str) -> Result<TimeZone, BadSchedule> {
    let bad = || BadSchedule::Zone(name.chars().take(60).collect());
    let is_plain = name.len() <= 60
        && name.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"/_+-".contains(&letter));
    if !is_plain {
        return Err(bad());
    }
    TimeZone::get(name).map_err(|_| bad())
}

/// The first start of a schedule after a time.
pub fn next_start(cron: &str, zone: &str, after: Millis) -> Result<Option<Millis>, BadSchedule> {
    let (cron, zone) = (cron.parse::<Cron>()?, time_zone(zone)?);
    Ok(cron.next_after(after, &zone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(text: &str) -> Millis {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    /// The next times of a schedule.
    fn preview(cron: &Cron, zone: &TimeZone, mut after: Millis, count: usize) -> Vec<Millis> {
        let mut times = Vec::new();
        while times.len() < count
            && let Some(next) = cron.next_after(after, zone)
        {
            times.push(next);
            after = next;
        }
        times
    }

    /// The times after `after`, in UTC.
    fn times(cron: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let (cron, zone) = (cron.parse::<Cron>().unwrap(), time_zone(zone).unwrap());
        let times = preview(&cron, &zone, ms(after), count);
        times.into_iter().map(|time| Timestamp::from_millisecond(time).unwrap().to_string()).collect()
    }

    #[test]
    fn fields_are_as_everywhere() {
        for (cron, after, next) in [
            ("0 9 * * mon-fri", "2026-11-20T09:00:00Z", "2026-11-23T09:00:00Z"),
            ("*/20 * * * *", "2026-11-20T09:41:00Z", "2026-11-20T10:00:00Z"),
            ("5/10 8 * * *", "2026-11-20T08:06:00Z", "2026-11-20T08:15:00Z"),
            ("30 4 1,15 * *", "2026-11-01T04:30:00Z", "2026-11-15T04:30:00Z"),
            // Days or weekdays, if both are restricted.
            ("0 0 13 * fri", "2026-11-12T12:00:00Z", "2026-11-13T00:00:00Z"),
            ("0 0 13 * 5", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"),
            ("0 0 * * 7", "2026-11-20T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("0 0 29 feb *", "2026-11-20T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("@weekly", "2026-11-20T00:00:00Z", "2026-11-22T00:00:00Z"),
            ("@hourly", "2026-11-20T00:59:59.999Z", "2026-11-20T01:00:00Z"),
        ] {
            assert_eq!(times(cron, "UTC", after, 1), [next], "{cron}");
        }
    }

    #[test]
    fn what_is_none_is_refused_with_the_field() {
        for (text, told) in [
            ("", "must have five fields"),
            ("* * * *", "must have five fields"),
            ("60 * * * *", "`60` for the minute"),
            ("* 24 * * *", "`24` for the hour"),
            ("* * 0 * *", "`0` for the day"),
            ("* * * foo *", "`foo` for the month"),
            ("*/0 * * * *", "`*/0` for the minute"),
            ("5-1 * * * *", "`5-1` for the minute"),
            ("1,,2 * * * *", "for the minute"),
            ("+1 * * * *", "for the minute"),
            ("0 0 31 feb *", "never comes"),
        ] {
            let error = text.parse::<Cron>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        for zone in ["Mars/Base", "../etc/passwd", "", "Europe/Berlin; x"] {
            assert!(time_zone(zone).is_err(), "{zone}");
        }
    }

    #[test]
    fn a_clock_set_forward_skips_nothing() {
        // In Berlin, 02:00 is 03:00 on 29 March 2026.
        let daily = times("30 2 * * *", "Europe/Berlin", "2026-03-28T02:00:00Z", 2);
        assert_eq!(daily, ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"]);
        let hourly = times("0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00Z", 4);
        assert_eq!(
            hourly,
            ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z", "2026-03-29T03:00:00Z"]
        );
    }

    #[test]
    fn a_clock_set_back_starts_once_a_day_and_every_hour() {
        // In Berlin, 03:00 is 02:00 again on 25 October 2026.
        let daily = times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 2);
        assert_eq!(daily, ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        let quarters = times("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45:00Z", 5);
        assert_eq!(
            quarters,
            [
                "2026-10-25T00:00:00Z",
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T02:00:00Z"
            ]
        );
    }

    #[test]
    fn the_date_is_that_of_the_zone() {
        let template = TaskTemplate { title: "Report of {{date}}".into(), ..TaskTemplate::default() };
        assert_eq!(template.at(ms("2026-11-19T15:00:00Z"), "Asia/Tokyo").title, "Report of 2026-11-20");
    }

    proptest! {
        /// Whatever the zone does, times only go forward, and each fits unless its local time does not exist.
        #[test]
        fn times_go_forward(
            minute in 0..60u8, hour in prop::option::of(0..24u8), start in 0..2_000_000_000i64,
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
        ) {
            let hour = hour.map_or("*".to_string(), |hour| hour.to_string());
            let cron: Cron = format!("{minute} {hour} * * *").parse().unwrap();
            let zone = time_zone(zone).unwrap();
            let mut after = start * 1000;
            for time in preview(&cron, &zone, after, 20) {
                prop_assert!(time > after);
                prop_assert!(time - after <= 50 * 3_600_000);
                after = time;
            }
        }

        #[test]
        fn nothing_panics(text in ".{0,40}") {
            let _ = text.parse::<Cron>();
        }
    }
}
