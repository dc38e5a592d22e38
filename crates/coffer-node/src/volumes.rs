//! Volumes, and which sandboxes mount them.
//!
//! The pool has the volumes, the journal's entries say which sandboxes mount them. A volume is held from
//! before the entry is written until the sandbox's processes and files are gone, and is not deleted meanwhile.

use std::collections::{BTreeSet, HashMap};

use coffer_core::sync::Mutex;
use coffer_core::{SandboxId, VolumeId, check_mounts};
use coffer_wire::node::{NodeError, NodeErrorCode, NodeMount, VolumeInfo};

use crate::pool::Pool;
use crate::spawner::request::VolumeBind;

/// No node has more: a list of all of them is one frame to the server.
const MOST: usize = 10_000;
/// Users of a volume that a refusal names.
const NAMED: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Volumes {
    /// The sandboxes that mount each.
    users: Mutex<HashMap<VolumeId, BTreeSet<SandboxId>>>,
    /// Held while one is created or deleted.
    changing: Mutex<()>,
}

impl Volumes {
    /// Creates a volume, or changes the limit of the one of that id.
    pub(crate) fn create(&self, pool: &Pool, volume: VolumeId, limit_mib: u64) -> Result<(), NodeError> {
        if limit_mib == 0 || limit_mib > u64::MAX >> 24 {
            let message = "the limit of a volume is 1 MiB at least, and no larger than any machine";
            return Err(NodeError::new(NodeErrorCode::Unsupported, message));
        }
        let _turn = self.changing.lock();
        let name = volume.to_string();
        let failed = |error: std::io::Error| failed("create", volume, &error);
        if !pool.has_volume(&name) {
            if pool.volume_names().map_err(failed)?.len() >= MOST {
                let message = format!("this node has {MOST} volumes, the maximum");
                return Err(NodeError::new(NodeErrorCode::NoCapacity, message));
            }
            if pool.missing_bytes().map_err(failed)? > 0 {
                let message = "the disk pool is nearly full";
                return Err(NodeError::new(NodeErrorCode::NoCapacity, message));
            }
        }
        pool.create_volume(&name, limit_mib << 20).map_err(failed)
    }

    /// Deletes a volume that no sandbox mounts; succeeds if there is none.
    pub(crate) fn delete(&self, pool: &Pool, volume: VolumeId) -> Result<(), NodeError> {
        let _turn = self.changing.lock();
        let name = volume.to_string();
        let retired = {
            // Taken away under the lock, so that no sandbox gets hold of it meanwhile.
            let users = self.users.lock();
            if let Some(users) = users.get(&volume) {
                return Err(in_use(volume, users));
            }
            pool.retire_volume(&name).map_err(|error| failed("delete", volume, &error))?
        };
        if retired {
            pool.delete_draft(&name).map_err(|error| failed("delete", volume, &error))?;
        }
        Ok(())
    }

    pub(crate) fn list(&self, pool: &Pool) -> Result<Vec<VolumeInfo>, NodeError> {
        let names = pool.volume_names().map_err(|error| {
            NodeError::new(NodeErrorCode::Internal, format!("could not list volumes: {error}"))
        })?;
        let users = self.users.lock().clone();
        let info = |volume: VolumeId| VolumeInfo {
            volume,
            used_bytes: pool.volume_bytes(&volume.to_string()),
            sandboxes: users.get(&volume).into_iter().flatten().copied().collect(),
        };
        Ok(names.iter().filter_map(|name| name.parse().ok()).map(info).collect())
    }

    /// Holds the volumes that a new sandbox mounts: all of them or none.
    pub(crate) fn hold(
        &self,
        pool: &Pool,
        sandbox: SandboxId,
        mounts: &[NodeMount],
    ) -> Result<(), NodeError> {
        let paths: Vec<_> = mounts.iter().map(|mount| &mount.path).collect();
        check_mounts(&paths)
            .map_err(|error| NodeError::new(NodeErrorCode::Unsupported, error.to_string()))?;
        let mut users = self.users.lock();
        if let Some(NodeMount { volume, .. }) =
            mounts.iter().find(|mount| !pool.has_volume(&mount.volume.to_string()))
        {
            let message = format!("volume {volume} not found");
            return Err(NodeError::new(NodeErrorCode::UnknownVolume, message));
        }
        for mount in mounts {
            users.entry(mount.volume).or_default().insert(sandbox);
        }
        Ok(())
    }

    /// Holds those of a sandbox that a previous node created.
    pub(crate) fn hold_again(&self, sandbox: SandboxId, mounts: &[NodeMount]) {
        let mut users = self.users.lock();
        for mount in mounts {
            users.entry(mount.volume).or_default().insert(sandbox);
        }
    }

    /// The sandbox is gone.
    pub(crate) fn release(&self, sandbox: SandboxId) {
        self.users.lock().retain(|_, users| {
            users.remove(&sandbox);
            !users.is_empty()
        });
    }
}

/// The mounts for the spawner.
pub(crate) fn binds(pool: &Pool, mounts: &[NodeMount]) -> Vec<VolumeBind> {
    let bind = |mount: &NodeMount| VolumeBind {
        source: pool.volume(&mount.volume.to_string()),
        target: mount.path.as_str().into(),
        read_only: mount.read_only,
    };
    mounts.iter().map(bind).collect()
}

fn in_use(volume: VolumeId, users: &BTreeSet<SandboxId>) -> NodeError {
    let named: Vec<_> = users.iter().take(NAMED).map(ToString::to_string).collect();
    let more = users.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!("volume {volume} is mounted by sandbox {}{more}", named.join(", "));
    NodeError::new(NodeErrorCode::WrongState, message)
}

fn failed(what: &str, volume: VolumeId, error: &std::io::Error) -> NodeError {
    let code = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => NodeErrorCode::NoCapacity,
        _ => NodeErrorCode::Internal,
    };
    NodeError::new(code, format!("could not {what} volume {volume}: {error}"))
}
