//! Limits how much an unauthenticated client can make the server search for the sandbox of a signature.
//!
//! A signed URL that names no sandbox is matched against every running one, and any client may send any
//! number of them. So each peer has an allowance that failed searches use up and time restores. Peers share a
//! fixed number of slots, so memory does not grow with them.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Instant;

use coffer_core::sync::Mutex;

/// Enough that two peers seldom share a slot. A client cannot choose its slot.
const SLOTS: usize = 256;

/// Comparisons that a slot may make in advance, and how many it regains per second. A comparison costs less
/// than a microsecond.
const MOST: u32 = 100_000;
const PER_SECOND: u32 = 20_000;

#[derive(Debug)]
pub(super) struct Guesses {
    slots: Mutex<[Slot; SLOTS]>,
    keys: RandomState,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    left: u32,
    at: Instant,
}

impl Guesses {
    pub(super) fn new(now: Instant) -> Self {
        Self { slots: Mutex::new([Slot { left: MOST, at: now }; SLOTS]), keys: RandomState::new() }
    }

    /// Whether `peer` may have us search.
    pub(super) fn allows(&self, peer: IpAddr, now: Instant) -> bool {
        self.with(peer, now, |slot| slot.left > 0)
    }

    /// Records a search for `peer` that failed after this many comparisons.
    pub(super) fn failed(&self, peer: IpAddr, comparisons: usize, now: Instant) {
        let comparisons = u32::try_from(comparisons).unwrap_or(u32::MAX);
        self.with(peer, now, |slot| slot.left = slot.left.saturating_sub(comparisons));
    }

    fn with<T>(&self, peer: IpAddr, now: Instant, judge: impl FnOnce(&mut Slot) -> T) -> T {
        // Of IPv6 one customer has a whole network.
        let hash = match peer.to_canonical() {
            IpAddr::V4(peer) => self.keys.hash_one(peer),
            IpAddr::V6(peer) => self.keys.hash_one(&peer.octets()[..8]),
        };
        let mut slots = self.slots.lock();
        let slot = &mut slots[usize::from(hash.to_be_bytes()[0])];
        let passed_ms = u32::try_from(now.saturating_duration_since(slot.at).as_millis()).unwrap_or(u32::MAX);
        let regained = passed_ms.saturating_mul(PER_SECOND / 1000);
        if regained > 0 {
            *slot = Slot { left: slot.left.saturating_add(regained).min(MOST), at: now };
        }
        judge(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    #[test]
    fn failures_use_up_what_time_gives_back() {
        let start = Instant::now();
        let guesses = Guesses::new(start);
        for _ in 0..100 {
            assert!(guesses.allows(PEER, start));
            guesses.failed(PEER, 1_000, start);
        }
        assert!(!guesses.allows(PEER, start));
        assert!(guesses.allows(PEER, start + Duration::from_millis(1)));
        guesses.failed(PEER, usize::MAX, start + Duration::from_secs(3600));
        assert!(!guesses.allows(PEER, start + Duration::from_secs(3600)));
    }

    #[test]
    fn one_peer_does_not_use_up_anothers() {
        let start = Instant::now();
        let guesses = Guesses::new(start);
        guesses.failed(PEER, usize::MAX, start);
        let others = (0..100).map(|last| IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, last)));
        let shut_out = others.filter(|other| !guesses.allows(*other, start)).count();
        assert!(shut_out < 20, "{shut_out} of 100 share a slot of 256");
        // One network has one slot, however many addresses it has.
        let of_network = |last| IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last));
        guesses.failed(of_network(1), usize::MAX, start);
        assert!(!guesses.allows(of_network(2), start));
    }
}
