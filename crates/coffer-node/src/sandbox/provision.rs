//! Chooses a sandbox's resources: its template or snapshot, its ids and processors, its first files.

use std::io;
use std::sync::Arc;

use coffer_core::SnapshotId;
use coffer_template::{BASE, HOST, OverlaySpec, Template};
use coffer_wire::node::{CreateSandbox, NodeError, NodeErrorCode, TemplateInfo};

use crate::files::{self, Inherited};
use crate::journal::{Durability, Entry, Files, Phase};
use crate::memory;
use crate::node::{Node, blocking};
use crate::snapshots::{self, Manifest};

use super::prepare::{check_room, internal, refused_ids};

/// How a sandbox begins to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// Start agentd, and nothing else.
    Boot,
    /// Continue with the processes of that snapshot.
    Memory(SnapshotId),
}

impl Resume {
    pub(super) fn wanted(spec: &CreateSandbox) -> Self {
        match spec.snapshot {
            Some(snapshot) if spec.memory => Self::Memory(snapshot),
            _ => Self::Boot,
        }
    }

    /// Whether a snapshot supports this.
    pub(super) fn check(self, manifest: &Manifest) -> Result<(), NodeError> {
        if self == Self::Boot {
            return Ok(());
        }
        memory::tool()?;
        if manifest.info.memory {
            return Ok(());
        }
        let message = format!("snapshot {} has files only", manifest.info.snapshot);
        Err(NodeError::new(NodeErrorCode::Unsupported, message))
    }
}

/// Chooses the resources of a new sandbox and records them. Nothing else exists yet.
pub(super) async fn reserve(node: &Arc<Node>, spec: &CreateSandbox) -> Result<Entry, NodeError> {
    let (node, spec) = (node.clone(), spec.clone());
    blocking(move || {
        check(&spec)?;
        let (template, overlays, files) =
            find_origin(&node, &spec.template, spec.snapshot, Resume::wanted(&spec))?;
        check_room(&node)?;
        // Before the entry: from here on none of them is deleted.
        node.volumes.hold(&node.pool, spec.sandbox, &spec.volumes)?;
        let sandbox = spec.sandbox;
        let uid_base = node.uids.take().map_err(|error| {
            node.volumes.release(sandbox);
            refused_ids(error)
        })?;
        let cpus = node.processors.take(spec.limits.cpu_count);
        let entry =
            Entry { spec, slot: None, template, overlays, uid_base, files, cpus, phase: Phase::Creating };
        if let Err(error) = node.journal.write(&entry, Durability::Cached) {
            node.volumes.release(sandbox);
            node.processors.give_back(&entry.cpus);
            node.uids.give_back(uid_base);
            return Err(internal("write the journal")(error));
        }
        Ok(entry)
    })
    .await
}

/// What a new sandbox is made of: a snapshot, or else a template of the host.
pub(super) fn find_origin(
    node: &Node,
    template: &str,
    snapshot: Option<SnapshotId>,
    resume: Resume,
) -> Result<(TemplateInfo, Vec<OverlaySpec>, Files), NodeError> {
    if let Some(snapshot) = snapshot {
        let manifest = node.snapshots.get(snapshot)?;
        resume.check(&manifest)?;
        return Ok(inherit(node, &manifest, 0, resume));
    }
    let Template { info, overlays, .. } = find_template(node, template)?;
    Ok((info, overlays, Files::default()))
}

/// The entry of a sandbox that gets the files of a snapshot.
pub(super) fn inherit(
    node: &Node,
    snapshot: &Manifest,
    generation: u32,
    resume: Resume,
) -> (TemplateInfo, Vec<OverlaySpec>, Files) {
    // If every user of an extent is charged for it, the limit must leave room beyond the inherited bytes.
    let sealed_bytes = if node.pool.charges_makers() { 0 } else { snapshot.info.files_bytes };
    let files = Files {
        generation,
        stored_uid_base: Some(snapshot.stored_uid_base),
        sealed_bytes,
        depth: snapshot.info.depth,
    };
    let mut overlays = snapshot.overlays.clone();
    // Processes that go on have files of the old layers open.
    if resume == Resume::Boot
        && let Some(Err(error)) = node.trust.as_ref().map(|trust| trust.renew(&mut overlays))
    {
        tracing::warn!("a sandbox keeps the trust store of its snapshot: {error}");
    }
    (snapshot.info.template.clone(), overlays, files)
}

