//! Caches answers, separately for each sandbox: no sandbox can learn what another asked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use coffer_core::network::HostName;
use coffer_core::sync::Mutex;

use super::{Family, Found};

const MOST_ENTRIES: usize = 512;
/// Also cache a name with a lifetime of zero, so that a question and its connection do not look it up twice.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: Mutex<HashMap<(HostName, Family), Kept>>,
}

#[derive(Debug)]
struct Kept {
    addresses: Vec<IpAddr>,
    until: Instant,
}

impl Cache {
    pub(crate) fn find(&self, name: &HostName, family: Family) -> Option<Found> {
        let now = Instant::now();
        let entries = self.entries.lock();
        let Kept { addresses, until } = entries.get(&(name.clone(), family))?;
        let ttl = until.checked_duration_since(now)?;
        Some(Found { addresses: addresses.clone(), ttl })
    }

    pub(crate) fn keep(&self, name: &HostName, family: Family, found: &Found) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        if entries.len() >= MOST_ENTRIES {
            entries.retain(|_, kept| kept.until > now);
        }
        if entries.len() >= MOST_ENTRIES {
            entries.clear();
        }
        let kept = Kept { addresses: found.addresses.clone(), until: now + found.ttl.max(SHORTEST) };
        entries.insert((name.clone(), family), kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_small_and_forgets() {
        let cache = Cache::default();
        let found = |ttl| Found { addresses: vec!["1.1.1.1".parse().unwrap()], ttl };
        for n in 0..3 * MOST_ENTRIES {
            cache.keep(&format!("n{n}.com").parse().unwrap(), Family::V4, &found(Duration::from_secs(60)));
        }
        assert!(cache.entries.lock().len() <= MOST_ENTRIES);
        let last: HostName = format!("n{}.com", 3 * MOST_ENTRIES - 1).parse().unwrap();
        assert_eq!(cache.find(&last, Family::V4).unwrap().addresses, found(SHORTEST).addresses);
        assert_eq!(cache.find(&last, Family::V6), None);
        cache.entries.lock().get_mut(&(last.clone(), Family::V4)).unwrap().until =
            Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(cache.find(&last, Family::V4), None);
    }
}
