//! Settings of a runner.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::Millis;
use coffer_store::Slots;

/// How often a step is tried, and the pauses in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tries {
    pub most: u32,
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

impl Default for Tries {
    fn default() -> Self {
        Self { most: 3, first_pause: Duration::from_secs(1), longest_pause: Duration::from_secs(10) }
    }
}

impl Tries {
    /// The pause after this many failures: doubling, within bounds, and up to a quarter less, so that steps
    /// that failed together are not retried together.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        let doubled = self.first_pause.saturating_mul(1 << failures.saturating_sub(1).min(16));
        let pause = doubled.min(self.longest_pause);
        pause.mul_f64(1.0 - 0.25 * rand::random::<f64>()).max(self.first_pause.min(pause))
    }
}

/// The current time, in milliseconds since the Unix epoch.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Millis + Send + Sync>);

impl Clock {
    pub fn new(now: impl Fn() -> Millis + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn now(&self) -> Millis {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(coffer_core::clock::now_ms)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({})", self.now())
    }
}

/// Settings of a runner. `stop_after` must be well below `bury_after`: by then a runner without heartbeats
/// has stopped by itself.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of this installation: its next process takes over at once.
    pub place: String,
    /// How many runs may be started and not ended, over all servers.
    pub slots: Slots,
    /// How many this process executes at once.
    pub most_here: usize,
    pub tries: Tries,
    pub beat_every: Duration,
    /// A runner that could not write a heartbeat for this long stops.
    pub stop_after: Duration,
    /// Others remove a runner whose heartbeat has not changed for this long.
    pub bury_after: Duration,
    /// How often to look for runs, cancelled runs and other runners.
    pub look_every: Duration,
    /// How often a run may be taken without finishing a step.
    pub most_takes: i64,
    /// The unit of such a run's pauses.
    pub retake_unit: Duration,
    pub clock: Clock,
}

impl Settings {
    /// The defaults, for this place.
    pub fn at(place: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            slots: Slots { in_all: 16, per_project: 8 },
            most_here: 1000,
            tries: Tries::default(),
            beat_every: Duration::from_secs(5),
            stop_after: Duration::from_secs(20),
            bury_after: Duration::from_secs(30),
            look_every: Duration::from_secs(1),
            most_takes: 5,
            retake_unit: Duration::from_secs(1),
            clock: Clock::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_one_to_ten_seconds() {
        let tries = Tries::default();
        for (failures, most) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (60, 10)] {
            let pause = tries.pause(failures);
            assert!(pause <= Duration::from_secs(most), "{failures}: {pause:?}");
            assert!(pause >= Duration::from_secs(most).mul_f64(0.75).max(Duration::from_secs(1).min(pause)));
        }
    }
}
