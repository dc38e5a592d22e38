//! Slots of the warm pool: how they are created, and how a request claims one as its sandbox.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use coffer_wire::node::{CreateSandbox, NodeError};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};

use crate::files;
use crate::journal::{Durability, Entry, Phase};
use crate::node::{Node, blocking};
use crate::process::Alive;
use crate::warm::{Shape, Slot};

use super::prepare::{Launch, check_room, internal};
use super::provision::{self, Resume};
use super::remains::{Record, Remains};
use super::start;

/// Creates a slot, or removes what it created so far.
pub(super) async fn make(node: &Arc<Node>, shape: &Shape) -> Result<Slot, NodeError> {
    let entry = provision::reserve(node, &shape.slot()).await?;
    let made = async {
        provision::make_files(node, &entry).await?;
        let launch = start::begin(node, &entry, Resume::wanted(&entry.spec)).await?;
        if shape.has_processes()
            && let Err(error) = launch.alive.cgroup.freeze().await
        {
            launch.alive.end().await;
            return Err(internal("freeze its processes")(error));
        }
        Ok(launch)
    };
    match made.await {
        Ok(Launch { alive, process, listeners }) => {
            let bytes = if shape.has_processes() { alive.cgroup.usage().memory_bytes } else { 0 };
            Ok(Slot { entry, process, alive, listeners, bytes })
        }
        Err(error) => {
            Remains::of(node, &entry, Record::Removed).give_back_later().await;
            Err(error)
        }
    }
}

/// Ends a slot; the reaper releases the rest.
pub(super) async fn end(node: &Arc<Node>, slot: Slot) {
    slot.alive.end().await;
    Remains::of(node, &slot.entry, Record::Removed).give_back_later().await;
}

/// Claims a slot for the requested sandbox; `None` if none fits, and then the caller creates one from
/// scratch.
pub(super) async fn claim(node: &Arc<Node>, spec: &CreateSandbox) -> Option<(Entry, Alive)> {
    let shape = Shape::of(spec)?;
    if !node.warm.keeps(&shape) || !node.warm.ask(&shape) {
        return None;
    }
    let (claiming, spec) = (node.clone(), spec.clone());
    let claimed = blocking(move || {
        let node = claiming;
        provision::check(&spec)?;
        // Anything that prevents a new sandbox fails here too; the cold path then reports the error.
        let (template, overlays, _) =
            provision::find_origin(&node, &spec.template, spec.snapshot, Resume::wanted(&spec))?;
        let now = (template, overlays);
        if check_room(&node).is_err() {
            return Ok(None);
        }
        while let Some(mut slot) = node.warm.take(&shape) {
            if slot.has_ended() || !slot.is_of(&now) {
                node.warm.reject(slot);
                continue;
            }
            // Egress takes it while the rest is done.
            let serving = node.network.serve(spec.sandbox, &spec.network, slot.listeners.take());
            match become_sandbox(&slot, &node, &spec) {
                Ok(entry) => return Ok(Some((entry, slot.alive, serving))),
                Err(error) => {
                    node.network.end_blocking(spec.sandbox);
                    tracing::warn!(sandbox.id = %spec.sandbox, "could not claim a slot for sandbox {}, creating it from scratch: {error}", spec.sandbox);
                    node.warm.reject(slot);
                }
            }
        }
        Ok(None)
    });
    let (entry, alive, serving) = claimed.await.ok().flatten()?;
    if let Err(error) = serving.in_force().await {
        tracing::warn!(sandbox.id = %entry.spec.sandbox, "could not claim a slot for sandbox {}, creating it from scratch: {error}", entry.spec.sandbox);
        node.network.end(entry.spec.sandbox).await;
        alive.end().await;
        Remains::of(node, &entry, Record::Removed).give_back_later().await;
        return None;
    }
    Some((entry, alive))
}

