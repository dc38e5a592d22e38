//! Attempts at tasks. Changes at the end of a run are written in the transaction of that end.

use coffer_core::agent::{AgentProgress, Reported};
use coffer_core::event::{Event, TaskNeedsAttention, TaskProgress};
use coffer_core::life::Life as _;
use coffer_core::{
    AgentId, Attention, CompetitionId, ExecutionId, Millis, ProjectId, RunCause, RunId, SandboxId, StepCode,
    TaskCause, TaskId,
};
use serde_json::json;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::change::{hold, is_busy};
use super::questions::withdraw;
use super::talk::{any_unheard, give_back, take_unheard};
use super::{CHANGE, COLUMNS, Moved, READ, TaskError, TaskRow, moved, read};
use crate::columns::{first, id, json as to_json, moves, optional_id, storable};
use crate::error::Doing;
use crate::runs::{self, NewRun, RunError};
use crate::{JournalError, ProjectScope, RunFailure, RunState, Store, StoreError, events, now_ms, spending};

/// The kind of runs that are attempts.
const KIND: &str = "task";
const LONGEST_SUMMARY: usize = 16 * 1024;
const ATTEMPT: &str = "task_id, number, run_id, agent_id, model, state, sandbox_id, execution_id, branch, commit_id, pull_url, \
     summary, error, input_tokens, output_tokens, cost_nanos, reported, created_ms, started_ms, ended_ms, \
     (SELECT c.id FROM competitions AS c WHERE c.run_id = task_attempts.run_id) AS competition_id";

/// One attempt at a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub task: TaskId,
    pub number: i64,
    pub run: RunId,
    /// Its competition, if several agents compete.
    pub competition: Option<CompetitionId>,
    pub agent: Option<AgentId>,
    pub model: Option<String>,
    pub state: String,
    pub note: AttemptNote,
    pub error: Option<RunFailure>,
    pub created_ms: Millis,
    pub started_ms: Option<Millis>,
    pub ended_ms: Option<Millis>,
}

/// Progress of an attempt. `None` leaves a field as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptNote {
    pub sandbox: Option<SandboxId>,
    pub execution: Option<ExecutionId>,
    pub branch: Option<String>,
    pub commit: Option<String>,
    pub pull_url: Option<String>,
    pub summary: Option<String>,
    pub input_tokens: Option<i64>,
    pub output_tokens: Option<i64>,
    pub cost_nanos: Option<i64>,
    /// The model that the agent reports, for an attempt that names none.
    pub model: Option<String>,
    /// What the agent itself reported, if these figures are the model gateway's.
    pub reported: Option<Reported>,
    /// The agent's current action: emitted as an event, but not stored.
    pub doing: Option<AgentProgress>,
}

/// A request to start an attempt.
#[derive(Debug, Clone)]
pub struct StartTask {
    /// Another agent; the task keeps it from then on.
    pub agent: Option<AgentId>,
    /// Only for this attempt.
    pub model: Option<String>,
    /// Ends an attempt in progress first; otherwise an attempt in progress is a refusal.
    pub replace: bool,
    pub reason: &'static str,
    pub actor: String,
}

impl Store {
    /// Starts an attempt: queues its run and moves the task to in progress.
    pub async fn start_task(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        start: StartTask,
    ) -> Result<(TaskRow, RunId), TaskError> {
        let (scope, here) = (*scope, self.installation());
        let begin = self.database().write("start a task", move |connection| {
            Box::pin(async move {
                let (row, run) = begin(connection, &scope, task, start, None).await?;
                runs::place(connection, run, here).await?;
                Ok((row, run))
            })
        });
        begin.await
    }

