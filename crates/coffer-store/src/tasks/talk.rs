//! Messages to tasks, such as comments of a review. The next attempt passes them to its agent.

use coffer_core::event::{Event, TaskSaid};
use coffer_core::{Millis, RunId, TaskId};
use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};

use super::change::hold;
use super::questions::go_on_if_interrupted;
use super::{READ, TaskError};
use crate::columns::{optional_id, storable};
use crate::error::Doing;
use crate::select::Select;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

/// Longest text of a message in an event.
const LONGEST_TOLD: usize = 500;
/// Most unread messages that an attempt takes at once, as JSON: they go into the run's journal in one piece.
/// The next turn or attempt gets the rest.
const MOST_AT_ONCE: usize = 64 * 1024;

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskMessage {
    pub number: i64,
    pub author: String,
    pub body: String,
    /// The file and line that it is about.
    pub about: Option<Value>,
    /// The attempt that got it.
    pub run: Option<RunId>,
    pub at_ms: Millis,
}

const COLUMNS: &str = "number, author, body, about, run_id, at_ms";

impl Store {
    /// Adds a message to a task.
    pub async fn say_to_task(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        author: &str,
        body: &str,
        about: Option<Value>,
    ) -> Result<TaskMessage, TaskError> {
        const DOING: &str = "send a message to a task";
        let (scope, author, body) = (*scope, author.to_string(), storable(body));
        let say = self.database().write(DOING, move |connection| {
            Box::pin(async move {
                // Words of a person let an interrupted agent go on; an agent's own key is no person.
                if scope.agent().is_none() {
                    go_on_if_interrupted(connection, &scope, task, &author).await?;
                }
                hold(connection, &scope, task).await?;
                let (project, now) = (scope.project(), now_ms());
                let sql = format!(
                    "INSERT INTO task_messages (task_id, number, project_id, author, body, about, at_ms)
                     SELECT $1, COUNT(*) + 1, $2, $3, $4, $5, $6 FROM task_messages WHERE task_id = $1
                     RETURNING {COLUMNS}"
                );
                let row = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(task)
                    .bind(project)
                    .bind(author.clone())
                    .bind(body.clone())
                    .bind(about.as_ref().map(Value::to_string))
                    .bind(now)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(DOING)?;
                let said = read(&row)?;
                let event = Event::TaskMessage(TaskSaid {
                    number: said.number,
                    author,
                    source: None,
                    about,
                    body: body[..body.floor_char_boundary(LONGEST_TOLD)].to_string(),
                });
                events::record(connection, project, task, event, now).await?;
                Ok(said)
            })
        });
        say.await
    }

    /// The messages after `after` for the agent of an attempt's run: those it already has, and as many unread
    /// ones as fit, which are then assigned to it. Idempotent.
    pub async fn hear_task(
        &self,
        run: RunId,
        task: TaskId,
        after: i64,
    ) -> Result<Vec<TaskMessage>, StoreError> {
        let hear = self.database().write("read the messages of a task", move |connection| {
            Box::pin(async move {
                let sql = format!(
                    "SELECT {COLUMNS} FROM task_messages WHERE task_id = $1 AND run_id = $2 AND number > $3
                     ORDER BY number"
                );
                let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                    .bind(task)
                    .bind(run)
                    .bind(after)
                    .fetch_all(&mut *connection)
                    .await
                    .doing(READ)?;
                let mut heard = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                let size: usize = heard.iter().map(size_of).sum();
                heard.extend(take_unheard(connection, task, run, size).await?);
                Ok(heard)
            })
        });
        hear.await
    }

    /// The messages to a task after this number, oldest first.
    pub async fn task_messages(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<TaskMessage>, StoreError> {
        Select::new(COLUMNS, "task_messages")
            .filter("task_id = ?", task)
            .filter("project_id = ?", scope.project())
            .oldest_first("number", Some(after), limit)
            .all(self.database(), READ, read)
            .await
    }
}

/// Whether a task has messages that no attempt got.
pub(super) async fn any_unheard(connection: &mut AnyConnection, task: TaskId) -> Result<bool, StoreError> {
    let row = sqlx::query("SELECT number FROM task_messages WHERE task_id = $1 AND run_id IS NULL LIMIT 1")
        .bind(task)
        .fetch_optional(connection)
        .await
        .doing(READ)?;
    Ok(row.is_some())
}

/// Assigns unread messages to an attempt, as many as fit in addition to `size` bytes; returns them, oldest
/// first.
pub(super) async fn take_unheard(
    connection: &mut AnyConnection,
    task: TaskId,
    run: RunId,
    mut size: usize,
) -> Result<Vec<TaskMessage>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM task_messages WHERE task_id = $1 AND run_id IS NULL ORDER BY number");
    let rows =
        sqlx::query(sqlx::AssertSqlSafe(sql)).bind(task).fetch_all(&mut *connection).await.doing(READ)?;
    let mut taken = Vec::new();
    for row in &rows {
        let message = read(row)?;
        // A single message is taken whatever its length.
        let is_alone = size == 0;
        size += size_of(&message);
        if size > MOST_AT_ONCE && !is_alone {
            break;
        }
        taken.push(TaskMessage { run: Some(run), ..message });
    }
    let Some(last) = taken.last() else { return Ok(taken) };
    // Messages that arrive meanwhile have higher numbers.
    sqlx::query(
        "UPDATE task_messages SET run_id = $1 WHERE task_id = $2 AND run_id IS NULL AND number <= $3",
    )
    .bind(run)
    .bind(task)
    .bind(last.number)
    .execute(connection)
    .await
    .doing(READ)?;
    Ok(taken)
}

/// The size of a message in a journal, as JSON.
fn size_of(message: &TaskMessage) -> usize {
    let about = message.about.as_ref().map_or(0, |about| about.to_string().len());
    json!(message.body).to_string().len() + about
}

/// Returns an attempt's messages to the task, unless the task's branch has its work: otherwise the next
/// attempt would not know them.
pub(super) async fn give_back(
    connection: &mut AnyConnection,
    task: TaskId,
    run: RunId,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE task_messages SET run_id = NULL WHERE task_id = $1 AND run_id = $2 AND NOT EXISTS (
             SELECT 1 FROM run_steps AS s WHERE s.run_id = $2 AND s.name = 'push' AND s.state = 'done')",
    )
    .bind(task)
    .bind(run)
    .execute(connection)
    .await
    .doing("return undelivered messages")?;
    Ok(())
}

fn read(row: &AnyRow) -> Result<TaskMessage, StoreError> {
    let about: Option<String> = row.try_get("about").doing(READ)?;
    Ok(TaskMessage {
        number: row.try_get("number").doing(READ)?,
        author: row.try_get("author").doing(READ)?,
        body: row.try_get("body").doing(READ)?,
        about: about.map(|text| serde_json::from_str(&text).map_err(super::unreadable)).transpose()?,
        run: optional_id(row, "run_id")?,
        at_ms: row.try_get("at_ms").doing(READ)?,
    })
}
