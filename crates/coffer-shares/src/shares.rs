use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, MutexGuard};

use coffer_core::sync::Mutex;
use tokio::sync::oneshot;

use crate::Pool;
use crate::pools::Wait;

/// Most waiting requests of one tenant, for each place of its share.
const WAITING_PER_PLACE: usize = 16;

/// Hands out the places of one pool.
pub struct Shares<K: Eq + Hash + Copy>(Arc<Inner<K>>);

struct Inner<K: Eq + Hash + Copy> {
    pool: &'static Pool,
    total: usize,
    share: usize,
    state: Mutex<State<K>>,
}

struct State<K: Eq + Hash + Copy> {
    free: usize,
    /// Only tenants that hold something.
    held: HashMap<K, usize>,
    waiting: VecDeque<Waiter<K>>,
}

struct Waiter<K: Eq + Hash + Copy> {
    whose: K,
    grant: oneshot::Sender<Place<K>>,
}

/// A place in a pool, released when dropped.
pub struct Place<K: Eq + Hash + Copy> {
    /// `None` only if it was never handed over.
    inner: Option<Arc<Inner<K>>>,
    whose: K,
}

/// There is no place for this tenant, and waiting did not help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("all places for {} are in use: the pool `{}` has {total}, of which one tenant may hold {share}, and this one holds {held}", .pool.holds, .pool.name)]
pub struct Full {
    pub pool: &'static Pool,
    pub total: usize,
    pub share: usize,
    /// By the tenant that asked.
    pub held: usize,
}

impl Full {
    /// When to retry.
    pub const fn retry_after_s(&self) -> u32 {
        match self.pool.wait {
            // It has already waited.
            Wait::UpTo(_) | Wait::UntilFree => 1,
            Wait::Never => 5,
        }
    }

    /// How to fix it.
    pub fn hint(&self) -> String {
        match self.pool.setting {
            Some(setting) => {
                format!("retry later, with fewer requests at a time, or ask an operator to raise `{setting}`")
            }
            None => "retry later, with fewer requests at a time".to_string(),
        }
    }
}

impl<K: Eq + Hash + Copy> Shares<K> {
    pub fn new(pool: &'static Pool) -> Self {
        Self::with_total(pool, pool.total)
    }

    /// With another total, in which a tenant has the same part. There are always two places.
    pub fn with_total(pool: &'static Pool, total: usize) -> Self {
        let total = total.max(2);
        let share = (total.saturating_mul(pool.share) / pool.total).clamp(1, total / 2);
        let state = State { free: total, held: HashMap::new(), waiting: VecDeque::new() };
        Self(Arc::new(Inner { pool, total, share, state: Mutex::new(state) }))
    }

    /// With another share, which is the same part of the total.
    pub fn with_share(pool: &'static Pool, share: usize) -> Self {
        let parts = pool.total / pool.share;
        Self::with_total(pool, share.clamp(1, usize::MAX / parts) * parts)
    }

    pub fn pool(&self) -> &'static Pool {
        self.0.pool
    }

    pub fn total(&self) -> usize {
        self.0.total
    }

    /// How many places one tenant may hold.
    pub fn share(&self) -> usize {
        self.0.share
    }

    /// Places in use, by all tenants.
    pub fn in_use(&self) -> usize {
        self.0.total - self.0.state().free
    }

    /// How many places a tenant could take now.
    pub fn room(&self, whose: K) -> usize {
        let state = self.0.state();
        let held = state.held.get(&whose).copied().unwrap_or_default();
        let (mut more, mut free) = (0, state.free);
        while self.0.allows(held + more, free) {
            more += 1;
            free -= 1;
        }
        more
    }

    /// A place, if there is one now.
    pub fn try_take(&self, whose: K) -> Result<Place<K>, Full> {
        let mut state = self.0.state();
        let held = state.held.get(&whose).copied().unwrap_or_default();
        if !self.0.allows(held, state.free) {
            return Err(self.0.full(held));
        }
        Ok(Inner::grant(&self.0, &mut state, whose))
    }

    /// A place, waiting for it as long as the pool allows.
    pub async fn take(&self, whose: K) -> Result<Place<K>, Full> {
        let granted = {
            let mut state = self.0.state();
            let held = state.held.get(&whose).copied().unwrap_or_default();
            if self.0.allows(held, state.free) {
                return Ok(Inner::grant(&self.0, &mut state, whose));
            }
            let is_bounded = self.0.pool.wait != Wait::UntilFree;
            state.waiting.retain(|waiter| !waiter.grant.is_closed());
            let own = state.waiting.iter().filter(|waiter| waiter.whose == whose).count();
            if self.0.pool.wait == Wait::Never || (is_bounded && own >= self.0.share * WAITING_PER_PLACE) {
                return Err(self.0.full(held));
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back(Waiter { whose, grant });
            granted
        };
        let place = match self.0.pool.wait {
            Wait::Never => None,
            Wait::UpTo(time) => tokio::time::timeout(time, granted).await.ok().and_then(Result::ok),
            Wait::UntilFree => granted.await.ok(),
        };
        place.ok_or_else(|| {
            let held = self.0.state().held.get(&whose).copied().unwrap_or_default();
            self.0.full(held)
        })
    }
}

impl<K: Eq + Hash + Copy> Inner<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        // Counts change together, without anything between that could panic.
        self.state.lock()
    }

    /// Whether a tenant that holds so many may take one more: a first place as long as there is one, further ones
    /// only while at least as many stay free for others.
    fn allows(&self, held: usize, free: usize) -> bool {
        free > 0 && held < self.share && (held == 0 || held < free)
    }

    fn full(&self, held: usize) -> Full {
        Full { pool: self.pool, total: self.total, share: self.share, held }
    }

    fn grant(inner: &Arc<Self>, state: &mut State<K>, whose: K) -> Place<K> {
        state.free -= 1;
        *state.held.entry(whose).or_default() += 1;
        Place { inner: Some(inner.clone()), whose }
    }

    fn give_back(state: &mut State<K>, whose: K) {
        state.free += 1;
        if let Some(held) = state.held.get_mut(&whose) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&whose);
            }
        }
    }

    /// Takes a place back and hands out what is free then.
    fn release(inner: &Arc<Self>, whose: K) {
        let mut state = inner.state();
        Self::give_back(&mut state, whose);
        loop {
            let State { free, held, waiting } = &*state;
            let held = |whose: &K| held.get(whose).copied().unwrap_or_default();
            let next = waiting
                .iter()
                .enumerate()
                .filter(|(_, waiter)| inner.allows(held(&waiter.whose), *free))
                .min_by_key(|(_, waiter)| held(&waiter.whose))
                .map(|(index, _)| index);
            let Some(waiter) = next.and_then(|index| state.waiting.remove(index)) else { return };
            let place = Self::grant(inner, &mut state, waiter.whose);
            if let Err(mut place) = waiter.grant.send(place) {
                // It no longer waits. Dropping the place would take the lock that is held here.
                place.inner = None;
                Self::give_back(&mut state, waiter.whose);
            }
        }
    }
}

impl<K: Eq + Hash + Copy> Drop for Place<K> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            Inner::release(&inner, self.whose);
        }
    }
}

impl<K: Eq + Hash + Copy> Clone for Shares<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Eq + Hash + Copy> fmt::Debug for Shares<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { pool, total, .. } = &*self.0;
        write!(f, "Shares({}, {} of {total} free)", pool.name, self.0.state().free)
    }
}

impl<K: Eq + Hash + Copy> fmt::Debug for Place<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.inner.as_ref().map_or("none", |inner| inner.pool.name))
    }
}
