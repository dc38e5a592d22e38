//! Why a step of the fleet failed, and its refusal for the caller.

use coffer_core::{Code, Refusal, Refused, SnapshotId, StateName};
use coffer_engine::EngineError;
use coffer_guest::AgentError;
use coffer_store::{ChangeError, OverQuota, StoreError};

use super::record::{Busy, Step};
use super::secrets::SecretUse;
use crate::usage::Exhausted;

/// Why a sandbox was not created, changed or found.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("there is no such sandbox")]
    NotFound,
    #[error(transparent)]
    Busy(#[from] Busy),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("there is no template `{0}`")]
    UnknownTemplate(String),
    #[error("the sandbox was destroyed while it was being made")]
    EndedEarly,
    #[error("the sandbox died while it was being made")]
    DiedEarly,
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error("the idempotency key was used for a different request")]
    KeyReused,
    #[error("the first request with this idempotency key failed")]
    FirstFailed,
    #[error("the first request with this idempotency key is still under way")]
    FirstUnderWay,
    #[error("the sandbox's agent does not answer")]
    GuestUnresponsive(#[source] AgentError),
    #[error("the sandbox did not become ready")]
    NotReady(#[source] AgentError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    OverQuota(OverQuota),
    #[error("there is no snapshot `{0}`")]
    NoSnapshot(String),
    #[error("snapshot {0} is on the host of installation '{1}', not on this one")]
    SnapshotElsewhere(SnapshotId, String),
    #[error("its memory cannot be kept: {0}")]
    NoMemory(String),
    #[error("its processes hold the secrets {0}, which were not granted to what comes from it")]
    HoldsSecrets(String),
    #[error(transparent)]
    Secret(#[from] SecretUse),
    #[error("another request changed the record of the sandbox")]
    Raced,
    #[error(transparent)]
    Full(#[from] coffer_shares::Full),
    #[error("a step of the server's own broke")]
    Broken,
}

impl From<ChangeError> for FleetError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NotFound => Self::NotFound,
            ChangeError::Raced { .. } => Self::Raced,
            ChangeError::OverQuota(over) => Self::OverQuota(over),
            ChangeError::Store(error) => Self::Store(error),
        }
    }
}

impl FleetError {
    /// Whether the same call may work soon without any change.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Busy(Busy(Step::End | Step::Create)) => false,
            Self::Busy(_)
            | Self::EndedEarly
            | Self::DiedEarly
            | Self::FirstFailed
            | Self::FirstUnderWay
            | Self::GuestUnresponsive(_)
            | Self::NotReady(_)
            | Self::Raced
            | Self::Full(_)
            | Self::Broken => true,
            Self::Refused(refused) => matches!(refused.state, StateName::Running | StateName::Paused),
            Self::Engine(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
            Self::NotFound
            | Self::UnknownTemplate(_)
            | Self::Exhausted(_)
            | Self::KeyReused
            | Self::OverQuota(_)
            | Self::NoSnapshot(_)
            | Self::SnapshotElsewhere(..)
            | Self::NoMemory(_)
            | Self::HoldsSecrets(_)
            | Self::Secret(_) => false,
        }
    }

    /// The refusal of a request about the sandbox `id`.
    pub fn explain(&self, id: &str) -> Refusal {
        let message = self.to_string();
        match self {
            // A sandbox that is being destroyed is gone for every other caller.
            Self::NotFound | Self::Busy(Busy(Step::End | Step::Create)) => Refusal::no_sandbox(id),
            Self::Busy(_) | Self::FirstUnderWay => Refusal::conflict(message).retry_after(1),
            Self::Refused(refused) => match refused.state {
                StateName::Running | StateName::Paused => Refusal::conflict(message),
                StateName::Creating | StateName::Terminated | StateName::Error => Refusal::no_sandbox(id),
            },
            Self::UnknownTemplate(name) => {
                Refusal::new(Code::NotFound, format!("template '{name}' not found"))
            }
            Self::KeyReused => Refusal::new(
                Code::IdempotencyKeyReused,
                "this Idempotency-Key was used for a different request",
            ),
            Self::GuestUnresponsive(_) | Self::EndedEarly | Self::Raced => Refusal::conflict(message),
            Self::Exhausted(_) => Refusal::new(Code::BudgetExceeded, message)
                .hint("an admin of the project can raise it at /api/v1/budgets"),
            Self::Secret(SecretUse::Sealed(_) | SecretUse::SandboxSealed) => {
                Refusal::conflict(message).hint("put the lost master key back, or set the secret again")
            }
            Self::Secret(_) => Refusal::new(Code::Invalid, message),
            Self::OverQuota(over) => over.into(),
            Self::Full(full) => (*full).into(),
            Self::NoSnapshot(name) => {
                let name: String = name.chars().take(200).collect();
                Refusal::new(Code::NotFound, format!("snapshot '{name}' not found"))
                    .hint("GET /api/v1/snapshots lists the existing ones")
            }
            Self::SnapshotElsewhere(..) => {
                Refusal::new(Code::OtherInstallation, message).hint("ask the server of that installation")
            }
            Self::NoMemory(_) => Refusal::new(Code::NotSupported, message)
                .hint("leave `memory` out, or set it to false, to keep files alone"),
            Self::HoldsSecrets(_) => Refusal::conflict(message)
                .hint("set `inherit_secrets`, or leave `memory` out to keep files alone"),
            Self::FirstFailed | Self::DiedEarly => Refusal::new(Code::Unavailable, message).retry_after(1),
            Self::Engine(error) => error.explain(id),
            Self::Store(error) => error.into(),
            Self::NotReady(_) => Refusal::new(Code::Internal, message),
            Self::Broken => Refusal::internal(),
        }
    }
}
