//! Sandboxes.

use std::collections::BTreeMap;

use coffer_core::network::Policy;
use coffer_core::{AgentId, SnapshotId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::network::PolicyShape;

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
    /// When it was last used, from which its idle time counts; null if this server does not hold it live.
    pub last_activity_at: Option<String>,
    /// The installation whose host holds it; null if the server has no name for itself.
    pub installation: Option<String>,
    /// The sandbox whose snapshot it started from.
    pub parent_id: Option<String>,
    /// The snapshot it started from; forks of one request have the same.
    pub snapshot_id: Option<String>,
    /// Which fork of a request it is, from 1.
    pub fork_position: Option<i64>,
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
    /// `desc` (newest first, the default) or `asc`.
    pub order: Option<String>,
}

/// A sandbox and its project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OwnedSandbox {
    pub project_id: String,
    pub sandbox: Sandbox,
}
