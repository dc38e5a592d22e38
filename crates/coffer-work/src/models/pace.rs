//! How fast a turn of an agent may make calls.

use std::time::Instant;

/// Calls of a grant: at first, and then each second.
const BURST: f64 = 100.0;
const PER_SECOND: f64 = 10.0;

/// Limits how fast a grant makes calls.
#[derive(Debug)]
pub(super) struct Pace {
    left: f64,
    at: Instant,
}

impl Pace {
    pub(super) const fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    pub(super) fn may(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left, self.at) = ((self.left + passed * PER_SECOND).min(BURST), now);
        let may = self.left >= 1.0;
        if may {
            self.left -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_grant_has_a_burst_and_then_a_pace() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        assert_eq!((0..200).filter(|_| pace.may(now)).count(), 100);
        assert!(pace.may(now + Duration::from_millis(150)) && !pace.may(now + Duration::from_millis(150)));
        assert_eq!((0..500).filter(|_| pace.may(now + Duration::from_secs(3600))).count(), 100);
    }
}
