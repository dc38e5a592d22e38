//! Schedules: tasks that start by the clock.
//!
//! A schedule has the time of its next start. The server that moves it to the one after creates and starts the task in the
//! same transaction: with several servers, and over a crash, each time starts once. After a time without servers the times
//! that were missed are one start.

use coffer_core::event::{Event, ScheduleNote};
use coffer_core::schedule::{Overlap, TaskTemplate};
use coffer_core::{Millis, Priority, ProjectId, RunId, ScheduleId, TaskId, TaskState};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::attempts::{StartTask, begin};
use super::{NewTask, TaskError, insert};
use crate::columns::{
    from_json, id, json as to_json, name, number, optional_id, optional_text, storable, text,
};
use crate::error::Doing;
use crate::projects::lock_project;
use crate::runs;
use crate::select::Select;
use crate::{Operator, ProjectScope, RunFailure, Store, StoreError, events, now_ms};

const READ: &str = "read schedules";
const CHANGE: &str = "change a schedule";
/// Most schedules of a project.
pub const MOST_SCHEDULES: i64 = 50;
/// Most open tasks of one schedule, also of one that does not skip.
pub const MOST_OPEN: i64 = 10;

/// A schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRow {
    pub id: ScheduleId,
    pub project: ProjectId,
    pub name: String,
    pub cron: String,
    pub time_zone: String,
    pub template: TaskTemplate,
    pub overlap: Overlap,
    pub enabled: bool,
    pub next_ms: Option<Millis>,
    pub last_ms: Option<Millis>,
    pub last_task: Option<TaskId>,
    /// `started`, `skipped` or `failed`.
    pub last_outcome: Option<String>,
    pub last_message: Option<String>,
    pub created_by: Option<String>,
    pub version: i64,
    pub created_ms: Millis,
    pub updated_ms: Millis,
}

/// What people set of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleTerms {
    pub name: String,
    pub cron: String,
    pub time_zone: String,
    pub template: TaskTemplate,
    pub overlap: Overlap,
    pub enabled: bool,
    /// By its cron and zone; none while it is paused.
    pub next_ms: Option<Millis>,
}

/// A time at which a schedule starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    pub schedule: ScheduleRow,
    /// The task's template for that day.
    pub template: TaskTemplate,
    /// The time after this one; for a start by hand the time stays.
    pub then_ms: Option<Millis>,
    /// The caller, for a start by hand.
    pub by: Option<String>,
}

/// What a schedule did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    Started(TaskId, RunId),
    /// A task of it is still open.
    Skipped(String),
    /// It cannot start, for example because its agent was removed.
    Failed(String),
    /// Another server did it, or the schedule has changed.
    Gone,
}

/// Why a schedule was not created, changed or started.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ScheduleError {
    #[error("schedule not found")]
    NotFound,
    #[error("the schedule has changed since it was read")]
    Changed,
    #[error("a project may have at most {MOST_SCHEDULES} schedules")]
    TooMany,
    #[error("another schedule has this name")]
    NameTaken,
    #[error(transparent)]
    Store(#[from] StoreError),
}

const COLUMNS: &str = "id, project_id, name, cron, time_zone, template, overlap, enabled, next_ms, last_ms, last_task_id, \
                       last_outcome, last_message, created_by, version, created_ms, updated_ms";

