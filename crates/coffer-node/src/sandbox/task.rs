//! The task that owns one sandbox: it alone changes it, one request after another.

use std::sync::Arc;

use coffer_core::Memory;
use coffer_wire::node::{CreateSandbox, NodeError, NodeErrorCode, Reply};
use tokio::sync::mpsc;

use crate::journal::{Entry, Phase};
use crate::memory;
use crate::node::Node;
use crate::process::Alive;
use crate::registry::{Ask, Command, Desk, Handle, unknown};

use super::create::bring_up;
use super::life::{Action, Life, MemorySupport, Refusal, plan};
use super::owner::{Owner, State};
use super::provision::Resume;
use super::relisten;

/// Starts an owner that creates a new sandbox. The caller that asked for it gets the outcome.
pub(crate) fn create(node: &Arc<Node>, spec: CreateSandbox) -> Handle {
    let (handle, Desk { inbox, view }) = Handle::new(spec.sandbox);
    let node = node.clone();
    node.owners.clone().spawn(async move {
        match bring_up(&node, &spec).await {
            Ok((entry, alive)) => {
                let mut owner = Owner { node, entry, view, state: State::Running(alive) };
                owner.show();
                owner.own(inbox).await;
            }
            Err(error) => {
                node.sandboxes.remove(spec.sandbox);
                refuse_all(inbox, &error);
            }
        }
    });
    handle
}

/// Starts an owner for a sandbox that a previous node created.
pub(crate) fn adopt(node: &Arc<Node>, entry: Entry, state: State) -> Handle {
    let (handle, Desk { inbox, view }) = Handle::new(entry.spec.sandbox);
    if let State::Running(alive) | State::Frozen(alive) = &state {
        take_up(node, &entry, alive, state.life());
    }
    let mut owner = Owner { node: node.clone(), entry, view, state };
    owner.show();
    node.owners.spawn(async move { owner.own(inbox).await });
    handle
}

/// Takes over the network and files of a previous node's running sandbox.
fn take_up(node: &Arc<Node>, entry: &Entry, alive: &Alive, life: Life) {
    let sandbox = entry.spec.sandbox;
    node.network.take_up(sandbox, &entry.spec.network, alive.watched.pidfd());
    if let Err(error) = node.files_of(entry.name()).take_back() {
        tracing::warn!(sandbox.id = %sandbox, "could not take ownership of the /proc files of sandbox {sandbox}: {error}");
    }
    if let (Life::Running, Phase::Running { process }, Ok(first)) =
        (life, &entry.phase, alive.watched.pidfd().try_clone_to_owned())
    {
        let seeing = relisten::see_that_it_listens(node.clone(), entry.clone(), process.pid, first);
        node.owners.spawn(stop_with(node.clone(), seeing));
    }
}

/// Runs until it is done or the node releases its sandboxes.
async fn stop_with(node: Arc<Node>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = node.letting_go.cancelled() => {}
        () = work => {}
    }
}

/// The sandbox is gone: answers all waiting requests with the reason.
fn refuse_all(mut inbox: mpsc::Receiver<Ask>, error: &NodeError) {
    inbox.close();
    while let Ok(Ask { command, answer }) = inbox.try_recv() {
        let _ = answer.send(match command {
            Command::Destroy => Ok(Reply::Done),
            _ => Err(error.clone()),
        });
    }
}

enum Event {
    Ended,
    Asked(Ask),
    LetGo,
}

impl Owner {
    async fn own(&mut self, mut inbox: mpsc::Receiver<Ask>) {
        loop {
            match self.next(&mut inbox).await {
                Event::LetGo => return,
                Event::Ended => self.died().await,
                Event::Asked(Ask { command, answer }) => {
                    self.view.lock().changing = true;
                    let result = self.grant(command).await;
                    self.show();
                    if matches!(self.state, State::Gone) {
                        self.node.sandboxes.remove(self.id());
                    }
                    let _ = answer.send(result);
                    if matches!(self.state, State::Gone) {
                        refuse_all(inbox, &unknown(self.id()));
                        return;
                    }
                }
            }
        }
    }

    async fn next(&self, inbox: &mut mpsc::Receiver<Ask>) -> Event {
        let ended = async {
            match &self.state {
                State::Running(alive) | State::Frozen(alive) => alive.watched.ended().await,
                State::Stopped | State::Hibernated | State::Dead(_) | State::Gone => {
                    std::future::pending().await
                }
            }
        };
        tokio::select! {
            biased;
            () = self.node.letting_go.cancelled() => Event::LetGo,
            () = ended => Event::Ended,
            ask = inbox.recv() => ask.map_or(Event::LetGo, Event::Asked),
        }
    }

