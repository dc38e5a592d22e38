//! Starts a sandbox on its files, with only agentd.

use std::sync::Arc;
use std::time::Duration;

use coffer_wire::node::{NodeError, NodeErrorCode};

use crate::journal::Entry;
use crate::network::Listeners;
use crate::node::{Node, blocking};
use crate::process::{Alive, Watched, identify};
use crate::spawner::{self, Progress, SpawnError, Spawned};

use super::prepare::{Launch, Prepared, SPAWNERS, internal, prepare};

/// A setup takes milliseconds; after this long it has hung.
const PATIENCE: Duration = Duration::from_secs(15);

/// Starts a sandbox on its files. On failure no process is left; the rest is for the reaper.
pub(super) async fn boot(node: &Arc<Node>, entry: &Entry) -> Result<Launch, NodeError> {
    let cgroup = node.cgroups.of(entry.name());
    let mut attempt = 1;
    let (spawned, gate, quota) = loop {
        let Prepared { request, descriptors, gate, quota } = prepare(node, entry, &cgroup, None).await?;
        let error = match node.spawner.spawn(request, descriptors).await {
            Ok(spawned) => break (spawned, gate, quota),
            Err(error) => error,
        };
        let code = match error {
            // The next spawner is already starting. The last one may have created a process.
            SpawnError::Lost => {
                cgroup.kill();
                if attempt < SPAWNERS {
                    attempt += 1;
                    continue;
                }
                NodeErrorCode::Unavailable
            }
            SpawnError::Refused(_) | SpawnError::Garbled => NodeErrorCode::Internal,
        };
        return Err(NodeError::new(code, format!("could not start the sandbox: {error}")));
    };
    let Spawned { pid, pidfd, progress, plain_layers, exited } = spawned;
    let watched = Watched::new(pidfd, Some(exited)).map_err(internal("watch its first process"))?;
    if plain_layers > 0 {
        tracing::warn!(
            sandbox.id = %entry.spec.sandbox,
            "{plain_layers} layers of sandbox {} are on a file system that cannot map ids",
            entry.spec.sandbox
        );
    }
    // Set the limits while the child sets itself up, because joining waits for the kernel.
    let joining = cgroup.clone();
    let (name, disk_bytes) = (entry.files_name(), entry.disk_bytes());
    let the_node = node.clone();
    let joined = blocking(move || {
        the_node.pool.limit(&name, disk_bytes).map_err(internal("set its disk limit"))?;
        joining.join(pid).map_err(internal("set its limits"))?;
        if let Some(gate) = gate {
            rustix::io::write(&gate, b"go").map_err(|errno| internal("let it continue")(errno.into()))?;
        }
        identify(pid, &the_node.host_boot_id).map_err(internal("read the state of its first process"))
    });
    let (joined, set_up) = tokio::join!(joined, tokio::time::timeout(PATIENCE, wait_for_agentd(progress)));
    let set_up = set_up.unwrap_or_else(|_| {
        Err(NodeError::new(NodeErrorCode::Internal, "the setup of the sandbox took too long"))
    });
    let alive = Alive { watched, cgroup, quota };
    // Prefer the child's message: a failure to move a process that has ended says less.
    match set_up.and_then(|listeners| Ok((listeners, joined?))) {
        Ok((listeners, process)) => Ok(Launch { alive, process, listeners }),
        Err(error) => {
            alive.end().await;
            Err(error)
        }
    }
}

/// Ends when agentd runs, with the sockets of its network, or with the reason why it does not.
async fn wait_for_agentd(progress: Progress) -> Result<Option<Listeners>, NodeError> {
    match progress.finish().await.map_err(internal("watch its setup"))? {
        Ok(sockets) => Ok(Listeners::of(sockets)),
        Err(why) => {
            let is_users_fault = why.contains(spawner::VOLUME_IN_THE_WAY);
            let code = if is_users_fault { NodeErrorCode::Unsupported } else { NodeErrorCode::Internal };
            Err(NodeError::new(code, format!("the setup of the sandbox failed: {why}")))
        }
    }
}