pub(super) fn check(spec: &CreateSandbox) -> Result<(), NodeError> {
    let refuse = |message: &str| Err(NodeError::new(NodeErrorCode::Unsupported, message));
    if spec.memory && spec.snapshot.is_none() {
        return refuse("restoring memory needs a snapshot, and the request names none");
    }
    if spec.memory && !spec.volumes.is_empty() {
        return refuse("a sandbox with volumes does not continue saved processes");
    }
    // The journal stores the name, even if a snapshot decides the template.
    if spec.template.len() > 512 || !spec.template.bytes().all(|byte| byte.is_ascii_graphic()) {
        return refuse("a template's name has at most 512 printable ASCII characters");
    }
    let limits = &spec.limits;
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if spec.hostname.is_empty() || spec.hostname.len() > 64 || !spec.hostname.bytes().all(letters) {
        return refuse("a host name is 1 to 64 letters, digits, hyphens and dots");
    }
    if limits.cpu_count == 0 || limits.memory_mib == 0 || limits.disk_mib == 0 || limits.max_processes == 0 {
        return refuse("a sandbox needs at least 1 processor, 1 MiB of memory and of disk, and 1 process");
    }
    if limits.memory_mib > u64::MAX >> 24 || limits.disk_mib > u64::MAX >> 24 {
        return refuse("a limit is too large");
    }
    Ok(())
}

fn find_template(node: &Node, name: &str) -> Result<Template, NodeError> {
    let template = find_plain_template(node, name)?;
    match &node.trust {
        Some(trust) => trust.extend(template).map_err(internal("create its trust store")),
        None => Ok(template),
    }
}

fn find_plain_template(node: &Node, name: &str) -> Result<Template, NodeError> {
    // `host` only as the host is now: an older build may lack files after a power failure.
    if name != HOST
        && let Some(template) = node.templates.get(name)
    {
        return Ok(template);
    }
    let unknown = |why: String| NodeError::new(NodeErrorCode::UnknownTemplate, why);
    if name == BASE || name == HOST {
        return node.templates.ensure_host().map_err(|error| {
            unknown(format!(
                "template `{name}` is not built, and the template `host` cannot replace it: {error}"
            ))
        });
    }
    Err(unknown(format!("template `{name}` not found")))
}

/// Creates the writable files of a new sandbox.
pub(super) async fn make_files(node: &Arc<Node>, entry: &Entry) -> Result<(), NodeError> {
    let (node, entry) = (node.clone(), entry.clone());
    blocking(move || {
        if let Some(snapshot) = entry.spec.snapshot {
            return take_files(&node, &entry, &*node.snapshots.get(snapshot)?);
        }
        let upper = node
            .pool
            .create(&entry.files_name(), entry.disk_bytes())
            .map_err(internal("create a place for its files"))?;
        let mounts = files::overlay_mounts(&entry.overlays, &upper.path, entry.uid_base);
        files::write_own(&mounts, entry.uid_base, &entry.spec.hostname)
            .map_err(internal("write its own files"))
    })
    .await
}

/// Gives a sandbox the files of a snapshot.
pub(super) fn take_files(node: &Node, entry: &Entry, snapshot: &Manifest) -> Result<(), NodeError> {
    let id = snapshot.info.snapshot;
    let made = node.pool.create_from(&id.to_string(), &entry.files_name(), entry.disk_bytes());
    let upper = made.map_err(|error| match error.kind() {
        // It was just deleted.
        io::ErrorKind::NotFound => snapshots::unknown(id),
        _ => internal("create its files from the snapshot")(error),
    })?;
    let mounts = files::overlay_mounts(&entry.overlays, &upper.path, entry.stored_uid_base());
    let own = snapshot.info.sandbox == entry.spec.sandbox;
    let inherited = if own { Inherited::OwnPast } else { Inherited::Anothers };
    files::own_again(&mounts, &snapshot.hostname, &entry.spec.hostname, inherited)
        .map_err(internal("write its own files"))
}
