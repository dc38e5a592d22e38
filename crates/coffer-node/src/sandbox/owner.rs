//! The task that owns one sandbox: it alone changes it, one wish after another.

use std::sync::{Arc, Mutex};

use coffer_core::SandboxId;
use coffer_core::network::Policy;
use coffer_wire::node::{
    CreateSandbox, DeathCause, NodeError, NodeErrorCode, Notice, Placement, Reply, RunState,
};
use tokio::sync::mpsc;

use crate::cgroup::SandboxCgroup;
use crate::journal::{Durability, Entry, Phase};
use crate::network::Listeners;
use crate::node::{Node, blocking};
use crate::reaper::{Record, Remains};
use crate::warm::Shape;

use super::birth::{self, Born, internal};
use super::clearing::clear_run;
use super::process::Watched;
use super::revival::{self, Resume};
use super::{Ask, Handle, INBOX, Meter, View, Want, death, slot, unknown};

/// Starts an owner that makes a new sandbox. Whoever asks for its creation gets the outcome.
pub(crate) fn create(node: &Arc<Node>, spec: CreateSandbox) -> Handle {
    let (handle, inbox) = handle(spec.sandbox);
    let (node, view) = (node.clone(), handle.view.clone());
    node.owners.clone().spawn(async move {
        match bring_up(&node, &spec).await {
            Ok((entry, alive)) => {
                let mut owner = Owner { node, entry, view, state: State::Running(alive) };
                owner.show();
                owner.own(inbox).await;
            }
            Err(error) => {
                node.forget(spec.sandbox);
                refuse_all(inbox, &error);
            }
        }
    });
    handle
}

/// Starts an owner for what the journal knows; `watched` if it has processes.
pub(crate) fn adopt(node: &Arc<Node>, entry: Entry, found: Found) -> Handle {
    let (handle, inbox) = handle(entry.spec.sandbox);
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
                let seeing = revival::see_that_it_listens(node.clone(), entry.clone(), process.pid, first);
                node.owners.spawn(stop_with(node.clone(), seeing));
            }
            if frozen { State::Frozen(alive) } else { State::Running(alive) }
        }
        Found::Stopped => State::Stopped,
        Found::Hibernated => State::Hibernated,
        Found::Dead(cause) => State::Dead(cause),
    };
    let mut owner = Owner { node: node.clone(), entry, view: handle.view.clone(), state };
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

