//! Control groups on whatever the host has: v2, v1, or both.
//!
//! On a hybrid host the v2 tree carries no controllers but still supports clone-into-cgroup, freezing and
//! killing; the limits are in v1. Moving a process into a v1 cgroup waits about 7 ms for the kernel, so the
//! node does it while the new process sets itself up.

mod controller;
mod git;
mod sandbox;
mod together;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use coffer_core::SandboxId;
use coffer_wire::node::Pressure;

use crate::features::{Feature, Features};

pub(crate) use controller::Controller;
use controller::Powers;
pub use git::enter_git_cgroup;
pub use git::name as cgroup_name;
pub(crate) use sandbox::SandboxCgroup;
use together::Together;

/// Where control groups are mounted, read from `/proc/self/mountinfo`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mounts {
    v2: Option<PathBuf>,
    v1: Vec<(BTreeSet<Controller>, PathBuf)>,
}

impl Mounts {
    fn parse(mountinfo: &str) -> Self {
        let mut mounts = Self::default();
        for line in mountinfo.lines() {
            let Some((place, kind)) = line.split_once(" - ") else { continue };
            let Some(point) = place.split(' ').nth(4) else { continue };
            let mut kind = kind.split(' ');
            match (kind.next(), kind.nth(1)) {
                (Some("cgroup2"), _) if mounts.v2.is_none() => mounts.v2 = Some(point.into()),
                (Some("cgroup"), Some(options)) => {
                    let controllers: BTreeSet<_> =
                        options.split(',').filter_map(Controller::from_name).collect();
                    let known = mounts.v1.iter().any(|(seen, _)| !seen.is_disjoint(&controllers));
                    if !controllers.is_empty() && !known {
                        mounts.v1.push((controllers, point.into()));
                    }
                }
                _ => {}
            }
        }
        mounts
    }
}

#[derive(Debug)]
struct V2 {
    parent: PathBuf,
    controllers: BTreeSet<Controller>,
    powers: Powers,
}

#[derive(Debug)]
struct V1 {
    parent: PathBuf,
    controllers: BTreeSet<Controller>,
}

/// The node's part of the host's control groups: one directory in each hierarchy that it uses.
#[derive(Debug)]
pub(crate) struct Cgroups {
    v2: Option<V2>,
    v1: Vec<V1>,
    reserve_bytes: u64,
    memory_bytes: u64,
}

impl Cgroups {
    /// Detects the host's hierarchies and creates a directory called `name` in each. A missing one is
    /// recorded as a missing feature, never an error.
    pub(crate) fn open(
        name: &str,
        memory_reserve: Option<u64>,
        git_memory: Option<u64>,
        features: &mut Features,
    ) -> io::Result<(Self, Vec<String>)> {
        let mounts = Mounts::parse(&fs::read_to_string("/proc/self/mountinfo")?);
        let mut warnings = Vec::new();
        let v2 = if features.has(Feature::CgroupV2) { find_v2(mounts.v2, name, features) } else { None };
        // Prefer v2 controllers; use v1 for the rest.
        let mut missing = BTreeSet::from([Controller::Memory, Controller::Pids, Controller::Cpu]);
        match &v2 {
            Some(v2) => missing.retain(|controller| !v2.controllers.contains(controller)),
            // v2 counts processor time without any controller.
            None => missing.extend([Controller::CpuAccount]),
        }
        if v2.as_ref().is_none_or(|v2| !v2.powers.freeze) {
            missing.insert(Controller::Freezer);
        }
        let mut v1 = Vec::new();
        for (controllers, root) in mounts.v1 {
            let wanted: BTreeSet<_> = controllers.intersection(&missing).copied().collect();
            if wanted.is_empty() {
                continue;
            }
            let parent = root.join(name);
            match make_directory(&parent) {
                Ok(()) => {
                    missing.retain(|controller| !wanted.contains(controller));
                    v1.push(V1 { parent, controllers: wanted });
                }
                Err(error) => warnings.push(format!("could not create `{}`: {error}", parent.display())),
            }
        }
        let together = Together::on_this_host(memory_reserve)?;
        let Together { reserve_bytes, memory_bytes, .. } = together;
        let cgroups = Self { v2, v1, reserve_bytes, memory_bytes };
        warnings.extend(cgroups.limit_together(&together));
        warnings.extend(cgroups.limit_git(git_memory, together.machine_bytes()));
        for (controller, feature) in [
            (Controller::Memory, Feature::CgroupMemory),
            (Controller::Pids, Feature::CgroupPids),
            (Controller::Cpu, Feature::CgroupCpu),
            (Controller::Io, Feature::CgroupIo),
        ] {
            if !cgroups.has(controller) {
                features.lack(feature, "no cgroup hierarchy of this host offers the controller to the node");
            }
        }
        if !cgroups.can_freeze() {
            warnings.push("sandboxes cannot be paused: the host has no cgroup freezer".into());
        }
        Ok((cgroups, warnings))
    }

    /// Limits what all sandboxes use together; returns warnings about limits that failed or are low.
    fn limit_together(&self, together: &Together) -> Vec<String> {
        let v2 = self.v2.iter().map(|v2| (&v2.parent, &v2.controllers, true));
        let places = v2.chain(self.v1.iter().map(|v1| (&v1.parent, &v1.controllers, false)));
        let mut warnings: Vec<_> = together.warning().into_iter().collect();
        for (parent, controllers, is_v2) in places {
            for &controller in controllers {
                if let Err(error) = together.limit(parent, controller, is_v2) {
                    warnings.push(format!(
                        "could not limit all sandboxes together in `{}`: {error}",
                        parent.display()
                    ));
                }
            }
        }
        warnings
    }

