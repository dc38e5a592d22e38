//! The sandboxes of this node by id, and how to reach the only task that may change each: its owner.
//!
//! All other code holds a [`Handle`]: it sends requests to the owner, or reads the state that the owner
//! publishes.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, MutexGuard};

use coffer_core::network::{Policy, Traffic};
use coffer_core::sync::Mutex;
use coffer_core::{Boot, Memory, SandboxId, SnapshotId, TemplateDefaults};
use coffer_wire::node::{
    CreateSandbox, NodeError, NodeErrorCode, Placement, Reply, RunState, Sample, SandboxStatus,
};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::cgroup::SandboxCgroup;
use crate::files::Shown;
use crate::pool::Pool;

/// Questions that may wait for an owner; it is busy for milliseconds at a time.
const INBOX: usize = 32;

/// A request to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    Create(Box<CreateSandbox>),
    Destroy,
    Freeze,
    Thaw,
    Stop,
    Start(Boot),
    Hibernate,
    Snapshot { snapshot: SnapshotId, memory: Memory },
    Rollback { snapshot: SnapshotId, memory: Memory },
    SetNetwork(Box<Policy>),
    SetDefaults(Box<TemplateDefaults>),
}

impl Command {
    /// The request as a past participle, for messages.
    pub(crate) const fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "created",
            Self::Destroy => "destroyed",
            Self::Freeze => "frozen",
            Self::Thaw => "thawed",
            Self::Stop => "stopped",
            Self::Start(_) => "started",
            Self::Hibernate => "hibernated",
            Self::Snapshot { .. } => "snapshotted",
            Self::Rollback { .. } => "rolled back",
            Self::SetNetwork(_) => "given another network policy",
            Self::SetDefaults(_) => "given other defaults",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) command: Command,
    pub(crate) answer: oneshot::Sender<Result<Reply, NodeError>>,
}

/// Every sandbox that has an owner.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<HashMap<SandboxId, Handle>>);

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Handle>> {
        self.0.lock()
    }

    pub(crate) fn insert(&self, handle: Handle) {
        self.lock().insert(handle.sandbox, handle);
    }

    /// The handle of a sandbox; `make` starts an owner if there is none.
    pub(crate) fn get_or_insert(&self, sandbox: SandboxId, make: impl FnOnce() -> Handle) -> Handle {
        self.lock().entry(sandbox).or_insert_with(make).clone()
    }

    pub(crate) fn get(&self, sandbox: SandboxId) -> Result<Handle, NodeError> {
        self.lock().get(&sandbox).cloned().ok_or_else(|| unknown(sandbox))
    }

    /// Removes a sandbox that is gone.
    pub(crate) fn remove(&self, sandbox: SandboxId) {
        self.lock().remove(&sandbox);
    }

    pub(crate) fn all(&self) -> Vec<Handle> {
        self.lock().values().cloned().collect()
    }
}

/// A way to send to a sandbox's owner, and the state it last published.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    sandbox: SandboxId,
    asks: mpsc::Sender<Ask>,
    view: Arc<Mutex<View>>,
}

/// The published state.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// `None` until it is created.
    pub(crate) status: Option<(RunState, Placement)>,
    pub(crate) meter: Option<Arc<Meter>>,
    /// Its owner task is busy with an operation.
    pub(crate) changing: bool,
}

/// The owner's side of a handle.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) inbox: mpsc::Receiver<Ask>,
    pub(crate) view: Arc<Mutex<View>>,
}

impl Handle {
    pub(crate) fn new(sandbox: SandboxId) -> (Self, Desk) {
        let (asks, inbox) = mpsc::channel(INBOX);
        let view = Arc::new(Mutex::new(View::default()));
        (Self { sandbox, asks, view: view.clone() }, Desk { inbox, view })
    }

