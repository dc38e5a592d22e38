//! The proxy's state for each sandbox in use: idle connections to its agentd, and the clients that are being
//! answered from it.
//!
//! A lane is created by the first request and removed with the sandbox, or when it was unused for a while.
//! One task watches each lane. It resets clients when the sandbox ends: a response cannot do so itself,
//! because the body of a client that reads slowly is not polled.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use coffer_core::{ProjectId, SandboxId};
use hyper::client::conn::http1::SendRequest;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::inward::Deaf;
use super::upload::Upload;
use crate::connection::Client;
use coffer_guest::Target;

/// Requests that one sandbox may have in progress.
const MOST_OPEN: usize = 1_000;

/// Idle connections kept to one agentd.
const MOST_IDLE: usize = 16;

/// How long a connection stays idle. Shorter than HTTP servers wait for the next request, so that a request
/// does not meet a connection that is just being closed.
const IDLE_FOR: Duration = Duration::from_secs(10);

/// How often a lane is checked.
const LOOK_EVERY: Duration = Duration::from_millis(if cfg!(test) { 200 } else { 5_000 });

/// An answer is unread if the client reads nothing of it for this long.
const UNREAD_AFTER: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Unread answers that may wait for their clients, over all sandboxes: each holds some 350 KiB here.
const MOST_UNREAD: usize = if cfg!(test) { 4 } else { 512 };

/// All lanes.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_sandbox: Mutex<HashMap<SandboxId, Arc<Lane>>>,
    /// Unread answers by project, as last counted.
    unread: Mutex<HashMap<ProjectId, usize>>,
    /// Watchers of lanes, and connections that left HTTP.
    tasks: TaskTracker,
    stop: CancellationToken,
}

#[derive(Debug)]
struct Lane {
    sandbox: SandboxId,
    project: ProjectId,
    gone: CancellationToken,
    tasks: TaskTracker,
    stop: CancellationToken,
    state: Mutex<State>,
    /// Its part of all unread answers, as last counted.
    unread: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Idle>,
    /// Every request in progress, with its client once the answer has begun.
    open: HashMap<u64, Option<Answering>>,
    next: u64,
}

#[derive(Debug)]
struct Answering {
    client: Client,
    held_up: HeldUp,
}

/// Since when an answer has had more for its client than the client takes.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldUp(Arc<Mutex<Option<Instant>>>);

impl HeldUp {
    /// More was sent, and the client has to read it.
    pub(super) fn begin(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// The client took it.
    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }

    fn since(&self) -> Option<Instant> {
        *self.0.lock()
    }
}

#[derive(Debug)]
struct Idle {
    link: Link,
    since: Instant,
}

/// A connection into a sandbox. Dropping it closes it, whatever is in progress.
pub(super) struct Link {
    pub(super) sender: SendRequest<Upload>,
    /// Only for agentd's connections: servers of users close theirs at any time.
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

/// The sandbox has reached its limit of requests in progress.
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

    /// Closes what is left, once no client has a connection for HTTP.
    pub(super) async fn finish(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Recounts a lane's unread answers, and returns by how many its project must be reduced. While the total
    /// is too high, that applies to projects with the average or more: a slow project does not cost others.
    fn count_unread(&self, project: ProjectId, before: usize, now: usize) -> usize {
        let mut unread = self.unread.lock();
        let own = unread.entry(project).or_default();
        *own = (*own + now).saturating_sub(before);
        let own = *own;
        if own == 0 {
            unread.remove(&project);
        }
        let total: usize = unread.values().sum();
        if own * unread.len() < total { 0 } else { total.saturating_sub(MOST_UNREAD) }
    }

    fn lane(self: &Arc<Self>, target: &Target) -> Arc<Lane> {
        let mut lanes = self.by_sandbox.lock();
        if let Some(lane) = lanes.get(&target.sandbox)
            // A resumed sandbox has the same id as before its pause.
            && !lane.gone.is_cancelled()
        {
            return lane.clone();
        }
        let lane = Arc::new(Lane {
            sandbox: target.sandbox,
            project: target.project,
            gone: target.gone.clone(),
            tasks: self.tasks.clone(),
            stop: self.stop.clone(),
            state: Mutex::default(),
            unread: AtomicUsize::new(0),
        });
        lanes.insert(target.sandbox, lane.clone());
        self.tasks.spawn(watch(self.clone(), lane.clone()));
        lane
    }

    /// Removes an unused lane. Places are only taken under this lock, so a lane that only the map and its
    /// watcher hold cannot come into use meanwhile.
    fn forget_unused(&self, lane: &Arc<Lane>) -> bool {
        let mut lanes = self.by_sandbox.lock();
        let unused = Arc::strong_count(lane) <= 2 && lane.state().idle.is_empty();
        if unused {
            remove_same(&mut lanes, lane);
        }
        unused
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.by_sandbox.lock().len()
    }

    /// Requests in progress, over all sandboxes.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.by_sandbox.lock().values().map(|lane| lane.state().open.len()).sum()
    }
}

