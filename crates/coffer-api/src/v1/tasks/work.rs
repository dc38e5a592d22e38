//! Attempts at tasks, and messages to them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::compete::CompetitionTerms;
use coffer_core::{AgentId, CompetitionId, RunId, TaskId};
use coffer_store::{
    Attempt as AttemptRow, CompetitionError, RunFailure, StartTask, StepRow, StepState, TaskError,
    TaskMessage, TaskRow,
};
use http::{HeaderMap, StatusCode};
use serde_json::json;

use super::row::{actor, found, tagged};
use crate::app::App;
use crate::auth::{Caller, Id, Read, Write};
use crate::body::{Checked, MaybeChecked};
use crate::error::ApiError;
use crate::query::Query;
use crate::v1::board::{amount, by_people, refusal};
use crate::v1::competitions::{self};
use crate::v1::page::Part;
use coffer_api_types::attempts::{
    Attempt, Cancel, Failure, Message, Move, NewMessage, ReportedUsage, Start, StepShape, StepStateShape,
};
use coffer_api_types::competitions::Terms;
use coffer_api_types::tasks::Task;
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_core::clock::rfc3339;

const LONGEST_MESSAGE: usize = 32 * 1024;
const LONGEST_FILE: usize = 4096;
const LONGEST_REASON: usize = 1000;

/// Starts an attempt, the first or another: queues a run that ends with a pull request.
#[utoipa::path(
    post, path = "/api/v1/tasks/{task}/start", tag = "tasks", params(("task" = String, Path)),
    request_body = Option<Start>,
    responses(
        (status = 202, body = Task, headers(("ETag" = String))),
        (status = 409, body = ErrorShape, description = "an attempt is in progress, or the task is archived"),
        (status = 422, body = ErrorShape, description = "the task lacks an agent, its definition or a repository"),
        (status = 429, body = ErrorShape, description = "more entries than the quota `forks` allows")
    )
)]
pub(in crate::v1) async fn start(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(task): Id<TaskId>,
    MaybeChecked(request): MaybeChecked<Start>,
) -> Result<(StatusCode, HeaderMap, Json<Task>), ApiError> {
    by_people(&caller)?;
    let row = found(&app, &caller, task).await?;
    if request
        .model
        .as_ref()
        .is_some_and(|model| model.is_empty() || model.len() > 200 || model.starts_with('-'))
    {
        return Err(ApiError::invalid("model", "must have 1 to 200 bytes and not begin with a dash"));
    }
    let reason = if request.replace { "started again" } else { "started" };
    let order = StartTask {
        agent: request.agent_id,
        model: request.model,
        replace: request.replace,
        reason,
        actor: actor(&caller),
    };
    let started = match request.compete {
        None => begin(&app, &caller, &row, order).await?,
        Some(terms) => compete(&app, &caller, row, order, terms).await?,
    };
    let (headers, body) = tagged(started);
    Ok((StatusCode::ACCEPTED, headers, body))
}

/// Starts an attempt in which several agents compete.
async fn compete(
    app: &App,
    caller: &Caller<Write>,
    task: TaskRow,
    order: StartTask,
    terms: Terms,
) -> Result<TaskRow, ApiError> {
    if order.agent.is_some() || order.model.is_some() {
        let why = "has agents and models of its own: leave out agent_id and model";
        return Err(ApiError::invalid("compete", why));
    }
    if task.repository.is_none() {
        return Err(ApiError::invalid("repository", "is needed: the task has no repository"));
    }
    let mut new = competitions::checked_terms(app, caller, terms, task.agent).await?;
    new.terms = CompetitionTerms {
        title: task.title,
        prompt: task.description,
        repository: task.repository,
        base_branch: task.base_branch,
        check_command: task.check_command,
        context_id: task.context_id,
        budget_nanos: new.terms.budget_nanos.or(task.budget_nanos),
        ..new.terms
    };
    competitions::check_size(&new)?;
    let started = app.store.compete_for_task(&caller.scope, task.id, order, new).await;
    let (row, competition) = started.map_err(|error| match error {
        CompetitionError::Task(error) => refusal(error, task.id),
        error => competitions::refusal(error, CompetitionId::generate()),
    })?;
    tracing::info!(task.id = %row.id, "agents compete for task {} in {competition}", row.id);
    app.tasks.wake();
    Ok(row)
}

/// Starts an attempt if the task has everything it needs.
pub(super) async fn begin(
    app: &App,
    caller: &Caller<Write>,
    task: &TaskRow,
    order: StartTask,
) -> Result<TaskRow, ApiError> {
    check_ready(app, caller, order.agent.or(task.agent), task.repository.is_some()).await?;
    let started = app.store.start_task(&caller.scope, task.id, order).await;
    let (row, _) = started.map_err(|error| refusal(error, task.id))?;
    app.tasks.wake();
    Ok(row)
}

