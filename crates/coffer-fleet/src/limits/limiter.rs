//! The limiter: what it asks and counts.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use coffer_core::settings::Period;
use coffer_core::{KeyId, ProjectId};
use coffer_store::ProjectSettings;

use super::projects::{InForce, Kept, Projects};
use super::rate::{Buckets, Strangers, TryAgainIn};
use super::settings::LimitSettings;

/// Keeps callers within their limits.
#[derive(Debug)]
pub struct Limiter {
    pub(super) settings: LimitSettings,
    /// When output is compressed, and when it is deleted.
    pub(super) logs: (Period, Period),
    pub(super) projects: Arc<Projects>,
    pub(super) requests: Buckets<KeyId>,
    pub(super) creates: Buckets<KeyId>,
    pub(super) strangers: Strangers,
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
