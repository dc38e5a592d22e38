//! Values in settings: `"1h 30m"`, `"2GiB"`, and secret text.
//!
//! ```
//! # use coffer_core::settings::{ByteSize, Period};
//! let window: Period = "1h 30m".parse().unwrap();
//! assert_eq!(window.as_secs(), 5400);
//! assert_eq!("2 GiB".parse(), Ok(ByteSize::mib(2048)));
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::{Span, SpanRelativeTo};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A length of time: `"30s"`, `"1h 30m"`, `"7d"`, `"250ms"`, or anything else that jiff reads as a span, such as
/// `"90 minutes"` or `"PT30M"`. A number without a unit is refused, because its meaning would be a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Period(Duration);

/// A number of bytes: `"2GiB"`, `"512 MB"`, or a plain number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

/// Text that is never shown: `Debug` and serialisation mask it, [`reveal`](Self::reveal) is easy to find in
/// review.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct SecretText(String);

/// Invalid text for this kind of value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct BadValue {
    text: String,
    expected: &'static str,
}

/// The units in which periods are shown.
const PERIODS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const A_PERIOD: &str = "a duration such as `30s`, `1h 30m` or `7d`";

const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("B", 1),
];
const A_SIZE: &str = "a size such as `512MiB` or `2GB`";

impl Period {
    pub const fn secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub const fn millis(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }

    pub const fn hours(hours: u64) -> Self {
        Self::secs(hours * 3600)
    }

    pub const fn days(days: u64) -> Self {
        Self::hours(days * 24)
    }

    pub const fn as_secs(self) -> u64 {
        self.0.as_secs()
    }

    /// In milliseconds, saturating.
    pub fn as_millis(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }

    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl From<Duration> for Period {
    fn from(duration: Duration) -> Self {
        Self(duration)
    }
}

impl From<Period> for Duration {
    fn from(period: Period) -> Self {
        period.0
    }
}

impl FromStr for Period {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue { text: text.into(), expected: A_PERIOD };
        let span: Span = text.trim().parse().map_err(|_| bad())?;
        // A setting has no calendar: days are 24 hours, and months and years have no length.
        let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| bad())?;
        let length = Duration::try_from(length).map_err(|_| bad())?;
        // Refuse parts that are shorter than the shown units, because they would be shown as another value.
        if length.subsec_nanos() % 1_000_000 != 0 {
            return Err(bad());
        }
        Ok(Self(length))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if left == 0 {
            return f.write_str("0s");
        }
        // Use hours up to two days: people write `24h`.
        let units = if left <= 172_800_000 { &PERIODS[1..] } else { &PERIODS[..] };
        let mut first = true;
        for (name, each) in units {
            let count = left / each;
            if count > 0 {
                write!(f, "{}{count}{name}", if first { "" } else { " " })?;
                first = false;
            }
            left %= each;
        }
        Ok(())
    }
}

impl ByteSize {
    pub const fn bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    pub const fn kib(kib: u64) -> Self {
        Self(kib << 10)
    }

    pub const fn mib(mib: u64) -> Self {
        Self(mib << 20)
    }

    pub const fn gib(gib: u64) -> Self {
        Self(gib << 30)
    }

    pub const fn as_bytes(self) -> u64 {
        self.0
    }

    /// Whole MiB.
    pub const fn as_mib(self) -> u64 {
        self.0 >> 20
    }
}

impl FromStr for ByteSize {
    type Err = BadValue;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "fractions of a unit are rounded to a byte, and the cast saturates"
    )]
    fn from_str(text: &str) -> Result<Self, BadValue> {
        let bad = || BadValue { text: text.into(), expected: A_SIZE };
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let unit = unit.trim_start();
        let same = |name: &str| unit.eq_ignore_ascii_case(name) || unit.eq_ignore_ascii_case(&name[..1]);
        // A bare letter is the binary unit, which comes first in the list.
        let each =
            if unit.is_empty() { 1 } else { SIZES.iter().find(|(name, _)| same(name)).ok_or_else(bad)?.1 };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(each).map(Self).ok_or_else(bad);
        }
        let fraction: f64 = number.parse().map_err(|_| bad())?;
        Ok(Self((fraction * each as f64) as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |each: u64| self.0 >= each && self.0.is_multiple_of(each);
        let (name, each) = SIZES[..4].iter().find(|(_, each)| fits(*each)).unwrap_or(&SIZES[8]);
        write!(f, "{}{name}", self.0 / each)
    }
}

