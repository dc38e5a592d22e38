//! Comments on pull requests and issues of local repositories.

use coffer_core::event::{CommentMade, Event};
use coffer_core::forge::{CommitId, DiffSide, Verdict};
use coffer_core::{CommentId, Millis, ProjectId, RepositoryId};
use sqlx::any::AnyRow;
use sqlx::{AssertSqlSafe, Row};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::{ForgeRecordError, optional_word, word};
use crate::columns::{id, number, optional_id, optional_text, storable, text};
use crate::error::Doing;
use crate::select::Select;
use crate::{ProjectScope, Store, StoreError, events, now_ms};

const READ: &str = "read comments";
const CHANGE: &str = "add a comment";
const ALTER: &str = "change a comment";
/// Most comments of each kind, on one pull request or issue.
const MOST_COMMENTS: i64 = 10_000;

/// The kind of a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum CommentKind {
    /// On the whole pull request or issue.
    #[strum(serialize = "comment")]
    Plain,
    /// A review of a pull request.
    Review,
    /// On a line of its diff.
    Inline,
}

coffer_core::names!(CommentKind);

/// A comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommentRow {
    pub id: CommentId,
    pub repository: RepositoryId,
    pub project: ProjectId,
    pub number: i64,
    pub kind: CommentKind,
    pub body: String,
    pub author: String,
    pub verdict: Option<Verdict>,
    /// The reviewed commit, for reviews and comments on lines.
    pub commit: Option<CommitId>,
    pub path: Option<String>,
    pub line: Option<i64>,
    pub side: Option<DiffSide>,
    /// The first comment of its thread.
    pub in_reply_to: Option<CommentId>,
    pub created_ms: Millis,
    /// When its text was changed.
    pub updated_ms: Option<Millis>,
    /// Who resolved the thread that it begins.
    pub resolved_by: Option<String>,
    pub resolved_ms: Option<Millis>,
}

/// A change of a comment on a line.
#[derive(Debug, Clone)]
pub enum CommentChange {
    Edit {
        body: String,
    },
    /// Resolves its thread, by this caller.
    Resolve {
        by: String,
    },
    Reopen,
    Delete,
}

/// A new comment.
#[derive(Debug, Clone)]
pub struct NewComment {
    pub kind: CommentKind,
    pub body: String,
    pub author: String,
    pub verdict: Option<Verdict>,
    pub commit: Option<CommitId>,
    pub path: Option<String>,
    pub line: Option<i64>,
    pub side: Option<DiffSide>,
    pub in_reply_to: Option<CommentId>,
}

impl NewComment {
    /// A comment on the whole.
    pub fn plain(body: &str, author: &str) -> Self {
        Self {
            kind: CommentKind::Plain,
            body: body.to_string(),
            author: author.to_string(),
            verdict: None,
            commit: None,
            path: None,
            line: None,
            side: None,
            in_reply_to: None,
        }
    }
}

const COLUMNS: &str = "id, repository_id, number, project_id, kind, body, author, verdict, commit_id, path, line, \
     side, in_reply_to, created_ms";
/// Those of a row; the others are empty in a new one.
const READ_COLUMNS: &str = "id, repository_id, number, project_id, kind, body, author, verdict, commit_id, path, line, \
     side, in_reply_to, created_ms, updated_ms, resolved_by, resolved_ms";

