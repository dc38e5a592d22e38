//! Timeouts of sandboxes.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::Millis;

/// The action at a sandbox's deadline.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum OnTimeout {
    /// Destroy it.
    Destroy,
    /// Pause it with its memory.
    Pause,
    /// Pause it and keep only its files.
    PauseFilesOnly,
}

names!(OnTimeout);

/// The bounds an operator sets on every sandbox's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifetimePolicy {
    /// The longest timeout a request may ask for.
    pub longest_timeout_ms: Millis,
    /// The longest that a sandbox may run, whatever is requested.
    pub maximum_ms: Millis,
    /// The idle timeout, if there is one.
    pub idle_ms: Option<Millis>,
}

impl Default for LifetimePolicy {
    fn default() -> Self {
        const HOUR: Millis = 3_600_000;
        Self { longest_timeout_ms: 24 * HOUR, maximum_ms: 24 * HOUR, idle_ms: None }
    }
}

/// A timeout that the policy does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTimeout {
    #[error("timeout must be more than 0 seconds")]
    NotPositive,
    #[error("timeout of {asked_s} seconds is more than the {longest_s} seconds allowed here")]
    TooLong { asked_s: i64, longest_s: i64 },
}

/// The times of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    /// When it first ran.
    pub started_ms: Millis,
    /// When its timeout comes.
    pub deadline_ms: Millis,
    /// The action then.
    pub on_timeout: OnTimeout,
}

impl LifetimePolicy {
    /// Checks a timeout that a request asks for, and returns it in milliseconds.
    pub fn check(&self, asked_s: i64) -> Result<Millis, BadTimeout> {
        if asked_s <= 0 {
            return Err(BadTimeout::NotPositive);
        }
        match asked_s.checked_mul(1000) {
            Some(ms) if ms <= self.longest_timeout_ms => Ok(ms),
            _ => Err(BadTimeout::TooLong { asked_s, longest_s: self.longest_timeout_ms / 1000 }),
        }
    }

    /// The deadline `timeout_ms` from now, cut to the maximum lifetime.
    pub fn deadline(&self, started_ms: Millis, now_ms: Millis, timeout_ms: Millis) -> Millis {
        let asked = now_ms.saturating_add(timeout_ms.max(0));
        asked.min(started_ms.saturating_add(self.maximum_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_deadline_passes_the_maximum(started in 0..1i64 << 50, later in 0..1i64 << 40, timeout: i64) {
            let policy = LifetimePolicy::default();
            let deadline = policy.deadline(started, started + later, timeout);
            prop_assert!(deadline <= started + policy.maximum_ms);
        }

        #[test]
        fn what_passes_the_check_is_within_bounds(asked: i64) {
            let policy = LifetimePolicy::default();
            if let Ok(ms) = policy.check(asked) {
                prop_assert!(ms > 0 && ms <= policy.longest_timeout_ms);
            }
        }
    }

    #[test]
    fn a_refused_timeout_says_what_is_allowed() {
        let policy = LifetimePolicy::default();
        assert_eq!(policy.check(0), Err(BadTimeout::NotPositive));
        assert_eq!(
            policy.check(100_000).unwrap_err().to_string(),
            "timeout of 100000 seconds is more than the 86400 seconds allowed here"
        );
    }
}
