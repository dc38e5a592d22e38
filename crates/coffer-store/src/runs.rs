//! Durable runs.
//!
//! `journal` is written by the runner that holds a run, `runners` assigns runs. This file has what others may
//! do: create, read, signal and cancel a run.

mod journal;
mod queue;
mod runners;

use coffer_core::event::{Event, RunCancelling, RunEnded, RunKind, RunSignalled};
use coffer_core::{Millis, ProjectId, RunCause, RunFailure, RunId, RunState, StepCode, StepState, Unwinding};
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use crate::columns::{first, id, moves, states, storable};
use crate::error::Doing;
use crate::{ProjectScope, Scope, Store, StoreError, competitions, events, now_ms, tasks};

pub(crate) use journal::hold;
pub use journal::{FailedTry, JournalError, RunEnd, RunHold};
pub use queue::{QueueLoad, QueuedRun};
pub use runners::{Slots, TakenRun};

const READ: &str = "read runs";
const ASK: &str = "create a run";
const SIGNAL: &str = "signal a run";
/// Most waiting signals of a run.
const MOST_SIGNALS: i64 = 1000;

/// A new run.
#[derive(Debug, Clone)]
pub struct NewRun {
    pub id: RunId,
    /// The kind of run, which selects its code.
    pub kind: &'static str,
    /// Its subject. Only one run per subject is executed at a time.
    pub subject: String,
    pub input: Value,
    /// Lower comes first.
    pub rank: i64,
}

/// A run on record.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    pub id: RunId,
    pub project: ProjectId,
    pub kind: String,
    pub subject: String,
    pub input: Value,
    pub state: RunState,
    /// How often it was taken since it last finished a step.
    pub takes: i64,
    /// When it continues, if it is parked.
    pub wake_ms: Millis,
    /// Why it is cancelled, if it is.
    pub cancel: Option<String>,
    pub unwinding: Option<Unwinding>,
    pub output: Option<Value>,
    pub failure: Option<RunFailure>,
    pub created_ms: Millis,
    pub started_ms: Option<Millis>,
    pub ended_ms: Option<Millis>,
}

/// A step on record.
#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    pub name: String,
    pub position: i64,
    pub state: StepState,
    pub starts: i64,
    pub failures: i64,
    pub output: Option<Value>,
    pub error: Option<RunFailure>,
    pub started_ms: Millis,
    pub ended_ms: Option<Millis>,
}

/// A signal to a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunSignal {
    pub number: i64,
    pub name: String,
    pub payload: Value,
}

/// Why a run was not signalled.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    #[error("run not found")]
    NotFound,
    #[error("the run is over")]
    Over,
    #[error("the run has {MOST_SIGNALS} signals already")]
    TooManySignals,
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "id, project_id, kind, subject, input, state, takes, wake_ms, cancel_reason, unwinding, \
                       output, failure, created_ms, started_ms, ended_ms";
const STEP_COLUMNS: &str = "name, position, state, starts, failures, output, error, started_ms, ended_ms";

impl Store {
    /// Creates a run and queues it.
    pub async fn insert_run(&self, scope: &ProjectScope, new: NewRun) -> Result<(), StoreError> {
        let project = scope.project();
        let inserted = self.database().write(ASK, move |connection| {
            Box::pin(async move { insert(connection, project, &new, now_ms()).await })
        });
        inserted.await
    }

    /// The run of that id, if it is in scope.
    pub async fn run(&self, scope: &impl Scope, run: RunId) -> Result<Option<RunRow>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM runs WHERE id = $1 AND ($2 IS NULL OR project_id = $2)");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(run)
            .bind(scope.only())
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.as_ref().map(read).transpose()
    }

    /// The steps of a run in the order of their first start.
    pub async fn run_steps(&self, scope: &impl Scope, run: RunId) -> Result<Vec<StepRow>, StoreError> {
        let sql = format!(
            "SELECT {STEP_COLUMNS} FROM run_steps WHERE run_id = $1 AND ($2 IS NULL OR project_id = $2)
             ORDER BY position"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(run)
            .bind(scope.only())
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(step).collect()
    }

    /// Signals a run that is not over, and wakes it if it waits. Returns the signal's number.
    pub async fn signal_run(
        &self,
        scope: &impl Scope,
        run: RunId,
        name: &str,
        payload: Value,
    ) -> Result<i64, RunError> {
        let (only, name) = (scope.only(), storable(name));
        let signalled = self.database().write(SIGNAL, move |connection| {
            Box::pin(async move { signal(connection, only, run, name, payload).await })
        });
        signalled.await
    }

    /// Cancels a run: at once if it has not begun, else its runner undoes its steps.
    pub async fn cancel_run(&self, scope: &impl Scope, run: RunId, reason: &str) -> Result<(), RunError> {
        let (only, reason) = (scope.only(), RunFailure::storable(reason));
        let cancelled = self.database().write("cancel a run", move |connection| {
            Box::pin(async move { cancel(connection, only, run, reason).await })
        });
        cancelled.await
    }
}

