//! Attempts that wait for a person: at a budget, or interrupted.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::{Answer, TaskId};
use coffer_store::{GivenAnswer, QuestionRow};
use http::{HeaderMap, StatusCode};

use super::row::{actor, found, tagged};
use crate::app::App;
use crate::auth::{Caller, Id, Read, Write};
use crate::body::Checked;
use crate::error::ApiError;
use crate::v1::board::{amount, by_people, nanos, refusal};
use coffer_api_types::ErrorShape;
use coffer_api_types::attempts::{NewAnswer, TaskQuestion};
use coffer_api_types::tasks::Task;
use coffer_core::clock::rfc3339;

fn shown(row: &QuestionRow) -> TaskQuestion {
    TaskQuestion {
        task_id: row.task.to_string(),
        run_id: row.run.to_string(),
        turn: row.number,
        kind: row.kind,
        message: row.message.clone(),
        spent: row.spent_nanos.map(amount),
        budget: row.budget_nanos.map(amount),
        answers: row.kind.answers().collect(),
        asked_at: rfc3339(row.asked_ms),
        until: rfc3339(row.until_ms),
    }
}

/// What the attempt in progress waits for a person to say: it is at a budget, or was interrupted.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task}/question", tag = "tasks", params(("task" = String, Path)),
    responses(
        (status = 200, body = TaskQuestion),
        (status = 404, body = ErrorShape, description = "no such task, or it waits for nothing")
    )
)]
pub(in crate::v1) async fn question(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(task): Id<TaskId>,
) -> Result<Json<TaskQuestion>, ApiError> {
    found(&app, &caller, task).await?;
    let asked = app.store.open_question(&caller.scope, task).await.map_err(ApiError::store)?;
    let asked = asked.ok_or_else(|| ApiError::nothing("open question of task", task))?;
    Ok(Json(shown(&asked)))
}

/// Answers what an attempt waits for. Only people can; the first answer counts.
#[utoipa::path(
    post, path = "/api/v1/tasks/{task}/answer", tag = "tasks", params(("task" = String, Path)),
    request_body = NewAnswer,
    responses(
        (status = 200, body = Task, headers(("ETag" = String))),
        (status = 409, body = ErrorShape, description = "it waits for nothing, or for another answer")
    )
)]
pub(in crate::v1) async fn answer(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(task): Id<TaskId>,
    Checked(request): Checked<NewAnswer>,
) -> Result<(HeaderMap, Json<Task>), ApiError> {
    by_people(&caller)?;
    let budget_nanos = request.budget.map(nanos).transpose()?;
    match (request.answer, budget_nanos) {
        (Answer::Raise, None) => {
            return Err(ApiError::invalid("budget", "is needed to raise it: the new budget of the task"));
        }
        (Answer::Raise, Some(_)) | (_, None) => {}
        (_, Some(_)) => return Err(ApiError::invalid("budget", "belongs to the answer `raise`")),
    }
    if request.answer == Answer::Unanswered {
        return Err(ApiError::invalid("answer", "must be raise, go_on, finish or stop"));
    }
    let given = GivenAnswer { answer: request.answer, budget_nanos };
    let answered = app.store.answer_question(&caller.scope, task, given, &actor(&caller)).await;
    answered.map_err(|error| refusal(error, task))?;
    app.tasks.wake();
    found(&app, &caller, task).await.map(tagged)
}

/// Stops the turn that the task's agent works on: Ctrl-C, and a kill if it does not end. Its sandbox and its work stay, and the
/// attempt waits for what a person says next: a message, or an answer.
#[utoipa::path(
    post, path = "/api/v1/tasks/{task}/interrupt", tag = "tasks", params(("task" = String, Path)),
    responses(
        (status = 202, body = Task, headers(("ETag" = String))),
        (status = 409, body = ErrorShape, description = "no agent is working on the task now")
    )
)]
pub(in crate::v1) async fn interrupt(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(task): Id<TaskId>,
) -> Result<(StatusCode, HeaderMap, Json<Task>), ApiError> {
    by_people(&caller)?;
    let asked = app.store.interrupt_task(&caller.scope, task, &actor(&caller)).await;
    asked.map_err(|error| refusal(error, task))?;
    let (headers, body) = found(&app, &caller, task).await.map(tagged)?;
    Ok((StatusCode::ACCEPTED, headers, body))
}
