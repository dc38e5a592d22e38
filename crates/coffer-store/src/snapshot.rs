//! Types of snapshot records.

use std::collections::BTreeMap;

use coffer_core::{
    AgentId, Limits, Millis, ProjectId, SandboxId, SnapshotId, SnapshotPurpose, SnapshotState,
};

use crate::OverQuota;

/// A snapshot that is about to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    pub id: SnapshotId,
    /// Its source.
    pub sandbox: SandboxId,
    /// The agent that requested it.
    pub agent: Option<AgentId>,
    pub name: Option<String>,
    pub tag: String,
    /// Whether to include the processes.
    pub memory: bool,
    /// The engine's name of its base template.
    pub template: String,
    pub limits: Limits,
    /// Variables with a secret's value in its memory, by the secret's name.
    pub secrets: BTreeMap<String, String>,
    /// The key that requested it.
    pub created_by: Option<String>,
    pub purpose: SnapshotPurpose,
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
    /// Whether its name refers to it.
    pub is_current: bool,
    pub memory: bool,
    /// Why it has no memory, if that was not requested.
    pub note: Option<String>,
    pub template: String,
    pub limits: Limits,
    pub secrets: BTreeMap<String, String>,
    pub files_bytes: u64,
    pub memory_bytes: u64,
    /// How long its source was frozen for it.
    pub paused_us: u64,
    pub created_by: Option<String>,
    pub created_ms: Millis,
    pub purpose: SnapshotPurpose,
}

/// The result of [`Store::insert_snapshot`](crate::Store::insert_snapshot).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InsertedSnapshot {
    New,
    /// The quota is used up; nothing was recorded.
    OverQuota(OverQuota),
    /// The same request came before and created this one.
    Existing(Box<SnapshotRow>),
    /// The idempotency key belongs to a different request.
    KeyReusedDifferently,
}

/// Facts about a snapshot once it exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotFacts {
    pub memory: bool,
    pub note: Option<String>,
    pub files_bytes: u64,
    pub memory_bytes: u64,
    pub paused_us: u64,
}

/// The result of [`Store::finish_snapshot`](crate::Store::finish_snapshot).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishedSnapshot {
    Ready(Box<SnapshotRow>),
    /// It exceeds the project's quota, and is not ready.
    OverQuota(OverQuota),
    /// It was deleted.
    Gone,
}

/// Selects snapshots.
#[derive(Debug, Clone, Default)]
pub struct SnapshotFilter {
    /// Only of this sandbox.
    pub sandbox: Option<SandboxId>,
    pub name: Option<String>,
    pub tag: Option<String>,
    /// Leave out those that are not ready, and those whose name refers to a newer one.
    pub usable_only: bool,
    /// Older than this one.
    pub before: Option<SnapshotId>,
    pub limit: u32,
}
