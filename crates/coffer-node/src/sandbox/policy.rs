//! Changes of a sandbox's settings: its network policy, and the defaults that its snapshots carry.

use coffer_core::TemplateDefaults;
use coffer_core::network::Policy;
use coffer_wire::node::{NodeError, NodeErrorCode, Reply};

use crate::journal::Durability;

use super::owner::{Owner, State};
use super::prepare::write_entry;

impl Owner {
    /// Write the journal first: if this node dies before egress has the policy, the next node sends it.
    pub(super) async fn set_network(&mut self, policy: Policy, state: &State) -> Result<Reply, NodeError> {
        let before = std::mem::replace(&mut self.entry.spec.network, policy);
        if let Err(error) = write_entry(&self.node, &self.entry, durability(state)).await {
            self.entry.spec.network = before;
            return Err(error);
        }
        if !matches!(state, State::Stopped | State::Hibernated) {
            self.node.network.replace(self.id(), &self.entry.spec.network).await?;
        }
        Ok(Reply::Done)
    }

    pub(super) async fn set_defaults(
        &mut self,
        defaults: TemplateDefaults,
        state: &State,
    ) -> Result<Reply, NodeError> {
        let (bytes, most) = (defaults.bytes(), TemplateDefaults::MOST_BYTES);
        if bytes > most {
            let message = format!("the defaults of a template have {bytes} bytes, and may have {most}");
            return Err(NodeError::new(NodeErrorCode::Unsupported, message));
        }
        let before = self.entry.template.clone();
        self.entry.template.set_defaults(defaults);
        if let Err(error) = write_entry(&self.node, &self.entry, durability(state)).await {
            self.entry.template = before;
            return Err(error);
        }
        Ok(Reply::Done)
    }
}

/// Only what is on disk alone must survive a crash of the host: processes do not.
const fn durability(state: &State) -> Durability {
    match state {
        State::Stopped | State::Hibernated => Durability::Synced,
        _ => Durability::Cached,
    }
}
