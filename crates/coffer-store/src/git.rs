//! Records of git in sandboxes: each sandbox's repositories, and every operation.

use coffer_core::event::{Event, GitFailed, GitFailure, GitStarted, GitSucceeded};
use coffer_core::{GitOperationId, Millis, ProjectId, RepositoryId, SandboxId, SnapshotId};
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::columns::{from_json, id, name, number, optional_text, storable, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{ChangeError, Operator, Origin, ProjectScope, Scope, Store, StoreError, events, now_ms};

const READ: &str = "read git's records";
const CHANGE: &str = "change git's records";
const LONGEST_ERROR: usize = 2000;

/// A repository in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRemote {
    pub sandbox: SandboxId,
    pub project: ProjectId,
    pub slug: String,
    pub repository: RepositoryId,
    pub path: String,
    pub user: Option<String>,
}

/// The state of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum GitState {
    Running,
    Succeeded,
    Failed,
}

coffer_core::names!(GitState);

/// A git operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitOperation {
    pub id: GitOperationId,
    pub sandbox: SandboxId,
    pub repository: String,
    pub kind: String,
    pub state: GitState,
    pub actor: String,
    pub result: Option<Value>,
    pub error_code: Option<String>,
    pub error: Option<String>,
    pub started_ms: Millis,
    pub ended_ms: Option<Millis>,
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitOutcome {
    Done(Value),
    Failed { code: String, message: String },
}

