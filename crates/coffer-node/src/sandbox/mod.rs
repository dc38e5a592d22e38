//! Sandboxes: each has one task that owns it; everyone else holds a [`Handle`] and asks.
//!
//! ```text
//!   create ──► running ◄──► frozen          destroy, from anywhere: gone
//!                │ ▲ stop, start            first process ended unasked: dead,
//!                ▼ │                        which keeps only a record until destroyed
//!              stopped
//! ```
//!
//! A snapshot leaves any of these as it was; a rollback ends in running.

mod birth;
mod clearing;
mod death;
mod freeze;
mod hibernation;
mod live_snapshot;
mod meter;
mod owner;
pub(crate) mod process;
mod refusal;
mod rehearsal;
mod revival;
mod rollback;
mod slot;
mod snapshot;

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use coffer_core::network::Policy;
use coffer_core::{SandboxId, SnapshotId};
use coffer_wire::node::{CreateSandbox, NodeError, NodeErrorCode, Placement, Reply, RunState, SandboxStatus};
use tokio::sync::{mpsc, oneshot};

pub(crate) use birth::find_template;
pub(crate) use clearing::{clear_processes, clear_run};
pub(crate) use meter::sample_all;
pub(crate) use owner::{Found, adopt, create};
pub(crate) use process::Watched;
pub(crate) use slot::Slot;

use meter::Meter;

/// Questions that may wait for an owner; it is busy for milliseconds at a time.
const INBOX: usize = 32;

/// What can be asked of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Want {
    Create(Box<CreateSandbox>),
    Destroy,
    Freeze,
    Thaw,
    Stop,
    Start { cold: bool },
    Hibernate,
    Snapshot { snapshot: SnapshotId, memory: bool },
    Rollback { snapshot: SnapshotId, memory: bool },
    SetNetwork(Box<Policy>),
}

type Answer = oneshot::Sender<Result<Reply, NodeError>>;

#[derive(Debug)]
pub(crate) struct Ask {
    want: Want,
    answer: Answer,
}

/// A way to a sandbox's owner, and what it last said of itself.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    sandbox: SandboxId,
    asks: mpsc::Sender<Ask>,
    view: Arc<Mutex<View>>,
}

/// What others may see without asking.
#[derive(Debug, Default)]
struct View {
    /// Nothing until it was made.
    status: Option<(RunState, Placement)>,
    meter: Option<Arc<Meter>>,
    /// Its owner is at something.
    changing: bool,
}

impl Handle {
    pub(crate) async fn ask(&self, want: Want) -> Result<Reply, NodeError> {
        let (answer, answered) = oneshot::channel();
        let gone = |_| unknown(self.sandbox);
        self.asks.send(Ask { want, answer }).await.map_err(|_| unknown(self.sandbox))?;
        answered.await.map_err(gone)?
    }

    pub(crate) fn status(&self) -> Option<SandboxStatus> {
        let view = self.view.lock().expect("no holder panics");
        let (run, placement) = view.status.clone()?;
        Some(SandboxStatus { sandbox: self.sandbox, run, placement, changing: view.changing })
    }

    fn meter(&self) -> Option<Arc<Meter>> {
        self.view.lock().expect("no holder panics").meter.clone()
    }

    pub(crate) const fn id(&self) -> SandboxId {
        self.sandbox
    }

    /// How many sockets are open in it; nothing while it has no processes.
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
        let view = self.view.lock().expect("no holder panics");
        matches!(view.status, None | Some((RunState::Dead { .. }, _)))
    }
}

pub(crate) fn unknown(sandbox: SandboxId) -> NodeError {
    NodeError::new(NodeErrorCode::UnknownSandbox, format!("there is no sandbox {sandbox}"))
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
