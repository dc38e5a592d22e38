//! Executing the runs of tasks.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use coffer_flow::task::Workshop;
use coffer_flow::{Kind, Runner, Settings};
use coffer_store::{Slots, Store, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// `[tasks]`: how many attempts at tasks may be under way at once, over all servers of one database. Others are
/// queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskSettings {
    /// Of all projects together.
    #[schemars(range(min = 1, max = 10_000))]
    pub in_all: u32,
    /// Of each project, unless an operator gave it a quota `runs` of its own.
    #[schemars(range(min = 1, max = 10_000))]
    pub per_project: u32,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self { in_all: 16, per_project: 8 }
    }
}

/// A workshop of a test's own.
#[doc(hidden)]
#[derive(Clone)]
pub struct OtherWorkshop(pub Arc<dyn Workshop>);

impl fmt::Debug for OtherWorkshop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OtherWorkshop")
    }
}

/// The runner of this server.
#[derive(Debug)]
pub(crate) struct Tasks {
    wake: Arc<Notify>,
    runner: Mutex<Option<Runner>>,
}

impl Tasks {
    /// Takes up what was under way, and begins what is queued.
    pub(crate) async fn start(
        store: Store,
        settings: TaskSettings,
        place: Option<String>,
        kinds: Vec<Arc<dyn Kind>>,
    ) -> Result<Self, StoreError> {
        let slots = Slots { in_all: settings.in_all, per_project: settings.per_project };
        let settings = Settings { slots, ..Settings::at(place.unwrap_or_else(|| "server".into())) };
        let runner = Runner::start(store, settings, kinds).await?;
        Ok(Self { wake: runner.waker(), runner: Mutex::new(Some(runner)) })
    }

    /// Has the runner look at once.
    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Leaves what is under way to whoever comes next.
    pub(crate) async fn finish(&self) {
        let runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runner) = runner {
            runner.stop().await;
        }
    }
}
