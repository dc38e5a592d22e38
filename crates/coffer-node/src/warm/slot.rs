//! A sandbox that runs and is not assigned yet.

use coffer_core::SnapshotId;
use coffer_template::OverlaySpec;
use coffer_wire::node::TemplateInfo;

use crate::journal::Entry;
use crate::network::Listeners;
use crate::process::{Alive, Process};

/// A slot of the warm pool: agentd runs, and has received no request. Its journal entry says that it is still
/// being created, which is true until the server knows it: a starting node that finds such an entry ends the
/// slot.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    pub(crate) process: Process,
    pub(crate) alive: Alive,
    /// Passed to egress when the slot is claimed; until then it has no network.
    pub(crate) listeners: Option<Listeners>,
}

impl Slot {
    pub(crate) fn has_ended(&self) -> bool {
        self.alive.watched.has_ended()
    }

    /// The template's name, and its snapshot if it is a project's.
    pub(crate) fn origin(&self) -> (String, Option<SnapshotId>) {
        (self.entry.spec.template.clone(), self.entry.spec.snapshot)
    }

    /// Whether a sandbox created now would be the same; `now` is the current state of its origin.
    pub(crate) fn is_of(&self, (info, overlays): &(TemplateInfo, Vec<OverlaySpec>)) -> bool {
        self.entry.template == *info && self.entry.overlays == *overlays
    }
}
