//! Pull requests of local repositories.

use coffer_core::event::{Event, PullHeadMoved, PullNote};
use coffer_core::forge::{BranchName, CommitId, MergeMethod, PullChange, PullFilter, PullState};
use coffer_core::{Millis, ProjectId, RepositoryId};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, AssertSqlSafe, Row};

use super::{ForgeRecordError, next_number, optional_word, word};
use crate::columns::{id, number, storable, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read pull requests";
const CHANGE: &str = "change a pull request";

/// A pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRow {
    pub repository: RepositoryId,
    pub project: ProjectId,
    pub number: i64,
    pub title: String,
    pub body: String,
    pub head: BranchName,
    pub base: BranchName,
    pub state: PullState,
    pub draft: bool,
    /// The head's commit as last seen.
    pub head_commit: CommitId,
    /// The base's commit when it was opened; once merged, the one before the merge.
    pub base_commit: CommitId,
    /// A merge in progress: the base's commit before and after.
    pub merging: Option<(CommitId, CommitId)>,
    pub merge_commit: Option<CommitId>,
    pub merge_method: Option<MergeMethod>,
    pub author: String,
    pub merged_by: Option<String>,
    pub created_ms: Millis,
    pub updated_ms: Millis,
    pub closed_ms: Option<Millis>,
}

/// A new pull request.
#[derive(Debug, Clone)]
pub struct NewPull {
    pub title: String,
    pub body: String,
    pub head: BranchName,
    pub base: BranchName,
    pub draft: bool,
    pub head_commit: CommitId,
    pub base_commit: CommitId,
    pub author: String,
}

/// A merge that is about to happen.
#[derive(Debug, Clone)]
pub struct Merging {
    /// The base's commit.
    pub base: CommitId,
    /// The base's commit after the merge.
    pub commit: CommitId,
    pub method: MergeMethod,
    pub by: String,
}

const COLUMNS: &str = "repository_id, project_id, number, title, body, head, base, state, draft, head_commit, \
     base_commit, merging_commit, merging_base, merge_commit, merge_method, author, merged_by, created_ms, \
     updated_ms, closed_ms";

