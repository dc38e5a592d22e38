//! The role `coffer git`: enters the cgroup of git as root, gives root up, then starts git for the server.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use coffer_forge::GitRunner;

use crate::privilege::Unprivileged;

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
    /// What each git process may fill
    #[arg(long)]
    memory: u64,
    /// Do without Landlock, as if the kernel had none
    #[arg(long)]
    no_landlock: bool,
    #[command(flatten)]
    part: Unprivileged,
}

impl Git {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // All of it while this is root: what is started later inherits it, from its first instruction on.
        let entered = coffer_node::enter_git_cgroup(&self.node_dir);
        GitRunner::limit_itself(self.memory).context("could not limit git")?;
        let run_dir = &self.part.run_dir;
        let listener = listen(&run_dir.join(SOCKET), self.part.uid)?;
        crate::server::reach_own_directory(&self.server_dir, &run_dir.join("data"))?;
        self.part.give_up_root()?;
        match entered {
            Ok(true) => {}
            Ok(false) => tracing::warn!("git has no memory limit in all: the host has no cgroup for it"),
            Err(error) => tracing::warn!("git has no memory limit in all: {error}"),
        }
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
