//! The role `coffer git`: enters the cgroup of git as root, gives root up, then starts git for the server.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use coffer_forge::GitRunner;
use rustix::process::Signal;

use crate::logging::Logging;
use crate::privilege::{Identity, follow_parent};

/// Where the server finds it.
pub(crate) const SOCKET: &str = "git.sock";

#[derive(Debug, Args)]
pub(crate) struct Git {
    /// The server's own directory
    #[arg(long)]
    server_dir: PathBuf,
    /// The node's, which names its cgroups
    #[arg(long)]
    node_dir: PathBuf,
    #[arg(long)]
    run_dir: PathBuf,
    /// What each git process may fill
    #[arg(long)]
    memory: u64,
    /// Do without Landlock, as if the kernel had none
    #[arg(long)]
    no_landlock: bool,
    #[arg(long)]
    uid: u32,
    #[arg(long)]
    gid: u32,
    /// The process to end with
    #[arg(long)]
    parent: u32,
    #[command(flatten)]
    logging: Logging,
}

impl Git {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        self.logging.start()?;
        // All of it while this is root: what is started later inherits it, from its first instruction on.
        match coffer_node::enter_git_cgroup(&self.node_dir) {
            Ok(true) => {}
            Ok(false) => tracing::warn!("git has no memory limit in all: the host has no cgroup for it"),
            Err(error) => tracing::warn!("git has no memory limit in all: {error}"),
        }
        GitRunner::limit_itself(self.memory).context("could not limit git")?;
        let listener = listen(&self.run_dir.join(SOCKET), self.uid)?;
        crate::server::reach_own_directory(&self.server_dir, &self.run_dir.join("data"))?;
        Identity { uid: self.uid, gid: self.gid }.assume()?;
        follow_parent(self.parent, Signal::KILL)?;
        let landlock = !self.no_landlock && coffer_forge::has_landlock();
        let runner = GitRunner::new(landlock).context("could not make git's system call filter")?;
        tracing::info!(landlock, "git runner ready");
        runner.serve(&listener).context("could not wait for the server")
    }
}

/// Opens the socket that only the server can connect to.
fn listen(path: &Path, uid: u32) -> anyhow::Result<UnixListener> {
    let open = || -> std::io::Result<UnixListener> {
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        chown(path, Some(uid), None)?;
        Ok(listener)
    };
    open().with_context(|| format!("could not listen at `{}`", path.display()))
}
