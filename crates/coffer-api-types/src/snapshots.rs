//! Snapshots.

use coffer_core::{SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A new snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSnapshot {
    /// `name` or `name:tag`. Once the snapshot is ready, the name refers to it instead of an earlier one.
    #[schema(example = "built:v2")]
    pub name: Option<String>,
    /// Whether to save the processes too. True is refused if that is not possible; by default they are saved
    /// if possible.
    pub memory: Option<bool>,
    /// Whether values of secrets that the processes hold may be in it, and in every sandbox created from it.
    /// If not, a sandbox that has secrets is saved without its processes.
    pub inherit_secrets: bool,
}

/// A snapshot: the state of a sandbox at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub id: String,
    /// `creating`, `ready` or `deleting`.
    pub state: String,
    /// Its source, which may have ended.
    pub sandbox_id: String,
    pub name: Option<String>,
    pub tag: String,
    /// The full name, which a create takes as its `template`; null without a name, or if the name refers to a
    /// newer snapshot.
    pub full_name: Option<String>,
    /// Whether sandboxes from it continue its processes.
    pub memory: bool,
    /// Why not, if `memory` was left out.
    pub note: Option<String>,
    pub template: String,
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    pub files_bytes: u64,
    pub memory_bytes: u64,
    /// How long the sandbox was frozen for it, in microseconds.
    pub paused_us: u64,
    /// The key that requested it.
    pub created_by: Option<String>,
    pub created_at: String,
    /// The installation whose host has it.
    pub installation: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SnapshotQuery {
    /// Only of this sandbox.
    #[param(value_type = Option<String>)]
    pub sandbox_id: Option<SandboxId>,
    /// Only with this name, also if the name refers to a newer one; with `:tag` only with that tag.
    pub name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackBody {
    /// One of the sandbox itself, or the one it started from.
    #[schema(value_type = String)]
    pub snapshot_id: SnapshotId,
    /// Whether to continue the snapshot's processes; by default they continue if it has them.
    #[serde(default)]
    pub memory: Option<bool>,
    /// How long a paused sandbox lives from then on, in seconds. A running one keeps its deadline.
    #[schema(minimum = 1)]
    #[serde(default)]
    pub timeout_s: Option<i64>,
}
