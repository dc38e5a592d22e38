//! `/coffer/volume/…`: the files of a volume, for the server alone.
//!
//! The sandbox exists for this: it mounts one volume at [`ROOT`] and runs nothing else. Other sandboxes
//! change the same files meanwhile, so every path is opened below the volume's descriptor
//! (`RESOLVE_IN_ROOT`): links work inside the volume, and none leads out of it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use bytes::Bytes;
use coffer_wire::agentd::{VOLUME_ROOT as ROOT, VolumeEntry, VolumeEntryKind, VolumePatch};
use futures_util::stream;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

use crate::files::{off_thread, remove_within_mount};
use crate::query::Query;
use crate::reply::{self, Refusal, Reply};

/// Most entries in one listing.
const MOST_ENTRIES: usize = 10_000;
/// Deepest listing; each level takes a descriptor.
const DEEPEST: u32 = 64;
const LONGEST_PATH: usize = 4096;
/// Ids that a sandbox has.
const MOST_ID: u32 = 65_535;
/// For files and directories without one in the request: sandboxes of any template use them.
const FILE_MODE: u32 = 0o666;
const DIRECTORY_MODE: u32 = 0o777;
/// Bytes of a download that are read at a time.
const CHUNK: usize = 128 << 10;
const LONGEST_PATCH: usize = 4096;

/// Answers one request; `what` is the path after `/coffer/volume/`.
pub(crate) async fn answer(method: &Method, what: &str, query: &Query, mut body: Incoming) -> Reply {
    let answered = match (method, what) {
        (&Method::GET, "path") => stat(query).await,
        (&Method::PATCH, "path") => patch(query, &mut body).await,
        (&Method::DELETE, "path") => remove(query).await,
        (&Method::GET, "dir") => list(query).await,
        (&Method::POST, "dir") => make_directory(query).await,
        (&Method::GET, "file") => read(query).await,
        (&Method::PUT, "file") => write(query, &mut body).await,
        _ => Err(Refusal::not_found("not found")),
    };
    answered.unwrap_or_else(|refusal| refusal.reply())
}

/// A path in the volume: its parts, without `.`, `..` and empty ones.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place(Vec<String>);

impl Place {
    fn of(query: &Query) -> Result<Self, Refusal> {
        let text = query.get("path").unwrap_or_default();
        if text.len() > LONGEST_PATH || text.contains('\0') {
            return Err(Refusal::bad_request("the path is too long, or contains NUL"));
        }
        let mut parts: Vec<String> = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part.to_owned()),
            }
        }
        Ok(Self(parts))
    }

    /// As clients see it.
    fn shown(&self) -> String {
        format!("/{}", self.0.join("/"))
    }

    fn missing(&self) -> Refusal {
        Refusal::not_found(format!("path {} not found", self.shown()))
    }

    fn refusal(&self, doing: &str, errno: Errno) -> Refusal {
        let text = |what: &str| format!("{}: {what}", self.shown());
        match errno {
            Errno::NOENT | Errno::NOTDIR => self.missing(),
            Errno::EXIST => Refusal::new(StatusCode::CONFLICT, text("exists already")),
            Errno::ISDIR => Refusal::bad_request(text("is a directory")),
            Errno::NOTEMPTY | Errno::BUSY => Refusal::new(StatusCode::CONFLICT, text("is in use")),
            Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP | Errno::NXIO => {
                Refusal::bad_request(text("is not a path that can be used"))
            }
            errno => Refusal::from_io(doing, &errno.into()),
        }
    }

    /// Opens it, following links inside the volume.
    fn open(&self, root: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if self.0.is_empty() { ".".to_owned() } else { self.0.join("/") };
        open_in(root, &path, flags)
    }

    /// The directory that it is in, and its name there; `None` for the volume's root.
    fn parent(&self, root: BorrowedFd<'_>) -> Result<Option<(OwnedFd, &str)>, Errno> {
        let Some((name, above)) = self.0.split_last() else { return Ok(None) };
        let parent = Self(above.to_vec()).open(root, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(Some((parent, name)))
    }

    /// The entry itself, not what a link leads to.
    fn describe(&self, root: BorrowedFd<'_>) -> Result<VolumeEntry, Errno> {
        match self.parent(root)? {
            Some((parent, name)) => describe(parent.as_fd(), name.as_bytes(), self.shown()),
            None => Ok(entry(&rustix::fs::fstat(root)?, String::new(), self.shown(), None)),
        }
    }
}

