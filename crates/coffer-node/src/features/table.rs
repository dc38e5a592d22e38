//! Every kernel feature that sandboxes depend on, in one table. `docs/kernels.md` is generated from it.

use serde::{Deserialize, Serialize};

/// A feature that a kernel has or lacks. Its name in [`Row`] is used in logs, settings and docs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    NewMountApi,
    CloneThree,
    Openat2,
    CloseRange,
    SeccompFilter,
    MappedMounts,
    OverlayMappedLayers,
    OverlayVolatile,
    OverlayAppend,
    OverlayDescriptors,
    OverlayDetached,
    Btrfs,
    BtrfsSimpleQuotas,
    CgroupV2,
    CloneIntoCgroup,
    CgroupFreeze,
    CgroupKill,
    PidfdInfo,
    CgroupMemory,
    CgroupPids,
    CgroupCpu,
    CgroupIo,
    Nftables,
    SysfsInSandbox,
    Landlock,
    Criu,
}

/// What a missing feature means for the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No sandbox can be created.
    Required,
    /// The node does the same in another way.
    Fallback,
    /// Sandboxes work, and something that users can see does not.
    Optional,
}

/// One feature: what it is for and what happens without it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub feature: Feature,
    pub name: &'static str,
    /// The first mainline release, as public history has it. Probes decide, not this.
    pub since: &'static str,
    pub need: Need,
    pub used_for: &'static str,
    pub without: &'static str,
    /// What an operator can do about it.
    pub fix: &'static str,
}

const NEWER_KERNEL: &str = "boot a newer kernel";

const fn required(
    feature: Feature,
    name: &'static str,
    since: &'static str,
    used_for: &'static str,
    fix: &'static str,
) -> Row {
    Row { feature, name, since, need: Need::Required, used_for, without: "no sandbox can be created", fix }
}

const fn fallback(
    feature: Feature,
    name: &'static str,
    since: &'static str,
    used_for: &'static str,
    without: &'static str,
) -> Row {
    Row { feature, name, since, need: Need::Fallback, used_for, without, fix: NEWER_KERNEL }
}

const fn optional(
    feature: Feature,
    name: &'static str,
    since: &'static str,
    used_for: &'static str,
    without: &'static str,
    fix: &'static str,
) -> Row {
    Row { feature, name, since, need: Need::Optional, used_for, without, fix }
}