impl SecretText {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// The mask of secrets.
pub const MASK: &str = "********";

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for SecretText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

impl<'de> Deserialize<'de> for SecretText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = Period;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(A_PERIOD)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Written)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl Visitor<'_> for Written {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(A_SIZE)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(bytes))
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                u64::try_from(bytes)
                    .map(ByteSize)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(bytes), &self))
            }
        }
        deserializer.deserialize_any(Written)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{ByteSize, Period, SecretText};

    /// Each is text, with its own format.
    macro_rules! text {
        ($($kind:ty: $name:literal, $format:literal;)*) => {$(
            impl JsonSchema for $kind {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    $name.into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!({ "type": "string", "format": $format })
                }
            }
        )*};
    }

    text! {
        Period: "Period", "period";
        ByteSize: "ByteSize", "size";
        SecretText: "SecretText", "secret";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_read_and_written_as_people_do() {
        for (text, ms, shown) in [
            ("30s", 30_000, "30s"),
            ("30 s", 30_000, "30s"),
            ("1h30m", 5_400_000, "1h 30m"),
            ("1h 30m", 5_400_000, "1h 30m"),
            ("90m", 5_400_000, "1h 30m"),
            ("24h", 86_400_000, "24h"),
            ("7d", 604_800_000, "7d"),
            ("1w", 604_800_000, "7d"),
            ("1w 2d 3h 4m 5s 6ms", 788_645_006, "9d 3h 4m 5s 6ms"),
            (" 2 h 5 m ", 7_500_000, "2h 5m"),
            ("1000d", 86_400_000_000, "1000d"),
            ("1.5h", 5_400_000, "1h 30m"),
            ("90 minutes", 5_400_000, "1h 30m"),
            ("PT30M", 1_800_000, "30m"),
            ("250ms", 250, "250ms"),
            ("0s", 0, "0s"),
        ] {
            let period: Period = text.parse().unwrap();
            assert_eq!((period.as_millis(), period.to_string().as_str()), (ms, shown), "{text}");
            assert_eq!(period.to_string().parse(), Ok(period));
        }
        for bad in [
            "",
            "30",
            "s",
            "-1h",
            "1 hour ago",
            "1h,",
            "99999999999999999999s",
            "1y",
            "1mo",
            "10us",
            "1.0005s",
            "30m 1h",
            "1h 1h",
        ] {
            assert!(bad.parse::<Period>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_read_and_written_as_people_do() {
        for (text, bytes, shown) in [
            ("2GiB", 2 << 30, "2GiB"),
            ("2 GiB", 2 << 30, "2GiB"),
            ("2g", 2 << 30, "2GiB"),
            ("512mb", 512_000_000, "500000KiB"),
            ("1.5GiB", 3 << 29, "1536MiB"),
            ("100", 100, "100B"),
            ("100B", 100, "100B"),
            ("0", 0, "0B"),
        ] {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.as_bytes(), size.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(size.to_string().parse(), Ok(size));
        }
        for bad in ["", "GiB", "-1", "1.2.3GiB", "2GiBi", "much", "99999999999TiB"] {
            assert!(bad.parse::<ByteSize>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_secrets_are_not() {
        let wrong = serde_json::from_str::<Period>("30").unwrap_err().to_string();
        assert!(wrong.contains("integer `30`, expected a duration such as"), "{wrong}");
        let wrong = serde_json::from_str::<ByteSize>("\"much\"").unwrap_err().to_string();
        assert!(wrong.contains("`much` is not a size such as"), "{wrong}");
        let secret: SecretText = serde_json::from_str("\"hunter2\"").unwrap();
        assert_eq!(secret.reveal(), "hunter2");
        assert_eq!(format!("{secret:?}{}", serde_json::to_string(&secret).unwrap()), "********\"********\"");
    }
}
