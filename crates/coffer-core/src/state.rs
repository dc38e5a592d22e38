//! The life of a sandbox.
//!
//! ```text
//!             ready            freeze
//! Creating ─────────► Running ────────► Paused
//!    │                 │  ▲               │ │
//!    │ fault           │  └───── thaw ────┘ │
//!    ▼           fault ▼                    │ fault
//!  Error ◄─────────────┴────────────────────┘
//!    │                 any state but Terminated: destroy
//!    └──────────────────────► Terminated
//! ```
//!
//! [`SandboxState::after`] is the only way from one state to the next. A transition in progress (a freeze
//! that has begun, say) is not a state: the task that owns the sandbox holds it, and a crash in the middle
//! leaves the earlier state on record.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

/// What a pause keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// Processes continue where they were: from disk, or, if the host cannot save memory, frozen meanwhile.
    MemoryAndFiles,
    /// Processes have ended; a resume starts the sandbox again on the same files.
    FilesOnly,
}

/// How a paused sandbox resumes. As JSON it is whether that is cold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Boot {
    /// With its memory, if the pause kept it.
    #[default]
    AsPaused,
    /// From its files, whatever the pause kept.
    Cold,
}

impl From<bool> for Boot {
    fn from(cold: bool) -> Self {
        if cold { Self::Cold } else { Self::AsPaused }
    }
}

impl From<Boot> for bool {
    fn from(boot: Boot) -> Self {
        boot == Boot::Cold
    }
}

/// Whether processes are part of a snapshot or a rollback, or only files. As JSON it is whether they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Memory {
    With,
    Without,
}

impl From<bool> for Memory {
    fn from(with: bool) -> Self {
        if with { Self::With } else { Self::Without }
    }
}

impl From<Memory> for bool {
    fn from(memory: Memory) -> Self {
        memory == Memory::With
    }
}

/// What a sandbox is for.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum SandboxPurpose {
    /// A client's use.
    #[default]
    Use,
    /// A build of a template runs in it. Lists leave it out, and its template's start command does not run.
    Build,
}

names!(SandboxPurpose);

/// Why a sandbox was destroyed.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum DestroyReason {
    /// On request.
    Requested,
    /// Its time to live ran out.
    Timeout,
    /// It was unused for the idle timeout.
    Idle,
    /// It reached the longest lifetime.
    MaximumLifetime,
    /// Its lease expired.
    LeaseExpired,
    /// The server that created it was configured to leave nothing behind.
    Shutdown,
    /// A budget was spent whose action is to end sandboxes.
    Budget,
}

/// Why a sandbox failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Fault {
    /// It never became ready.
    CreateFailed { message: String },
    /// Memory ran out and its first process was killed for it.
    OutOfMemory,
    /// Its first process ended by itself or was killed.
    Died { message: String },
    /// It runs but no longer answers.
    Unresponsive,
    /// The node no longer has it, as after a reboot.
    Lost,
    /// It could not be paused or resumed and was destroyed.
    TransitionFailed { message: String },
}

/// The state of a sandbox, with the data of that state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SandboxState {
    Creating,
    Running,
    Paused { kept: Kept },
    Terminated { reason: DestroyReason },
    Error { fault: Fault },
}

/// A cause of a state change of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// Its agentd answered for the first time.
    Ready,
    /// It was paused.
    Froze(Kept),
    /// It was resumed and its agentd answers.
    Thawed,
    /// It was destroyed.
    Destroyed(DestroyReason),
    /// It failed.
    Failed(Fault),
}

/// A state's name, as stored and shown.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, EnumString, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum StateName {
    Creating,
    Running,
    Paused,
    Terminated,
    Error,
}

/// A state does not allow the requested change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {} cannot {asked}", state.as_str())]
pub struct Refused {
    pub state: StateName,
    pub asked: &'static str,
}