impl Store {
    pub async fn create_schedule(
        &self,
        scope: &ProjectScope,
        terms: ScheduleTerms,
        actor: &str,
    ) -> Result<ScheduleRow, ScheduleError> {
        let (project, actor) = (scope.project(), actor.to_string());
        let create = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, project, CHANGE).await?;
                let row = sqlx::query("SELECT COUNT(*) AS number FROM schedules WHERE project_id = $1")
                    .bind(project)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                if number(&row, "number")? >= MOST_SCHEDULES {
                    return Err(ScheduleError::TooMany);
                }
                check_name(connection, project, &terms.name, None).await?;
                let (schedule, now) = (ScheduleId::generate(), now_ms());
                let sql = format!(
                    "INSERT INTO schedules (id, project_id, name, cron, time_zone, template, overlap, enabled, next_ms,
                         created_by, version, created_ms, updated_ms)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 1, $11, $11) RETURNING {COLUMNS}"
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(schedule)
                    .bind(project)
                    .bind(storable(&terms.name))
                    .bind(terms.cron)
                    .bind(terms.time_zone)
                    .bind(to_json(&terms.template))
                    .bind(terms.overlap.as_str())
                    .bind(i64::from(terms.enabled))
                    .bind(terms.next_ms)
                    .bind(actor.clone())
                    .bind(now)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let row = read(&row)?;
                tell(connection, &row, Event::ScheduleCreated, Some(actor), None, None).await?;
                Ok(row)
            })
        });
        create.await
    }

    pub async fn schedules(
        &self,
        scope: &ProjectScope,
        after: Option<ScheduleId>,
        limit: u32,
    ) -> Result<Vec<ScheduleRow>, StoreError> {
        Select::new(COLUMNS, "schedules")
            .filter("project_id = ?", scope.project())
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    pub async fn schedule(
        &self,
        scope: &ProjectScope,
        schedule: ScheduleId,
    ) -> Result<Option<ScheduleRow>, StoreError> {
        Select::new(COLUMNS, "schedules")
            .filter("id = ?", schedule)
            .filter("project_id = ?", scope.project())
            .one(self.database(), READ, read)
            .await
    }

    /// Replaces what people set, if the version matches.
    pub async fn set_schedule(
        &self,
        scope: &ProjectScope,
        schedule: ScheduleId,
        version: Option<i64>,
        terms: ScheduleTerms,
        actor: &str,
    ) -> Result<ScheduleRow, ScheduleError> {
        let (project, actor) = (scope.project(), actor.to_string());
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                lock_project(connection, project, CHANGE).await?;
                let before = held(connection, project, schedule).await?;
                if version.is_some_and(|version| version != before.version) {
                    return Err(ScheduleError::Changed);
                }
                check_name(connection, project, &terms.name, Some(schedule)).await?;
                let sql = format!(
                    "UPDATE schedules SET name = $1, cron = $2, time_zone = $3, template = $4, overlap = $5, enabled = $6,
                         next_ms = $7, updated_ms = $8, version = version + 1
                     WHERE id = $9 AND project_id = $10 RETURNING {COLUMNS}"
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(storable(&terms.name))
                    .bind(terms.cron)
                    .bind(terms.time_zone)
                    .bind(to_json(&terms.template))
                    .bind(terms.overlap.as_str())
                    .bind(i64::from(terms.enabled))
                    .bind(terms.next_ms)
                    .bind(now_ms())
                    .bind(schedule)
                    .bind(project)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let row = read(&row)?;
                tell(connection, &row, Event::ScheduleChanged, Some(actor), None, None).await?;
                Ok(row)
            })
        });
        set.await
    }

    /// Deletes a schedule; its tasks stay.
    pub async fn delete_schedule(
        &self,
        scope: &ProjectScope,
        schedule: ScheduleId,
        actor: &str,
    ) -> Result<(), ScheduleError> {
        let (project, actor) = (scope.project(), actor.to_string());
        let delete = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let before = held(connection, project, schedule).await?;
                sqlx::query("DELETE FROM schedules WHERE id = $1 AND project_id = $2")
                    .bind(schedule)
                    .bind(project)
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                tell(connection, &before, Event::ScheduleRemoved, Some(actor), None, None).await?;
                Ok(())
            })
        });
        delete.await
    }

    /// The schedules whose time has come, the longest overdue first; not of removed projects.
    pub async fn due_schedules(
        &self,
        _: &Operator,
        now: Millis,
        limit: u32,
    ) -> Result<Vec<ScheduleRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM schedules WHERE next_ms <= $1
                 AND project_id IN (SELECT id FROM projects WHERE removed_ms IS NULL)
             ORDER BY next_ms, id LIMIT $2"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(now)
            .bind(i64::from(limit))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        rows.iter().map(read).collect()
    }

    /// Starts the task of a schedule, in the transaction that moves the schedule to its next time. Does nothing if that
    /// time was moved meanwhile.
    pub async fn fire_schedule(&self, firing: Firing) -> Result<Fired, StoreError> {
        let fired = self.try_fire(firing.clone()).await;
        let why = match fired {
            Ok(fired) => return Ok(fired),
            Err(TaskError::Store(error)) => return Err(error),
            Err(error) => error.to_string(),
        };
        // Nothing of it was written: the time is over all the same.
        let write = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                if !claim(connection, &firing).await? {
                    return Ok(Fired::Gone);
                }
                conclude(connection, &firing, Fired::Failed(why)).await
            })
        });
        write.await
    }

    async fn try_fire(&self, firing: Firing) -> Result<Fired, TaskError> {
        let here = self.installation();
        let scope = self.operator().acting_for(firing.schedule.project, None);
        let fire = self.database().write("start the task of a schedule", move |connection| {
            Box::pin(async move {
                if !claim(connection, &firing).await? {
                    return Ok(Fired::Gone);
                }
                let open = open_tasks(connection, &firing.schedule).await?;
                let most = match (firing.schedule.overlap, &firing.by) {
                    // A person who starts it knows.
                    (_, Some(_)) | (Overlap::Start, None) => MOST_OPEN,
                    (Overlap::Skip, None) => 1,
                };
                if open >= most {
                    let why = match most {
                        1 => "its last task is still open".to_string(),
                        most => format!("{most} of its tasks are open"),
                    };
                    return Ok(conclude(connection, &firing, Fired::Skipped(why)).await?);
                }
                let actor = firing.by.clone().unwrap_or_else(|| format!("schedule:{}", firing.schedule.id));
                let task = create(connection, &firing, &actor).await?;
                let reason = "started by its schedule";
                let start = StartTask { agent: None, model: None, replace: false, reason, actor };
                let (_, run) = begin(connection, &scope, task, start, None).await?;
                runs::place(connection, run, here).await?;
                Ok(conclude(connection, &firing, Fired::Started(task, run)).await?)
            })
        });
        fire.await
    }
}

