//! Watching directories through inotify.
//!
//! Each watch has its own inotify instance, a bounded queue of events, and a task that moves the kernel's
//! events into the queue. Calls that change files [`settle`](Watchers::settle) all watches before they answer,
//! so a client that polls right after its own change always sees it.

mod aside;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use coffer_core::sync::Mutex;
use coffer_wire::envd::filesystem::{EventType, FilesystemEvent};
use prost::Message as _;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::{entry, off_thread};
use crate::account::Accounts;
use crate::connect::{Code, RpcError};
use crate::readiness;

/// Most watches; the kernel's default allows one user 128 instances for all programs.
const WATCH_LIMIT: usize = 100;

/// Most waiting events of a watch. Further ones are lost, and the client gets an error.
const QUEUE_LIMIT: usize = 16_384;

/// Most bytes of waiting events of all watches, with the same effect.
const QUEUED_BYTES: usize = 16 << 20;

/// Directories in one recursive watch.
const DIRECTORY_LIMIT: usize = 32_768;

/// File systems with changes from other machines, which inotify does not see.
const NETWORK_FILESYSTEMS: [i64; 5] = [
    0x6969,      // nfs
    0xff53_4d42, // cifs
    0x517b,      // smb
    0xfe53_4d42, // smb2
    0x6573_5546, // fuse
];

/// What to watch.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) path: PathBuf,
    pub(super) recursive: bool,
    pub(super) include_entry: bool,
    pub(super) allow_network_mounts: bool,
}

/// A watch without its inotify instance.
#[derive(Debug)]
struct SetAside {
    name: String,
    ask: Ask,
    queue: VecDeque<FilesystemEvent>,
    overflowed: bool,
}

/// All watches of the sandbox.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    all: Mutex<Vec<Weak<State>>>,
    /// Watches that clients poll, by name.
    kept: Mutex<HashMap<String, Arc<Watch>>>,
    named: AtomicU64,
    /// Bytes of waiting events of all watches.
    queued: Arc<AtomicUsize>,
    /// Watches of `kept` that wait until memory was saved.
    set_aside: Mutex<Vec<SetAside>>,
}

impl Watchers {
    /// Reads all events that the kernel has now.
    pub(crate) fn settle(&self) {
        let states: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        for state in states {
            state.drain();
        }
    }

    pub(super) fn keep(&self, watch: Watch) -> Result<String, RpcError> {
        let number = self.named.fetch_add(1, Ordering::Relaxed);
        let name = format!("w{:x}{number:04x}", std::process::id());
        self.kept.lock().insert(name.clone(), Arc::new(watch));
        Ok(name)
    }

    pub(super) fn kept(&self, name: &str) -> Result<Arc<Watch>, RpcError> {
        self.kept.lock().get(name).map(Arc::clone).ok_or_else(|| no_watcher(name))
    }

    pub(super) fn remove(&self, name: &str) -> Result<(), RpcError> {
        match self.kept.lock().remove(name) {
            Some(_) => Ok(()),
            None => Err(no_watcher(name)),
        }
    }
}

fn no_watcher(name: &str) -> RpcError {
    RpcError::not_found(format!("watcher with id {name} not found"))
}

/// One watch; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    state: Arc<State>,
    pump: AbortHandle,
}

impl Watch {
    pub(super) async fn open(watchers: &Watchers, ask: Ask) -> Result<Self, RpcError> {
        {
            let mut all = watchers.all.lock();
            all.retain(|state| state.strong_count() > 0);
            if all.len() >= WATCH_LIMIT {
                return Err(RpcError::new(
                    Code::ResourceExhausted,
                    format!("{WATCH_LIMIT} directories are watched already"),
                ));
            }
        }
        let queued = Arc::clone(&watchers.queued);
        let state = off_thread(move || State::open(ask, queued)).await.map_err(RpcError::internal)??;
        let state = Arc::new(state);
        watchers.all.lock().push(Arc::downgrade(&state));
        let readiness = state
            .inotify
            .try_clone()
            .and_then(readiness::register)
            .map_err(|error| RpcError::internal(format!("error creating watcher: {error}")))?;
        let pump = crate::task::spawn(pump(readiness, Arc::clone(&state))).abort_handle();
        Ok(Self { state, pump })
    }

