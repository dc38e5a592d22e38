//! What happens on a forge and starts or steers tasks, each once; and when forges are asked.

use coffer_core::{AgentId, Millis, ProjectId, RepositoryId, TaskId, TaskState};
use sqlx::{AnyConnection, Row};

use super::attempts::begin;
use super::change::hold;
use super::review::{keeper, say, tasks_of};
use super::{AboutPull, CHANGE, LogReader, ProjectBehind, READ, TaskError};
use crate::columns::{id, number, storable};
use crate::error::Doing;
use crate::{Operator, ProjectScope, StartTask, Store, StoreError, now_ms, runs};

/// How long a source is remembered; the same as a webhook's delivery.
const REMEMBERED_MS: Millis = 90 * 24 * 3_600_000;

/// What somebody said on the forge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Identifies it permanently.
    pub source: String,
    pub author: String,
    pub body: String,
}

/// What a trigger did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Triggered {
    /// It started an attempt.
    Started,
    /// An attempt is in progress: it gets the remark, if there is one.
    Running,
    /// It was handled before.
    Known,
    /// The task is over: nothing was done.
    Over,
}

/// A repository that is to be asked now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollDue {
    pub project: ProjectId,
    pub repository: RepositoryId,
    pub since_ms: Millis,
}

impl Store {
    /// Starts a task because of something on its forge, once for each `source`, and passes a remark on.
    pub async fn trigger_task(
        &self,
        scope: &ProjectScope,
        task: TaskId,
        source: &str,
        agent: Option<AgentId>,
        actor: &str,
        remark: Option<Remark>,
    ) -> Result<Triggered, TaskError> {
        let (scope, here) = (*scope, self.installation());
        let (source, actor) = (storable(source), actor.to_string());
        let trigger = self.database().write("start a task for its issue", move |connection| {
            Box::pin(async move {
                if !claim(connection, scope.project(), &source).await? {
                    return Ok(Triggered::Known);
                }
                let row = hold(connection, &scope, task).await?;
                if matches!(row.state, TaskState::Done | TaskState::Cancelled) {
                    return Ok(Triggered::Over);
                }
                if let Some(Remark { source, author, body }) = &remark {
                    say(connection, &scope, task, source, author, body, None, now_ms()).await?;
                }
                // A task keeps the agent that a person gave it.
                let agent = agent.filter(|_| row.agent.is_none());
                let start =
                    StartTask { agent, model: None, replace: false, reason: "asked for on the forge", actor };
                match begin(connection, &scope, task, start, None).await {
                    Ok((_, run)) => {
                        let place = keeper(connection, task).await?.or(here);
                        runs::place(connection, run, place).await?;
                        Ok(Triggered::Started)
                    }
                    Err(TaskError::Busy) => Ok(Triggered::Running),
                    Err(error) => Err(error),
                }
            })
        });
        trigger.await
    }

    /// Whether nothing was done for `source` yet; from now on it was.
    pub async fn claim_trigger(&self, scope: &ProjectScope, source: &str) -> Result<bool, StoreError> {
        let (project, source) = (scope.project(), storable(source));
        let claim = self.database().write(CHANGE, move |connection| {
            Box::pin(async move { claim(connection, project, &source).await })
        });
        claim.await
    }

    /// The tasks of a pull request.
    pub async fn tasks_of_pull(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        pull: i64,
    ) -> Result<Vec<TaskId>, StoreError> {
        let project = scope.project();
        let find = self.database().write(READ, move |connection| {
            Box::pin(async move { tasks_of(connection, project, &AboutPull::Number(repository, pull)).await })
        });
        find.await
    }

