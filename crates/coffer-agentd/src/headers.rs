//! Request headers that change how a call runs.

use std::time::Duration;

use http::HeaderMap;

use crate::connect::RpcError;

/// How often a stream without data sends a keepalive, unless the client asks otherwise.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// `connect-timeout-ms`; absent or zero means no timeout.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, RpcError> {
    let Some(value) = headers.get("connect-timeout-ms") else {
        return Ok(None);
    };
    let millis: u64 = value
        .to_str()
        .ok()
        // The protocol allows ten digits, which is more than a hundred days.
        .filter(|text| text.len() <= 10)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| RpcError::invalid("connect-timeout-ms is not a number of milliseconds"))?;
    Ok((millis > 0).then(|| Duration::from_millis(millis)))
}

/// `Keepalive-Ping-Interval` in seconds.
pub(crate) fn keepalive(headers: &HeaderMap) -> Duration {
    headers
        .get("keepalive-ping-interval")
        .and_then(|value| value.to_str().ok()?.parse().ok())
        .filter(|seconds| (1..=86_400).contains(seconds))
        .map_or(KEEPALIVE, Duration::from_secs)
}