    /// The next event; waits for it.
    pub(super) async fn next(&self) -> Result<FilesystemEvent, RpcError> {
        let mut changes = self.state.changed.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(event) = self.state.pop()? {
                return Ok(event);
            }
            if changes.changed().await.is_err() {
                return Err(RpcError::internal("the watcher has ended"));
            }
        }
    }

    /// Everything up to now. An overflow is reported once, after the events before it.
    pub(super) fn take_now(&self) -> Result<Vec<FilesystemEvent>, RpcError> {
        self.state.drain();
        let queued = std::mem::take(&mut self.state.seen.lock().queue);
        self.state.let_go(&queued);
        if queued.is_empty() {
            return Ok(self.state.pop()?.into_iter().collect());
        }
        Ok(queued.into())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

/// Moves events from the kernel to the queue.
async fn pump(readiness: AsyncFd<OwnedFd>, state: Arc<State>) {
    loop {
        let Ok(mut ready) = readiness.readable().await else {
            return;
        };
        let state = Arc::clone(&state);
        if off_thread(move || state.drain()).await.is_err() {
            return;
        }
        ready.clear_ready();
    }
}

#[derive(Debug)]
struct State {
    inotify: OwnedFd,
    ask: Ask,
    root: PathBuf,
    recursive: bool,
    include_entry: bool,
    seen: Mutex<Seen>,
    changed: watch::Sender<u64>,
    /// Shared with every other watch.
    queued: Arc<AtomicUsize>,
}

impl Drop for State {
    fn drop(&mut self) {
        let queue = std::mem::take(&mut self.seen.lock().queue);
        self.let_go(&queue);
    }
}

#[derive(Debug, Default)]
struct Seen {
    /// The path of each watched directory, relative to the root.
    directories: HashMap<i32, PathBuf>,
    queue: VecDeque<FilesystemEvent>,
    overflowed: bool,
    /// Entries found in a new directory before its watch was in place; the kernel may report them again.
    found: HashSet<PathBuf>,
}

impl State {
    fn open(ask: Ask, queued: Arc<AtomicUsize>) -> Result<Self, RpcError> {
        let shown = ask.path.display();
        let found = std::fs::metadata(&ask.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                RpcError::not_found(format!("path {shown} not found: {error}"))
            }
            _ => RpcError::internal(format!("error statting path {shown}: {error}")),
        })?;
        if !found.is_dir() {
            return Err(RpcError::invalid(format!("path {shown} not a directory")));
        }
        if !ask.allow_network_mounts && is_on_network(&ask.path) {
            return Err(RpcError::invalid(format!("cannot watch path on network filesystem: {shown}")));
        }
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(|error| watch_error(&ask.path, error))?;
        let state = Self {
            inotify,
            root: ask.path.clone(),
            recursive: ask.recursive,
            include_entry: ask.include_entry,
            ask,
            seen: Mutex::default(),
            changed: watch::Sender::default(),
            queued,
        };
        let mut seen = state.seen.lock();
        state
            .add(&mut seen, PathBuf::new(), Report::Nothing)
            .map_err(|error| watch_error(&state.root, error))?;
        drop(seen);
        Ok(state)
    }

    /// Watches a directory and, if recursive, everything below it.
    fn add(&self, seen: &mut Seen, relative: PathBuf, report: Report) -> Result<(), Errno> {
        let mut waiting = vec![relative];
        while let Some(relative) = waiting.pop() {
            if seen.directories.len() >= DIRECTORY_LIMIT {
                return Err(Errno::NOSPC);
            }
            let path = self.root.join(&relative);
            let is_root = relative.as_os_str().is_empty();
            let watched = inotify::add_watch(&self.inotify, &path, flags(is_root));
            match watched {
                Ok(descriptor) => {
                    seen.directories.insert(descriptor, relative.clone());
                }
                Err(error) if is_root => return Err(error),
                Err(Errno::NOSPC) => return Err(Errno::NOSPC),
                // It vanished again, or a link took its place.
                Err(_) => continue,
            }
            if !self.recursive {
                continue;
            }
            let Ok(entries) = std::fs::read_dir(&path) else {
                continue;
            };
            for entry in entries.flatten() {
                let below = relative.join(entry.file_name());
                if report == Report::Contents && seen.found.insert(below.clone()) {
                    self.queue(seen, &below, EventType::Create);
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push(below);
                }
            }
        }
        Ok(())
    }

    /// Reads the kernel's queued events.
    fn drain(&self) {
        let mut seen = self.seen.lock();
        let before = seen.queue.len();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let (descriptor, mask, name) = match reader.next() {
                Ok(event) => (
                    event.wd(),
                    event.events(),
                    event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned()),
                ),
                Err(Errno::INTR) => continue,
                // There is nothing more, also if the instance is broken.
                Err(_) => break,
            };
            self.take(&mut seen, descriptor, mask, name.as_deref());
        }
        seen.found.clear();
        let changed = seen.queue.len() != before || seen.overflowed;
        drop(seen);
        if changed {
            self.changed.send_modify(|version| *version += 1);
        }
    }

    fn take(&self, seen: &mut Seen, descriptor: i32, mask: ReadFlags, name: Option<&OsStr>) {
        if mask.contains(ReadFlags::QUEUE_OVERFLOW) {
            seen.overflowed = true;
            return;
        }
        let Some(directory) = seen.directories.get(&descriptor).cloned() else {
            return;
        };
        if mask.contains(ReadFlags::IGNORED) {
            seen.directories.remove(&descriptor);
            return;
        }
        let relative = match name {
            Some(name) => directory.join(name),
            // Events on a directory below the root are also reported by its parent.
            None if !directory.as_os_str().is_empty() => return,
            None => PathBuf::from("."),
        };
        let Some(kind) = kind(mask) else {
            return;
        };
        if kind == EventType::Create && seen.found.remove(&relative) {
            return;
        }
        self.queue(seen, &relative, kind);
        if !self.recursive || name.is_none() || !mask.contains(ReadFlags::ISDIR) {
            return;
        }
        let outcome = if mask.contains(ReadFlags::CREATE) {
            self.add(seen, relative, Report::Contents)
        } else if mask.contains(ReadFlags::MOVED_TO) {
            self.add(seen, relative, Report::Nothing)
        } else {
            if mask.contains(ReadFlags::MOVED_FROM) {
                self.forget_below(seen, &relative);
            }
            Ok(())
        };
        if outcome.is_err() {
            // Part of the tree is not watched: the client must know.
            seen.overflowed = true;
        }
    }

    /// A directory that moved has another name, or has left the tree.
    fn forget_below(&self, seen: &mut Seen, relative: &Path) {
        seen.directories.retain(|descriptor, path| {
            let below = path.starts_with(relative);
            if below {
                let _gone = inotify::remove_watch(&self.inotify, *descriptor);
            }
            !below
        });
    }

    fn queue(&self, seen: &mut Seen, relative: &Path, kind: EventType) {
        if seen.queue.len() >= QUEUE_LIMIT || self.queued.load(Ordering::Relaxed) >= QUEUED_BYTES {
            seen.overflowed = true;
            return;
        }
        let describable = matches!(kind, EventType::Create | EventType::Write | EventType::Chmod);
        let entry = (self.include_entry && describable)
            .then(|| {
                let accounts = Accounts::read().unwrap_or_default();
                entry::describe(&self.root.join(relative), &accounts).ok()
            })
            .flatten();
        let event =
            FilesystemEvent { name: relative.to_string_lossy().into_owned(), r#type: kind.into(), entry };
        self.queued.fetch_add(held(&event), Ordering::Relaxed);
        seen.queue.push_back(event);
    }

    /// These events have left the queue.
    fn let_go<'e>(&self, events: impl IntoIterator<Item = &'e FilesystemEvent>) {
        self.queued.fetch_sub(events.into_iter().map(held).sum(), Ordering::Relaxed);
    }

    fn pop(&self) -> Result<Option<FilesystemEvent>, RpcError> {
        let mut seen = self.seen.lock();
        // Events before the gap are still in order and are returned first.
        if let Some(event) = seen.queue.pop_front() {
            self.let_go([&event]);
            return Ok(Some(event));
        }
        if std::mem::take(&mut seen.overflowed) {
            return Err(RpcError::new(Code::DataLoss, "too many changes at once, some events are lost"));
        }
        Ok(None)
    }
}

