//! An operator's settings of webhooks.

use std::time::Duration;

use coffer_core::Millis;
use coffer_core::settings::Period;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::Reach;

/// The longest pause between two tries.
const LONGEST_PAUSE_MS: Millis = 6 * 3_600_000;
/// Each pause is this many times as long as the previous one.
const GROWTH: Millis = 6;
/// The longest time for which a failing receiver is not tried.
const LONGEST_REST_MS: Millis = 300_000;

/// `[webhooks]`: how events are sent to receivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WebhookSettings {
    /// Allow receivers on this machine and in private networks, and plain `http://` to those. Link-local
    /// addresses and those where clouds keep credentials are always refused.
    pub local_targets: bool,
    /// How often a delivery is tried.
    #[schemars(range(min = 1, max = 20))]
    pub tries: u32,
    /// The pause after the first failed try; each later one is six times as long, up to six hours.
    pub first_retry: Period,
    /// How long a receiver has to answer, including the connection.
    pub timeout: Period,
    /// A webhook that has failed for this long is disabled.
    pub disable_after: Period,
    /// How long the log of deliveries is kept.
    pub keep: Period,
}

impl Default for WebhookSettings {
    fn default() -> Self {
        Self {
            local_targets: false,
            tries: 6,
            first_retry: Period::secs(5),
            timeout: Period::secs(15),
            disable_after: Period::days(3),
            keep: Period::days(30),
        }
    }
}

impl WebhookSettings {
    pub(super) fn reach(&self) -> Reach {
        if self.local_targets { Reach::LocalToo } else { Reach::Internet }
    }

    /// How long a receiver has to answer; shorter than a claim, so that the server does not lose it
    /// meanwhile.
    pub(super) fn patience(&self) -> Duration {
        Duration::from(self.timeout).clamp(Duration::from_millis(100), Duration::from_secs(60))
    }

    /// When to try again after this many tries; `None` if they are used up. `asked` is the receiver's
    /// `Retry-After`, `jitter` is between 0 and 1.
    pub(super) fn next_try(
        &self,
        tries: i64,
        asked: Option<Duration>,
        jitter: f64,
        now: Millis,
    ) -> Option<Millis> {
        if tries >= i64::from(self.tries) {
            return None;
        }
        let grown = GROWTH.saturating_pow(u32::try_from(tries.max(1) - 1).unwrap_or(u32::MAX));
        let pause = self.first_retry.as_millis().saturating_mul(grown).min(LONGEST_PAUSE_MS);
        let asked = asked.map_or(0, |asked| Millis::try_from(asked.as_millis()).unwrap_or(LONGEST_PAUSE_MS));
        Some(now + spread(pause.max(asked.min(LONGEST_PAUSE_MS)), jitter))
    }

    /// Until when to leave a receiver alone that has failed this often in a row.
    pub(super) fn rest(&self, failures: i64, jitter: f64, now: Millis) -> Millis {
        let doubled = 2i64.saturating_pow(u32::try_from(failures.clamp(1, 32) - 1).unwrap_or_default());
        let pause = (self.first_retry.as_millis() / 2).saturating_mul(doubled).min(LONGEST_REST_MS);
        now + spread(pause, jitter)
    }
}

/// Up to a fifth longer, so that deliveries that failed together are not retried together.
fn spread(pause: Millis, jitter: f64) -> Millis {
    #[expect(clippy::cast_possible_truncation, reason = "bounded by hours")]
    let more = (pause as f64 * 0.2 * jitter.clamp(0.0, 1.0)) as Millis;
    pause + more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_go_over_hours_and_end() {
        let settings = WebhookSettings::default();
        let pauses: Vec<_> = (1..=6).map(|tries| settings.next_try(tries, None, 0.0, 0)).collect();
        let expected = [5_000, 30_000, 180_000, 1_080_000, 6_480_000].map(Some);
        assert_eq!(pauses[..5], expected);
        assert_eq!(pauses[5], None);
        assert_eq!(settings.next_try(1, None, 1.0, 100), Some(6_100));
        // The receiver's `Retry-After` counts, within bounds.
        assert_eq!(settings.next_try(1, Some(Duration::from_secs(60)), 0.0, 0), Some(60_000));
        let for_ever = Some(Duration::from_secs(u64::MAX));
        assert_eq!(settings.next_try(1, for_ever, 0.0, 0), Some(LONGEST_PAUSE_MS));
        let patient = WebhookSettings { tries: 20, ..settings };
        assert_eq!(patient.next_try(19, None, 0.0, 0), Some(LONGEST_PAUSE_MS));
    }

    #[test]
    fn a_receiver_that_fails_rests_longer_each_time_but_never_long() {
        let settings = WebhookSettings::default();
        let rests: Vec<_> = (1..=3).map(|failures| settings.rest(failures, 0.0, 0)).collect();
        assert_eq!(rests, [2_500, 5_000, 10_000]);
        assert_eq!(settings.rest(1_000_000, 0.0, 0), LONGEST_REST_MS);
    }
}