/// Refuses to start a task that lacks something.
pub(super) async fn check_ready(
    app: &App,
    caller: &Caller<Write>,
    agent: Option<AgentId>,
    has_repository: bool,
) -> Result<(), ApiError> {
    let Some(agent) = agent else {
        return Err(ApiError::invalid("agent_id", "is needed: the task has no agent"));
    };
    let found = app.store.agent(&caller.scope, agent).await.map_err(ApiError::store)?;
    let Some(found) = found else {
        return Err(ApiError::invalid("agent_id", format!("names no agent of this project: {agent}")));
    };
    if found.sealed {
        return Err(ApiError::conflict(format!(
            "agent '{}' is sealed under a missing master key",
            found.name
        ))
        .hint("put the lost master key back, or define the agent again"));
    }
    if found.definition.is_none() {
        return Err(ApiError::invalid(
            "agent_id",
            format!("names agent '{}', which has no definition", found.name),
        )
        .hint("set one with PUT /api/v1/agents/{agent}/definition"));
    }
    if !has_repository {
        return Err(ApiError::invalid("repository", "is needed: the task has no repository"));
    }
    Ok(())
}

/// Cancels a task: an attempt in progress is ended, and its sandbox is destroyed.
#[utoipa::path(
    post, path = "/api/v1/tasks/{task}/cancel", tag = "tasks", params(("task" = String, Path)),
    request_body = Option<Cancel>,
    responses((status = 200, body = Task, headers(("ETag" = String))))
)]
pub(in crate::v1) async fn cancel(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(task): Id<TaskId>,
    MaybeChecked(request): MaybeChecked<Cancel>,
) -> Result<(HeaderMap, Json<Task>), ApiError> {
    by_people(&caller)?;
    let reason = request.reason.unwrap_or_else(|| "cancelled".into());
    if reason.len() > LONGEST_REASON {
        return Err(ApiError::invalid("reason", format!("may have at most {LONGEST_REASON} bytes")));
    }
    let cancelled = app.store.cancel_task(&caller.scope, task, &reason, &actor(&caller)).await;
    let row = cancelled.map_err(|error| refusal(error, task))?;
    app.tasks.wake();
    Ok(tagged(row))
}

fn message(said: TaskMessage) -> Message {
    Message {
        number: said.number,
        author: said.author,
        body: said.body,
        about: said.about,
        run_id: said.run.map(|run| run.to_string()),
        created_at: rfc3339(said.at_ms),
    }
}

/// Sends a message to a task: an attempt in progress gets it when its agent has ended its turn, otherwise the
/// next attempt gets it.
#[utoipa::path(
    post, path = "/api/v1/tasks/{task}/messages", tag = "tasks", params(("task" = String, Path)),
    request_body = NewMessage,
    responses((status = 201, body = Message), (status = 409, body = ErrorShape))
)]
pub(in crate::v1) async fn say(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(task): Id<TaskId>,
    Checked(request): Checked<NewMessage>,
) -> Result<(StatusCode, Json<Message>), ApiError> {
    if request.body.trim().is_empty() || request.body.len() > LONGEST_MESSAGE {
        return Err(ApiError::invalid("body", format!("must have 1 to {LONGEST_MESSAGE} bytes")));
    }
    if request.file.as_ref().is_some_and(|file| file.is_empty() || file.len() > LONGEST_FILE) {
        return Err(ApiError::invalid("file", format!("must have 1 to {LONGEST_FILE} bytes")));
    }
    if request.line.is_some() && request.file.is_none() {
        return Err(ApiError::invalid("file", "is required with a line"));
    }
    let row = found(&app, &caller, task).await?;
    if request.start {
        by_people(&caller)?;
    }
    let about = request.file.map(|file| json!({ "file": file, "line": request.line }));
    let said = app.store.say_to_task(&caller.scope, task, &actor(&caller), &request.body, about).await;
    let said = said.map_err(|error| refusal(error, task))?;
    if request.start && row.attempts > 0 {
        let order = StartTask {
            agent: None,
            model: None,
            replace: false,
            reason: "something was said",
            actor: actor(&caller),
        };
        // An attempt in progress gets it anyway.
        match app.store.start_task(&caller.scope, task, order).await {
            Ok(_) | Err(TaskError::Busy) => {}
            Err(error) => return Err(refusal(error, task)),
        }
        app.tasks.wake();
    }
    Ok((StatusCode::CREATED, Json(message(said))))
}

