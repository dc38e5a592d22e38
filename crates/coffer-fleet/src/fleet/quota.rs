//! Sizes of sandboxes, and projects over quota.
//!
//! The store decides while the engine is already creating. If it refused a project recently, it is asked
//! first: a client that keeps asking then costs a query, not a sandbox that is created only to be destroyed.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use coffer_core::sync::Mutex;
use coffer_core::{LargestSize, LifetimePolicy, Limits, ProjectId, SizeWish};
use coffer_engine::NodeInfo;
use coffer_store::{Asking, Bounds, OverQuota};

use super::{CreateSpec, Fleet, FleetError};

/// How long a refusal is remembered.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Projects that were refused recently, and when.
#[derive(Debug, Default)]
pub(super) struct Full(Mutex<HashMap<ProjectId, Instant>>);

impl Full {
    fn is_suspect(&self, project: ProjectId) -> bool {
        let full = self.0.lock();
        full.get(&project).is_some_and(|at| at.elapsed() < REMEMBERED)
    }

    fn note(&self, project: ProjectId) {
        let mut full = self.0.lock();
        full.retain(|_, at| at.elapsed() < REMEMBERED);
        full.insert(project, Instant::now());
    }
}

impl Fleet {
    /// Refuses early if the store is likely to refuse.
    pub(super) async fn expect_room(
        &self,
        project: ProjectId,
        limits: &Limits,
        asking: Asking,
    ) -> Result<(), FleetError> {
        if !self.full.is_suspect(project) {
            return Ok(());
        }
        match self.store.refusal(&self.store.operator(), project, limits, asking).await? {
            Some(over) => Err(self.over_quota(project, over)),
            None => Ok(()),
        }
    }

    /// Notes that a project asked for more than its quota.
    pub(super) fn over_quota(&self, project: ProjectId, over: OverQuota) -> FleetError {
        self.full.note(project);
        self.found.over_quota.fetch_add(1, Ordering::Relaxed);
        FleetError::OverQuota(over)
    }

    /// The largest sandbox that the host can have. The default size is always allowed, also on a smaller host.
    pub fn largest_size(&self, host: &NodeInfo) -> LargestSize {
        let (any, usual) = (LargestSize::ANY, self.limits);
        let mib = |bytes: u64| bytes >> 20;
        LargestSize {
            cpu_count: host.cpu_count.unwrap_or(any.cpu_count).max(usual.cpu_count),
            memory_mib: host.memory_bytes.map_or(any.memory_mib, mib).max(usual.memory_mib),
            disk_mib: host.pool_bytes.map_or(any.disk_mib, mib).max(usual.disk_mib),
        }
    }

    /// Refuses a requested size that the host cannot have.
    pub async fn check_size(&self, size: SizeWish) -> Result<(), FleetError> {
        if size.is_none() {
            return Ok(());
        }
        Ok(size.check(&self.largest_size(&self.host().await?))?)
    }

    /// The limits of a new sandbox: the requested size, or that of what it starts from.
    ///
    /// Its disk may be smaller than the files of a snapshot: the limit is for what it writes on top of them.
    /// Saved processes rely on their processors and memory, so these stay.
    pub(super) fn limits_for(&self, spec: &CreateSpec) -> Result<Limits, FleetError> {
        let Some(base) = &spec.base else { return Ok(spec.size.over(self.limits)) };
        let (saved, limits) = (base.limits, spec.size.over(base.limits));
        if base.memory {
            for (field, asked, saved) in [
                ("cpu_count", u64::from(limits.cpu_count), u64::from(saved.cpu_count)),
                ("memory_mib", limits.memory_mib, saved.memory_mib),
            ] {
                if asked != saved {
                    return Err(FleetError::SizeOfProcesses { field, asked, saved });
                }
            }
        }
        Ok(limits)
    }

    /// The bounds on one sandbox's life.
    pub(super) fn policy_for(&self, bounds: &Bounds) -> LifetimePolicy {
        let longest = bounds.max_lifetime_s.map_or(i64::MAX, |longest| longest.saturating_mul(1000));
        let idle_ms = match bounds.idle_s {
            None => self.policy.idle_ms,
            Some(0) => None,
            Some(idle_s) => Some(idle_s.saturating_mul(1000)),
        };
        LifetimePolicy { maximum_ms: self.policy.maximum_ms.min(longest), idle_ms, ..self.policy }
    }
}
