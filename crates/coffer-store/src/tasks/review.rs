//! Events of forges about the pull requests of tasks.
//!
//! A follower of the log moves its position in the transaction that handles the events, so each event is
//! handled once, however many servers follow and whenever one dies.

use coffer_core::event::{Event, TaskChanged, TaskNeedsAttention, TaskSaid};
use coffer_core::life::Life as _;
use coffer_core::{Attention, Millis, ProjectId, RepositoryId, StepCode, TaskCause, TaskId, TaskState};
use serde_json::{Value, json};
use sqlx::AnyConnection;
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::attempts::{begin, cancel_runs};
use super::change::{hold, is_busy};
use super::issues::close_issue;
use super::{CHANGE, Moved, READ, TaskError, TaskRow, moved};
use crate::columns::{id, json as to_json, number, optional_text, storable, text};
use crate::error::Doing;
use crate::{Operator, ProjectScope, StartTask, Store, StoreError, events, now_ms, runs};

/// After this many attempts a task is not started again without a person.
const MOST_UNASKED: i64 = 10;
/// Longest comment in a message to a task.
const LONGEST_BODY: usize = 32 * 1024;
/// Longest text of a message in an event.
const LONGEST_TOLD: usize = 500;

/// The server's own followers of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum LogReader {
    /// Turns events of pull requests into messages to tasks.
    Reviews,
    /// Stores results of attempts.
    Results,
    /// Starts tasks for what happens to issues.
    Triggers,
}

coffer_core::names!(LogReader);

/// An event of a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    Merged,
    Closed,
    Reopened,
    /// A comment; `source` identifies it permanently.
    Said {
        source: String,
        author: String,
        body: String,
        about: Option<(String, Option<i64>)>,
    },
    /// A check of its newest commit failed.
    CheckFailed {
        source: String,
        name: String,
    },
}

/// Identifies a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AboutPull {
    Number(RepositoryId, i64),
    /// The one with this newest commit.
    Commit(RepositoryId, String),
}

/// A comment of a local repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidThere {
    pub author: String,
    pub body: String,
}

/// A project with unread events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProjectBehind {
    pub project: ProjectId,
    pub position: i64,
    pub newest: i64,
}

impl Store {
    /// Projects with events that this reader has not read.
    pub async fn projects_behind(
        &self,
        _: &Operator,
        reader: LogReader,
        limit: u32,
    ) -> Result<Vec<ProjectBehind>, StoreError> {
        let rows = sqlx::query(
            "SELECT p.id, p.last_event, COALESCE(r.position, 0) AS position
             FROM projects AS p LEFT JOIN log_readers AS r ON r.project_id = p.id AND r.reader = $1
             WHERE p.removed_ms IS NULL AND p.last_event > COALESCE(r.position, 0) ORDER BY p.id LIMIT $2",
        )
        .bind(reader.as_str())
        .bind(i64::from(limit))
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter()
            .map(|row| {
                Ok(ProjectBehind {
                    project: id(row, "id")?,
                    position: number(row, "position")?,
                    newest: number(row, "last_event")?,
                })
            })
            .collect()
    }

    /// Sets whether a review of its pull request starts a task's next attempt.
    pub async fn set_on_review(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        starts: bool,
    ) -> Result<(), TaskError> {
        let scope = *scope;
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                if hold(connection, &scope, task).await?.starts_on_review == starts {
                    return Ok(());
                }
                let on_review = if starts { "start" } else { "wait" };
                sqlx::query("UPDATE tasks SET on_review = $1, version = version + 1 WHERE id = $2")
                    .bind(on_review)
                    .bind(task)
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let event = Event::TaskChanged(TaskChanged::OnReview { on_review: on_review.to_string() });
                events::record(connection, scope.project(), task, event, now_ms()).await?;
                Ok(())
            })
        });
        set.await
    }

    /// A comment of a local repository.
    pub async fn said_there(
        &self,
        _: &Operator,
        project: ProjectId,
        comment: &str,
    ) -> Result<Option<SaidThere>, StoreError> {
        let row = sqlx::query("SELECT author, body FROM forge_comments WHERE id = $1 AND project_id = $2")
            .bind(storable(comment))
            .bind(project)
            .fetch_optional(self.database().readers())
            .await
            .doing(READ)?;
        row.map(|row| Ok(SaidThere { author: text(&row, "author")?, body: text(&row, "body")? })).transpose()
    }

    /// Moves a reader past events up to `to` that it has handled; returns false if another server has.
    pub async fn pass_events(
        &self,
        _: &Operator,
        reader: LogReader,
        behind: ProjectBehind,
        to: i64,
    ) -> Result<bool, StoreError> {
        let moved = self.database().write(CHANGE, move |connection| {
            Box::pin(async move { pass(connection, reader, behind, to).await })
        });
        moved.await
    }

    /// Handles events up to `to` for tasks. Returns how many attempts were started; `None` if another server
    /// has handled them.
    pub async fn heed_reviews(
        &self,
        _: &Operator,
        behind: ProjectBehind,
        to: i64,
        heard: Vec<(AboutPull, Heard)>,
    ) -> Result<Option<usize>, StoreError> {
        let here = self.installation();
        let heed = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                if !pass(connection, LogReader::Reviews, behind, to).await? {
                    return Ok(None);
                }
                let scope = ProjectScope::new(behind.project, None);
                let mut to_begin = Vec::new();
                for (pull, heard) in heard {
                    for task in tasks_of(connection, behind.project, &pull).await? {
                        let wants = match heed(connection, &scope, task, &heard).await {
                            Ok(wants) => wants,
                            // It was deleted or archived meanwhile: skip it.
                            Err(TaskError::Store(error)) => return Err(error),
                            Err(_) => false,
                        };
                        if wants && !to_begin.contains(&task) {
                            to_begin.push(task);
                        }
                    }
                }
                // Start at most one attempt for all messages together.
                let mut begun = 0;
                for task in to_begin {
                    let start = StartTask {
                        agent: None,
                        model: None,
                        replace: false,
                        reason: "review",
                        actor: "review".into(),
                    };
                    match begin(connection, &scope, task, start, None).await {
                        Ok((_, run)) => {
                            let place = keeper(connection, task).await?.or_else(|| here.clone());
                            runs::place(connection, run, place).await?;
                            begun += 1;
                        }
                        Err(TaskError::Store(error)) => return Err(error),
                        Err(_) => {}
                    }
                }
                Ok(Some(begun))
            })
        });
        heed.await
    }
}