/// Moves a schedule to its next time; false if another server did. Locks its row.
async fn claim(connection: &mut AnyConnection, firing: &Firing) -> Result<bool, StoreError> {
    let (schedule, is_by_hand) = (&firing.schedule, firing.by.is_some());
    // A start by hand moves no time, and counts also if the schedule is paused.
    let sql = if is_by_hand {
        "UPDATE schedules SET version = version WHERE id = $1 AND project_id = $2 AND version = $3"
    } else {
        "UPDATE schedules SET next_ms = $4 WHERE id = $1 AND project_id = $2 AND version = $3 AND next_ms = $5"
    };
    let query = sqlx::query(sql).bind(schedule.id).bind(schedule.project).bind(schedule.version);
    let query = if is_by_hand { query } else { query.bind(firing.then_ms).bind(schedule.next_ms) };
    Ok(query.execute(connection).await.doing(CHANGE)?.rows_affected() > 0)
}

async fn open_tasks(connection: &mut AnyConnection, schedule: &ScheduleRow) -> Result<i64, StoreError> {
    let row = sqlx::query(
        "SELECT COUNT(*) AS number FROM tasks
         WHERE schedule_id = $1 AND project_id = $2 AND archived_ms IS NULL AND state NOT IN ('done', 'cancelled')",
    )
    .bind(schedule.id)
    .bind(schedule.project)
    .fetch_one(connection)
    .await
    .doing(READ)?;
    number(&row, "number")
}

async fn create(connection: &mut AnyConnection, firing: &Firing, actor: &str) -> Result<TaskId, TaskError> {
    let TaskTemplate {
        title,
        description,
        priority,
        labels,
        repository,
        base_branch,
        agent,
        model,
        check_command,
        check_tries,
        budget_nanos,
        context_id,
    } = firing.template.clone();
    let new = NewTask {
        title,
        description,
        state: TaskState::Todo,
        priority: priority.unwrap_or(Priority::Medium),
        labels,
        repository,
        base_branch,
        agent,
        model,
        check_command,
        budget_nanos,
        context_id,
        actor: actor.to_string(),
    };
    let task = insert(connection, firing.schedule.project, new).await?;
    sqlx::query("UPDATE tasks SET schedule_id = $1, check_tries = $2 WHERE id = $3")
        .bind(firing.schedule.id)
        .bind(check_tries)
        .bind(task.id)
        .execute(connection)
        .await
        .doing(CHANGE)?;
    Ok(task.id)
}

