//! Errors of the store.

use std::path::PathBuf;
use std::sync::Arc;

use coffer_core::StateName;
use coffer_core::life::Refused;

use crate::OverQuota;

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("`{url}` names no database; use `sqlite:/path/to/file.db` or `postgres://user@host/name`")]
    BadUrl { url: String },
    #[error("could not open or create the database file `{}`", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("`{}` is not an SQLite database or is damaged; restore it from a backup or move it away", path.display())]
    Damaged { path: PathBuf, source: Cause },
    #[error("could not connect to the database at `{at}`")]
    Connect { at: String, source: Cause },
    #[error("the database at `{at}` was written by a newer version: it has migration {migration}")]
    Newer { at: String, migration: i64 },
    #[error("the server at `{at}` is PostgreSQL {version}; 15 or later is needed")]
    TooOld { at: String, version: i64 },
    #[error("could not read the encryption keys: {why}")]
    Keys { why: String },
    #[error("could not bring the tables at `{at}` up to date")]
    Migrate { at: String, source: Box<dyn std::error::Error + Send + Sync> },
}

/// The database failed, or has data that we cannot read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It is unreachable or busy: the same call may work soon.
    #[error("the database did not answer in time to {doing}")]
    Transient { doing: &'static str, source: Cause },
    #[error("could not {doing}")]
    Database { doing: &'static str, source: Cause },
    #[error("the stored {what} cannot be read: {why}")]
    Unreadable { what: &'static str, why: String },
    /// It cannot be read or sealed without a missing master key.
    #[error("missing master key: {what}")]
    Sealed { what: String },
    /// The state machine has no such transition. Refusals that a caller can meet have their own errors.
    #[error("{0}")]
    Refused(Refused),
    #[error("a list can be filtered by at most {most} metadata pairs")]
    TooManyPairs { most: usize },
    #[error("the store is closed")]
    Closed,
}

/// Why a sandbox was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChangeError {
    #[error("sandbox not found")]
    NotFound,
    /// Its state does not, or no longer, allow the change.
    #[error("the sandbox is already {}", found.as_str())]
    Raced { found: StateName },
    #[error("{0}")]
    OverQuota(OverQuota),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a named thing was not created or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NameError {
    #[error("the name is taken")]
    Taken,
    #[error("not found")]
    NotFound,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a secret was not created or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SecretError {
    #[error("a project may have at most {} secrets", crate::MOST_SECRETS)]
    TooMany,
    #[error("the name is taken")]
    Taken,
    #[error("there is no such secret")]
    NotFound,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why the master key was not rotated: the old one is still current, or both are available.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RotateError {
    #[error("the master key comes from a setting, not from a file")]
    NotInFile,
    #[error("{0}")]
    File(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The database's error. One failed commit answers many callers, so it can be shared.
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct Cause(Arc<sqlx::Error>);

impl Cause {
    pub(crate) fn new(error: sqlx::Error) -> Self {
        Self(Arc::new(error))
    }

    /// The database's own code: SQLite's number or PostgreSQL's SQLSTATE.
    pub(crate) fn code(&self) -> Option<String> {
        self.0.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned())
    }

    fn is_transient(&self) -> bool {
        match &*self.0 {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut => true,
            sqlx::Error::Database(error) => error.code().is_some_and(|code| {
                // SQLite: busy and locked, also in their extended forms. PostgreSQL: connection trouble, lost
                // races, too many connections, shutting down.
                let sqlite_busy =
                    code.parse::<i32>().is_ok_and(|n| code.len() < 5 && matches!(n & 0xff, 5 | 6));
                let class = code.get(..2).filter(|_| code.len() == 5);
                sqlite_busy || matches!(class, Some("08" | "40" | "53" | "55" | "57"))
            }),
            _ => false,
        }
    }
}

/// Names what was being done when the database failed.
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError>;
}

impl<T> Doing<T> for Result<T, sqlx::Error> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError> {
        self.map_err(|error| StoreError::from_sqlx(error, doing))
    }
}

impl StoreError {
    pub(crate) fn from_sqlx(error: sqlx::Error, doing: &'static str) -> Self {
        Self::from_cause(Cause::new(error), doing)
    }

    pub(crate) fn from_cause(source: Cause, doing: &'static str) -> Self {
        match &*source.0 {
            sqlx::Error::PoolClosed => Self::Closed,
            _ if source.is_transient() => Self::Transient { doing, source },
            _ => Self::Database { doing, source },
        }
    }
}
