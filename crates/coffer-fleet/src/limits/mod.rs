//! What callers may use, how fast they may ask, and how long records are kept.
//!
//! Quotas are counted by the store, in the transaction that adds to them; what is here are the settings they
//! begin with. Rates are token buckets in this process. Settings of projects are held in memory, so that a
//! create need not look them up, and followed: a change made on another server is heard within seconds.

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
    /// After which output is compressed, and removed.
    logs: (Period, Period),
    projects: Projects,
    requests: Buckets<KeyId>,
    creates: Buckets<KeyId>,
    strangers: Strangers,
    pub counts: Counts,
}

/// What was done about limits since the start, for whoever shows it.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests turned away for their rate, by key and by address.
    pub rate_limited: AtomicU64,
    pub sweeps: AtomicU64,
    pub failed_sweeps: AtomicU64,
    /// Rows that sweeps removed.
    pub swept_sandboxes: AtomicU64,
    pub swept_events: AtomicU64,
    pub swept_audit: AtomicU64,
}

/// What a request does, as far as rates go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Makes a sandbox, which costs more than anything else.
    Create,
    Other,
}

impl Limiter {
    /// Reads the projects' settings, and follows them and sweeps until `stop`.
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

    /// What holds for a project.
    pub fn of(&self, project: ProjectId) -> InForce {
        InForce::new(&self.projects.of(project), &self.settings, self.logs)
    }

    /// How long what is over is kept: of projects that have no settings, and of each that has.
    pub fn retentions(&self) -> Vec<(Option<ProjectId>, Kept)> {
        let usual = InForce::new(&ProjectSettings::default(), &self.settings, self.logs).retention;
        let own = self.projects.all().into_iter().map(|project| (Some(project), self.of(project).retention));
        std::iter::once((None, usual)).chain(own).collect()
    }

    /// Takes over what was just set here.
    pub fn set(&self, project: ProjectId, settings: ProjectSettings) {
        self.projects.set(project, settings);
    }

    /// Counts a request of a good key.
    pub fn admit(&self, key: KeyId, shown: &str, pace: Pace) -> Result<(), TryAgainIn> {
        let now = Instant::now();
        self.strangers.is_known(shown);
        let admitted = match pace {
            Pace::Create => self.creates.take(key, now),
            Pace::Other => self.requests.take(key, now),
        };
        self.counted(admitted)
    }

    /// Whether a key that nobody has shown yet may be looked up for this address.
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
