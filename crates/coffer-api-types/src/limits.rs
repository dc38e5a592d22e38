//! Settings and quotas of a project, and leases.

use coffer_core::commit::CommitPolicy;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandboxes::AtTimeout;

/// What holds for a project's sandboxes and records unless they say otherwise. What is left out or null is for
/// the server to decide.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SettingsShape {
    /// How long a sandbox made by `/api/v1` lives unless its request says so, in seconds.
    #[schema(minimum = 1)]
    pub timeout_s: Option<i64>,
    /// Sandboxes that nothing used for so long end, or pause, as `on_timeout` says; 0 is never.
    #[schema(minimum = 0)]
    pub idle_s: Option<i64>,
    /// The longest that a sandbox may run, whatever is asked, in seconds.
    #[schema(minimum = 1)]
    pub max_lifetime_s: Option<i64>,
    pub on_timeout: Option<AtTimeout>,
    pub retention: RetentionShape,
    pub git: GitShape,
}

/// How sandboxes commit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct GitShape {
    /// As whom; both are needed before anything can be committed.
    #[schema(example = "Ada Lovelace")]
    pub name: Option<String>,
    #[schema(example = "ada@example.com")]
    pub email: Option<String>,
    /// What commit messages must be like.
    #[schema(value_type = Object)]
    pub commits: CommitPolicy,
}

/// How many days what is over is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RetentionShape {
    /// Output is compressed after these.
    #[schema(minimum = 1, maximum = 36500)]
    pub archive_logs_days: Option<i64>,
    #[schema(minimum = 1, maximum = 36500)]
    pub logs_days: Option<i64>,
    /// Of sandboxes that have ended.
    #[schema(minimum = 1, maximum = 36500)]
    pub records_days: Option<i64>,
    #[schema(minimum = 1, maximum = 36500)]
    pub events_days: Option<i64>,
    #[schema(minimum = 1, maximum = 36500)]
    pub audit_days: Option<i64>,
}

/// The settings of a project, and what they come to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Settings {
    #[serde(flatten)]
    pub own: SettingsShape,
    /// What holds, with the server's own where the project has none.
    pub in_force: SettingsShape,
}

/// How much of each a project may have at a time; null is for the server to decide.
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
    /// Of all sandboxes, paused ones included.
    #[schema(minimum = 0)]
    pub disk_mib: Option<i64>,
    /// Live forks of all sandboxes together.
    #[schema(minimum = 0)]
    pub forks: Option<i64>,
    /// Attempts at tasks and competitions that are under way at once; others are queued.
    pub runs: Option<i64>,
    /// What repositories, Git LFS and artifacts keep together.
    #[schema(minimum = 0)]
    pub storage_mib: Option<i64>,
}

/// How much of each is in use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UseShape {
    pub sandboxes: i64,
    pub cpus: i64,
    pub memory_mib: i64,
    pub disk_mib: i64,
    /// With room for what is being pushed or uploaded.
    pub storage_mib: i64,
}

/// A project's quotas; null in `limits` is as much as there is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QuotaState {
    pub limits: QuotasShape,
    pub used: UseShape,
    /// Those that an operator gave this project; the others are the server's.
    pub own: QuotasShape,
}

/// Until when a sandbox is believed to be wanted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    pub lease_s: i64,
    pub expires_at: String,
}