impl Store {
    /// Adds comments together to a pull request or issue: all or none.
    pub async fn add_comments(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        on: i64,
        new: Vec<NewComment>,
    ) -> Result<Vec<CommentRow>, ForgeRecordError> {
        let project = scope.project();
        let add = self.database().write(CHANGE, move |connection| {
            Box::pin(async move {
                let exists = sqlx::query(
                    "SELECT number FROM pulls WHERE repository_id = $1 AND project_id = $2 AND number = $3
                     UNION ALL
                     SELECT number FROM issues WHERE repository_id = $1 AND project_id = $2 AND number = $3",
                )
                .bind(repository)
                .bind(project)
                .bind(on)
                .fetch_optional(&mut *connection)
                .await
                .doing(CHANGE)?;
                if exists.is_none() {
                    return Err(ForgeRecordError::NotFound);
                }
                let count = sqlx::query(
                    "SELECT COUNT(*) AS there FROM forge_comments WHERE repository_id = $1 AND number = $2",
                )
                .bind(repository)
                .bind(on)
                .fetch_one(&mut *connection)
                .await
                .doing(CHANGE)?;
                if number(&count, "there")? >= MOST_COMMENTS {
                    return Err(ForgeRecordError::TooMany(MOST_COMMENTS));
                }
                let (now, mut made) = (now_ms(), Vec::with_capacity(new.len()));
                for new in new {
                    let sql = format!(
                        "INSERT INTO forge_comments ({COLUMNS})
                         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) RETURNING {READ_COLUMNS}"
                    );
                    let row = sqlx::query(AssertSqlSafe(sql))
                        .bind(CommentId::generate())
                        .bind(repository)
                        .bind(on)
                        .bind(project)
                        .bind(new.kind.as_str())
                        .bind(storable(&new.body))
                        .bind(new.author)
                        .bind(new.verdict.map(|verdict| verdict.as_str()))
                        .bind(new.commit.as_ref().map(CommitId::as_str))
                        .bind(new.path.as_deref().map(storable))
                        .bind(new.line)
                        .bind(new.side.map(|side| side.as_str()))
                        .bind(new.in_reply_to)
                        .bind(now)
                        .fetch_one(&mut *connection)
                        .await
                        .doing(CHANGE)?;
                    made.push(read(&row)?);
                }
                for comment in &made {
                    let made = about(comment);
                    let event = match comment.kind {
                        CommentKind::Plain => Event::ForgeCommented(made),
                        CommentKind::Review => Event::PullReviewed(made),
                        CommentKind::Inline => Event::PullLineCommented(made),
                    };
                    events::record(connection, project, repository, event, now).await?;
                }
                Ok(made)
            })
        });
        add.await
    }

    /// Comments of a kind after `after`, oldest first.
    pub async fn comments(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        on: i64,
        kind: CommentKind,
        after: Option<CommentId>,
        limit: u32,
    ) -> Result<Vec<CommentRow>, StoreError> {
        Select::new(READ_COLUMNS, "forge_comments")
            .filter("repository_id = ?", repository)
            .filter("project_id = ?", scope.project())
            .filter("number = ?", on)
            .filter("kind = ?", kind.as_str())
            .oldest_first("id", after, limit)
            .all(self.database(), READ, read)
            .await
    }

    /// A comment on a line of a pull request.
    pub async fn line_comment(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        on: i64,
        comment: CommentId,
    ) -> Result<Option<CommentRow>, StoreError> {
        Select::new(READ_COLUMNS, "forge_comments")
            .filter("repository_id = ?", repository)
            .filter("project_id = ?", scope.project())
            .filter("number = ?", on)
            .filter("kind = ?", CommentKind::Inline.as_str())
            .filter("id = ?", comment)
            .one(self.database(), READ, read)
            .await
    }

    /// Changes a comment on a line, and returns it as it is then, or as it was last. A thread that is resolved twice
    /// keeps the first name.
    pub async fn change_line_comment(
        &self,
        scope: &ProjectScope,
        repository: RepositoryId,
        on: i64,
        comment: CommentId,
        change: CommentChange,
    ) -> Result<CommentRow, ForgeRecordError> {
        let project = scope.project();
        let update = self.database().write(ALTER, move |connection| {
            Box::pin(async move {
                let now = now_ms();
                let one = "WHERE repository_id = $1 AND project_id = $2 AND number = $3 AND id = $4 AND kind = 'inline'";
                let what = match &change {
                    CommentChange::Edit { .. } => "UPDATE forge_comments SET body = $5, updated_ms = $6",
                    CommentChange::Resolve { .. } => {
                        "UPDATE forge_comments SET resolved_by = COALESCE(resolved_by, $5),
                             resolved_ms = COALESCE(resolved_ms, $6)"
                    }
                    CommentChange::Reopen => "UPDATE forge_comments SET resolved_by = NULL, resolved_ms = NULL",
                    CommentChange::Delete => "DELETE FROM forge_comments",
                };
                let sql = format!("{what} {one} RETURNING {READ_COLUMNS}");
                let mut query = sqlx::query(AssertSqlSafe(sql)).bind(repository).bind(project).bind(on).bind(comment);
                query = match change {
                    CommentChange::Edit { body } => query.bind(storable(&body).to_string()).bind(now),
                    CommentChange::Resolve { by } => query.bind(by).bind(now),
                    CommentChange::Reopen | CommentChange::Delete => query,
                };
                let row = query.fetch_optional(&mut *connection).await.doing(ALTER)?;
                let changed = read(&row.ok_or(ForgeRecordError::NotFound)?)?;
                let event = Event::PullLineCommentChanged(about(&changed));
                events::record(connection, project, repository, event, now).await?;
                Ok(changed)
            })
        });
        update.await
    }
}

fn about(comment: &CommentRow) -> CommentMade {
    CommentMade {
        number: comment.number,
        comment_id: comment.id,
        verdict: comment.verdict,
        path: comment.path.clone(),
        line: comment.line,
    }
}

fn read(row: &AnyRow) -> Result<CommentRow, StoreError> {
    Ok(CommentRow {
        id: id(row, "id")?,
        repository: id(row, "repository_id")?,
        project: id(row, "project_id")?,
        number: number(row, "number")?,
        kind: word(row, "kind")?,
        body: text(row, "body")?,
        author: text(row, "author")?,
        verdict: optional_word(row, "verdict")?,
        commit: optional_word(row, "commit_id")?,
        path: optional_text(row, "path")?,
        line: row.try_get("line").doing(READ)?,
        side: optional_word(row, "side")?,
        in_reply_to: optional_id(row, "in_reply_to")?,
        created_ms: number(row, "created_ms")?,
        updated_ms: row.try_get("updated_ms").doing(READ)?,
        resolved_by: optional_text(row, "resolved_by")?,
        resolved_ms: row.try_get("resolved_ms").doing(READ)?,
    })
}
