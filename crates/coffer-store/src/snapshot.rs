//! What is known of one snapshot.

use std::collections::BTreeMap;

use coffer_core::{AgentId, Limits, Millis, ProjectId, SandboxId, SnapshotId, SnapshotState};

use crate::OverQuota;

/// A snapshot that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    pub id: SnapshotId,
    /// The sandbox that it is made of.
    pub sandbox: SandboxId,
    /// The agent that asked for it.
    pub agent: Option<AgentId>,
    pub name: Option<String>,
    pub tag: String,
    /// Whether it shall have the processes.
    pub memory: bool,
    /// The engine's name of the template at its bottom.
    pub template: String,
    pub limits: Limits,
    /// Variables that have a secret's value in its memory, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    /// The key that asked for it.
    pub created_by: Option<String>,
}

/// A recorded snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    pub id: SnapshotId,
    pub project: ProjectId,
    pub sandbox: SandboxId,
    pub agent: Option<AgentId>,
    /// The installation whose host has it.
    pub installation: Option<String>,
    pub state: SnapshotState,
    pub name: Option<String>,
    pub tag: String,
    /// Whether its name stands for it.
    pub is_current: bool,
    pub memory: bool,
    /// Why it has no memory, where that was not asked for.
    pub note: Option<String>,
    pub template: String,
    pub limits: Limits,
    pub secrets: BTreeMap<String, String>,
    pub files_bytes: u64,
    pub memory_bytes: u64,
    /// How long its sandbox stood still for it.
    pub paused_us: u64,
    pub created_by: Option<String>,
    pub created_ms: Millis,
}

/// What [`Store::insert_snapshot`](crate::Store::insert_snapshot) did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertedSnapshot {
    New,
    /// The project may have no more; nothing was recorded.
    OverQuota(OverQuota),
    /// The same request came before and made this one.
    Existing(Box<SnapshotRow>),
    /// The idempotency key belongs to a request that asked for something else.
    KeyReusedDifferently,
}

/// What is known of a snapshot once it is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotFacts {
    pub memory: bool,
    pub note: Option<String>,
    pub files_bytes: u64,
    pub memory_bytes: u64,
    pub paused_us: u64,
}

/// What [`Store::finish_snapshot`](crate::Store::finish_snapshot) did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishedSnapshot {
    Ready(Box<SnapshotRow>),
    /// It is larger than the project has room for, and not ready.
    OverQuota(OverQuota),
    /// Somebody has deleted it.
    Gone,
}

/// Which snapshots to list.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Those of this sandbox.
    pub sandbox: Option<SandboxId>,
    pub name: Option<String>,
    pub tag: Option<String>,
    /// Leave out those that are not ready, and those whose name stands for a newer one.
    pub usable_only: bool,
    /// Older than this one.
    pub before: Option<SnapshotId>,
    pub limit: u32,
}