/// Moves a reader on from its position; returns false if another server has.
async fn pass(
    connection: &mut AnyConnection,
    reader: LogReader,
    behind: ProjectBehind,
    to: i64,
) -> Result<bool, StoreError> {
    let moved = sqlx::query(
        "INSERT INTO log_readers (reader, project_id, position) VALUES ($1, $2, $3)
         ON CONFLICT (reader, project_id) DO UPDATE SET position = excluded.position
         WHERE log_readers.position = $4",
    )
    .bind(reader.as_str())
    .bind(behind.project)
    .bind(to)
    .bind(behind.position)
    .execute(connection)
    .await
    .doing(CHANGE)?;
    Ok(moved.rows_affected() > 0)
}

/// The tasks of this pull request.
pub(super) async fn tasks_of(
    connection: &mut AnyConnection,
    project: ProjectId,
    pull: &AboutPull,
) -> Result<Vec<TaskId>, StoreError> {
    let (repository, commit, endings) = match pull {
        AboutPull::Number(repository, number) => {
            (repository, None, Some((format!("%/pull/{number}"), format!("%/pulls/{number}"))))
        }
        AboutPull::Commit(repository, commit) => (repository, Some(storable(commit)), None),
    };
    let (one, other) = endings.unzip();
    let rows = sqlx::query(
        "SELECT t.id FROM tasks AS t JOIN repositories AS r
             ON r.project_id = t.project_id AND (t.repository = r.id OR t.repository = r.name)
                 AND r.removed_ms IS NULL
         WHERE t.project_id = $1 AND r.id = $2 AND t.pull_url IS NOT NULL AND t.archived_ms IS NULL
             AND ($3 IS NULL OR t.commit_id = $3)
             AND ($4 IS NULL OR t.pull_url LIKE $4 OR t.pull_url LIKE $5)
         ORDER BY t.id",
    )
    .bind(project)
    .bind(repository)
    .bind(commit)
    .bind(one)
    .bind(other)
    .fetch_all(connection)
    .await
    .doing(READ)?;
    rows.iter().map(|row| id(row, "id")).collect()
}

/// The installation that has the task's repository: it executes the attempt, whichever server handles the
/// review.
pub(super) async fn keeper(
    connection: &mut AnyConnection,
    task: TaskId,
) -> Result<Option<String>, StoreError> {
    let row = sqlx::query(
        "SELECT r.installation FROM tasks AS t JOIN repositories AS r
             ON r.project_id = t.project_id AND (t.repository = r.id OR t.repository = r.name)
                 AND r.removed_ms IS NULL
         WHERE t.id = $1 AND r.installation IS NOT NULL LIMIT 1",
    )
    .bind(task)
    .fetch_optional(connection)
    .await
    .doing(READ)?;
    row.map(|row| text(&row, "installation")).transpose()
}

