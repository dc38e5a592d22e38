//! Volumes: directories that outlive sandboxes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A new volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// 1 to 128 letters, digits, dashes and underscores; unique in the project.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9_-]+$")]
    pub name: String,
    /// Its disk limit, which counts in the quota `disk_mib`; the server's default if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 16_777_216)]
    pub size_mib: Option<u64>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    pub id: String,
    pub name: String,
    /// Its disk limit.
    pub size_mib: u64,
    pub created_at: String,
    /// The installation whose host has it; null if the server has no name for itself.
    pub installation: Option<String>,
}

/// A volume, with its use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeDetail {
    #[serde(flatten)]
    pub volume: Volume,
    /// Bytes in it; null if its host does not answer.
    pub used_bytes: Option<u64>,
    /// Live sandboxes that mount it, up to 1000.
    pub sandboxes: Vec<String>,
}

/// A volume to mount in a new sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMount {
    /// The volume's name.
    pub name: String,
    /// Where it appears: absolute, and not in `/proc`, `/sys`, `/dev` or `/run`.
    #[schema(example = "/data")]
    pub path: String,
    #[serde(default)]
    pub read_only: bool,
}

/// A volume in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
    pub read_only: bool,
}
