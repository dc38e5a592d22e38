//! Schedules: tasks that start by the clock.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use coffer_core::clock::{now_ms, rfc3339};
use coffer_core::schedule::{BadSchedule, TaskTemplate, next_start};
use coffer_core::{Priority, ScheduleId};
use coffer_store::{Fired, MOST_SCHEDULES, ScheduleError, ScheduleRow, ScheduleTerms};
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::row::actor;
use super::shape;
use super::work::check_ready;
use crate::app::App;
use crate::auth::{Caller, Id, Need, Read, Write};
use crate::body::Checked;
use crate::context::Context;
use crate::error::ApiError;
use crate::query::Query;
use crate::v1::board::{amount, by_people, check_text};
use crate::v1::bounds::within;
use crate::v1::page::Part;
use crate::v1::projects::{changed_meanwhile, wanted_version};
use coffer_api_types::schedules::{
    ChangedSchedule, NewSchedule, Schedule, ScheduleRun, ScheduledTask, TaskOfSchedule,
};
use coffer_api_types::tasks::NewTask;
use coffer_api_types::{ErrorShape, Page, PageQuery};
use coffer_work::schedules::by_hand;

const LONGEST_NAME: usize = 100;

fn shown(row: ScheduleRow) -> Schedule {
    let task = row.template;
    Schedule {
        id: row.id.to_string(),
        name: row.name,
        cron: row.cron,
        time_zone: row.time_zone,
        overlap: row.overlap,
        enabled: row.enabled,
        task: TaskOfSchedule {
            title: task.title,
            description: task.description,
            priority: task.priority.unwrap_or_default(),
            labels: task.labels,
            repository: task.repository,
            base_branch: task.base_branch,
            agent_id: task.agent.map(|agent| agent.to_string()),
            model: task.model,
            check_command: task.check_command,
            check_tries: task.check_tries,
            budget: task.budget_nanos.map(amount),
            context_id: task.context_id,
        },
        next_at: row.next_ms.map(rfc3339),
        last_at: row.last_ms.map(rfc3339),
        last_outcome: row.last_outcome,
        last_message: row.last_message,
        last_task_id: row.last_task.map(|task| task.to_string()),
        created_by: row.created_by,
        version: row.version,
        created_at: rfc3339(row.created_ms),
        updated_at: rfc3339(row.updated_ms),
    }
}

fn tagged(row: ScheduleRow) -> (HeaderMap, Json<Schedule>) {
    let tag = HeaderValue::try_from(format!("\"{}\"", row.version)).expect("digits in quotes");
    (HeaderMap::from_iter([(header::ETAG, tag)]), Json(shown(row)))
}

fn refusal(error: ScheduleError, schedule: ScheduleId) -> ApiError {
    match error {
        ScheduleError::NotFound => ApiError::nothing("schedule", schedule),
        ScheduleError::Changed => changed_meanwhile(),
        ScheduleError::TooMany => {
            ApiError::conflict(format!("a project may have {MOST_SCHEDULES} schedules"))
                .hint("delete one with DELETE /api/v1/schedules/{schedule}")
        }
        ScheduleError::NameTaken => ApiError::conflict("another schedule of the project has this name"),
        ScheduleError::Store(error) => ApiError::store(error),
    }
}

/// The time of the next start, if cron and zone say one.
fn next(cron: &str, zone: &str, enabled: bool) -> Result<Option<i64>, ApiError> {
    let next = next_start(cron, zone, now_ms()).map_err(|error| {
        let field = if matches!(error, BadSchedule::Zone(_)) { "time_zone" } else { "cron" };
        let refused = ApiError::invalid(field, &error);
        match error {
            BadSchedule::Zone(_) => refused.hint("zones are those of the server's tz database (tzdata)"),
            _ => refused,
        }
    })?;
    Ok(next.filter(|_| enabled))
}