/// Assigns a new run to an installation.
pub(crate) async fn place(
    connection: &mut AnyConnection,
    run: RunId,
    installation: Option<String>,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE runs SET installation = $1 WHERE id = $2")
        .bind(installation)
        .bind(run)
        .execute(connection)
        .await
        .doing("assign a run to an installation")
        .map(drop)
}

pub(crate) async fn insert(
    connection: &mut AnyConnection,
    project: ProjectId,
    new: &NewRun,
    at_ms: Millis,
) -> Result<(), StoreError> {
    let sql = format!(
        "INSERT INTO runs (id, project_id, kind, subject, input, state, rank, wake_ms, created_ms)
         VALUES ($1, $2, $3, $4, $5, {}, $6, $7, $7)",
        first::<RunState>()
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(new.id)
        .bind(project)
        .bind(new.kind)
        .bind(new.subject.clone())
        .bind(new.input.to_string())
        .bind(new.rank)
        .bind(at_ms)
        .execute(&mut *connection)
        .await
        .doing(ASK)?;
    let event = Event::RunQueued(RunKind { run: new.id, kind: new.kind.to_string() });
    events::record(connection, project, &new.subject, event, at_ms).await
}

pub(crate) async fn signal(
    connection: &mut AnyConnection,
    only: Option<ProjectId>,
    run: RunId,
    name: String,
    payload: Value,
) -> Result<i64, RunError> {
    let now = now_ms();
    // First: this locks the run's row, so a run that is about to park sees the signal or is woken.
    let held = sqlx::query(
        "UPDATE runs SET wake_ms = CASE WHEN state = 'parked' THEN $1 ELSE wake_ms END
         WHERE id = $2 AND ($3 IS NULL OR project_id = $3) RETURNING project_id, subject, state",
    )
    .bind(now)
    .bind(run)
    .bind(only)
    .fetch_optional(&mut *connection)
    .await
    .doing(SIGNAL)?;
    let held = held.ok_or(RunError::NotFound)?;
    if state(&held)?.is_over() {
        return Err(RunError::Over);
    }
    let project: ProjectId = id(&held, "project_id")?;
    let before = sqlx::query("SELECT COUNT(*) AS number FROM run_signals WHERE run_id = $1")
        .bind(run)
        .fetch_one(&mut *connection)
        .await
        .doing(SIGNAL)?;
    let number: i64 = before.try_get("number").doing(SIGNAL)?;
    if number >= MOST_SIGNALS {
        return Err(RunError::TooManySignals);
    }
    sqlx::query(
        "INSERT INTO run_signals (run_id, number, project_id, name, payload, at_ms)
         VALUES ($1, $2, $3, $4, $5, $6)",
    )
    .bind(run)
    .bind(number)
    .bind(project)
    .bind(name.clone())
    .bind(payload.to_string())
    .bind(now)
    .execute(&mut *connection)
    .await
    .doing(SIGNAL)?;
    let subject: String = held.try_get("subject").doing(SIGNAL)?;
    let event = Event::RunSignalled(RunSignalled { run, signal: name, number });
    events::record(connection, project, subject, event, now).await?;
    Ok(number)
}

pub(crate) async fn cancel(
    connection: &mut AnyConnection,
    only: Option<ProjectId>,
    run: RunId,
    reason: String,
) -> Result<(), RunError> {
    const CANCEL: &str = "cancel a run";
    let now = now_ms();
    let sql = format!(
        "UPDATE runs SET cancel_ms = COALESCE(cancel_ms, $1), cancel_reason = COALESCE(cancel_reason, $2),
             wake_ms = CASE WHEN state = 'parked' THEN $1 ELSE wake_ms END,
             ended_ms = CASE WHEN state = 'queued' THEN $1 ELSE ended_ms END,
             state = {}
         WHERE id = $3 AND ($4 IS NULL OR project_id = $4) AND state IN ({})
         RETURNING project_id, subject, state",
        moves::<RunState>(RunCause::CancelAsked),
        states::<RunState>(RunCause::CancelAsked),
    );
    let held = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now)
        .bind(reason.clone())
        .bind(run)
        .bind(only)
        .fetch_optional(&mut *connection)
        .await
        .doing(CANCEL)?;
    let Some(held) = held else {
        let known = sqlx::query("SELECT id FROM runs WHERE id = $1 AND ($2 IS NULL OR project_id = $2)")
            .bind(run)
            .bind(only)
            .fetch_optional(connection)
            .await
            .doing(CANCEL)?;
        return Err(if known.is_some() { RunError::Over } else { RunError::NotFound });
    };
    let project: ProjectId = id(&held, "project_id")?;
    let subject: String = held.try_get("subject").doing(CANCEL)?;
    let state = state(&held)?;
    if state.is_over() {
        let failure = RunFailure::new(StepCode::Cancelled, &reason);
        competitions::run_ended(connection, project, run, state, Some(&failure), now).await?;
        tasks::run_ended(connection, project, run, state, Some(&failure), now).await?;
    }
    let event = if state.is_over() {
        Event::RunEnded(RunEnded { run, state, reason: Some(reason), failure: None })
    } else {
        Event::RunCancelling(RunCancelling { run, reason, state })
    };
    events::record(connection, project, subject, event, now).await?;
    Ok(())
}

