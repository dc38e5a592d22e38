//! One step of a run.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use coffer_core::{RunId, StepCode};
use coffer_store::{FailedTry, RunFailure, StepState, Unwinding};
use futures_util::FutureExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Stop, Why};
use crate::persist::persist;
use crate::run::{Run, Undo, UndoWork, Way, read, written};
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

/// A step to configure: say what undoes it, then [`run`](Step::run) it. A step that does not say it cannot run.
#[derive(Debug)]
#[must_use = "a step does nothing until it is run"]
pub struct Step<'r, U = Undeclared> {
    run: &'r mut Run,
    name: String,
    within: Duration,
    tries: Tries,
    undo: U,
}

/// A step that has not said yet what undoes it.
#[derive(Debug)]
pub struct Undeclared;

/// A step without an undo, as it said.
#[derive(Debug)]
pub struct NoUndo;

/// A step with an undo, which wants the result of the work.
pub struct WithUndo<T> {
    work: UndoWork,
    result: PhantomData<fn(T)>,
}

impl<T> fmt::Debug for WithUndo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithUndo").finish_non_exhaustive()
    }
}

impl Run {
    /// A step with this name, which must be unique in the run.
    pub fn step(&mut self, name: impl Into<String>) -> Step<'_> {
        let tries = self.settings.tries;
        Step { run: self, name: name.into(), within: USUAL_BOUND, tries, undo: Undeclared }
    }
}

impl<'r> Step<'r> {
    /// Declares the undo. It gets the result of the work, or `None` if the work did not return or its result
    /// cannot be read.
    pub fn undo<T, G>(
        self,
        undo: impl Fn(Option<T>, Unwinding) -> G + Send + Sync + 'static,
    ) -> Step<'r, WithUndo<T>>
    where
        T: DeserializeOwned,
        G: Future<Output = Result<(), StepError>> + Send + 'static,
    {
        let work: UndoWork = Box::new(move |output, why| {
            let output = output.and_then(|output| serde_json::from_value(output).ok());
            Box::pin(undo(output, why))
        });
        self.with(WithUndo { work, result: PhantomData })
    }

    /// Declares that there is nothing to undo: the step only looks, or the undo of an earlier step, such as the
    /// one that created the sandbox, removes what it did.
    pub fn nothing_to_undo(self) -> Step<'r, NoUndo> {
        self.with(NoUndo)
    }

    /// Declares that what the step does stays when the run is undone, for people to find: a pushed branch, a
    /// result on record.
    pub fn stays(self) -> Step<'r, NoUndo> {
        self.with(NoUndo)
    }
}

impl<'r, U> Step<'r, U> {
    fn with<V>(self, undo: V) -> Step<'r, V> {
        let Self { run, name, within, tries, .. } = self;
        Step { run, name, within, tries, undo }
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
}

impl<T: Serialize + DeserializeOwned + Send> Step<'_, WithUndo<T>> {
    /// Runs the work, unless its result is recorded; returns the result.
    pub async fn run<F>(self, work: impl FnMut(Start) -> F + Send) -> Result<T, Stop>
    where
        F: Future<Output = Result<T, StepError>> + Send,
    {
        let Self { run, name, within, tries, undo } = self;
        let position = run.enter(&name)?;
        let known = run.steps.get(&name);
        // Register it before the work begins: it may be dropped at any await.
        let place = run.undos.len();
        let undone =
            known.is_some_and(|step| matches!(step.state, StepState::Undone | StepState::UndoFailed));
        let to_undo = !undone && (run.way == Way::Forward || known.is_some());
        if to_undo {
            let output =
                known.filter(|step| step.state == StepState::Done).and_then(|step| step.output.clone());
            run.undos.push(Undo { name: name.clone(), output, within, work: undo.work });
        }
        let step = Step { run: &mut *run, name, within, tries, undo: NoUndo };
        let done = step.perform(position, work).await?;
        if to_undo && let Some(undo) = run.undos.get_mut(place) {
            undo.output = serde_json::to_value(&done).ok();
        }
        Ok(done)
    }
}

impl Step<'_, NoUndo> {
    /// Runs the work, unless its result is recorded; returns the result.
    pub async fn run<T, F>(self, work: impl FnMut(Start) -> F + Send) -> Result<T, Stop>
    where
        T: Serialize + DeserializeOwned + Send,
        F: Future<Output = Result<T, StepError>> + Send,
    {
        let position = self.run.enter(&self.name)?;
        self.perform(position, work).await
    }

    async fn perform<T, F>(self, position: i64, mut work: impl FnMut(Start) -> F + Send) -> Result<T, Stop>
    where
        T: Serialize + DeserializeOwned + Send,
        F: Future<Output = Result<T, StepError>> + Send,
    {
        let Self { run, name, within, tries, undo: NoUndo } = self;
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
            let tried = if last { FailedTry::Last } else { FailedTry::Retried };
            let failure = error.failure();
            tracing::warn!("step {name} of run {} failed ({failures}): {error}", hold.run);
            persist(&run.alive, || store.fail_step(hold, &name, &failure, tried)).await?;
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
            let message = message.unwrap_or_else(|| "without a message".into());
            Err(StepError::fatal(StepCode::Panicked, format!("the step panicked: {message}")))
        }
        Err(_) => Err(StepError::transient(
            StepCode::TimedOut,
            format!("the step took more than {} s", within.as_secs_f32()),
        )),
    }
}
