//! Waits on descriptors that the runtime has no type for.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers `fd`, which must be non-blocking, with the runtime.
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` keeps the same open descriptor from here until it is dropped, which the
    // `AsyncFd` that now owns it does only after taking it out of the poll.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}
