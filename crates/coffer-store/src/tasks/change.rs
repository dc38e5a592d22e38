//! People's changes to tasks.

use coffer_core::event::{Event, TaskChanged, TaskDeleted};
use coffer_core::life::Life as _;
use coffer_core::{AgentId, Priority, ProjectId, TaskCause, TaskId, TaskState};
use sqlx::{AnyConnection, Row};

use super::{
    CHANGE, COLUMNS, GAP, Moved, TaskError, TaskRow, check_agent, last_place, moved, read, set_labels,
};
use crate::columns::{json as to_json, storable};
use crate::error::Doing;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

/// The place of a task in its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    First,
    Last,
    After(TaskId),
}

/// Changes to a task; `None` leaves a field as it is, `Some(None)` clears an optional one.
#[derive(Debug, Clone, Default)]
pub struct TaskEdit {
    pub title: Option<String>,
    pub description: Option<String>,
    pub state: Option<TaskState>,
    pub place: Option<Place>,
    pub priority: Option<Priority>,
    pub labels: Option<Vec<String>>,
    pub repository: Option<Option<String>>,
    pub base_branch: Option<Option<String>>,
    pub agent: Option<Option<AgentId>>,
    pub model: Option<Option<String>>,
    pub check_command: Option<Option<String>>,
    pub budget_nanos: Option<Option<i64>>,
    pub context_id: Option<Option<String>>,
    pub archived: Option<bool>,
    /// Clears the need for attention.
    pub attention_over: bool,
}

impl Store {
    /// Changes a task in scope, if its version matches. While an attempt is in progress, the fields that it
    /// depends on cannot change.
    pub async fn edit_task(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        version: Option<i64>,
        edit: TaskEdit,
        actor: &str,
    ) -> Result<TaskRow, TaskError> {
        let (scope, actor) = (*scope, actor.to_string());
        let change = self.database().write(CHANGE, move |connection| {
            Box::pin(async move { change(connection, &scope, task, version, edit, &actor).await })
        });
        change.await
    }

    /// Sets how often an agent may correct its work after the check failed; `None` is the server's default.
    pub async fn set_check_tries(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        tries: Option<i64>,
        actor: &str,
    ) -> Result<(), TaskError> {
        let (scope, actor) = (*scope, actor.to_string());
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let before = hold(connection, &scope, task).await?;
                if before.check_tries == tries {
                    return Ok(());
                }
                sqlx::query("UPDATE tasks SET check_tries = $1, version = version + 1 WHERE id = $2")
                    .bind(tries)
                    .bind(task)
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let event = Event::TaskChanged(TaskChanged::Edited { version: before.version + 1, actor });
                events::record(connection, scope.project(), task, event, now_ms()).await?;
                Ok(())
            })
        });
        set.await
    }

    /// Deletes a task with all its records.
    pub async fn delete_task(&self, scope: &ProjectScope, task: TaskId) -> Result<(), TaskError> {
        const DOING: &str = "delete a task";
        let scope = *scope;
        let delete = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                let row = hold(connection, &scope, task).await?;
                if is_busy(connection, task).await? {
                    return Err(TaskError::Busy);
                }
                for sql in [
                    "DELETE FROM runs WHERE project_id = $1 AND subject = $2",
                    "DELETE FROM tasks WHERE project_id = $1 AND id = $2",
                ] {
                    sqlx::query(sql)
                        .bind(scope.project())
                        .bind(task)
                        .execute(&mut *connection)
                        .await
                        .doing(DOING)?;
                }
                let event = Event::TaskDeleted(TaskDeleted { title: row.title });
                events::record(connection, scope.project(), task, event, now_ms()).await?;
                Ok(())
            })
        });
        delete.await
    }
}

