//! Runs the runner of tasks and competitions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::settings::Period;
use coffer_core::sync::Mutex;
use coffer_flow::compete::Arena;
use coffer_flow::task::Workshop;
use coffer_flow::{Kind, Run, Runner, Settings, Stop};
use coffer_store::{RunRow, RunState, Slots, Store, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::spans;
use coffer_telemetry::Telemetry;

/// How long a stop waits for traces of runs that have just ended.
const LAST_TRACES: Duration = Duration::from_secs(5);

/// `[tasks]`: how many attempts at tasks may run at once, over all servers of one database; others are queued. And how
/// long one waits for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskSettings {
    /// In all projects together.
    #[schemars(range(min = 1, max = 10_000))]
    pub in_all: u32,
    /// In each project, unless an operator set its quota `runs`.
    #[schemars(range(min = 1, max = 10_000))]
    pub per_project: u32,
    /// How long an attempt that is at its budget, or was interrupted, waits for a person. Then what is there becomes a draft of a
    /// pull request.
    pub answer_within: Period,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self { in_all: 16, per_project: 8, answer_within: Period::hours(24) }
    }
}

/// A test's own workshop.
#[doc(hidden)]
#[derive(Clone)]
pub struct OtherWorkshop(pub Arc<dyn Workshop>);

impl fmt::Debug for OtherWorkshop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtherWorkshop")
    }
}

/// A test's own arena.
#[doc(hidden)]
#[derive(Clone)]
pub struct OtherArena(pub Arc<dyn Arena>);

impl fmt::Debug for OtherArena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtherArena")
    }
}

/// A kind of runs whose starts and ends are counted.
struct Counted {
    kind: Arc<dyn Kind>,
    telemetry: Arc<Telemetry>,
    store: Store,
    telling: TaskTracker,
}

#[async_trait::async_trait]
impl Kind for Counted {
    fn name(&self) -> &'static str {
        self.kind.name()
    }

    async fn execute(&self, run: &mut Run) -> Result<serde_json::Value, Stop> {
        if run.is_new() {
            self.telemetry.metrics.run_started(self.name());
        }
        self.kind.execute(run).await
    }

    fn ended(&self, run: &RunRow, how: RunState) {
        self.telemetry.metrics.run_ended(self.name(), how);
        self.kind.ended(run, how);
        if self.telemetry.traces.are_on() {
            let (store, telemetry, id) = (self.store.clone(), self.telemetry.clone(), run.id);
            self.telling.spawn(async move { spans::tell(&store, &telemetry, id).await });
        }
    }
}

/// The runner of this server.
#[derive(Debug)]
pub struct Tasks {
    wake: Arc<Notify>,
    runner: Mutex<Option<Runner>>,
    /// Traces of runs that are being put together.
    telling: TaskTracker,
}

impl Tasks {
    /// Continues interrupted runs, and starts queued ones.
    pub async fn start(
        store: Store,
        settings: TaskSettings,
        place: Option<String>,
        kinds: Vec<Arc<dyn Kind>>,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, StoreError> {
        let telling = TaskTracker::new();
        let counted = |kind| -> Arc<dyn Kind> {
            let (telemetry, store, telling) = (telemetry.clone(), store.clone(), telling.clone());
            Arc::new(Counted { kind, telemetry, store, telling })
        };
        let kinds: Vec<Arc<dyn Kind>> = kinds.into_iter().map(counted).collect();
        let slots = Slots { in_all: settings.in_all, per_project: settings.per_project };
        let settings = Settings { slots, ..Settings::at(place.unwrap_or_else(|| "server".into())) };
        let runner = Runner::start(store, settings, kinds).await?;
        Ok(Self { wake: runner.waker(), runner: Mutex::new(Some(runner)), telling })
    }

    /// Makes the runner check at once.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Leaves runs in progress to the next server.
    pub async fn finish(&self) {
        let runner = self.runner.lock().take();
        if let Some(runner) = runner {
            runner.stop().await;
        }
        self.telling.close();
        let _ = tokio::time::timeout(LAST_TRACES, self.telling.wait()).await;
    }
}
