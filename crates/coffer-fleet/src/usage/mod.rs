//! Usage and cost of sandboxes.
//!
//! Each running sandbox has a meter in memory, which follows its state and is written to the store every few
//! seconds, with a mark up to which it was counted. The mark moves in the same transaction as the charge, so
//! nothing is counted twice. A crash loses what was not written yet, unless the sandbox keeps running: then
//! the next server counts from the mark. A sandbox that is found dead after a crash is counted only up to the
//! mark, because the time of its death is unknown.

mod budgets;
mod meter;
mod settings;

use std::collections::{HashMap, HashSet};
use std::sync::MutexGuard;

use coffer_core::sync::{Mutex, RwLock};
use coffer_core::{ProjectId, SandboxId};
use coffer_engine::Sample;
use coffer_store::{Budget, ProjectScope, SandboxRow, Store, StoreError, UsageFilter, UsageGroup, UsageMark};

pub use budgets::{first_day, news};
use meter::Meter;
pub use meter::Stop;
pub use settings::{BadUsageSetting, UsageSettings};

/// The meters of all live sandboxes, and the state of budgets.
#[derive(Debug)]
pub struct Usage {
    settings: UsageSettings,
    store: Store,
    meters: Mutex<HashMap<SandboxId, Meter>>,
    spent: RwLock<Spent>,
    /// Allows one reading at a time: marks move in order.
    reading: tokio::sync::Mutex<()>,
}

/// The state of budgets at the last check.
#[derive(Debug, Default)]
struct Spent {
    budgets: Vec<(Budget, f64)>,
    projects: HashSet<ProjectId>,
    sandboxes: HashSet<SandboxId>,
}

/// Why a sandbox may not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    #[error("the project's budget is spent")]
    Project,
    #[error("the sandbox's budget is spent")]
    Sandbox,
}

