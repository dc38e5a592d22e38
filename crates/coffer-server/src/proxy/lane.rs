//! What the proxy keeps for each sandbox in use: idle connections to its agentd, and who is being
//! answered from it.
//!
//! A lane comes with the first request and goes when the sandbox does, or when nothing has used it
//! for a while. One task watches each lane. It is the one that resets clients when the sandbox ends:
//! a response cannot do so itself, because the body of a client that reads slowly is not polled.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coffer_core::SandboxId;
use hyper::client::conn::http1::SendRequest;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::body::Upload;
use super::inward::Deaf;
use crate::routing::{Client, Target};

/// Requests that one sandbox may have under way.
const MOST_OPEN: usize = 1_000;

/// Idle connections kept to one agentd.
const MOST_IDLE: usize = 16;

/// How long a connection stays idle. Below what HTTP servers wait for a next request, so that a
/// request does not meet a connection that is just being closed.
const IDLE_FOR: Duration = Duration::from_secs(10);

/// All lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_sandbox: Mutex<HashMap<SandboxId, Arc<Lane>>>,
}

#[derive(Debug)]
struct Lane {
    sandbox: SandboxId,
    gone: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Idle>,
    /// Every request under way, with its client once the answer has begun.
    open: HashMap<u64, Option<Client>>,
    next: u64,
}

#[derive(Debug)]
struct Idle {
    link: Link,
    since: Instant,
}

/// A connection into a sandbox. Dropping it closes it, whatever is under way.
pub(super) struct Link {
    pub(super) sender: SendRequest<Upload>,
    /// Only agentd's connections: servers of users close theirs when they like.
    pub(super) reusable: bool,
    pub(super) deaf: Deaf,
    /// Drives the connection.
    pub(super) _driver: AbortOnDropHandle<()>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("closed", &self.sender.is_closed()).finish_non_exhaustive()
    }
}

/// The place of one request in its sandbox's lane, given up when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    lane: Arc<Lane>,
    key: u64,
}

/// The sandbox has as many requests under way as it may.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Lanes {
    /// Takes a place for a request to `target`.
    pub(super) fn enter(self: &Arc<Self>, target: &Target) -> Result<Slot, Full> {
        let lane = self.lane(target);
        let mut state = lane.state();
        if state.open.len() >= MOST_OPEN {
            return Err(Full);
        }
        let key = state.next;
        state.next += 1;
        state.open.insert(key, None);
        drop(state);
        Ok(Slot { lane, key })
    }

    fn lane(self: &Arc<Self>, target: &Target) -> Arc<Lane> {
        let mut lanes = lock(&self.by_sandbox);
        if let Some(lane) = lanes.get(&target.sandbox)
            // A sandbox that was resumed has the id of the one that went.
            && !lane.gone.is_cancelled()
        {
            return lane.clone();
        }
        let lane =
            Arc::new(Lane { sandbox: target.sandbox, gone: target.gone.clone(), state: Mutex::default() });
        lanes.insert(target.sandbox, lane.clone());
        tokio::spawn(watch(self.clone(), lane.clone()));
        lane
    }

    /// Forgets a lane that nothing uses. Places are only taken under this lock, so one that only
    /// the map and its watcher hold cannot come into use meanwhile.
    fn forget_unused(&self, lane: &Arc<Lane>) -> bool {
        let mut lanes = lock(&self.by_sandbox);
        let unused = Arc::strong_count(lane) <= 2 && lane.state().idle.is_empty();
        if unused {
            remove_same(&mut lanes, lane);
        }
        unused
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        lock(&self.by_sandbox).len()
    }

    /// Requests under way, over all sandboxes.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        lock(&self.by_sandbox).values().map(|lane| lane.state().open.len()).sum()
    }
}

/// Looks after a lane until it is forgotten.
async fn watch(lanes: Arc<Lanes>, lane: Arc<Lane>) {
    loop {
        tokio::select! {
            () = lane.gone.cancelled() => {
                lane.end();
                remove_same(&mut lock(&lanes.by_sandbox), &lane);
                return;
            }
            () = tokio::time::sleep(IDLE_FOR / 2) => {}
        }
        lane.prune(Instant::now());
        if lanes.forget_unused(&lane) {
            return;
        }
    }
}

fn remove_same(lanes: &mut HashMap<SandboxId, Arc<Lane>>, lane: &Arc<Lane>) {
    if lanes.get(&lane.sandbox).is_some_and(|present| Arc::ptr_eq(present, lane)) {
        lanes.remove(&lane.sandbox);
    }
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Closes connections that nobody took for a while.
    fn prune(&self, now: Instant) {
        let mut state = self.state();
        let is_fresh = |idle: &mut Idle| {
            !idle.link.sender.is_closed() && now.saturating_duration_since(idle.since) < IDLE_FOR
        };
        let stale: Vec<Idle> = state.idle.extract_if(.., |idle| !is_fresh(idle)).collect();
        drop(state);
        drop(stale);
    }

    /// Resets every client that is being answered. Those still waiting get an answer of ours.
    fn end(&self) {
        let mut state = self.state();
        state.idle.clear();
        for client in state.open.values().flatten() {
            client.abort();
        }
    }
}

impl Slot {
    /// Takes an idle connection that is ready for a request.
    pub(super) fn idle_link(&self) -> Option<Link> {
        let mut state = self.lane.state();
        while let Some(idle) = state.idle.pop() {
            let fresh = idle.since.elapsed() < IDLE_FOR;
            if fresh && idle.link.sender.is_ready() {
                return Some(idle.link);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(super) fn give_back(&self, link: Link) {
        if !link.reusable || link.deaf.is() || self.is_gone() {
            return;
        }
        let mut state = self.lane.state();
        if state.idle.len() < MOST_IDLE {
            state.idle.push(Idle { link, since: Instant::now() });
        }
    }

    /// The answer has begun: from now on the end of the sandbox resets `client`.
    pub(super) fn answering(&self, client: &Client) {
        self.lane.state().open.insert(self.key, Some(client.clone()));
        // The watcher may have looked just before.
        if self.is_gone() {
            client.abort();
        }
    }

    /// Whether the sandbox has ended or paused.
    pub(super) fn is_gone(&self) -> bool {
        self.lane.gone.is_cancelled()
    }

    /// Waits until the sandbox ends or pauses.
    pub(super) async fn gone(&self) {
        self.lane.gone.cancelled().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.lane.state().open.remove(&self.key);
    }
}

/// State behind these locks is whole between any two statements, so a panic elsewhere leaves it fit.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
