//! `agentd sftp`: an SFTP server, version 3 with OpenSSH's extensions, on stdin and stdout.
//!
//! It is a program of the sandbox like any other: it runs as the user that started it, sees the files that this user
//! sees, and trusts its client no more than a shell does. Requests are answered one after another; clients send many at
//! once, and answers are flushed when no request is waiting. What it holds is bounded: one request, one answer, and
//! [`MOST_HANDLES`] open files.

mod answer;
mod attributes;
mod directory;
mod fields;
mod handles;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags};

use crate::account::Accounts;
use answer::Answer;
use attributes::Attributes;
use directory::{Directory, Names};
use fields::{Fields, LARGEST, Malformed};
use handles::{Handle, Handles, MOST_HANDLES};

const VERSION: u32 = 3;
/// Room for the rest of an answer.
const LARGEST_DATA: u32 = 255 << 10;

const EXTENSIONS: [(&str, &str); 8] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
];

/// Kinds of requests.
mod kind {
    pub(super) const INIT: u8 = 1;
    pub(super) const OPEN: u8 = 3;
    pub(super) const CLOSE: u8 = 4;
    pub(super) const READ: u8 = 5;
    pub(super) const WRITE: u8 = 6;
    pub(super) const LSTAT: u8 = 7;
    pub(super) const FSTAT: u8 = 8;
    pub(super) const SETSTAT: u8 = 9;
    pub(super) const FSETSTAT: u8 = 10;
    pub(super) const OPENDIR: u8 = 11;
    pub(super) const READDIR: u8 = 12;
    pub(super) const REMOVE: u8 = 13;
    pub(super) const MKDIR: u8 = 14;
    pub(super) const RMDIR: u8 = 15;
    pub(super) const REALPATH: u8 = 16;
    pub(super) const STAT: u8 = 17;
    pub(super) const RENAME: u8 = 18;
    pub(super) const READLINK: u8 = 19;
    pub(super) const SYMLINK: u8 = 20;
    pub(super) const EXTENDED: u8 = 200;
}

/// Serves a client until it closes its side.
pub(crate) fn serve(input: impl Read, output: impl Write) -> io::Result<()> {
    let mut input = BufReader::with_capacity(LARGEST, input);
    let mut output = BufWriter::with_capacity(LARGEST, output);
    let mut server = Server::default();
    let mut request = Vec::new();
    loop {
        if input.buffer().is_empty() {
            output.flush()?;
            if input.fill_buf()?.is_empty() {
                return Ok(());
            }
        }
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if !(5..=LARGEST).contains(&length) {
            return Err(io::Error::other(format!("a request of {length} bytes")));
        }
        request.resize(length, 0);
        input.read_exact(&mut request)?;
        output.write_all(&server.answer(&request))?;
    }
}

#[derive(Default)]
struct Server {
    handles: Handles,
    /// Read when the first directory is listed.
    names: Option<Names>,
}

/// Why a request has no result.
enum Refusal {
    Malformed,
    Unsupported,
    /// There is no more.
    End,
    Io(io::Error),
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

type Outcome = Result<Answer, Refusal>;

impl Server {
    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let mut fields = Fields::of(&request[1..]);
        if request[0] == kind::INIT {
            return Answer::version(VERSION, &EXTENSIONS).packet(None);
        }
        let Ok(id) = fields.number() else { return Answer::malformed().packet(Some(0)) };
        let answer = self.perform(request[0], fields).unwrap_or_else(|refusal| match refusal {
            Refusal::Malformed => Answer::malformed(),
            Refusal::Unsupported => Answer::unsupported(),
            Refusal::End => Answer::end(),
            Refusal::Io(error) => Answer::failure(&error),
        });
        answer.packet(Some(id))
    }

