//! A failed step of a sandbox's set-up: a sentence and the kernel's error.

use std::fmt::{self, Display};

use rustix::io::Errno;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("could not {doing}: {errno}")]
pub(super) struct SetupError {
    doing: String,
    errno: Errno,
}

impl SetupError {
    pub(super) fn new(doing: impl Display, errno: Errno) -> Self {
        Self { doing: doing.to_string(), errno }
    }
}

/// Adds what was being done when the kernel refused.
pub(super) trait Doing<T> {
    fn doing(self, what: impl Display) -> Result<T, SetupError>;
}

impl<T> Doing<T> for Result<T, Errno> {
    fn doing(self, what: impl Display) -> Result<T, SetupError> {
        self.map_err(|errno| SetupError::new(what, errno))
    }
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl Display) -> Result<T, SetupError> {
        self.map_err(|error| SetupError::new(what, Errno::from_io_error(&error).unwrap_or(Errno::IO)))
    }
}

/// Shows a path in a sentence.
pub(super) struct Quoted<'a>(pub(super) &'a std::path::Path);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0.display())
    }
}
