//! The role `coffer server`: starts as root, gives root up, then serves.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use coffer_engine::{Engine as _, NodeEngine};
use coffer_server::ServerConfig;
use coffer_store::Store;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::logging::Logging;
use crate::printer;
use crate::privilege::{Identity, follow_parent};

#[derive(Debug, Args)]
pub(crate) struct Server {
    #[arg(long)]
    listen: SocketAddr,
    /// The server's own directory
    #[arg(long)]
    server_dir: PathBuf,
    #[arg(long)]
    run_dir: PathBuf,
    #[arg(long, env = "COFFER_DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    #[arg(long)]
    uid: u32,
    #[arg(long)]
    gid: u32,
    /// Make an API key and report it, unless the known one is good
    #[arg(long)]
    mint_key: bool,
    /// The key that an earlier start wrote down
    #[arg(long, env = "COFFER_KNOWN_KEY", hide_env_values = true)]
    known_key: Option<String>,
    /// The operator's key that an earlier start wrote down
    #[arg(long, env = "COFFER_KNOWN_OPERATOR_KEY", hide_env_values = true)]
    known_operator_key: Option<String>,
    #[arg(long)]
    parent: u32,
    #[command(flatten)]
    choices: Choices,
    #[command(flatten)]
    logging: Logging,
}

/// What an operator may choose about sandboxes; the same flags on `up` and `server`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Choices {
    /// The domain of sandbox addresses (`<port>-<id>.<domain>`), where one points at this server
    #[arg(long, env = "COFFER_DOMAIN", value_name = "DOMAIN")]
    domain: Option<String>,
    /// The longest timeout a sandbox may be given
    #[arg(long, env = "COFFER_MAX_TIMEOUT", default_value = "24h", value_name = "DURATION")]
    max_timeout: jiff::SignedDuration,
    /// The longest a sandbox may live in all
    #[arg(long, env = "COFFER_MAX_LIFETIME", default_value = "24h", value_name = "DURATION")]
    max_lifetime: jiff::SignedDuration,
    /// End sandboxes that nothing has used for this long
    #[arg(long, env = "COFFER_IDLE_TIMEOUT", value_name = "DURATION")]
    idle_timeout: Option<jiff::SignedDuration>,
    /// Processors of each sandbox
    #[arg(long, env = "COFFER_SANDBOX_CPUS", default_value_t = 2, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    sandbox_cpus: u32,
    /// Memory of each sandbox
    #[arg(long, env = "COFFER_SANDBOX_MEMORY", default_value = "2GiB", value_name = "SIZE")]
    sandbox_memory: bytesize::ByteSize,
    /// Processes and threads of each sandbox
    #[arg(long, env = "COFFER_SANDBOX_PROCESSES", default_value_t = 4096, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(64..=1_000_000))]
    sandbox_processes: u32,
    /// What each sandbox may write to its disk; 10 GiB by default, but at most a quarter of the pool
    #[arg(long, env = "COFFER_SANDBOX_DISK", value_name = "SIZE")]
    sandbox_disk: Option<bytesize::ByteSize>,
}

/// What the server says on standard output once it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    pub(crate) listen: SocketAddr,
    /// Only when one was made just now.
    pub(crate) api_key: Option<String>,
    /// Likewise.
    pub(crate) operator_key: Option<String>,
}

impl Choices {
    /// The same choices as arguments, for the server that `up` starts.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--max-timeout={}", self.max_timeout),
            format!("--max-lifetime={}", self.max_lifetime),
            format!("--sandbox-cpus={}", self.sandbox_cpus),
            format!("--sandbox-memory={}B", self.sandbox_memory.as_u64()),
            format!("--sandbox-processes={}", self.sandbox_processes),
        ];
        arguments.extend(self.sandbox_disk.map(|disk| format!("--sandbox-disk={}B", disk.as_u64())));
        arguments.extend(self.domain.iter().map(|domain| format!("--domain={domain}")));
        arguments.extend(self.idle_timeout.iter().map(|idle| format!("--idle-timeout={idle}")));
        arguments
    }

    /// Checks the choices into what the server relies on.
    pub(crate) fn check(&self) -> anyhow::Result<(coffer_core::LifetimePolicy, coffer_core::Limits)> {
        let positive = |name: &str, value: jiff::SignedDuration| {
            let ms = i64::try_from(value.as_millis()).unwrap_or(i64::MAX);
            anyhow::ensure!(ms > 0, "--{name} must be more than zero, not `{value:#}`");
            Ok(ms)
        };
        let mib = |name: &str, value: bytesize::ByteSize, least: u64| {
            let mib = value.as_u64() >> 20;
            anyhow::ensure!(mib >= least, "--{name} must be at least {least} MiB, not `{value}`");
            Ok(mib)
        };
        let longest_timeout_ms = positive("max-timeout", self.max_timeout)?;
        let maximum_ms = positive("max-lifetime", self.max_lifetime)?;
        anyhow::ensure!(
            longest_timeout_ms <= maximum_ms,
            "--max-timeout {:#} is longer than --max-lifetime {:#}",
            self.max_timeout,
            self.max_lifetime
        );
        if let Some(domain) = &self.domain {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:".contains(&byte);
            anyhow::ensure!(
                !domain.is_empty() && domain.bytes().all(fits),
                "--domain must be a plain name such as `sandboxes.example.com`, not `{domain}`"
            );
        }
        let idle_ms = self.idle_timeout.map(|idle| positive("idle-timeout", idle)).transpose()?;
        let lifetime = coffer_core::LifetimePolicy { longest_timeout_ms, maximum_ms, idle_ms };
        let mut limits = coffer_core::Limits {
            cpu_count: self.sandbox_cpus,
            memory_mib: mib("sandbox-memory", self.sandbox_memory, 64)?,
            max_processes: self.sandbox_processes,
            ..coffer_core::Limits::default()
        };
        if let Some(disk) = self.sandbox_disk {
            limits.disk_mib = mib("sandbox-disk", disk, 16)?;
        }
        Ok((lifetime, limits))
    }

    /// The default disk limit for a pool of this size: above it one sandbox could fill the pool for all.
    fn fit_disk(&self, limits: coffer_core::Limits, pool_bytes: Option<u64>) -> coffer_core::Limits {
        match (self.sandbox_disk, pool_bytes) {
            (None, Some(pool)) => {
                coffer_core::Limits { disk_mib: limits.disk_mib.min((pool >> 20) / 4).max(16), ..limits }
            }
            _ => limits,
        }
    }
}

