//! The journal of a run, written by its runner. Each write checks the hold, and is refused once another runner
//! has the run.

use coffer_core::event::{
    Event, RunEnded, RunParked, RunUnwinding, StepFailed, StepFinished, StepStarted, StepUndone,
};
use coffer_core::{
    Millis, ProjectId, RunCause, RunFailure, RunId, RunOutcome, RunState, RunnerId, StepCause, StepState,
    Unwinding,
};
use serde_json::Value;
use sqlx::{AnyConnection, Row};

use super::{RunSignal, StepRow, unreadable, value};
use crate::columns::{first, json as to_json, moves, moves_of, states};
use crate::error::Doing;
use crate::{Operator, Store, StoreError, competitions, events, now_ms, tasks};

const WRITE: &str = "write to a run's journal";
const READ: &str = "read a run's journal";

/// Proof that a runner holds a run, until another runner gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunHold {
    pub run: RunId,
    pub project: ProjectId,
    pub subject: String,
    pub owner: RunnerId,
    pub fence: i64,
}

/// Whether a failed try of a step is followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedTry {
    Retried,
    Last,
}

/// Why the journal was not written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// Another runner has the run now, or it is over.
    #[error("another runner has taken the run")]
    Lost,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    Done(Value),
    Failed(RunFailure),
    Cancelled(RunFailure),
    Stuck(RunFailure),
}

impl RunEnd {
    pub const fn state(&self) -> RunState {
        self.outcome().state()
    }

    const fn outcome(&self) -> RunOutcome {
        match self {
            Self::Done(_) => RunOutcome::Done,
            Self::Failed(_) => RunOutcome::Failed,
            Self::Cancelled(_) => RunOutcome::Cancelled,
            Self::Stuck(_) => RunOutcome::Stuck,
        }
    }

    const fn failure(&self) -> Option<&RunFailure> {
        match self {
            Self::Done(_) => None,
            Self::Failed(failure) | Self::Cancelled(failure) | Self::Stuck(failure) => Some(failure),
        }
    }
}

impl Store {
    /// The steps of a held run.
    pub async fn journal(&self, operator: &Operator, hold: &RunHold) -> Result<Vec<StepRow>, StoreError> {
        self.run_steps(operator, hold.run).await
    }

