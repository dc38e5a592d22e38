//! All sandboxes of a machine.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};

use coffer_core::network::{Policy, Refusals, Traffic, Walls};
use coffer_core::sync::Mutex;
use coffer_core::{ProjectId, SandboxId};
use coffer_shares::{Shares, pool};
use tokio::net::{TcpListener, UdpSocket};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connection;
use crate::dns::{self, Resolver};
use crate::inject::Authority;
use crate::sandbox::{Sandbox, Standing};
use crate::settings::Settings;
use crate::socket::{self, Dialer, HostDialer, OriginalDestination, Redirected};

/// The outside world, as egress uses it; tests replace it.
#[derive(Debug, Clone)]
pub struct Seams {
    pub resolver: Arc<dyn Resolver>,
    pub dialer: Arc<dyn Dialer>,
    pub original: Arc<dyn OriginalDestination>,
}

impl Seams {
    /// This machine, with names from `resolver`.
    pub fn of_host(resolver: impl Resolver + 'static) -> Self {
        Self { resolver: Arc::new(resolver), dialer: Arc::new(HostDialer), original: Arc::new(Redirected) }
    }
}

/// The sockets that the node opened inside a sandbox's network namespace.
#[derive(Debug, Default)]
pub struct Listeners {
    /// The target of the sandbox's redirected connections.
    pub tcp: Vec<TcpListener>,
    /// The sockets for its DNS questions.
    pub dns_udp: Vec<UdpSocket>,
    pub dns_tcp: Vec<TcpListener>,
}

/// Sockets as received from the node, unchecked.
#[derive(Debug, Default)]
pub struct Descriptors {
    pub tcp: Vec<OwnedFd>,
    pub dns_udp: Vec<OwnedFd>,
    pub dns_tcp: Vec<OwnedFd>,
}

impl Listeners {
    /// Takes over sockets, and refuses any of the wrong kind. Must be called within a runtime.
    pub fn adopt(descriptors: Descriptors) -> io::Result<Self> {
        let Descriptors { tcp, dns_udp, dns_tcp } = descriptors;
        let listeners =
            |list: Vec<OwnedFd>| list.into_iter().map(socket::adopt_listener).collect::<io::Result<_>>();
        let dns_udp = dns_udp.into_iter().map(socket::adopt_datagrams).collect::<io::Result<_>>()?;
        Ok(Self { tcp: listeners(tcp)?, dns_udp, dns_tcp: listeners(dns_tcp)? })
    }
}

/// This sandbox is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sandbox {0} has no network")]
pub struct NoSuchSandbox(pub SandboxId);

/// Why a sandbox was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    #[error("sandbox {0} already has a network")]
    AlreadyThere(SandboxId),
    #[error("{0} sandboxes have a network, which is the maximum")]
    Full(usize),
}

/// Serves the outbound connections and DNS questions of all sandboxes of a machine.
#[derive(Debug)]
pub struct Egress {
    settings: Arc<Settings>,
    seams: Seams,
    walls: Mutex<Arc<Walls>>,
    standing: Standing,
    connections: Shares<Option<ProjectId>>,
    sandboxes: Mutex<HashMap<SandboxId, Arc<Sandbox>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Egress {
    /// Creates an egress without sandboxes; `walls` know the machine's own addresses.
    pub fn new(settings: Settings, seams: Seams, walls: Walls) -> Self {
        Self {
            connections: Shares::with_total(pool::EGRESS_CONNECTIONS, settings.connections_in_all),
            settings: Arc::new(settings),
            seams,
            walls: Mutex::new(Arc::new(walls)),
            standing: Standing::default(),
            sandboxes: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Sandbox>>> {
        self.sandboxes.lock()
    }

    fn walls(&self) -> MutexGuard<'_, Arc<Walls>> {
        self.walls.lock()
    }

    fn find(&self, id: SandboxId) -> Result<Arc<Sandbox>, NoSuchSandbox> {
        self.sandboxes().get(&id).cloned().ok_or(NoSuchSandbox(id))
    }

    /// Starts serving a sandbox. Must be called within a runtime.
    pub fn add(&self, id: SandboxId, policy: Policy, listeners: Listeners) -> Result<(), NotAdded> {
        let mut sandboxes = self.sandboxes();
        let count = sandboxes.len();
        let sandbox = match sandboxes.entry(id) {
            Entry::Occupied(_) => return Err(NotAdded::AlreadyThere(id)),
            Entry::Vacant(_) if count >= self.settings.sandboxes => return Err(NotAdded::Full(count)),
            Entry::Vacant(place) => {
                let (settings, walls) = (Arc::clone(&self.settings), Arc::clone(&self.walls()));
                let stop = self.stop.child_token();
                let sandbox =
                    Sandbox::new(policy, settings, self.seams.clone(), walls, self.standing.clone(), stop);
                Arc::clone(place.insert(Arc::new(sandbox)))
            }
        };
        drop(sandboxes);
        let Listeners { tcp, dns_udp, dns_tcp } = listeners;
        for listener in tcp {
            let connections = self.connections.clone();
            let tasks = self.tasks.clone();
            self.tasks.spawn(connection::serve(Arc::clone(&sandbox), listener, connections, tasks));
        }
        for socket in dns_udp {
            self.tasks.spawn(dns::serve_udp(Arc::clone(&sandbox), socket, self.tasks.clone()));
        }
        for listener in dns_tcp {
            self.tasks.spawn(dns::serve_tcp(Arc::clone(&sandbox), listener, self.tasks.clone()));
        }
        Ok(())
    }

    /// Stops serving a sandbox and returns its traffic.
    pub fn remove(&self, id: SandboxId) -> Result<Traffic, NoSuchSandbox> {
        let sandbox = self.sandboxes().remove(&id).ok_or(NoSuchSandbox(id))?;
        sandbox.stop.cancel();
        Ok(sandbox.traffic())
    }

    /// Replaces the policy and returns how many open connections it cut.
    ///
    /// When this returns, no connection that the new policy forbids is open or will be opened.
    pub fn replace_policy(&self, id: SandboxId, policy: Policy) -> Result<usize, NoSuchSandbox> {
        Ok(self.find(id)?.replace_policy(policy))
    }

    /// Replaces the walls, for example when the machine has a new address.
    pub fn replace_walls(&self, walls: Walls) {
        let walls = Arc::new(walls);
        // First for new sandboxes: those added before are updated below.
        *self.walls() = Arc::clone(&walls);
        for sandbox in self.sandboxes().values() {
            sandbox.replace_walls(Arc::clone(&walls));
        }
    }

    /// Replaces the certificate authority.
    pub fn replace_authority(&self, authority: Authority) {
        *self.standing.write() = Some(Arc::new(authority));
    }

    /// The current policy.
    pub fn policy(&self, id: SandboxId) -> Result<Policy, NoSuchSandbox> {
        Ok(self.find(id)?.policy().as_ref().clone())
    }

    /// The refusals of a sandbox after the one numbered `after`; 0 for all that are kept.
    pub fn refusals(&self, id: SandboxId, after: u64) -> Result<Refusals, NoSuchSandbox> {
        Ok(self.find(id)?.refusals(after))
    }

    /// The traffic of a sandbox.
    pub fn traffic(&self, id: SandboxId) -> Result<Traffic, NoSuchSandbox> {
        Ok(self.find(id)?.traffic())
    }

    /// The served sandboxes.
    pub fn list(&self) -> Vec<SandboxId> {
        self.sandboxes().keys().copied().collect()
    }

    /// Ends everything and waits until it has ended.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.sandboxes().clear();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
