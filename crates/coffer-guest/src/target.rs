//! How a running sandbox is reached, and the effect of traffic on it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use coffer_core::{ProjectId, SandboxId};
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

/// The effect of traffic on a paused sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// Resumes it, if its settings say so.
    ByPolicy,
    /// Leaves it paused: the client only asks whether it is up. SDKs do that by themselves when a stream
    /// breaks, as at a pause, and would undo every pause.
    Never,
    /// Leaves it paused, and does not count as activity: the client polls, and would keep it from ever being
    /// idle.
    LooksOn,
}

/// The target of traffic, or why there is none.
#[derive(Debug, Clone)]
pub enum Route {
    Running(Target),
    /// Unknown, destroyed, failed, or paused without auto-resume: 502.
    NotFound,
    /// A pause or resume is in progress: 409.
    Transitioning,
    /// It could be resumed, but there is no room for it now: 429.
    Busy,
}

/// A running sandbox, as the proxy needs it.
#[derive(Debug, Clone)]
pub struct Target {
    pub sandbox: SandboxId,
    /// The project whose share of pools its traffic counts against.
    pub project: ProjectId,
    /// The socket of its agentd, HTTP/1.1; other ports by `CONNECT 127.0.0.1:<port>`.
    pub socket: PathBuf,
    /// An open connection to it, for the first caller that takes it.
    pub spare: Spare,
    /// The required `e2b-traffic-access-token` on every port but agentd's.
    pub traffic_token: Option<String>,
    /// Replaces `Host` on every port but agentd's; `${PORT}` in it stands for the port.
    pub mask_host: Option<String>,
    /// Ports whose servers inside speak TLS, with certificates that cannot be verified.
    pub https_ports: Vec<u16>,
    /// Note every request and every piece of data here.
    pub activity: Activity,
    /// Cancelled when the sandbox ends or pauses: open connections must then be aborted.
    pub gone: CancellationToken,
}

/// The connection over which a new sandbox's agentd was initialised. Most sandboxes are used at once, so the
/// first caller can reuse it; otherwise it is closed soon.
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

    /// Whether it was used since the first use, which is assumed.
    pub fn is_noted(&self) -> bool {
        self.last_ms.load(Ordering::Relaxed) > 0
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
