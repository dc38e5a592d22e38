//! A sandbox that runs and is not assigned yet.

use coffer_core::SnapshotId;
use coffer_template::OverlaySpec;
use coffer_wire::node::TemplateInfo;

use crate::journal::Entry;
use crate::network::Listeners;
use crate::process::{Alive, Process};

/// A slot of the warm pool: agentd runs, and has received no request. One that was restored with a template's processes
/// is frozen until it is claimed. Its journal entry says that it is still
/// being created, which is true until the server knows it: a starting node that finds such an entry ends the
/// slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    pub(crate) process: Process,
    pub(crate) alive: Alive,
    /// Passed to egress when the slot is claimed; until then it has no network.
    pub(crate) listeners: Option<Listeners>,
    /// How much memory its processes took when they were frozen; 0 for one that only booted.
    pub(crate) bytes: u64,
}

/// What slots are made of: the template's name, its snapshot if it is a project's, and whether processes continue.
pub(crate) type Origin = (String, Option<SnapshotId>, bool);

impl Slot {
    /// Whether it has ended, or will as soon as it is thawed: under cgroups v1 a frozen process dies only then.
    pub(crate) fn has_ended(&self) -> bool {
        self.alive.watched.has_ended() || self.has_processes() && is_killed(self.process.pid)
    }

    pub(crate) fn origin(&self) -> Origin {
        let spec = &self.entry.spec;
        (spec.template.clone(), spec.snapshot, spec.memory)
    }

    /// Whether it was restored with a template's processes.
    pub(crate) fn has_processes(&self) -> bool {
        self.entry.spec.memory
    }

    /// Whether a sandbox created now would be the same; `now` is the current state of its origin.
    pub(crate) fn is_of(&self, (info, overlays): &(TemplateInfo, Vec<OverlaySpec>)) -> bool {
        self.entry.template == *info && self.entry.overlays == *overlays
    }
}

/// Whether SIGKILL waits for a process.
fn is_killed(pid: i32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = status.lines().filter_map(|line| {
        let signals = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(signals.trim(), 16).ok()
    });
    pending.fold(0, |all, signals| all | signals) & KILL != 0
}