/// The checked template of a task that could start now.
async fn template(app: &App, caller: &Caller<Write>, task: ScheduledTask) -> Result<TaskTemplate, ApiError> {
    within("check_tries", task.check_tries, 0, super::MOST_CHECK_TRIES)?;
    let (agent, check_tries) = (task.agent_id, task.check_tries);
    let new = NewTask {
        description: task.description,
        priority: task.priority,
        labels: task.labels,
        repository: task.repository,
        base_branch: task.base_branch,
        agent_id: Some(agent),
        model: task.model,
        check_command: task.check_command,
        budget: task.budget,
        context_id: task.context_id,
        ..NewTask::titled(task.title)
    };
    let new = shape::checked_new(new)?;
    check_ready(app, caller, Some(agent), new.repository.is_some()).await?;
    Ok(TaskTemplate {
        title: new.title,
        description: new.description,
        priority: new.priority.or(Some(Priority::Medium)),
        labels: new.labels,
        repository: new.repository,
        base_branch: new.base_branch,
        agent: Some(agent),
        model: new.model,
        check_command: new.check_command,
        check_tries,
        budget_nanos: new.budget_nanos,
        context_id: new.context_id,
    })
}

fn check_name(name: &str) -> Result<(), ApiError> {
    check_text("name", Some(name), LONGEST_NAME)?;
    let fits = name.trim() == name && !name.chars().any(char::is_control);
    if fits {
        Ok(())
    } else {
        Err(ApiError::invalid("name", "must be on one line, without spaces around it"))
    }
}

async fn found(app: &App, caller: &Caller<impl Need>, schedule: ScheduleId) -> Result<ScheduleRow, ApiError> {
    let row = app.store.schedule(&caller.scope, schedule).await.map_err(ApiError::store)?;
    row.ok_or_else(|| ApiError::nothing("schedule", schedule))
}

/// Creates a schedule, which creates and starts a task each time.
#[utoipa::path(
    post, path = "/api/v1/schedules", tag = "schedules", request_body = NewSchedule,
    responses(
        (status = 201, body = Schedule, headers(("ETag" = String))),
        (status = 409, body = ErrorShape, description = "there are too many, or another has this name")
    )
)]
pub(in crate::v1) async fn create(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    Checked(new): Checked<NewSchedule>,
) -> Result<(StatusCode, HeaderMap, Json<Schedule>), ApiError> {
    by_people(&caller)?;
    check_name(&new.name)?;
    let zone = new.time_zone.unwrap_or_else(|| "UTC".into());
    let terms = ScheduleTerms {
        next_ms: next(&new.cron, &zone, new.enabled)?,
        template: template(&app, &caller, new.task).await?,
        name: new.name,
        cron: new.cron,
        time_zone: zone,
        overlap: new.overlap,
        enabled: new.enabled,
    };
    let made = app.store.create_schedule(&caller.scope, terms, &actor(&caller)).await;
    let made = made.map_err(|error| refusal(error, ScheduleId::generate()))?;
    context.made(made.id);
    let (headers, body) = tagged(made);
    Ok((StatusCode::CREATED, headers, body))
}

/// The schedules of this project.
#[utoipa::path(
    get, path = "/api/v1/schedules", tag = "schedules", params(PageQuery),
    responses((status = 200, body = Page<Schedule>))
)]
pub(in crate::v1) async fn list(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Query(page): Query<PageQuery>,
) -> Result<Json<Page<Schedule>>, ApiError> {
    let part: Part<ScheduleId> = Part::of(page)?;
    let rows = app.store.schedules(&caller.scope, part.after, part.to_fetch()).await;
    Ok(Json(part.page(rows.map_err(ApiError::store)?, |row| row.id.to_string(), shown)))
}

/// One schedule.
#[utoipa::path(
    get, path = "/api/v1/schedules/{schedule}", tag = "schedules", params(("schedule" = String, Path)),
    responses((status = 200, body = Schedule, headers(("ETag" = String))))
)]
pub(in crate::v1) async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller<Read>,
    Id(schedule): Id<ScheduleId>,
) -> Result<(HeaderMap, Json<Schedule>), ApiError> {
    found(&app, &caller, schedule).await.map(tagged)
}

