//! Quotas, rates and retention.
//!
//! The store counts quotas, in the transaction that adds to them; this module has their defaults. Rates are
//! token buckets in this process. Settings of projects are cached in memory, so that a create need not look
//! them up; a change on another server is noticed within seconds.

mod projects;
mod rate;
mod settings;
mod sweep;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use coffer_core::settings::Period;
use coffer_core::{KeyId, ProjectId};
use coffer_store::{ProjectSettings, Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use projects::Projects;
pub use projects::{InForce, Kept};
pub use rate::TryAgainIn;
use rate::{Buckets, Strangers};
pub use settings::{LimitSettings, QuotaSettings, RateSettings, RetentionSettings};

/// Keeps callers within their limits.
#[derive(Debug)]
pub struct Limiter {
    settings: LimitSettings,
    /// When output is compressed, and when it is deleted.
    logs: (Period, Period),
    projects: Projects,
    requests: Buckets<KeyId>,
    creates: Buckets<KeyId>,
    strangers: Strangers,
    pub counts: Counts,
}

/// Counters of limits since the start, for metrics.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests refused for their rate, by key and by address.
    pub rate_limited: AtomicU64,
    pub sweeps: AtomicU64,
    pub failed_sweeps: AtomicU64,
    /// Rows that sweeps deleted.
    pub swept_sandboxes: AtomicU64,
    pub swept_events: AtomicU64,
    pub swept_audit: AtomicU64,
}

/// The kind of a request for rate limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Creates a sandbox, which costs more than anything else.
    Create,
    Other,
}

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
            projects: Projects::load(store).await?,
            requests: Buckets::new(rates.requests_per_s, rates.requests_burst),
            creates: Buckets::new(rates.creates_per_s, rates.creates_burst),
            strangers: Strangers::new(rates.wrong_keys_per_s, rates.wrong_keys_burst),
            counts: Counts::default(),
        });
        tasks.spawn(projects::follow(limiter.clone(), store.clone(), stop.clone()));
        tasks.spawn(sweep::keep_sweeping(limiter.clone(), store.clone(), stop));
        Ok(limiter)
    }

    /// The settings in force for a project.
    pub fn of(&self, project: ProjectId) -> InForce {
        InForce::new(&self.projects.of(project), &self.settings, self.logs)
    }

    /// Retention of projects without own settings, and of each with them.
    pub fn retentions(&self) -> Vec<(Option<ProjectId>, Kept)> {
        let usual = InForce::new(&ProjectSettings::default(), &self.settings, self.logs).retention;
        let own = self.projects.all().into_iter().map(|project| (Some(project), self.of(project).retention));
        std::iter::once((None, usual)).chain(own).collect()
    }

    /// Caches settings that were just changed here.
    pub fn set(&self, project: ProjectId, settings: ProjectSettings) {
        self.projects.set(project, settings);
    }

    /// Counts a request with a valid key.
    pub fn admit(&self, key: KeyId, shown: &str, pace: Pace) -> Result<(), TryAgainIn> {
        let now = Instant::now();
        self.strangers.is_known(shown);
        let admitted = match pace {
            Pace::Create => self.creates.take(key, now),
            Pace::Other => self.requests.take(key, now),
        };
        self.counted(admitted)
    }

    /// Whether an unknown key may be looked up for this address.
    pub fn may_try(&self, peer: IpAddr, shown: &str) -> Result<(), TryAgainIn> {
        self.counted(self.strangers.may_try(peer, shown, Instant::now()))
    }

    /// Counts a wrong key.
    pub fn refused(&self, peer: IpAddr) {
        self.strangers.refused(peer, Instant::now());
    }

    fn counted(&self, admitted: Result<(), TryAgainIn>) -> Result<(), TryAgainIn> {
        if admitted.is_err() {
            self.counts.rate_limited.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }
}
