//! The gate's rules for refusals, with a word for records and a sentence for people.

use std::fmt;

use coffer_core::git::gate::NO_REPOSITORY;
use http::StatusCode;

/// A rule of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitRule {
    /// No route has that name.
    Repository,
    /// Not a request of git's smart protocol.
    Service,
    /// A request of Git LFS that is not supported.
    Lfs,
    /// A batch cannot be parsed.
    LfsBatch,
    /// It is too long, or has too many objects.
    LfsLarge,
    /// The forge names an address for an object that is not allowed.
    LfsPlace,
    /// No batch returned this transfer, or it is too old.
    LfsTransfer,
    /// An object does not have the announced length.
    LfsSize,
    /// No push window is open.
    PushClosed,
    Reference,
    Deletion,
    /// The branch is not at the commit that the window expects.
    Stale,
    PushOptions,
    PushCertificate,
    /// The commands of a push cannot be parsed.
    Protocol,
}

impl GitRule {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::Repository | Self::LfsTransfer => StatusCode::NOT_FOUND,
            Self::LfsBatch | Self::LfsSize => StatusCode::UNPROCESSABLE_ENTITY,
            Self::LfsLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::LfsPlace => StatusCode::BAD_GATEWAY,
            Self::Lfs => StatusCode::NOT_IMPLEMENTED,
            Self::Protocol => StatusCode::BAD_REQUEST,
            _ => StatusCode::FORBIDDEN,
        }
    }

    /// The text for git's user.
    pub(crate) const fn why(self) -> &'static str {
        match self {
            Self::Repository => NO_REPOSITORY,
            Self::Service => "only git's smart protocol passes here",
            Self::Lfs => "only objects of Git LFS pass here, through its batch API; locks do not",
            Self::LfsBatch => "this batch of Git LFS cannot be read; only basic transfers by SHA-256 pass",
            Self::LfsLarge => "this batch of Git LFS is too large; set lfs.transfer.batchSize to 100",
            Self::LfsPlace => "the forge stores this object at an address that sandboxes cannot reach",
            Self::LfsTransfer => "this transfer was not announced, or has expired; ask for a batch again",
            Self::LfsSize => "this object has another length than announced",
            Self::PushClosed => "pushing is closed; push through the API",
            Self::Reference => "only the announced branch may be pushed, and no other ref with it",
            Self::Deletion => "a sandbox cannot delete refs",
            Self::Stale => "the branch has moved since the push was announced; fetch and try again",
            Self::PushOptions => "push options do not pass",
            Self::PushCertificate => "signed pushes do not pass",
            Self::Protocol => "the commands of this push cannot be read",
        }
    }
}

impl fmt::Display for GitRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Repository => "git:repository",
            Self::Service => "git:service",
            Self::Lfs => "git:lfs",
            Self::LfsBatch => "git:lfs-batch",
            Self::LfsLarge => "git:lfs-large",
            Self::LfsPlace => "git:lfs-place",
            Self::LfsTransfer => "git:lfs-transfer",
            Self::LfsSize => "git:lfs-size",
            Self::PushClosed => "git:push-closed",
            Self::Reference => "git:ref",
            Self::Deletion => "git:deletion",
            Self::Stale => "git:stale",
            Self::PushOptions => "git:push-options",
            Self::PushCertificate => "git:push-certificate",
            Self::Protocol => "git:protocol",
        })
    }
}