/// The approximate memory of an event.
fn held(event: &FilesystemEvent) -> usize {
    size_of::<FilesystemEvent>() + event.encoded_len()
}

/// Whether entries found in a directory are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    Nothing,
    Contents,
}

fn flags(is_root: bool) -> WatchFlags {
    let common = WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::ATTRIB
        | WatchFlags::MODIFY
        | WatchFlags::DELETE
        | WatchFlags::ONLYDIR;
    if is_root {
        common | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF
    } else {
        common | WatchFlags::DONT_FOLLOW
    }
}

fn kind(mask: ReadFlags) -> Option<EventType> {
    if mask.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(EventType::Create)
    } else if mask.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVE_SELF) {
        Some(EventType::Rename)
    } else if mask.contains(ReadFlags::ATTRIB) {
        Some(EventType::Chmod)
    } else if mask.contains(ReadFlags::MODIFY) {
        Some(EventType::Write)
    } else if mask.intersects(ReadFlags::DELETE | ReadFlags::DELETE_SELF) {
        Some(EventType::Remove)
    } else {
        None
    }
}

fn watch_error(path: &Path, error: Errno) -> RpcError {
    let code = match error {
        Errno::NOSPC | Errno::MFILE | Errno::NFILE | Errno::NOMEM => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    RpcError::new(code, format!("error adding path {} to watcher: {error}", path.display()))
}

fn is_on_network(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| NETWORK_FILESYSTEMS.contains(&found.f_type))
}
