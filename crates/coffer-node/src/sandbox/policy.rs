//! Another network policy for a sandbox.

use coffer_core::network::Policy;
use coffer_wire::node::{NodeError, Reply};

use crate::journal::Durability;

use super::owner::{Owner, State};
use super::prepare::write_entry;

impl Owner {
    /// Write the journal first: if this node dies before egress has the policy, the next node sends it.
    pub(super) async fn set_network(&mut self, policy: Policy, state: &State) -> Result<Reply, NodeError> {
        let before = std::mem::replace(&mut self.entry.spec.network, policy);
        let durability = match state {
            State::Stopped | State::Hibernated => Durability::Synced,
            _ => Durability::Cached,
        };
        if let Err(error) = write_entry(&self.node, &self.entry, durability).await {
            self.entry.spec.network = before;
            return Err(error);
        }
        if !matches!(state, State::Stopped | State::Hibernated) {
            self.node.network.replace(self.id(), &self.entry.spec.network).await?;
        }
        Ok(Reply::Done)
    }
}
