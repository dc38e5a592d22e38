//! Checks whether an image of memory can be restored, while its processes still exist.
//!
//! The image is restored as a separate sandbox, on a copy of the files, with its own ids, cgroup and network.
//! It is ended when everything is restored and before anything runs, so it is invisible from outside; its
//! journal entry makes the next node remove it if this one is killed.

use std::sync::Arc;

use coffer_core::SandboxId;
use coffer_wire::node::{CreateSandbox, NodeError};
use tokio::sync::Semaphore;

use crate::journal::{Durability, Entry, Files, Phase};
use crate::memory::{Image, Place};
use crate::node::{Node, blocking};
use crate::scarcity;

use super::prepare::{internal, refused_ids};
use super::remains::{Record, Remains};
use super::restore::{self, Source};

/// Each needs as much memory as its sandbox has, so limit how many run at once.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Restores the image that was just sealed and ends the result. Fails if the image cannot be restored.
pub(super) async fn rehearse(
    node: &Arc<Node>,
    entry: &Entry,
    place: &Place,
    image: &Image,
) -> Result<(), NodeError> {
    let _turn = TURNS.acquire().await.expect("the semaphore is never closed");
    if let Some(why) = cannot(node, image) {
        let id = entry.spec.sandbox;
        tracing::warn!(sandbox.id = %id, "skipped the test restore of sandbox {id}: {why}");
        return Ok(());
    }
    let (node, entry, place, image) = (node.clone(), entry.clone(), place.clone(), image.clone());
    // A separate task, so that it cleans up even if the caller is gone.
    let rehearsing = node.owners.clone().spawn(async move {
        let double = plan(&node, &entry).await?;
        let outcome = perform(&node, &entry, &double, place, image).await;
        let remains = Remains::of(&node, &double, Record::Removed);
        // A failure is in the log, and the next start tries again.
        let _ = tokio::task::spawn_blocking(move || remains.give_back()).await;
        outcome
    });
    rehearsing.await.unwrap_or_else(|_| Err(internal("test the image")(std::io::Error::other("panicked"))))
}

/// Why the image cannot be tested here. Its checksums are still compared when it is used.
fn cannot(node: &Node, image: &Image) -> Option<String> {
    if let Some(lack) = node.pool.snapshots_lack() {
        return Some(lack);
    }
    let needed = image.bytes.saturating_add(node.cgroups.reserve_bytes());
    let available = scarcity::available_bytes()?;
    (available < needed).then(|| format!("it needs {needed} bytes of memory, and {available} are available"))
}

/// The entry of the test sandbox.
async fn plan(node: &Arc<Node>, entry: &Entry) -> Result<Entry, NodeError> {
    let (node, entry) = (node.clone(), entry.clone());
    blocking(move || {
        let uid_base = node.uids.take().map_err(refused_ids)?;
        let stored_uid_base = Some(entry.stored_uid_base());
        let double = Entry {
            spec: CreateSandbox { sandbox: SandboxId::generate(), ..entry.spec },
            slot: None,
            uid_base,
            files: Files { generation: 0, stored_uid_base, ..entry.files },
            cpus: Vec::new(),
            phase: Phase::Creating,
            ..entry
        };
        node.journal.write(&double, Durability::Cached).map_err(|error| {
            node.uids.give_back(uid_base);
            internal("write the journal")(error)
        })?;
        Ok(double)
    })
    .await
}

async fn perform(
    node: &Arc<Node>,
    entry: &Entry,
    double: &Entry,
    place: Place,
    image: Image,
) -> Result<(), NodeError> {
    let source = {
        let (node, files, double) = (node.clone(), entry.files_name(), double.clone());
        blocking(move || {
            let copied = node.pool.create_copy(&files, &double.files_name(), double.disk_bytes());
            copied.map_err(internal("copy its files"))?;
            let copy = node.images.of_sandbox(&double.name().to_string());
            let opened = place
                .share(&image, &copy, double.uid_base)
                .map_err(internal("prepare the image of its memory"))?;
            Ok(Source { opened, program: place.program(), is_fork: true })
        })
        .await?
    };
    restore::rehearse(node, double, &source).await
}
