//! The files of the sandbox: RPCs, and contents over plain HTTP.
//!
//! agentd is root inside and does not apply the caller's permissions; new files belong to the caller. Every
//! call runs on the blocking pool and, when it has changed something, lets the watchers see that before it
//! answers.

mod compose;
mod download;
mod encoding;
mod entry;
mod metadata;
mod multipart;
mod range;
mod remove;
mod service;
mod upload;
pub(crate) mod watch;

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Uid};

pub(crate) use compose::compose;
pub(crate) use download::download;
#[cfg(any(test, fuzzing))]
pub use multipart::fuzz_multipart;
pub(crate) use remove::remove_within_mount;
pub(crate) use service::call;
pub(crate) use upload::upload;

use crate::account::Account;

/// Runs file work on the blocking pool.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| format!("file work failed: {error}"))
}

/// Creates `path` and its missing parents, owned by `account`.
fn ensure_dirs(path: &Path, account: &Account) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::NotADirectory,
                format!("path is a file: {}", path.display()),
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    if let Some(parent) = path.parent() {
        ensure_dirs(parent, account)?;
    }
    match rustix::fs::mkdir(path, rustix::fs::Mode::from_raw_mode(0o755)) {
        Ok(()) => {
            rustix::fs::chownat(
                CWD,
                path,
                Some(Uid::from_raw(account.uid)),
                Some(Gid::from_raw(account.gid)),
                AtFlags::SYMLINK_NOFOLLOW,
            )?;
            Ok(())
        }
        // Another process was quicker; it exists.
        Err(rustix::io::Errno::EXIST) if path.is_dir() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
