//! Changes that keep a sandbox's state: its deadline and its network settings.

use std::sync::Arc;
use std::time::Instant;

use coffer_core::network::{GitRoute, ModelRoute};
use coffer_core::{Millis, SandboxId, StateName, TaskId};
use coffer_store::{Deadline, SandboxRow};

use super::record::{Claim, lease_from};
use super::{Fleet, FleetError, Record, Step};
use crate::network::Update;
use coffer_core::clock::now_ms;

impl Fleet {
    /// Sets the deadline of a running sandbox, earlier or later.
    pub async fn set_timeout(
        self: &Arc<Self>,
        record: Arc<Record>,
        timeout_ms: Millis,
    ) -> Result<(), FleetError> {
        let claim = record.claim(Step::Update).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            fleet.move_deadline(&claim, timeout_ms, Deadline::Exactly).await.map(drop)
        })
        .await
    }

    /// Keeps a running sandbox alive for at least `timeout_ms` more.
    pub async fn refresh(
        self: &Arc<Self>,
        record: Arc<Record>,
        timeout_ms: Millis,
    ) -> Result<(), FleetError> {
        let claim = record.claim(Step::Update).await?;
        let fleet = self.clone();
        self.carry_through(async move { fleet.extend_claimed(&claim, timeout_ms).await.map(drop) }).await
    }

    pub(super) async fn extend_claimed(
        &self,
        claim: &Claim,
        timeout_ms: Millis,
    ) -> Result<SandboxRow, FleetError> {
        // Uses the monotonic clock: the recorded deadline may look later than it is.
        let left = claim.record.live().deadline.saturating_duration_since(Instant::now()).as_millis();
        let is_later = Millis::try_from(left).is_ok_and(|left| left < timeout_ms);
        let how = if is_later { Deadline::Exactly } else { Deadline::NotBefore };
        self.move_deadline(claim, timeout_ms, how).await
    }

    async fn move_deadline(
        &self,
        claim: &Claim,
        timeout_ms: Millis,
        how: fn(Millis) -> Deadline,
    ) -> Result<SandboxRow, FleetError> {
        let record = &claim.record;
        running(record)?;
        let allowed_ms = self.allowed_ms(&record.live(), timeout_ms, Instant::now());
        let deadline = now_ms().saturating_add(allowed_ms);
        let deadline_ms = self.store.set_deadline(&self.store.operator(), record.id, how(deadline)).await?;
        record.activity.note();
        let mut live = record.live();
        let mut row = live.row.clone();
        row.lifetime.deadline_ms = deadline_ms;
        live.adopt(row.clone());
        live.pause_again = None;
        Ok(row)
    }

    /// Renews the lease of a running sandbox, and returns when it expires; `None` if it has no lease.
    pub async fn heartbeat(self: &Arc<Self>, record: Arc<Record>) -> Result<Option<Millis>, FleetError> {
        let claim = record.claim(Step::Update).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let record = &claim.record;
            let Some(lease_s) = running(record)?.bounds.lease_s else { return Ok(None) };
            let until_ms = now_ms().saturating_add(lease_s * 1000);
            fleet.store.renew_lease(&fleet.store.operator(), record.id, until_ms).await?;
            let mut live = record.live();
            live.row.lease_until_ms = Some(until_ms);
            live.lease = lease_from(Instant::now(), &live.row);
            Ok(Some(until_ms))
        })
        .await
    }

    /// Replaces the network policy of a running sandbox. The engine comes first: if it fails, nothing is
    /// recorded, and the caller may retry.
    pub async fn set_network(
        self: &Arc<Self>,
        record: Arc<Record>,
        update: Update,
    ) -> Result<(), FleetError> {
        let claim = record.claim(Step::Update).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let row = running(&claim.record)?;
            let Update { policy, outbound, allow_internet_access } = update;
            let network = row.network.updated(policy, outbound);
            let (reach, told) = fleet.reach_of(row.project, network.policy.clone()).await?;
            let reach = claim.record.git.opens(reach).map_err(|_| FleetError::Broken)?;
            fleet.engine.set_network(row.id, &reach).await?;
            fleet.note_secrets(&claim.record, network.policy.secret_names());
            claim.record.told.store(told, std::sync::atomic::Ordering::Relaxed);
            let operator = fleet.store.operator();
            fleet.store.set_network(&operator, row.id, network.clone(), allow_internet_access).await?;
            let mut live = claim.record.live();
            live.row.network = network;
            live.row.allow_internet_access = allow_internet_access;
            Ok(())
        })
        .await
    }
}

impl Fleet {
    /// Forgets a task that was deleted, as the store did.
    pub fn forget_task(&self, task: TaskId) {
        for record in self.everyone() {
            let mut live = record.live();
            if live.row.task == Some(task) {
                live.row.task = None;
            }
        }
    }

    /// The sandboxes whose gate has routes.
    pub fn with_gates(&self) -> Vec<SandboxId> {
        let leads = |record: &Arc<Record>| (!record.git.is_empty()).then_some(record.id);
        self.everyone().iter().filter_map(leads).collect()
    }

    /// Waits until the gate of some sandbox may be outdated.
    pub async fn gates_outdated(&self) {
        self.gates.notified().await;
    }

    /// Sets the repositories of a sandbox's gate. If the engine fails, the old ones stay, without a push
    /// window.
    pub async fn set_git(
        self: &Arc<Self>,
        record: Arc<Record>,
        routes: Vec<GitRoute>,
    ) -> Result<(), FleetError> {
        let claim = record.claim(Step::Update).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let record = &claim.record;
            let before = record.git.replace(routes);
            let told = fleet.tell(record).await;
            if told.is_err() {
                record
                    .git
                    .replace(before.into_iter().map(|route| GitRoute { push: None, ..route }).collect());
                record.told.store(0, std::sync::atomic::Ordering::Relaxed);
            }
            told
        })
        .await
    }
}

impl Fleet {
    /// Opens or closes a sandbox's way to the model gateway. If the engine fails, closing is repeated later, and
    /// opening is undone.
    pub async fn set_models(
        self: &Arc<Self>,
        record: Arc<Record>,
        route: Option<ModelRoute>,
    ) -> Result<(), FleetError> {
        let claim = record.claim(Step::Update).await?;
        let fleet = self.clone();
        self.carry_through(async move {
            let record = &claim.record;
            let opens = route.is_some();
            let before = record.git.replace_model(route);
            let told = fleet.tell(record).await;
            if told.is_err() {
                if opens {
                    record.git.replace_model(before);
                }
                record.told.store(0, std::sync::atomic::Ordering::Relaxed);
            }
            told
        })
        .await
    }
}

/// Settings apply only to running sandboxes: E2B answers "not found" for others, paused ones included.
fn running(record: &Record) -> Result<SandboxRow, FleetError> {
    let row = record.row();
    if row.state.name() == StateName::Running { Ok(row) } else { Err(FleetError::NotFound) }
}