impl Store {
    /// Records an operation that is about to begin.
    pub async fn begin_git_operation(
        &self,
        scope: &ProjectScope,
        sandbox: SandboxId,
        repository: &str,
        kind: &'static str,
        actor: &str,
    ) -> Result<GitOperationId, ChangeError> {
        let (scope, operation) = (*scope, GitOperationId::generate());
        let (repository, actor) = (repository.to_string(), actor.to_string());
        let begin = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let (project, now) = (scope.project(), now_ms());
                let begun = sqlx::query(
                    "INSERT INTO git_operations
                         (id, project_id, sandbox_id, repository, kind, state, actor, started_ms)
                     SELECT $1, project_id, id, $2, $3, 'running', $4, $5 FROM sandboxes
                     WHERE id = $6 AND project_id = $7 AND ($8 = project_id OR $8 = agent_id)",
                )
                .bind(operation)
                .bind(repository.clone())
                .bind(kind)
                .bind(actor.clone())
                .bind(now)
                .bind(sandbox)
                .bind(project)
                .bind(scope.owner())
                .execute(&mut *connection)
                .await
                .doing(CHANGE)?;
                if begun.rows_affected() == 0 {
                    return Err(ChangeError::NotFound);
                }
                let started = GitStarted { operation, kind: kind.to_string(), repository, actor };
                events::record(connection, project, sandbox, Event::GitStarted(started), now).await?;
                Ok(operation)
            })
        });
        begin.await
    }

    /// Records the end of an operation.
    pub async fn end_git_operation(
        &self,
        scope: &ProjectScope,
        operation: GitOperationId,
        outcome: GitOutcome,
    ) -> Result<(), StoreError> {
        let project = scope.project();
        let (state, result, code, error) = match outcome {
            GitOutcome::Done(result) => (GitState::Succeeded, Some(result), None, None),
            GitOutcome::Failed { code, message } => {
                let message: String = storable(&message).chars().take(LONGEST_ERROR).collect();
                (GitState::Failed, None, Some(code), Some(message))
            }
        };
        let end = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let ended = sqlx::query(
                    "UPDATE git_operations SET state = $1, result = $2, error_code = $3, error = $4, ended_ms = $5
                     WHERE id = $6 AND project_id = $7 AND state = 'running'
                     RETURNING sandbox_id, kind, repository",
                )
                .bind(state.as_str())
                .bind(result.as_ref().map(|result| storable(&result.to_string())))
                .bind(code.clone())
                .bind(error.clone())
                .bind(now)
                .bind(operation)
                .bind(project)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                // It was ended elsewhere, or its sandbox's record was deleted.
                let Some(row) = ended else { return Ok(()) };
                let (kind, repository) = (text(&row, "kind")?, text(&row, "repository")?);
                let event = match state {
                    GitState::Failed => {
                        let error = GitFailure { code, message: error };
                        Event::GitFailed(GitFailed { operation, kind, repository, error })
                    }
                    GitState::Running | GitState::Succeeded => {
                        let result = result.unwrap_or_default();
                        Event::GitSucceeded(GitSucceeded { operation, kind, repository, result })
                    }
                };
                events::record(connection, project, text(&row, "sandbox_id")?, event, now).await?;
                Ok(())
            })
        });
        end.await
    }

    /// Ends the operations that a server of this installation left in progress; returns how many.
    pub async fn interrupt_git_operations(&self, operator: &Operator) -> Result<usize, StoreError> {
        let installation = self.installation();
        let rows = sqlx::query(
            "SELECT o.id, o.project_id FROM git_operations AS o JOIN sandboxes AS s ON s.id = o.sandbox_id
             WHERE o.state = 'running' AND ($1 IS NULL OR s.installation = $1) LIMIT 10000",
        )
        .bind(installation)
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        for row in &rows {
            let scope = operator.acting_for(id(row, "project_id")?, None);
            let message = "the server was stopped before it finished".to_string();
            let outcome = GitOutcome::Failed { code: "interrupted".to_string(), message };
            self.end_git_operation(&scope, id(row, "id")?, outcome).await?;
        }
        Ok(rows.len())
    }

    /// The latest operations of a sandbox, newest first; only those before `before` if given.
    pub async fn git_operations(
        &self,
        scope: &ProjectScope,
        sandbox: SandboxId,
        before: Option<GitOperationId>,
        limit: u32,
    ) -> Result<Vec<GitOperation>, StoreError> {
        let columns =
            "o.id, o.sandbox_id, o.repository, o.kind, o.state, o.actor, o.result, o.error_code, o.error,
             o.started_ms, o.ended_ms";
        Select::new(columns, "git_operations AS o JOIN sandboxes AS s ON s.id = o.sandbox_id")
            .filter("o.sandbox_id = ?", sandbox)
            .filter("o.project_id = ?", scope.project())
            .filter_if("s.agent_id = ?", scope.agent())
            .newest_first("o.id", before, limit)
            .all(self.database(), READ, operation)
            .await
    }

    /// Records that a sandbox has a repository.
    pub async fn put_git_remote(&self, scope: &ProjectScope, remote: GitRemote) -> Result<(), ChangeError> {
        let scope = *scope;
        let put = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let put = sqlx::query(
                    "INSERT INTO git_remotes
                         (sandbox_id, slug, project_id, repository_id, path, user_name, created_ms)
                     SELECT s.id, $1, s.project_id, r.id, $2, $3, $4 FROM sandboxes AS s, repositories AS r
                     WHERE s.id = $5 AND s.project_id = $6 AND ($7 = s.project_id OR $7 = s.agent_id)
                         AND r.id = $8 AND r.project_id = $6 AND r.removed_ms IS NULL
                     ON CONFLICT (sandbox_id, slug) DO UPDATE SET repository_id = excluded.repository_id,
                         path = excluded.path, user_name = excluded.user_name",
                )
                .bind(remote.slug)
                .bind(remote.path)
                .bind(remote.user)
                .bind(now_ms())
                .bind(remote.sandbox)
                .bind(scope.project())
                .bind(scope.owner())
                .bind(remote.repository)
                .execute(connection)
                .await
                .doing(CHANGE)?;
                if put.rows_affected() == 0 { Err(ChangeError::NotFound) } else { Ok(()) }
            })
        });
        put.await
    }

    /// The repositories of a sandbox that still exist.
    pub async fn git_remotes(
        &self,
        scope: &impl Scope,
        sandbox: SandboxId,
    ) -> Result<Vec<GitRemote>, StoreError> {
        let rows = sqlx::query(
            "SELECT m.sandbox_id, m.slug, m.project_id, m.repository_id, m.path, m.user_name
             FROM git_remotes AS m JOIN repositories AS r ON r.id = m.repository_id
             WHERE m.sandbox_id = $1 AND ($2 IS NULL OR m.project_id = $2) AND r.removed_ms IS NULL
             ORDER BY m.created_ms, m.slug LIMIT 100",
        )
        .bind(sandbox)
        .bind(scope.only())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(remote).collect()
    }

    /// Restores a sandbox's repositories to those of a snapshot, and removes others.
    pub async fn restore_git_remotes(
        &self,
        _: &Operator,
        sandbox: SandboxId,
        snapshot: SnapshotId,
    ) -> Result<(), StoreError> {
        let restore = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM git_remotes WHERE sandbox_id = $1")
                    .bind(sandbox)
                    .execute(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let from = "snapshot_git_remotes AS m ON m.snapshot_id = $2";
                copy_to_sandbox(connection, sandbox, from, snapshot.to_string()).await
            })
        });
        restore.await
    }

    /// The live sandboxes that have repositories.
    pub async fn sandboxes_with_git(&self, _: &Operator) -> Result<Vec<SandboxId>, StoreError> {
        let rows = sqlx::query(
            "SELECT DISTINCT m.sandbox_id FROM git_remotes AS m JOIN sandboxes AS s ON s.id = m.sandbox_id
             WHERE s.state IN ('running', 'paused')",
        )
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(|row| id(row, "sandbox_id")).collect()
    }
}

