//! Quotas, rates and retention.
//!
//! The store counts quotas, in the transaction that adds to them; this module has their defaults. Rates are
//! token buckets in this process. Settings of projects are cached in memory, so that a create need not look
//! them up; a change on another server is noticed within seconds.

mod limiter;
mod projects;
mod rate;
mod settings;
mod sweep;

use std::sync::Arc;

use coffer_core::settings::Period;
use coffer_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use limiter::{Counts, Limiter, Pace};
use projects::Projects;
pub use projects::{InForce, Kept};
pub use rate::TryAgainIn;
use rate::{Buckets, Strangers};
pub use settings::{LimitSettings, QuotaSettings, RateSettings, RetentionSettings};

impl Limiter {
    /// Reads the projects' settings, then follows them and sweeps until `stop`.
    pub async fn start(
        store: &Store,
        settings: LimitSettings,
        logs: (Period, Period),
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> Result<Arc<Self>, StoreError> {
        let rates = settings.rates;
        store.set_default_quotas(settings.quotas.in_force());
        let limiter = Arc::new(Self {
            settings,
            logs,
            projects: Arc::new(Projects::load(store).await?),
            requests: Buckets::new(rates.requests_per_s, rates.requests_burst),
            creates: Buckets::new(rates.creates_per_s, rates.creates_burst),
            strangers: Strangers::new(rates.wrong_keys_per_s, rates.wrong_keys_burst),
            counts: Counts::default(),
        });
        tasks.spawn(projects::follow(limiter.projects.clone(), store.clone(), stop.clone()));
        tasks.spawn(sweep::keep_sweeping(limiter.clone(), store.clone(), stop));
        Ok(limiter)
    }
}
