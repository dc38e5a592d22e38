//! What the node is told by whoever starts it.

use std::path::PathBuf;

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
    /// Whoever has this group may use the node's and the sandboxes' sockets.
    pub server_gid: u32,
    /// On stop, destroy everything instead of leaving it to the next node.
    pub ephemeral: bool,
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