/// The task, with its row locked until the transaction ends.
pub(super) async fn hold(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
) -> Result<TaskRow, TaskError> {
    let sql = format!(
        "UPDATE tasks SET version = version WHERE id = $1 AND project_id = $2 AND ($3 IS NULL OR agent_id = $3)
         RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(task)
        .bind(scope.project())
        .bind(scope.agent())
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    Ok(read(&row.ok_or(TaskError::NotFound)?)?)
}

/// Whether an attempt at it is not over.
pub(super) async fn is_busy(connection: &mut AnyConnection, task: TaskId) -> Result<bool, StoreError> {
    let row = sqlx::query(
        "SELECT run_id FROM task_attempts WHERE task_id = $1 AND state IN ('queued', 'running') LIMIT 1",
    )
    .bind(task)
    .fetch_optional(connection)
    .await
    .doing(CHANGE)?;
    Ok(row.is_some())
}

async fn change(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
    version: Option<i64>,
    edit: TaskEdit,
    actor: &str,
) -> Result<TaskRow, TaskError> {
    let (project, now) = (scope.project(), now_ms());
    let before = hold(connection, scope, task).await?;
    if version.is_some_and(|version| version != before.version) {
        return Err(TaskError::Changed);
    }
    let to = match edit.state {
        Some(wanted) => before.state.after(TaskCause::Moved(wanted)).map_err(StoreError::Refused)?,
        None => before.state,
    };
    let leaves = to != before.state || edit.archived == Some(true);
    let reworks = edit.agent.is_some() || edit.repository.is_some() || edit.base_branch.is_some();
    if (leaves || reworks) && is_busy(connection, task).await? {
        return Err(TaskError::Busy);
    }
    if let Some(Some(agent)) = edit.agent {
        check_agent(connection, project, agent).await?;
    }
    let place = match edit.place {
        None if to == before.state => before.place,
        place => place_in(connection, project, to, task, place.unwrap_or(Place::Last)).await?,
    };
    let kept = |new: Option<Option<String>>, old: Option<String>| new.unwrap_or(old).as_deref().map(storable);
    let attention = before.attention.filter(|_| !edit.attention_over && to == before.state);
    let labels = edit.labels.clone().unwrap_or(before.labels);
    let archived_ms = match edit.archived {
        None => before.archived_ms,
        Some(false) => None,
        Some(true) => Some(before.archived_ms.unwrap_or(now)),
    };
    let sql = format!(
        "UPDATE tasks SET title = $1, description = $2, state = $3, attention = $4, priority = $5, place = $6,
             labels = $7, repository = $8, base_branch = $9, agent_id = $10, model = $11, check_command = $12,
             budget_nanos = $13, context_id = $14, archived_ms = $15, updated_ms = $16, version = version + 1
         WHERE id = $17 RETURNING {COLUMNS}"
    );
    let row = sqlx::query(sqlx::AssertSqlSafe(sql))
        .bind(storable(edit.title.as_deref().unwrap_or(&before.title)))
        .bind(storable(edit.description.as_deref().unwrap_or(&before.description)))
        .bind(to.as_str())
        .bind(attention.as_ref().map(to_json))
        .bind(edit.priority.unwrap_or(before.priority).rank())
        .bind(place)
        .bind(to_json(&labels))
        .bind(kept(edit.repository, before.repository))
        .bind(kept(edit.base_branch, before.base_branch))
        .bind(edit.agent.unwrap_or(before.agent))
        .bind(kept(edit.model, before.model))
        .bind(kept(edit.check_command, before.check_command))
        .bind(edit.budget_nanos.unwrap_or(before.budget_nanos))
        .bind(kept(edit.context_id, before.context_id))
        .bind(archived_ms)
        .bind(now)
        .bind(task)
        .fetch_one(&mut *connection)
        .await
        .doing(CHANGE)?;
    if edit.labels.is_some() {
        set_labels(connection, project, task, &labels).await?;
    }
    let changed = read(&row)?;
    if to == before.state {
        let edited = TaskChanged::Edited { version: changed.version, actor: actor.to_string() };
        events::record(connection, project, task, Event::TaskChanged(edited), now).await?;
    } else {
        let from = Some(before.state);
        moved(connection, &Moved { task, project, from, to, reason: "moved", actor: Some(actor), now })
            .await?;
    }
    Ok(changed)
}

/// A place in a column; if neighbours have no room between them, the column is spread out again.
async fn place_in(
    connection: &mut AnyConnection,
    project: ProjectId,
    state: TaskState,
    task: TaskId,
    place: Place,
) -> Result<i64, TaskError> {
    let rows = sqlx::query(
        "SELECT id, place FROM tasks WHERE project_id = $1 AND state = $2 AND id <> $3 ORDER BY place, id",
    );
    match place {
        Place::Last => Ok(last_place(connection, project, state).await? + GAP),
        Place::First | Place::After(_) => {
            let rows = rows
                .bind(project)
                .bind(state.as_str())
                .bind(task)
                .fetch_all(&mut *connection)
                .await
                .doing(CHANGE)?;
            let mut column: Vec<(TaskId, i64)> = Vec::new();
            for row in &rows {
                column.push((crate::columns::id(row, "id")?, row.try_get("place").doing(CHANGE)?));
            }
            let at = match place {
                Place::After(other) => {
                    let found = column.iter().position(|(known, _)| *known == other);
                    found.ok_or(TaskError::NoNeighbour(other))? + 1
                }
                _ => 0,
            };
            let room = |column: &[(TaskId, i64)]| {
                let before = if at == 0 { None } else { column.get(at - 1).map(|(_, place)| *place) };
                let after = column.get(at).map(|(_, place)| *place);
                match (before, after) {
                    (None, None) => Some(GAP),
                    (Some(before), None) => Some(before + GAP),
                    (None, Some(after)) => Some(after - GAP),
                    (Some(before), Some(after)) if after - before > 1 => Some(before + (after - before) / 2),
                    _ => None,
                }
            };
            if let Some(place) = room(&column) {
                return Ok(place);
            }
            for (index, (known, place)) in column.iter_mut().enumerate() {
                *place = (i64::try_from(index).unwrap_or(i64::MAX / GAP) + 1) * GAP;
                sqlx::query("UPDATE tasks SET place = $1 WHERE id = $2 AND project_id = $3")
                    .bind(*place)
                    .bind(*known)
                    .bind(project)
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
            }
            room(&column).ok_or_else(|| TaskError::Changed)
        }
    }
}
