//! The snapshots of a node.
//!
//! The files of each are in the pool; its manifest is next to the journal, where it can be read without the
//! pool. A snapshot exists once its manifest has its final name, which it gets when its files are on disk; a
//! starting node sweeps whatever a crash left without one.

mod manifest;

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use coffer_core::sync::Mutex;
use coffer_core::{SandboxId, SnapshotId};
use coffer_wire::node::{NodeError, NodeErrorCode, SnapshotInfo};

use crate::memory::Images;
use crate::pool::Pool;

pub(crate) use manifest::Manifest;

const EXTENSION: &str = "manifest";
/// No node keeps more: a list of all of them is one frame to the server.
const MOST: usize = 10_000;

fn directory_of(data_dir: &Path) -> PathBuf {
    data_dir.join("snapshots")
}

/// The layers that the snapshots of the node at `data_dir` use. Fails if a manifest cannot be read; changes
/// nothing.
pub(crate) fn layers(data_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut layers = Vec::new();
    for (_, path) in manifests(&directory_of(data_dir))? {
        match Manifest::read(&path) {
            Ok(Manifest { overlays, .. }) => {
                layers
                    .extend(overlays.into_iter().flat_map(|overlay| overlay.layers).map(|layer| layer.path));
            }
            // Deleted in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))),
        }
    }
    Ok(layers)
}

fn manifests(directory: &Path) -> io::Result<Vec<(SnapshotId, PathBuf)>> {
    let files = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut manifests = Vec::new();
    for file in files {
        let path = file?.path();
        let id = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (Some(id), true) = (id, path.extension().is_some_and(|extension| extension == EXTENSION)) {
            manifests.push((id, path));
        }
    }
    Ok(manifests)
}

#[derive(Debug)]
pub(crate) struct Snapshots {
    directory: PathBuf,
    known: Table,
}

type Table = Arc<Mutex<BTreeMap<SnapshotId, Known>>>;

#[derive(Debug)]
enum Known {
    /// The server does not know it yet.
    Making,
    /// As before, but it was deleted meanwhile: the server that wanted it may have died.
    Unwanted,
    Made(Arc<Manifest>),
    /// Its manifest is damaged.
    Damaged(String),
}

/// Result of [`Snapshots::begin`].
#[derive(Debug)]
pub(crate) enum Begun {
    /// It exists already.
    Made(Arc<Manifest>),
    New(Making),
}

/// A snapshot in progress, reserved for one caller. Dropped unless it is finished.
#[derive(Debug)]
pub(crate) struct Making {
    known: Table,
    path: PathBuf,
    id: SnapshotId,
}

impl Making {
    /// Writes its manifest; from here on it exists. Fails if it was deleted meanwhile.
    pub(crate) fn finish(self, manifest: Manifest) -> io::Result<Arc<Manifest>> {
        manifest.write(&self.path)?;
        let manifest = Arc::new(manifest);
        let mut known = lock(&self.known);
        if matches!(known.get(&self.id), Some(Known::Unwanted)) {
            fs::remove_file(&self.path)?;
            return Err(io::Error::other("it was deleted while it was created"));
        }
        known.insert(self.id, Known::Made(manifest.clone()));
        drop(known);
        Ok(manifest)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut known = lock(&self.known);
        if matches!(known.get(&self.id), Some(Known::Making | Known::Unwanted)) {
            known.remove(&self.id);
        }
    }
}

