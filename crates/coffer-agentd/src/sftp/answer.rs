//! Answers as bytes.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{StatVfs, StatVfsMountFlags};

use super::attributes::Attributes;
use super::directory::Entry;
use super::fields::string;

const PACKET_VERSION: u8 = 2;
const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRIBUTES: u8 = 105;
const EXTENDED_REPLY: u8 = 201;

const OK: u32 = 0;
const END: u32 = 1;
const NO_SUCH_FILE: u32 = 2;
const DENIED: u32 = 3;
const FAILURE: u32 = 4;
const BAD_MESSAGE: u32 = 5;
const UNSUPPORTED: u32 = 8;

/// An answer: its kind, and what follows the request's number.
#[derive(Debug)]
pub(super) struct Answer {
    kind: u8,
    body: Vec<u8>,
}

impl Answer {
    /// The whole packet.
    pub(super) fn packet(self, id: Option<u32>) -> Vec<u8> {
        let length = 1 + if id.is_some() { 4 } else { 0 } + self.body.len();
        let mut packet = Vec::with_capacity(4 + length);
        packet.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        packet.push(self.kind);
        if let Some(id) = id {
            packet.extend_from_slice(&id.to_be_bytes());
        }
        packet.extend_from_slice(&self.body);
        packet
    }

    pub(super) fn version(version: u32, extensions: &[(&str, &str)]) -> Self {
        let mut body = version.to_be_bytes().to_vec();
        for (name, value) in extensions {
            string(&mut body, name.as_bytes());
            string(&mut body, value.as_bytes());
        }
        Self { kind: PACKET_VERSION, body }
    }

    fn status(code: u32, message: &str) -> Self {
        let mut body = code.to_be_bytes().to_vec();
        string(&mut body, message.as_bytes());
        string(&mut body, b"");
        Self { kind: STATUS, body }
    }

    pub(super) fn done() -> Self {
        Self::status(OK, "done")
    }

    pub(super) fn end() -> Self {
        Self::status(END, "end of file")
    }

    pub(super) fn malformed() -> Self {
        Self::status(BAD_MESSAGE, "the request is malformed")
    }

    pub(super) fn unsupported() -> Self {
        Self::status(UNSUPPORTED, "the request is not known here")
    }

    pub(super) fn failure(error: &io::Error) -> Self {
        let code = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::EBADF | libc::ELOOP) => NO_SUCH_FILE,
            Some(libc::EPERM | libc::EACCES) => DENIED,
            Some(libc::ENOSYS) => UNSUPPORTED,
            Some(_) => FAILURE,
            None if error.kind() == io::ErrorKind::NotFound => NO_SUCH_FILE,
            None => FAILURE,
        };
        Self::status(code, &error.to_string())
    }

    pub(super) fn handle(handle: u32) -> Self {
        let mut body = Vec::new();
        string(&mut body, &handle.to_be_bytes());
        Self { kind: HANDLE, body }
    }

    pub(super) fn data(data: &[u8]) -> Self {
        let mut body = Vec::with_capacity(4 + data.len());
        string(&mut body, data);
        Self { kind: DATA, body }
    }

    pub(super) fn attributes(attributes: &Attributes) -> Self {
        let mut body = Vec::new();
        attributes.write(&mut body);
        Self { kind: ATTRIBUTES, body }
    }

    /// One name without attributes.
    pub(super) fn name(path: &Path) -> Self {
        let name = path.as_os_str().as_bytes();
        let mut body = 1_u32.to_be_bytes().to_vec();
        string(&mut body, name);
        string(&mut body, name);
        Attributes::default().write(&mut body);
        Self { kind: NAME, body }
    }

    pub(super) fn names(entries: &[Entry]) -> Self {
        let mut body = u32::try_from(entries.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        for entry in entries {
            string(&mut body, entry.name.as_bytes());
            string(&mut body, &entry.line);
            entry.attributes.write(&mut body);
        }
        Self { kind: NAME, body }
    }

    pub(super) fn limits(limits: [u64; 4]) -> Self {
        Self { kind: EXTENDED_REPLY, body: limits.into_iter().flat_map(u64::to_be_bytes).collect() }
    }

    /// How much room a file system has.
    pub(super) fn room(found: &StatVfs) -> Self {
        let read_only = u64::from(found.f_flag.contains(StatVfsMountFlags::RDONLY));
        let no_setuid = u64::from(found.f_flag.contains(StatVfsMountFlags::NOSUID)) << 1;
        let numbers = [
            found.f_bsize,
            found.f_frsize,
            found.f_blocks,
            found.f_bfree,
            found.f_bavail,
            found.f_files,
            found.f_ffree,
            found.f_favail,
            found.f_fsid,
            read_only | no_setuid,
            found.f_namemax,
        ];
        Self { kind: EXTENDED_REPLY, body: numbers.into_iter().flat_map(u64::to_be_bytes).collect() }
    }
}
