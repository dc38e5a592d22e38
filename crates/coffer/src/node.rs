//! The role `coffer node`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use coffer_core::mirrors::{MirrorSettings, PackageMirrors};
use coffer_node::features::Lacking;
use coffer_node::{NodeConfig, NodeFailure, PoolChoice, Spawner, WarmChoice};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use crate::logging::Logging;
use crate::printer::HostUnusable;

/// The static agentd that runs inside every sandbox.
static AGENTD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agentd"));

#[derive(Debug, Args)]
pub(crate) struct Node {
    #[arg(long)]
    data_dir: PathBuf,
    #[arg(long)]
    run_dir: PathBuf,
    #[arg(long)]
    template_dir: PathBuf,
    #[arg(long)]
    pool_size: Option<u64>,
    #[arg(long, default_value_t = WarmChoice::default().max)]
    warm_slots: usize,
    #[arg(long, default_value_t = WarmChoice::MEMORY)]
    warm_memory: u64,
    #[arg(long)]
    memory_reserve: Option<u64>,
    /// Memory of all git processes of the server
    #[arg(long)]
    git_memory: Option<u64>,
    /// The group that may use the node's sockets
    #[arg(long)]
    server_gid: u32,
    /// Kernel features to treat as missing
    #[arg(long, default_value_t)]
    kernel_lacks: Lacking,
    /// Do not encrypt images of memory on disk
    #[arg(long)]
    plain_memory: bool,
    #[arg(long)]
    ephemeral: bool,
    /// Sandboxes have no network
    #[arg(long)]
    no_network: bool,
    /// The certificate of the authority that sandboxes are to trust
    #[arg(long)]
    authority: Option<PathBuf>,
    /// The settings of package mirrors, as JSON
    #[arg(long, value_parser = mirrors)]
    mirrors: Option<PackageMirrors>,
    /// The process to end with
    #[arg(long)]
    parent: u32,
    #[command(flatten)]
    logging: Logging,
}

impl Node {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        // An ephemeral node has to clean up when `up` is killed; another just stops.
        let signal = if self.ephemeral { Signal::TERM } else { Signal::KILL };
        crate::privilege::follow_parent(self.parent, signal)?;
        self.logging.start()?;
        anyhow::ensure!(
            !AGENTD.is_empty(),
            "this binary was built without agentd: build it with `make build`"
        );
        // Before the runtime: from here on there are threads, and threads must not clone sandboxes.
        let spawner = Spawner::start().context("could not start the spawner")?;
        let config = NodeConfig {
            data_dir: self.data_dir,
            run_dir: self.run_dir,
            template_dir: self.template_dir,
            agentd: AGENTD,
            pool: PoolChoice::Auto { size_bytes: self.pool_size },
            warm: WarmChoice { memory: self.warm_memory, ..WarmChoice::up_to(self.warm_slots) },
            memory_reserve: self.memory_reserve,
            git_memory: self.git_memory,
            server_gid: self.server_gid,
            network: !self.no_network,
            authority: self.authority,
            mirrors: self.mirrors.unwrap_or_default(),
            encrypt_memory: !self.plain_memory,
            lacking: self.kernel_lacks,
            ephemeral: self.ephemeral,
        };
        crate::privilege::raise_open_files();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let stop = CancellationToken::new();
            crate::signals::cancel_on_signal(stop.clone())?;
            match coffer_node::run(config, spawner, stop).await {
                Err(NodeFailure::Unusable(unusable)) => {
                    let hint = "docs/kernels.md lists what a host needs, and which kernels were tested";
                    Err(HostUnusable::new(unusable.to_string(), hint).into())
                }
                outcome => outcome.context("the node failed"),
            }
        })
    }
}

fn mirrors(text: &str) -> anyhow::Result<PackageMirrors> {
    Ok(serde_json::from_str::<MirrorSettings>(text)?.resolve()?)
}
