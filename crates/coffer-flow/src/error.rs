//! Why a step or a run did not continue.

use coffer_core::{FailureCode, Millis, StepCode};
use coffer_store::{JournalError, RunFailure, StoreError};

/// Why a try of a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StepError {
    /// For programs; the message is for people.
    pub code: FailureCode,
    pub message: String,
    /// Whether a retry may succeed soon.
    pub transient: bool,
}

impl StepError {
    /// A retry would fail again.
    pub fn fatal(code: impl Into<FailureCode>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), transient: false }
    }

    /// A retry may help.
    pub fn transient(code: impl Into<FailureCode>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), transient: true }
    }

    pub(crate) fn failure(&self) -> RunFailure {
        RunFailure::new(self.code.clone(), &self.message)
    }
}

impl From<StoreError> for StepError {
    fn from(error: StoreError) -> Self {
        let transient = matches!(error, StoreError::Transient { .. } | StoreError::Closed);
        Self { code: StepCode::Store.into(), message: error.to_string(), transient }
    }
}

impl From<JournalError> for StepError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Lost => Self::fatal(StepCode::Lost, "another server has taken over the run"),
            JournalError::Store(error) => error.into(),
        }
    }
}

/// Why the code of a run must return. Pass it on with `?`.
#[derive(Debug)]
pub struct Stop(pub(crate) Why);

#[derive(Debug)]
pub(crate) enum Why {
    Failed(RunFailure),
    /// Continue at this time, or at a signal of this name.
    Parked {
        until_ms: Millis,
        signal: Option<String>,
    },
    /// All recorded steps were replayed: now they can be undone.
    Unwinding,
    /// Another runner has the run.
    Lost,
    Store(StoreError),
}

impl Stop {
    /// The run failed by its own decision.
    pub fn failed(code: impl Into<FailureCode>, message: impl AsRef<str>) -> Self {
        Self(Why::Failed(RunFailure::new(code, message)))
    }

    /// The failure, if that is the reason.
    pub const fn failure(&self) -> Option<&RunFailure> {
        match &self.0 {
            Why::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

impl From<JournalError> for Stop {
    fn from(error: JournalError) -> Self {
        Self(match error {
            JournalError::Lost => Why::Lost,
            JournalError::Store(error) => Why::Store(error),
        })
    }
}