impl Server {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let data = self.run_dir.join("data");
        reach_own_directory(&self.server_dir, &data)?;
        Identity { uid: self.uid, gid: self.gid }.assume()?;
        follow_parent(self.parent, Signal::KILL)?;
        self.logging.start()?;
        crate::privilege::raise_open_files();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.serve(&data))
    }

    async fn serve(self, data: &Path) -> anyhow::Result<()> {
        let stop = CancellationToken::new();
        crate::up::cancel_on_signal(stop.clone())?;
        let url = self.database_url.filter(|url| !url.is_empty());
        let url = url.unwrap_or_else(|| format!("sqlite:{}", data.join("coffer.db").display()));
        let store = Store::open(&url).await.context("could not open the database")?;
        let operator = store.operator();
        let project =
            store.ensure_default_project(&operator).await.context("could not make the first project")?;
        let api_key = if self.mint_key && !is_good(&store, self.known_key.as_deref()).await? {
            let key =
                store.create_key(&operator, project, "up").await.context("could not make an API key")?;
            Some(key.reveal().to_string())
        } else {
            None
        };
        let operator_key = if self.mint_key && !is_good(&store, self.known_operator_key.as_deref()).await? {
            let key = store.create_operator_key(&operator, "up").await;
            Some(key.context("could not make an operator's key")?.reveal().to_string())
        } else {
            None
        };
        let (lifetime, default_limits) = self.choices.check()?;
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            printer::hint(
                format!("could not listen on {}: {error}", self.listen),
                "choose another port with --listen",
            )
        })?;
        let listen = listener.local_addr()?;
        // Not `stop`: steps under way need the engine until they are done.
        let engine = Arc::new(NodeEngine::start(self.run_dir.join("node.sock"), CancellationToken::new()));
        let node = engine.info().await.context("could not ask the node what it has")?;
        let default_limits = self.choices.fit_disk(default_limits, node.pool_bytes);
        let config = ServerConfig { listen, lifetime, default_limits, domain: self.choices.domain };
        let ready = Ready { listen, api_key, operator_key };
        let server = coffer_server::serve(config, store, engine, listener, stop, || {
            printer::line(serde_json::to_string(&ready).expect("plain fields"));
        });
        server.await.context("the server failed")
    }
}

/// Shows the server its own directory under a path that it can walk.
///
/// The data directory may lie below one that only root may enter (`/root`, say). A bind mount in a
/// mount namespace of the server's own needs no rights on the way and ends with the process.
fn reach_own_directory(server_dir: &Path, at: &Path) -> anyhow::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).context("could not make a mount namespace for the server")?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .context("could not detach the mounts")?;
    // A copy of a pool's mount here would keep the pool busy after its node let go of it, whichever
    // installation it belongs to.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("could not list the mounts")?;
    for pool in pools(&mounts) {
        let _ = umount2(&pool, MntFlags::MNT_DETACH);
    }
    mount(Some(server_dir), at, none, MsFlags::MS_BIND, none)
        .with_context(|| format!("could not show the server its directory `{}`", server_dir.display()))
}

/// Where nodes have mounted their pools.
fn pools(mountinfo: &str) -> Vec<PathBuf> {
    let pool = |line: &str| {
        let (mount, source) = line.split_once(" - ")?;
        let on_loop = source.starts_with("btrfs /dev/loop");
        // The kernel writes spaces and the like as octal numbers.
        let at = mount.split(' ').nth(4)?.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        (on_loop && at.ends_with("/node/pool")).then(|| PathBuf::from(at))
    };
    mountinfo.lines().filter_map(pool).collect()
}

/// Whether a key that was written down is one of this database's.
async fn is_good(store: &Store, key: Option<&str>) -> anyhow::Result<bool> {
    let Some(key) = key else { return Ok(false) };
    let principal = store.authenticate(key).await.context("could not look up the API key")?;
    Ok(principal.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_all_installations_are_found() {
        let mounts = "\
            28 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            87 28 0:39 / /tmp/a\\040b/node/pool rw,noatime - btrfs /dev/loop0 rw,subvol=/\n\
            88 28 0:40 / /srv/node/pool rw shared:3 - btrfs /dev/loop12 rw\n\
            89 28 0:41 / /home rw - btrfs /dev/loop3 rw\n\
            90 28 0:42 / /mnt/node/pool rw - btrfs /dev/sda1 rw\n";
        assert_eq!(pools(mounts), [PathBuf::from("/tmp/a b/node/pool"), PathBuf::from("/srv/node/pool")]);
    }
}
