//! How the server and its git reach their own directory, whatever directory it is in.

use std::path::Path;

use anyhow::Context;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

/// Mounts the server's own directory at a path that it can reach.
///
/// The data directory may be below one that only root may enter (`/root`, say). A bind mount in the server's
/// own mount namespace needs no rights on the path and ends with the process.
pub(crate) fn reach_own_directory(server_dir: &Path, at: &Path) -> anyhow::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS).context("could not create a mount namespace for the server")?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_SLAVE, none)
        .context("could not detach the mounts")?;
    // A copy of a pool's mount here would keep the pool busy after its node has unmounted it, whichever
    // installation it belongs to.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("could not list the mounts")?;
    for pool in coffer_node::mounted_pools(&mounts) {
        let _ = umount2(&pool, MntFlags::MNT_DETACH);
    }
    mount(Some(server_dir), at, none, MsFlags::MS_BIND, none)
        .with_context(|| format!("could not mount the server's directory `{}`", server_dir.display()))
}
