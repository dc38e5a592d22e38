//! Between the sandbox traffic proxy and the rest of the server.
//!
//! The proxy asks a [`Directory`] where traffic for a sandbox goes; of projects it knows
//! only whose share of pools traffic counts in, and nothing of states or the engine. What it may do to the client's own connection is in [`Client`], which
//! the listener puts into every request's extensions.
//!
//! What the listener expects of the proxy:
//!
//! ```text
//! Proxy::new(directory: Arc<dyn Directory>, gate: Arc<dyn Gate>, pools: &PoolSettings) -> Proxy
//! Proxy::claims(&self, request: &Request<B>) -> bool      // sandbox traffic, or the REST API?
//! Proxy::serve(&self, request: Request<Incoming>) -> Response<axum::body::Body>   // async
//! ```

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use coffer_core::command::CommandPolicy;
use coffer_core::{ProjectId, SandboxId};
use coffer_shares::Full;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use crate::limits::network_of;
use crate::listen::{Holder, Taken};

/// Knows where each sandbox's traffic goes.
#[async_trait]
pub(crate) trait Directory: Send + Sync + fmt::Debug {
    /// Finds where traffic for `sandbox` goes. Any text is fine as `sandbox`; what is not an id is
    /// not found.
    async fn route(&self, sandbox: &str, wake: Wake) -> Route;

    /// Running sandboxes with an access token, for signed URLs that name no sandbox.
    fn secured(&self) -> Vec<(SandboxId, String)>;
}

/// Knows which commands may be started. Asked only about requests that could start one.
#[async_trait]
pub(crate) trait Gate: Send + Sync + fmt::Debug {
    /// What to ask before a command is started in a sandbox; none where everything may be.
    fn guard(&self, sandbox: SandboxId) -> Option<Guard>;

    /// A client of the sandbox was refused a command.
    async fn refused(&self, sandbox: SandboxId, what: &RefusedCommand);

    /// A client of the sandbox, whom its token or a signature let in, read what is kept in it.
    fn read(&self, sandbox: SandboxId, action: &'static str, status: u16);
}

/// What stands before the commands of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    pub(crate) policy: Arc<CommandPolicy>,
    /// What the sandbox's clients must show: nobody else is told of the policy, or fills its log.
    pub(crate) access_token: Option<String>,
}

/// A command that was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedCommand {
    /// As far as it was understood.
    pub(crate) words: Vec<String>,
    pub(crate) why: String,
    pub(crate) rule: Option<usize>,
}

/// What traffic does to a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Wakes it, if its policy says so.
    ByPolicy,
    /// Leaves it asleep: somebody only asks whether it is up. SDKs do that by themselves when a
    /// stream breaks, as it does at a pause, and would undo every pause.
    Never,
    /// Leaves it asleep, and is no use of it where it runs: somebody looks on, again and again, and would
    /// keep it from ever being idle.
    LooksOn,
}

/// Where traffic goes, or why it goes nowhere.
#[derive(Debug, Clone)]
pub(crate) enum Route {
    Running(Target),
    /// Unknown, destroyed, failed, or paused without auto-resume: 502.
    NotFound,
    /// A pause or resume is under way: 409.
    Transitioning,
    /// It could be woken but there is no room for it now: 429.
    Busy,
}

/// A running sandbox, as traffic needs it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) sandbox: SandboxId,
    /// Whose share of pools its traffic counts in.
    pub(crate) project: ProjectId,
    /// Where its agentd answers, HTTP/1.1; other ports by `CONNECT 127.0.0.1:<port>`.
    pub(crate) socket: PathBuf,
    /// A connection to it that is open already, for the first who takes it.
    pub(crate) spare: Spare,
    /// What `e2b-traffic-access-token` must be on every port but agentd's.
    pub(crate) traffic_token: Option<String>,
    /// Replaces `Host` on every port but agentd's; `${PORT}` in it stands for the port.
    pub(crate) mask_host: Option<String>,
    /// Ports whose servers inside speak TLS, with certificates that nobody can check.
    pub(crate) https_ports: Vec<u16>,
    /// To be noted on every request and on every piece of data that passes.
    pub(crate) activity: Activity,
    /// Cancelled when the sandbox ends or pauses: open connections must then be aborted.
    pub(crate) gone: CancellationToken,
}

