//! A fake outside world for the effects of runs: it counts, and can be queried.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// Things by name, how often each was created and deleted, and points where callers block for ever.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outside {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    reached: Notify,
}

#[derive(Debug, Default)]
struct State {
    made: BTreeMap<String, u32>,
    unmade: Vec<String>,
    calls: BTreeMap<String, u32>,
    fences: HashMap<String, i64>,
    /// Calls with an outdated fence.
    stale: u32,
    blocked: Option<String>,
    reached: bool,
    left: bool,
    /// How many calls of a name still fail.
    failing: BTreeMap<String, u32>,
}

/// Notifies when a blocked caller was dropped.
struct Leaves(Outside);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.inner.state.lock().unwrap().left = true;
        self.0.inner.reached.notify_waiters();
    }
}

impl Outside {
    /// Creates the thing unless it exists.
    pub(crate) fn ensure(&self, name: &str) -> String {
        let mut state = self.inner.state.lock().unwrap();
        *state.calls.entry(name.to_string()).or_default() += 1;
        if !state.made.contains_key(name) {
            state.made.insert(name.to_string(), 0);
            *state.made.get_mut(name).unwrap() += 1;
        }
        format!("{name}!")
    }

    /// Deletes the thing if it exists.
    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.inner.state.lock().unwrap();
        if state.made.remove(name).is_some() {
            state.unmade.push(name.to_string());
        }
    }

    /// Records which runner executes a run.
    pub(crate) fn fence(&self, run: &str, fence: i64) {
        let mut state = self.inner.state.lock().unwrap();
        let known = state.fences.entry(run.to_string()).or_insert(fence);
        if fence < *known {
            state.stale += 1;
        } else {
            *known = fence;
        }
    }

    pub(crate) fn stale(&self) -> u32 {
        self.inner.state.lock().unwrap().stale
    }

    pub(crate) fn made(&self) -> Vec<String> {
        self.inner.state.lock().unwrap().made.keys().cloned().collect()
    }

    pub(crate) fn unmade(&self) -> Vec<String> {
        self.inner.state.lock().unwrap().unmade.clone()
    }

    pub(crate) fn calls(&self, name: &str) -> u32 {
        self.inner.state.lock().unwrap().calls.get(name).copied().unwrap_or_default()
    }

    /// Blocks the next caller at `point`.
    pub(crate) fn block(&self, point: &str) {
        let mut state = self.inner.state.lock().unwrap();
        (state.blocked, state.reached, state.left) = (Some(point.to_string()), false, false);
    }

    /// Unblocks callers.
    pub(crate) fn unblock(&self) {
        self.inner.state.lock().unwrap().blocked = None;
    }

    /// Passes a point; blocks there if it is blocked.
    pub(crate) async fn pass(&self, point: &str) {
        let stay = {
            let mut state = self.inner.state.lock().unwrap();
            let stay = state.blocked.as_deref() == Some(point);
            state.reached |= stay;
            stay
        };
        if stay {
            self.inner.reached.notify_waiters();
            let _leaves = Leaves(self.clone());
            std::future::pending::<()>().await;
        }
    }

    /// Waits until a blocked caller was dropped.
    pub(crate) async fn left(&self) {
        let waited = tokio::time::timeout(super::world::PATIENCE, async {
            loop {
                let left = self.inner.reached.notified();
                if self.inner.state.lock().unwrap().left {
                    return;
                }
                left.await;
            }
        });
        waited.await.expect("who stays is dropped");
    }

    /// Waits until a caller is blocked at a blocked point.
    pub(crate) async fn reached(&self) {
        let waited = tokio::time::timeout(super::world::PATIENCE, async {
            loop {
                let reached = self.inner.reached.notified();
                if self.inner.state.lock().unwrap().reached {
                    return;
                }
                reached.await;
            }
        });
        waited.await.expect("somebody comes by");
    }

    /// Makes the next calls of this name fail.
    pub(crate) fn fail(&self, name: &str, times: u32) {
        self.inner.state.lock().unwrap().failing.insert(name.to_string(), times);
    }

    /// Whether this call is to fail.
    pub(crate) fn fails(&self, name: &str) -> bool {
        let mut state = self.inner.state.lock().unwrap();
        match state.failing.get_mut(name) {
            Some(times) if *times > 0 => {
                *times -= 1;
                true
            }
            _ => false,
        }
    }
}
