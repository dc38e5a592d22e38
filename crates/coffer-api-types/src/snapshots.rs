//! Snapshots.

use coffer_core::{SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A snapshot to be made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NewSnapshot {
    /// `name` or `name:tag`. From when it is made, the name stands for it and no longer for one before it.
    #[schema(example = "built:v2")]
    pub name: Option<String>,
    /// Whether the processes are kept too. True is refused where that cannot be; by default they are kept where
    /// it can.
    pub memory: Option<bool>,
    /// Whether values of secrets that the processes hold may be in it, and in every sandbox made from it. Without,
    /// a sandbox that has some is kept without its processes.
    pub inherit_secrets: bool,
}

/// What a sandbox was at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub id: String,
    /// `creating`, `ready` or `deleting`.
    pub state: String,
    /// The sandbox that it was made of, which may be over.
    pub sandbox_id: String,
    pub name: Option<String>,
    pub tag: String,
    /// The name in full, which a create takes as its `template`; null where there is none, or where it stands for
    /// a newer snapshot.
    pub full_name: Option<String>,
    /// Whether sandboxes made from it go on with its processes.
    pub memory: bool,
    /// Why not, where that was not asked for.
    pub note: Option<String>,
    pub template: String,
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    pub files_bytes: u64,
    pub memory_bytes: u64,
    /// How long the sandbox stood still for it, in microseconds.
    pub paused_us: u64,
    /// The key that asked for it.
    pub created_by: Option<String>,
    pub created_at: String,
    /// The installation whose host has it.
    pub installation: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SnapshotQuery {
    /// Only those of that sandbox.
    #[param(value_type = Option<String>)]
    pub sandbox_id: Option<SandboxId>,
    /// Only those of that name, also where it stands for a newer one; with `:tag` only those of that tag.
    pub name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackBody {
    /// One of the sandbox itself, or the one that it began with.
    #[schema(value_type = String)]
    pub snapshot_id: SnapshotId,
    /// Whether the snapshot's processes go on; by default they do if it has them.
    #[serde(default)]
    pub memory: Option<bool>,
    /// How long a paused sandbox lives from then on, in seconds. One that runs keeps its deadline.
    #[schema(minimum = 1)]
    #[serde(default)]
    pub timeout_s: Option<i64>,
}
