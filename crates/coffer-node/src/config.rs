//! The node's configuration, given by its caller.

use std::path::PathBuf;

use coffer_core::mirrors::PackageMirrors;

use crate::features::Lacking;

/// Directories and resources of a node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Accessible only to root: journal, pool image. One node at a time.
    pub data_dir: PathBuf,
    /// Sockets and small files; short, because a socket's path holds 107 bytes.
    pub run_dir: PathBuf,
    /// Templates, shared by all nodes of the host.
    pub template_dir: PathBuf,
    /// The static binary that becomes process 1 of every sandbox.
    pub agentd: &'static [u8],
    pub pool: PoolChoice,
    pub warm: WarmChoice,
    /// Memory of the host that sandboxes never get; an eighth of it, from 256 MiB to 2 GiB, by default.
    pub memory_reserve: Option<u64>,
    /// Memory of all git processes of the server together; a quarter of the host's by default.
    pub git_memory: Option<u64>,
    /// Members of this group may use the node's and the sandboxes' sockets.
    pub server_gid: u32,
    /// Connect sandboxes to the network, through the egress that listens in `run_dir`.
    pub network: bool,
    /// The certificate of the authority that sandboxes are to trust, a PEM file.
    pub authority: Option<PathBuf>,
    /// Package mirrors that clients in sandboxes are configured for.
    pub mirrors: PackageMirrors,
    /// Encrypt images of sandboxes' memory on disk, each under its own key.
    pub encrypt_memory: bool,
    /// Kernel features to do without, as if they were missing.
    pub lacking: Lacking,
    /// On stop, destroy everything instead of leaving it to the next node.
    pub ephemeral: bool,
}

/// How many sandboxes to keep ready in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmChoice {
    /// Minimum, even if no sandbox was requested for a while.
    pub min: usize,
    /// Maximum for all shapes together; 0 turns the warm pool off.
    pub max: usize,
    /// Memory of all slots that were restored with processes, in bytes; 0 for no such slots.
    pub memory: u64,
}

impl WarmChoice {
    pub const OFF: Self = Self { min: 0, max: 0, memory: 0 };
    /// The usual [`memory`](Self::memory).
    pub const MEMORY: u64 = 512 << 20;

    /// At most `max`, and a few when idle.
    pub fn up_to(max: usize) -> Self {
        Self { min: max.min(2), max, memory: Self::MEMORY }
    }
}

impl Default for WarmChoice {
    fn default() -> Self {
        Self::up_to(16)
    }
}

/// Where the files of sandboxes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolChoice {
    /// A btrfs image of this size (default: a quarter of the free space, from 2 to 64 GiB), or plain
    /// directories if that is not possible.
    Auto { size_bytes: Option<u64> },
    /// Plain directories; disk use is not limited.
    Directory,
}
