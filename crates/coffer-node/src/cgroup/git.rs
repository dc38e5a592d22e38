//! The cgroup of the server's git: next to the sandboxes', with its own memory limit, so that no push can
//! exhaust the host's memory. The node creates it; the process that starts git enters it while it is root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::controller::Controller;
use super::{Cgroups, Mounts, make_directory};

/// The directory of the node in each hierarchy, by its data directory.
pub fn name(data_dir: &Path) -> String {
    format!("coffer-{}", &hex::encode(Sha256::digest(data_dir.as_os_str().as_encoded_bytes()))[..8])
}

fn beside(parent: &Path) -> PathBuf {
    let name = parent.file_name().unwrap_or_default().to_string_lossy();
    parent.with_file_name(format!("{name}-git"))
}

impl Cgroups {
    /// Creates the cgroup for git, limited to `memory` bytes or a quarter of the machine's. Returns the
    /// reason if it cannot.
    pub(super) fn limit_git(&self, memory: Option<u64>, machine: u64) -> Option<String> {
        let memory = memory.unwrap_or((machine / 4).max(512 << 20));
        let failed =
            |error: io::Error| format!("the server's git processes have no common memory limit: {error}");
        let (directory, v2) = self.git_directory()?;
        let file = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
        let limited = make_directory(&directory)
            .and_then(|()| fs::write(directory.join(file), memory.to_string()))
            .inspect_err(|_| drop(fs::remove_dir(&directory)));
        limited.map_err(failed).err()
    }

    pub(super) fn remove_git(&self) {
        if let Some((directory, _)) = self.git_directory() {
            // While git runs it stays, for the next node.
            let _ = fs::remove_dir(directory);
        }
    }

    /// The directory with the memory controller, and whether it is v2.
    fn git_directory(&self) -> Option<(PathBuf, bool)> {
        let v2 = self.v2.as_ref().filter(|v2| v2.controllers.contains(&Controller::Memory));
        let v1 = || self.v1.iter().find(|v1| v1.controllers.contains(&Controller::Memory));
        let v2 = v2.map(|v2| (beside(&v2.parent), true));
        v2.or_else(|| Some((beside(&v1()?.parent), false)))
    }
}

/// Moves this process, which must be root's, into the cgroup for git if a node has created it. Returns
/// whether it did.
pub fn enter_git_cgroup(node_dir: &Path) -> io::Result<bool> {
    let mounts = Mounts::parse(&fs::read_to_string("/proc/self/mountinfo")?);
    let name = name(&node_dir.canonicalize()?);
    let v1 = mounts.v1.into_iter().filter(|(controllers, _)| controllers.contains(&Controller::Memory));
    for root in mounts.v2.into_iter().chain(v1.map(|(_, root)| root)) {
        let directory = beside(&root.join(&name));
        if directory.exists() {
            fs::write(directory.join("cgroup.procs"), std::process::id().to_string())?;
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{Powers, V1, V2};
    use super::*;

    /// Plain directories in place of hierarchies.
    fn cgroups(top: &Path, v2: &[Controller], v1: &[Controller]) -> Cgroups {
        let powers = Powers { birth: true, freeze: true, kill: true };
        let v2 = V2 { parent: top.join("v2/coffer-x"), controllers: v2.iter().copied().collect(), powers };
        let v1 =
            V1 { parent: top.join("v1/coffer-x"), controllers: v1.iter().copied().collect::<BTreeSet<_>>() };
        for parent in [&v2.parent, &v1.parent] {
            fs::create_dir_all(parent).unwrap();
        }
        Cgroups { v2: Some(v2), v1: vec![v1], reserve_bytes: 0, memory_bytes: 0 }
    }

    #[test]
    fn git_is_limited_where_memory_is() {
        let gib = 1_u64 << 30;
        for (v2, v1, file) in [
            (&[Controller::Memory][..], &[][..], "v2/coffer-x-git/memory.max"),
            (&[], &[Controller::Memory], "v1/coffer-x-git/memory.limit_in_bytes"),
        ] {
            let top = tempfile::tempdir().unwrap();
            let cgroups = cgroups(top.path(), v2, v1);
            let limit = || fs::read_to_string(top.path().join(file)).unwrap();
            assert_eq!(cgroups.limit_git(None, 8 * gib), None);
            assert_eq!(limit(), (2 * gib).to_string(), "a quarter of the machine's");
            assert_eq!(cgroups.limit_git(Some(gib), 8 * gib), None, "that of an earlier node is taken over");
            assert_eq!(limit(), gib.to_string());
        }
        let top = tempfile::tempdir().unwrap();
        let none = cgroups(top.path(), &[], &[Controller::Pids]);
        assert_eq!((none.limit_git(None, gib), none.git_directory()), (None, None));
    }
}
