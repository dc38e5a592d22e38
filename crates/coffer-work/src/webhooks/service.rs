//! The webhook service: what its parts share.

use std::sync::Arc;
use std::time::Duration;

use coffer_core::ProjectId;
use coffer_fleet::output::Output;
use coffer_shares::Shares;
use coffer_store::Store;
use coffer_telemetry::Telemetry;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::settings::WebhookSettings;
use super::target::{BadTarget, Target};

/// How often each part looks for work that it was not told of.
pub(super) const LOOK: Duration = Duration::from_millis(500);

/// The webhook service of this server.
#[derive(Debug)]
pub struct Webhooks {
    pub(super) store: Store,
    pub(super) output: Arc<Output>,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) settings: WebhookSettings,
    /// The holder of this server's claims.
    pub(super) holder: String,
    /// There may be deliveries to send.
    pub(super) wake: Notify,
    /// A deleted webhook still has its log.
    pub(super) removed: Notify,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Pools for deliveries to working webhooks, and to failing ones.
    pub(super) sends: Shares<ProjectId>,
    pub(super) retries: Shares<ProjectId>,
}

impl Webhooks {
    /// Checks a webhook's URL against what the operator allows.
    pub fn target(&self, url: &str) -> Result<Target, BadTarget> {
        Target::parse(url, self.settings.reach())
    }

    /// Makes the sender check at once.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Makes the log of deleted webhooks be deleted soon.
    pub fn clear(&self) {
        self.removed.notify_one();
    }

    /// Waits for deliveries in progress, within `patience`.
    pub async fn finish(&self, patience: Duration) {
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::warn!("webhook deliveries in progress will be sent again");
        }
    }
}