fn open_in(root: BorrowedFd<'_>, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::CLOEXEC;
    // The kernel asks for a retry after a concurrent rename.
    for _ in 0..32 {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

fn open_root() -> Result<OwnedFd, Refusal> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, ROOT, flags, Mode::empty())
        .map_err(|errno| Refusal::from_io("error opening the volume", &errno.into()))
}

fn describe(parent: BorrowedFd<'_>, name: &[u8], path: String) -> Result<VolumeEntry, Errno> {
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let target = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(parent, name, Vec::new())?;
            Some(target.to_string_lossy().into_owned())
        }
        _ => None,
    };
    Ok(entry(&stat, String::from_utf8_lossy(name).into_owned(), path, target))
}

fn entry(stat: &Stat, name: String, path: String, target: Option<String>) -> VolumeEntry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => VolumeEntryKind::File,
        FileType::Directory => VolumeEntryKind::Directory,
        FileType::Symlink => VolumeEntryKind::Symlink,
        _ => VolumeEntryKind::Unknown,
    };
    let nanos = |nanos| i64::try_from(nanos).unwrap_or_default();
    let time =
        |seconds: i64, fraction: i64| seconds.saturating_mul(1000).saturating_add(fraction / 1_000_000);
    VolumeEntry {
        name,
        kind,
        path,
        size: u64::try_from(stat.st_size).unwrap_or_default(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        atime_ms: time(stat.st_atime, nanos(stat.st_atime_nsec)),
        mtime_ms: time(stat.st_mtime, nanos(stat.st_mtime_nsec)),
        ctime_ms: time(stat.st_ctime, nanos(stat.st_ctime_nsec)),
        target,
    }
}

/// Owner and mode, as far as a request names them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Ownership {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<u32>,
}

impl Ownership {
    fn of(query: &Query) -> Result<Self, Refusal> {
        let number = |name: &str| {
            let text = query.get(name);
            let wrong = || Refusal::bad_request(format!("{name} is not a number"));
            text.map(|text| text.parse::<u32>().map_err(|_| wrong())).transpose()
        };
        Self { uid: number("uid")?, gid: number("gid")?, mode: number("mode")? }.checked()
    }

    fn checked(self) -> Result<Self, Refusal> {
        if self.uid.is_some_and(|id| id > MOST_ID) || self.gid.is_some_and(|id| id > MOST_ID) {
            return Err(Refusal::bad_request(format!("uid and gid are at most {MOST_ID}")));
        }
        if self.mode.is_some_and(|mode| mode > 0o7777) {
            return Err(Refusal::bad_request("mode is at most 4095 (07777)"));
        }
        Ok(self)
    }

