//! Why a step of the fleet failed, and its refusal for the caller.

use coffer_core::{BadSize, Code, Refusal, Refused, SandboxId, SnapshotId, StateName, VolumeId};
use coffer_engine::EngineError;
use coffer_guest::AgentError;
use coffer_store::{ChangeError, OverQuota, StoreError};
use serde_json::json;

use super::record::{Busy, Step};
use super::secrets::SecretUse;
use crate::usage::Exhausted;

/// Why a sandbox was not created, changed or found.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    #[error("sandbox not found")]
    NotFound,
    #[error(transparent)]
    Busy(#[from] Busy),
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("template `{0}` not found")]
    UnknownTemplate(String),
    /// It is in the catalogue.
    #[error("template '{0}' of the catalogue is not built yet")]
    TemplateNotBuilt(String),
    #[error("the sandbox was destroyed while it was being created")]
    EndedEarly,
    #[error("the sandbox died while it was being created")]
    DiedEarly,
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    #[error("the idempotency key was used for a different request")]
    KeyReused,
    #[error("the first request with this idempotency key failed")]
    FirstFailed,
    #[error("the first request with this idempotency key is still in progress")]
    FirstUnderWay,
    #[error("the sandbox's agentd does not answer")]
    GuestUnresponsive(#[source] AgentError),
    #[error("the sandbox did not become ready")]
    NotReady(#[source] AgentError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    OverQuota(OverQuota),
    #[error(transparent)]
    Size(#[from] BadSize),
    #[error(
        "{field} is {asked}, but the processes of the snapshot were saved with {saved} and need the same"
    )]
    SizeOfProcesses { field: &'static str, asked: u64, saved: u64 },
    #[error("there is no snapshot `{0}`")]
    NoSnapshot(String),
    #[error("snapshot {0} is on the host of installation '{1}', not on this one")]
    SnapshotElsewhere(SnapshotId, String),
    #[error("volume `{0}` not found")]
    NoVolume(String),
    #[error("volume {0} is on the host of installation '{1}', not on this one")]
    VolumeElsewhere(VolumeId, String),
    #[error("there is a volume '{0}' already")]
    VolumeNameTaken(String),
    #[error("the volume is mounted by sandbox {}", named(.0))]
    VolumeMounted(Vec<SandboxId>),
    #[error("too many volumes are being read or written at the moment")]
    KeepersBusy,
    #[error("its memory cannot be saved: {0}")]
    NoMemory(String),
    #[error("its processes hold the secrets {0}, which the request does not pass on")]
    HoldsSecrets(String),
    #[error(transparent)]
    Secret(#[from] SecretUse),
    #[error("another request changed the record of the sandbox")]
    Raced,
    #[error(transparent)]
    Full(#[from] coffer_shares::Full),
    #[error("internal error")]
    Broken,
}

fn named(sandboxes: &[SandboxId]) -> String {
    sandboxes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
            | Self::KeepersBusy
            | Self::Broken => true,
            Self::Refused(refused) => matches!(refused.state, StateName::Running | StateName::Paused),
            Self::Engine(error) => error.is_transient(),
            Self::Store(error) => error.is_transient(),
            Self::NotFound
            | Self::UnknownTemplate(_)
            | Self::TemplateNotBuilt(_)
            | Self::Exhausted(_)
            | Self::KeyReused
            | Self::OverQuota(_)
            | Self::Size(_)
            | Self::SizeOfProcesses { .. }
            | Self::NoSnapshot(_)
            | Self::SnapshotElsewhere(..)
            | Self::NoVolume(_)
            | Self::VolumeElsewhere(..)
            | Self::VolumeNameTaken(_)
            | Self::VolumeMounted(_)
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
            Self::TemplateNotBuilt(name) => Refusal::new(Code::TemplateNotBuilt, message).hint(format!(
                "an operator builds it with `coffer template build {name}`; GET /api/v1/templates shows its state"
            )),
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
            Self::Size(BadSize { field, value, least, most }) => Refusal::new(Code::Invalid, message)
                .details(json!({"field": field, "value": value, "least": least, "most": most}))
                .hint("GET /api/v1/host shows the largest sandbox that this host can have"),
            Self::SizeOfProcesses { .. } => Refusal::new(Code::Invalid, message)
                .hint("set `memory` to false to start from the snapshot's files alone"),
            Self::Full(full) => (*full).into(),
            Self::NoSnapshot(name) => {
                let name: String = name.chars().take(200).collect();
                Refusal::new(Code::NotFound, format!("snapshot '{name}' not found"))
                    .hint("GET /api/v1/snapshots lists the existing ones")
            }
            Self::NoVolume(name) => {
                let name: String = name.chars().take(200).collect();
                Refusal::new(Code::NotFound, format!("volume '{name}' not found"))
                    .hint("GET /api/v1/volumes lists the existing ones")
            }
            Self::VolumeNameTaken(_) => Refusal::conflict(message),
            Self::VolumeMounted(users) => {
                let users: Vec<_> = users.iter().map(ToString::to_string).collect();
                Refusal::conflict(message)
                    .hint("destroy the sandboxes that mount it first")
                    .details(serde_json::json!({ "sandboxes": users }))
            }
            Self::KeepersBusy => Refusal::new(Code::Unavailable, message).retry_after(1),
            Self::SnapshotElsewhere(..) | Self::VolumeElsewhere(..) => {
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
