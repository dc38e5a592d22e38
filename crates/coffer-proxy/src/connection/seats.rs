//! Decides whose share of the port's connections each connection counts against.
//!
//! A new connection counts for its address, until a request on it is authenticated or reaches a sandbox; then
//! it counts for that project. When an address has used up its share, or the port is nearly full, idle
//! connections that never authenticated are closed first, so that they cannot lock out other clients.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use coffer_core::ProjectId;
use coffer_core::sync::Mutex;
use coffer_shares::{Full, Place, Shares, pool};
use tokio_util::sync::CancellationToken;

use super::busy::Busy;
use coffer_shares::{PoolSettings, network_of};

/// A port is nearly full if only this fraction of its places for unauthenticated connections is free. Then as
/// many idle ones are closed together, because a search for them costs more than closing one.
const NEARLY_FULL: usize = 16;
const MOST_TOGETHER: usize = 64;

/// All connections to the port.
#[derive(Debug)]
pub struct Seats {
    strangers: Shares<IpAddr>,
    /// Operators belong to no project.
    known: Shares<Option<ProjectId>>,
    /// Those that have not authenticated, by network, the oldest first.
    by_network: Mutex<HashMap<IpAddr, BTreeMap<u64, Arc<Seat>>>>,
    next: AtomicU64,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Seat {
    key: u64,
    busy: Busy,
    abort: CancellationToken,
    held: Mutex<Held>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "places are held until they are dropped")]
enum Held {
    Nothing,
    Stranger(IpAddr, Place<IpAddr>),
    Known(Option<ProjectId>, Place<Option<ProjectId>>),
}

/// The holder that a connection's resources count against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Holder {
    /// An address that has not authenticated, or its /64.
    Address(IpAddr),
    /// A project; operators belong to none.
    Project(Option<ProjectId>),
}

/// A connection's seat, given up when this is dropped.
#[derive(Debug, Clone)]
pub struct Taken(Arc<Guard>);

#[derive(Debug)]
struct Guard {
    seats: Arc<Seats>,
    seat: Arc<Seat>,
}

impl Seats {
    pub fn new(pools: &PoolSettings) -> Arc<Self> {
        Arc::new(Self {
            strangers: pools.shares(pool::UNAUTHENTICATED),
            known: pools.shares(pool::CONNECTIONS),
            by_network: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    /// A seat for a connection from `peer`; `abort` ends it.
    pub(crate) fn take(
        self: &Arc<Self>,
        peer: IpAddr,
        busy: Busy,
        abort: CancellationToken,
    ) -> Result<Taken, Full> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let seat = Arc::new(Seat { key, busy, abort, held: Mutex::new(Held::Nothing) });
        let taken = Taken(Arc::new(Guard { seats: self.clone(), seat }));
        taken.count_for_address(peer)?;
        Ok(taken)
    }

    fn by_network(&self) -> MutexGuard<'_, HashMap<IpAddr, BTreeMap<u64, Arc<Seat>>>> {
        self.by_network.lock()
    }

    fn forget(&self, network: IpAddr, key: u64) {
        let mut by_network = self.by_network();
        if let Some(seats) = by_network.get_mut(&network) {
            seats.remove(&key);
            if seats.is_empty() {
                by_network.remove(&network);
            }
        }
    }

    /// A place for a connection that has not authenticated; may close idle ones to free it.
    fn place(&self, network: IpAddr) -> Result<Place<IpAddr>, Full> {
        let total = self.strangers.total();
        let together = (total / NEARLY_FULL).clamp(1, MOST_TOGETHER);
        if self.strangers.in_use() + together >= total {
            self.shed(together);
        }
        self.strangers.try_take(network).or_else(|full| {
            let idle = self.by_network().get(&network).and_then(oldest_idle);
            idle.map_or(Err(full), |idle| {
                self.close(network, &idle);
                self.strangers.try_take(network)
            })
        })
    }

    /// Closes idle connections that have not authenticated, first those of the addresses with the most.
    fn shed(&self, count: usize) {
        for _ in 0..count {
            let idle = {
                let by_network = self.by_network();
                let mut networks: Vec<_> = by_network.iter().collect();
                networks.sort_by_key(|(_, seats)| std::cmp::Reverse(seats.len()));
                networks.into_iter().find_map(|(network, seats)| Some((*network, oldest_idle(seats)?)))
            };
            let Some((network, idle)) = idle else { return };
            self.close(network, &idle);
        }
    }

    fn close(&self, network: IpAddr, idle: &Seat) {
        tracing::debug!(%network, "closing an idle connection that never authenticated: its place is needed");
        self.forget(network, idle.key);
        // Release it before the connection itself has ended: the new connection needs the place now.
        *idle.held() = Held::Nothing;
        idle.abort.cancel();
    }
}

fn oldest_idle(seats: &BTreeMap<u64, Arc<Seat>>) -> Option<Arc<Seat>> {
    seats.values().find(|seat| !seat.busy.is()).cloned()
}

impl Seat {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }
}

impl Taken {
    /// The holder it counts for, if it still counts.
    pub fn holder(&self) -> Option<Holder> {
        match &*self.0.seat.held() {
            Held::Nothing => None,
            Held::Stranger(network, _) => Some(Holder::Address(*network)),
            Held::Known(project, _) => Some(Holder::Project(*project)),
        }
    }