/// Sorted as [`Feature`] is.
pub const TABLE: &[Row] = &[
    required(
        Feature::NewMountApi,
        "new_mount_api",
        "5.2",
        "mounts that are handed to a sandbox as descriptors (`fsopen`, `open_tree`, `move_mount`)",
        NEWER_KERNEL,
    ),
    required(
        Feature::CloneThree,
        "clone3",
        "5.3",
        "new namespaces and a pidfd in one call",
        "allow user namespaces (`sysctl user.max_user_namespaces`), or boot a newer kernel",
    ),
    required(Feature::Openat2, "openat2", "5.6", "opening hostile paths below a root", NEWER_KERNEL),
    required(
        Feature::CloseRange,
        "close_range",
        "5.11",
        "closing inherited descriptors before a sandbox starts (`CLOSE_RANGE_CLOEXEC`)",
        NEWER_KERNEL,
    ),
    required(
        Feature::SeccompFilter,
        "seccomp_filter",
        "3.17",
        "the system call filter of every sandbox",
        "use a kernel with CONFIG_SECCOMP_FILTER, and a container runtime that allows `seccomp`",
    ),
    optional(
        Feature::MappedMounts,
        "mapped_mounts",
        "5.12",
        "one template for all sandboxes, each with its own user ids (`mount_setattr`; btrfs from 5.15)",
        "files of templates belong to `nobody` inside, and `sudo` does not work",
        "keep the template directory on ext4, xfs or btrfs",
    ),
    required(
        Feature::OverlayMappedLayers,
        "overlay_mapped_layers",
        "5.19",
        "the root file system of every sandbox: an overlay over id-mapped layers",
        "boot Linux 5.19 or later with the `overlay` module (`modprobe overlay`)",
    ),
    fallback(
        Feature::OverlayVolatile,
        "overlay_volatile",
        "5.10",
        "destroying a sandbox without writing its files out first",
        "destroying a sandbox waits until its files are on disk",
    ),
    fallback(
        Feature::OverlayAppend,
        "overlay_append",
        "6.7",
        "naming layers one by one (`lowerdir+`)",
        "all layers are named in one option, which holds about 200 of them",
    ),
    fallback(
        Feature::OverlayDescriptors,
        "overlay_descriptors",
        "6.13",
        "giving layers as descriptors, without a name",
        "layers are named by `/proc/self/fd/N`, which the sandbox can read in its mount table",
    ),
    fallback(
        Feature::OverlayDetached,
        "overlay_detached",
        "6.15",
        "layers that are mounted nowhere",
        "the spawner attaches the layers in its own mount namespace while it mounts",
    ),
    optional(
        Feature::Btrfs,
        "btrfs",
        "5.15",
        "disk limits, snapshots and forks: each sandbox has a subvolume with a quota",
        "disk use is not limited, and there are no snapshots and no forks",
        "load the module (`modprobe btrfs loop`) and install `btrfs-progs`; some cloud kernels leave it out",
    ),
    fallback(
        Feature::BtrfsSimpleQuotas,
        "btrfs_simple_quotas",
        "6.7",
        "disk limits that stay cheap with any number of snapshots",
        "classic quota groups: a fork's limit is raised by what it inherited, all of which counts; snapshots get \
         slower with their number",
    ),
    fallback(
        Feature::CgroupV2,
        "cgroup_v2",
        "4.5",
        "one hierarchy for limits, freezing and killing",
        "limits and freezing by cgroup v1; creating a sandbox waits for the kernel to move its first process",
    ),
    fallback(
        Feature::CloneIntoCgroup,
        "clone_into_cgroup",
        "5.7",
        "starting a sandbox under its limits",
        "the first process waits until the node has moved it under its limits",
    ),
    fallback(
        Feature::CgroupFreeze,
        "cgroup_freeze",
        "5.2",
        "pausing by the cgroup v2 freezer",
        "pausing by the cgroup v1 freezer; with neither, sandboxes cannot be paused",
    ),
    fallback(
        Feature::CgroupKill,
        "cgroup_kill",
        "5.14",
        "ending all processes of a sandbox at once",
        "processes are killed one by one until none is left",
    ),
    fallback(
        Feature::PidfdInfo,
        "pidfd_info",
        "6.15",
        "the exit status of a sandbox that an earlier node had started",
        "such a sandbox ends with an unknown exit status",
    ),
    optional(
        Feature::CgroupMemory,
        "cgroup_memory",
        "4.5",
        "memory limits and out-of-memory reports",
        "memory is not limited",
        "boot with `cgroup_enable=memory`, or mount the controller",
    ),
    optional(
        Feature::CgroupPids,
        "cgroup_pids",
        "4.5",
        "the limit of processes",
        "the number of processes is not limited",
        "mount the `pids` controller",
    ),
    optional(
        Feature::CgroupCpu,
        "cgroup_cpu",
        "4.15",
        "processor limits and shares",
        "processor time is not limited",
        "mount the `cpu` controller; on cgroup v2 no real-time process may be outside the root group",
    ),
    Row {
        fix: "boot with cgroup v2 (`systemd.unified_cgroup_hierarchy=1`)",
        ..fallback(
            Feature::CgroupIo,
            "cgroup_io",
            "4.5",
            "fair shares of the disk, where its scheduler knows weights",
            "disk bandwidth is not divided between sandboxes",
        )
    },
    optional(
        Feature::Nftables,
        "nf_tables",
        "5.2",
        "redirecting a sandbox's connections to egress",
        "sandboxes have no network",
        "load the modules (`modprobe nf_tables nft_redir nft_chain_nat`)",
    ),
    fallback(
        Feature::SysfsInSandbox,
        "sysfs_in_sandbox",
        "4.2",
        "a `/sys` that shows the sandbox's own network",
        "`/sys` is empty; kernels refuse it where the host itself sees only a part of it, as in a container",
    ),
    optional(
        Feature::Landlock,
        "landlock",
        "5.19",
        "keeping each git process of the server to its own repository",
        "git of the server can read the files that the server can, other projects' repositories among them",
        "use a kernel with CONFIG_SECURITY_LANDLOCK, booted with `landlock` in `lsm=`",
    ),
    Row {
        fix: "install CRIU 4 (4.2 from Linux 6.16 on); `scripts/setup run` installs it if a package is available",
        ..fallback(
            Feature::Criu,
            "criu",
            "3.11",
            "memory on disk: hibernation, snapshots with processes, live forks",
            "a pause keeps memory only while the host runs; snapshots and forks carry files",
        )
    },
];

impl Feature {
    pub fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.feature == self).expect("a test checks that the table has every feature")
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    pub fn named(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.feature)
    }
}

/// A kind of host that is in use, described by the features its kernel lacks: tests emulate it on any newer
/// kernel.
#[derive(Debug, Clone, Copy)]
pub struct KnownHost {
    pub name: &'static str,
    pub lacks: &'static [Feature],
}

const BEFORE_6_15: &[Feature] = &[Feature::OverlayDescriptors, Feature::OverlayDetached, Feature::PidfdInfo];
const BEFORE_6_7: &[Feature] = &[
    Feature::OverlayAppend,
    Feature::OverlayDescriptors,
    Feature::OverlayDetached,
    Feature::BtrfsSimpleQuotas,
    Feature::PidfdInfo,
];
const CGROUP_V1: &[Feature] = &[
    Feature::OverlayAppend,
    Feature::OverlayDescriptors,
    Feature::OverlayDetached,
    Feature::BtrfsSimpleQuotas,
    Feature::PidfdInfo,
    Feature::CgroupV2,
];

/// Debian 12 has 6.1, Debian 13 has 6.12, Ubuntu 24.04 and the HWE kernel of 22.04 have 6.8.
pub const KNOWN_HOSTS: &[KnownHost] = &[
    KnownHost { name: "debian12", lacks: BEFORE_6_7 },
    KnownHost { name: "ubuntu2404", lacks: BEFORE_6_15 },
    KnownHost { name: "debian13", lacks: BEFORE_6_15 },
    KnownHost { name: "cgroup1", lacks: CGROUP_V1 },
];