/// Turns a slot into the requested sandbox. The journal entry is replaced last, in one step: before that it
/// is a slot, after that a sandbox, even if this node dies. After a failure it is still a slot, but unusable.
fn become_sandbox(slot: &Slot, node: &Node, spec: &CreateSandbox) -> io::Result<Entry> {
    take_name(slot, &slot.entry.spec.hostname, &spec.hostname)?;
    if slot.has_processes() {
        // Before the entry says that it runs: a frozen sandbox without a mark is taken for one that a caller froze.
        slot.alive.cgroup.thaw()?;
    }
    let entry = Entry {
        spec: spec.clone(),
        slot: Some(slot.entry.name()),
        phase: Phase::Running { process: slot.process.clone() },
        ..slot.entry.clone()
    };
    node.journal.overwrite(&entry)?;
    if slot.has_ended() {
        // The server has no answer yet: another sandbox can still be created.
        node.journal.write(&slot.entry, Durability::Cached)?;
        return Err(ended());
    }
    Ok(entry)
}

/// Sets its host name: in its namespace, and in its files through its own root, because the directories below
/// a mounted overlay must not be touched. Files without the name of the slot are a template's own and stay.
fn take_name(slot: &Slot, before: &str, hostname: &str) -> io::Result<()> {
    let root = rustix::fs::openat(
        CWD,
        format!("/proc/{}/root", slot.process.pid),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // Only now is it certain that the pid was the slot's.
    if slot.has_ended() {
        return Err(ended());
    }
    for (path, was, is) in [
        ("etc/hostname", files::hostname(before), files::hostname(hostname)),
        ("etc/hosts", files::hosts(before), files::hosts(hostname)),
    ] {
        match overwrite(&root, path, &was, &is) {
            // A template may have no such file, or a link there.
            Err(error) if slot.entry.spec.snapshot.is_some() && is_own_file(&error) => {}
            overwritten => overwritten?,
        }
    }
    set_hostname_within(slot.alive.watched.pidfd(), hostname)
}

/// Sets the host name in the namespace of a process. This thread enters it and comes back, because a separate
/// thread would cost more than the rest of a claim.
fn set_hostname_within(pidfd: BorrowedFd<'_>, hostname: &str) -> io::Result<()> {
    static HOME: OnceLock<OwnedFd> = OnceLock::new();
    const NAMES: ThreadNameSpaceType = ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME;
    let home = match HOME.get() {
        Some(home) => home,
        None => {
            let home = std::fs::File::open("/proc/self/ns/uts")?;
            HOME.get_or_init(|| home.into())
        }
    };
    rustix::thread::move_into_thread_name_spaces(pidfd, NAMES)?;
    let named = rustix::system::sethostname(hostname.as_bytes());
    rustix::thread::move_into_link_name_space(
        home.as_fd(),
        Some(LinkNameSpaceType::HostNameAndNISDomainName),
    )
    .expect("a thread can return to its first UTS namespace");
    Ok(named?)
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the slot has ended")
}

/// Whether an error says that a template has something else in place of a file.
fn is_own_file(error: &io::Error) -> bool {
    let own = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EXDEV, libc::ENXIO, libc::EISDIR];
    error.raw_os_error().is_some_and(|errno| own.contains(&errno))
}

/// Replaces the content of a file that has exactly `was`. No process inside runs; a template may have a link there, and
/// links are not followed.
fn overwrite(root: &OwnedFd, path: &str, was: &str, content: &str) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file =
        rustix::io::retry_on_intr(|| rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve))?;
    let mut file = std::fs::File::from(file);
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    // One byte more, to see that there is none.
    let mut found = Vec::new();
    (&file).take(was.len() as u64 + 1).read_to_end(&mut found)?;
    if found != was.as_bytes() {
        return Ok(());
    }
    file.rewind()?;
    file.write_all(content.as_bytes())?;
    // Truncate last, not first: btrfs flushes a file at close if it was truncated to zero before.
    file.set_len(content.len() as u64)
}
