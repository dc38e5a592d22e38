//! State machines of recorded things.
//!
//! [`Life::after`] is total: for every state and every cause it returns the next state, or a refusal. The
//! store calls it before it writes, and takes the states that its compare-and-set statements allow from
//! [`Life::allowing`], so there is one table of transitions for each thing. The diagrams are next to the
//! states. The state machine of sandboxes is in `state`: its states carry data.

/// The states of a thing, and the causes that change them.
pub trait Life: Copy + Eq + std::fmt::Debug + 'static {
    type Cause: Copy + std::fmt::Debug + 'static;

    /// The name of the thing, for messages.
    const WHAT: &'static str;
    /// Every state, the initial one first.
    const STATES: &'static [Self];
    const CAUSES: &'static [Self::Cause];

    /// The state after `cause`, or why this state refuses it.
    fn after(self, cause: Self::Cause) -> Result<Self, Refused>;

    /// The state's name, as stored and shown.
    fn name(self) -> &'static str;

    /// The states that do not refuse `cause`.
    fn allowing(cause: Self::Cause) -> impl Iterator<Item = Self> {
        Self::STATES.iter().copied().filter(move |state| state.after(cause).is_ok())
    }

    /// The refusal of `asked`, which completes "cannot".
    fn refuse(self, asked: &'static str) -> Result<Self, Refused> {
        Err(Refused { what: Self::WHAT, state: self.name(), asked })
    }
}

/// A state does not allow the requested change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a {what} that is {state} cannot {asked}")]
pub struct Refused {
    pub what: &'static str,
    pub state: &'static str,
    pub asked: &'static str,
}

/// Properties of every state machine.
#[cfg(test)]
pub(crate) mod laws {
    use std::collections::HashSet;

    use super::Life;

    /// Every state can be reached from the first one.
    pub(crate) fn every_state_is_reached<L: Life + std::hash::Hash>() {
        let mut reached = HashSet::from([L::STATES[0]]);
        loop {
            let steps =
                |state: &L| L::CAUSES.iter().filter_map(|cause| state.after(*cause).ok()).collect::<Vec<_>>();
            let next: Vec<L> = reached.iter().flat_map(steps).collect();
            let before = reached.len();
            reached.extend(next);
            if reached.len() == before {
                break;
            }
        }
        for state in L::STATES {
            assert!(reached.contains(state), "no {} ever is {state:?}", L::WHAT);
        }
    }

    /// Final states have no transitions, and all others have some.
    pub(crate) fn what_is_over_stays<L: Life>(is_over: impl Fn(L) -> bool) {
        for state in L::STATES {
            let leaves = L::CAUSES.iter().any(|cause| state.after(*cause).is_ok_and(|next| next != *state));
            assert_eq!(leaves, !is_over(*state), "{} {state:?}", L::WHAT);
        }
    }

    /// The same cause twice has the same result as once, or is refused.
    pub(crate) fn a_cause_told_twice_changes_nothing<L: Life>() {
        for state in L::STATES {
            for cause in L::CAUSES {
                if let Ok(once) = state.after(*cause) {
                    let twice = once.after(*cause).unwrap_or(once);
                    assert_eq!(twice, once, "{} {state:?} {cause:?}", L::WHAT);
                }
            }
        }
    }
}
