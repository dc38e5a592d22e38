//! The owner of a sandbox, the only code that may change it: its state, and what it publishes. Its actions
//! are in the files that have an `impl Owner`; [`task`](super::task) calls them.

use std::sync::Arc;

use coffer_core::SandboxId;
use coffer_core::sync::Mutex;
use coffer_wire::node::{DeathCause, NodeError, Placement, Reply, RunState};

use crate::journal::Entry;
use crate::node::Node;
use crate::process::Alive;
use crate::registry::{Meter, View};

use super::life::Life;

/// Where a sandbox is in its life cycle (see [`life`](super::life)), with its resources.
#[derive(Debug)]
pub(crate) enum State {
    Running(Alive),
    Frozen(Alive),
    Stopped,
    Hibernated,
    Dead(DeathCause),
    /// Destroyed; the owner ends.
    Gone,
}

impl State {
    /// The state without its resources.
    pub(super) const fn life(&self) -> Life {
        match self {
            Self::Running(_) => Life::Running,
            Self::Frozen(_) => Life::Frozen,
            Self::Stopped => Life::Stopped,
            Self::Hibernated => Life::Hibernated,
            Self::Dead(_) => Life::Dead,
            Self::Gone => Life::Gone,
        }
    }
}

pub(super) struct Owner {
    pub(super) node: Arc<Node>,
    pub(super) entry: Entry,
    pub(super) view: Arc<Mutex<View>>,
    pub(super) state: State,
}

impl Owner {
    pub(super) fn id(&self) -> SandboxId {
        self.entry.spec.sandbox
    }

    fn placement(&self) -> Placement {
        Placement { socket: self.node.socket_of(self.entry.name()), template: self.entry.template.clone() }
    }

    pub(super) fn placed(&self) -> Result<Reply, NodeError> {
        Ok(Reply::Placed(self.placement()))
    }

    /// Publishes the current state.
    pub(super) fn show(&self) {
        let (run, alive) = match &self.state {
            State::Running(alive) => (RunState::Running, Some(alive)),
            State::Frozen(alive) => (RunState::Frozen, Some(alive)),
            State::Stopped => (RunState::Stopped, None),
            State::Hibernated => (RunState::Hibernated, None),
            State::Dead(cause) => (RunState::Dead { cause: cause.clone() }, None),
            State::Gone => {
                *self.view.lock() = View::default();
                return;
            }
        };
        let meter = alive.map(|alive| {
            Arc::new(Meter {
                cgroup: alive.cgroup.clone(),
                quota: alive.quota,
                shown: self.node.files_of(self.entry.name()),
                memory_limit: self.entry.spec.limits.memory_bytes(),
                turn: Mutex::default(),
            })
        });
        *self.view.lock() = View { status: Some((run, self.placement())), meter, changing: false };
    }
}
