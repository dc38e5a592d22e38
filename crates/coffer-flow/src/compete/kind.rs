//! What the steps of competitions share.

use std::sync::Arc;
use std::time::Duration;

use coffer_store::Store;

use super::arena::Arena;
use crate::{Clock, Tries};

pub(super) const LONG: Duration = Duration::from_secs(1800);
/// One in this many budget checks also extends the forks' deadlines.
const KEEP_ONCE_IN: u32 = 30;

/// Executes runs of competitions in an arena.
pub struct CompeteKind<A: ?Sized> {
    pub(super) store: Store,
    pub(super) arena: Arc<A>,
    pub(super) clock: Clock,
    /// For operations of an entry, which are not steps of their own.
    pub(super) tries: Tries,
    /// How often the budget is checked.
    pub(super) watch_every: Duration,
    /// How often the forks' deadlines are extended.
    pub(super) keep_every: Duration,
}

impl<A: ?Sized> std::fmt::Debug for CompeteKind<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompeteKind")
    }
}

impl<A: Arena + ?Sized> CompeteKind<A> {
    pub fn new(store: Store, arena: Arc<A>) -> Self {
        let watch_every = Duration::from_secs(2);
        let keep_every = watch_every * KEEP_ONCE_IN;
        Self { store, arena, clock: Clock::default(), tries: Tries::default(), watch_every, keep_every }
    }

    /// Uses other times than the defaults.
    #[must_use]
    pub fn paced(self, clock: Clock, tries: Tries, watch_every: Duration) -> Self {
        Self { clock, tries, watch_every, keep_every: watch_every * KEEP_ONCE_IN, ..self }
    }
}
