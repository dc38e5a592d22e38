//! Why an archive is not unpacked.

use std::io;

use http::StatusCode;
use rustix::io::Errno;

use crate::reply::{Refusal, is_disk_full};

/// The longest part of a member's name in a message, in characters.
const SHOWN: usize = 256;

/// A refusal with the member that it is about, if any.
#[derive(Debug)]
pub(super) struct Fault {
    status: StatusCode,
    message: String,
}

impl Fault {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, message: message.into() }
    }

    pub(super) fn member(name: &[u8], message: impl std::fmt::Display) -> Self {
        Self::new(format!("'{}' in the archive {message}", shown(name)))
    }

    /// The archive itself could not be read.
    pub(super) fn reading(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::new("the archive is truncated"),
            io::ErrorKind::ConnectionAborted => Self::new("the archive was not received to its end"),
            _ => Self::new(format!("could not read the archive: {error}")),
        }
    }

    /// A member could not be written.
    pub(super) fn writing(name: &[u8], error: &io::Error) -> Self {
        if is_disk_full(error) {
            let message = format!("'{}': the disk limit of the sandbox is reached", shown(name));
            return Self { status: StatusCode::INSUFFICIENT_STORAGE, message };
        }
        Self::new(match error.raw_os_error() {
            Some(libc::ENAMETOOLONG) => {
                format!("'{}' in the archive has a name that is too long", shown(name))
            }
            Some(libc::EINVAL) => {
                format!("could not write '{}': a name or an id is not possible", shown(name))
            }
            _ => format!("could not write '{}': {error}", shown(name)),
        })
    }

    /// Tells the caller about entries that were written before.
    pub(super) fn refusal(self, entries: u64) -> Refusal {
        let message = match entries {
            0 => self.message,
            _ => format!("{}; unpacked in part, entries written: {entries}", self.message),
        };
        Refusal::new(self.status, message)
    }
}

/// Adds the member that a call was about.
pub(super) trait Writing<T> {
    fn writing(self, name: &[u8]) -> Result<T, Fault>;
}

impl<T> Writing<T> for Result<T, Errno> {
    fn writing(self, name: &[u8]) -> Result<T, Fault> {
        self.map_err(|errno| Fault::writing(name, &errno.into()))
    }
}

impl<T> Writing<T> for io::Result<T> {
    fn writing(self, name: &[u8]) -> Result<T, Fault> {
        self.map_err(|error| Fault::writing(name, &error))
    }
}

/// A name that may hold anything, as a message can show it.
pub(super) fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}
