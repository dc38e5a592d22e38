//! Ends the processes of a sandbox while its files stay, and starts it again on them.

use coffer_wire::node::{NodeError, Reply};

use crate::journal::{Durability, Phase};
use crate::node::blocking;
use crate::process::Alive;

use super::clearing::clear_run;
use super::owner::{Owner, State};
use super::prepare::{Launch, internal, write_entry};
use super::provision::Resume;
use super::start;

impl Owner {
    pub(super) async fn stop(&mut self, alive: Alive) -> (State, Result<Reply, NodeError>) {
        self.entry.phase = Phase::Stopping;
        // Write this before its processes end: a node that finds them dead in a running entry deletes the
        // files too.
        if let Err(error) = write_entry(&self.node, &self.entry, Durability::Cached).await {
            tracing::warn!(
                sandbox.id = %self.id(),
                "could not write journal entry before stopping sandbox {}: {error}",
                self.id()
            );
        }
        alive.end().await;
        self.node.network.end(self.id()).await;
        self.entry.phase = Phase::Stopped;
        let (node, entry) = (self.node.clone(), self.entry.clone());
        let stopped = blocking(move || {
            // Sync before the answer, which promises the server that the files are safe.
            node.pool.sync().map_err(internal("write its files out"))?;
            node.journal.write(&entry, Durability::Synced).map_err(internal("write the journal"))?;
            clear_run(&node, entry.name());
            Ok(Reply::Done)
        });
        (State::Stopped, stopped.await)
    }

    pub(super) async fn start(&mut self, resume: Resume) -> (State, Result<Reply, NodeError>) {
        self.entry.phase = Phase::Starting;
        let started = async {
            write_entry(&self.node, &self.entry, Durability::Cached).await?;
            start::begin(&self.node, &self.entry, resume).await
        };
        match started.await {
            Ok(Launch { alive, process, listeners }) => {
                self.entry.phase = Phase::Running { process };
                match start::go_live(&self.node, &self.entry, listeners).await {
                    Ok(()) => (State::Running(alive), self.placed()),
                    Err(error) => {
                        alive.end().await;
                        self.back_to_stopped(error).await
                    }
                }
            }
            Err(error) => self.back_to_stopped(error).await,
        }
    }

    /// A start failed: its files are as they were.
    async fn back_to_stopped(&mut self, error: NodeError) -> (State, Result<Reply, NodeError>) {
        self.entry.phase = Phase::Stopped;
        let (node, entry) = (self.node.clone(), self.entry.clone());
        let sandbox = self.id();
        let cleared = blocking(move || {
            clear_run(&node, entry.name());
            node.journal.write(&entry, Durability::Synced).map_err(internal("write the journal"))
        });
        if let Err(error) = cleared.await {
            tracing::error!(sandbox.id = %sandbox, "could not record the failed start of sandbox {sandbox}: {error}");
        }
        (State::Stopped, Err(error))
    }
}
