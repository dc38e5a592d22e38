//! The end of a sandbox: by request, or because its first process ended.

use coffer_wire::node::{DeathCause, NodeError, Notice, Reply};

use crate::journal::{Durability, Phase};
use crate::node::blocking;
use crate::process::Exit;

use super::owner::{Owner, State};
use super::prepare::{internal, write_entry};
use super::remains::{Record, Remains};

impl Owner {
    pub(super) async fn destroy(&mut self, state: State) -> (State, Result<Reply, NodeError>) {
        self.entry.phase = Phase::Destroying;
        match state {
            State::Gone => {}
            // Everything else was released when it died.
            State::Dead(_) => {
                let (node, name, sandbox) = (self.node.clone(), self.entry.name(), self.id());
                let removed =
                    blocking(move || node.journal.remove(name).map_err(internal("remove its journal entry")));
                if let Err(error) = removed.await {
                    tracing::error!(
                        sandbox.id = %sandbox,
                        "could not clean up after sandbox {sandbox}: {error}"
                    );
                }
            }
            State::Running(_) | State::Frozen(_) | State::Stopped | State::Hibernated => {
                // Record this first, so that the node destroys the sandbox even if it crashes from here on.
                if let Err(error) = write_entry(&self.node, &self.entry, Durability::Cached).await {
                    tracing::warn!(
                        sandbox.id = %self.id(),
                        "could not write journal entry before destroying sandbox {}: {error}",
                        self.id()
                    );
                }
                if let State::Running(alive) | State::Frozen(alive) = state {
                    alive.end().await;
                    self.node.network.end(self.id()).await;
                }
                Remains::of(&self.node, &self.entry, Record::Removed).give_back_later().await;
            }
        }
        (State::Gone, Ok(Reply::Done))
    }

    /// The first process ended without a request: find out why, send a notice, keep the record, release the
    /// rest.
    pub(super) async fn died(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Gone);
        let (State::Running(alive) | State::Frozen(alive)) = state else {
            self.state = state;
            return;
        };
        self.node.network.end(self.id()).await;
        let kills = alive.cgroup.out_of_memory_kills();
        let cause = cause(alive.watched.exit().await, kills);
        let id = self.id();
        tracing::warn!(sandbox.id = %id, "sandbox {id} died: {cause:?}");
        self.entry.phase = Phase::Dead { cause: cause.clone() };
        if let Err(error) = write_entry(&self.node, &self.entry, Durability::Cached).await {
            tracing::error!(sandbox.id = %id, "could not record the death of sandbox {id}: {error}");
        }
        self.state = State::Dead(cause.clone());
        self.show();
        // No server may be connected; it then finds the death in the list.
        let _ = self.node.notices.send(Notice::Died { sandbox: id, cause });
        Remains::of(&self.node, &self.entry, Record::Kept).give_back_later().await;
    }
}

/// The cause, from how the first process ended and how often the kernel ran out of memory for it.
fn cause(exit: Option<Exit>, out_of_memory_kills: u64) -> DeathCause {
    match exit {
        Some(Exit::Signal(libc::SIGKILL)) | None if out_of_memory_kills > 0 => DeathCause::OutOfMemory,
        Some(Exit::Signal(signal)) => DeathCause::Signal { signal },
        Some(Exit::Code(code)) => DeathCause::Exit { code },
        None => DeathCause::Unseen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_blamed_only_for_kills() {
        let cases = [
            (Some(Exit::Signal(9)), 1, DeathCause::OutOfMemory),
            (Some(Exit::Signal(9)), 0, DeathCause::Signal { signal: 9 }),
            (Some(Exit::Signal(11)), 1, DeathCause::Signal { signal: 11 }),
            (Some(Exit::Code(3)), 1, DeathCause::Exit { code: 3 }),
            (None, 0, DeathCause::Unseen),
            (None, 2, DeathCause::OutOfMemory),
        ];
        for (exit, kills, expected) in cases {
            assert_eq!(cause(exit, kills), expected);
        }
    }
}
