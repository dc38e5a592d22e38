//! Wall-clock times as the API shows them.

use coffer_core::Millis;
use jiff::Timestamp;

/// Now, in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> Millis {
    let now = Timestamp::now().as_millisecond();
    #[cfg(test)]
    let now = now + tests::STEP.get();
    now
}

/// RFC 3339 with milliseconds, in UTC.
pub(crate) fn rfc3339(ms: Millis) -> String {
    match Timestamp::from_millisecond(ms) {
        Ok(time) => format!("{time:.3}"),
        // Outside the years that have a date; nothing of ours comes from there.
        Err(_) => format!("{:.3}", Timestamp::UNIX_EPOCH),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    thread_local! {
        /// How far somebody has set the wall clock forward (or back), as this test sees it.
        pub(crate) static STEP: std::cell::Cell<Millis> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn times_have_a_zone_and_milliseconds() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(rfc3339(i64::MAX), "1970-01-01T00:00:00.000Z");
    }
}
