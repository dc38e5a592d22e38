//! The task that owns one sandbox: it alone changes it, one wish after another.

use std::sync::Arc;

use coffer_wire::node::{CreateSandbox, DeathCause, NodeError, NodeErrorCode, Reply};
use tokio::sync::mpsc;

use crate::journal::{Entry, Phase};
use crate::node::Node;
use crate::process::{Alive, Watched};
use crate::registry::{Ask, Desk, Handle, Want, unknown};

use super::create::bring_up;
use super::owner::{Owner, State};
use super::provision::Resume;
use super::relisten;

/// Starts an owner that makes a new sandbox. Whoever asks for its creation gets the outcome.
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

/// Starts an owner for what the journal knows; `watched` if it has processes.
pub(crate) fn adopt(node: &Arc<Node>, entry: Entry, found: Found) -> Handle {
    let (handle, Desk { inbox, view }) = Handle::new(entry.spec.sandbox);
    let state = match found {
        Found::Alive { watched, quota, frozen } => {
            let alive = Alive { watched, cgroup: node.cgroups.of(entry.name()), quota };
            node.network.take_up(entry.spec.sandbox, &entry.spec.network, alive.watched.pidfd());
            if let Err(error) = node.files_of(entry.name()).take_back() {
                let sandbox = entry.spec.sandbox;
                tracing::warn!(sandbox.id = %sandbox, "could not own what sandbox {sandbox} sees in /proc: {error}");
            }
            if let (false, Phase::Running { process }, Ok(first)) =
                (frozen, &entry.phase, alive.watched.pidfd().try_clone_to_owned())
            {
                let seeing = relisten::see_that_it_listens(node.clone(), entry.clone(), process.pid, first);
                node.owners.spawn(stop_with(node.clone(), seeing));
            }
            if frozen { State::Frozen(alive) } else { State::Running(alive) }
        }
        Found::Stopped => State::Stopped,
        Found::Hibernated => State::Hibernated,
        Found::Dead(cause) => State::Dead(cause),
    };
    let mut owner = Owner { node: node.clone(), entry, view, state };
    owner.show();
    node.owners.spawn(async move { owner.own(inbox).await });
    handle
}

/// Runs until it is done or the node lets go of its sandboxes.
async fn stop_with(node: Arc<Node>, work: impl Future<Output = ()>) {
    tokio::select! {
        () = node.letting_go.cancelled() => {}
        () = work => {}
    }
}

/// What adoption found of a sandbox.
#[derive(Debug)]
pub(crate) enum Found {
    Alive { watched: Watched, quota: Option<u64>, frozen: bool },
    Stopped,
    Hibernated,
    Dead(DeathCause),
}

/// The sandbox is gone: everyone who still waits hears why.
fn refuse_all(mut inbox: mpsc::Receiver<Ask>, error: &NodeError) {
    inbox.close();
    while let Ok(Ask { want, answer }) = inbox.try_recv() {
        let _ = answer.send(match want {
            Want::Destroy => Ok(Reply::Done),
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
                Event::Asked(Ask { want, answer }) => {
                    self.view.lock().expect("no holder panics").changing = true;
                    let result = self.grant(want).await;
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

    async fn grant(&mut self, want: Want) -> Result<Reply, NodeError> {
        // The state is put back by every arm below; only a panic would leave it at "gone".
        let state = std::mem::replace(&mut self.state, State::Gone);
        let (state, result) = match (want, state) {
            (Want::Create(spec), state) => {
                let result = self.created(&spec, &state);
                (state, result)
            }
            (Want::Destroy, state) => self.destroy(state).await,
            (Want::Freeze, State::Running(alive)) => self.freeze(alive).await,
            (Want::Freeze, State::Frozen(alive)) => (State::Frozen(alive), Ok(Reply::Done)),
            (Want::Thaw, State::Frozen(alive)) => self.thaw(alive).await,
            (Want::Thaw | Want::Start { .. }, State::Running(alive)) => {
                (State::Running(alive), self.placed())
            }
            (Want::Stop, State::Running(alive) | State::Frozen(alive)) => self.stop(alive).await,
            (Want::Stop, State::Stopped) => (State::Stopped, Ok(Reply::Done)),
            (Want::Start { .. }, State::Stopped) => self.start(Resume::Boot).await,
            (
                Want::SetNetwork(policy),
                state @ (State::Running(_) | State::Frozen(_) | State::Stopped | State::Hibernated),
            ) => {
                let result = self.set_network(*policy, &state).await;
                (state, result)
            }
            (want @ (Want::Hibernate | Want::Snapshot { memory: true, .. }), state)
            | (want @ Want::Rollback { memory: true, .. }, state)
            | (want @ Want::Start { .. }, state @ State::Hibernated) => {
                self.grant_with_memory(want, state).await
            }
            (Want::Snapshot { snapshot, .. }, state) if state.has_files() => {
                self.snapshot(snapshot, state).await
            }
            (Want::Rollback { snapshot, .. }, state) if state.has_files() => {
                self.roll_back(snapshot, Resume::Boot, state).await
            }
            (want, state) => {
                let refused = self.refused(&want, &state);
                (state, Err(refused))
            }
        };
        self.state = state;
        result
    }

    /// Creating again gives the same answer, as long as the same thing is asked.
    fn created(&self, spec: &CreateSandbox, state: &State) -> Result<Reply, NodeError> {
        if *spec != self.entry.spec {
            let message = format!("sandbox {} exists and was asked for differently", self.id());
            return Err(NodeError::new(NodeErrorCode::WrongState, message));
        }
        match state {
            State::Running(_) | State::Frozen(_) => self.placed(),
            state => Err(self.refused(&Want::Create(Box::new(spec.clone())), state)),
        }
    }
}
