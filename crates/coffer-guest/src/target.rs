//! How a running sandbox is reached, and what its traffic does to it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use coffer_core::{ProjectId, SandboxId};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

/// What traffic does to a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
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
pub enum Route {
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
pub struct Target {
    pub sandbox: SandboxId,
    /// Whose share of pools its traffic counts in.
    pub project: ProjectId,
    /// Where its agentd answers, HTTP/1.1; other ports by `CONNECT 127.0.0.1:<port>`.
    pub socket: PathBuf,
    /// A connection to it that is open already, for the first who takes it.
    pub spare: Spare,
    /// What `e2b-traffic-access-token` must be on every port but agentd's.
    pub traffic_token: Option<String>,
    /// Replaces `Host` on every port but agentd's; `${PORT}` in it stands for the port.
    pub mask_host: Option<String>,
    /// Ports whose servers inside speak TLS, with certificates that nobody can check.
    pub https_ports: Vec<u16>,
    /// To be noted on every request and on every piece of data that passes.
    pub activity: Activity,
    /// Cancelled when the sandbox ends or pauses: open connections must then be aborted.
    pub gone: CancellationToken,
}

/// A connection to a new sandbox's agentd, over which it was told whose it is. Most are used at once, so
/// whoever comes first need not open another; the rest are not kept open for long.
#[derive(Debug, Clone, Default)]
pub struct Spare(Arc<Mutex<Option<UnixStream>>>);

impl Spare {
    const LIFE: Duration = Duration::from_secs(1);

    pub fn put(&self, connection: Option<UnixStream>) {
        let Some(connection) = connection else { return };
        *self.0.lock() = Some(connection);
        let spare = Arc::downgrade(&self.0);
        #[expect(clippy::disallowed_methods, reason = "ends after a second, and only closes a connection")]
        tokio::spawn(async move {
            tokio::time::sleep(Self::LIFE).await;
            if let Some(spare) = spare.upgrade() {
                Self(spare).take();
            }
        });
    }

    pub fn take(&self) -> Option<UnixStream> {
        self.0.lock().take()
    }
}

/// When a sandbox was last used; cheap to clone and to note.
#[derive(Clone)]
pub struct Activity {
    base: Instant,
    last_ms: Arc<AtomicI64>,
}

impl Default for Activity {
    /// Starts with a use now.
    fn default() -> Self {
        Self { base: Instant::now(), last_ms: Arc::new(AtomicI64::new(0)) }
    }
}

impl Activity {
    /// The sandbox was used just now.
    pub fn note(&self) {
        let now = i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.last_ms.fetch_max(now, Ordering::Relaxed);
    }

    /// How long ago the last use was, in milliseconds.
    pub fn idle_ms(&self) -> i64 {
        let now = i64::try_from(self.base.elapsed().as_millis()).unwrap_or(i64::MAX);
        now.saturating_sub(self.last_ms.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Activity(idle {} ms)", self.idle_ms())
    }
}
