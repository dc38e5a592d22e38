//! The trait [`Engine`]: the interface between the server and the part that runs sandboxes.
//!
//! [`Engine`] is implemented by [`NodeEngine`], the client of our own nodes, and by the tests' fake. Engines
//! declare their capabilities; other requests get a typed refusal.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests may spawn, sleep and poison locks"
    )
)]

mod behalf;
mod node;
mod refusal;

use async_trait::async_trait;
pub use behalf::{on_behalf, on_behalf_of};
use coffer_core::network::{Policy, Refusals};
use coffer_core::{Boot, Memory, SandboxId, SnapshotId, TemplateDefaults, VolumeId};
pub use coffer_wire::node::{
    Capabilities, CreateSandbox, DeathCause, KernelFeature, NodeInfo, NodeMount, Notice, Orphan, Placement,
    Pressure, RunState, Sample, SandboxStatus, SnapshotInfo, TemplateInfo, VolumeInfo,
};
pub use node::NodeEngine;
use tokio::sync::broadcast;

/// Creates, runs and destroys sandboxes. Calls are idempotent by sandbox id.
#[async_trait]
pub trait Engine: Send + Sync + std::fmt::Debug {
    async fn info(&self) -> Result<NodeInfo, EngineError>;
    async fn templates(&self) -> Result<Vec<TemplateInfo>, EngineError>;
    async fn create(&self, spec: &CreateSandbox) -> Result<Placement, EngineError>;
    /// Unknown ids are allowed.
    async fn destroy(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    async fn freeze(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    async fn thaw(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    /// Ends all processes and keeps the files.
    async fn stop(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    /// Boots a stopped sandbox on its files; restores a hibernated one unless `boot` is cold, which discards
    /// its memory.
    async fn start(&self, sandbox: SandboxId, boot: Boot) -> Result<Placement, EngineError>;
    /// Saves all processes to disk and ends them. Refused, with nothing changed, if the engine cannot save
    /// memory.
    async fn hibernate(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    /// Saves the files of a sandbox, and with memory its processes, at one moment.
    async fn snapshot(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<SnapshotInfo, EngineError>;
    /// Unknown ids are allowed. Sandboxes from it keep running.
    async fn delete_snapshot(&self, snapshot: SnapshotId) -> Result<(), EngineError>;
    /// Every snapshot that sandboxes can start from.
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, EngineError>;
    /// Creates a volume, or changes the limit of the one of that id.
    async fn create_volume(&self, volume: VolumeId, limit_mib: u64) -> Result<(), EngineError>;
    /// Unknown ids are allowed. Refused while a sandbox mounts it.
    async fn delete_volume(&self, volume: VolumeId) -> Result<(), EngineError>;
    async fn volumes(&self) -> Result<Vec<VolumeInfo>, EngineError>;
    /// Replaces a sandbox's files with those of a snapshot, and boots it on them.
    async fn rollback(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<Placement, EngineError>;
    /// Replaces the defaults that later snapshots of the sandbox carry.
    async fn set_defaults(&self, sandbox: SandboxId, defaults: &TemplateDefaults) -> Result<(), EngineError>;
    /// Replaces the policy and cuts the connections that it forbids.
    async fn set_network(&self, sandbox: SandboxId, policy: &Policy) -> Result<(), EngineError>;
    /// The refusals after this sequence.
    async fn refusals(&self, sandbox: SandboxId, after: u64) -> Result<Refusals, EngineError>;
    async fn list(&self) -> Result<Vec<SandboxStatus>, EngineError>;
    async fn stats(&self) -> Result<Vec<Sample>, EngineError>;
    /// Events from now on. [`EngineNotice::Reconnected`] means that events may have been missed and the
    /// engine should be listed again.
    fn notices(&self) -> broadcast::Receiver<EngineNotice>;
}

/// An event of an engine.
#[derive(Debug, Clone)]
pub enum EngineNotice {
    Died { sandbox: SandboxId, cause: DeathCause },
    Reconnected,
}

/// Why a call to an engine failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    #[error("template `{0}` not found")]
    UnknownTemplate(String),
    #[error("the engine does not have this sandbox")]
    UnknownSandbox,
    #[error("the engine does not have this snapshot")]
    UnknownSnapshot,
    #[error("the engine does not have this volume")]
    UnknownVolume,
    #[error("{0}")]
    WrongState(String),
    #[error("the host has no room for this: {0}")]
    NoCapacity(String),
    #[error("this engine cannot do that: {0}")]
    Unsupported(String),
    /// The engine is unreachable; the same call may work again soon.
    #[error("the engine does not answer: {0}")]
    Unavailable(String),
    /// The circuit breaker is open; nothing was sent.
    #[error("the engine does not answer; not trying again for {retry_after_s} s")]
    Resting { retry_after_s: u32 },
    #[error("the engine failed: {0}")]
    Failed(String),
}

impl EngineError {
    /// Whether there was no answer: the same call may work later.
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Resting { .. })
    }
}
