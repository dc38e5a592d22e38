//! The node's requests to the spawner and its answers. JSON in one packet each.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::features::{Feature, Features};
use crate::network::Families;

/// Everything the spawner must know to create one sandbox. Sent with the listening socket of agentd and, when
/// `gated`, the end of a pipe that the child waits on before it executes agentd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpawnRequest {
    /// Repeated in every answer about this sandbox.
    pub(crate) token: u64,
    /// The first of the 65,536 host ids that the sandbox's ids map to.
    pub(crate) uid_base: u32,
    /// The v2 cgroup directory to start in.
    pub(crate) cgroup: Option<PathBuf>,
    /// The root first, then those mounted on it.
    pub(crate) overlays: Vec<OverlayMount>,
    pub(crate) recipe: OverlayRecipe,
    /// The static binary that becomes process 1.
    pub(crate) agentd: PathBuf,
    pub(crate) binds: Vec<FileBind>,
    /// Not with `restore`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<VolumeBind>,
    pub(crate) hostname: String,
    /// Processors to run on; empty for all.
    pub(crate) cpus: Vec<usize>,
    /// The size of `/dev/shm` and `/run`, each.
    pub(crate) tmpfs_bytes: u64,
    /// Whether `/sys` shows anything.
    pub(crate) sysfs: bool,
    /// Address families of its network; `None` for `lo` alone.
    pub(crate) network: Option<Families>,
    pub(crate) gated: bool,
    /// Restore an image instead of starting agentd. Then no listener is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) restore: Option<Restore>,
}

/// What to restore, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Restore {
    /// The words of CRIU's command.
    pub(crate) command: Vec<String>,
    /// Only read.
    pub(crate) images: PathBuf,
    /// The program of the first process.
    pub(crate) program: PathBuf,
    /// Where it may write its log.
    pub(crate) work: PathBuf,
    pub(crate) hook: PathBuf,
    /// Mounts that are not in the image.
    pub(crate) mounts: Vec<MountPoint>,
}

/// A mount that is not in the image; the node mounts it again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountPoint {
    pub(crate) path: PathBuf,
    pub(crate) is_directory: bool,
}

impl MountPoint {
    /// The mount's key in the image.
    pub(crate) fn key(&self) -> String {
        self.path.to_string_lossy().replace('/', "_")
    }
}

/// How overlays are described to this kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OverlayRecipe {
    pub(crate) layers: LayerForm,
    pub(crate) volatile: bool,
}

/// From the newest kernels to the oldest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LayerForm {
    /// Descriptors of detached mounts.
    Detached,
    /// Descriptors of mounts that the spawner attaches temporarily.
    Descriptors,
    /// One by one by name.
    Appended,
    /// All in one option.
    Joined,
}

impl OverlayRecipe {
    /// Features that have a fallback on any kernel.
    pub(crate) const NEWER: [Feature; 3] =
        [Feature::OverlayAppend, Feature::OverlayDescriptors, Feature::OverlayDetached];

    /// The best that these features allow.
    pub(crate) fn for_kernel(features: &Features) -> Self {
        let append = features.has(Feature::OverlayAppend);
        let descriptors = append && features.has(Feature::OverlayDescriptors);
        let layers = if descriptors && features.has(Feature::OverlayDetached) {
            LayerForm::Detached
        } else if descriptors {
            LayerForm::Descriptors
        } else if append {
            LayerForm::Appended
        } else {
            LayerForm::Joined
        };
        Self { layers, volatile: features.has(Feature::OverlayVolatile) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OverlayMount {
    pub(crate) target: PathBuf,
    /// Topmost first.
    pub(crate) layers: Vec<Layer>,
    /// A directory that holds `upper` and `work`.
    pub(crate) writable: PathBuf,
    /// Ids in `writable` are stored relative to this.
    pub(crate) stored_uid_base: u32,
    pub(crate) upper: String,
    pub(crate) work: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) path: PathBuf,
    /// Ids in the layer are stored relative to this.
    pub(crate) uid_base: u32,
    /// The host's own files: shown inside as far as any user of the host may read them.
    pub(crate) public_only: bool,
}

/// A host file shown read-only inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileBind {
    pub(crate) source: PathBuf,
    /// Relative to the sandbox's root. Skipped if there is nothing to cover.
    pub(crate) target: PathBuf,
}

/// A directory of the host that belongs to the sandbox's users, with ids stored as they are inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeBind {
    pub(crate) source: PathBuf,
    /// An absolute path inside.
    pub(crate) target: PathBuf,
    pub(crate) read_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum SpawnerNews {
    /// A process exists and sets itself up. Comes with its pidfd and the socket on which it reports progress
    /// ([`Progress`](super::progress::Progress)).
    Spawned { token: u64, pid: i32, plain_layers: u32 },
    /// No process exists.
    Refused { token: u64, why: String },
    /// A sandbox's first process ended with this wait status.
    Exited { token: u64, status: i32 },
}