/// Changes a schedule; `"enabled": false` pauses it.
#[utoipa::path(
    patch, path = "/api/v1/schedules/{schedule}", tag = "schedules", request_body = ChangedSchedule,
    params(
        ("schedule" = String, Path),
        ("If-Match" = Option<String>, Header, description = "the ETag that the change is meant for")
    ),
    responses(
        (status = 200, body = Schedule, headers(("ETag" = String))),
        (status = 409, body = ErrorShape, description = "another has this name"),
        (status = 412, body = ErrorShape)
    )
)]
pub(in crate::v1) async fn change(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(schedule): Id<ScheduleId>,
    headers: HeaderMap,
    Checked(change): Checked<ChangedSchedule>,
) -> Result<(HeaderMap, Json<Schedule>), ApiError> {
    by_people(&caller)?;
    let version = wanted_version(&headers)?;
    let before = found(&app, &caller, schedule).await?;
    if let Some(name) = &change.name {
        check_name(name)?;
    }
    let keeps_time = change.cron.is_none() && change.time_zone.is_none() && change.enabled.is_none();
    let cron = change.cron.unwrap_or(before.cron);
    let time_zone = change.time_zone.unwrap_or(before.time_zone);
    let enabled = change.enabled.unwrap_or(before.enabled);
    let next_ms = if keeps_time { before.next_ms } else { next(&cron, &time_zone, enabled)? };
    let template = match change.task {
        Some(task) => template(&app, &caller, task).await?,
        None => before.template,
    };
    let terms = ScheduleTerms {
        name: change.name.unwrap_or(before.name),
        cron,
        time_zone,
        template,
        overlap: change.overlap.unwrap_or(before.overlap),
        enabled,
        next_ms,
    };
    // What was read here must still be so.
    let version = version.or(Some(before.version));
    let changed = app.store.set_schedule(&caller.scope, schedule, version, terms, &actor(&caller)).await;
    Ok(tagged(changed.map_err(|error| refusal(error, schedule))?))
}

/// Deletes a schedule; its tasks stay.
#[utoipa::path(
    delete, path = "/api/v1/schedules/{schedule}", tag = "schedules", params(("schedule" = String, Path)),
    responses((status = 204))
)]
pub(in crate::v1) async fn remove(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    Id(schedule): Id<ScheduleId>,
) -> Result<StatusCode, ApiError> {
    by_people(&caller)?;
    let removed = app.store.delete_schedule(&caller.scope, schedule, &actor(&caller)).await;
    removed.map_err(|error| refusal(error, schedule))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Starts the task of a schedule now, also of a paused one, and also if its last task is open. Its next time stays.
#[utoipa::path(
    post, path = "/api/v1/schedules/{schedule}/run", tag = "schedules", params(("schedule" = String, Path)),
    responses(
        (status = 202, body = ScheduleRun),
        (status = 409, body = ErrorShape, description = "too many of its tasks are open, or it cannot start")
    )
)]
pub(in crate::v1) async fn run(
    State(app): State<Arc<App>>,
    caller: Caller<Write>,
    context: Context,
    Id(schedule): Id<ScheduleId>,
) -> Result<(StatusCode, Json<ScheduleRun>), ApiError> {
    by_people(&caller)?;
    let row = found(&app, &caller, schedule).await?;
    let fired = app.store.fire_schedule(by_hand(row, actor(&caller))).await.map_err(ApiError::store)?;
    match fired {
        Fired::Started(task, run) => {
            context.made(task);
            app.tasks.wake();
            let started = ScheduleRun { task_id: task.to_string(), run_id: run.to_string() };
            Ok((StatusCode::ACCEPTED, Json(started)))
        }
        Fired::Skipped(why) | Fired::Failed(why) => {
            Err(ApiError::conflict(format!("the schedule starts no task: {why}")))
        }
        Fired::Gone => Err(ApiError::conflict("the schedule has changed meanwhile").hint("try again")),
    }
}
