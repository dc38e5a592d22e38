//! The life of a durable run, and of each of its steps.
//!
//! ```text
//!           take            park
//! Queued ─────────► Running ◄────► Parked      Running and Parked that are asked to end
//!   │ cancel        │  ▲ │ end        take     stay, until their code has undone its work
//!   ▼               └──┘ ▼
//! Cancelled         take  Done · Failed · Cancelled · Stuck
//!
//!                    finish
//! UnderWay ────────────────────► Done ──┐ undo
//!  │ ▲  │ the last try fails            ├───────► Undone
//!  └─┘  └─────────► Failed ─────────────┤
//! a try fails, or the server died       └───────► UndoFailed
//! ```

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::FailureCode;
use crate::life::{Life, Refused};

/// Longest stored error message.
const LONGEST_MESSAGE: usize = 4096;

/// The state of a run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum RunState {
    /// Waits for a slot.
    Queued,
    /// It has started; a runner executes it, or will soon.
    Running,
    /// Waits for a time or a signal.
    Parked,
    Done,
    Failed,
    Cancelled,
    /// Every runner that takes it dies: a person must look.
    Stuck,
}

impl RunState {
    /// Whether it can no longer change.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled | Self::Stuck)
    }
}

/// The state of a step.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StepState {
    UnderWay,
    Done,
    Failed,
    Undone,
    UndoFailed,
}

/// Why a run is being undone.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Unwinding {
    Cancelled,
    Failed,
}

names!(RunState, StepState, Unwinding);

/// Why a run, or one try of a step, failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFailure {
    /// For programs.
    pub code: FailureCode,
    /// For people.
    pub message: String,
    /// The step that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Steps whose undo failed too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_undone: Vec<String>,
}

impl RunFailure {
    /// A failure, with its message cut to the stored length.
    pub fn new(code: impl Into<FailureCode>, message: impl AsRef<str>) -> Self {
        let message = Self::storable(message.as_ref());
        Self { code: code.into(), message, step: None, not_undone: Vec::new() }
    }

    /// A message, cut to the stored length. NUL is replaced, because PostgreSQL does not allow it in text.
    pub fn storable(message: &str) -> String {
        message[..message.floor_char_boundary(LONGEST_MESSAGE)].replace('\0', "\u{fffd}")
    }
}

/// A cause of a state change of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunCause {
    /// A runner takes it.
    Taken,
    /// Its code waits for a time or a signal.
    Parked,
    /// It is asked to end.
    CancelAsked,
    Ended(RunOutcome),
}

/// How a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    Done,
    Failed,
    Cancelled,
    Stuck,
}

impl RunOutcome {
    /// The state of a run that ended so.
    pub const fn state(self) -> RunState {
        match self {
            Self::Done => RunState::Done,
            Self::Failed => RunState::Failed,
            Self::Cancelled => RunState::Cancelled,
            Self::Stuck => RunState::Stuck,
        }
    }
}

impl Life for RunState {
    type Cause = RunCause;

    const WHAT: &'static str = "run";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [RunCause] = &[
        RunCause::Taken,
        RunCause::Parked,
        RunCause::CancelAsked,
        RunCause::Ended(RunOutcome::Done),
        RunCause::Ended(RunOutcome::Failed),
        RunCause::Ended(RunOutcome::Cancelled),
        RunCause::Ended(RunOutcome::Stuck),
    ];

    fn after(self, cause: RunCause) -> Result<Self, Refused> {
        match (self, cause) {
            (Self::Queued | Self::Running | Self::Parked, RunCause::Taken) => Ok(Self::Running),
            (Self::Running, RunCause::Parked) => Ok(Self::Parked),
            (Self::Queued, RunCause::CancelAsked) => Ok(Self::Cancelled),
            (Self::Running | Self::Parked, RunCause::CancelAsked) => Ok(self),
            (Self::Running, RunCause::Ended(outcome)) => Ok(outcome.state()),
            (_, RunCause::Taken) => self.refuse("be started"),
            (_, RunCause::Parked) => self.refuse("wait"),
            (_, RunCause::CancelAsked) => self.refuse("be cancelled"),
            (_, RunCause::Ended(_)) => self.refuse("end"),
        }
    }

    fn name(self) -> &'static str {
        self.as_str()
    }
}