    /// Sends a request and waits for the answer. Refused at once if too many requests wait, which clients
    /// that wait for their answers never cause; an end is never refused.
    pub(crate) async fn ask(&self, command: Command) -> Result<Reply, NodeError> {
        let (answer, answered) = oneshot::channel();
        let gone = || unknown(self.sandbox);
        if command == Command::Destroy {
            self.asks.send(Ask { command, answer }).await.map_err(|_| gone())?;
        } else {
            self.asks.try_send(Ask { command, answer }).map_err(|error| match error {
                TrySendError::Full(_) => {
                    let message = format!("{INBOX} requests wait for sandbox {} already", self.sandbox);
                    NodeError::new(NodeErrorCode::NoCapacity, message)
                }
                TrySendError::Closed(_) => gone(),
            })?;
        }
        answered.await.map_err(|_| gone())?
    }

    pub(crate) fn status(&self) -> Option<SandboxStatus> {
        let view = self.view.lock();
        let (run, placement) = view.status.clone()?;
        Some(SandboxStatus { sandbox: self.sandbox, run, placement, changing: view.changing })
    }

    pub(crate) fn meter(&self) -> Option<Arc<Meter>> {
        self.view.lock().meter.clone()
    }

    pub(crate) const fn id(&self) -> SandboxId {
        self.sandbox
    }

    /// Number of open sockets in it; `None` while it has no processes.
    pub(crate) fn sockets(&self) -> Option<u64> {
        let meter = self.meter()?;
        let first = meter.cgroup.processes().into_iter().next()?;
        let text = fs::read_to_string(format!("/proc/{}/net/sockstat", first.as_raw_nonzero())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("sockets: used ")?.trim().parse().ok())
    }

    /// Kills all of its processes. Its owner sees them end.
    pub(crate) fn kill(&self) {
        if let Some(meter) = self.meter() {
            meter.cgroup.kill();
        }
    }

    /// Whether only a record is left of it.
    pub(crate) fn holds_nothing(&self) -> bool {
        let view = self.view.lock();
        matches!(view.status, None | Some((RunState::Dead { .. }, _)))
    }
}

/// Reads the resource usage of a running sandbox.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) cgroup: SandboxCgroup,
    pub(crate) quota: Option<u64>,
    pub(crate) shown: Shown,
    pub(crate) memory_limit: u64,
    /// Held while it is read.
    pub(crate) turn: Mutex<()>,
}

impl Meter {
    /// A sample; `None` while an earlier one is in progress. Also updates the memory figures inside.
    pub(crate) fn read(&self, pool: &Pool, sandbox: SandboxId, traffic: Traffic) -> Option<Sample> {
        let _turn = self.turn.try_lock()?;
        let usage = self.cgroup.usage();
        // Most likely the sandbox is gone.
        let _ = self.shown.refresh_memory(self.memory_limit, usage.memory_bytes, usage.cache_bytes);
        Some(Sample {
            sandbox,
            time_ms: coffer_core::clock::now_ms(),
            cpu_us: usage.cpu_us,
            memory_bytes: usage.memory_bytes,
            cache_bytes: usage.cache_bytes,
            disk_bytes: pool.used_bytes(self.quota),
            processes: usage.processes,
            traffic,
        })
    }
}

pub(crate) fn unknown(sandbox: SandboxId) -> NodeError {
    NodeError::new(NodeErrorCode::UnknownSandbox, format!("sandbox {sandbox} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_inbox_refuses_all_but_an_end() {
        let (handle, mut desk) = Handle::new(SandboxId::generate());
        let waiting: Vec<_> = (0..INBOX)
            .map(|_| {
                let handle = handle.clone();
                tokio::spawn(async move { handle.ask(Command::Freeze).await })
            })
            .collect();
        while desk.inbox.len() < INBOX {
            tokio::task::yield_now().await;
        }
        let refused = handle.ask(Command::Freeze).await.unwrap_err();
        assert_eq!(refused.code, NodeErrorCode::NoCapacity);
        let ending = tokio::spawn(async move { handle.ask(Command::Destroy).await });
        for _ in 0..INBOX {
            let ask = desk.inbox.recv().await.unwrap();
            ask.answer.send(Ok(Reply::Done)).unwrap();
        }
        let last = desk.inbox.recv().await.unwrap();
        assert_eq!(last.command, Command::Destroy);
        last.answer.send(Ok(Reply::Done)).unwrap();
        ending.await.unwrap().unwrap();
        for waited in waiting {
            waited.await.unwrap().unwrap();
        }
    }
}