fn unreadable(what: &'static str, why: impl ToString) -> StoreError {
    StoreError::Unreadable { what, why: why.to_string() }
}

fn state(row: &AnyRow) -> Result<RunState, StoreError> {
    let text: String = row.try_get("state").doing(READ)?;
    let known = RunState::parse(&text);
    known.ok_or_else(|| unreadable("run", "its state is unknown"))
}

fn value(row: &AnyRow, column: &'static str) -> Result<Option<Value>, StoreError> {
    let text: Option<String> = row.try_get(column).doing(READ)?;
    text.map(|text| serde_json::from_str(&text).map_err(|error| unreadable("run", error))).transpose()
}

fn failure(row: &AnyRow, column: &'static str) -> Result<Option<RunFailure>, StoreError> {
    let value = value(row, column)?;
    value.map(|value| serde_json::from_value(value).map_err(|error| unreadable("run", error))).transpose()
}

fn read(row: &AnyRow) -> Result<RunRow, StoreError> {
    let unwinding: Option<String> = row.try_get("unwinding").doing(READ)?;
    let unwinding = unwinding.map(|why| {
        Unwinding::parse(&why).ok_or_else(|| unreadable("run", format!("unwinding because `{why}`")))
    });
    Ok(RunRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        kind: row.try_get("kind").doing(READ)?,
        subject: row.try_get("subject").doing(READ)?,
        input: value(row, "input")?.unwrap_or_default(),
        state: state(row)?,
        takes: row.try_get("takes").doing(READ)?,
        wake_ms: row.try_get("wake_ms").doing(READ)?,
        cancel: row.try_get("cancel_reason").doing(READ)?,
        unwinding: unwinding.transpose()?,
        output: value(row, "output")?,
        failure: failure(row, "failure")?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        started_ms: row.try_get("started_ms").doing(READ)?,
        ended_ms: row.try_get("ended_ms").doing(READ)?,
    })
}

fn step(row: &AnyRow) -> Result<StepRow, StoreError> {
    let text: String = row.try_get("state").doing(READ)?;
    let state = StepState::parse(&text);
    Ok(StepRow {
        name: row.try_get("name").doing(READ)?,
        position: row.try_get("position").doing(READ)?,
        state: state.ok_or_else(|| unreadable("step", "its state is unknown"))?,
        starts: row.try_get("starts").doing(READ)?,
        failures: row.try_get("failures").doing(READ)?,
        output: value(row, "output")?,
        error: failure(row, "error")?,
        started_ms: row.try_get("started_ms").doing(READ)?,
        ended_ms: row.try_get("ended_ms").doing(READ)?,
    })
}