impl Usage {
    pub fn new(settings: UsageSettings, store: Store) -> Self {
        Self {
            settings,
            store,
            meters: Mutex::default(),
            spent: RwLock::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    pub const fn settings(&self) -> &UsageSettings {
        &self.settings
    }

    fn meters(&self) -> MutexGuard<'_, HashMap<SandboxId, Meter>> {
        self.meters.lock()
    }

    /// The marks of sandboxes, for [`adopt`](Self::adopt).
    pub async fn marks(&self) -> Result<HashMap<SandboxId, UsageMark>, StoreError> {
        Ok(self.store.usage_marks(&self.store.operator()).await?.into_iter().collect())
    }

    /// Adds a sandbox from before this server; [`confirm`](Self::confirm) says that it runs.
    pub fn adopt(&self, row: &SandboxRow, mark: Option<UsageMark>) {
        self.meters().insert(row.id, Meter::adopted(row, mark));
    }

    /// Confirms that all adopted sandboxes that are recorded as running do run.
    pub fn confirm(&self) {
        for meter in self.meters().values_mut() {
            meter.confirm(&self.settings);
        }
    }

    /// Counts a sandbox from now on.
    pub fn begin(&self, row: &SandboxRow) {
        self.meters().entry(row.id).or_insert_with(|| Meter::new(row)).begin();
    }

    /// A sandbox no longer runs.
    pub fn stop(&self, sandbox: SandboxId, stop: Stop) {
        if let Some(meter) = self.meters().get_mut(&sandbox) {
            meter.stop(&self.settings, stop);
        }
    }

    /// Notes the actual use of a running sandbox.
    pub fn sample(&self, sample: &Sample) {
        if let Some(meter) = self.meters().get_mut(&sample.sandbox) {
            meter.used(sample.cpu_us);
        }
    }

    /// Writes all meters to the store and returns the cost of that, in the currency.
    pub async fn read(&self) -> Result<f64, StoreError> {
        let _turn = self.reading.lock().await;
        let charges: Vec<_> = {
            let mut meters = self.meters();
            meters.iter_mut().filter_map(|(id, meter)| meter.read(*id, &self.settings)).collect()
        };
        if charges.is_empty() {
            return Ok(0.0);
        }
        let nanos: i64 =
            charges.iter().flat_map(|charge| &charge.days).map(|(_, used)| used.cost_nanos).sum();
        let counted = self.store.charge(&self.store.operator(), charges.clone()).await?;
        let marks = if counted.contains(&false) { self.marks().await? } else { HashMap::new() };
        let mut meters = self.meters();
        for (charge, counted) in charges.iter().zip(counted) {
            let mark = if counted {
                Some(charge.to.counted_to_ms)
            } else {
                // The answer to an earlier charge was lost, or another server wrote it: it is recorded.
                tracing::warn!(
                    sandbox.id = %charge.sandbox,
                    "usage of sandbox {} was already counted",
                    charge.sandbox
                );
                marks.get(&charge.sandbox).map(|mark| mark.counted_to_ms)
            };
            if let Some(meter) = meters.get_mut(&charge.sandbox) {
                meter.was_read(charge, mark);
            }
            if charge.last {
                meters.remove(&charge.sandbox);
            }
        }
        Ok(nanos as f64 / 1e9)
    }

    /// The cost of a sandbox so far, in billionths: recorded, and counted since.
    pub async fn cost_of(&self, scope: &ProjectScope, sandbox: SandboxId) -> Result<i64, StoreError> {
        // Between a charge and its mark the same amount would be counted twice.
        let _turn = self.reading.lock().await;
        let filter = UsageFilter {
            group: UsageGroup::Sandbox,
            sandbox: Some(sandbox),
            project: None,
            from_day: i64::MIN,
            to_day: i64::MAX,
            after: None,
            limit: 1,
        };
        let lines = self.store.usage(scope, &filter).await?;
        let on_record = lines.first().map_or(0, |line| line.amounts.cost_nanos);
        let pending = self.meters().get_mut(&sandbox).map_or(0, |meter| meter.pending_nanos(&self.settings));
        Ok(on_record.saturating_add(pending))
    }

    /// Checks all budgets and emits their events.
    pub async fn look_at_budgets(&self, now_ms: coffer_core::Millis) -> Result<(), StoreError> {
        let operator = self.store.operator();
        let mut spent = Spent::default();
        let mut after = None;
        loop {
            let page = self.store.budgets(&operator, after, PAGE).await?;
            after = page.last().map(|budget| budget.id);
            let is_last = page.len() < PAGE as usize;
            for budget in page {
                let first = first_day(budget.period, now_ms);
                let nanos = self.store.spent(&operator, &budget, first).await?;
                if let Some(news) = news(&budget, first, nanos, &self.settings.currency) {
                    self.store.tell_of_budget(&operator, news).await?;
                }
                let ratio = nanos as f64 / budget.terms.amount_nanos.max(1) as f64;
                if nanos >= budget.terms.amount_nanos {
                    match budget.sandbox {
                        Some(sandbox) => spent.sandboxes.insert(sandbox),
                        None => spent.projects.insert(budget.project),
                    };
                }
                spent.budgets.push((budget, ratio));
            }
            if is_last {
                break;
            }
        }
        *self.spent.write() = spent;
        Ok(())
    }

    /// Whether a sandbox, or a new one of that project, may run.
    pub fn admits(&self, project: ProjectId, sandbox: Option<SandboxId>) -> Result<(), Exhausted> {
        let spent = self.spent.read();
        if spent.projects.contains(&project) {
            Err(Exhausted::Project)
        } else if sandbox.is_some_and(|sandbox| spent.sandboxes.contains(&sandbox)) {
            Err(Exhausted::Sandbox)
        } else {
            Ok(())
        }
    }

    /// Budgets with the spent ratio of each; 1 is all.
    pub fn spending(&self) -> Vec<(Budget, f64)> {
        self.spent.read().budgets.clone()
    }
}

/// Budgets read at a time.
const PAGE: u32 = 200;