/// The messages to a task, oldest first.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task}/messages", tag = "tasks", params(("task" = String, Path), PageQuery),
    responses((status = 200, body = Page<Message>))
)]
pub(in crate::v1) async fn messages(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(task): Id<TaskId>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Message>>, ApiError> {
    let part: Part<i64> = Part::of(page)?;
    found(&app, &caller, task).await?;
    let said = app.store.task_messages(&caller.scope, task, part.after.unwrap_or(0), part.to_fetch()).await;
    Ok(Json(part.page(said.map_err(ApiError::store)?, |said| said.number.to_string(), message)))
}

fn failure(failure: RunFailure) -> Failure {
    let RunFailure { code, message, step, not_undone } = failure;
    Failure { code: code.to_string(), message, step, not_undone }
}

fn attempt(row: AttemptRow) -> Attempt {
    Attempt {
        task_id: row.task.to_string(),
        number: row.number,
        run_id: row.run.to_string(),
        state: row.state,
        agent_id: row.agent.map(|agent| agent.to_string()),
        model: row.model,
        sandbox_id: row.note.sandbox.map(|sandbox| sandbox.to_string()),
        execution_id: row.note.execution.map(|execution| execution.to_string()),
        fork_id: row.competition.map(|competition| competition.to_string()),
        branch: row.note.branch,
        commit: row.note.commit,
        pull_url: row.note.pull_url,
        summary: row.note.summary,
        error: row.error.map(failure),
        input_tokens: row.note.input_tokens,
        output_tokens: row.note.output_tokens,
        agent_cost: row.note.cost_nanos.map(amount),
        reported: row.note.reported.map(|reported| ReportedUsage {
            input_tokens: reported.tokens.and_then(|tokens| i64::try_from(tokens.input).ok()),
            output_tokens: reported.tokens.and_then(|tokens| i64::try_from(tokens.output).ok()),
            cost: reported.cost_nanos.map(amount),
        }),
        created_at: rfc3339(row.created_ms),
        started_at: row.started_ms.map(rfc3339),
        ended_at: row.ended_ms.map(rfc3339),
    }
}

/// The attempts at a task, oldest first.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task}/attempts", tag = "tasks", params(("task" = String, Path)),
    responses((status = 200, body = Vec<Attempt>))
)]
pub(in crate::v1) async fn attempts(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(task): Id<TaskId>,
) -> Result<Json<Vec<Attempt>>, ApiError> {
    found(&app, &caller, task).await?;
    let rows = app.store.attempts(&caller.scope, task).await.map_err(ApiError::store)?;
    Ok(Json(rows.into_iter().map(attempt).collect()))
}

/// The attempts at all tasks of this project, newest first; an agent sees those at its own tasks.
#[utoipa::path(
    get, path = "/api/v1/attempts", tag = "tasks", params(PageQuery),
    responses((status = 200, body = Page<Attempt>))
)]
pub(in crate::v1) async fn newest_attempts(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Attempt>>, ApiError> {
    let part: Part<RunId> = Part::of(page)?;
    let rows = app.store.newest_attempts(&caller.scope, part.after, part.to_fetch()).await;
    Ok(Json(part.page(rows.map_err(ApiError::store)?, |row| row.run.to_string(), attempt)))
}

/// The state changes of a task, oldest first.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task}/history", tag = "tasks", params(("task" = String, Path)),
    responses((status = 200, body = Vec<Move>))
)]
pub(in crate::v1) async fn history(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(task): Id<TaskId>,
) -> Result<Json<Vec<Move>>, ApiError> {
    found(&app, &caller, task).await?;
    let moves = app.store.task_history(&caller.scope, task).await.map_err(ApiError::store)?;
    let shown = moves.into_iter().map(|moved| Move {
        from: moved.from,
        to: moved.to,
        reason: moved.reason,
        actor: moved.actor,
        at: rfc3339(moved.at_ms),
    });
    Ok(Json(shown.collect()))
}

fn step(row: StepRow) -> StepShape {
    let state = match row.state {
        StepState::UnderWay => StepStateShape::UnderWay,
        StepState::Done => StepStateShape::Done,
        StepState::Failed => StepStateShape::Failed,
        StepState::Undone => StepStateShape::Undone,
        StepState::UndoFailed => StepStateShape::UndoFailed,
    };
    StepShape {
        name: row.name,
        state,
        starts: row.starts,
        failures: row.failures,
        error: row.error.map(failure),
        started_at: rfc3339(row.started_ms),
        ended_at: row.ended_ms.map(rfc3339),
    }
}

/// The steps of the run of an attempt or of a competition, in order.
#[utoipa::path(
    get, path = "/api/v1/runs/{run}/steps", tag = "tasks", params(("run" = String, Path)),
    responses((status = 200, body = Vec<StepShape>))
)]
pub(in crate::v1) async fn steps(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(run): Id<RunId>,
) -> Result<Json<Vec<StepShape>>, ApiError> {
    let found = app.store.run(&caller.scope, run).await.map_err(ApiError::store)?;
    let nothing = || ApiError::nothing("run", run);
    let found = found.ok_or_else(nothing)?;
    if found.kind == coffer_flow::compete::KIND {
        // Only people see competitions.
        if caller.scope.agent().is_some() {
            return Err(nothing());
        }
    } else {
        let subject: TaskId = found.subject.parse().map_err(|_| nothing())?;
        // Callers that see the task see its runs: an agent sees only its own.
        let task = app.store.task(&caller.scope, subject).await.map_err(ApiError::store)?;
        task.ok_or_else(nothing)?;
    }
    let steps = app.store.run_steps(&caller.scope, run).await.map_err(ApiError::store)?;
    Ok(Json(steps.into_iter().map(step).collect()))
}
