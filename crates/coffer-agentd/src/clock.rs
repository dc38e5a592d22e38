//! The wall clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since the Unix epoch.
#[expect(
    clippy::disallowed_methods,
    reason = "core's clock would bring a library of calendars into every sandbox"
)]
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