    /// The owner first: changing it drops set-uid bits.
    fn apply(self, to: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.uid.is_some() || self.gid.is_some() {
            let (uid, gid) = (self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw));
            rustix::fs::chownat(to, c"", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = self.mode {
            // By name, because the descriptor may be one that cannot be read or written.
            let own = format!("/proc/self/fd/{}", to.as_raw_fd());
            rustix::fs::chmod(own, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

fn flag(query: &Query, name: &str) -> Result<Option<bool>, Refusal> {
    match query.get(name) {
        None => Ok(None),
        Some("true" | "True" | "1") => Ok(Some(true)),
        Some("false" | "False" | "0") => Ok(Some(false)),
        Some(_) => Err(Refusal::bad_request(format!("{name} is true or false"))),
    }
}

async fn work<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let failed = |error| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error);
    off_thread(work).await.map_err(failed)?
}

async fn stat(query: &Query) -> Result<Reply, Refusal> {
    let place = Place::of(query)?;
    let found = work(move || {
        let root = open_root()?;
        place.describe(root.as_fd()).map_err(|errno| place.refusal("error reading", errno))
    });
    Ok(reply::json(StatusCode::OK, &found.await?))
}

async fn patch(query: &Query, body: &mut Incoming) -> Result<Reply, Refusal> {
    let place = Place::of(query)?;
    let bytes = Limited::new(body, LONGEST_PATCH).collect().await;
    let bytes = bytes.map_err(|error| Refusal::bad_request(error.to_string()))?.to_bytes();
    let VolumePatch { uid, gid, mode } = serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::bad_request(format!("invalid request body: {error}")))?;
    let ownership = Ownership { uid, gid, mode }.checked()?;
    let changed = work(move || {
        let root = open_root()?;
        let changed = place.open(root.as_fd(), OFlags::PATH).and_then(|file| {
            ownership.apply(file.as_fd())?;
            place.describe(root.as_fd())
        });
        changed.map_err(|errno| place.refusal("error changing", errno))
    });
    Ok(reply::json(StatusCode::OK, &changed.await?))
}

async fn remove(query: &Query) -> Result<Reply, Refusal> {
    let place = Place::of(query)?;
    work(move || {
        let root = open_root()?;
        let parent = place.parent(root.as_fd()).map_err(|errno| place.refusal("error removing", errno))?;
        let Some((parent, name)) = parent else {
            return Err(Refusal::bad_request("the root of a volume cannot be removed"));
        };
        rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| place.refusal("error removing", errno))?;
        remove_within_mount(&parent, name.as_bytes()).map_err(|error| {
            let errno = error.raw_os_error().map(Errno::from_raw_os_error);
            errno.map_or_else(
                || Refusal::from_io("error removing", &error),
                |errno| place.refusal("error removing", errno),
            )
        })
    })
    .await?;
    Ok(reply::empty(StatusCode::NO_CONTENT))
}

async fn list(query: &Query) -> Result<Reply, Refusal> {
    let place = Place::of(query)?;
    let depth = query.get("depth").map_or(Ok(1), str::parse::<u32>);
    let depth = depth.map_err(|_| Refusal::bad_request("depth is not a number"))?.clamp(1, DEEPEST);
    let listed = work(move || {
        let root = open_root()?;
        let opened = place.open(root.as_fd(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK);
        let directory = opened.map_err(|errno| match errno {
            Errno::NOTDIR if place.describe(root.as_fd()).is_ok() => {
                Refusal::bad_request(format!("{}: is not a directory", place.shown()))
            }
            errno => place.refusal("error listing", errno),
        })?;
        let mut entries = Vec::new();
        let above = if place.0.is_empty() { String::new() } else { place.shown() };
        walk(directory, &above, depth, &mut entries)?;
        Ok(entries)
    });
    Ok(reply::json(StatusCode::OK, &listed.await?))
}

/// Lists each directory before its contents; links are not followed, and entries that vanish are left out.
fn walk(directory: OwnedFd, above: &str, depth: u32, entries: &mut Vec<VolumeEntry>) -> Result<(), Refusal> {
    let failed = |errno: Errno| Refusal::from_io("error listing", &errno.into());
    let mut names = Vec::new();
    for found in Dir::read_from(&directory).map_err(failed)? {
        let found = found.map_err(failed)?;
        let name = found.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
        if entries.len() + names.len() > MOST_ENTRIES {
            let message = format!("the directory has more than {MOST_ENTRIES} entries");
            return Err(Refusal::bad_request(message));
        }
    }
    names.sort();
    for name in names {
        let path = format!("{above}/{}", String::from_utf8_lossy(&name));
        let Ok(entry) = describe(directory.as_fd(), &name, path.clone()) else { continue };
        let descend = entry.kind == VolumeEntryKind::Directory && depth > 1;
        entries.push(entry);
        if descend {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(inner) = rustix::fs::openat(&directory, name.as_slice(), flags, Mode::empty()) {
                walk(inner, &path, depth - 1, entries)?;
            }
        }
    }
    Ok(())
}

async fn make_directory(query: &Query) -> Result<Reply, Refusal> {
    let (place, ownership) = (Place::of(query)?, Ownership::of(query)?);
    let force = flag(query, "force")?.unwrap_or(false);
    let made = work(move || {
        let root = open_root()?;
        let refusal = |errno| place.refusal("error creating", errno);
        let from = if force { 1 } else { place.0.len().max(1) };
        for length in from..=place.0.len() {
            let at = Place(place.0[..length].to_vec());
            let Some((parent, name)) = at.parent(root.as_fd()).map_err(refusal)? else { break };
            match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
                Ok(()) => {
                    let mode = Some(ownership.mode.unwrap_or(DIRECTORY_MODE));
                    let made = at.open(root.as_fd(), OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW);
                    let owned = made.and_then(|made| Ownership { mode, ..ownership }.apply(made.as_fd()));
                    owned.map_err(refusal)?;
                }
                // An existing directory is what was asked for.
                Err(Errno::EXIST) if force => {
                    let is_directory = at.open(root.as_fd(), OFlags::PATH | OFlags::DIRECTORY).is_ok();
                    if !is_directory {
                        return Err(refusal(Errno::EXIST));
                    }
                }
                Err(errno) => return Err(refusal(errno)),
            }
        }
        if place.0.is_empty() && !force {
            return Err(refusal(Errno::EXIST));
        }
        place.describe(root.as_fd()).map_err(refusal)
    });
    Ok(reply::json(StatusCode::CREATED, &made.await?))
}

async fn read(query: &Query) -> Result<Reply, Refusal> {
    let place = Place::of(query)?;
    let (file, length) = work(move || {
        let root = open_root()?;
        // A pipe is not waited for.
        let opened = place.open(root.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        let file = File::from(opened.map_err(|errno| place.refusal("error opening", errno))?);
        let metadata = file.metadata().map_err(|error| Refusal::from_io("error opening", &error))?;
        if !metadata.is_file() {
            return Err(Refusal::bad_request(format!("{}: is not a file", place.shown())));
        }
        Ok((file, metadata.len()))
    })
    .await?;
    let pieces = stream::try_unfold((file, 0u64), move |(file, at)| async move {
        if at == length {
            return Ok(None);
        }
        let read = off_thread(move || {
            let rest = usize::try_from(length - at).map_or(CHUNK, |rest| rest.min(CHUNK));
            let mut buffer = vec![0; rest];
            let read = file.read_at(&mut buffer, at)?;
            buffer.truncate(read);
            Ok::<_, io::Error>((buffer, file))
        });
        let (buffer, file) = read.await.map_err(io::Error::other)??;
        if buffer.is_empty() {
            // Its length has been announced.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let next = at + buffer.len() as u64;
        Ok(Some((Frame::data(Bytes::from(buffer)), (file, next))))
    });
    let mut reply = Response::new(StreamBody::new(pieces).boxed_unsync());
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(reply)
}

async fn write(query: &Query, body: &mut Incoming) -> Result<Reply, Refusal> {
    let written = receive(query, body).await;
    if written.is_err() {
        reply::drain(body).await;
    }
    Ok(reply::json(StatusCode::CREATED, &written?))
}

/// A file that has no name until it is complete: readers see the old content or the new.
struct Draft {
    place: Place,
    root: OwnedFd,
    file: File,
}

impl Draft {
    fn begin(place: Place, ownership: Ownership, overwrite: bool) -> Result<Self, Refusal> {
        let root = open_root()?;
        let refusal = |errno| place.refusal("error writing", errno);
        let Some((parent, name)) = place.parent(root.as_fd()).map_err(refusal)? else {
            return Err(refusal(Errno::ISDIR));
        };
        let before = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            Ok(_) if !overwrite => return Err(refusal(Errno::EXIST)),
            Ok(found) if FileType::from_raw_mode(found.st_mode).is_dir() => {
                return Err(refusal(Errno::ISDIR));
            }
            Ok(found) => FileType::from_raw_mode(found.st_mode).is_file().then_some(found),
            Err(errno) => return Err(refusal(errno)),
        };
        let directory = open_in(parent.as_fd(), ".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(refusal)?;
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, c".", flags, Mode::RUSR | Mode::WUSR).map_err(refusal)?;
        // What is overwritten keeps its owner and mode.
        let ownership = Ownership {
            uid: ownership.uid.or(before.map(|before| before.st_uid)),
            gid: ownership.gid.or(before.map(|before| before.st_gid)),
            mode: ownership.mode.or(before.map(|before| before.st_mode & 0o777)).or(Some(FILE_MODE)),
        };
        ownership.apply(file.as_fd()).map_err(refusal)?;
        Ok(Self { place, root, file: File::from(file) })
    }

    fn push(&mut self, pieces: &[Bytes]) -> Result<(), Refusal> {
        let written = pieces.iter().try_for_each(|piece| self.file.write_all(piece));
        written.map_err(|error| Refusal::from_io("error writing", &error))
    }

    /// Gives it its name, once it is on disk.
    fn finish(self) -> Result<VolumeEntry, Refusal> {
        let Self { place, root, file } = self;
        file.sync_all().map_err(|error| Refusal::from_io("error writing", &error))?;
        let refusal = |errno| place.refusal("error writing", errno);
        let Some((parent, name)) = place.parent(root.as_fd()).map_err(refusal)? else {
            return Err(refusal(Errno::ISDIR));
        };
        let draft = format!(".coffer-{}-{}", std::process::id(), file.as_raw_fd());
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let _left_by_another = rustix::fs::unlinkat(&parent, draft.as_str(), AtFlags::empty());
        rustix::fs::linkat(CWD, own, &parent, draft.as_str(), AtFlags::SYMLINK_FOLLOW).map_err(refusal)?;
        if let Err(errno) = rustix::fs::renameat(&parent, draft.as_str(), &parent, name) {
            let _ = rustix::fs::unlinkat(&parent, draft.as_str(), AtFlags::empty());
            return Err(refusal(errno));
        }
        let directory = open_in(parent.as_fd(), ".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(refusal)?;
        rustix::fs::fsync(directory).map_err(refusal)?;
        place.describe(root.as_fd()).map_err(refusal)
    }
}

async fn receive(query: &Query, body: &mut Incoming) -> Result<VolumeEntry, Refusal> {
    let (place, ownership) = (Place::of(query)?, Ownership::of(query)?);
    let overwrite = flag(query, "force")?.unwrap_or(true);
    let mut draft = work(move || Draft::begin(place, ownership, overwrite)).await?;
    let mut waiting: Vec<Bytes> = Vec::new();
    loop {
        let frame = body.frame().await.transpose();
        let frame =
            frame.map_err(|error| Refusal::bad_request(format!("error reading the body: {error}")))?;
        let ended = frame.is_none();
        waiting.extend(frame.and_then(|frame| frame.into_data().ok()));
        let much = waiting.iter().map(Bytes::len).sum::<usize>() >= CHUNK;
        if !waiting.is_empty() && (much || ended) {
            let pieces = std::mem::take(&mut waiting);
            draft = work(move || draft.push(&pieces).map(|()| draft)).await?;
        }
        if ended {
            return work(move || draft.finish()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place(path: &str) -> Place {
        Place::of(&Query::parse(&format!("path={path}"))).unwrap()
    }

    #[test]
    fn paths_stay_in_the_volume() {
        for (text, shown) in [("", "/"), ("/", "/"), ("a//b/./c", "/a/b/c"), ("/../../a/../b", "/b")] {
            assert_eq!(place(text).shown(), shown, "{text}");
        }
        assert!(Place::of(&Query::parse("path=a%00b")).is_err());
        let long = "a/".repeat(3000);
        assert!(Place::of(&Query::parse(&format!("path={long}"))).is_err());
    }

    #[test]
    fn links_work_inside_and_never_lead_out() {
        let home = tempfile::tempdir().unwrap();
        let volume = home.path().join("volume");
        std::fs::create_dir_all(volume.join("real")).unwrap();
        std::fs::write(volume.join("real/file"), "inside").unwrap();
        std::fs::write(home.path().join("secret"), "outside").unwrap();
        symlink("/real", volume.join("absolute")).unwrap();
        symlink("../../secret", volume.join("up")).unwrap();
        symlink(home.path(), volume.join("host")).unwrap();
        symlink("/proc/self/root", volume.join("magic")).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = rustix::fs::openat(CWD, &volume, flags, Mode::empty()).unwrap();
        let open = |path: &str| place(path).open(root.as_fd(), OFlags::RDONLY);
        assert!(open("absolute/file").is_ok());
        for out in ["up", "host/secret", "magic/etc/passwd"] {
            assert!(open(out).is_err(), "{out}");
        }
        let link = place("absolute").describe(root.as_fd()).unwrap();
        assert_eq!((link.kind, link.target.as_deref()), (VolumeEntryKind::Symlink, Some("/real")));
        assert!(place("host/secret").parent(root.as_fd()).is_err());
    }
}
