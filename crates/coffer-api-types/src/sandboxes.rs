//! Sandboxes.

use std::collections::BTreeMap;

use coffer_core::network::Policy;
use coffer_core::{AgentId, SnapshotId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::network::PolicyShape;

/// A sandbox to be made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSandbox {
    /// `base` by default; the name of a snapshot also works.
    pub template: Option<String>,
    /// Begin with this snapshot of the project, instead of a template.
    #[schema(value_type = Option<String>)]
    pub snapshot_id: Option<SnapshotId>,
    /// With a snapshot: whether its processes go on. By default they do if it has them; true is refused where
    /// it has none.
    pub memory: Option<bool>,
    pub metadata: BTreeMap<String, String>,
    /// For every process in it.
    pub env: BTreeMap<String, String>,
    /// Variables that get the value of a secret of the project, by its name.
    #[schema(example = json!({"GITHUB_TOKEN": "github"}))]
    pub secrets: BTreeMap<String, String>,
    /// How long it lives unless that is changed, in seconds; by default what its project says, or an hour.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    pub on_timeout: Option<AtTimeout>,
    /// It ends, or pauses, when nothing used it for so many seconds; 0 is never.
    #[schema(minimum = 0)]
    pub idle_s: Option<i64>,
    /// The longest it may run in all, in seconds; no more than its project allows.
    #[schema(minimum = 1)]
    pub max_lifetime_s: Option<i64>,
    /// It ends, or pauses, when its owner sends no heartbeat for so many seconds.
    #[schema(minimum = 1, maximum = 86400)]
    pub lease_s: Option<i64>,
    /// Whether traffic wakes it from a pause.
    pub auto_resume: bool,
    /// What it may reach; the web by default.
    #[schema(value_type = Option<PolicyShape>)]
    pub network: Option<Policy>,
    /// The agent that is to own it; an agent's own key needs not say so.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
}

/// What happens when the time is up.
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
    /// Why it ended, or what is kept while it is paused.
    pub reason: Option<String>,
    pub template: String,
    pub agent_id: Option<String>,
    pub metadata: BTreeMap<String, String>,
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    pub created_at: String,
    pub started_at: String,
    /// When its time is up.
    pub deadline: String,
    pub on_timeout: AtTimeout,
    pub auto_resume: bool,
    pub ended_at: Option<String>,
    /// Seconds after which it is over when nothing used it.
    pub idle_s: Option<i64>,
    pub max_lifetime_s: Option<i64>,
    pub lease_s: Option<i64>,
    /// When it is over unless its owner sends a heartbeat.
    pub lease_expires_at: Option<String>,
    /// When it was last used, which its idle window counts from; null where this server does not hold it live.
    pub last_activity_at: Option<String>,
    /// The installation whose host holds it; null where the server has no name for itself.
    pub installation: Option<String>,
    /// The sandbox whose snapshot it began with.
    pub parent_id: Option<String>,
    /// The snapshot that it began with; children of one fork have one in common.
    pub snapshot_id: Option<String>,
    /// Which child of a fork it is, from 1.
    pub fork_position: Option<i64>,
}

/// One step in a sandbox's life.
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
    /// Whether running processes are kept; true by default.
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeBody {
    /// How long it lives from now on, in seconds; by default what its project says, or an hour.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    /// False boots it from its files, and what its memory held is lost.
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
    /// Only those in one of these states, joined by commas; all by default.
    #[param(example = "running,paused")]
    #[param(value_type = Option<String>)]
    #[serde(default)]
    pub state: Vec<String>,
    /// Only those of that template.
    pub template: Option<String>,
    /// Only those that this agent owns.
    #[param(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// `desc` (newest first, the default) or `asc`.
    pub order: Option<String>,
}

/// A sandbox and the project that it belongs to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OwnedSandbox {
    pub project_id: String,
    pub sandbox: Sandbox,
}