impl Snapshots {
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let directory = directory_of(data_dir);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self { directory, known: Table::default() })
    }

    /// Loads the snapshots that a previous node left in `pool`, and removes incomplete ones.
    pub(crate) fn load(&self, pool: &Pool) -> io::Result<()> {
        let mut found = BTreeMap::new();
        for (id, path) in manifests(&self.directory)? {
            let known = match Manifest::read(&path) {
                Ok(_) if !pool.has_snapshot(&id.to_string()) => {
                    tracing::error!("snapshot {id} is lost: its files are missing");
                    fs::remove_file(&path)?;
                    continue;
                }
                Ok(manifest) if manifest.info.snapshot != id => {
                    Known::Damaged("its manifest belongs to another snapshot".to_string())
                }
                Ok(manifest) => Known::Made(Arc::new(manifest)),
                Err(error) => Known::Damaged(format!("its manifest cannot be used: {error}")),
            };
            // Keep its files for inspection until it is deleted.
            if let Known::Damaged(why) = &known {
                tracing::error!("snapshot {id} cannot be used: {why}");
            }
            found.insert(id, known);
        }
        for file in fs::read_dir(&self.directory)?.flatten() {
            if file.path().extension().is_none_or(|extension| extension != EXTENSION) {
                let _ = fs::remove_file(file.path());
            }
        }
        let unknown = |name: &String| name.parse().map_or(true, |id| !found.contains_key(&id));
        for name in pool.snapshot_names()?.into_iter().filter(unknown) {
            tracing::warn!("removing snapshot `{name}`, which is unfinished or was deleted");
            if let Err(error) = pool.delete_snapshot(&name) {
                tracing::error!("could not remove snapshot `{name}`: {error}");
            }
        }
        *self.lock() = found;
        Ok(())
    }

    /// Begins a snapshot of a sandbox, unless there is one of that id.
    pub(crate) fn begin(&self, id: SnapshotId, sandbox: SandboxId) -> Result<Begun, NodeError> {
        let mut known = self.lock();
        let count = known.len();
        match known.entry(id) {
            btree_map::Entry::Vacant(place) => {
                if count >= MOST {
                    let message = format!("this node has {MOST} snapshots, the maximum");
                    return Err(NodeError::new(NodeErrorCode::NoCapacity, message));
                }
                place.insert(Known::Making);
                Ok(Begun::New(Making { known: self.known.clone(), path: self.path(id), id }))
            }
            btree_map::Entry::Occupied(place) => match place.get() {
                Known::Made(manifest) if manifest.info.sandbox == sandbox => {
                    Ok(Begun::Made(manifest.clone()))
                }
                _ => {
                    let message = format!("snapshot {id} exists and is not one of sandbox {sandbox}");
                    Err(NodeError::new(NodeErrorCode::WrongState, message))
                }
            },
        }
    }

    /// One that sandboxes can start from.
    pub(crate) fn get(&self, id: SnapshotId) -> Result<Arc<Manifest>, NodeError> {
        match self.lock().get(&id) {
            Some(Known::Made(manifest)) => Ok(manifest.clone()),
            Some(Known::Damaged(why)) => {
                let message = format!("snapshot {id} cannot be used: {why}");
                Err(NodeError::new(NodeErrorCode::UnknownSnapshot, message))
            }
            Some(Known::Making | Known::Unwanted) | None => Err(unknown(id)),
        }
    }

    /// All that sandboxes can start from.
    pub(crate) fn list(&self) -> Vec<SnapshotInfo> {
        let info = |known: &Known| match known {
            Known::Made(manifest) => Some(manifest.info.clone()),
            Known::Making | Known::Unwanted | Known::Damaged(_) => None,
        };
        self.lock().values().filter_map(info).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Deletes a snapshot and its files; succeeds if there is none. One that is being made is not finished. The
    /// manifest is removed first: a crash in between leaves only files, which the next start sweeps.
    pub(crate) fn delete(&self, id: SnapshotId, pool: &Pool, images: &Images) -> io::Result<()> {
        if !self.forget(id) {
            return Ok(());
        }
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        images.forget_snapshot(id)?;
        pool.delete_snapshot(&id.to_string())
    }

    /// Whether there is something of it to delete.
    fn forget(&self, id: SnapshotId) -> bool {
        match self.lock().entry(id) {
            btree_map::Entry::Occupied(mut place) => match place.get() {
                // Who makes it removes what there is of it.
                Known::Making | Known::Unwanted => {
                    place.insert(Known::Unwanted);
                    false
                }
                Known::Made(_) | Known::Damaged(_) => {
                    place.remove();
                    true
                }
            },
            btree_map::Entry::Vacant(_) => false,
        }
    }

    /// Deletes all.
    pub(crate) fn delete_all(&self, pool: &Pool, images: &Images) {
        let all: Vec<_> = self.lock().keys().copied().collect();
        for id in all {
            if let Err(error) = self.delete(id, pool, images) {
                tracing::error!("could not delete snapshot {id}: {error}");
            }
        }
    }

    fn path(&self, id: SnapshotId) -> PathBuf {
        self.directory.join(format!("{id}.{EXTENSION}"))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SnapshotId, Known>> {
        lock(&self.known)
    }
}

fn lock(known: &Table) -> MutexGuard<'_, BTreeMap<SnapshotId, Known>> {
    known.lock()
}

pub(crate) fn unknown(id: SnapshotId) -> NodeError {
    NodeError::new(NodeErrorCode::UnknownSnapshot, format!("snapshot {id} not found"))
}

#[cfg(test)]
mod tests {
    use coffer_core::Limits;
    use coffer_wire::node::TemplateInfo;

    use super::*;

    #[test]
    fn a_snapshot_that_is_deleted_while_it_is_made_never_exists() {
        let home = tempfile::tempdir().unwrap();
        let snapshots = Snapshots::open(home.path()).unwrap();
        let (id, sandbox) = (SnapshotId::generate(), SandboxId::generate());
        let template = TemplateInfo {
            name: "base".into(),
            build: "1".into(),
            default_user: "user".into(),
            default_workdir: None,
            env: Default::default(),
            start: None,
        };
        let info = SnapshotInfo {
            snapshot: id,
            sandbox,
            made_ms: 1,
            memory: false,
            files_bytes: 0,
            memory_bytes: 0,
            depth: 1,
            paused_us: 0,
            template,
            limits: Limits::default(),
        };
        let manifest = Manifest { info, hostname: "x".into(), overlays: Vec::new(), stored_uid_base: 0 };
        let begin = || match snapshots.begin(id, sandbox) {
            Ok(Begun::New(making)) => making,
            other => panic!("it is new, and not {other:?}"),
        };
        let making = begin();
        assert!(!snapshots.forget(id), "who makes it removes it");
        assert!(snapshots.begin(id, sandbox).is_err(), "until then there is no other");
        making.finish(manifest.clone()).unwrap_err();
        assert!(snapshots.list().is_empty() && manifests(&snapshots.directory).unwrap().is_empty());
        begin().finish(manifest).unwrap();
        assert!(snapshots.get(id).is_ok() && snapshots.forget(id));
        assert!(snapshots.get(id).is_err());
    }
}