/// Records the repositories of a snapshot's sandbox.
pub(crate) async fn keep_remotes_of(
    connection: &mut AnyConnection,
    project: ProjectId,
    sandbox: SandboxId,
    snapshot: SnapshotId,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO snapshot_git_remotes
             (snapshot_id, slug, project_id, repository_id, path, user_name, created_ms)
         SELECT $1, slug, project_id, repository_id, path, user_name, created_ms FROM git_remotes
         WHERE sandbox_id = $2 AND project_id = $3",
    )
    .bind(snapshot)
    .bind(sandbox)
    .bind(project)
    .execute(connection)
    .await
    .doing(CHANGE)?;
    Ok(())
}

/// Gives a new sandbox the repositories of its origin: those of its snapshot, or, for a fork, whose snapshot
/// is not recorded, its parent's.
pub(crate) async fn inherit_remotes(
    connection: &mut AnyConnection,
    sandbox: SandboxId,
    origin: Origin,
) -> Result<(), StoreError> {
    let (from, whose) = match origin.fork_position {
        Some(_) => ("git_remotes AS m ON m.sandbox_id = $2", origin.parent.to_string()),
        None => ("snapshot_git_remotes AS m ON m.snapshot_id = $2", origin.snapshot.to_string()),
    };
    copy_to_sandbox(connection, sandbox, from, whose).await
}

/// Only within a project.
async fn copy_to_sandbox(
    connection: &mut AnyConnection,
    sandbox: SandboxId,
    from: &'static str,
    whose: String,
) -> Result<(), StoreError> {
    let copy = format!(
        "INSERT INTO git_remotes (sandbox_id, slug, project_id, repository_id, path, user_name, created_ms)
         SELECT s.id, m.slug, m.project_id, m.repository_id, m.path, m.user_name, m.created_ms
         FROM sandboxes AS s JOIN {from} AND m.project_id = s.project_id WHERE s.id = $1"
    );
    sqlx::query(AssertSqlSafe(copy)).bind(sandbox).bind(whose).execute(connection).await.doing(CHANGE)?;
    Ok(())
}

fn remote(row: &AnyRow) -> Result<GitRemote, StoreError> {
    Ok(GitRemote {
        sandbox: id(row, "sandbox_id")?,
        project: id(row, "project_id")?,
        slug: text(row, "slug")?,
        repository: id(row, "repository_id")?,
        path: text(row, "path")?,
        user: optional_text(row, "user_name")?,
    })
}

fn operation(row: &AnyRow) -> Result<GitOperation, StoreError> {
    let result = optional_text(row, "result")?;
    Ok(GitOperation {
        id: id(row, "id")?,
        sandbox: id(row, "sandbox_id")?,
        repository: text(row, "repository")?,
        kind: text(row, "kind")?,
        state: name(row, "state", GitState::parse)?,
        actor: text(row, "actor")?,
        result: result.map(|result| from_json(&result, "result")).transpose()?,
        error_code: optional_text(row, "error_code")?,
        error: optional_text(row, "error")?,
        started_ms: number(row, "started_ms")?,
        ended_ms: row.try_get("ended_ms").doing(READ)?,
    })
}
