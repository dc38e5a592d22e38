//! The wall clock. agentd does not depend on coffer-core, which has one too, to stay small.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the Unix epoch is past; nothing where the clock is set to before it.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