impl Store {
    /// Opens a pull request; a head and base can have only one.
    pub async fn create_pull(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        new: NewPull,
    ) -> Result<PullRow, ForgeRecordError> {
        let project = scope.project();
        let insert = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let number = next_number(connection, project, repository, CHANGE).await?;
                let number = number.ok_or(ForgeRecordError::NotFound)?;
                // The repository's row is locked, so no other can come in between.
                if let Some(number) = open_one(connection, repository, &new.head, &new.base).await? {
                    return Err(ForgeRecordError::Taken { number: Some(number) });
                }
                let now = now_ms();
                let sql = format!(
                    "INSERT INTO pulls (repository_id, number, project_id, title, body, head, base, state, draft,
                         head_commit, base_commit, author, created_ms, updated_ms)
                     VALUES ($1, $2, $3, $4, $5, $6, $7, 'open', $8, $9, $10, $11, $12, $12)
                     RETURNING {COLUMNS}"
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(repository)
                    .bind(number)
                    .bind(project)
                    .bind(storable(&new.title))
                    .bind(storable(&new.body))
                    .bind(new.head.as_str())
                    .bind(new.base.as_str())
                    .bind(i64::from(new.draft))
                    .bind(new.head_commit.as_str())
                    .bind(new.base_commit.as_str())
                    .bind(new.author)
                    .bind(now)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let pull = read(&row)?;
                events::record(connection, project, repository, Event::PullOpened(about(&pull)), now).await?;
                Ok(pull)
            })
        });
        insert.await
    }

    /// The pull request of that number.
    pub async fn pull(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        number: i64,
    ) -> Result<Option<PullRow>, StoreError> {
        Select::new(COLUMNS, "pulls")
            .filter("repository_id = ?", repository)
            .filter("project_id = ?", scope.project())
            .filter("number = ?", number)
            .one(self.database(), READ, read)
            .await
    }

    /// Pull requests with numbers below `before`, newest first.
    pub async fn pulls(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        filter: &PullFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<PullRow>, StoreError> {
        Select::new(COLUMNS, "pulls")
            .filter("repository_id = ?", repository)
            .filter("project_id = ?", scope.project())
            .filter_if("state = ?", filter.state.map(PullState::as_str))
            .filter_if("head = ?", filter.head.as_ref().map(BranchName::as_str))
            .filter_if("base = ?", filter.base.as_ref().map(BranchName::as_str))
            .newest_first("number", before, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// Changes a pull request that was not merged.
    pub async fn update_pull(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        number: i64,
        change: PullChange,
    ) -> Result<PullRow, ForgeRecordError> {
        let project = scope.project();
        let update = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                hold(connection, project, repository).await?;
                let before = find(connection, project, repository, number).await?;
                let before = before.ok_or(ForgeRecordError::NotFound)?;
                if before.state == PullState::Merged && (change.open.is_some() || change.base.is_some()) {
                    return Err(ForgeRecordError::Raced);
                }
                let base = change.base.clone().unwrap_or_else(|| before.base.clone());
                let state = match change.open {
                    Some(true) => PullState::Open,
                    Some(false) => PullState::Closed,
                    None => before.state,
                };
                if state == PullState::Open
                    && let Some(taken) = open_one(connection, repository, &before.head, &base).await?
                    && taken != number
                {
                    return Err(ForgeRecordError::Taken { number: Some(taken) });
                }
                let now = now_ms();
                let closed_ms = match state {
                    PullState::Open => None,
                    _ => before.closed_ms.or(Some(now)),
                };
                let sql = format!(
                    "UPDATE pulls SET title = $4, body = $5, base = $6, draft = $7, state = $8, closed_ms = $9,
                         updated_ms = $10
                     WHERE repository_id = $1 AND project_id = $2 AND number = $3 RETURNING {COLUMNS}"
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(repository)
                    .bind(project)
                    .bind(number)
                    .bind(change.title.as_deref().map_or(before.title, storable))
                    .bind(change.body.as_deref().map_or(before.body, storable))
                    .bind(base.as_str())
                    .bind(i64::from(change.draft.unwrap_or(before.draft)))
                    .bind(state.as_str())
                    .bind(closed_ms)
                    .bind(now)
                    .fetch_one(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let pull = read(&row)?;
                let event = match (before.state, state) {
                    (PullState::Open, PullState::Closed) => Event::PullClosed(about(&pull)),
                    (PullState::Closed, PullState::Open) => Event::PullReopened(about(&pull)),
                    _ => Event::PullUpdated(about(&pull)),
                };
                events::record(connection, project, repository, event, now).await?;
                Ok(pull)
            })
        });
        update.await
    }

    /// Records that the head of an open pull request has moved; `false` if another server already has.
    pub async fn move_pull_head(
        &self,
        scope: &ProjectScope,
        pull: &PullRow,
        to: CommitId,
    ) -> Result<bool, StoreError> {
        let (project, repository, number) = (scope.project(), pull.repository, pull.number);
        let from = pull.head_commit.clone();
        let update = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let sql = format!(
                    "UPDATE pulls SET head_commit = $5, updated_ms = $6
                     WHERE repository_id = $1 AND project_id = $2 AND number = $3 AND head_commit = $4
                         AND state = 'open' RETURNING {COLUMNS}"
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(repository)
                    .bind(project)
                    .bind(number)
                    .bind(from.as_str())
                    .bind(to.as_str())
                    .bind(now)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Ok(false) };
                let moved = PullHeadMoved { pull: about(&read(&row)?), before: from };
                events::record(connection, project, repository, Event::PullHeadMoved(moved), now).await?;
                Ok(true)
            })
        });
        update.await
    }

    /// Records the coming commit of the base of an open pull request, or clears it.
    pub async fn note_merge(
        &self,
        scope: &ProjectScope,
        pull: &PullRow,
        merging: Option<Merging>,
    ) -> Result<(), ForgeRecordError> {
        let (project, repository, number) = (scope.project(), pull.repository, pull.number);
        let head = pull.head_commit.to_string();
        let note = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let noted = sqlx::query(
                    "UPDATE pulls SET merging_base = $4, merging_commit = $5, merge_method = $7, merged_by = $8
                     WHERE repository_id = $1 AND project_id = $2 AND number = $3 AND state = 'open'
                         AND head_commit = $6",
                )
                .bind(repository)
                .bind(project)
                .bind(number)
                .bind(merging.as_ref().map(|merging| merging.base.as_str()))
                .bind(merging.as_ref().map(|merging| merging.commit.as_str()))
                .bind(head)
                .bind(merging.as_ref().map(|merging| merging.method.as_str()))
                .bind(merging.as_ref().map(|merging| merging.by.clone()))
                .execute(connection)
                .await
                .doing(CHANGE)?;
                if noted.rows_affected() == 0 { Err(ForgeRecordError::Raced) } else { Ok(()) }
            })
        });
        note.await
    }

    /// Marks an open pull request as merged, by the recorded actor and method; without a record, by `by`.
    pub async fn finish_merge(
        &self,
        scope: &ProjectScope,
        pull: &PullRow,
        (base, commit): (CommitId, CommitId),
        by: &str,
    ) -> Result<PullRow, ForgeRecordError> {
        let (project, repository, number) = (scope.project(), pull.repository, pull.number);
        let by = by.to_string();
        let finish = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let sql = format!(
                    "UPDATE pulls SET state = 'merged', base_commit = $4, merge_commit = $5,
                         merged_by = COALESCE(merged_by, $6), closed_ms = $7, updated_ms = $7, merging_base = NULL, merging_commit = NULL
                     WHERE repository_id = $1 AND project_id = $2 AND number = $3 AND state = 'open'
                     RETURNING {COLUMNS}"
                );
                let row = sqlx::query(AssertSqlSafe(sql))
                    .bind(repository)
                    .bind(project)
                    .bind(number)
                    .bind(base.as_str())
                    .bind(commit.as_str())
                    .bind(by)
                    .bind(now)
                    .fetch_optional(&mut *connection)
                    .await
                    .doing(CHANGE)?;
                let Some(row) = row else { return Err(ForgeRecordError::Raced) };
                let pull = read(&row)?;
                events::record(connection, project, repository, Event::PullMerged(about(&pull)), now).await?;
                Ok(pull)
            })
        });
        finish.await
    }
}

