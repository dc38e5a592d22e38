//! Why a git operation in a sandbox failed, as a type: code that decides by it never reads text.

use coffer_core::{Code, Refusal};
use coffer_fleet::FleetError;
use coffer_fleet::exec::ExecError;
use coffer_forge::ForgeError;
use coffer_store::{ChangeError, StoreError};

/// Why a git operation in a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    Forge(#[from] ForgeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("repository {0} not found")]
    NoRepository(String),
    /// The base branch does not exist.
    #[error("repository `{repository}` has no branch `{branch}` to start from")]
    NoBase { repository: String, branch: String },
    #[error("nothing has changed since the last commit")]
    NothingToCommit,
    /// The git program inside failed.
    #[error("{message}")]
    Failed { cause: Cause, message: String, hint: Option<String> },
    /// The request is refused before git runs.
    #[error("{}", .0.message)]
    Refused(Refusal),
    #[error("internal error")]
    Broken,
}

/// Why the git program failed, as far as its output says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    TokenExpired,
    NotFound,
    /// The forge, or the connection to it, does not work right now.
    Unreachable,
    /// Another git process holds a lock.
    Locked,
    /// The forge protects the branch.
    Protected,
    /// The forge refused a push.
    Rejected,
    Other,
}

impl GitError {
    /// Whether a retry may succeed soon without any change.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Exec(error) => error.is_transient(),
            Self::Fleet(error) => error.is_transient(),
            Self::Forge(error) => {
                // A step of a run has time to wait for these too.
                let passing =
                    matches!(error, ForgeError::Raced { .. } | ForgeError::Git(_) | ForgeError::Strange(_));
                passing || error.is_transient()
            }
            Self::Store(error) => error.is_transient(),
            Self::Failed { cause, .. } => matches!(cause, Cause::Unreachable | Cause::Locked),
            Self::Broken => true,
            Self::NoRepository(_) | Self::NoBase { .. } | Self::NothingToCommit | Self::Refused(_) => false,
        }
    }

    /// The refusal of a request about the sandbox `id`.
    pub fn explain(&self, id: &str) -> Refusal {
        match self {
            Self::Exec(error) => error.explain(id),
            Self::Fleet(error) => error.explain(id),
            Self::Forge(error) => error.into(),
            Self::Store(error) => error.into(),
            Self::NoRepository(_) | Self::NoBase { .. } => Refusal::new(Code::NotFound, self.to_string()),
            Self::NothingToCommit => Refusal::new(Code::NothingToCommit, self.to_string()),
            Self::Failed { cause, message, hint } => {
                let refusal = Refusal::new(cause.code(), message);
                let refusal = Refusal { hint: hint.clone(), ..refusal };
                if *cause == Cause::Unreachable { refusal.retry_after(5) } else { refusal }
            }
            Self::Refused(refusal) => refusal.clone(),
            Self::Broken => Refusal::internal(),
        }
    }
}

impl Cause {
    const fn code(self) -> Code {
        match self {
            Self::TokenExpired => Code::TokenExpired,
            Self::NotFound => Code::NotFound,
            Self::Unreachable => Code::ForgeUnreachable,
            Self::Protected => Code::BranchProtected,
            Self::Rejected => Code::PushRejected,
            Self::Locked | Self::Other => Code::GitFailed,
        }
    }
}

impl From<Refusal> for GitError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ChangeError> for GitError {
    fn from(error: ChangeError) -> Self {
        Self::Fleet(error.into())
    }
}
