//! A circuit breaker: stops calling a dependency that does not answer, for a while.
//!
//! ```text
//! closed ──failures in a row──> open ──pause over──> half open ──an answer──> closed
//!                                ^                      │
//!                                └──another failure, the pause doubled
//! ```
//!
//! A caller learns at once that the dependency is down, instead of waiting for its timeout; and the
//! dependency, when it returns, gets one request and not all of them. Only silence counts as a failure: a
//! refusal is an answer.

use std::fmt;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open at first; doubled each time the next request fails too.
    pub pause: Duration,
    pub longest_pause: Duration,
}

/// The state of a breaker, as a number for metrics and a word for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Closed = 0,
    HalfOpen = 1,
    Open = 2,
}

/// One dependency's breaker.
pub struct Breaker {
    name: &'static str,
    policy: Policy,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Instant,
        pause: Duration,
    },
    /// One request is in progress; the pause is the one before it.
    HalfOpen {
        pause: Duration,
    },
}

/// The breaker is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// When a retry may help.
    pub retry_after: Duration,
}

/// Permission for one request. If it is dropped without a verdict, nothing is learned.
#[derive(Debug)]
pub struct Leave<'a> {
    breaker: &'a Breaker,
    is_probe: bool,
    is_settled: bool,
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Breaker({}: {:?})", self.name, self.standing())
    }
}

impl Breaker {
    pub fn new(name: &'static str, policy: Policy) -> Self {
        Self { name, policy, state: Mutex::new(State::Closed { failures: 0 }) }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn standing(&self) -> Standing {
        match *self.state() {
            State::Closed { .. } => Standing::Closed,
            State::HalfOpen { .. } => Standing::HalfOpen,
            State::Open { .. } => Standing::Open,
        }
    }

    /// Permission for a request, unless the breaker is open.
    pub fn admit(&self) -> Result<Leave<'_>, Open> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Result<Leave<'_>, Open> {
        let mut state = self.state();
        let is_probe = match *state {
            State::Closed { .. } => false,
            State::Open { until, pause } => {
                let left = until.saturating_duration_since(now);
                if !left.is_zero() {
                    return Err(Open { retry_after: left });
                }
                *state = State::HalfOpen { pause };
                true
            }
            State::HalfOpen { pause } => return Err(Open { retry_after: pause }),
        };
        Ok(Leave { breaker: self, is_probe, is_settled: false })
    }

    /// The dependency is known to be up: close the breaker.
    pub fn close(&self) {
        let before = std::mem::replace(&mut *self.state(), State::Closed { failures: 0 });
        if !matches!(before, State::Closed { .. }) {
            tracing::info!(breaker = self.name, "{} answers again", self.name);
        }
    }

    fn failed(&self, was_probe: bool, now: Instant) {
        let mut state = self.state();
        let pause = match *state {
            State::Closed { failures } if failures + 1 < self.policy.failures => {
                *state = State::Closed { failures: failures + 1 };
                return;
            }
            State::Closed { .. } => self.policy.pause,
            State::HalfOpen { pause } if was_probe => (pause * 2).min(self.policy.longest_pause),
            // The request was sent before the breaker opened: nothing new.
            State::Open { .. } | State::HalfOpen { .. } => return,
        };
        let until = now + pause.mul_f64(rand::random_range(0.75..1.25));
        *state = State::Open { until, pause };
        drop(state);
        tracing::warn!(breaker = self.name, "{} does not answer: not trying again for {pause:?}", self.name);
    }

    /// The probe was dropped: the next request is the probe.
    fn gave_up(&self) {
        let mut state = self.state();
        if let State::HalfOpen { pause } = *state {
            *state = State::Open { until: Instant::now(), pause };
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Leave<'_> {
    /// The request was answered.
    pub fn answered(mut self) {
        self.is_settled = true;
        self.breaker.close();
    }

    /// The request got no answer.
    pub fn failed(self) {
        self.failed_at(Instant::now());
    }

    fn failed_at(mut self, now: Instant) {
        self.is_settled = true;
        self.breaker.failed(self.is_probe, now);
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if self.is_probe && !self.is_settled {
            self.breaker.gave_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy =
        Policy { failures: 3, pause: Duration::from_secs(1), longest_pause: Duration::from_secs(4) };

    fn fail(breaker: &Breaker, now: Instant) {
        breaker.admit_at(now).unwrap().failed_at(now);
    }

    fn open(now: Instant) -> Breaker {
        let breaker = Breaker::new("test", POLICY);
        for _ in 0..3 {
            fail(&breaker, now);
        }
        assert_eq!(breaker.standing(), Standing::Open);
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_one_answer_closes_it() {
        let (breaker, now) = (Breaker::new("test", POLICY), Instant::now());
        fail(&breaker, now);
        fail(&breaker, now);
        breaker.admit_at(now).unwrap().answered();
        fail(&breaker, now);
        fail(&breaker, now);
        assert_eq!(breaker.standing(), Standing::Closed, "an answer in between starts over");
        fail(&breaker, now);
        assert_eq!(breaker.standing(), Standing::Open);
        let open = breaker.admit_at(now).unwrap_err();
        assert!(open.retry_after <= Duration::from_millis(1250), "{open:?}");
        let later = now + Duration::from_millis(1250);
        let probe = breaker.admit_at(later).unwrap();
        assert_eq!(breaker.standing(), Standing::HalfOpen);
        assert!(breaker.admit_at(later).is_err(), "one question at a time");
        probe.answered();
        assert_eq!(breaker.standing(), Standing::Closed);
        assert!(breaker.admit_at(later).is_ok() && breaker.admit_at(later).is_ok());
    }

    #[test]
    fn pauses_grow_to_the_longest_and_start_over_after_an_answer() {
        let mut now = Instant::now();
        let breaker = open(now);
        for most in [1.25, 2.5, 5.0, 5.0] {
            let wait = breaker.admit_at(now).unwrap_err().retry_after;
            let seconds = wait.as_secs_f64();
            assert!(seconds <= most && seconds >= most * 0.6 - 0.01, "{wait:?} of {most}");
            now += wait;
            fail(&breaker, now);
        }
        breaker.close();
        for _ in 0..3 {
            fail(&breaker, now);
        }
        assert!(breaker.admit_at(now).unwrap_err().retry_after <= Duration::from_millis(1250));
    }

    #[test]
    fn a_question_that_was_given_up_leaves_the_way_to_the_next() {
        let now = Instant::now();
        let breaker = open(now);
        let later = now + Duration::from_secs(2);
        drop(breaker.admit_at(later).unwrap());
        breaker.admit_at(later).unwrap().answered();
        // A late failure of a request from before the breaker opened changes nothing.
        let late: Vec<Leave<'_>> = (0..5).map(|_| breaker.admit_at(later).unwrap()).collect();
        late.into_iter().for_each(|leave| leave.failed_at(later));
        let first = breaker.admit_at(later).unwrap_err().retry_after;
        assert!(first <= Duration::from_millis(1250), "the pause was doubled by stragglers: {first:?}");
    }
}
