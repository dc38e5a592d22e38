//! Results of checks for commits of local repositories.

use coffer_core::event::{CommitStatus, Event};
use coffer_core::forge::{CommitId, StatusContext, StatusState};
use coffer_core::{Millis, RepositoryId};
use sqlx::Row;
use sqlx::any::AnyRow;

use super::{ForgeRecordError, word};
use crate::columns::{number, optional_text, storable, text};
use crate::error::Doing;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read statuses";
const CHANGE: &str = "set a status";
const MOST_STATUSES: i64 = 1000;

/// The result of one check for a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRow {
    pub commit: CommitId,
    pub context: StatusContext,
    pub state: StatusState,
    pub description: String,
    pub target_url: Option<String>,
    pub author: String,
    pub changed_ms: Millis,
}

/// A new result.
#[derive(Debug, Clone)]
pub struct NewStatus {
    pub commit: CommitId,
    pub context: StatusContext,
    pub state: StatusState,
    pub description: String,
    pub target_url: Option<String>,
    pub author: String,
}

impl Store {
    /// Sets the result of a check for a commit.
    pub async fn set_status(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        new: NewStatus,
    ) -> Result<StatusRow, ForgeRecordError> {
        let project = scope.project();
        let set = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let count = sqlx::query(
                    "SELECT COUNT(*) AS there FROM commit_statuses WHERE repository_id = $1 AND commit_id = $2",
                )
                .bind(repository)
                .bind(new.commit.as_str())
                .fetch_one(&mut *connection)
                .await
                .doing(CHANGE)?;
                if number(&count, "there")? >= MOST_STATUSES {
                    return Err(ForgeRecordError::TooMany(MOST_STATUSES));
                }
                let now = now_ms();
                let row = sqlx::query(
                    "INSERT INTO commit_statuses (repository_id, commit_id, context, project_id, state, description,
                         target_url, author, changed_ms)
                     SELECT id, $3, $4, project_id, $5, $6, $7, $8, $9 FROM repositories
                     WHERE id = $1 AND project_id = $2 AND removed_ms IS NULL
                     ON CONFLICT (repository_id, commit_id, context) DO UPDATE SET
                         state = excluded.state, description = excluded.description,
                         target_url = excluded.target_url, author = excluded.author,
                         changed_ms = excluded.changed_ms
                     RETURNING commit_id, context, state, description, target_url, author, changed_ms",
                )
                .bind(repository)
                .bind(project)
                .bind(new.commit.as_str())
                .bind(new.context.as_str())
                .bind(new.state.as_str())
                .bind(storable(&new.description))
                .bind(new.target_url.as_deref().map(storable))
                .bind(new.author)
                .bind(now)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                let Some(row) = row else { return Err(ForgeRecordError::NotFound) };
                let status = read(&row)?;
                let (commit, context) = (status.commit.clone(), status.context.clone());
                let event = Event::StatusSet(CommitStatus { commit, context, state: status.state });
                events::record(connection, project, repository, event, now).await?;
                Ok(status)
            })
        });
        set.await
    }

    /// The results of all checks for a commit, by context.
    pub async fn statuses(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        commit: &CommitId,
    ) -> Result<Vec<StatusRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT commit_id, context, state, description, target_url, author, changed_ms FROM commit_statuses
             WHERE repository_id = $1 AND project_id = $2 AND commit_id = $3 ORDER BY context",
        )
        .bind(repository)
        .bind(scope.project())
        .bind(commit.as_str())
        .fetch_all(self.database().readers())
        .await
        .doing(READ)?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &AnyRow) -> Result<StatusRow, StoreError> {
    Ok(StatusRow {
        commit: word(row, "commit_id")?,
        context: word(row, "context")?,
        state: word(row, "state")?,
        description: text(row, "description")?,
        target_url: optional_text(row, "target_url")?,
        author: text(row, "author")?,
        changed_ms: row.try_get("changed_ms").doing(READ)?,
    })
}
