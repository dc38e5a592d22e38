//! Issues of local repositories.

use coffer_core::event::{Event, IssueNote};
use coffer_core::forge::IssueState;
use coffer_core::{Millis, ProjectId, RepositoryId};
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row};

use super::{ForgeRecordError, next_number, word};
use crate::columns::{id, number, storable, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read issues";
const CHANGE: &str = "change an issue";

/// An issue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssueRow {
    pub repository: RepositoryId,
    pub project: ProjectId,
    pub number: i64,
    pub title: String,
    pub body: String,
    pub state: IssueState,
    pub author: String,
    pub created_ms: Millis,
    pub updated_ms: Millis,
    pub closed_ms: Option<Millis>,
}

/// Changes to an issue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IssueChange {
    pub title: Option<String>,
    pub body: Option<String>,
    pub state: Option<IssueState>,
}

const COLUMNS: &str =
    "repository_id, project_id, number, title, body, state, author, created_ms, updated_ms, closed_ms";

impl Store {
    /// Opens an issue.
    pub async fn create_issue(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        title: &str,
        body: &str,
        author: &str,
    ) -> Result<IssueRow, ForgeRecordError> {
        let project = scope.project();
        let (title, body, author) = (storable(title), storable(body), author.to_string());
        let insert = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let number = next_number(connection, project, repository, CHANGE).await?;
                let number = number.ok_or(ForgeRecordError::NotFound)?;
                let now = now_ms();
                let sql = format!(
                    "INSERT INTO issues (repository_id, number, project_id, title, body, state, author, created_ms,
                         updated_ms)
                     VALUES ($1, $2, $3, $4, $5, 'open', $6, $7, $7) RETURNING {COLUMNS}"
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(repository)
                    .bind(number)
                    .bind(project)
                    .bind(title)
                    .bind(body)
                    .bind(author)
                    .bind(now)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let issue = read(&row)?;
                events::record(connection, project, repository, Event::IssueOpened(about(&issue)), now).await?;
                Ok(issue)
            })
        });
        insert.await
    }

    /// The issue of that number.
    pub async fn issue(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        number: i64,
    ) -> Result<Option<IssueRow>, StoreError> {
        Select::new(COLUMNS, "issues")
            .filter("repository_id = ?", repository)
            .filter("project_id = ?", scope.project())
            .filter("number = ?", number)
            .one(self.database(), READ, read)
            .await
    }

    /// Issues with numbers below `before`, newest first.
    pub async fn issues(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        state: Option<IssueState>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<IssueRow>, StoreError> {
        Select::new(COLUMNS, "issues")
            .filter("repository_id = ?", repository)
            .filter("project_id = ?", scope.project())
            .filter_if("state = ?", state.map(IssueState::as_str))
            .newest_first("number", before, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// Changes an issue.
    pub async fn update_issue(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        number: i64,
        change: IssueChange,
    ) -> Result<IssueRow, ForgeRecordError> {
        let project = scope.project();
        let update = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let sql = format!(
                    "UPDATE issues SET title = COALESCE($4, title), body = COALESCE($5, body),
                         state = COALESCE($6, state), updated_ms = $7,
                         closed_ms = CASE WHEN $6 = 'closed' THEN COALESCE(closed_ms, $7)
                             WHEN $6 = 'open' THEN NULL ELSE closed_ms END
                     WHERE repository_id = $1 AND project_id = $2 AND number = $3 RETURNING {COLUMNS}"
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(repository)
                    .bind(project)
                    .bind(number)
                    .bind(change.title.as_deref().map(storable))
                    .bind(change.body.as_deref().map(storable))
                    .bind(change.state.map(|state| state.as_str()))
                    .bind(now)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Err(ForgeRecordError::NotFound) };
                let issue = read(&row)?;
                let event = match change.state {
                    Some(IssueState::Closed) => Event::IssueClosed(about(&issue)),
                    Some(IssueState::Open) => Event::IssueReopened(about(&issue)),
                    None => Event::IssueUpdated(about(&issue)),
                };
                events::record(connection, project, repository, event, now).await?;
                Ok(issue)
            })
        });
        update.await
    }
}

fn about(issue: &IssueRow) -> IssueNote {
    IssueNote { number: issue.number, state: issue.state }
}

fn read(row: &AnyRow) -> Result<IssueRow, StoreError> {
    Ok(IssueRow {
        repository: id(row, "repository_id")?,
        project: id(row, "project_id")?,
        number: number(row, "number")?,
        title: text(row, "title")?,
        body: text(row, "body")?,
        state: word(row, "state")?,
        author: text(row, "author")?,
        created_ms: number(row, "created_ms")?,
        updated_ms: number(row, "updated_ms")?,
        closed_ms: row.try_get("closed_ms").doing(READ)?,
    })
}