    /// Cancels the attempts in progress, and the task with them.
    pub async fn cancel_task(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        reason: &str,
        actor: &str,
    ) -> Result<TaskRow, TaskError> {
        let (scope, reason, actor) = (*scope, RunFailure::storable(reason), actor.to_string());
        let cancel = self.database().write("cancel a task", move |connection| {
            Box::pin(async move {
                // Runs first, then the task: ending a run uses the same order.
                cancel_runs(connection, scope.project(), task, &reason).await?;
                let before = hold(connection, &scope, task).await?;
                let to = before.state.after(TaskCause::Cancelled).map_err(StoreError::Refused)?;
                let (project, now) = (scope.project(), now_ms());
                let sql = format!(
                    "UPDATE tasks SET state = $1, attention = NULL, updated_ms = $2,
                         version = version + 1 WHERE id = $3 RETURNING {COLUMNS}"
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(to.as_str().to_string())
                    .bind(now)
                    .bind(task)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                if before.state != to {
                    let (from, actor) = (Some(before.state), Some(actor.as_str()));
                    moved(connection, &Moved { task, project, from, to, reason: &reason, actor, now })
                        .await?;
                }
                Ok(read(&row)?)
            })
        });
        cancel.await
    }

    /// The attempts at a task, the oldest first.
    pub async fn attempts(&self, scope: &ProjectScope, task: TaskId) -> Result<Vec<Attempt>, StoreError> {
        let sql = format!(
            "SELECT {ATTEMPT} FROM task_attempts WHERE task_id = $1 AND project_id = $2 ORDER BY number"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(task)
            .bind(scope.project())
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(attempt).collect()
    }

    /// The attempts at all tasks in scope, the newest first: those before the run `before`.
    pub async fn newest_attempts(
        &self,
        scope: &ProjectScope,
        before: Option<RunId>,
        limit: u32,
    ) -> Result<Vec<Attempt>, StoreError> {
        let sql = format!(
            "SELECT {ATTEMPT} FROM task_attempts
             WHERE project_id = $1 AND ($2 IS NULL OR run_id < $2)
                 AND ($3 IS NULL OR task_id IN (SELECT id FROM tasks WHERE project_id = $1 AND agent_id = $3))
             ORDER BY run_id DESC LIMIT $4"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(scope.project())
            .bind(before)
            .bind(scope.agent())
            .bind(i64::from(limit))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(attempt).collect()
    }

    /// Records the progress of an attempt, if `fence` is still the run's.
    pub async fn note_attempt(&self, run: RunId, fence: i64, note: AttemptNote) -> Result<(), JournalError> {
        let write = self.database().write("record an attempt", move |connection| {
            Box::pin(async move { put_note(connection, run, fence, note).await })
        });
        write.await
    }
}

/// Starts an attempt; a competition has a run of another kind.
pub(crate) async fn begin(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
    start: StartTask,
    competes: Option<(&'static str, CompetitionId)>,
) -> Result<(TaskRow, RunId), TaskError> {
    let (project, now, run) = (scope.project(), now_ms(), RunId::generate());
    if start.replace {
        cancel_runs(connection, project, task, start.reason).await?;
    }
    let before = hold(connection, scope, task).await?;
    if before.archived_ms.is_some() {
        return Err(TaskError::Archived);
    }
    if !start.replace && is_busy(connection, task).await? {
        return Err(TaskError::Busy);
    }
    let agent = start.agent.or(before.agent);
    if let Some(agent) = start.agent {
        super::check_agent(connection, project, agent).await?;
    }
    let heard = take_unheard(connection, task, run, 0).await?;
    let number = before.attempts + 1;
    let model = start.model.clone().or_else(|| before.model.clone());
    let input = json!({
        "task": task, "attempt": number, "agent": agent, "model": model,
        "messages": heard.iter().map(|message| message.number).collect::<Vec<_>>(),
        "competition": competes.map(|(_, competition)| competition),
    });
    let sql = format!(
        "INSERT INTO task_attempts (task_id, number, project_id, run_id, agent_id, model, state, created_ms)
         VALUES ($1, $2, $3, $4, $5, $6, {}, $7)",
        first::<RunState>()
    );
    sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(task.to_string())
        .bind(number)
        .bind(project.to_string())
        .bind(run.to_string())
        .bind(agent.map(|agent| agent.to_string()))
        .bind(model.as_deref().map(storable))
        .bind(now)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    let to = before.state.after(TaskCause::Started).map_err(StoreError::Refused)?;
    let sql = format!(
        "UPDATE tasks SET state = $6, attention = NULL, agent_id = $1, run_id = $2, attempts = $3,
             updated_ms = $4, version = version + 1 WHERE id = $5 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(agent)
        .bind(run)
        .bind(number)
        .bind(now)
        .bind(task)
        .bind(to.as_str())
        .fetch_one(&mut *connection)
        .await
        .doing(CHANGE)?;
    if before.state != to {
        let (from, actor) = (Some(before.state), Some(start.actor.as_str()));
        moved(connection, &Moved { task, project, from, to, reason: start.reason, actor, now }).await?;
    }
    let kind = competes.map_or(KIND, |(kind, _)| kind);
    let new = NewRun { id: run, kind, subject: task.to_string(), input, rank: before.priority.rank() };
    runs::insert(connection, project, &new, now).await?;
    Ok((read(&row)?, run))
}

pub(super) async fn cancel_runs(
    connection: &mut AnyConnection,
    project: ProjectId,
    task: TaskId,
    reason: &str,
) -> Result<(), TaskError> {
    let rows = sqlx::query(
        "SELECT run_id FROM task_attempts WHERE task_id = $1 AND project_id = $2 AND state IN ('queued', 'running')",
    )
    .bind(task)
    .bind(project)
    .fetch_all(&mut *connection)
    .await
    .doing(CHANGE)?;
    for row in &rows {
        match runs::cancel(connection, Some(project), id(row, "run_id")?, reason.to_string()).await {
            Ok(()) | Err(RunError::Over | RunError::NotFound | RunError::TooManySignals) => {}
            Err(RunError::Store(error)) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn put_note(
    connection: &mut AnyConnection,
    run: RunId,
    fence: i64,
    note: AttemptNote,
) -> Result<(), JournalError> {
    const DOING: &str = "record an attempt";
    runs::hold(connection, run, fence).await?;
    let event = Event::TaskProgress(TaskProgress {
        run,
        sandbox: note.sandbox,
        execution: note.execution,
        branch: note.branch.clone(),
        commit: note.commit.clone(),
        pull_url: note.pull_url.clone(),
        input_tokens: note.input_tokens,
        output_tokens: note.output_tokens,
        cost_nanos: note.cost_nanos,
        doing: note.doing.clone(),
    });
    let summary = note.summary.map(|text| storable(&text[..text.floor_char_boundary(LONGEST_SUMMARY)]));
    let row = sqlx::query(
        "UPDATE task_attempts SET sandbox_id = COALESCE($1, sandbox_id), execution_id = COALESCE($2, execution_id),
             branch = COALESCE($3, branch), commit_id = COALESCE($4, commit_id), pull_url = COALESCE($5, pull_url),
             summary = COALESCE($6, summary), input_tokens = COALESCE($7, input_tokens),
             output_tokens = COALESCE($8, output_tokens), cost_nanos = COALESCE($9, cost_nanos),
             reported = COALESCE($10, reported), model = COALESCE(model, $12)
         WHERE run_id = $11 RETURNING task_id, project_id, sandbox_id",
    )
    .bind(note.sandbox)
    .bind(note.execution)
    .bind(note.branch.clone())
    .bind(note.commit.clone())
    .bind(note.pull_url.clone())
    .bind(summary)
    .bind(note.input_tokens)
    .bind(note.output_tokens)
    .bind(note.cost_nanos)
    .bind(note.reported.as_ref().map(to_json))
    .bind(run)
    .bind(note.model.map(|model| storable(&model[..model.floor_char_boundary(200)])))
    .fetch_optional(&mut *connection)
    .await
    .doing(DOING)?;
    let Some(row) = row else { return Ok(()) };
    let (task, project): (TaskId, ProjectId) = (id(&row, "task_id")?, id(&row, "project_id")?);
    if note.cost_nanos.is_some()
        && let Some(sandbox) = optional_id(&row, "sandbox_id")?
    {
        spending::count_reported(connection, project, sandbox).await?;
    }
    // The agent's progress does not change the task, so a concurrent edit still has the newest version.
    if note.doing.is_none() {
        sqlx::query(
            "UPDATE tasks SET branch = COALESCE($1, branch), commit_id = COALESCE($2, commit_id),
                 pull_url = COALESCE($3, pull_url), updated_ms = $4, version = version + 1 WHERE id = $5",
        )
        .bind(note.branch)
        .bind(note.commit)
        .bind(note.pull_url)
        .bind(now_ms())
        .bind(task)
        .execute(&mut *connection)
        .await
        .doing(DOING)?;
    }
    events::record(connection, project, task, event, now_ms()).await?;
    Ok(())
}

/// Part of the transaction in which a run begins. An attempt has the states of its run.
pub(crate) async fn run_started(
    connection: &mut AnyConnection,
    run: RunId,
    now: Millis,
) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE task_attempts SET state = {}, started_ms = $1 WHERE run_id = $2",
        moves::<RunState>(RunCause::Taken)
    );
    sqlx::query(sqlx::AssertSqlSafe(sql)).bind(now).bind(run).execute(connection).await.doing(CHANGE)?;
    Ok(())
}

/// Part of the transaction in which a run ends: updates its task, if it has one.
pub(crate) async fn run_ended(
    connection: &mut AnyConnection,
    project: ProjectId,
    run: RunId,
    ended: RunState,
    failure: Option<&RunFailure>,
    now: Millis,
) -> Result<(), StoreError> {
    let row = sqlx::query(
        "UPDATE task_attempts SET state = $1, error = $2, ended_ms = $3 WHERE run_id = $4 RETURNING task_id",
    )
    .bind(ended.as_str())
    .bind(failure.map(to_json))
    .bind(now)
    .bind(run)
    .fetch_optional(&mut *connection)
    .await
    .doing(CHANGE)?;
    let Some(row) = row else { return Ok(()) };
    withdraw(connection, run).await?;
    let task: TaskId = id(&row, "task_id")?;
    let sql =
        format!("UPDATE tasks SET updated_ms = $1 WHERE id = $2 AND project_id = $3 RETURNING {COLUMNS}");
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now)
        .bind(task)
        .bind(project)
        .fetch_one(&mut *connection)
        .await
        .doing(CHANGE)?;
    let before = read(&row)?;
    if ended != RunState::Done {
        give_back(connection, task, run).await?;
    }
    let was_stopped = failure.is_some_and(|failure| failure.code == StepCode::Stopped);
    let (cause, reason) = match ended {
        RunState::Done => (TaskCause::AttemptDone, "the attempt is done"),
        RunState::Cancelled => (TaskCause::AttemptCancelled, "the attempt was cancelled"),
        // By a person, who need not look again.
        _ if was_stopped => (TaskCause::AttemptCancelled, "the attempt was stopped"),
        _ => (TaskCause::AttemptFailed, "the attempt failed"),
    };
    // Another attempt has taken over, or a person has moved the task: this end changes nothing.
    let to = match before.state.after(cause) {
        Ok(to) if before.run == Some(run) => to,
        Ok(_) | Err(_) => return Ok(()),
    };
    let attention = failure.filter(|_| matches!(ended, RunState::Failed | RunState::Stuck) && !was_stopped);
    let attention = attention.map(|failure| {
        let (code, message) = (failure.code.clone(), failure.message.clone());
        Attention { code, message, step: failure.step.clone() }
    });
    let attention = match attention {
        None if ended == RunState::Done && any_unheard(connection, task).await? => {
            let message =
                "a message arrived while the attempt was ending: start another attempt to deliver it";
            Some(Attention { code: StepCode::UnheardMessages.into(), message: message.into(), step: None })
        }
        attention => attention,
    };
    sqlx::query("UPDATE tasks SET state = $1, attention = $2, version = version + 1 WHERE id = $3")
        .bind(to.as_str())
        .bind(attention.as_ref().map(to_json))
        .bind(task)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    if to == before.state {
        let event = Event::TaskNeedsAttention(TaskNeedsAttention { run: Some(run), attention });
        return events::record(connection, project, task, event, now).await;
    }
    let from = Some(before.state);
    moved(connection, &Moved { task, project, from, to, reason, actor: None, now }).await
}

fn attempt(row: &AnyRow) -> Result<Attempt, StoreError> {
    let text = |column: &str| row.try_get::<Option<String>, _>(column).doing(READ);
    let number = |column: &str| row.try_get::<Option<i64>, _>(column).doing(READ);
    let error = text("error")?;
    Ok(Attempt {
        task: id(row, "task_id")?,
        number: row.try_get("number").doing(READ)?,
        run: id(row, "run_id")?,
        competition: optional_id(row, "competition_id")?,
        agent: optional_id(row, "agent_id")?,
        model: text("model")?,
        state: row.try_get("state").doing(READ)?,
        note: AttemptNote {
            sandbox: optional_id(row, "sandbox_id")?,
            execution: optional_id(row, "execution_id")?,
            branch: text("branch")?,
            commit: text("commit_id")?,
            pull_url: text("pull_url")?,
            summary: text("summary")?,
            input_tokens: number("input_tokens")?,
            output_tokens: number("output_tokens")?,
            cost_nanos: number("cost_nanos")?,
            // It is in the attempt's own.
            model: None,
            reported: text("reported")?
                .map(|text| serde_json::from_str(&text).map_err(super::unreadable))
                .transpose()?,
            doing: None,
        },
        error: error.map(|text| serde_json::from_str(&text).map_err(super::unreadable)).transpose()?,
        created_ms: row.try_get("created_ms").doing(READ)?,
        started_ms: number("started_ms")?,
        ended_ms: number("ended_ms")?,
    })
}
