//! A sandbox that runs and is not assigned yet.

use coffer_template::Template;

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

    pub(crate) fn template(&self) -> &str {
        &self.entry.spec.template
    }

    /// Whether a sandbox created now would differ; `now` is the current state of its template.
    pub(crate) fn is_stale(&self, now: Option<&Template>) -> bool {
        now.is_none_or(|template| !self.is_of(template))
    }

    pub(crate) fn is_of(&self, template: &Template) -> bool {
        self.entry.template == template.info && self.entry.overlays == template.overlays
    }
}
