//! Refusals.

/// Why a Dockerfile is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the Dockerfile: {message}")]
pub struct BadDockerfile {
    /// From 1.
    pub line: u32,
    pub message: String,
}

impl BadDockerfile {
    pub(super) fn new(line: u32, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}
