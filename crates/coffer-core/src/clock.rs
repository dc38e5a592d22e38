//! The wall clock, and formatting of times.

use jiff::Timestamp;

use crate::Millis;

/// Now, in milliseconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
pub fn now_ms() -> Millis {
    let now = Timestamp::now().as_millisecond();
    #[cfg(feature = "test-clock")]
    let now = now + test::STEP.get();
    now
}

/// RFC 3339 with milliseconds, in UTC.
pub fn rfc3339(ms: Millis) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(time) => format!("{time:.3}"),
        // Outside the range of dates; our times never are.
        Err(_) => format!("{:.3}", Timestamp::UNIX_EPOCH),
    }
}

/// For tests of wall clock jumps.
#[cfg(feature = "test-clock")]
pub mod test {
    thread_local! {
        /// How far the clock is set forward (or back), for this thread.
        pub static STEP: std::cell::Cell<crate::Millis> = const { std::cell::Cell::new(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_zone_and_milliseconds() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(rfc3339(i64::MAX), "1970-01-01T00:00:00.000Z");
    }
}
