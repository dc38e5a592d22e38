//! What a sandbox says to a wish that does not fit its state.

use coffer_wire::node::{NodeError, NodeErrorCode};

use crate::registry::{Want, unknown};

use super::owner::{Owner, State};

impl Owner {
    pub(super) fn refused(&self, want: &Want, state: &State) -> NodeError {
        let state = match state {
            State::Running(_) => "running",
            State::Frozen(_) => "frozen",
            State::Stopped => "stopped",
            State::Hibernated => "hibernated",
            State::Dead(_) => "dead",
            State::Gone => return unknown(self.id()),
        };
        let asked = match want {
            Want::Create(_) => "created",
            Want::Destroy => "destroyed",
            Want::Freeze => "frozen",
            Want::Thaw => "thawed",
            Want::Stop => "stopped",
            Want::Start { .. } => "started",
            Want::Hibernate => "hibernated",
            Want::Snapshot { .. } => "snapshotted",
            Want::Rollback { .. } => "rolled back",
            Want::SetNetwork(_) => "given another network policy",
        };
        let message = format!("sandbox {} is {state} and cannot be {asked}", self.id());
        NodeError::new(NodeErrorCode::WrongState, message)
    }
}
