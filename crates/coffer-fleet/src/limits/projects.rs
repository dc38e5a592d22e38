//! The settings of projects, in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::settings::Period;
use coffer_core::sync::RwLock;
use coffer_core::{Millis, OnTimeout, ProjectId};
use coffer_store::{ProjectSettings, Retention, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::follow::Follower;

use super::settings::{LimitSettings, RetentionSettings};

/// How soon a change on another server is noticed.
const LOOK: Duration = Duration::from_secs(2);
/// How far back each check looks: clocks of servers differ, and a commit takes a while.
const OVERLAP_MS: Millis = 60_000;

#[derive(Debug)]
pub(super) struct Projects {
    known: RwLock<HashMap<ProjectId, Arc<ProjectSettings>>>,
}

impl Projects {
    pub(super) async fn load(store: &Store) -> Result<Self, StoreError> {
        let all = store.settings_changed_since(&store.operator(), 0).await?;
        let known = all.into_iter().map(|row| (row.project, Arc::new(row.settings))).collect();
        Ok(Self { known: RwLock::new(known) })
    }

    pub(super) fn of(&self, project: ProjectId) -> Arc<ProjectSettings> {
        let known = self.known.read();
        known.get(&project).cloned().unwrap_or_default()
    }

    /// Projects with their own settings.
    pub(super) fn all(&self) -> Vec<ProjectId> {
        self.known.read().keys().copied().collect()
    }

    pub(super) fn set(&self, project: ProjectId, settings: ProjectSettings) {
        let mut known = self.known.write();
        known.insert(project, Arc::new(settings));
    }
}

/// Keeps the settings up to date until `stop`.
pub(super) async fn follow(projects: Arc<Projects>, store: Store, stop: CancellationToken) {
    let late = "settings of projects are not followed for a moment";
    let (mut follower, mut looked) = (Follower::new(late, LOOK, stop), Ok(()));
    let mut since = 0;
    while follower.again(looked).await {
        looked = store.settings_changed_since(&store.operator(), since).await.map(|changed| {
            for row in changed {
                since = since.max(row.changed_ms - OVERLAP_MS);
                projects.set(row.project, row.settings);
            }
        });
    }
}

/// The settings in force for a project: its own, with the server's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InForce {
    pub timeout_s: i64,
    /// `None` is the server's default.
    pub idle_s: Option<i64>,
    pub max_lifetime_s: Option<i64>,
    pub on_timeout: OnTimeout,
    pub retention: Kept,
}

/// How long records are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Output is compressed after this.
    pub archive_logs: Period,
    pub logs: Period,
    pub records: Period,
    pub events: Period,
    pub audit: Period,
}

impl InForce {
    pub(super) fn new(own: &ProjectSettings, server: &LimitSettings, logs: (Period, Period)) -> Self {
        let ttl_s = server.sandbox_ttl.as_millis() / 1000;
        // The project's longest lifetime bounds the server's default.
        let timeout_s = own.timeout_s.unwrap_or(ttl_s).min(own.max_lifetime_s.unwrap_or(i64::MAX));
        Self {
            timeout_s,
            idle_s: own.idle_s,
            max_lifetime_s: own.max_lifetime_s,
            on_timeout: own.on_timeout.unwrap_or(OnTimeout::Destroy),
            retention: Kept::new(&own.retention, &server.retention, logs),
        }
    }
}

impl Kept {
    fn new(own: &Retention, server: &RetentionSettings, logs: (Period, Period)) -> Self {
        let days = |own: Option<i64>, server: Period| match own.map(u64::try_from) {
            Some(Ok(days)) => Period::days(days),
            _ => server,
        };
        Self {
            archive_logs: days(own.archive_logs_days, logs.0),
            logs: days(own.logs_days, logs.1),
            records: days(own.records_days, server.records),
            events: days(own.events_days, server.events),
            audit: days(own.audit_days, server.audit),
        }
    }
}