/// A connection to a new sandbox's agentd, over which it was told whose it is. Most are used at once, so
/// whoever comes first need not open another; the rest are not kept open for long.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Option<UnixStream>>>);

impl Spare {
    const LIFE: Duration = Duration::from_secs(1);

    pub(crate) fn put(&self, connection: Option<UnixStream>) {
        let Some(connection) = connection else { return };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        let spare = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            tokio::time::sleep(Self::LIFE).await;
            if let Some(spare) = spare.upgrade() {
                Self(spare).take();
            }
        });
    }

    pub(crate) fn take(&self) -> Option<UnixStream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// When a sandbox was last used; cheap to clone and to note.
#[derive(Clone)]
pub(crate) struct Activity {
    base: Instant,
    last_ms: Arc<AtomicI64>,
}

impl Activity {
    /// Starts with a use now.
    pub(crate) fn new() -> Self {
        Self { base: Instant::now(), last_ms: Arc::new(AtomicI64::new(0)) }
    }

    /// The sandbox was used just now.
    pub(crate) fn note(&self) {
        let now = i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.last_ms.fetch_max(now, Ordering::Relaxed);
    }

    /// How long ago the last use was, in milliseconds.
    pub(crate) fn idle_ms(&self) -> i64 {
        let now = i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX);
        now.saturating_sub(self.last_ms.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Activity(idle {} ms)", self.idle_ms())
    }
}

/// The client's connection, in the extensions of every request.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) peer: SocketAddr,
    abort: CancellationToken,
    midway: Midway,
    seat: Option<Taken>,
}

impl Client {
    pub(crate) fn new(peer: SocketAddr, abort: CancellationToken, midway: Midway) -> Self {
        Self { peer, abort, midway, seat: None }
    }

    /// The same, with its place among the port's connections.
    pub(crate) fn seated(self, seat: Taken) -> Self {
        Self { seat: Some(seat), ..self }
    }

    /// The same for a request that a trusted proxy passed on for `sender`; the connection counts for it.
    pub(crate) fn sent_by(&self, sender: IpAddr) -> Result<Self, Full> {
        if let Some(seat) = &self.seat {
            seat.count_for_address(sender)?;
        }
        let peer = if sender == self.peer.ip() { self.peer } else { SocketAddr::new(sender, 0) };
        Ok(Self { peer, ..self.clone() })
    }

    /// Whose share counts what its requests cause.
    pub(crate) fn holder(&self) -> Holder {
        let seated = self.seat.as_ref().and_then(Taken::holder);
        seated.unwrap_or_else(|| Holder::Address(network_of(self.peer.ip())))
    }

    /// From now on the connection counts for a project, or for operators, and no longer for an address.
    pub(crate) fn count_for(&self, project: Option<ProjectId>) -> Result<(), Full> {
        self.seat.as_ref().map_or(Ok(()), |seat| seat.count_for(project))
    }

    /// As long as this is held, what the client sends belongs to the request that it is at, though it
    /// has its answer.
    pub(crate) fn hold_midway(&self) -> HeldMidway {
        self.midway.0.fetch_add(1, Ordering::Relaxed);
        HeldMidway(self.midway.clone())
    }

    /// Resets the connection (TCP RST), whatever is under way on it. SDKs tell a sandbox that died
    /// from a stream that ended by this. After an upgrade the connection is the proxy's: call this,
    /// then drop it.
    pub(crate) fn abort(&self) {
        self.abort.cancel();
    }
}

/// Whether a connection is in the middle of a request for somebody's sake.
#[derive(Debug, Clone, Default)]
pub(crate) struct Midway(Arc<AtomicUsize>);

impl Midway {
    pub(crate) fn is_held(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// See [`Client::hold_midway`].
#[derive(Debug)]
pub(crate) struct HeldMidway(Midway);

impl Drop for HeldMidway {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
