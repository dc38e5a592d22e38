//! Everything that the tasks of a node share.

use std::path::PathBuf;
use std::sync::OnceLock;

use coffer_core::SandboxId;
use coffer_template::TemplateStore;
use coffer_wire::node::{NodeError, NodeErrorCode, Notice, Orphan};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cgroup::Cgroups;
use crate::features::{Feature, Features};
use crate::files::Shown;
use crate::journal::Journal;
use crate::memory::Images;
use crate::network::Network;
use crate::pool::Pool;
use crate::processors::Processors;
use crate::reaper::Reaper;
use crate::registry::Registry;
use crate::snapshots::Snapshots;
use crate::spawner::{OverlayRecipe, SpawnerClient};
use crate::trust::Trust;
use crate::uids::UidRanges;
use crate::volumes::Volumes;
use crate::warm::Warm;

/// Everything that the tasks of a node share.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) data_dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) server_gid: u32,
    pub(crate) agentd: PathBuf,
    pub(crate) templates: TemplateStore,
    pub(crate) journal: Journal,
    pub(crate) snapshots: Snapshots,
    pub(crate) volumes: Volumes,
    pub(crate) pool: Pool,
    pub(crate) images: Images,
    pub(crate) cgroups: Cgroups,
    pub(crate) uids: UidRanges,
    pub(crate) processors: Processors,
    pub(crate) spawner: SpawnerClient,
    pub(crate) reaper: Reaper,
    pub(crate) warm: Warm,
    pub(crate) network: Network,
    pub(crate) trust: Option<Trust>,
    pub(crate) host_boot_id: String,
    pub(crate) notices: broadcast::Sender<Notice>,
    /// Open connections and requests in progress.
    pub(crate) requests: TaskTracker,
    /// Owners of sandboxes.
    pub(crate) owners: TaskTracker,
    /// Cancelled when the owners should release their sandboxes as they are.
    pub(crate) letting_go: CancellationToken,
    pub(crate) sandboxes: Registry,
    /// Kernel features of this host.
    pub(crate) features: Features,
    pub(crate) recipe: OverlayRecipe,
    pub(crate) warnings: Vec<String>,
    /// Orphans that were removed when this node started.
    pub(crate) orphans: OnceLock<Vec<Orphan>>,
}

impl Node {
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    pub(crate) fn socket_of(&self, name: SandboxId) -> PathBuf {
        self.run_dir.join("s").join(format!("{name}.sock"))
    }

    pub(crate) fn files_of(&self, name: SandboxId) -> Shown {
        Shown::at(self.pool.small_files().join(name.to_string()))
    }
}

/// Runs work that may wait for the disk on a separate thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(NodeError::new(NodeErrorCode::Internal, format!("a task of the node failed: {error}")))
    })
}
