//! Tasks. Their attempts and messages are in `work`.

mod origin;
mod row;
mod rules;
pub(super) mod schedules;
mod shape;
mod wait;
mod work;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::{Priority, TaskId, TaskState};
use coffer_store::{NewTask as NewRow, Place, TaskEdit, TaskFilter, TaskOrder};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::board::{by_people, refusal};
use super::bounds::within;
use super::page::Part;
use super::projects::wanted_version;
use super::repositories::plain_name;
use crate::app::App;
use crate::auth::{Caller, Id, Read, Write};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
use coffer_api_types::tasks::{ChangedTask, NewTask, OnReview, PlaceShape, Task, TaskQuery};
use coffer_api_types::{ErrorShape, Page, PageQuery};
pub(super) use row::found;
use row::{actor, tagged};
pub(super) use wait::*;
pub(super) use work::*;

const MOST_CHECK_TRIES: i64 = 10;
const LONGEST_SEARCH: usize = 200;
const MOST_WORDS: usize = 8;

/// A position in a list of tasks: after this place and task.
#[derive(Debug, Clone, Copy)]
struct After(i64, TaskId);

impl std::str::FromStr for After {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (place, task) = text.split_once('.').ok_or(())?;
        Ok(Self(place.parse().map_err(drop)?, task.parse().map_err(drop)?))
    }
}

/// Puts a task on the board, at the end of its column. With `issue_url` the task is for that issue, and the open task for
/// it is returned if there is one.
#[utoipa::path(
    post, path = "/api/v1/tasks", tag = "tasks", request_body = NewTask,
    responses(
        (status = 201, body = Task, headers(("ETag" = String), ("Location" = String))),
        (status = 200, body = Task, headers(("ETag" = String), ("Location" = String)),
            description = "the open task for this issue"),
        (status = 409, body = ErrorShape, description = "no connection leads to the forge of the address")
    )
)]
pub(super) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    asked_at: HeaderMap,
    Checked(mut request): Checked<NewTask>,
) -> Result<(StatusCode, HeaderMap, Json<Task>), ApiError> {
    by_people(&caller)?;
    let (on_review, check_tries) = (request.on_review, request.check_tries);
    within("check_tries", check_tries, 0, MOST_CHECK_TRIES)?;
    let origin = origin::of(&app, &caller, &mut request, &asked_at).await?;
    let another = request.another;
    let request = shape::checked_new(request)?;
    let has_repository = request.repository.is_some();
    let asked = rules::Asked { agent: request.agent_id, state: request.state, has_repository };
    let cause = rules::cause(&app, &caller, None, &asked).await?;
    let new = NewRow {
        title: request.title,
        description: request.description,
        state: request.state.unwrap_or(TaskState::Todo),
        priority: request.priority.unwrap_or_default(),
        labels: request.labels,
        repository: request.repository,
        base_branch: request.base_branch,
        agent: request.agent_id,
        model: request.model,
        check_command: request.check_command,
        budget_nanos: request.budget_nanos,
        context_id: request.context_id,
        actor: actor(&caller),
    };
    let made = match origin {
        None => app.store.create_task(&caller.scope, new).await.map(|task| (task, true)),
        Some(issue) => app.store.create_task_for_issue(&caller.scope, new, issue, another).await,
    };
    let (mut task, is_new) = made.map_err(|error| refusal(error, TaskId::generate()))?;
    if is_new {
        context.made(task.id);
    }
    if is_new && on_review == OnReview::Start {
        let set = app.store.set_on_review(&caller.scope, task.id, true).await;
        set.map_err(|error| refusal(error, task.id))?;
        task = found(&app, &caller, task.id).await?;
    }
    if check_tries.is_some() {
        let set = app.store.set_check_tries(&caller.scope, task.id, check_tries, &actor(&caller)).await;
        set.map_err(|error| refusal(error, task.id))?;
        task = found(&app, &caller, task.id).await?;
    }
    if let Some(cause) = cause.filter(|_| is_new) {
        task = rules::start(&app, &caller, &task, cause).await?;
    }
    let place = HeaderValue::try_from(format!("/api/v1/tasks/{}", task.id)).expect("letters and digits");
    let (mut headers, body) = tagged(task);
    headers.insert(header::LOCATION, place);
    Ok((if is_new { StatusCode::CREATED } else { StatusCode::OK }, headers, body))
}

/// The tasks of this project; an agent sees only its own.
#[utoipa::path(
    get, path = "/api/v1/tasks", tag = "tasks", params(PageQuery, TaskQuery),
    responses((status = 200, body = Page<Task>))
)]
pub(super) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
    Query(query): Query<TaskQuery>,
) -> Result<Json<Page<Task>>, ApiError> {
    let part: Part<After> = Part::of(page)?;
    let state = query.state.map(|text| TaskState::parse(&text).ok_or("state"));
    let priority = query.priority.map(|text| Priority::parse(&text).ok_or("priority"));
    let unknown = |field: &str| ApiError::invalid(field, "is not a known value");
    let order = match query.order.as_deref() {
        None | Some("newest") => TaskOrder::Newest,
        Some("board") => TaskOrder::Board,
        Some(_) => return Err(ApiError::invalid("order", "must be newest or board")),
    };
    let filter = TaskFilter {
        state: state.transpose().map_err(unknown)?,
        priority: priority.transpose().map_err(unknown)?,
        agent: query.agent_id,
        label: query.label,
        repository: query.repository.as_deref().map(plain_name).map(String::from),
        context_id: query.context_id,
        words: words(query.q.as_deref())?,
        attention: query.needs_attention,
        archived: query.archived.unwrap_or(false),
        order,
        after: part.after.map(|After(place, task)| (place, task)),
        limit: part.to_fetch(),
    };
    let tasks = app.store.tasks(&caller.scope, &filter).await.map_err(ApiError::store)?;
    Ok(Json(part.page(tasks, |task| format!("{}.{}", task.place, task.id), shape::shown)))
}

