//! A sandbox that runs and belongs to nobody yet.

use coffer_template::Template;

use crate::journal::Entry;
use crate::network::Listeners;
use crate::process::{Alive, Process};

/// A slot of the warm pool: agentd runs, nobody has spoken to it. Its journal entry says that it is
/// still being created, which is true as long as nobody was told of it: a node that finds such an
/// entry when it starts ends what it names.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    pub(crate) process: Process,
    pub(crate) alive: Alive,
    /// Egress gets them when it is claimed; until then nobody serves it.
    pub(crate) listeners: Option<Listeners>,
}

impl Slot {
    pub(crate) fn has_ended(&self) -> bool {
        self.alive.watched.has_ended()
    }

    pub(crate) fn template(&self) -> &str {
        &self.entry.spec.template
    }

    /// Whether a sandbox made now would be made of something else; `now` is what its template is.
    pub(crate) fn is_stale(&self, now: Option<&Template>) -> bool {
        now.is_none_or(|template| !self.is_of(template))
    }

    pub(crate) fn is_of(&self, template: &Template) -> bool {
        self.entry.template == template.info && self.entry.overlays == template.overlays
    }
}
