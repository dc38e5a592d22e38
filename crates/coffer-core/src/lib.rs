//! The rules of Cofferdam: identities, sandbox states, limits, lifetimes, agents, and policies for networks and
//! commands.
//!
//! Nothing here does I/O or knows a runtime, so every rule can be tested exhaustively. Times are milliseconds since
//! the Unix epoch, passed in by the caller; [`clock`] is the one place that reads them.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

#[macro_use]
mod names;

pub mod agent;
mod build;
pub mod clock;
mod code;
pub mod command;
pub mod commit;
pub mod compete;
mod delivery;
pub mod devcontainer;
mod error;
pub mod event;
mod failure;
pub mod forge;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod git;
mod id;
pub mod life;
mod lifetime;
mod limits;
pub mod mirrors;
pub mod model;
pub mod network;
pub mod pkt_line;
mod question;
mod record;
mod refusal;
mod role;
mod run;
pub mod schedule;
pub mod settings;
mod snapshot;
mod state;
pub mod sync;
mod task;
mod template;
mod volume;
mod volume_state;

pub use build::{
    BuildCause, BuildLogLevel, BuildPlan, BuildSource, BuildState, BuildStep, BuildStepKind, StartCommand,
    TemplateDefaults,
};
pub use code::Code;
pub use delivery::{DeliveryCause, DeliveryState};
pub use error::chain;
pub use failure::{FailureCode, StepCode};
pub use id::{
    AgentId, ArtifactId, AuditId, BadId, BudgetId, BuildId, CommentId, CompetitionId, ConnectionId,
    DeliveryId, ExecutionId, GitOperationId, Id, KeyId, ModelCallId, ModelGrantId, PersonId, ProjectId,
    RepositoryId, ReservationId, RunId, RunnerId, SandboxId, ScheduleId, SecretId, SnapshotId, TaskId,
    TemplateId, VolumeId, WebhookId,
};
pub use lifetime::{BadTimeout, Lifetime, LifetimePolicy, OnTimeout};
pub use limits::{BadSize, LargestSize, Limits, SizeWish};
pub use question::{Answer, Question};
pub use record::{ArtifactKind, BudgetAction, BudgetPeriod, ExecutionSource, ExecutionState};
pub use refusal::Refusal;
pub use role::{BadKeyKind, BadRole, KeyKind, Role};
pub use run::{RunCause, RunFailure, RunOutcome, RunState, StepCause, StepState, Unwinding};
pub use snapshot::{SnapshotCause, SnapshotPurpose, SnapshotState};
pub use state::{
    Boot, Cause, DestroyReason, Fault, Kept, Memory, Refused, SandboxPurpose, SandboxState, StateName,
};
pub use task::{Attention, Priority, TaskCause, TaskIssue, TaskState};
pub use template::{BadTemplateRef, TemplateRef};
pub use volume::{BadMount, BadVolumeName, MOST_MOUNTS, MountPath, VolumeName, check_mounts};
pub use volume_state::{VolumeCause, VolumeState};

/// Milliseconds since the Unix epoch.
pub type Millis = i64;