/// The words of a search.
fn words(text: Option<&str>) -> Result<Vec<String>, ApiError> {
    let text = text.unwrap_or_default();
    if text.len() > LONGEST_SEARCH || text.contains('\0') {
        return Err(ApiError::invalid(
            "q",
            format!("must have at most {LONGEST_SEARCH} bytes, none of them NUL"),
        ));
    }
    Ok(text.split_whitespace().take(MOST_WORDS).map(String::from).collect())
}

/// One task.
#[utoipa::path(
    get, path = "/api/v1/tasks/{task}", tag = "tasks", params(("task" = String, Path)),
    responses((status = 200, body = Task, headers(("ETag" = String))))
)]
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(task): Id<TaskId>,
) -> Result<(HeaderMap, Json<Task>), ApiError> {
    found(&app, &caller, task).await.map(tagged)
}

/// Changes a task: fields that are left out stay, and null clears an optional field.
#[utoipa::path(
    patch, path = "/api/v1/tasks/{task}", tag = "tasks", request_body = ChangedTask,
    params(
        ("task" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")
    ),
    responses(
        (status = 200, body = Task, headers(("ETag" = String))),
        (status = 409, body = ErrorShape, description = "an attempt in progress depends on the changed fields"),
        (status = 412, body = ErrorShape)
    )
)]
pub(super) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(task): Id<TaskId>,
    headers: HeaderMap,
    Checked(request): Checked<ChangedTask>,
) -> Result<(HeaderMap, Json<Task>), ApiError> {
    by_people(&caller)?;
    let (on_review, check_tries) = (request.on_review, request.check_tries);
    within("check_tries", check_tries.flatten(), 0, MOST_CHECK_TRIES)?;
    let request = shape::checked_change(request)?;
    let place = match request.place {
        None => None,
        Some(PlaceShape::First) => Some(Place::First),
        Some(PlaceShape::Last) => Some(Place::Last),
        Some(PlaceShape::After(other)) if other == task => {
            return Err(ApiError::invalid("place.after", "is the task itself"));
        }
        Some(PlaceShape::After(other)) => Some(Place::After(other)),
    };
    let edit = TaskEdit {
        title: request.title,
        description: request.description,
        state: request.state,
        place,
        priority: request.priority,
        labels: request.labels,
        repository: request.repository,
        base_branch: request.base_branch,
        agent: request.agent_id,
        model: request.model,
        check_command: request.check_command,
        budget_nanos: request.budget_nanos,
        context_id: request.context_id,
        archived: request.archived,
        attention_over: request.needs_attention == Some(false),
    };
    let version = wanted_version(&headers)?;
    let before = found(&app, &caller, task).await?;
    let asked = rules::Asked {
        agent: edit.agent.flatten(),
        state: edit.state,
        has_repository: edit.repository.as_ref().map_or(before.repository.is_some(), Option::is_some),
    };
    let cause = rules::cause(&app, &caller, Some(&before), &asked).await?;
    let changed = app.store.edit_task(&caller.scope, task, version, edit, &actor(&caller)).await;
    let mut changed = changed.map_err(|error| refusal(error, task))?;
    if let Some(on_review) = on_review {
        let set = app.store.set_on_review(&caller.scope, task, on_review == OnReview::Start).await;
        set.map_err(|error| refusal(error, task))?;
        changed = found(&app, &caller, task).await?;
    }
    if let Some(check_tries) = check_tries {
        let set = app.store.set_check_tries(&caller.scope, task, check_tries, &actor(&caller)).await;
        set.map_err(|error| refusal(error, task))?;
        changed = found(&app, &caller, task).await?;
    }
    if let Some(cause) = cause {
        changed = rules::start(&app, &caller, &changed, cause).await?;
    }
    Ok(tagged(changed))
}

/// Deletes a task with its attempts and messages; archiving keeps them.
#[utoipa::path(
    delete, path = "/api/v1/tasks/{task}", tag = "tasks", params(("task" = String, Path)),
    responses((status = 204), (status = 409, body = ErrorShape, description = "an attempt is in progress"))
)]
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(task): Id<TaskId>,
) -> Result<StatusCode, ApiError> {
    by_people(&caller)?;
    let removed = app.store.delete_task(&caller.scope, task).await;
    removed.map_err(|error| refusal(error, task))?;
    app.fleet.forget_task(task);
    Ok(StatusCode::NO_CONTENT)
}
