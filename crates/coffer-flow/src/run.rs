//! A run, as its code sees it.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use coffer_core::{Millis, ProjectId, RunId, StepCode};
use coffer_store::{RunHold, RunRow, StepRow, StepState, Store, Unwinding};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::error::{Stop, Why};
use crate::persist::persist;
use crate::{Settings, StepError};

/// Most steps of a run.
const MOST_STEPS: i64 = 200;
const LONGEST_NAME: usize = 100;
/// The longest result of a step, as JSON.
const LARGEST_OUTPUT: usize = 256 * 1024;

pub(crate) type UndoWork = Box<dyn Fn(Option<Value>, Unwinding) -> UndoFuture + Send + Sync>;
type UndoFuture = Pin<Box<dyn Future<Output = Result<(), StepError>> + Send>>;

/// How to undo a step that has begun.
pub(crate) struct Undo {
    pub(crate) name: String,
    /// Its result; `None` if it did not return.
    pub(crate) output: Option<Value>,
    pub(crate) within: Duration,
    pub(crate) work: UndoWork,
}

/// The direction of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Forward,
    /// Steps are only replayed, to learn how to undo them.
    Back,
}

/// The run for its code: its input, and durable operations.
pub struct Run {
    pub(crate) store: Store,
    pub(crate) settings: Settings,
    pub(crate) hold: RunHold,
    pub(crate) row: RunRow,
    pub(crate) steps: HashMap<String, StepRow>,
    pub(crate) undos: Vec<Undo>,
    pub(crate) way: Way,
    pub(crate) alive: CancellationToken,
    used: HashSet<String>,
    position: i64,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("hold", &self.hold).field("way", &self.way).finish_non_exhaustive()
    }
}

/// The record of a timer or a wait.
#[derive(Debug, Serialize, Deserialize)]
struct Waited {
    until_ms: Millis,
    /// The payload of a signal, if one came.
    payload: Option<Value>,
}

impl Run {
    pub(crate) fn new(
        store: Store,
        settings: Settings,
        taken: coffer_store::TakenRun,
        alive: CancellationToken,
    ) -> Self {
        let way = if taken.run.unwinding.is_some() { Way::Back } else { Way::Forward };
        let steps = taken.steps.into_iter().map(|step| (step.name.clone(), step)).collect();
        Self {
            store,
            settings,
            hold: taken.hold,
            row: taken.run,
            steps,
            undos: Vec::new(),
            way,
            alive,
            used: HashSet::new(),
            position: 0,
        }
    }

    pub fn id(&self) -> RunId {
        self.hold.run
    }

    pub fn project(&self) -> ProjectId {
        self.hold.project
    }

    /// Whether no step of it was begun before.
    pub fn is_new(&self) -> bool {
        self.way == Way::Forward && self.steps.is_empty()
    }

    /// The subject of the run.
    pub fn subject(&self) -> &str {
        &self.hold.subject
    }

    /// The input of the run.
    pub fn input<T: DeserializeOwned>(&self) -> Result<T, Stop> {
        serde_json::from_value(self.row.input.clone()).map_err(|error| {
            Stop::failed(StepCode::InputUnreadable, format!("the run's input cannot be read: {error}"))
        })
    }

    /// Waits until this time, which is stored: the run holds nothing meanwhile, and survives a restart.
    pub async fn sleep_until(&mut self, name: &str, at_ms: Millis) -> Result<(), Stop> {
        self.wait(name, None, at_ms).await.map(drop)
    }

    /// Waits for this long from the first call.
    pub async fn sleep(&mut self, name: &str, time: Duration) -> Result<(), Stop> {
        let until = self
            .settings
            .clock
            .now()
            .saturating_add(Millis::try_from(time.as_millis()).unwrap_or(Millis::MAX));
        self.sleep_until(name, until).await
    }

    /// Waits for a signal of this name, or until this time; returns the signal's payload.
    pub async fn wait_for(
        &mut self,
        name: &str,
        signal: &str,
        until_ms: Millis,
    ) -> Result<Option<Value>, Stop> {
        self.wait(name, Some(signal), until_ms).await
    }

    /// The time is recorded when the wait begins, the signal when it ends.
    async fn wait(
        &mut self,
        name: &str,
        signal: Option<&str>,
        until_ms: Millis,
    ) -> Result<Option<Value>, Stop> {
        let position = self.enter(name)?;
        let known = self.steps.get(name);
        if let Some(done) = known.filter(|step| matches!(step.state, StepState::Done | StepState::Undone)) {
            let waited: Waited = read(name, done.output.as_ref())?;
            return Ok(waited.payload);
        }
        if self.way == Way::Back {
            return Err(Stop(Why::Unwinding));
        }
        let until_ms = match known {
            Some(begun) => read::<Waited>(name, begun.output.as_ref())?.until_ms,
            None => {
                let waits = written(name, &Waited { until_ms, payload: None })?;
                persist(&self.alive, || self.store.begin_step(&self.hold, name, position, Some(&waits)))
                    .await?;
                until_ms
            }
        };
        let came = match signal {
            None => None,
            Some(signal) => {
                let waiting = persist(&self.alive, || async {
                    self.store.waiting_signals(&self.hold, signal).await.map_err(Into::into)
                });
                waiting.await?.into_iter().next()
            }
        };
        if came.is_none() && self.settings.clock.now() < until_ms {
            return Err(Stop(Why::Parked { until_ms, signal: signal.map(String::from) }));
        }
        let (took, payload) = came.map(|came| (came.number, came.payload)).unzip();
        let waited = written(name, &Waited { until_ms, payload: payload.clone() })?;
        persist(&self.alive, || self.store.finish_step(&self.hold, name, &waited, took)).await?;
        Ok(payload)
    }

    /// The position of the next step, if its name is valid.
    pub(crate) fn enter(&mut self, name: &str) -> Result<i64, Stop> {
        if name.is_empty() || name.len() > LONGEST_NAME {
            return Err(Stop::failed(
                StepCode::BadStep,
                format!("a step's name has 1 to {LONGEST_NAME} characters"),
            ));
        }
        if !self.used.insert(name.to_string()) {
            return Err(Stop::failed(StepCode::BadStep, format!("the run has two steps `{name}`")));
        }
        self.position += 1;
        if self.position > MOST_STEPS {
            return Err(Stop::failed(
                StepCode::TooManySteps,
                format!("a run has at most {MOST_STEPS} steps"),
            ));
        }
        Ok(self.position)
    }
}

/// Reads a step's result from the journal.
pub(crate) fn read<T: DeserializeOwned>(name: &str, output: Option<&Value>) -> Result<T, Stop> {
    serde_json::from_value(output.cloned().unwrap_or_default()).map_err(|error| {
        Stop::failed(
            StepCode::JournalUnreadable,
            format!("the stored result of step `{name}` cannot be read: {error}"),
        )
    })
}

/// A step's result as stored.
pub(crate) fn written<T: Serialize>(name: &str, output: &T) -> Result<Value, Stop> {
    let value = serde_json::to_value(output).map_err(|error| {
        Stop::failed(
            StepCode::JournalUnwritable,
            format!("the result of step `{name}` cannot be stored: {error}"),
        )
    })?;
    // Its length as text is what the row has to hold.
    if value.to_string().len() > LARGEST_OUTPUT {
        let why = format!("step `{name}` returned more than {} KiB", LARGEST_OUTPUT / 1024);
        return Err(Stop::failed(StepCode::OutputTooLarge, why));
    }
    Ok(value)
}
