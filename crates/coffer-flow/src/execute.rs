//! Executes a run that this runner has taken.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use coffer_core::{Millis, StepCode};
use coffer_store::{JournalError, RunEnd, RunFailure, RunRow, Store, TakenRun, Unwinding};
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use crate::error::{Stop, Why};
use crate::persist::persist;
use crate::run::{Run, Undo, Way, written};
use crate::step::attempt;
use crate::{Kind, Settings};

/// When to look at a run again after the database refused a write.
const REFUSED_PAUSE: Millis = 5_000;
const RELEASE_PAUSE: Duration = Duration::from_secs(1);

/// Executes a run until it ends, parks, or another runner has it.
pub(crate) async fn execute(
    store: Store,
    settings: Settings,
    kind: Arc<dyn Kind>,
    taken: TakenRun,
    alive: CancellationToken,
    cancel: CancellationToken,
) {
    // A runner that was removed must stop, and it is usually here.
    let dead = alive.clone();
    let span = span_of(&taken.run);
    tokio::select! {
        biased;
        () = dead.cancelled() => {}
        () = act(store, settings, kind, taken, alive, cancel).instrument(span) => {}
    }
}

/// Adds the run, and its task if it is an attempt, to every log line of the run.
fn span_of(run: &RunRow) -> Span {
    tracing::info_span!("run", run.id = %run.id, task.id = run.input["task"].as_str())
}

async fn act(
    store: Store,
    settings: Settings,
    kind: Arc<dyn Kind>,
    taken: TakenRun,
    alive: CancellationToken,
    cancel: CancellationToken,
) {
    let under_way = taken.under_way().map(|step| step.name.clone());
    let mut run = Run::new(store, settings, taken, alive.clone());
    let hold = run.hold.clone();
    let stopped = match go(&mut run, kind.as_ref(), under_way, &cancel).await {
        Ok(()) => return,
        Err(stopped) => stopped,
    };
    let wake_ms = run.settings.clock.now();
    let wake_ms = match stopped {
        JournalError::Lost => return,
        JournalError::Store(error) => {
            tracing::error!("could not journal run {}, releasing it: {error}", hold.run);
            wake_ms + REFUSED_PAUSE
        }
    };
    // This runner still holds it, so no other would take it.
    loop {
        let released = persist(&alive, || run.store.release_run(&hold, wake_ms)).await;
        match released {
            Ok(()) | Err(JournalError::Lost) => return,
            Err(JournalError::Store(error)) => {
                tracing::error!("could not release run {}, trying again: {error}", hold.run);
                tokio::time::sleep(RELEASE_PAUSE).await;
            }
        }
    }
}