    fn perform(&mut self, kind: u8, mut fields: Fields<'_>) -> Outcome {
        match kind {
            kind::OPEN => {
                let path = fields.path()?;
                let flags = fields.number()?;
                let mode = Attributes::read(&mut fields)?.permissions.unwrap_or(0o666);
                let file = rustix::fs::open(path, open_flags(flags), Mode::from_raw_mode(mode & 0o7777))?;
                Ok(Answer::handle(self.handles.add(Handle::File(File::from(file)))?))
            }
            kind::CLOSE => {
                self.handles.remove(fields.string()?)?;
                Ok(Answer::done())
            }
            kind::READ => {
                let file = self.handles.file(fields.string()?)?;
                let (offset, length) = (fields.long()?, fields.number()?.min(LARGEST_DATA));
                let mut data = vec![0; usize::try_from(length).unwrap_or(0)];
                let count = again(|| file.read_at(&mut data, offset))?;
                if count == 0 && length > 0 {
                    return Err(Refusal::End);
                }
                Ok(Answer::data(&data[..count]))
            }
            kind::WRITE => {
                let file = self.handles.file(fields.string()?)?;
                let offset = fields.long()?;
                file.write_all_at(fields.string()?, offset)?;
                Ok(Answer::done())
            }
            kind::STAT => Ok(Answer::attributes(&Attributes::of(&fs::metadata(fields.path()?)?))),
            kind::LSTAT => Ok(Answer::attributes(&Attributes::of(&fs::symlink_metadata(fields.path()?)?))),
            kind::FSTAT => {
                let found = match self.handles.get(fields.string()?)? {
                    Handle::File(file) => file.metadata()?,
                    Handle::Directory(directory) => fs::metadata(directory.path())?,
                };
                Ok(Answer::attributes(&Attributes::of(&found)))
            }
            kind::SETSTAT => {
                let path = fields.path()?;
                Attributes::read(&mut fields)?.apply_to(path)?;
                Ok(Answer::done())
            }
            kind::FSETSTAT => {
                let handle = self.handles.get(fields.string()?)?;
                let attributes = Attributes::read(&mut fields)?;
                match handle {
                    Handle::File(file) => attributes.apply_to_open(file)?,
                    Handle::Directory(directory) => attributes.apply_to(directory.path())?,
                }
                Ok(Answer::done())
            }
            kind::OPENDIR => {
                let directory = Directory::open(fields.path()?)?;
                Ok(Answer::handle(self.handles.add(Handle::Directory(directory))?))
            }
            kind::READDIR => {
                let names = self.names.get_or_insert_with(Names::read);
                let entries = self.handles.directory(fields.string()?)?.next(names)?;
                if entries.is_empty() { Err(Refusal::End) } else { Ok(Answer::names(&entries)) }
            }
            kind::REMOVE => done(fs::remove_file(fields.path()?)),
            kind::MKDIR => {
                let path = fields.path()?;
                let mode = Attributes::read(&mut fields)?.permissions.unwrap_or(0o777);
                done(fs::DirBuilder::new().mode(mode & 0o7777).create(path))
            }
            kind::RMDIR => done(fs::remove_dir(fields.path()?)),
            kind::REALPATH => Ok(Answer::name(&real(fields.path()?)?)),
            kind::RENAME => {
                let (from, to) = (fields.path()?, fields.path()?);
                rename_to_nothing(from, to)?;
                Ok(Answer::done())
            }
            kind::READLINK => Ok(Answer::name(&fs::read_link(fields.path()?)?)),
            kind::SYMLINK => {
                // The standard has them the other way round; OpenSSH and so everybody has the target first.
                let (target, link) = (fields.path()?, fields.path()?);
                done(std::os::unix::fs::symlink(target, link))
            }
            kind::EXTENDED => self.extended(fields),
            _ => Err(Refusal::Unsupported),
        }
    }

    fn extended(&mut self, mut fields: Fields<'_>) -> Outcome {
        match fields.string()? {
            b"posix-rename@openssh.com" => done(fs::rename(fields.path()?, fields.path()?)),
            b"hardlink@openssh.com" => done(fs::hard_link(fields.path()?, fields.path()?)),
            b"fsync@openssh.com" => done(self.handles.file(fields.string()?)?.sync_all()),
            b"statvfs@openssh.com" => Ok(Answer::room(&rustix::fs::statvfs(fields.path()?)?)),
            b"fstatvfs@openssh.com" => {
                let found = match self.handles.get(fields.string()?)? {
                    Handle::File(file) => rustix::fs::fstatvfs(file)?,
                    Handle::Directory(directory) => rustix::fs::statvfs(directory.path())?,
                };
                Ok(Answer::room(&found))
            }
            b"lsetstat@openssh.com" => {
                let path = fields.path()?;
                Attributes::read(&mut fields)?.apply_to_link(path)?;
                Ok(Answer::done())
            }
            b"limits@openssh.com" => {
                let (packet, data) = (LARGEST as u64, u64::from(LARGEST_DATA));
                Ok(Answer::limits([packet, data, data, MOST_HANDLES as u64]))
            }
            b"expand-path@openssh.com" => Ok(Answer::name(&real(&expand(fields.path()?)?)?)),
            _ => Err(Refusal::Unsupported),
        }
    }
}

fn done(result: io::Result<()>) -> Outcome {
    Ok(result.map(|()| Answer::done())?)
}

fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn open_flags(asked: u32) -> OFlags {
    const READ: u32 = 1;
    const WRITE: u32 = 2;
    let mut flags = match (asked & READ != 0, asked & WRITE != 0) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    for (bit, flag) in
        [(0x04, OFlags::APPEND), (0x08, OFlags::CREATE), (0x10, OFlags::TRUNC), (0x20, OFlags::EXCL)]
    {
        flags.set(flag, asked & bit != 0);
    }
    flags | OFlags::CLOEXEC | OFlags::NOCTTY
}

/// The version of the protocol says that an existing file stays.
fn rename_to_nothing(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            if fs::symlink_metadata(to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(from, to)
        }
        result => Ok(result?),
    }
}

/// The absolute path; its last part need not exist.
fn real(path: &Path) -> io::Result<PathBuf> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or(error)?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Ok(fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name))
        }
        result => result,
    }
}

/// `~` and `~user`, as a shell has them.
fn expand(path: &Path) -> io::Result<PathBuf> {
    let Some(rest) = path.as_os_str().as_bytes().strip_prefix(b"~") else { return Ok(path.to_path_buf()) };
    let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (user, rest) = rest.split_at(slash);
    let home = if user.is_empty() {
        std::env::var_os("HOME").map(PathBuf::from)
    } else {
        std::str::from_utf8(user).ok().and_then(|name| Accounts::find(name).ok()).map(|account| account.home)
    };
    let home = home.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such user"))?;
    let below = OsStr::from_bytes(rest.strip_prefix(b"/").unwrap_or(rest));
    Ok(if below.is_empty() { home } else { home.join(OsString::from_vec(below.as_bytes().to_vec())) })
}

#[cfg(test)]
mod tests;
