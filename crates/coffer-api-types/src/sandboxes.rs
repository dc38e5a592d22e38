//! Sandboxes.

use std::collections::BTreeMap;

use coffer_core::network::Policy;
use coffer_core::{AgentId, SnapshotId, TaskId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::network::PolicyShape;
use crate::volumes::{NewMount, VolumeMount};

/// A new sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSandbox {
    /// `base` by default; the name of a snapshot also works.
    pub template: Option<String>,
    /// Start from this snapshot of the project, instead of a template.
    #[schema(value_type = Option<String>)]
    pub snapshot_id: Option<SnapshotId>,
    /// With a snapshot: whether to continue its processes. By default they continue if the snapshot has them;
    /// true is refused if it has none.
    pub memory: Option<bool>,
    pub metadata: BTreeMap<String, String>,
    /// Environment of every process in it.
    pub env: BTreeMap<String, String>,
    /// Variables that get the value of a secret of the project, by the secret's name.
    #[schema(example = json!({"GITHUB_TOKEN": "github"}))]
    pub secrets: BTreeMap<String, String>,
    /// How long it lives, in seconds; the project's default, or an hour.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    pub on_timeout: Option<AtTimeout>,
    /// It ends or pauses after this many seconds without activity; 0 is never.
    #[schema(minimum = 0)]
    pub idle_s: Option<i64>,
    /// The longest it may run, in seconds; at most the project's maximum.
    #[schema(minimum = 1)]
    pub max_lifetime_s: Option<i64>,
    /// It ends or pauses if no heartbeat arrives for this many seconds.
    #[schema(minimum = 1, maximum = 86400)]
    pub lease_s: Option<i64>,
    /// Whether traffic resumes it from a pause.
    pub auto_resume: bool,
    /// Its network policy; the web by default.
    #[schema(value_type = Option<PolicyShape>)]
    pub network: Option<Policy>,
    /// The agent that owns it; with an agent's key, that agent.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    // Left out if not given: digests of requests from before there was the field stay the same.
    /// The task of the project that it is for.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// Processors, instead of the server's default or the snapshot's. `GET /api/v1/host` shows the largest value. If
    /// the processes of a snapshot continue, processors and memory must be the snapshot's.
    #[schema(minimum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// Memory, instead of the default.
    #[schema(minimum = 64)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Disk, instead of the default: how much it may write on top of its template or snapshot, so it may be smaller
    /// than the snapshot.
    #[schema(minimum = 16)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u64>,
    /// Volumes to mount, at most 16; with an agent's key only read-only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<NewMount>,
}

/// The action at the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AtTimeout {
    Kill,
    Pause,
    PauseFilesOnly,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    pub id: String,
    /// `creating`, `running`, `paused`, `terminated` or `error`.
    pub state: String,
    /// Why it ended, or what a paused one keeps.
    pub reason: Option<String>,
    pub template: String,
    pub agent_id: Option<String>,
    /// The task that it is for.
    pub task_id: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    pub created_at: String,
    pub started_at: String,
    /// When its timeout is reached.
    pub deadline: String,
    pub on_timeout: AtTimeout,
    pub auto_resume: bool,
    pub ended_at: Option<String>,
    /// It ends or pauses after this many seconds without activity.
    pub idle_s: Option<i64>,
    pub max_lifetime_s: Option<i64>,
    pub lease_s: Option<i64>,
    /// When its lease expires, unless a heartbeat arrives.
    pub lease_expires_at: Option<String>,
    /// When it was last used. If another server holds it, or it has ended, as last recorded; null if no use is on
    /// record.
    pub last_activity_at: Option<String>,
    /// The installation whose host holds it; null if the server has no name for itself.
    pub installation: Option<String>,
    /// The sandbox whose snapshot it started from.
    pub parent_id: Option<String>,
    /// The snapshot it started from; forks of one request have the same.
    pub snapshot_id: Option<String>,
    /// Which fork of a request it is, from 1.
    pub fork_position: Option<i64>,
    /// Volumes that it mounts.
    #[serde(default)]
    pub volumes: Vec<VolumeMount>,
}

/// One state change of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LifeStep {
    pub from: Option<String>,
    pub to: String,
    pub reason: String,
    pub at: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PauseBody {
    /// Whether to keep running processes; true by default.
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeBody {
    /// How long it lives from now on, in seconds; the project's default, or an hour.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    /// False boots it from its files and discards its memory.
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Extension {
    /// How long it lives from now on, in seconds.
    #[schema(minimum = 1)]
    pub timeout_s: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SandboxQuery {
    /// Only in one of these states, joined by commas; all by default.
    #[param(example = "running,paused")]
    #[param(value_type = Option<String>)]
    #[serde(default)]
    pub state: Vec<String>,
    /// Only of this template.
    pub template: Option<String>,
    /// Only of this agent.
    #[param(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Only for this task.
    #[param(value_type = Option<String>)]
    pub task_id: Option<TaskId>,
    /// Only with this pair of metadata: `key=value`, where the first `=` ends the key. May be repeated; all pairs must
    /// match.
    #[param(value_type = Option<Vec<String>>, example = json!(["team=core"]))]
    #[serde(default)]
    pub metadata: Vec<String>,
    /// `desc` (newest first, the default) or `asc`.
    pub order: Option<String>,
}

/// Selects samples by their time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SampleQuery {
    /// Samples of this time or later, such as `2026-01-31T12:00:00Z`.
    pub start: Option<String>,
    /// Samples of this time or earlier.
    pub end: Option<String>,
}

/// What a sandbox used at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxSample {
    pub at: String,
    pub cpu_count: u32,
    /// The part of its processors that it used since the sample before, from 0 to 100.
    pub cpu_used_pct: f64,
    /// Without the page cache.
    pub memory_used_bytes: u64,
    /// The page cache, which the kernel frees when the sandbox needs memory.
    pub memory_cache_bytes: u64,
    pub memory_total_bytes: u64,
    pub disk_used_bytes: u64,
    pub disk_total_bytes: u64,
}

/// A sandbox and its project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OwnedSandbox {
    pub project_id: String,
    pub sandbox: Sandbox,
}