/// Watches a lane until it is removed.
async fn watch(lanes: Arc<Lanes>, lane: Arc<Lane>) {
    loop {
        tokio::select! {
            () = lane.gone.cancelled() => {
                lane.end();
                remove_same(&mut lanes.by_sandbox.lock(), &lane);
                break;
            }
            () = lanes.stop.cancelled() => {
                lane.end();
                break;
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        lane.prune(Instant::now());
        lane.shed(&lanes, Instant::now());
        if lanes.forget_unused(&lane) {
            break;
        }
    }
    lanes.count_unread(lane.project, lane.unread.load(Relaxed), 0);
}

fn remove_same(lanes: &mut HashMap<SandboxId, Arc<Lane>>, lane: &Arc<Lane>) {
    if lanes.get(&lane.sandbox).is_some_and(|present| Arc::ptr_eq(present, lane)) {
        lanes.remove(&lane.sandbox);
    }
}

impl Lane {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Closes connections that were unused for a while.
    fn prune(&self, now: Instant) {
        let mut state = self.state();
        let is_fresh = |idle: &mut Idle| {
            !idle.link.sender.is_closed() && now.saturating_duration_since(idle.since) < IDLE_FOR
        };
        let stale: Vec<Idle> = state.idle.extract_if(.., |idle| !is_fresh(idle)).collect();
        drop(state);
        drop(stale);
    }

    /// Resets every client that is being answered. Those still waiting get the proxy's own answer.
    fn end(&self) {
        let mut state = self.state();
        state.idle.clear();
        for answering in state.open.values().flatten() {
            answering.client.abort();
        }
    }

    /// Resets clients that leave their answers unread, the longest first, while there are too many of them
    /// and the project has no fewer than others.
    fn shed(&self, lanes: &Lanes, now: Instant) {
        let mut unread: Vec<(Instant, Client)> = {
            let state = self.state();
            let answering = state.open.values().flatten();
            let held_up = answering.filter_map(|each| Some((each.held_up.since()?, each.client.clone())));
            held_up.filter(|(since, _)| now.saturating_duration_since(*since) >= UNREAD_AFTER).collect()
        };
        let before = self.unread.swap(unread.len(), Relaxed);
        let excess = lanes.count_unread(self.project, before, unread.len()).min(unread.len());
        if excess > 0 {
            let sandbox = self.sandbox;
            tracing::warn!(sandbox.id = %sandbox, "resetting {excess} clients of {sandbox} that read nothing");
            unread.sort_by_key(|(since, _)| *since);
            unread.iter().take(excess).for_each(|(_, client)| client.abort());
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
    pub(super) fn answering(&self, client: &Client) -> HeldUp {
        let held_up = HeldUp::default();
        let answering = Answering { client: client.clone(), held_up: held_up.clone() };
        self.lane.state().open.insert(self.key, Some(answering));
        // The watcher may have looked just before.
        if self.is_gone() {
            client.abort();
        }
        held_up
    }

    /// Whether the sandbox has ended or paused.
    pub(super) fn is_gone(&self) -> bool {
        self.lane.gone.is_cancelled()
    }

    /// Waits until the sandbox ends or pauses, or the server stops.
    pub(super) async fn gone(&self) {
        tokio::select! {
            () = self.lane.gone.cancelled() => {}
            () = self.lane.stop.cancelled() => {}
        }
    }

    /// Where work for this request runs that outlives its answer.
    pub(super) fn tasks(&self) -> TaskTracker {
        self.lane.tasks.clone()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.lane.state().open.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_slowly_does_not_pay_for_a_project_that_reads_nothing() {
        let lanes = Lanes::default();
        let (busy, slow) = (ProjectId::generate(), ProjectId::generate());
        assert_eq!(lanes.count_unread(slow, 0, 1), 0);
        assert_eq!(lanes.count_unread(busy, 0, MOST_UNREAD - 1), 0, "there is room");
        assert_eq!(lanes.count_unread(busy, MOST_UNREAD - 1, MOST_UNREAD + 2), 3);
        assert_eq!(lanes.count_unread(slow, 1, 1), 0, "the other one has more");
        assert_eq!(lanes.count_unread(busy, MOST_UNREAD + 2, 0), 0);
        assert_eq!(lanes.count_unread(slow, 1, 0), 0);
        assert!(lanes.unread.lock().is_empty());
    }
}
