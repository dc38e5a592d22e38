//! One node from start to stop: takes its directories, adopts running sandboxes, serves, and detaches from
//! them.

mod failure;
mod open;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::cgroup::Cgroups;
use crate::config::NodeConfig;
use crate::node::Node;
use crate::pool::{Fate, Pool};
use crate::registry::Handle;
use crate::spawner::{Spawner, SpawnerClient};
use crate::uids::UidRanges;
use crate::{adopt, answer, memory, rpc, sandbox, scarcity, strays};

pub use failure::NodeFailure;

use failure::doing;
use open::open;

/// Requests that are in progress when the node stops get this long.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Serves `run_dir/node.sock` until `stop`. Then leaves sandboxes running for the next node or, when
/// configured as ephemeral, destroys everything that it created.
#[expect(clippy::disallowed_methods, reason = "each handle is awaited or aborted below")]
pub async fn run(config: NodeConfig, spawner: Spawner, stop: CancellationToken) -> Result<(), NodeFailure> {
    // Sandboxes whose spawner ended become our children, so that we get their exit status.
    if let Err(errno) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::warn!("could not become the parent of orphaned sandboxes: {errno}");
    }
    let prober = spawner.prober();
    let (client, serve_spawner) = SpawnerClient::new(spawner);
    let spawner_task = tokio::spawn(serve_spawner);
    let ephemeral = config.ephemeral;
    let opened = tokio::task::spawn_blocking(move || open(&config, client, &prober))
        .await
        .expect("opening does not panic");
    let (node, lock, egress) = opened?;
    let strays = tokio::spawn(strays::clear_away());
    memory::watch_leftovers(&node.data_dir, &node.owners, &node.letting_go).await;
    // It runs while sandboxes are adopted, to record them, and connects afterwards.
    let (all_adopted, adopted) = oneshot::channel();
    let egress = tokio::spawn(egress.run(adopted));
    let adopted = tokio::task::spawn_blocking({
        let node = node.clone();
        move || adopt::adopt(&node)
    });
    let adopted = adopted.await.expect("adopting does not panic");
    let orphans = adopted.map_err(doing("read the journal in", &node.run_dir))?;
    node.orphans.set(orphans).expect("adoption happens once");
    let _ = all_adopted.send(());
    node.owners.spawn(keep_room(node.clone()));
    node.owners.spawn(scarcity::watch(node.clone()));
    let keeper = (!node.warm.is_off()).then(|| tokio::spawn(sandbox::keep(node.clone())));
    let served = rpc::serve(&node, &stop).await;

    node.requests.close();
    if tokio::time::timeout(STOP_PATIENCE, node.requests.wait()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
    // Slots are not left to the next node: it may have another agentd.
    node.warm.stop();
    if let Some(keeper) = keeper {
        let _ = keeper.await;
    }
    if ephemeral {
        answer::destroy_all(&node).await;
    }
    node.letting_go.cancel();
    node.owners.close();
    if tokio::time::timeout(STOP_PATIENCE, node.owners.wait()).await.is_err() {
        tracing::warn!("some sandboxes were not released in time");
    }
    node.reaper.finish().await;
    if let Some(node) = Arc::into_inner(node) {
        let Node {
            spawner,
            pool,
            images,
            cgroups,
            uids,
            sandboxes,
            run_dir,
            templates,
            data_dir,
            snapshots,
            ..
        } = node;
        // The last of its clients: the spawner ends.
        drop(spawner);
        let empty = sandboxes.all().iter().all(Handle::holds_nothing);
        if empty && snapshots.is_empty() {
            templates.unregister(&data_dir);
        }
        let closing = tokio::task::spawn_blocking(move || {
            images.close();
            close(pool, &cgroups, &uids, &run_dir, empty, ephemeral);
        });
        closing.await.expect("closing does not panic");
    } else {
        tracing::warn!("leaving the pool mounted");
    }
    let _ = spawner_task.await;
    if tokio::time::timeout(STOP_PATIENCE, egress).await.is_err() {
        tracing::warn!("could not send all updates to egress in time");
    }
    strays.abort();
    drop(lock);
    served.map_err(|error| NodeFailure::Directory { doing: "serve", path: "node.sock".into(), source: error })
}

/// Watches the pool until the node releases its sandboxes.
async fn keep_room(node: Arc<Node>) {
    loop {
        let looking = node.clone();
        let looked = tokio::task::spawn_blocking(move || looking.pool.relieve()).await;
        let pause = looked.expect("looking at the pool does not panic").unwrap_or_else(|error| {
            tracing::warn!("could not check the pool: {error}");
            Duration::from_secs(10)
        });
        tokio::select! {
            () = node.letting_go.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn close(pool: Pool, cgroups: &Cgroups, uids: &UidRanges, run_dir: &Path, empty: bool, ephemeral: bool) {
    uids.close();
    if empty {
        cgroups.remove();
        pool.close(if ephemeral { Fate::Remove } else { Fate::Keep });
        let _ = fs::remove_dir(run_dir.join("s"));
    }
    let _ = fs::remove_file(run_dir.join("node.sock"));
}