/// Applies an event to a task; returns whether the next attempt should start.
async fn heed(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
    heard: &Heard,
) -> Result<bool, TaskError> {
    let now = now_ms();
    if *heard == Heard::Merged {
        // Runs first, then the task: ending a run uses the same order.
        cancel_runs(connection, scope.project(), task, "its pull request was merged").await?;
    }
    let before = hold(connection, scope, task).await?;
    let is_over = matches!(before.state, TaskState::Done | TaskState::Cancelled);
    match heard {
        Heard::Merged if before.state == TaskState::Done => Ok(false),
        Heard::Merged => {
            let to = before.state.after(TaskCause::Merged).map_err(StoreError::Refused)?;
            let from = Some(before.state);
            set(connection, task, Some(to), None, now).await?;
            close_issue(connection, &before, now).await?;
            let reason = "its pull request was merged";
            let (project, actor) = (scope.project(), Some("forge"));
            moved(connection, &Moved { task, project, from, to, reason, actor, now }).await?;
            Ok(false)
        }
        Heard::Closed if is_over => Ok(false),
        Heard::Closed => {
            let message =
                "its pull request was closed without being merged: cancel the task, or start it again";
            attend(connection, scope, task, StepCode::PullClosed, message, now).await?;
            Ok(false)
        }
        Heard::Reopened => {
            if before.attention.as_ref().is_some_and(|why| why.code == StepCode::PullClosed) {
                set(connection, task, None, None, now).await?;
                let event = Event::TaskChanged(TaskChanged::Attention { attention: None });
                events::record(connection, scope.project(), task, event, now).await?;
            }
            Ok(false)
        }
        Heard::Said { source, author, body, about } => {
            let about = about.as_ref().map(|(file, line)| json!({ "file": file, "line": line }));
            let is_new = say(connection, scope, task, source, author, body, about, now).await?;
            Ok(is_new && !is_over && starts(connection, &before).await?)
        }
        Heard::CheckFailed { source, name } => {
            let body = format!("The check `{name}` failed on the newest commit of the pull request.");
            let is_new = say(connection, scope, task, source, "forge", &body, None, now).await?;
            if is_new && !is_over && before.attention.is_none() && !is_busy(connection, task).await? {
                attend(
                    connection,
                    scope,
                    task,
                    StepCode::CheckFailed,
                    &format!("the check `{name}` failed"),
                    now,
                )
                .await?;
            }
            Ok(is_new && !is_over && starts(connection, &before).await?)
        }
    }
}

/// Whether a message starts the next attempt, if none is in progress.
async fn starts(connection: &mut AnyConnection, task: &TaskRow) -> Result<bool, StoreError> {
    Ok(task.starts_on_review
        && task.agent.is_some()
        && (1..MOST_UNASKED).contains(&task.attempts)
        && !is_busy(connection, task.id).await?)
}

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
pub(super) async fn say(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
    source: &str,
    author: &str,
    body: &str,
    about: Option<Value>,
    now: Millis,
) -> Result<bool, StoreError> {
    let (project, body) = (scope.project(), storable(&body[..body.floor_char_boundary(LONGEST_BODY)]));
    let said = sqlx::query(
        "INSERT INTO task_messages (task_id, number, project_id, author, body, about, at_ms, source)
         SELECT $1, COUNT(*) + 1, $2, $3, $4, $5, $6, $7 FROM task_messages WHERE task_id = $1
             HAVING NOT EXISTS (SELECT 1 FROM task_messages WHERE task_id = $1 AND source = $7)
         RETURNING number, about",
    )
    .bind(task)
    .bind(project)
    .bind(storable(author))
    .bind(body.clone())
    .bind(about.as_ref().map(Value::to_string))
    .bind(now)
    .bind(storable(source))
    .fetch_optional(&mut *connection)
    .await
    .doing(CHANGE)?;
    let Some(said) = said else { return Ok(false) };
    let about = optional_text(&said, "about")?;
    let event = Event::TaskMessage(TaskSaid {
        number: number(&said, "number")?,
        author: author.to_string(),
        source: Some(source.to_string()),
        about: about.and_then(|text| serde_json::from_str::<Value>(&text).ok()),
        body: body[..body.floor_char_boundary(LONGEST_TOLD)].to_string(),
    });
    events::record(connection, project, task, event, now).await?;
    Ok(true)
}

/// Marks a task as needing attention.
async fn attend(
    connection: &mut AnyConnection,
    scope: &ProjectScope,
    task: TaskId,
    code: StepCode,
    message: &str,
    now: Millis,
) -> Result<(), StoreError> {
    let attention = Attention { code: code.into(), message: message.into(), step: None };
    set(connection, task, None, Some(&attention), now).await?;
    let event = Event::TaskNeedsAttention(TaskNeedsAttention { run: None, attention: Some(attention) });
    events::record(connection, scope.project(), task, event, now).await
}

async fn set(
    connection: &mut AnyConnection,
    task: TaskId,
    state: Option<TaskState>,
    attention: Option<&Attention>,
    now: Millis,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE tasks SET state = COALESCE($1, state), attention = $2, updated_ms = $3, version = version + 1
         WHERE id = $4",
    )
    .bind(state.map(|state| state.as_str()))
    .bind(attention.map(to_json))
    .bind(now)
    .bind(task)
    .execute(connection)
    .await
    .doing(CHANGE)
    .map(drop)
}
