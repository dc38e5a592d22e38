//! What a person is asked for while an attempt at a task goes on.

use coffer_core::event::{Event, TaskChanged, TaskNeedsAttention};
use coffer_core::{Attention, Millis, ProjectId, RunId, StepCode, TaskId};
use sqlx::AnyConnection;

use crate::columns::{json, optional_text};
use crate::error::Doing;
use crate::{StoreError, events};

const CHANGE: &str = "ask a person about a task";

/// Part of a transaction: the run waits for a person.
pub(crate) async fn wanted(
    connection: &mut AnyConnection,
    project: ProjectId,
    task: TaskId,
    run: RunId,
    attention: Attention,
    now: Millis,
) -> Result<(), StoreError> {
    set(connection, project, task, Some(&attention), now).await?;
    let event = Event::TaskNeedsAttention(TaskNeedsAttention { run: Some(run), attention: Some(attention) });
    events::record(connection, project, task, event, now).await
}

/// Part of a transaction: a person did what was wanted, or it is no longer wanted.
pub(crate) async fn given(
    connection: &mut AnyConnection,
    project: ProjectId,
    task: TaskId,
    code: StepCode,
    now: Millis,
) -> Result<(), StoreError> {
    let row = sqlx::query("SELECT attention FROM tasks WHERE id = $1 AND project_id = $2")
        .bind(task)
        .bind(project)
        .fetch_optional(&mut *connection)
        .await
        .doing(CHANGE)?;
    let Some(row) = row else { return Ok(()) };
    let known = optional_text(&row, "attention")?;
    let known = known.and_then(|text| serde_json::from_str::<Attention>(&text).ok());
    // Something else may have happened to the task since.
    if known.is_none_or(|attention| attention.code != code) {
        return Ok(());
    }
    set(connection, project, task, None, now).await?;
    let event = Event::TaskChanged(TaskChanged::Attention { attention: None });
    events::record(connection, project, task, event, now).await
}

async fn set(
    connection: &mut AnyConnection,
    project: ProjectId,
    task: TaskId,
    attention: Option<&Attention>,
    now: Millis,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE tasks SET attention = $1, updated_ms = $2, version = version + 1 WHERE id = $3 AND project_id = $4",
    )
    .bind(attention.map(json))
    .bind(now)
    .bind(task)
    .bind(project)
    .execute(connection)
    .await
    .doing(CHANGE)
    .map(drop)
}
