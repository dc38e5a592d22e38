//! A sandbox that runs and belongs to nobody, and how it becomes somebody's.

use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use coffer_wire::node::{CreateSandbox, NodeError};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::thread::{LinkNameSpaceType, ThreadNameSpaceType};

use crate::files;
use crate::journal::{Durability, Entry, Phase, Process};
use crate::network::Listeners;
use crate::node::{Node, blocking};
use crate::reaper::Record;
use crate::template::Template;
use crate::warm::Shape;

use super::birth::{self, Born};
use super::owner::{Alive, remains};

/// A slot of the warm pool: agentd runs, nobody has spoken to it. Its journal entry says that it is
/// still being created, which is true as long as nobody was told of it: a node that finds such an
/// entry when it starts ends what it names.
#[derive(Debug)]
pub(crate) struct Slot {
    entry: Entry,
    process: Process,
    alive: Alive,
    /// Egress gets them when it is claimed; until then nobody serves it.
    listeners: Option<Listeners>,
}

impl Slot {
    /// Makes one, or leaves nothing of it.
    pub(crate) async fn make(node: &Arc<Node>, shape: &Shape) -> Result<Self, NodeError> {
        let entry = birth::plan(node, &shape.slot()).await?;
        let made = async {
            birth::make_files(node, &entry).await?;
            birth::start(node, &entry).await
        };
        match made.await {
            Ok(Born { watched, cgroup, quota, process, listeners }) => {
                Ok(Self { entry, process, alive: Alive { watched, cgroup, quota }, listeners })
            }
            Err(error) => {
                node.reaper.give_back(remains(node, &entry, Record::Removed)).await;
                Err(error)
            }
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.alive.watched.has_ended()
    }

    pub(crate) fn template(&self) -> &str {
        &self.entry.spec.template
    }

    /// Whether a sandbox made now would be made of something else; `now` is what its template is.
    pub(crate) fn is_stale(&self, now: Option<&Template>) -> bool {
        now.is_none_or(|template| !self.is_of(template))
    }

    fn is_of(&self, template: &Template) -> bool {
        self.entry.template == template.info && self.entry.overlays == template.overlays
    }

    /// Ends it; the reaper gives back the rest.
    pub(crate) async fn end(self, node: &Arc<Node>) {
        self.alive.end().await;
        node.reaper.give_back(remains(node, &self.entry, Record::Removed)).await;
    }

    /// Makes it the sandbox that is asked for. The journal entry comes last and is replaced in one step:
    /// before it there is only a slot, from it on there is the sandbox, whatever becomes of this node.
    /// After a failure it is a slot still, but no use to anyone.
    fn become_sandbox(&self, node: &Node, spec: &CreateSandbox) -> io::Result<Entry> {
        self.take_name(&spec.hostname)?;
        let entry = Entry {
            spec: spec.clone(),
            slot: Some(self.entry.name()),
            phase: Phase::Running { process: self.process.clone() },
            ..self.entry.clone()
        };
        node.journal.overwrite(&entry)?;
        if self.has_ended() {
            // Nobody was told yet: another can still be made.
            node.journal.write(&self.entry, Durability::Cached)?;
            return Err(ended());
        }
        Ok(entry)
    }

    /// Gives it a host name: in its namespace, and in its files by way of its own root, because what
    /// lies below a mounted overlay must not be touched.
    fn take_name(&self, hostname: &str) -> io::Result<()> {
        let root = rustix::fs::openat(
            CWD,
            format!("/proc/{}/root", self.process.pid),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // Only now is it sure that the number was that of the slot.
        if self.has_ended() {
            return Err(ended());
        }
        for (path, content) in
            [("etc/hostname", files::hostname(hostname)), ("etc/hosts", files::hosts(hostname))]
        {
            overwrite(&root, path, &content)?;
        }
        set_hostname_within(self.alive.watched.pidfd(), hostname)
    }
}

/// Sets the host name in the namespace of a process. This thread goes there and comes back, because a
/// thread of its own for it would cost more than all the rest of a claim.
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
    .expect("the way back to where one came from is open");
    Ok(named?)
}

fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the slot has ended")
}

/// Nobody inside has had a chance to put a link there, and none would be followed.
fn overwrite(root: &OwnedFd, path: &str, content: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file =
        rustix::io::retry_on_intr(|| rustix::fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve))?;
    let mut file = std::fs::File::from(file);
    file.write_all(content.as_bytes())?;
    // At last and not at first: btrfs writes a file out at its close that was cut to nothing before.
    file.set_len(content.len() as u64)
}

/// A slot made into the sandbox that is asked for; nothing when none fits, and then it is made anew.
pub(super) async fn claim(node: &Arc<Node>, spec: &CreateSandbox) -> Option<(Entry, Alive)> {
    let shape = Shape::of(spec)?;
    if node.warm.is_off() || !node.warm.ask(&shape) {
        return None;
    }
    let (claiming, spec) = (node.clone(), spec.clone());
    let claimed = blocking(move || {
        let node = claiming;
        birth::check(&spec)?;
        // What stands in the way of a new sandbox does so here; making anew then says what it is.
        let template = birth::find_template(&node, &spec.template)?;
        if birth::check_room(&node).is_err() {
            return Ok(None);
        }
        while let Some(mut slot) = node.warm.take(&shape) {
            if slot.has_ended() || !slot.is_of(&template) {
                node.warm.reject(slot);
                continue;
            }
            // Egress takes it while the rest is done.
            let serving = node.network.serve(spec.sandbox, &spec.network, slot.listeners.take());
            match slot.become_sandbox(&node, &spec) {
                Ok(entry) => return Ok(Some((entry, slot.alive, serving))),
                Err(error) => {
                    node.network.end(spec.sandbox);
                    tracing::warn!(sandbox.id = %spec.sandbox, "sandbox {} is made anew: {error}", spec.sandbox);
                    node.warm.reject(slot);
                }
            }
        }
        Ok(None)
    });
    let (entry, alive, serving) = claimed.await.ok().flatten()?;
    if let Err(error) = serving.in_force().await {
        tracing::warn!(sandbox.id = %entry.spec.sandbox, "sandbox {} is made anew: {error}", entry.spec.sandbox);
        node.network.end(entry.spec.sandbox);
        alive.end().await;
        node.reaper.give_back(remains(node, &entry, Record::Removed)).await;
        return None;
    }
    Some((entry, alive))
}
