//! What the node is told by whoever starts it.

use std::path::PathBuf;

use crate::features::Lacking;

/// Where a node keeps what, and what it is given.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Root's alone: journal, pool image. One node at a time.
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
    /// Whoever has this group may use the node's and the sandboxes' sockets.
    pub server_gid: u32,
    /// Give sandboxes a way out, by the egress that listens in `run_dir`.
    pub network: bool,
    /// The certificate of the authority that sandboxes are to trust, a PEM file.
    pub authority: Option<PathBuf>,
    /// Encrypt images of sandboxes' memory on disk, each under a key of its own.
    pub encrypt_memory: bool,
    /// Kernel features to do without, as if they were missing.
    pub lacking: Lacking,
    /// On stop, destroy everything instead of leaving it to the next node.
    pub ephemeral: bool,
}

/// How many sandboxes wait, ready, for someone to ask for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmChoice {
    /// So many even when nobody has asked for a while.
    pub min: usize,
    /// No more than this many together; 0 for none at all.
    pub max: usize,
}

impl WarmChoice {
    pub const OFF: Self = Self { min: 0, max: 0 };

    /// At most so many, and a few when idle.
    pub fn up_to(max: usize) -> Self {
        Self { min: max.min(2), max }
    }
}

impl Default for WarmChoice {
    fn default() -> Self {
        Self::up_to(16)
    }
}

/// Where the files of sandboxes lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolChoice {
    /// A btrfs image of this size (default: a quarter of the free space, from 2 to 64 GiB), or plain
    /// directories where that cannot be had.
    Auto { size_bytes: Option<u64> },
    /// Plain directories; disk use is not limited.
    Directory,
}
