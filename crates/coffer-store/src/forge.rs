//! Records of forges: connections, repositories, and the data of local ones that git does not store.
//!
//! Every query takes a project's scope and finds the repository by its id in that scope.

mod comments;
mod connections;
mod issues;
mod pulls;
mod repositories;
mod statuses;

use coffer_core::{ProjectId, RepositoryId};
use sqlx::AnyConnection;

pub use comments::{CommentChange, CommentKind, CommentRow, NewComment};
pub use connections::{ConnectionRow, ConnectionTerms, Credential, DeliveredEvent, NewConnection};
pub use issues::{IssueChange, IssueRow};
pub use pulls::{Merging, NewPull, PullRow};
pub use repositories::{MOST_REPOSITORIES, NewRepository, RepositoryRow};
pub use statuses::{NewStatus, StatusRow};

use crate::StoreError;
use crate::columns::unreadable;
use crate::error::Doing;

/// Why a record of a forge was not created or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ForgeRecordError {
    #[error("not found")]
    NotFound,
    /// The name, or for a pull request the pair of branches, is in use: by this number.
    #[error("it already exists")]
    Taken { number: Option<i64> },
    #[error("at most {0} are allowed")]
    TooMany(i64),
    /// It is in use by other records.
    #[error("it is in use")]
    InUse,
    /// It is not, or no longer, in the expected state.
    #[error("another request changed it")]
    Raced,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Parses a column with a word or a name.
fn word<T: std::str::FromStr<Err: ToString>>(
    row: &sqlx::any::AnyRow,
    column: &'static str,
) -> Result<T, StoreError> {
    let text = crate::columns::text(row, column)?;
    text.parse().map_err(|error: T::Err| unreadable(column, error))
}

/// The same for an optional column.
fn optional_word<T: std::str::FromStr<Err: ToString>>(
    row: &sqlx::any::AnyRow,
    column: &'static str,
) -> Result<Option<T>, StoreError> {
    let text = crate::columns::optional_text(row, column)?;
    text.map(|text| text.parse().map_err(|error: T::Err| unreadable(column, error))).transpose()
}

/// Takes the repository's next number; `None` if the project has no such repository.
async fn next_number(
    connection: &mut AnyConnection,
    project: ProjectId,
    repository: RepositoryId,
    doing: &'static str,
) -> Result<Option<i64>, StoreError> {
    let row = sqlx::query(
        "UPDATE repositories SET last_number = last_number + 1
         WHERE id = $1 AND project_id = $2 AND removed_ms IS NULL RETURNING last_number",
    )
    .bind(repository)
    .bind(project)
    .fetch_optional(connection)
    .await
    .doing(doing)?;
    row.map(|row| crate::columns::number(&row, "last_number")).transpose()
}
