//! What runs have effects on: it counts, and it can be asked before something is made.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// Things by name, how often each was made and unmade, and places where callers stop for ever.
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
    /// Calls with a fence below one that was seen.
    stale: u32,
    blocked: Option<String>,
    reached: bool,
    left: bool,
    /// How many calls of a name still fail.
    failing: BTreeMap<String, u32>,
}

/// Tells that who stayed somewhere does not any more.
struct Leaves(Outside);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.inner.state.lock().unwrap().left = true;
        self.0.inner.reached.notify_waiters();
    }
}

impl Outside {
    /// Makes the thing unless it is there.
    pub(crate) fn ensure(&self, name: &str) -> String {
        let mut state = self.inner.state.lock().unwrap();
        *state.calls.entry(name.to_string()).or_default() += 1;
        if !state.made.contains_key(name) {
            state.made.insert(name.to_string(), 0);
            *state.made.get_mut(name).unwrap() += 1;
        }
        format!("{name}!")
    }

    /// Unmakes the thing if it is there.
    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.inner.state.lock().unwrap();
        if state.made.remove(name).is_some() {
            state.unmade.push(name.to_string());
        }
    }

    /// Notes who acts for a run.
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

    /// Has the next caller that comes by `point` stay there.
    pub(crate) fn block(&self, point: &str) {
        let mut state = self.inner.state.lock().unwrap();
        (state.blocked, state.reached, state.left) = (Some(point.to_string()), false, false);
    }

    /// Lets callers pass again.
    pub(crate) fn unblock(&self) {
        self.inner.state.lock().unwrap().blocked = None;
    }

    /// Comes by a place; stays there where it is blocked.
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

    /// Waits until who stayed somewhere was dropped.
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

    /// Waits until somebody stays where it is blocked.
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

    /// Has the next calls of that name fail.
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