    /// How far a reader is in the log of one project; `None` if it has not begun.
    pub async fn reader_of(
        &self,
        _: &Operator,
        reader: LogReader,
        project: ProjectId,
    ) -> Result<Option<(ProjectBehind, bool)>, StoreError> {
        let row = sqlx::query(
            "SELECT p.id, p.last_event, r.position
             FROM projects AS p LEFT JOIN log_readers AS r ON r.project_id = p.id AND r.reader = $1
             WHERE p.id = $2 AND p.removed_ms IS NULL",
        )
        .bind(reader.as_str())
        .bind(project)
        .fetch_optional(self.database().readers())
        .await
        .doing(READ)?;
        let Some(row) = row else { return Ok(None) };
        let position: Option<i64> = row.try_get("position").doing(READ)?;
        let newest = number(&row, "last_event")?;
        let behind = ProjectBehind { project: id(&row, "id")?, position: position.unwrap_or(0), newest };
        Ok(Some((behind, position.is_some())))
    }

    /// The repositories of a project on connections without webhooks, that this server is to ask now: each is due every
    /// `every_ms`, for one server.
    pub async fn claim_polls(
        &self,
        _: &Operator,
        project: ProjectId,
        every_ms: Millis,
        most: u32,
    ) -> Result<Vec<PollDue>, StoreError> {
        let now = now_ms();
        let sql = "SELECT r.id, c.terms, p.next_ms FROM repositories AS r
             JOIN forge_connections AS c ON c.id = r.connection_id AND c.removed_ms IS NULL
             LEFT JOIN forge_polls AS p ON p.repository_id = r.id
             WHERE r.project_id = $1 AND r.kind = 'github' AND r.removed_ms IS NULL
                 AND (p.next_ms IS NULL OR p.next_ms <= $2)
             ORDER BY p.next_ms, r.id LIMIT $3";
        let rows = sqlx::query(sql)
            .bind(project)
            .bind(now)
            .bind(i64::from(most))
            .fetch_all(self.database().readers())
            .await
            .doing(READ)?;
        let mut due = Vec::new();
        for row in &rows {
            let terms: crate::ConnectionTerms =
                crate::columns::from_json(&crate::columns::text(row, "terms")?, "terms")?;
            if terms.webhook_secret.is_none() {
                let repository: RepositoryId = id(row, "id")?;
                due.push(repository);
            }
        }
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let claim = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let mut claimed = Vec::new();
                for repository in due {
                    // What was before is not heard now.
                    let row = sqlx::query(
                        "INSERT INTO forge_polls (repository_id, project_id, next_ms, since_ms) VALUES ($1, $2, $3, $4)
                         ON CONFLICT (repository_id) DO UPDATE SET next_ms = excluded.next_ms
                             WHERE forge_polls.next_ms <= $4
                         RETURNING since_ms",
                    )
                    .bind(repository)
                    .bind(project)
                    .bind(now + every_ms)
                    .bind(now)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                    if let Some(row) = row {
                        claimed.push(PollDue { project, repository, since_ms: number(&row, "since_ms")? });
                    }
                }
                Ok::<_, StoreError>(claimed)
            })
        });
        claim.await
    }

    /// Records up to when a repository was read, and when it is to be asked again, if that is not the usual time.
    pub async fn note_poll(
        &self,
        _: &Operator,
        repository: RepositoryId,
        since_ms: Millis,
        next_ms: Option<Millis>,
    ) -> Result<(), StoreError> {
        let note = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE forge_polls SET since_ms = CASE WHEN since_ms < $1 THEN $1 ELSE since_ms END,
                         next_ms = COALESCE($2, next_ms) WHERE repository_id = $3",
                )
                .bind(since_ms)
                .bind(next_ms)
                .bind(repository)
                .execute(connection)
                .await
                .doing(CHANGE)
                .map(drop)
            })
        });
        note.await
    }
}

async fn claim(connection: &mut AnyConnection, project: ProjectId, source: &str) -> Result<bool, StoreError> {
    let now = now_ms();
    sqlx::query("DELETE FROM task_triggers WHERE project_id = $1 AND at_ms < $2")
        .bind(project)
        .bind(now - REMEMBERED_MS)
        .execute(&mut *connection)
        .await
        .doing(CHANGE)?;
    let claimed = sqlx::query(
        "INSERT INTO task_triggers (project_id, source, at_ms) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
    )
    .bind(project)
    .bind(source.to_string())
    .bind(now)
    .execute(connection)
    .await
    .doing(CHANGE)?;
    Ok(claimed.rows_affected() > 0)
}
