//! Caches valid keys.

use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use coffer_core::{AgentId, KeyId, Millis};

use crate::{Authenticated, now_ms};

/// How long a valid key is taken for one.
pub(super) const BELIEVED: Duration = Duration::from_secs(2);

const MOST_BELIEVED: usize = 4096;

pub(super) type KeyDigest = [u8; 32];

/// Recently valid keys, and when keys were used.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    state: Mutex<CacheState>,
}

#[derive(Debug, Default)]
pub(super) struct CacheState {
    good: HashMap<KeyDigest, Believed>,
    pub(super) used: HashMap<KeyId, Millis>,
}

#[derive(Debug)]
struct Believed {
    whom: Authenticated,
    until: Instant,
}

impl Cache {
    pub(super) fn believed(&self, digest: &KeyDigest) -> Option<Authenticated> {
        let mut state = self.lock();
        let whom = state.good.get(digest).filter(|believed| Instant::now() < believed.until)?.whom;
        state.used.insert(whom.key(), now_ms());
        Some(whom)
    }

    pub(super) fn believe(&self, digest: KeyDigest, whom: Authenticated, expires_in_ms: Option<Millis>) {
        let left = expires_in_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        let now = Instant::now();
        let mut state = self.lock();
        if state.good.len() >= MOST_BELIEVED {
            state.good.retain(|_, believed| now < believed.until);
        }
        // Only valid keys are added, so a full cache means thousands in use within two seconds.
        if state.good.len() < MOST_BELIEVED {
            let until = now + left.map_or(BELIEVED, |left| left.min(BELIEVED));
            state.good.insert(digest, Believed { whom, until });
        }
        state.used.insert(whom.key(), now_ms());
    }

    /// When a key was last used here, if that is not on record yet.
    pub(super) fn last_used(&self, key: KeyId) -> Option<Millis> {
        self.lock().used.get(&key).copied()
    }

    pub(crate) fn forget(&self, key: KeyId) {
        self.lock().good.retain(|_, believed| believed.whom.key() != key);
    }

    pub(crate) fn forget_agent(&self, agent: AgentId) {
        let is_its = |whom: &Authenticated| match whom {
            Authenticated::Project(principal) => principal.scope.agent() == Some(agent),
            Authenticated::Operator { .. } => false,
        };
        self.lock().good.retain(|_, believed| !is_its(&believed.whom));
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, CacheState> {
        // A panicking thread can leave only stale entries: it is a cache.
        self.state.lock()
    }
}
