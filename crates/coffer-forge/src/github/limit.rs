//! GitHub's rate limits: how long to wait.

use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use http::{HeaderMap, StatusCode};

/// The wait if GitHub does not say for how long.
const UNTOLD: Duration = Duration::from_secs(60);
/// The longest wait that a forge can impose.
const LONGEST: Duration = Duration::from_secs(2 * 3600);

/// The rate limits of one credential.
#[derive(Debug, Default)]
pub(super) struct Limits {
    until: Mutex<Option<Instant>>,
}

impl Limits {
    /// How long to wait.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let until = (*self.until.lock())?;
        Some(until.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }

    /// Makes requests wait for this long, at most [`LONGEST`].
    pub(super) fn hold(&self, wait: Duration, now: Instant) {
        let mut until = self.until.lock();
        *until = (*until).max(Some(now + wait.min(LONGEST)));
    }
}

/// How long an answer that reports a rate limit wants us to wait: the primary limit by `x-ratelimit-*`, the
/// secondary ones by `retry-after` or text.
pub(super) fn told(status: StatusCode, headers: &HeaderMap, body: &[u8], now_s: i64) -> Option<Duration> {
    if !matches!(status, StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
        return None;
    }
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
    let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds.max(1)).unwrap_or(1)).min(LONGEST);
    if let Some(after) = number("retry-after") {
        return Some(seconds(after));
    }
    if number("x-ratelimit-remaining") == Some(0)
        && let Some(reset) = number("x-ratelimit-reset")
    {
        return Some(seconds(reset - now_s + 1));
    }
    let says = |words: &[u8]| body.windows(words.len()).any(|window| window.eq_ignore_ascii_case(words));
    let much =
        status == StatusCode::TOO_MANY_REQUESTS || says(b"secondary rate limit") || says(b"abuse detection");
    much.then_some(UNTOLD)
}

/// How long to wait if a successful answer was the last one within the limit.
pub(super) fn spent(headers: &HeaderMap, now_s: i64) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<i64>().ok();
    if number("x-ratelimit-remaining")? > 0 {
        return None;
    }
    let left = number("x-ratelimit-reset")? - now_s + 1;
    Some(Duration::from_secs(u64::try_from(left.max(1)).unwrap_or(1)).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<HeaderMap>()
    }

    #[test]
    fn limits_are_told_from_refusals() {
        let (forbidden, many) = (StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS);
        let s = Duration::from_secs;
        let primary = headers(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1030")]);
        assert_eq!(told(forbidden, &primary, b"", 1000), Some(s(31)));
        assert_eq!(told(forbidden, &headers(&[("retry-after", "7")]), b"", 1000), Some(s(7)));
        let body = b"You have exceeded a secondary rate limit.";
        assert_eq!(told(forbidden, &HeaderMap::new(), body, 1000), Some(UNTOLD));
        assert_eq!(told(many, &HeaderMap::new(), b"", 1000), Some(UNTOLD));
        let plenty = headers(&[("x-ratelimit-remaining", "4999"), ("x-ratelimit-reset", "1030")]);
        assert_eq!(told(forbidden, &plenty, b"Resource not accessible by integration", 1000), None);
        assert_eq!(told(StatusCode::OK, &primary, b"", 1000), None);
        assert_eq!(spent(&primary, 1000), Some(s(31)));
        assert_eq!(spent(&plenty, 1000), None);
        // A forge that lies cannot block us for long.
        assert_eq!(told(forbidden, &headers(&[("retry-after", "999999999")]), b"", 1000), Some(LONGEST));
        assert_eq!(told(forbidden, &headers(&[("retry-after", "-5")]), b"", 1000), Some(s(1)));
    }

    #[test]
    fn a_hold_is_never_shortened() {
        let (limits, now) = (Limits::default(), Instant::now());
        assert_eq!(limits.wait(now), None);
        limits.hold(Duration::from_secs(9), now);
        limits.hold(Duration::from_secs(2), now);
        assert_eq!(limits.wait(now), Some(Duration::from_secs(9)));
        assert_eq!(limits.wait(now + Duration::from_secs(9)), None);
    }
}