impl SandboxState {
    /// The state after `cause`, or why this state refuses it.
    pub fn after(self, cause: Cause) -> Result<Self, Refused> {
        match (self, cause) {
            (Self::Creating, Cause::Ready) | (Self::Paused { .. }, Cause::Thawed) => Ok(Self::Running),
            (Self::Running, Cause::Froze(kept)) => Ok(Self::Paused { kept }),
            // Destroy is idempotent: the first reason stays.
            (gone @ Self::Terminated { .. }, Cause::Destroyed(_)) => Ok(gone),
            (_, Cause::Destroyed(reason)) => Ok(Self::Terminated { reason }),
            (Self::Creating | Self::Running | Self::Paused { .. }, Cause::Failed(fault)) => {
                Ok(Self::Error { fault })
            }
            (state, cause) => Err(Refused { state: state.name(), asked: cause.verb() }),
        }
    }

    /// The state without its data.
    pub const fn name(&self) -> StateName {
        match self {
            Self::Creating => StateName::Creating,
            Self::Running => StateName::Running,
            Self::Paused { .. } => StateName::Paused,
            Self::Terminated { .. } => StateName::Terminated,
            Self::Error { .. } => StateName::Error,
        }
    }

    /// Whether the engine may still have resources of this sandbox.
    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Creating | Self::Running | Self::Paused { .. })
    }
}

names!(DestroyReason, StateName);

impl Cause {
    const fn verb(&self) -> &'static str {
        match self {
            Self::Ready => "become ready",
            Self::Froze(_) => "be paused",
            Self::Thawed => "be resumed",
            Self::Destroyed(_) => "be destroyed",
            Self::Failed(_) => "fail",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_cause() -> impl Strategy<Value = Cause> {
        prop_oneof![
            Just(Cause::Ready),
            Just(Cause::Froze(Kept::MemoryAndFiles)),
            Just(Cause::Froze(Kept::FilesOnly)),
            Just(Cause::Thawed),
            Just(Cause::Destroyed(DestroyReason::Requested)),
            Just(Cause::Destroyed(DestroyReason::Timeout)),
            Just(Cause::Failed(Fault::OutOfMemory)),
            Just(Cause::Failed(Fault::Lost)),
        ]
    }

    fn live(causes: &[Cause]) -> SandboxState {
        causes
            .iter()
            .fold(SandboxState::Creating, |state, cause| state.clone().after(cause.clone()).unwrap_or(state))
    }

    proptest! {
        #[test]
        fn nothing_leaves_terminated(causes in prop::collection::vec(any_cause(), 0..12)) {
            let gone = SandboxState::Terminated { reason: DestroyReason::Idle };
            for cause in causes {
                match gone.clone().after(cause.clone()) {
                    Ok(after) => prop_assert_eq!(&after, &gone, "after {:?}", cause),
                    Err(refused) => prop_assert_eq!(refused.state, StateName::Terminated),
                }
            }
        }

        #[test]
        fn everything_can_be_destroyed(causes in prop::collection::vec(any_cause(), 0..12)) {
            let after = live(&causes).after(Cause::Destroyed(DestroyReason::Requested)).unwrap();
            prop_assert_eq!(after.name(), StateName::Terminated);
        }

        #[test]
        fn running_is_reached_only_by_ready_or_thaw(
            causes in prop::collection::vec(any_cause(), 0..12),
            last in any_cause(),
        ) {
            let before = live(&causes);
            if let Ok(SandboxState::Running) = before.clone().after(last.clone()) {
                let allowed = matches!(
                    (&before, &last),
                    (SandboxState::Creating, Cause::Ready) | (SandboxState::Paused { .. }, Cause::Thawed)
                );
                prop_assert!(allowed, "{:?} ran after {:?}", before, last);
            }
        }

        #[test]
        fn a_state_survives_storage(causes in prop::collection::vec(any_cause(), 0..12)) {
            let state = live(&causes);
            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(serde_json::from_str::<SandboxState>(&text).unwrap(), state);
        }
    }

    #[test]
    fn a_refusal_names_state_and_request() {
        let refused = SandboxState::Creating.after(Cause::Thawed).unwrap_err();
        assert_eq!(refused.to_string(), "a sandbox that is creating cannot be resumed");
    }
}
