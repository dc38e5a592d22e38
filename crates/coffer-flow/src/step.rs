//! One step of a run.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use coffer_core::{RunId, StepCode};
use coffer_store::{RunFailure, StepState, Unwinding};
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Stop, Why};
use crate::persist::persist;
use crate::run::{Run, Undo, Way, read, written};
use crate::{StepError, Tries};

const USUAL_BOUND: Duration = Duration::from_secs(300);

/// One start of a step's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    pub run: RunId,
    /// How often the work has begun, this time included: from the second on, its effect may already exist.
    pub number: i64,
    /// Grows whenever another runner takes the run, for systems that can compare it.
    pub fence: i64,
}

/// A step to configure; then [`run`](Self::run) it.
#[derive(Debug)]
#[must_use = "a step does nothing until it is run"]
pub struct Step<'r> {
    run: &'r mut Run,
    name: String,
    within: Duration,
    tries: Tries,
}

impl<'r> Step<'r> {
    pub(crate) fn new(run: &'r mut Run, name: String) -> Self {
        let tries = run.settings.tries;
        Self { run, name, within: USUAL_BOUND, tries }
    }

    /// How long one try may take; 5 minutes by default.
    pub fn within(mut self, bound: Duration) -> Self {
        self.within = bound;
        self
    }

    /// How often it is tried if its errors are transient.
    pub fn tries(mut self, tries: Tries) -> Self {
        self.tries = tries;
        self
    }

    /// Runs the work, unless its result is recorded; returns the result.
    pub async fn run<T, F>(self, work: impl FnMut(Start) -> F + Send) -> Result<T, Stop>
    where
        T: Serialize + DeserializeOwned + Send,
        F: Future<Output = Result<T, StepError>> + Send,
    {
        let position = self.run.enter(&self.name)?;
        self.perform(position, work).await
    }

    /// The same, with an undo. The undo gets the result of the work, or `None` if it did not return or its
    /// result cannot be read.
    pub async fn or_undo<T, F, G>(
        self,
        work: impl FnMut(Start) -> F + Send,
        undo: impl Fn(Option<T>, Unwinding) -> G + Send + Sync + 'static,
    ) -> Result<T, Stop>
    where
        T: Serialize + DeserializeOwned + Send,
        F: Future<Output = Result<T, StepError>> + Send,
        G: Future<Output = Result<(), StepError>> + Send + 'static,
    {
        let position = self.run.enter(&self.name)?;
        let known = self.run.steps.get(&self.name);
        // Register it before the work begins: it may be dropped at any await.
        let place = self.run.undos.len();
        let undone =
            known.is_some_and(|step| matches!(step.state, StepState::Undone | StepState::UndoFailed));
        let to_undo = !undone && (self.run.way == Way::Forward || known.is_some());
        if to_undo {
            self.run.undos.push(Undo {
                name: self.name.clone(),
                output: known
                    .filter(|step| step.state == StepState::Done)
                    .and_then(|step| step.output.clone()),
                within: self.within,
                work: Box::new(move |output, why| {
                    let output = output.and_then(|output| serde_json::from_value(output).ok());
                    Box::pin(undo(output, why))
                }),
            });
        }
        let Self { run, name, within, tries } = self;
        let done = Step { run: &mut *run, name, within, tries }.perform(position, work).await?;
        if to_undo && let Some(undo) = run.undos.get_mut(place) {
            undo.output = serde_json::to_value(&done).ok();
        }
        Ok(done)
    }

    async fn perform<T, F>(self, position: i64, mut work: impl FnMut(Start) -> F + Send) -> Result<T, Stop>
    where
        T: Serialize + DeserializeOwned + Send,
        F: Future<Output = Result<T, StepError>> + Send,
    {
        let Self { run, name, within, tries } = self;
        if let Some(known) = run.steps.get(&name) {
            match known.state {
                StepState::Done | StepState::Undone | StepState::UndoFailed if known.output.is_some() => {
                    return read(&name, known.output.as_ref());
                }
                // It failed permanently, and the server died before it could unwind.
                StepState::Failed if run.way == Way::Forward => {
                    let failure =
                        known.error.clone().unwrap_or_else(|| RunFailure::new(StepCode::Failed, ""));
                    return Err(Stop(Why::Failed(RunFailure { step: Some(name), ..failure })));
                }
                _ => {}
            }
        }
        if run.way == Way::Back {
            return Err(Stop(Why::Unwinding));
        }
        loop {
            let (store, hold) = (&run.store, &run.hold);
            let begun = persist(&run.alive, || store.begin_step(hold, &name, position, None)).await?;
            let start = Start { run: hold.run, number: begun.starts, fence: hold.fence };
            let error = match attempt(within, work(start)).await {
                Ok(done) => {
                    let output = written(&name, &done)?;
                    persist(&run.alive, || store.finish_step(hold, &name, &output, None)).await?;
                    return Ok(done);
                }
                Err(error) => error,
            };
            let failures = u32::try_from(begun.failures).unwrap_or(u32::MAX).saturating_add(1);
            let last = !error.transient || failures >= tries.most;
            let failure = error.failure();
            tracing::warn!("step {name} of run {} failed ({failures}): {error}", hold.run);
            persist(&run.alive, || store.fail_step(hold, &name, &failure, last)).await?;
            if last {
                return Err(Stop(Why::Failed(RunFailure { step: Some(name), ..failure })));
            }
            tokio::time::sleep(tries.pause(failures)).await;
        }
    }
}

/// Runs the work within its time limit; a panic is an error like others, but without a retry.
pub(crate) async fn attempt<T>(
    within: Duration,
    work: impl Future<Output = Result<T, StepError>>,
) -> Result<T, StepError> {
    match tokio::time::timeout(within, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(done)) => done,
        Ok(Err(panic)) => {
            let message = panic.downcast_ref::<&str>().copied().map(String::from);
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            let message = message.unwrap_or_else(|| "for no stated reason".into());
            Err(StepError::fatal(StepCode::Panicked, format!("the step panicked: {message}")))
        }
        Err(_) => Err(StepError::transient(
            StepCode::TimedOut,
            format!("the step took more than {} s", within.as_secs_f32()),
        )),
    }
}