    /// How short sandboxes are of processors, memory and disk, by v2's pressure files.
    pub(crate) fn pressure(&self) -> Vec<Pressure> {
        let Some(v2) = &self.v2 else { return Vec::new() };
        let of = |resource: &str| {
            let text = fs::read_to_string(v2.parent.join(format!("{resource}.pressure"))).ok()?;
            Some(Pressure { resource: resource.into(), waiting_bp: stalled(&text)? })
        };
        ["cpu", "memory", "io"].into_iter().filter_map(of).collect()
    }

    /// Memory that sandboxes leave to the host.
    pub(crate) const fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes
    }

    /// Memory that all sandboxes together may have.
    pub(crate) const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.v2.as_ref().is_some_and(|v2| v2.controllers.contains(&controller))
            || self.v1.iter().any(|v1| v1.controllers.contains(&controller))
    }

    pub(crate) fn can_freeze(&self) -> bool {
        self.v2.as_ref().is_some_and(|v2| v2.powers.freeze) || self.has(Controller::Freezer)
    }

    /// The directories of one sandbox, which need not exist.
    pub(crate) fn of(&self, name: SandboxId) -> SandboxCgroup {
        let name = name.to_string();
        SandboxCgroup::new(
            self.v2.as_ref().map(|v2| sandbox::V2Directory {
                path: v2.parent.join(&name),
                controllers: v2.controllers.clone(),
                powers: v2.powers,
            }),
            self.v1.iter().map(|v1| (v1.parent.join(&name), v1.controllers.clone())).collect(),
        )
    }

    /// Names of all directories below the node's, in any hierarchy.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for parent in self.parents() {
            let Ok(entries) = fs::read_dir(parent) else { continue };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    names.extend(entry.file_name().into_string());
                }
            }
        }
        names
    }

    /// Removes our own directories, which must have no sandbox left.
    pub(crate) fn remove(&self) {
        self.remove_git();
        for parent in self.parents() {
            if let Err(error) = fs::remove_dir(parent) {
                tracing::warn!("could not remove the cgroup `{}`: {error}", parent.display());
            }
        }
    }

    fn parents(&self) -> impl Iterator<Item = &Path> {
        let v2 = self.v2.iter().map(|v2| v2.parent.as_path());
        v2.chain(self.v1.iter().map(|v1| v1.parent.as_path()))
    }
}

/// The node's directory in the v2 hierarchy; records why if there is none.
fn find_v2(root: Option<PathBuf>, name: &str, features: &mut Features) -> Option<V2> {
    let Some(root) = root else {
        features.lack(Feature::CgroupV2, "no cgroup2 file system is mounted");
        return None;
    };
    let opened = open_v2(&root, name, features);
    opened.map_err(|error| features.lack(Feature::CgroupV2, format!("`{}`: {error}", root.display()))).ok()
}

fn open_v2(root: &Path, name: &str, features: &mut Features) -> io::Result<V2> {
    let parent = root.join(name);
    make_directory(&parent)?;
    let offered = fs::read_to_string(root.join("cgroup.controllers"))?;
    let mut controllers = BTreeSet::new();
    for controller in offered.split_whitespace().filter_map(Controller::from_name) {
        let Some(name) = controller.v2_name() else { continue };
        // From the top down, and at the root too: a directory only has the controllers that its parent
        // enables.
        let enable = format!("+{name}");
        let enabled = fs::write(root.join("cgroup.subtree_control"), &enable)
            .and_then(|()| fs::write(parent.join("cgroup.subtree_control"), &enable));
        if enabled.is_ok() {
            controllers.insert(controller);
        }
    }
    let mut has_file = |name: &str, feature| {
        if !parent.join(name).exists() {
            features.lack(feature, format!("cgroups have no `{name}`"));
        }
        features.has(feature)
    };
    let freeze = has_file("cgroup.freeze", Feature::CgroupFreeze);
    let kill = has_file("cgroup.kill", Feature::CgroupKill);
    let powers = Powers { birth: features.has(Feature::CloneIntoCgroup), freeze, kill };
    Ok(V2 { parent, controllers, powers })
}

/// The part of ten seconds in which some process stalled, in hundredths of a percent: the kernel writes
/// `some avg10=1.50 avg60=…` for 150.
fn stalled(text: &str) -> Option<u32> {
    let percent = text.lines().find_map(|line| line.strip_prefix("some avg10="))?.split(' ').next()?;
    let (whole, hundredths) = percent.split_once('.')?;
    Some(whole.parse::<u32>().ok()? * 100 + hundredths.parse::<u32>().ok()?)
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_host_is_read() {
        let mounts = Mounts::parse(
            "30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
             31 25 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
             32 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             33 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
             34 25 8:1 / / rw - ext4 /dev/vda rw\n",
        );
        let expected = Mounts {
            v2: Some("/sys/fs/cgroup/unified".into()),
            v1: vec![
                (
                    BTreeSet::from([Controller::Cpu, Controller::CpuAccount]),
                    "/sys/fs/cgroup/cpu,cpuacct".into(),
                ),
                (BTreeSet::from([Controller::Memory]), "/sys/fs/cgroup/memory".into()),
            ],
        };
        assert_eq!(mounts, expected);
    }

    #[test]
    fn pressure_is_read() {
        let text =
            "some avg10=12.50 avg60=1.00 avg300=0.10 total=99\nfull avg10=1.00 avg60=0 avg300=0 total=1\n";
        assert_eq!(stalled(text), Some(1250));
        assert_eq!(stalled(""), None);
    }

    #[test]
    fn a_v2_host_is_read() {
        let mounts = Mounts::parse("30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
        assert_eq!(mounts, Mounts { v2: Some("/sys/fs/cgroup".into()), v1: Vec::new() });
    }
}
