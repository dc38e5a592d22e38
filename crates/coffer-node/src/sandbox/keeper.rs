//! The task that creates and ends slots: one at a time, and only while no request waits for a sandbox.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use coffer_core::SnapshotId;
use coffer_wire::node::{NodeError, NodeErrorCode};

use crate::node::{Node, blocking};
use crate::scarcity;
use crate::warm::{Lack, Shape, Slot};

use super::claim;
use super::provision::{Resume, find_origin};

/// How often to check the number of slots while it may change, and while it does not.
const RESTLESS: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(15);
/// Create a slot this long after the last request: its answer and first command are then done.
const QUIET: Duration = Duration::from_millis(20);
/// Under continuous requests, create a slot this often anyway.
const LONGEST_WAIT: Duration = Duration::from_millis(60);
/// And this often while sandboxes are created from scratch, which needs the same resources.
const LONGEST_BURST: Duration = Duration::from_secs(2);
/// After a failure: a full disk or a missing template do not pass by themselves.
const PUT_OFF: Duration = Duration::from_secs(10);
/// Create no slot with less memory than this left on the host, and end those with processes.
const MEMORY_FLOOR: u64 = 512 * 1024 * 1024;

/// Keeps as many slots ready as are wanted, until [`stop`](crate::warm::Warm::stop); then ends all of them.
pub(crate) async fn keep(node: Arc<Node>) {
    let warm = &node.warm;
    while !warm.is_closing() {
        discard(&node, outdated(&node).await).await;
        while let Some(Lack { shape, bytes }) = warm.lacking() {
            let Some(bytes) = bytes else {
                weigh(&node, &shape).await;
                continue;
            };
            // A restore needs its image too, decrypted.
            if !memory_allows(bytes.saturating_mul(2)) || !quiet(&node).await {
                break;
            }
            // A snapshot that is deleted meanwhile waits for this slot, and ends it.
            let _making = warm.hold().await;
            match claim::make(&node, &shape).await {
                Ok(slot) => warm.put(&shape, slot),
                Err(error) if error.code == NodeErrorCode::UnknownSnapshot => {
                    if let Some(snapshot) = shape.snapshot() {
                        discard(&node, warm.forget(snapshot)).await;
                    }
                }
                Err(error) => {
                    tracing::warn!("could not prepare a slot of the warm pool: {error}");
                    warm.put_off(&shape, PUT_OFF);
                }
            }
        }
        let pause = if warm.is_restless() { RESTLESS } else { IDLE };
        tokio::select! {
            () = warm.closed() => {}
            () = warm.is_wanted() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
    discard(&node, warm.close()).await;
}

/// Finds out how much memory a slot will take that is restored with processes. If that cannot be known, making it fails.
async fn weigh(node: &Arc<Node>, shape: &Shape) {
    let image = shape.snapshot().map(|snapshot| node.images.of_snapshot(snapshot));
    let read = tokio::task::spawn_blocking(move || image.and_then(|image| image.bytes().ok()));
    node.warm.weigh(shape, read.await.ok().flatten().unwrap_or_default());
}

async fn outdated(node: &Arc<Node>) -> Vec<Slot> {
    let looking = node.clone();
    let found = tokio::task::spawn_blocking(move || {
        // On disk, and therefore before anything is locked that a request might wait for.
        let now: HashMap<_, _> = looking
            .warm
            .origins()
            .into_iter()
            .map(|(template, snapshot, memory)| {
                let resume = snapshot.filter(|_| memory).map_or(Resume::Boot, Resume::Memory);
                let found = find_origin(&looking, &template, snapshot, resume);
                ((template, snapshot, memory), found.map(|(info, overlays, _)| (info, overlays)).ok())
            })
            .collect();
        let is_low = !memory_allows(0);
        let is_stale = |slot: &Slot| {
            // Their memory is of more use to sandboxes.
            let is_burden = is_low && slot.has_processes();
            is_burden
                || now.get(&slot.origin()).is_some_and(|now| now.as_ref().is_none_or(|now| !slot.is_of(now)))
        };
        looking.warm.outdated(is_stale)
    });
    found.await.unwrap_or_default()
}

async fn discard(node: &Arc<Node>, slots: Vec<Slot>) {
    futures_util::future::join_all(slots.into_iter().map(|slot| claim::end(node, slot))).await;
}

/// Ends the slots of a snapshot and deletes it. No slot is created meanwhile, and afterwards none can be.
pub(crate) async fn delete_snapshot(node: &Arc<Node>, snapshot: SnapshotId) -> Result<(), NodeError> {
    let _making = node.warm.hold().await;
    discard(node, node.warm.forget(snapshot)).await;
    let node = node.clone();
    blocking(move || {
        node.snapshots.delete(snapshot, &node.pool, &node.images).map_err(|error| {
            let message = format!("could not delete snapshot {snapshot}: {error}");
            NodeError::new(NodeErrorCode::Internal, message)
        })
    })
    .await
}

/// Waits for a moment without requests, within bounds. False when it is time to stop.
async fn quiet(node: &Node) -> bool {
    let since = Instant::now();
    while !node.warm.is_closing() {
        let pause = match node.warm.quiet_for() {
            Some(quiet_for) if quiet_for >= QUIET || since.elapsed() >= LONGEST_WAIT => return true,
            Some(quiet_for) => QUIET - quiet_for,
            None if since.elapsed() >= LONGEST_BURST => return true,
            None => QUIET,
        };
        tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
    }
    false
}

fn memory_allows(bytes: u64) -> bool {
    scarcity::available_bytes().is_none_or(|available| available >= MEMORY_FLOOR.saturating_add(bytes))
}
