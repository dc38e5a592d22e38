//! Settings and quotas of a project, and leases.

use coffer_core::AgentId;
use coffer_core::commit::CommitPolicy;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandboxes::AtTimeout;

/// Defaults for a project's sandboxes and records. A field that is left out or null has the server's default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SettingsShape {
    /// How long a sandbox created by `/api/v1` lives by default, in seconds.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    /// Sandboxes that are idle for this many seconds end or pause, as `on_timeout` says; 0 is never.
    #[schema(minimum = 0)]
    pub idle_s: Option<i64>,
    /// The longest that a sandbox may run, in seconds; requests cannot exceed it.
    #[schema(minimum = 1)]
    pub max_lifetime_s: Option<i64>,
    pub on_timeout: Option<AtTimeout>,
    pub retention: RetentionShape,
    pub git: GitShape,
    pub tasks: TaskRulesShape,
}

/// What starts a task by itself. On GitHub only people who may write to the repository can do so.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskRulesShape {
    /// A label that makes a task of an issue on GitHub and starts it.
    #[schema(example = "cofferdam")]
    pub label: Option<String>,
    /// A login: assigning it to an issue on GitHub does the same.
    pub assignee: Option<String>,
    /// A handle without `@`: naming it in a comment on an issue does the same, and steers the task that there is. In a
    /// comment on a task's pull request it starts the next attempt.
    pub mention: Option<String>,
    /// The agent of such tasks.
    #[schema(value_type = Option<String>)]
    pub agent_id: Option<AgentId>,
    /// Whether giving a task to an agent starts it.
    pub start_on_assign: bool,
    /// Whether moving a task to `in_progress` starts it.
    pub start_on_move: bool,
}

/// Author and messages of commits in sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GitShape {
    /// The author; name and e-mail are required before anything can be committed.
    #[schema(example = "Ada Lovelace")]
    pub name: Option<String>,
    #[schema(example = "ada@example.com")]
    pub email: Option<String>,
    /// Rules for commit messages.
    #[schema(value_type = Object)]
    pub commits: CommitPolicy,
}

/// How many days records are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RetentionShape {
    /// After how many days output is compressed.
    #[schema(minimum = 1, maximum = 36500)]
    pub archive_logs_days: Option<i64>,
    #[schema(minimum = 1, maximum = 36500)]
    pub logs_days: Option<i64>,
    /// Records of sandboxes that have ended.
    #[schema(minimum = 1, maximum = 36500)]
    pub records_days: Option<i64>,
    #[schema(minimum = 1, maximum = 36500)]
    pub events_days: Option<i64>,
    #[schema(minimum = 1, maximum = 36500)]
    pub audit_days: Option<i64>,
}

/// The settings of a project, and the resulting values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Settings {
    #[serde(flatten)]
    pub own: SettingsShape,
    /// The values that apply, with the server's defaults filled in.
    pub in_force: SettingsShape,
}

/// Quotas of a project; null means the server's default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QuotasShape {
    /// Sandboxes that run; paused ones count only by their disk.
    #[schema(minimum = 0)]
    pub sandboxes: Option<i64>,
    #[schema(minimum = 0)]
    pub cpus: Option<i64>,
    #[schema(minimum = 0)]
    pub memory_mib: Option<i64>,
    /// Disk of all sandboxes, paused ones included, of snapshots and of volumes.
    #[schema(minimum = 0)]
    pub disk_mib: Option<i64>,
    /// Live forks of all sandboxes together.
    #[schema(minimum = 0)]
    pub forks: Option<i64>,
    /// Attempts at tasks and competitions that run at once; others are queued.
    pub runs: Option<i64>,
    /// Storage of repositories, Git LFS and artifacts together.
    #[schema(minimum = 0)]
    pub storage_mib: Option<i64>,
}

/// How much of each quota is in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UseShape {
    pub sandboxes: i64,
    pub cpus: i64,
    pub memory_mib: i64,
    pub disk_mib: i64,
    /// Includes reservations of pushes and uploads in progress.
    pub storage_mib: i64,
}

/// A project's quotas; null in `limits` means no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuotaState {
    pub limits: QuotasShape,
    pub used: UseShape,
    /// Quotas that an operator set for this project; the others are the server's.
    pub own: QuotasShape,
}

/// The lease of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    pub lease_s: i64,
    pub expires_at: String,
}
