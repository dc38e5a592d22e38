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
mod owner;
pub(crate) mod process;
mod refusal;
mod rehearsal;
mod revival;
mod rollback;
mod slot;
mod snapshot;

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use coffer_core::network::{Policy, Traffic};
use coffer_core::{SandboxId, SnapshotId};
use coffer_wire::node::{
    CreateSandbox, NodeError, NodeErrorCode, Placement, Reply, RunState, Sample, SandboxStatus,
};
use tokio::sync::{mpsc, oneshot};

use crate::cgroup::SandboxCgroup;
use crate::files::Shown;
use crate::node::Node;

pub(crate) use birth::find_template;
pub(crate) use clearing::{clear_processes, clear_run};
pub(crate) use owner::{Found, adopt, create};
pub(crate) use process::Watched;
pub(crate) use slot::Slot;

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
    SetNetwork(Policy),
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

/// Where a running sandbox's use is read.
#[derive(Debug)]
struct Meter {
    cgroup: SandboxCgroup,
    quota: Option<u64>,
    shown: Shown,
    memory_limit: u64,
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

    /// A sample of a sandbox that has processes. Also brings the memory figures inside up to date.
    pub(crate) fn sample(&self, node: &Node, traffic: &HashMap<SandboxId, Traffic>) -> Option<Sample> {
        let meter = self.view.lock().expect("no holder panics").meter.clone()?;
        let usage = meter.cgroup.usage();
        // Gone in the meantime, most likely.
        let _ = meter.shown.refresh_memory(meter.memory_limit, usage.memory_bytes, usage.cache_bytes);
        Some(Sample {
            sandbox: self.sandbox,
            time_ms: now_ms(),
            cpu_us: usage.cpu_us,
            memory_bytes: usage.memory_bytes,
            cache_bytes: usage.cache_bytes,
            disk_bytes: node.pool.used_bytes(meter.quota),
            processes: usage.processes,
            traffic: traffic.get(&self.sandbox).copied().unwrap_or_default(),
        })
    }

    pub(crate) const fn id(&self) -> SandboxId {
        self.sandbox
    }

    /// How many sockets are open in it; nothing while it has no processes.
    pub(crate) fn sockets(&self) -> Option<u64> {
        let meter = self.view.lock().expect("no holder panics").meter.clone()?;
        let first = meter.cgroup.processes().into_iter().next()?;
        let text = fs::read_to_string(format!("/proc/{}/net/sockstat", first.as_raw_nonzero())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("sockets: used ")?.trim().parse().ok())
    }

    /// Kills all of its processes. Its owner sees them end.
    pub(crate) fn kill(&self) {
        if let Some(meter) = self.view.lock().expect("no holder panics").meter.clone() {
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