/// A cause of a state change of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepCause {
    /// It is tried, for the first time or again.
    Started,
    /// A try failed, and another follows.
    TryFailed,
    Finished,
    /// The last try failed.
    Failed,
    Undone,
    UndoFailed,
}

impl Life for StepState {
    type Cause = StepCause;

    const WHAT: &'static str = "step";
    const STATES: &'static [Self] = Self::ALL;
    const CAUSES: &'static [StepCause] = &[
        StepCause::Started,
        StepCause::TryFailed,
        StepCause::Finished,
        StepCause::Failed,
        StepCause::Undone,
        StepCause::UndoFailed,
    ];

    fn after(self, cause: StepCause) -> Result<Self, Refused> {
        match (self, cause) {
            (Self::UnderWay, StepCause::Started | StepCause::TryFailed) => Ok(self),
            // A write whose answer was lost is repeated.
            (Self::UnderWay | Self::Done, StepCause::Finished) => Ok(Self::Done),
            (Self::UnderWay | Self::Failed, StepCause::Failed) => Ok(Self::Failed),
            (Self::UnderWay | Self::Done | Self::Failed | Self::Undone, StepCause::Undone) => {
                Ok(Self::Undone)
            }
            (Self::UnderWay | Self::Done | Self::Failed | Self::UndoFailed, StepCause::UndoFailed) => {
                Ok(Self::UndoFailed)
            }
            (_, StepCause::Started) => self.refuse("be started"),
            (_, StepCause::TryFailed | StepCause::Failed) => self.refuse("fail"),
            (_, StepCause::Finished) => self.refuse("be finished"),
            (_, StepCause::Undone | StepCause::UndoFailed) => self.refuse("be undone"),
        }
    }

    fn name(self) -> &'static str {
        self.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::laws;
    use proptest::prelude::*;

    #[test]
    fn a_run_reaches_every_state_and_ends_once() {
        laws::every_state_is_reached::<RunState>();
        laws::what_is_over_stays(RunState::is_over);
        laws::a_cause_told_twice_changes_nothing::<RunState>();
    }

    #[test]
    fn a_run_ends_where_a_runner_holds_it_or_before_it_began() {
        for outcome in [RunOutcome::Done, RunOutcome::Failed, RunOutcome::Cancelled, RunOutcome::Stuck] {
            let from: Vec<_> = RunState::allowing(RunCause::Ended(outcome)).collect();
            assert_eq!(from, [RunState::Running]);
        }
        assert_eq!(RunState::Queued.after(RunCause::CancelAsked), Ok(RunState::Cancelled));
    }

    #[test]
    fn a_step_reaches_every_state_and_is_undone_once() {
        laws::every_state_is_reached::<StepState>();
        laws::what_is_over_stays(|state: StepState| {
            matches!(state, StepState::Undone | StepState::UndoFailed)
        });
        laws::a_cause_told_twice_changes_nothing::<StepState>();
    }

    proptest! {
        /// Whatever happens in any order, an ended run stays ended.
        #[test]
        fn nothing_wakes_a_run_that_is_over(causes in prop::collection::vec(prop::sample::select(RunState::CAUSES), 0..30)) {
            let mut state = RunState::Queued;
            for cause in causes {
                let next = state.after(cause).unwrap_or(state);
                prop_assert!(!state.is_over() || next == state);
                state = next;
            }
        }

        /// A finished step is never tried again.
        #[test]
        fn a_finished_step_is_not_under_way_again(causes in prop::collection::vec(prop::sample::select(StepState::CAUSES), 0..30)) {
            let mut state = StepState::UnderWay;
            for cause in causes {
                let next = state.after(cause).unwrap_or(state);
                prop_assert!(next != StepState::UnderWay || state == StepState::UnderWay);
                state = next;
            }
        }
    }
}