/// Locks the repository's row until the commit.
async fn hold(
    connection: &mut AnyConnection,
    project: ProjectId,
    repository: RepositoryId,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE repositories SET last_number = last_number WHERE id = $1 AND project_id = $2")
        .bind(repository)
        .bind(project)
        .execute(connection)
        .await
        .doing(CHANGE)
        .map(drop)
}

async fn find(
    connection: &mut AnyConnection,
    project: ProjectId,
    repository: RepositoryId,
    number: i64,
) -> Result<Option<PullRow>, StoreError> {
    let sql =
        format!("SELECT {COLUMNS} FROM pulls WHERE repository_id = $1 AND project_id = $2 AND number = $3");
    let row = sqlx::query(AssertSqlSafe(sql))
        .bind(repository)
        .bind(project)
        .bind(number)
        .fetch_optional(connection)
        .await
        .doing(CHANGE)?;
    row.as_ref().map(read).transpose()
}

/// The number of the open pull request of these branches.
async fn open_one(
    connection: &mut AnyConnection,
    repository: RepositoryId,
    head: &BranchName,
    base: &BranchName,
) -> Result<Option<i64>, StoreError> {
    let row = sqlx::query(
        "SELECT number FROM pulls WHERE repository_id = $1 AND head = $2 AND base = $3 AND state = 'open'",
    )
    .bind(repository)
    .bind(head.as_str())
    .bind(base.as_str())
    .fetch_optional(connection)
    .await
    .doing(CHANGE)?;
    row.map(|row| number(&row, "number")).transpose()
}

/// The event data of a pull request: without its text, which may be long.
fn about(pull: &PullRow) -> PullNote {
    PullNote {
        number: pull.number,
        head: pull.head.clone(),
        base: pull.base.clone(),
        state: pull.state,
        head_commit: pull.head_commit.clone(),
        merge_commit: pull.merge_commit.clone(),
    }
}

fn read(row: &AnyRow) -> Result<PullRow, StoreError> {
    let merging = (optional_word(row, "merging_base")?, optional_word(row, "merging_commit")?);
    Ok(PullRow {
        repository: id(row, "repository_id")?,
        project: id(row, "project_id")?,
        number: number(row, "number")?,
        title: text(row, "title")?,
        body: text(row, "body")?,
        head: word(row, "head")?,
        base: word(row, "base")?,
        state: word(row, "state")?,
        draft: number(row, "draft")? != 0,
        head_commit: word(row, "head_commit")?,
        base_commit: word(row, "base_commit")?,
        merging: merging.0.zip(merging.1),
        merge_commit: optional_word(row, "merge_commit")?,
        merge_method: optional_word(row, "merge_method")?,
        author: text(row, "author")?,
        merged_by: row.try_get("merged_by").doing(READ)?,
        created_ms: number(row, "created_ms")?,
        updated_ms: number(row, "updated_ms")?,
        closed_ms: row.try_get("closed_ms").doing(READ)?,
    })
}
