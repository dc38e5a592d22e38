//! Metrics, spans and usage of sandboxes, and enforcement of budgets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use coffer_core::{DestroyReason, Kept, Millis, SandboxState};
use coffer_engine::{EngineError, NodeInfo};
use coffer_store::{BudgetAction, SandboxRow, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Fleet, FleetError, Record, Step};
use crate::usage::Stop;
use coffer_core::chain;
use coffer_core::clock::now_ms;
use coffer_telemetry::{Active, Whose};

/// Uses that are this close count as the same in the records.
const SAME_USE_MS: Millis = 1000;

impl Record {
    /// The owner of spans about it.
    pub(super) fn whose(&self) -> Whose {
        Whose { id: self.id, project: self.project, agent: self.agent }
    }
}

impl Fleet {
    /// Begins the span of a step.
    pub(super) fn span(&self, name: &'static str, record: &Record) -> Active {
        self.telemetry.traces.step(name, &record.whose())
    }

    /// Counts a state change of a sandbox in the metrics.
    pub(super) fn account(&self, row: &SandboxRow) {
        match &row.state {
            SandboxState::Creating => {}
            SandboxState::Running => self.usage.begin(row),
            SandboxState::Paused { .. } => self.usage.stop(row.id, Stop::Paused),
            SandboxState::Terminated { reason } => {
                self.usage.stop(row.id, Stop::Ended);
                self.telemetry.metrics.ended(*reason);
                self.lived(row).set("sandbox.end", || reason.as_str().into());
            }
            SandboxState::Error { fault } => {
                self.usage.stop(row.id, Stop::Ended);
                self.telemetry.metrics.failed(fault);
                self.lived(row).fail(|| super::describe(fault));
            }
        }
    }

    fn lived(&self, row: &SandboxRow) -> Active {
        let whose = Whose { id: row.id, project: row.project, agent: row.agent };
        let mut life = self.telemetry.traces.life(&whose, row.created_ms);
        life.set("sandbox.template", || row.template_id.clone().into());
        life
    }

    /// The state and template of each live sandbox.
    pub fn census(&self) -> Vec<(&'static str, String)> {
        let of = |record: Arc<Record>| {
            let live = record.live();
            // For a sandbox from a snapshot, its base template: the number of snapshots is unbounded, and so
            // would be the labels.
            let row = &live.row;
            let template = match row.origin {
                Some(_) => super::snapshots::engine_template(row),
                None => row.template_id.clone(),
            };
            (row.state.name().as_str(), template)
        };
        self.everyone().into_iter().map(of).collect()
    }

    pub async fn engine_info(&self) -> Result<NodeInfo, EngineError> {
        self.engine.info().await
    }

    /// Records usage and enforces budgets until `stop`.
    pub(super) async fn keep_accounts(self: Arc<Self>, stop: CancellationToken) {
        let interval = Duration::from_secs(self.usage.settings().interval_s.max(1));
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            if let Err(error) = self.settle_accounts().await {
                tracing::warn!("could not record usage, trying again: {}", chain(&error));
            }
        }
    }

    /// Records usage now, and enforces budgets.
    pub async fn settle_accounts(self: &Arc<Self>) -> Result<(), StoreError> {
        let cost = self.usage.read().await?;
        self.telemetry.metrics.cost(&self.usage.settings().currency, cost);
        self.record_use().await?;
        self.heed_budgets().await
    }

    /// Records when sandboxes were last used, for the next server.
    async fn record_use(&self) -> Result<(), StoreError> {
        let mut used = Vec::new();
        let mut records = Vec::new();
        for record in self.everyone() {
            let at_ms = record.last_used_ms();
            // The date of the same use may differ a little each time: the wall clock is adjusted.
            if at_ms > record.used_on_record.load(Ordering::Relaxed).saturating_add(SAME_USE_MS) {
                used.push((record.id, at_ms));
                records.push((record, at_ms));
            }
        }
        if used.is_empty() {
            return Ok(());
        }
        self.store.record_use(&self.store.operator(), used).await?;
        for (record, at_ms) in records {
            record.used_on_record.fetch_max(at_ms, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Checks budgets now, as after a change to one.
    pub async fn heed_budgets(self: &Arc<Self>) -> Result<(), StoreError> {
        self.usage.look_at_budgets(now_ms()).await?;
        for (budget, ratio) in self.usage.spending() {
            if ratio < 1.0 {
                continue;
            }
            let meant = |record: &Arc<Record>| match budget.sandbox {
                Some(sandbox) => record.id == sandbox,
                None => record.project == budget.project,
            };
            for record in self.everyone().into_iter().filter(meant) {
                if record.live().is_steady() {
                    self.stop_for_budget(record, budget.terms.action);
                }
            }
        }
        Ok(())
    }

    fn stop_for_budget(self: &Arc<Self>, record: Arc<Record>, action: BudgetAction) {
        let fleet = self.clone();
        match action {
            BudgetAction::End => {
                self.in_background(Some(record.project), async move {
                    let _ = fleet.destroy(record, DestroyReason::Budget).await;
                });
            }
            BudgetAction::Pause => {
                let Some(claim) = record.try_claim(Step::Pause) else { return };
                self.in_background(Some(record.project), async move {
                    const WHY: &str = "paused because its budget is spent";
                    let mut paused = fleet.pause_for(&claim, Kept::MemoryAndFiles, Some(WHY)).await;
                    if let Err(FleetError::Engine(EngineError::Unsupported(_))) = paused {
                        paused = fleet.pause_for(&claim, Kept::FilesOnly, Some(WHY)).await;
                    }
                    // A failed pause is tried again next time.
                    if let Err(error) = paused {
                        let id = record.id;
                        tracing::warn!(sandbox.id = %id, "sandbox {id} is over its budget but could not be paused: {}", chain(&error));
                    }
                    drop(claim);
                    fleet.heal(&record).await;
                });
            }
        }
    }
}