/// Records what a schedule did.
async fn conclude(
    connection: &mut AnyConnection,
    firing: &Firing,
    fired: Fired,
) -> Result<Fired, StoreError> {
    let (outcome, task, why) = match &fired {
        Fired::Started(task, _) => ("started", Some(*task), None),
        Fired::Skipped(why) => ("skipped", None, Some(RunFailure::storable(why))),
        Fired::Failed(why) => ("failed", None, Some(RunFailure::storable(why))),
        Fired::Gone => return Ok(fired),
    };
    let sql = format!(
        "UPDATE schedules SET last_ms = $1, last_outcome = $2, last_message = $3,
             last_task_id = COALESCE($4, last_task_id)
         WHERE id = $5 AND project_id = $6 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(now_ms())
        .bind(outcome)
        .bind(why.clone())
        .bind(task)
        .bind(firing.schedule.id)
        .bind(firing.schedule.project)
        .fetch_one(&mut *connection)
        .await
        .doing(CHANGE)?;
    let event = match &fired {
        Fired::Started(..) => Event::ScheduleStarted,
        Fired::Skipped(_) => Event::ScheduleSkipped,
        Fired::Failed(_) | Fired::Gone => Event::ScheduleFailed,
    };
    tell(connection, &read(&row)?, event, firing.by.clone(), task, why).await?;
    Ok(fired)
}

async fn tell(
    connection: &mut AnyConnection,
    row: &ScheduleRow,
    event: fn(ScheduleNote) -> Event,
    actor: Option<String>,
    task: Option<TaskId>,
    reason: Option<String>,
) -> Result<(), StoreError> {
    let note = ScheduleNote { name: row.name.clone(), task, reason, actor };
    events::record(connection, row.project, row.id, event(note), now_ms()).await
}

/// The schedule, with its row locked until the transaction ends.
async fn held(
    connection: &mut AnyConnection,
    project: ProjectId,
    schedule: ScheduleId,
) -> Result<ScheduleRow, ScheduleError> {
    let sql = format!(
        "UPDATE schedules SET version = version WHERE id = $1 AND project_id = $2 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(schedule)
        .bind(project)
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    Ok(read(&row.ok_or(ScheduleError::NotFound)?)?)
}

async fn check_name(
    connection: &mut AnyConnection,
    project: ProjectId,
    name: &str,
    except: Option<ScheduleId>,
) -> Result<(), ScheduleError> {
    let row = sqlx::query(
        "SELECT id FROM schedules WHERE project_id = $1 AND name = $2 AND ($3 IS NULL OR id <> $3)",
    )
    .bind(project)
    .bind(name.to_string())
    .bind(except)
    .fetch_optional(connection)
    .await
    .doing(READ)?;
    if row.is_some() { Err(ScheduleError::NameTaken) } else { Ok(()) }
}

fn read(row: &AnyRow) -> Result<ScheduleRow, StoreError> {
    let optional = |column: &str| row.try_get::<Option<i64>, _>(column).doing(READ);
    Ok(ScheduleRow {
        id: id(row, "id")?,
        project: id(row, "project_id")?,
        name: text(row, "name")?,
        cron: text(row, "cron")?,
        time_zone: text(row, "time_zone")?,
        template: from_json(&text(row, "template")?, "template")?,
        overlap: name(row, "overlap", Overlap::parse)?,
        enabled: number(row, "enabled")? != 0,
        next_ms: optional("next_ms")?,
        last_ms: optional("last_ms")?,
        last_task: optional_id(row, "last_task_id")?,
        last_outcome: optional_text(row, "last_outcome")?,
        last_message: optional_text(row, "last_message")?,
        created_by: optional_text(row, "created_by")?,
        version: number(row, "version")?,
        created_ms: number(row, "created_ms")?,
        updated_ms: number(row, "updated_ms")?,
    })
}
