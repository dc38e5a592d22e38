//! Finding out whether an image of memory can be restored, while the processes that it was made of are there.
//!
//! What is restored is a sandbox of its own, on a copy of the files, with ids, cgroup and network of its own. It
//! ends when everything is in its place and before anything runs: nobody outside can tell that it was, and its
//! entry in the journal has the next node clear it away, should this one be killed.

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

/// Each takes as much memory again as its sandbox has, so they take turns.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Restores the image that was just sealed and ends what came of it. Fails where the image does.
pub(super) async fn rehearse(
    node: &Arc<Node>,
    entry: &Entry,
    place: &Place,
    image: &Image,
) -> Result<(), NodeError> {
    let _turn = TURNS.acquire().await.expect("the semaphore is never closed");
    if let Some(why) = cannot(node, image) {
        let id = entry.spec.sandbox;
        tracing::warn!(sandbox.id = %id, "the saved memory of sandbox {id} is not tried out: {why}");
        return Ok(());
    }
    let (node, entry, place, image) = (node.clone(), entry.clone(), place.clone(), image.clone());
    // A task of its own: it clears up after itself also where nobody waits for it any more.
    let rehearsing = node.owners.clone().spawn(async move {
        let double = plan(&node, &entry).await?;
        let outcome = perform(&node, &entry, &double, place, image).await;
        let remains = Remains::of(&node, &double, Record::Removed);
        // A failure is in the log, and the next start tries again.
        let _ = tokio::task::spawn_blocking(move || remains.give_back()).await;
        outcome
    });
    rehearsing.await.unwrap_or_else(|_| Err(internal("try the image out")(std::io::Error::other("panicked"))))
}

/// Why there is no trying it out here. Its checksums are compared all the same when it is used.
fn cannot(node: &Node, image: &Image) -> Option<String> {
    if let Some(lack) = node.pool.snapshots_lack() {
        return Some(lack);
    }
    let needed = image.bytes.saturating_add(node.cgroups.reserve_bytes());
    let available = scarcity::available_bytes()?;
    (available < needed).then(|| format!("it takes {needed} bytes of memory, and {available} are there"))
}

/// Who plays the sandbox's part.
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
                .map_err(internal("lay out the image of its memory"))?;
            Ok(Source { opened, program: place.program(), is_fork: true })
        })
        .await?
    };
    restore::rehearse(node, double, &source).await
}
