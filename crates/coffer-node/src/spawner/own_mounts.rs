//! The mount namespace of the spawner itself.

use std::path::Path;

use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

use crate::pool::mounted_pools;

use super::setup_error::{Doing, SetupError};

/// A private mount namespace of the spawner, in which layers can be attached briefly. Created at the first
/// request that needs it: by then the pool is mounted. Mounts and unmounts of the host still propagate into
/// it.
#[derive(Debug, Default)]
pub(super) struct OwnMounts {
    made: bool,
}

impl OwnMounts {
    /// `own` is on the pool that is needed; the pools of other installations are unmounted.
    pub(super) fn ensure(&mut self, own: Option<&Path>) -> Result<(), SetupError> {
        if !self.made {
            // SAFETY: the spawner has one thread.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
                .doing("create a mount namespace for layers")?;
            let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", downstream).doing("keep layers out of the host's mounts")?;
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").doing("list the mounts")?;
            for pool in mounted_pools(&mounts) {
                if own.is_none_or(|own| !own.starts_with(&pool)) {
                    let _ = rustix::mount::unmount(&pool, UnmountFlags::DETACH);
                }
            }
            self.made = true;
        }
        Ok(())
    }
}
