//! The server, and the host of the sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the host of the sandboxes can and cannot do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// What runs the sandboxes.
    pub engine: String,
    /// Whether processes can be frozen where they are.
    pub freeze: bool,
    /// Whether memory can be put on disk: pauses that outlive the host, snapshots and forks with processes.
    pub memory_snapshot: bool,
    /// Why not, where it cannot.
    pub memory_snapshot_lacks: Option<String>,
    pub disk_quota: bool,
    pub memory_limit: bool,
    pub cpu_limit: bool,
    pub process_limit: bool,
    pub network: bool,
}

/// What an operator sees of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostReport {
    pub engine: String,
    /// What this host lacks and what follows from it.
    pub warnings: Vec<String>,
    /// Every kernel feature that sandboxes use.
    pub kernel: Vec<KernelFeature>,
    /// The latest requests that the host failed, oldest first. Tenants are told `host_failed` and the request's id.
    pub failures: Vec<HostFailure>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelFeature {
    pub name: String,
    pub present: bool,
    /// What the kernel said, where it is missing.
    pub why: Option<String>,
    /// What follows from that.
    pub without: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostFailure {
    pub at: String,
    pub request_id: Option<String>,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub status: String,
    pub version: String,
}