    /// Executes a request in the current state: [`plan`] decides, this does it.
    async fn grant(&mut self, command: Command) -> Result<Reply, NodeError> {
        if let Command::Create(spec) = &command {
            self.check_same(spec)?;
        }
        let life = self.state.life();
        let support = if memory::lacks().is_none() { MemorySupport::Present } else { MemorySupport::Absent };
        let support = if self.entry.spec.volumes.is_empty() { support } else { MemorySupport::Absent };
        let action = match plan(life, &command, support) {
            Ok(action) => action,
            Err(Refusal::NoMemorySupport) if !self.entry.spec.volumes.is_empty() => {
                let message =
                    "its memory is not saved while it mounts volumes, whose files may change meanwhile";
                return Err(NodeError::new(NodeErrorCode::Unsupported, message));
            }
            Err(Refusal::NoMemorySupport) => return Err(memory::unsupported()),
            Err(Refusal::WrongState) => return Err(self.refuse(&command)),
        };
        // Restored below; only a panic would leave it at "gone".
        let state = std::mem::replace(&mut self.state, State::Gone);
        let (state, result) = self.perform(action, command, state).await;
        if !life.may_become(action, state.life()) {
            debug_assert!(
                false,
                "invalid sandbox state transition: {action:?} from {life:?} to {:?}",
                state.life()
            );
            tracing::error!(
                sandbox.id = %self.id(),
                "invalid sandbox state transition: {action:?} from {life:?} to {:?}",
                state.life()
            );
        }
        self.state = state;
        result
    }

    async fn perform(
        &mut self,
        action: Action,
        command: Command,
        state: State,
    ) -> (State, Result<Reply, NodeError>) {
        match (action, state) {
            (Action::Confirm, state) => (state, Ok(Reply::Done)),
            (Action::ConfirmPlace, state) => (state, self.placed()),
            (Action::Destroy, state) => self.destroy(state).await,
            (Action::Freeze, State::Running(alive)) => self.freeze(alive).await,
            (Action::Thaw, State::Frozen(alive)) => self.thaw(alive).await,
            (Action::Stop, State::Running(alive) | State::Frozen(alive)) => self.stop(alive).await,
            (Action::Boot, State::Stopped) => self.start(Resume::Boot).await,
            (Action::BootCold, State::Hibernated) => self.start_cold().await,
            (Action::Wake, State::Hibernated) => self.wake().await,
            (Action::Hibernate, State::Running(alive)) => self.hibernate(alive).await,
            (Action::ThawAndHibernate, State::Frozen(alive)) => match self.thaw(alive).await {
                (State::Running(alive), Ok(_)) => self.hibernate(alive).await,
                failed => failed,
            },
            (Action::Snapshot(snapshot), state) => self.snapshot(snapshot, state).await,
            (Action::SnapshotMemory(snapshot), State::Running(alive)) => {
                self.snapshot_with_memory(snapshot, alive).await
            }
            (Action::ThawAndSnapshotMemory(snapshot), State::Frozen(alive)) => match self.thaw(alive).await {
                (State::Running(alive), Ok(_)) => match self.snapshot_with_memory(snapshot, alive).await {
                    (State::Running(alive), result) => (self.freeze(alive).await.0, result),
                    failed => failed,
                },
                failed => failed,
            },
            (Action::RollBack(snapshot, Memory::Without), state) => {
                self.roll_back(snapshot, Resume::Boot, state).await
            }
            (Action::RollBack(snapshot, Memory::With), state) => {
                self.roll_back(snapshot, Resume::Memory(snapshot), state).await
            }
            (Action::SetNetwork, state) => match command {
                Command::SetNetwork(policy) => {
                    let result = self.set_network(*policy, &state).await;
                    (state, result)
                }
                command => (state, Err(self.refuse(&command))),
            },
            (Action::SetDefaults, state) => match command {
                Command::SetDefaults(defaults) => {
                    let result = self.set_defaults(*defaults, &state).await;
                    (state, result)
                }
                command => (state, Err(self.refuse(&command))),
            },
            // `plan` never returns these.
            (_, state) => (state, Err(self.refuse(&command))),
        }
    }

    /// Creating it again returns the same answer if the request is the same.
    fn check_same(&self, spec: &CreateSandbox) -> Result<(), NodeError> {
        if *spec == self.entry.spec {
            return Ok(());
        }
        let message = format!("sandbox {} exists with another specification", self.id());
        Err(NodeError::new(NodeErrorCode::WrongState, message))
    }

    fn refuse(&self, command: &Command) -> NodeError {
        let (life, verb) = (self.state.life(), command.verb());
        if life == Life::Gone {
            return unknown(self.id());
        }
        let message = format!("sandbox {} is {} and cannot be {verb}", self.id(), life.name());
        NodeError::new(NodeErrorCode::WrongState, message)
    }
}
