//! The role `coffer git`: enters the cgroup of git as root, drops root, then starts git for the server.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use coffer_forge::GitRunner;

use crate::privilege::{Unprivileged, listen_for};

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
    /// Memory of each git process
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
        // Set all limits while this is root: children inherit them from their first instruction on.
        let entered = coffer_node::enter_git_cgroup(&self.node_dir);
        GitRunner::limit_itself(self.memory).context("could not limit git")?;
        let run_dir = &self.part.run_dir;
        let listener = listen_for(self.part.uid, &run_dir.join(SOCKET))?;
        crate::own_directory::reach_own_directory(&self.server_dir, &run_dir.join("data"))?;
        self.part.give_up_root()?;
        match entered {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("git processes have no common memory limit: the host has no cgroup for it")
            }
            Err(error) => tracing::warn!("git processes have no common memory limit: {error}"),
        }
        let landlock = !self.no_landlock && coffer_forge::has_landlock();
        let runner = GitRunner::new(landlock).context("could not build git's system call filter")?;
        tracing::info!(landlock, "git runner ready");
        runner.serve(&listener).context("could not wait for the server")
    }
}
