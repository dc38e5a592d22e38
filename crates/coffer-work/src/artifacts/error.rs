//! Why artifacts are not stored or read.

use coffer_forge::DiskLow;
use coffer_shares::Full;
use coffer_store::{ArtifactError, ChangeError, OverQuota};

/// Why an artifact was not stored.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("an artifact may have {0} bytes")]
    TooLarge(u64),
    /// The sender broke off.
    #[error("the contents broke off: {0}")]
    Broken(String),
    #[error("the contents arrived too slowly")]
    TooSlow,
    /// Too many uploads of the project are in progress.
    #[error(transparent)]
    Busy(#[from] Full),
    #[error(transparent)]
    Record(#[from] ArtifactError),
    #[error("could not write the contents")]
    Disk(#[source] std::io::Error),
    #[error("{0}")]
    OverQuota(OverQuota),
    #[error(transparent)]
    DiskLow(#[from] DiskLow),
}

impl From<ChangeError> for KeepError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::OverQuota(over) => Self::OverQuota(over),
            ChangeError::Store(error) => Self::Record(error.into()),
            ChangeError::NotFound | ChangeError::Raced { .. } => {
                Self::Record(ArtifactError::NoSuch("project"))
            }
        }
    }
}

/// Why contents cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another installation stores it")]
    Elsewhere,
    #[error("its contents are no longer there")]
    Lost,
    #[error("could not read the contents")]
    Disk(#[source] std::io::Error),
}
