//! Token buckets.

use coffer_shares::network_of;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use coffer_core::sync::{Mutex, RwLock};

/// Buckets held at a time. A full bucket can be dropped. If there is no room, a caller is not limited, so
/// that it is not limited by others.
const MOST_BUCKETS: usize = 65_536;
/// Keys remembered as valid.
const MOST_KNOWN: usize = 65_536;

/// The rate was exceeded; try again after this time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TryAgainIn(pub Duration);

impl TryAgainIn {
    /// In whole seconds, at least one.
    pub fn seconds(self) -> u32 {
        u32::try_from(self.0.as_millis().div_ceil(1000)).unwrap_or(u32::MAX).max(1)
    }
}

/// One bucket for each caller.
#[derive(Debug)]
pub(super) struct Buckets<K> {
    per_s: f64,
    burst: f64,
    levels: Mutex<HashMap<K, Level>>,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    tokens: f64,
    at: Instant,
}

impl<K: Eq + Hash> Buckets<K> {
    /// A rate of 0 limits no caller.
    pub(super) fn new(per_s: u32, burst: u32) -> Self {
        Self { per_s: per_s.into(), burst: burst.max(1).into(), levels: Mutex::default() }
    }

    /// Takes one token.
    pub(super) fn take(&self, whose: K, now: Instant) -> Result<(), TryAgainIn> {
        if self.per_s == 0.0 {
            return Ok(());
        }
        let mut levels = self.levels.lock();
        if levels.len() >= MOST_BUCKETS && !levels.contains_key(&whose) {
            levels.retain(|_, level| self.filled(level, now) < self.burst);
            if levels.len() >= MOST_BUCKETS {
                return Ok(());
            }
        }
        let level = levels.entry(whose).or_insert(Level { tokens: self.burst, at: now });
        *level = Level { tokens: self.filled(level, now), at: now.max(level.at) };
        self.enough(level.tokens)?;
        level.tokens -= 1.0;
        Ok(())
    }

    /// Whether there is a token; takes none.
    fn look(&self, whose: &K, now: Instant) -> Result<(), TryAgainIn> {
        let levels = self.levels.lock();
        levels.get(whose).map_or(Ok(()), |level| self.enough(self.filled(level, now)))
    }

    fn enough(&self, tokens: f64) -> Result<(), TryAgainIn> {
        if tokens >= 1.0 {
            return Ok(());
        }
        Err(TryAgainIn(Duration::from_secs_f64((1.0 - tokens) / self.per_s)))
    }

    fn filled(&self, level: &Level, now: Instant) -> f64 {
        let since = now.saturating_duration_since(level.at).as_secs_f64();
        (level.tokens + since * self.per_s).min(self.burst)
    }
}

/// Limits addresses that send invalid keys.
///
/// Looking up a key costs a database query, so an address with too many wrong keys has to wait. Many clients
/// may share one address, so keys that were valid before still pass.
#[derive(Debug)]
pub(super) struct Strangers {
    wrong: Buckets<IpAddr>,
    known: RwLock<HashSet<u64>>,
    hasher: RandomState,
}

impl Strangers {
    pub(super) fn new(per_s: u32, burst: u32) -> Self {
        Self { wrong: Buckets::new(per_s, burst), known: RwLock::default(), hasher: RandomState::new() }
    }

    /// Remembers a valid key.
    pub(super) fn is_known(&self, key: &str) {
        let key = self.hasher.hash_one(key);
        if self.known.read().contains(&key) {
            return;
        }
        let mut known = self.known.write();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(key);
    }

    pub(super) fn may_try(&self, peer: IpAddr, key: &str, now: Instant) -> Result<(), TryAgainIn> {
        self.wrong.look(&network_of(peer), now).or_else(|wait| {
            let key = self.hasher.hash_one(key);
            let known = self.known.read().contains(&key);
            if known { Ok(()) } else { Err(wait) }
        })
    }

    pub(super) fn refused(&self, peer: IpAddr, now: Instant) {
        let _ = self.wrong.take(network_of(peer), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let (buckets, start) = (Buckets::new(2, 3), Instant::now());
        for _ in 0..3 {
            assert_eq!(buckets.take("a", start), Ok(()));
        }
        let TryAgainIn(wait) = buckets.take("a", start).unwrap_err();
        assert_eq!((wait, TryAgainIn(wait).seconds()), (Duration::from_millis(500), 1));
        assert_eq!(buckets.take("b", start), Ok(()), "each has its own");
        assert_eq!(buckets.take("a", start + wait), Ok(()));
        assert!(buckets.take("a", start + wait).is_err());
        // After any pause there is at most one burst.
        let later = start + Duration::from_secs(3600);
        assert_eq!((0..10).filter(|_| buckets.take("a", later).is_ok()).count(), 3);
        let free = Buckets::new(0, 0);
        assert!((0..1000).all(|_| free.take((), start).is_ok()));
    }

    #[test]
    fn buckets_do_not_pile_up() {
        let (buckets, start) = (Buckets::new(1, 1), Instant::now());
        for n in 0..MOST_BUCKETS {
            assert_eq!(buckets.take(n, start), Ok(()));
        }
        assert_eq!(buckets.take(MOST_BUCKETS, start), Ok(()), "there is no room to bound it");
        assert_eq!(buckets.levels.lock().len(), MOST_BUCKETS);
        assert_eq!(buckets.take(MOST_BUCKETS, start + Duration::from_secs(1)), Ok(()));
        assert_eq!(buckets.levels.lock().len(), 1);
    }

    #[test]
    fn strangers_wait_and_friends_behind_the_same_address_do_not() {
        let (strangers, now) = (Strangers::new(1, 2), Instant::now());
        let [peer, neighbour, far]: [IpAddr; 3] =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(|text| text.parse().unwrap());
        strangers.is_known("good");
        for _ in 0..2 {
            assert_eq!(strangers.may_try(peer, "bad", now), Ok(()));
            strangers.refused(peer, now);
        }
        assert!(strangers.may_try(peer, "bad", now).is_err());
        assert!(strangers.may_try(neighbour, "worse", now).is_err(), "it is the same network");
        assert_eq!(strangers.may_try(peer, "good", now), Ok(()));
        assert_eq!(strangers.may_try(far, "bad", now), Ok(()));
        assert_eq!(strangers.may_try(peer, "bad", now + Duration::from_secs(1)), Ok(()));
    }
}
