//! Why the gate refuses, in a word for records and in a sentence for people.

use std::fmt;

use http::StatusCode;

/// A rule of the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitRule {
    /// No route has that name.
    Repository,
    /// Not what git's smart protocol asks.
    Service,
    /// Large files are not passed.
    Lfs,
    /// No window is open.
    PushClosed,
    Reference,
    Deletion,
    /// The branch is not where the window expects it.
    Stale,
    PushOptions,
    PushCertificate,
    /// The commands of a push cannot be read.
    Protocol,
}

impl GitRule {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::Repository => StatusCode::NOT_FOUND,
            Self::Lfs => StatusCode::NOT_IMPLEMENTED,
            Self::Protocol => StatusCode::BAD_REQUEST,
            _ => StatusCode::FORBIDDEN,
        }
    }

    /// For whoever sits before git.
    pub(crate) const fn why(self) -> &'static str {
        match self {
            Self::Repository => "this sandbox has no such repository; clone it through the API first",
            Self::Service => "only git's smart protocol passes here",
            Self::Lfs => "Git LFS does not pass here; set GIT_LFS_SKIP_SMUDGE=1 to go without its files",
            Self::PushClosed => "pushing is closed; push through the API",
            Self::Reference => "only the branch that was announced may be pushed, and alone",
            Self::Deletion => "refs are not deleted from a sandbox",
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