    /// From now on it counts for a project, or for operators.
    pub fn count_for(&self, project: Option<ProjectId>) -> Result<(), Full> {
        let Guard { seats, seat } = &*self.0;
        if matches!(&*seat.held(), Held::Known(known, _) if *known == project) {
            return Ok(());
        }
        let place = seats.known.try_take(project)?;
        self.replace(Held::Known(project, place));
        Ok(())
    }

    /// The same for an address, as of a new connection, or of a request that came through a trusted proxy.
    pub fn count_for_address(&self, peer: IpAddr) -> Result<(), Full> {
        let Guard { seats, seat } = &*self.0;
        let network = network_of(peer);
        if matches!(&*seat.held(), Held::Stranger(known, _) if *known == network) {
            return Ok(());
        }
        let place = seats.place(network)?;
        self.replace(Held::Stranger(network, place));
        seats.by_network().entry(network).or_default().insert(seat.key, seat.clone());
        Ok(())
    }

    fn replace(&self, held: Held) {
        let Guard { seats, seat } = &*self.0;
        let before = std::mem::replace(&mut *seat.held(), held);
        if let Held::Stranger(network, _) = &before {
            seats.forget(*network, seat.key);
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let held = std::mem::replace(&mut *self.seat.held(), Held::Nothing);
        if let Held::Stranger(network, _) = &held {
            self.seats.forget(*network, self.seat.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::buffers::{Buffers, Share};
    use super::*;

    fn busy() -> Busy {
        Busy::new(Share::of(&Arc::new(Buffers::default())))
    }

    struct Connection {
        seat: Result<Taken, Full>,
        busy: Busy,
        abort: CancellationToken,
    }

    fn connect(seats: &Arc<Seats>, peer: &str) -> Connection {
        let (busy, abort) = (busy(), CancellationToken::new());
        let seat = seats.take(peer.parse().unwrap(), busy.clone(), abort.clone());
        Connection { seat, busy, abort }
    }

    /// An address may have 16 of 64.
    fn seats() -> Arc<Seats> {
        Seats::new(&PoolSettings { unauthenticated: 64, connections: 8, ..PoolSettings::default() })
    }

    #[test]
    fn an_address_that_has_its_share_loses_its_own_oldest_idle_connection() {
        let seats = seats();
        let other = connect(&seats, "192.0.2.1");
        let mut own: Vec<_> = (0..16).map(|last| connect(&seats, &format!("2001:db8::{last:x}"))).collect();
        own[0].busy.begin();
        let next = connect(&seats, "2001:db8::ffff");
        assert!(next.seat.is_ok());
        assert!(!own[0].abort.is_cancelled(), "it is being answered");
        assert!(own[1].abort.is_cancelled() && !own[2].abort.is_cancelled(), "the oldest idle one goes");
        assert!(!other.abort.is_cancelled());
        own.iter().chain([&next]).for_each(|connection| connection.busy.begin());
        assert!(connect(&seats, "2001:db8::1").seat.is_err(), "all of its share is in use");
        assert!(connect(&seats, "2001:db8:0:1::1").seat.is_ok(), "another /64 is another peer");
        own.clear();
        drop((next, other));
        assert_eq!((seats.strangers.in_use(), seats.by_network().len()), (0, 0));
    }

    #[test]
    fn a_port_that_is_nearly_full_closes_idle_strangers_first() {
        let seats = seats();
        let known: Vec<_> = (0..4).map(|_| connect(&seats, "192.0.2.1")).collect();
        let project = ProjectId::generate();
        for connection in &known {
            connection.seat.as_ref().unwrap().count_for(Some(project)).unwrap();
        }
        let crowd: Vec<_> = (0..200).map(|last| connect(&seats, &format!("198.51.100.{last}"))).collect();
        assert!(crowd.iter().all(|connection| connection.seat.is_ok()), "each new one finds a place");
        assert!(crowd.iter().any(|connection| connection.abort.is_cancelled()));
        assert!(known.iter().all(|connection| !connection.abort.is_cancelled()), "these have authenticated");
        // A project has half of the places.
        let full = connect(&seats, "192.0.2.1").seat.unwrap().count_for(Some(project)).unwrap_err();
        assert_eq!(full.pool.name, "connections");
        connect(&seats, "192.0.2.1").seat.unwrap().count_for(Some(ProjectId::generate())).unwrap();
    }

    #[test]
    fn a_connection_of_a_trusted_proxy_counts_for_whom_it_carries() {
        let seats = seats();
        let proxy = connect(&seats, "127.0.0.1");
        let seat = proxy.seat.as_ref().unwrap();
        seat.count_for_address("203.0.113.9".parse().unwrap()).unwrap();
        let networks: Vec<_> = seats.by_network().keys().copied().collect();
        assert_eq!(networks, ["203.0.113.9".parse::<IpAddr>().unwrap()]);
        seat.count_for(None).unwrap();
        assert_eq!((seats.strangers.in_use(), seats.known.in_use()), (0, 1));
        seat.count_for_address("203.0.113.9".parse().unwrap()).unwrap();
        assert_eq!((seats.strangers.in_use(), seats.known.in_use()), (1, 0));
    }
}