    /// Records that a step begins, for the first time or again, with its initial data.
    pub async fn begin_step(
        &self,
        hold: &RunHold,
        name: &str,
        position: i64,
        output: Option<&Value>,
    ) -> Result<StepRow, JournalError> {
        let (name, output) = (name.to_string(), output.map(Value::to_string));
        self.write_held(hold, "owner = owner", move |connection, hold, now| {
            Box::pin(async move {
                let sql = format!(
                    "INSERT INTO run_steps
                         (run_id, name, project_id, position, state, starts, failures, started_ms, output)
                     VALUES ($1, $2, $3, $4, {}, 1, 0, $5, $6)
                     ON CONFLICT (run_id, name) DO UPDATE SET
                         state = {}, starts = run_steps.starts + 1, started_ms = excluded.started_ms,
                         ended_ms = NULL, output = excluded.output
                     WHERE run_steps.state IN ({})
                     RETURNING {}",
                    first::<StepState>(),
                    moves_of::<StepState>("run_steps.state", StepCause::Started),
                    states::<StepState>(StepCause::Started),
                    super::STEP_COLUMNS
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(hold.run)
                    .bind(name)
                    .bind(hold.project)
                    .bind(position)
                    .bind(now)
                    .bind(output)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(WRITE)?;
                let row = row.ok_or_else(|| unreadable("step", "it is over and was begun again"))?;
                let step = super::step(&row)?;
                let (start, failures) = (step.starts, step.failures);
                let started = StepStarted { run: hold.run, step: step.name.clone(), start, failures };
                tell(connection, hold, Event::RunStepStarted(started), now).await?;
                Ok(step)
            })
        })
        .await
    }

    /// Records a step's result, and the signal that it consumed, if any.
    pub async fn finish_step(
        &self,
        hold: &RunHold,
        name: &str,
        output: &Value,
        took: Option<i64>,
    ) -> Result<(), JournalError> {
        let (name, output) = (name.to_string(), output.to_string());
        self.write_held(hold, "takes = 1", move |connection, hold, now| {
            Box::pin(async move {
                let sql = format!(
                    "UPDATE run_steps SET state = {}, output = $1, error = NULL, ended_ms = $2
                     WHERE run_id = $3 AND name = $4 AND state IN ({}) RETURNING started_ms",
                    moves::<StepState>(StepCause::Finished),
                    states::<StepState>(StepCause::Finished),
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(output)
                    .bind(now)
                    .bind(hold.run)
                    .bind(name.clone())
                    .fetch_one(&mut *connection)
                    .await
                    .doing(WRITE)?;
                if let Some(number) = took {
                    sqlx::query("UPDATE run_signals SET taken_by = $1 WHERE run_id = $2 AND number = $3")
                        .bind(name.clone())
                        .bind(hold.run)
                        .bind(number)
                        .execute(&mut *connection)
                        .await
                        .doing(WRITE)?;
                }
                let started_ms: Millis = row.try_get("started_ms").doing(WRITE)?;
                let duration_ms = (now - started_ms).max(0);
                let finished = StepFinished { run: hold.run, step: name, duration_ms };
                tell(connection, hold, Event::RunStepFinished(finished), now).await
            })
        })
        .await
    }

    /// Records that a try of a step failed.
    pub async fn fail_step(
        &self,
        hold: &RunHold,
        name: &str,
        failure: &RunFailure,
        tried: FailedTry,
    ) -> Result<(), JournalError> {
        let (name, failure) = (name.to_string(), failure.clone());
        let last = tried == FailedTry::Last;
        self.write_held(hold, "owner = owner", move |connection, hold, now| {
            Box::pin(async move {
                let cause = if last { StepCause::Failed } else { StepCause::TryFailed };
                let sql = format!(
                    "UPDATE run_steps SET failures = failures + 1, error = $1, state = {},
                         ended_ms = COALESCE($2, ended_ms)
                     WHERE run_id = $3 AND name = $4 AND state IN ({})",
                    moves::<StepState>(cause),
                    states::<StepState>(cause),
                );
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(to_json(&failure))
                    .bind(last.then_some(now))
                    .bind(hold.run)
                    .bind(name.clone())
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                let RunFailure { code, message, .. } = failure;
                let failed = StepFailed { run: hold.run, step: name, code, message, again: !last };
                tell(connection, hold, Event::RunStepFailed(failed), now).await
            })
        })
        .await
    }

    /// Records that the run is being unwound from here on, and why.
    pub async fn begin_unwinding(
        &self,
        hold: &RunHold,
        why: Unwinding,
        failure: &RunFailure,
    ) -> Result<(), JournalError> {
        let failure = failure.clone();
        self.write_held(hold, "takes = 1", move |connection, hold, now| {
            Box::pin(async move {
                sqlx::query("UPDATE runs SET unwinding = $1, failure = $2 WHERE id = $3")
                    .bind(why.as_str())
                    .bind(to_json(&failure))
                    .bind(hold.run)
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                let RunFailure { code, message, .. } = failure;
                let unwinding = RunUnwinding { run: hold.run, why, code, message };
                tell(connection, hold, Event::RunUnwinding(unwinding), now).await
            })
        })
        .await
    }

    /// Records that a step was undone, or why not.
    pub async fn undo_step(
        &self,
        hold: &RunHold,
        name: &str,
        failed: Option<RunFailure>,
    ) -> Result<(), JournalError> {
        let name = name.to_string();
        self.write_held(hold, "takes = 1", move |connection, hold, now| {
            Box::pin(async move {
                let cause = if failed.is_some() { StepCause::UndoFailed } else { StepCause::Undone };
                let sql = format!(
                    "UPDATE run_steps SET state = {}, error = COALESCE($1, error)
                     WHERE run_id = $2 AND name = $3 AND state IN ({})",
                    moves::<StepState>(cause),
                    states::<StepState>(cause),
                );
                sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(failed.as_ref().map(to_json))
                    .bind(hold.run)
                    .bind(name.clone())
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                let failed = failed.map(|failure| failure.message);
                let undone = StepUndone { run: hold.run, step: name, failed };
                tell(connection, hold, Event::RunStepUndone(undone), now).await
            })
        })
        .await
    }

    /// Parks a run until this time, a signal of this name, or its cancellation.
    pub async fn park_run(
        &self,
        hold: &RunHold,
        wake_ms: Millis,
        signal: Option<&str>,
    ) -> Result<(), JournalError> {
        let signal = signal.map(String::from);
        let let_go = "owner = NULL, fence = fence + 1, takes = 0";
        self.write_held(hold, let_go, move |connection, hold, now| {
            Box::pin(async move {
                // The row is locked: earlier signals are seen here, later ones wake it.
                let sql = format!(
                    "UPDATE runs SET state = {}, wake_ms = CASE WHEN cancel_ms IS NOT NULL OR EXISTS (
                         SELECT 1 FROM run_signals WHERE run_id = $1 AND name = $2 AND taken_by IS NULL)
                         THEN $3 ELSE $4 END
                     WHERE id = $1 AND state IN ({})",
                    moves::<RunState>(RunCause::Parked),
                    states::<RunState>(RunCause::Parked),
                );
                let parked = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(hold.run)
                    .bind(signal.clone())
                    .bind(now)
                    .bind(wake_ms)
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                if parked.rows_affected() == 0 {
                    return Err(JournalError::Lost);
                }
                let parked = RunParked { run: hold.run, until_ms: wake_ms, signal };
                tell(connection, hold, Event::RunParked(parked), now).await
            })
        })
        .await
    }

    /// Releases a run, to be taken again at `wake_ms`.
    pub async fn release_run(&self, hold: &RunHold, wake_ms: Millis) -> Result<(), JournalError> {
        self.write_held(hold, "owner = NULL, fence = fence + 1", move |connection, hold, _| {
            Box::pin(async move {
                sqlx::query("UPDATE runs SET wake_ms = $1 WHERE id = $2")
                    .bind(wake_ms)
                    .bind(hold.run)
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                Ok(())
            })
        })
        .await
    }

    /// Records the end of a run. Writing the same end twice is allowed.
    pub async fn end_run(&self, hold: &RunHold, end: &RunEnd) -> Result<(), JournalError> {
        let ended = end.clone();
        let written = self.write_held(hold, "owner = NULL", move |connection, hold, now| {
            Box::pin(async move {
                let output = match &ended {
                    RunEnd::Done(output) => Some(output.to_string()),
                    _ => None,
                };
                let cause = RunCause::Ended(ended.outcome());
                let sql = format!(
                    "UPDATE runs SET state = {}, output = $1, failure = $2, ended_ms = $3
                     WHERE id = $4 AND state IN ({}) RETURNING state",
                    moves::<RunState>(cause),
                    states::<RunState>(cause),
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(output)
                    .bind(ended.failure().map(to_json))
                    .bind(now)
                    .bind(hold.run)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(WRITE)?;
                let row = row.ok_or(JournalError::Lost)?;
                let (state, failure) = (super::state(&row)?, ended.failure());
                competitions::run_ended(connection, hold.project, hold.run, state, failure, now).await?;
                tasks::run_ended(connection, hold.project, hold.run, state, failure, now).await?;
                let ended = RunEnded { run: hold.run, state, reason: None, failure: failure.cloned() };
                tell(connection, hold, Event::RunEnded(ended), now).await
            })
        });
        match written.await {
            Err(JournalError::Lost) if self.ended_so(hold, end.state()).await? => Ok(()),
            written => written,
        }
    }

    /// Signals of a run that no step has consumed, oldest first.
    pub async fn waiting_signals(&self, hold: &RunHold, name: &str) -> Result<Vec<RunSignal>, StoreError> {
        let rows = sqlx::query(
            "SELECT number, name, payload FROM run_signals
             WHERE run_id = $1 AND name = $2 AND taken_by IS NULL ORDER BY number",
        )
        .bind(hold.run)
        .bind(name)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter()
            .map(|row| {
                Ok(RunSignal {
                    number: row.try_get("number").doing(READ)?,
                    name: row.try_get("name").doing(READ)?,
                    payload: value(row, "payload")?.ok_or_else(|| unreadable("signal", "it is empty"))?,
                })
            })
            .collect()
    }

    /// Whether the run ended in this state while this hold was valid.
    async fn ended_so(&self, hold: &RunHold, state: RunState) -> Result<bool, StoreError> {
        let row = sqlx::query("SELECT id FROM runs WHERE id = $1 AND fence = $2 AND state = $3")
            .bind(hold.run)
            .bind(hold.fence)
            .bind(state.as_str())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        Ok(row.is_some())
    }

    /// Writes in a transaction that begins by locking the run's row, with `change` applied, if the hold is
    /// valid.
    async fn write_held<T, W>(&self, hold: &RunHold, change: &'static str, work: W) -> Result<T, JournalError>
    where
        W: for<'c> FnOnce(
                &'c mut AnyConnection,
                &'c RunHold,
                Millis,
            ) -> crate::database::Work<'c, T, JournalError>
            + Send
            + 'static,
        T: Send + 'static,
    {
        let hold = hold.clone();
        let write = self.database().write(WRITE, move |connection| {
            Box::pin(async move {
                let sql = format!("UPDATE runs SET {change} WHERE id = $1 AND owner = $2 AND fence = $3");
                let held = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(hold.run)
                    .bind(hold.owner)
                    .bind(hold.fence)
                    .execute(&mut *connection)
                    .await
                    .doing(WRITE)?;
                if held.rows_affected() == 0 {
                    return Err(JournalError::Lost);
                }
                work(connection, &hold, now_ms()).await
            })
        });
        write.await
    }
}

/// Locks the row of a run if `fence` is still valid: for writes of runs outside their journal.
pub(crate) async fn hold(connection: &mut AnyConnection, run: RunId, fence: i64) -> Result<(), JournalError> {
    let held =
        sqlx::query("UPDATE runs SET fence = fence WHERE id = $1 AND fence = $2 AND owner IS NOT NULL")
            .bind(run)
            .bind(fence)
            .execute(connection)
            .await
            .doing(WRITE)?;
    if held.rows_affected() == 0 { Err(JournalError::Lost) } else { Ok(()) }
}

async fn tell(
    connection: &mut AnyConnection,
    hold: &RunHold,
    event: Event,
    now: Millis,
) -> Result<(), JournalError> {
    events::record(connection, hold.project, &hold.subject, event, now).await?;
    Ok(())
}