fn handle(sandbox: SandboxId) -> (Handle, mpsc::Receiver<Ask>) {
    let (asks, inbox) = mpsc::channel(INBOX);
    (Handle { sandbox, asks, view: Arc::new(Mutex::new(View::default())) }, inbox)
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

/// Takes a slot that waits for this, or makes a sandbox anew.
async fn bring_up(node: &Arc<Node>, spec: &CreateSandbox) -> Result<(Entry, Alive), NodeError> {
    if let Some(claimed) = slot::claim(node, spec).await {
        return Ok(claimed);
    }
    let making = node.warm.making_cold();
    let made = make_anew(node, spec).await;
    drop(making);
    if made.is_ok()
        && let Some(shape) = Shape::of(spec)
    {
        node.warm.learn(shape);
    }
    made
}

/// Makes a sandbox whole, or leaves nothing of it.
async fn make_anew(node: &Arc<Node>, spec: &CreateSandbox) -> Result<(Entry, Alive), NodeError> {
    let mut entry = birth::plan(node, spec).await?;
    let started = async {
        birth::make_files(node, &entry).await?;
        revival::begin(node, &entry, Resume::wanted(spec)).await
    };
    let made = match started.await {
        Ok(Born { watched, cgroup, quota, process, listeners }) => {
            entry.phase = Phase::Running { process };
            let alive = Alive { watched, cgroup, quota };
            match go_live(node, &entry, listeners).await {
                Ok(()) => Ok(alive),
                Err(error) => {
                    alive.end().await;
                    Err(error)
                }
            }
        }
        Err(error) => Err(error),
    };
    match made {
        Ok(alive) => Ok((entry, alive)),
        Err(error) => {
            node.reaper.give_back(remains(node, &entry, Record::Removed)).await;
            Err(error)
        }
    }
}

/// Has egress serve a sandbox that runs, and records that it does.
pub(super) async fn go_live(
    node: &Arc<Node>,
    entry: &Entry,
    listeners: Option<Listeners>,
) -> Result<(), NodeError> {
    let sandbox = entry.spec.sandbox;
    let serving = node.network.serve(sandbox, &entry.spec.network, listeners);
    let (written, in_force) = tokio::join!(write(node, entry, Durability::Cached), serving.in_force());
    let live = written.and(in_force);
    if live.is_err() {
        node.network.end(sandbox);
    }
    live
}

pub(super) async fn write(node: &Arc<Node>, entry: &Entry, durability: Durability) -> Result<(), NodeError> {
    let (node, entry) = (node.clone(), entry.clone());
    blocking(move || node.journal.write(&entry, durability).map_err(internal("write the journal"))).await
}

pub(super) fn remains(node: &Arc<Node>, entry: &Entry, record: Record) -> Remains {
    Remains {
        node: node.clone(),
        name: entry.name(),
        files: entry.files_name(),
        uid_base: Some(entry.uid_base),
        cpus: entry.cpus.clone(),
        record,
    }
}

/// What a sandbox with processes has.
#[derive(Debug)]
pub(super) struct Alive {
    pub(super) watched: Watched,
    pub(super) cgroup: SandboxCgroup,
    pub(super) quota: Option<u64>,
}

impl Alive {
    /// Ends every process and waits until they are gone.
    pub(super) async fn end(&self) {
        self.watched.kill();
        self.cgroup.kill();
        self.watched.ended().await;
        self.watched.reap();
    }
}

#[derive(Debug)]
pub(super) enum State {
    Running(Alive),
    Frozen(Alive),
    Stopped,
    Hibernated,
    Dead(DeathCause),
    /// Destroyed; the owner ends.
    Gone,
}

impl State {
    const fn has_files(&self) -> bool {
        matches!(self, Self::Running(_) | Self::Frozen(_) | Self::Stopped | Self::Hibernated)
    }
}

pub(super) struct Owner {
    pub(super) node: Arc<Node>,
    pub(super) entry: Entry,
    view: Arc<Mutex<View>>,
    state: State,
}

enum Event {
    Ended,
    Asked(Ask),
    LetGo,
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

    /// Lets others see the state as it is now.
    fn show(&self) {
        let (run, alive) = match &self.state {
            State::Running(alive) => (RunState::Running, Some(alive)),
            State::Frozen(alive) => (RunState::Frozen, Some(alive)),
            State::Stopped => (RunState::Stopped, None),
            State::Hibernated => (RunState::Hibernated, None),
            State::Dead(cause) => (RunState::Dead { cause: cause.clone() }, None),
            State::Gone => {
                *self.view.lock().expect("no holder panics") = View::default();
                return;
            }
        };
        let meter = alive.map(|alive| {
            Arc::new(Meter {
                cgroup: alive.cgroup.clone(),
                quota: alive.quota,
                shown: self.node.files_of(self.entry.name()),
                memory_limit: self.entry.spec.limits.memory_bytes(),
                turn: std::sync::Mutex::default(),
            })
        });
        *self.view.lock().expect("no holder panics") =
            View { status: Some((run, self.placement())), meter, changing: false };
    }

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
                        self.node.forget(self.id());
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

    /// The journal first: should this node die before egress has heard of it, the next one tells egress.
    async fn set_network(&mut self, policy: Policy, state: &State) -> Result<Reply, NodeError> {
        let before = std::mem::replace(&mut self.entry.spec.network, policy);
        let durability = match state {
            State::Stopped | State::Hibernated => Durability::Synced,
            _ => Durability::Cached,
        };
        if let Err(error) = write(&self.node, &self.entry, durability).await {
            self.entry.spec.network = before;
            return Err(error);
        }
        if !matches!(state, State::Stopped | State::Hibernated) {
            self.node.network.replace(self.id(), &self.entry.spec.network).await?;
        }
        Ok(Reply::Done)
    }

    async fn stop(&mut self, alive: Alive) -> (State, Result<Reply, NodeError>) {
        self.entry.phase = Phase::Stopping;
        // Before its processes end: a node that finds them dead in a running entry gives back the files too.
        if let Err(error) = write(&self.node, &self.entry, Durability::Cached).await {
            tracing::warn!(sandbox.id = %self.id(), "stopping sandbox {}: {error}", self.id());
        }
        alive.end().await;
        self.node.network.end(self.id());
        self.entry.phase = Phase::Stopped;
        let (node, entry) = (self.node.clone(), self.entry.clone());
        let stopped = blocking(move || {
            // Before anyone is told that its files are safe.
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
            write(&self.node, &self.entry, Durability::Cached).await?;
            revival::begin(&self.node, &self.entry, resume).await
        };
        match started.await {
            Ok(Born { watched, cgroup, quota, process, listeners }) => {
                let alive = Alive { watched, cgroup, quota };
                self.entry.phase = Phase::Running { process };
                match go_live(&self.node, &self.entry, listeners).await {
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
            tracing::error!(sandbox.id = %sandbox, "after a failed start of sandbox {sandbox}: {error}");
        }
        (State::Stopped, Err(error))
    }

    async fn destroy(&mut self, state: State) -> (State, Result<Reply, NodeError>) {
        self.entry.phase = Phase::Destroying;
        match state {
            State::Gone => {}
            // Everything else was given back when it died.
            State::Dead(_) => {
                let (node, name, sandbox) = (self.node.clone(), self.entry.name(), self.id());
                let removed =
                    blocking(move || node.journal.remove(name).map_err(internal("remove its journal entry")));
                if let Err(error) = removed.await {
                    tracing::error!(sandbox.id = %sandbox, "destroying sandbox {sandbox}: {error}");
                }
            }
            State::Running(_) | State::Frozen(_) | State::Stopped | State::Hibernated => {
                // So that a crash from here on ends in the same way.
                if let Err(error) = write(&self.node, &self.entry, Durability::Cached).await {
                    tracing::warn!(sandbox.id = %self.id(), "destroying sandbox {}: {error}", self.id());
                }
                if let State::Running(alive) | State::Frozen(alive) = state {
                    alive.end().await;
                    self.node.network.end(self.id());
                }
                self.node.reaper.give_back(remains(&self.node, &self.entry, Record::Removed)).await;
            }
        }
        (State::Gone, Ok(Reply::Done))
    }

    /// The first process ended unasked: find out why, tell, keep the record, give back the rest.
    async fn died(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Gone);
        let (State::Running(alive) | State::Frozen(alive)) = state else {
            self.state = state;
            return;
        };
        self.node.network.end(self.id());
        let kills = alive.cgroup.out_of_memory_kills();
        let cause = death::cause(alive.watched.exit().await, kills);
        let id = self.id();
        tracing::warn!(sandbox.id = %id, "sandbox {id} died: {cause:?}");
        self.entry.phase = Phase::Dead { cause: cause.clone() };
        if let Err(error) = write(&self.node, &self.entry, Durability::Cached).await {
            tracing::error!(sandbox.id = %id, "recording the death of sandbox {id}: {error}");
        }
        self.state = State::Dead(cause.clone());
        self.show();
        // Nobody may be listening; then the list tells.
        let _ = self.node.notices.send(Notice::Died { sandbox: id, cause });
        self.node.reaper.give_back(remains(&self.node, &self.entry, Record::Kept)).await;
    }
}
