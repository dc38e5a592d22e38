//! Errors of forges.

use std::time::Duration;

use coffer_core::settings::ByteSize;
use coffer_store::{ForgeRecordError, StoreError};

use crate::git::GitError;

/// One closed list for all forges. The text is for people and names the thing and, if there is one, the fix;
/// programs decide by the variant.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ForgeError {
    #[error("{kind} {what} not found")]
    NotFound { kind: &'static str, what: String },
    /// No connection of the project leads to this host.
    #[error("the project has no connection to {host}")]
    NotConnected { host: String },
    /// The credential is valid but may not do this.
    #[error("the token may not {doing}: it lacks {scope}")]
    PermissionMissing { doing: String, scope: String },
    #[error("the forge no longer accepts the token: it has expired, was revoked or is wrong")]
    TokenExpired,
    #[error("the secret `{name}` that the connection uses {why}")]
    Credential { name: String, why: &'static str },
    #[error("the forge's rate limit is reached; retry in {} s", retry_after.as_secs().max(1))]
    RateLimited { retry_after: Duration },
    #[error("branch `{branch}` is protected: {why}")]
    Protected { branch: String, why: String },
    /// It cannot be merged as it is.
    #[error("{why}{}", shown(paths))]
    Conflict { why: String, paths: Vec<String> },
    /// A pull request with this number exists.
    #[error("pull request {number} for these branches already exists")]
    PullExists { number: i64 },
    /// Only its author may change it.
    #[error("only the author of {what} can change it")]
    NotYours { what: &'static str },
    /// Another request changed it meanwhile.
    #[error("{why}")]
    Raced { why: String },
    #[error("{field} {why}")]
    Invalid { field: &'static str, why: String },
    #[error("{what} is larger than {most} bytes")]
    TooLarge { what: &'static str, most: u64 },
    /// A push or a bundle.
    #[error("the pack {why}")]
    PackTooLarge { why: String },
    #[error("{0}")]
    OverQuota(coffer_store::OverQuota),
    #[error(transparent)]
    DiskLow(#[from] crate::DiskLow),
    /// The forge does not answer, or its circuit breaker is open.
    #[error("the forge does not answer: {why}")]
    Unreachable { why: String, retry_after: Option<Duration> },
    /// The record does not exist yet.
    #[error("the record is being written; try again in a moment")]
    Busy,
    /// The project has used up its share of git work.
    #[error(transparent)]
    PoolBusy(#[from] coffer_shares::Full),
    #[error("unexpected answer from the forge: {0}")]
    Strange(String),
    #[error("git failed: {0}")]
    Git(String),
    #[error("git is not installed on the server's host, or too old: version 2.40 or newer is needed")]
    NoGit,
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn shown(paths: &[String]) -> String {
    match paths {
        [] => String::new(),
        [one] => format!(": {one}"),
        [first, rest @ ..] => format!(": {first} and {} more", rest.len()),
    }
}

impl ForgeError {
    /// Whether the same request may succeed later without any change.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::RateLimited { .. } | Self::Unreachable { .. } | Self::Busy | Self::PoolBusy(_) => true,
            Self::Store(error) => matches!(error, StoreError::Transient { .. }),
            _ => false,
        }
    }

    pub(crate) fn not_found(kind: &'static str, what: impl ToString) -> Self {
        let what: String = what.to_string().chars().take(200).collect();
        Self::NotFound { kind, what }
    }

    pub(crate) fn conflict(why: impl Into<String>) -> Self {
        Self::Conflict { why: why.into(), paths: Vec::new() }
    }

    /// The directory of repositories failed.
    pub(crate) fn disk(error: std::io::Error) -> Self {
        Self::Git(format!("the repositories' directory cannot be written: {error}"))
    }

    pub(crate) fn invalid(field: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { field, why: why.into() }
    }

    /// The pack exceeds the allowed size, or what is left of it.
    pub(crate) fn pack_too_large(most: u64) -> Self {
        let why = format!(
            "is larger than {}, which is what is left of `forge.max_push` or `forge.max_repository`",
            ByteSize::bytes(most)
        );
        Self::PackTooLarge { why }
    }

    /// Its objects need more memory than one git process may have.
    pub(crate) fn pack_needs_memory(most: u64) -> Self {
        let why =
            format!("needs more than {} of memory to unpack: `forge.git_memory`", ByteSize::bytes(most));
        Self::PackTooLarge { why }
    }

    /// The error for a record of `kind` `what`.
    pub(crate) fn record(error: ForgeRecordError, kind: &'static str, what: impl ToString) -> Self {
        match error {
            ForgeRecordError::NotFound => Self::not_found(kind, what),
            ForgeRecordError::Taken { number: Some(number) } => Self::PullExists { number },
            ForgeRecordError::Taken { number: None } => {
                Self::conflict(format!("{kind} {} already exists", what.to_string()))
            }
            ForgeRecordError::TooMany(most) => Self::conflict(format!("at most {most} of these are allowed")),
            ForgeRecordError::InUse => {
                Self::conflict(format!("{kind} {} is used by repositories", what.to_string()))
            }
            ForgeRecordError::Raced => {
                Self::Raced { why: format!("another request changed {kind} {}", what.to_string()) }
            }
            ForgeRecordError::Store(error) => Self::Store(error),
        }
    }
}

impl From<GitError> for ForgeError {
    fn from(error: GitError) -> Self {
        match error {
            GitError::Missing => Self::NoGit,
            GitError::Busy(full) => Self::PoolBusy(full),
            GitError::OutOfMemory(most) => {
                Self::TooLarge { what: "the memory that git would need for this", most }
            }
            GitError::TimedOut | GitError::Failed(_) => Self::Git(error.to_string()),
        }
    }
}
