//! Why a connection ended early.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the SSH client went away")]
    Io(#[from] io::Error),
    /// It broke the protocol.
    #[error("the SSH client sent something unexpected: {0}")]
    Protocol(&'static str),
    /// No algorithm for this purpose is known to both.
    #[error("the SSH client has no {what} that this program has: it needs {needed}")]
    NoCommon { what: &'static str, needed: &'static str },
    #[error("the SSH client did not show the key that is known here")]
    NotAllowed,
}
