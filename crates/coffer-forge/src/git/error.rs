//! Why git fails.

use coffer_core::settings::ByteSize;
use coffer_shares::Full;

/// Why git could not be run, or did not finish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GitError {
    #[error("git is not installed, or too old")]
    Missing,
    #[error(transparent)]
    Busy(#[from] Full),
    #[error("it took too long")]
    TimedOut,
    /// More than this many bytes.
    #[error("it needs more than {} of memory", ByteSize::bytes(*.0))]
    OutOfMemory(u64),
    #[error("{0}")]
    Failed(String),
}
