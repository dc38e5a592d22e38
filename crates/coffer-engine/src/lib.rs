//! The seam to sandboxes: what the server asks of whatever runs them.
//!
//! [`Engine`] is implemented by [`NodeEngine`], the client of our own nodes, and by the tests'
//! fake. Engines declare what they can do; what they cannot is a typed refusal.
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
use coffer_core::{Boot, Memory, SandboxId, SnapshotId};
pub use coffer_wire::node::{
    Capabilities, CreateSandbox, DeathCause, KernelFeature, NodeInfo, Notice, Orphan, Placement, Pressure,
    RunState, Sample, SandboxStatus, SnapshotInfo, TemplateInfo,
};
pub use node::NodeEngine;
use tokio::sync::broadcast;

/// Whatever makes, keeps and ends sandboxes. Calls are idempotent by sandbox id.
#[async_trait]
pub trait Engine: Send + Sync + std::fmt::Debug {
    async fn info(&self) -> Result<NodeInfo, EngineError>;
    async fn templates(&self) -> Result<Vec<TemplateInfo>, EngineError>;
    async fn create(&self, spec: &CreateSandbox) -> Result<Placement, EngineError>;
    /// Fine for ids the engine does not know.
    async fn destroy(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    async fn freeze(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    async fn thaw(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    /// Ends all processes and keeps the files.
    async fn stop(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    /// Boots a stopped sandbox on its files; restores a hibernated one unless `boot` is cold, which loses what
    /// its memory held.
    async fn start(&self, sandbox: SandboxId, boot: Boot) -> Result<Placement, EngineError>;
    /// Writes all processes to disk and ends them. Refused, with nothing changed, where the engine
    /// cannot save memory.
    async fn hibernate(&self, sandbox: SandboxId) -> Result<(), EngineError>;
    /// Keeps the files of a sandbox, and with memory its processes, as they are at one moment.
    async fn snapshot(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<SnapshotInfo, EngineError>;
    /// Fine for ids the engine does not know. Sandboxes that stand on it go on.
    async fn delete_snapshot(&self, snapshot: SnapshotId) -> Result<(), EngineError>;
    /// Every snapshot that sandboxes can start from.
    async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, EngineError>;
    /// Makes a sandbox's files what they were in a snapshot, and boots it on them.
    async fn rollback(
        &self,
        sandbox: SandboxId,
        snapshot: SnapshotId,
        memory: Memory,
    ) -> Result<Placement, EngineError>;
    /// Puts another policy in force and cuts the connections that it forbids.
    async fn set_network(&self, sandbox: SandboxId, policy: &Policy) -> Result<(), EngineError>;
    /// What was refused after that sequence.
    async fn refusals(&self, sandbox: SandboxId, after: u64) -> Result<Refusals, EngineError>;
    async fn list(&self) -> Result<Vec<SandboxStatus>, EngineError>;
    async fn stats(&self) -> Result<Vec<Sample>, EngineError>;
    /// What happens unasked from now on. [`EngineNotice::Reconnected`] means that notices may have
    /// been missed and the engine should be listed again.
    fn notices(&self) -> broadcast::Receiver<EngineNotice>;
}

/// Something an engine tells unasked.
#[derive(Debug, Clone)]
pub enum EngineNotice {
    Died { sandbox: SandboxId, cause: DeathCause },
    Reconnected,
}

/// Why an engine did not do as asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    #[error("there is no template `{0}`")]
    UnknownTemplate(String),
    #[error("the engine has no such sandbox")]
    UnknownSandbox,
    #[error("the engine has no such snapshot")]
    UnknownSnapshot,
    #[error("{0}")]
    WrongState(String),
    #[error("the host has no room for this: {0}")]
    NoCapacity(String),
    #[error("this engine cannot do that: {0}")]
    Unsupported(String),
    /// The engine is away or broke off; the same call may work again soon.
    #[error("the engine does not answer: {0}")]
    Unavailable(String),
    /// It has not answered for a while and is not asked again just yet; nothing was sent.
    #[error("the engine does not answer and is left alone for {retry_after_s} s")]
    Resting { retry_after_s: u32 },
    #[error("the engine failed: {0}")]
    Failed(String),
}

impl EngineError {
    /// Whether nobody answered: the same call may work later.
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Resting { .. })
    }
}
