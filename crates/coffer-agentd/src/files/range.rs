//! Range and conditional requests.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, StatusCode, header};

/// Identifies one state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) size: u64,
    pub(super) modified: SystemTime,
    pub(super) tag: String,
}

/// The last second of the year 9999; HTTP's dates go no further.
const LAST_DATE: Duration = Duration::from_secs(253_402_300_799);

impl Version {
    /// A file's time can be set to anything; dates that HTTP cannot express are clamped.
    pub(super) fn new(size: u64, modified: SystemTime) -> Self {
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let modified = SystemTime::UNIX_EPOCH + since.min(LAST_DATE);
        Self { size, modified, tag: format!("\"{:x}-{size:x}\"", since.as_nanos()) }
    }

    /// HTTP dates have a resolution of seconds.
    fn unchanged_since(&self, date: SystemTime) -> bool {
        self.modified < date + Duration::from_secs(1)
    }

    fn named_in(&self, tags: &str) -> bool {
        tags.split(',')
            .map(|tag| tag.trim().trim_start_matches("W/"))
            .any(|tag| tag == "*" || tag == self.tag)
    }
}

/// The part of the file to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    /// From the first byte to before the second.
    Bytes(u64, u64),
    /// Nothing, with this status.
    None(StatusCode),
}

/// Whether a request asks for anything but the whole current file.
pub(super) fn is_special(headers: &HeaderMap) -> bool {
    [
        header::RANGE,
        header::IF_RANGE,
        header::IF_MATCH,
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_UNMODIFIED_SINCE,
    ]
    .iter()
    .any(|name| headers.contains_key(name))
}

/// Evaluates conditions first and the range then, as RFC 9110 orders them.
pub(super) fn select(headers: &HeaderMap, version: &Version) -> Part {
    let value = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let date = |name| value(name).and_then(|text| httpdate::parse_http_date(text).ok());

    let changed = match value(header::IF_MATCH) {
        Some(tags) => !version.named_in(tags),
        None => date(header::IF_UNMODIFIED_SINCE).is_some_and(|since| !version.unchanged_since(since)),
    };
    if changed {
        return Part::None(StatusCode::PRECONDITION_FAILED);
    }
    let unchanged = match value(header::IF_NONE_MATCH) {
        Some(tags) => version.named_in(tags),
        None => date(header::IF_MODIFIED_SINCE).is_some_and(|since| version.unchanged_since(since)),
    };
    if unchanged {
        return Part::None(StatusCode::NOT_MODIFIED);
    }
    let Some(range) = value(header::RANGE) else {
        return Part::All;
    };
    let still_that = value(header::IF_RANGE).is_none_or(|condition| {
        condition == version.tag
            || httpdate::parse_http_date(condition).is_ok_and(|since| version.unchanged_since(since))
    });
    if still_that { parse(range, version.size) } else { Part::All }
}

/// One range; for several, or another unit, the whole file may be sent.
fn parse(range: &str, size: u64) -> Part {
    let Some(spec) = range.strip_prefix("bytes=").map(str::trim) else {
        return Part::All;
    };
    let Some((first, last)) = spec.split_once('-').filter(|_| !spec.contains(',')) else {
        return Part::All;
    };
    let bounds = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.trim().is_empty() => (first, size),
        (Err(_), Ok(suffix)) if first.trim().is_empty() && suffix > 0 => (size.saturating_sub(suffix), size),
        _ => return Part::None(StatusCode::RANGE_NOT_SATISFIABLE),
    };
    match bounds {
        (first, end) if first < end => Part::Bytes(first, end),
        _ => Part::None(StatusCode::RANGE_NOT_SATISFIABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> Version {
        Version::new(100, SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_500))
    }

    fn ask(pairs: &[(HeaderName, &str)]) -> Part {
        let headers = pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        select(&headers, &version())
    }

    #[test]
    fn ranges_follow_the_rules() {
        let unsatisfiable = Part::None(StatusCode::RANGE_NOT_SATISFIABLE);
        let cases = [
            ("bytes=0-9", Part::Bytes(0, 10)),
            ("bytes=90-", Part::Bytes(90, 100)),
            ("bytes=-10", Part::Bytes(90, 100)),
            ("bytes=-1000", Part::Bytes(0, 100)),
            ("bytes=50-1000", Part::Bytes(50, 100)),
            ("bytes=100-", unsatisfiable),
            ("bytes=9-3", unsatisfiable),
            ("bytes=-0", unsatisfiable),
            ("bytes=x-", unsatisfiable),
            ("bytes=0-1,4-5", Part::All),
            ("lines=1-2", Part::All),
        ];
        for (range, expected) in cases {
            assert_eq!(ask(&[(header::RANGE, range)]), expected, "{range}");
        }
    }

    /// Formatting such a date once ended the connection without an answer.
    #[test]
    fn a_file_from_before_or_after_all_dates_has_one() {
        let epoch = SystemTime::UNIX_EPOCH;
        let early = Version::new(1, epoch - Duration::from_secs(86_400));
        assert_eq!(httpdate::fmt_http_date(early.modified), "Thu, 01 Jan 1970 00:00:00 GMT");
        let late = Version::new(1, epoch + Duration::from_secs(300_000_000_000));
        assert_eq!(httpdate::fmt_http_date(late.modified), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn conditions_come_before_ranges() {
        let same = "Thu, 01 Jan 1970 00:16:40 GMT";
        let earlier = "Thu, 01 Jan 1970 00:16:39 GMT";
        let not_modified = Part::None(StatusCode::NOT_MODIFIED);
        let failed = Part::None(StatusCode::PRECONDITION_FAILED);
        let tag = version().tag;
        let cases: [(&[(HeaderName, &str)], Part); 8] = [
            (&[(header::IF_MODIFIED_SINCE, same)], not_modified),
            (&[(header::IF_MODIFIED_SINCE, earlier)], Part::All),
            (&[(header::IF_UNMODIFIED_SINCE, earlier)], failed),
            (&[(header::IF_NONE_MATCH, &tag)], not_modified),
            (&[(header::IF_NONE_MATCH, "\"x\""), (header::IF_MODIFIED_SINCE, same)], Part::All),
            (&[(header::IF_MATCH, "\"x\"")], failed),
            (&[(header::RANGE, "bytes=0-1"), (header::IF_RANGE, &tag)], Part::Bytes(0, 2)),
            (&[(header::RANGE, "bytes=0-1"), (header::IF_RANGE, earlier)], Part::All),
        ];
        for (pairs, expected) in cases {
            assert_eq!(ask(pairs), expected, "{pairs:?}");
        }
    }
}
