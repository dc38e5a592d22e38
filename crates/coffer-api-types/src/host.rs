//! The server, and the host of the sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Capabilities of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// The engine that runs the sandboxes.
    pub engine: String,
    /// Whether processes can be frozen in memory.
    pub freeze: bool,
    /// Whether memory can be saved to disk: for pauses that outlive the host, snapshots and forks with
    /// processes.
    pub memory_snapshot: bool,
    /// Why not, if it cannot.
    pub memory_snapshot_lacks: Option<String>,
    pub disk_quota: bool,
    pub memory_limit: bool,
    pub cpu_limit: bool,
    pub process_limit: bool,
    pub network: bool,
    /// The largest sandbox that can be created here, whatever the project's quotas are.
    pub largest_sandbox: LargestSandbox,
}

/// The largest values of a new sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LargestSandbox {
    pub cpu_count: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
}

/// The host as an operator sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostReport {
    pub engine: String,
    /// Missing features of this host and their effects.
    pub warnings: Vec<String>,
    /// Every kernel feature that sandboxes use.
    pub kernel: Vec<KernelFeature>,
    /// The latest failures of the host, oldest first. Tenants get `host_failed` and the request's id.
    pub failures: Vec<HostFailure>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KernelFeature {
    pub name: String,
    pub present: bool,
    /// The kernel's answer, if the feature is missing.
    pub why: Option<String>,
    /// The effect of that.
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