async fn go(
    run: &mut Run,
    kind: &dyn Kind,
    under_way: Option<String>,
    cancel: &CancellationToken,
) -> Result<(), JournalError> {
    let most = run.settings.most_takes;
    let mut why = run.row.unwinding;
    let mut failure = run.row.failure.clone().unwrap_or_else(|| RunFailure::new(StepCode::Failed, ""));
    if run.row.takes > most {
        let at = under_way.as_deref().unwrap_or("between steps");
        let told = format!("the server ended {most} times while it executed this run (at: {at})");
        failure = RunFailure { step: under_way, ..RunFailure::new(StepCode::ServerDied, told) };
        if why.is_some() {
            return end(run, kind, RunEnd::Stuck(failure)).await;
        }
        begin_unwinding(run, Unwinding::Failed, &failure).await?;
        why = Some(Unwinding::Failed);
    }
    if let Some(reason) = run.row.cancel.clone().filter(|_| why.is_none()) {
        failure = RunFailure::new(StepCode::Cancelled, reason);
        begin_unwinding(run, Unwinding::Cancelled, &failure).await?;
        why = Some(Unwinding::Cancelled);
    }

    let stopped = match why {
        None => tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            stopped = run_code(run, kind) => Some(stopped),
        },
        Some(_) => Some(run_code(run, kind).await),
    };
    let why = match (why, stopped) {
        // The whole code was replayed: its result does not count now.
        (Some(_), Some(Err(Stop(Why::Lost)))) | (None, Some(Err(Stop(Why::Lost)))) => {
            return Err(JournalError::Lost);
        }
        (_, Some(Err(Stop(Why::Store(error))))) => return Err(JournalError::Store(error)),
        (Some(why), _) => why,
        (None, Some(Ok(output))) => match written("the run", &output) {
            Ok(output) => return end(run, kind, RunEnd::Done(output)).await,
            Err(stop) => {
                failure = stop.failure().cloned().unwrap_or(failure);
                begin_unwinding(run, Unwinding::Failed, &failure).await?;
                Unwinding::Failed
            }
        },
        (None, Some(Err(Stop(Why::Parked { until_ms, signal })))) => {
            let (store, hold) = (&run.store, &run.hold);
            let signal = signal.as_deref();
            return persist(&run.alive, || store.park_run(hold, until_ms, signal)).await;
        }
        (None, Some(Err(Stop(Why::Failed(failed))))) => {
            failure = failed;
            begin_unwinding(run, Unwinding::Failed, &failure).await?;
            Unwinding::Failed
        }
        // `Unwinding` only occurs while steps are undone.
        (None, None | Some(Err(Stop(Why::Unwinding)))) => {
            let row = run.store.run(&run.store.operator(), run.hold.run).await?;
            let reason = row.and_then(|row| row.cancel).unwrap_or_else(|| "cancelled".into());
            failure = RunFailure::new(StepCode::Cancelled, reason);
            begin_unwinding(run, Unwinding::Cancelled, &failure).await?;
            Unwinding::Cancelled
        }
    };
    failure.not_undone = undo_all(run, why).await?;
    let ended = match why {
        Unwinding::Cancelled => RunEnd::Cancelled(failure),
        Unwinding::Failed => RunEnd::Failed(failure),
    };
    end(run, kind, ended).await
}

/// Runs the code; a panic between steps is a failure.
async fn run_code(run: &mut Run, kind: &dyn Kind) -> Result<serde_json::Value, Stop> {
    match AssertUnwindSafe(kind.execute(run)).catch_unwind().await {
        Ok(stopped) => stopped,
        Err(_) => Err(Stop::failed(StepCode::Panicked, "the run's code panicked between steps")),
    }
}

async fn begin_unwinding(run: &mut Run, why: Unwinding, failure: &RunFailure) -> Result<(), JournalError> {
    run.way = Way::Back;
    let (store, hold) = (&run.store, &run.hold);
    persist(&run.alive, || store.begin_unwinding(hold, why, failure)).await
}

async fn end(run: &Run, kind: &dyn Kind, end: RunEnd) -> Result<(), JournalError> {
    persist(&run.alive, || run.store.end_run(&run.hold, &end)).await?;
    kind.ended(&run.row, end.state());
    Ok(())
}

/// Undoes the completed steps, the last first. Returns the steps whose undo failed.
async fn undo_all(run: &mut Run, why: Unwinding) -> Result<Vec<String>, JournalError> {
    let mut not_undone = Vec::new();
    while let Some(undo) = run.undos.pop() {
        let failed = undo_one(run, &undo, why).await;
        if failed.is_some() {
            not_undone.push(undo.name.clone());
        }
        let (store, hold) = (&run.store, &run.hold);
        persist(&run.alive, || store.undo_step(hold, &undo.name, failed.clone())).await?;
    }
    Ok(not_undone)
}

async fn undo_one(run: &Run, undo: &Undo, why: Unwinding) -> Option<RunFailure> {
    let tries = run.settings.tries;
    let mut failures = 0;
    loop {
        let error = match attempt(undo.within, (undo.work)(undo.output.clone(), why)).await {
            Ok(()) => return None,
            Err(error) => error,
        };
        failures += 1;
        tracing::warn!("could not undo step {} of run {}: {error}", undo.name, run.hold.run);
        if !error.transient || failures >= tries.most {
            return Some(error.failure());
        }
        tokio::time::sleep(tries.pause(failures)).await;
    }
}
