//! Starts git for the server. `coffer up` runs this as a separate process, in a cgroup with a memory limit:
//! git starts under that limit, while moving each process there would take the kernel about 10 ms. Without
//! such a process, as in tests, threads of the server do the same.
//!
//! Each git process has its own connection. It carries the [`Order`] with git's three streams as descriptors,
//! then [`STARTED`] and the [`Reply`]. If a client closes its end, or its sending side, git is ended.

use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process_group, pidfd_open};
use serde::{Deserialize, Serialize};

use super::confine::{Confinement, STACK};

/// Address space in addition to git's memory: packs are mapped.
const MAPPED: u64 = 4 << 30;
/// Where programs are looked for.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The memory of a call with spare memory, as a multiple of the usual.
pub(crate) const WITH_SPARE: u64 = 2;
/// Confirms that git runs and is limited. JSON may begin with it.
pub(super) const STARTED: u8 = b' ';
const LONGEST_ORDER: usize = 16 << 20;
/// The kernel kills git first when memory is low.
const OOM_SCORE: &str = "1000";

/// A git process to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) directory: PathBuf,
    /// The directories that it may read and change.
    pub(super) places: Vec<PathBuf>,
    /// Its memory limit, in bytes.
    pub(super) memory: u64,
}

/// How it ended.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// Its exit code; `None` if a signal ended it.
    Ended(Option<i32>),
    Missing,
    Failed(String),
}

/// Starts git for requests on a socket, as long as this process runs.
#[derive(Debug)]
pub struct GitRunner {
    confinement: Arc<Confinement>,
}

impl GitRunner {
    /// Without Landlock, git is confined only by its user and a system call filter.
    pub fn new(landlock: bool) -> io::Result<Self> {
        Ok(Self { confinement: Arc::new(Confinement::new(landlock)?) })
    }

    /// Limits this process, and so its children, to the most that git with `memory` bytes may have, and lets
    /// the kernel kill it first.
    pub fn limit_itself(memory: u64) -> io::Result<()> {
        std::fs::write("/proc/self/oom_score_adj", OOM_SCORE)?;
        for (resource, most) in limits(memory.saturating_mul(WITH_SPARE)) {
            rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
        }
        Ok(())
    }

    pub fn serve(&self, listener: &UnixListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept()?;
            self.attend(stream);
        }
    }

    /// Serves one connection, in a thread.
    pub(super) fn attend(&self, stream: UnixStream) {
        let confinement = self.confinement.clone();
        let attend = move || {
            if let Err(error) = attend(&stream, &confinement) {
                tracing::debug!("lost a client of the git runner: {error}");
            }
        };
        // Dropping the connection informs its client.
        if let Err(error) =
            std::thread::Builder::new().name("git runner".into()).stack_size(STACK).spawn(attend)
        {
            tracing::warn!("could not start a thread for git: {error}");
        }
    }
}

fn attend(stream: &UnixStream, confinement: &Confinement) -> io::Result<()> {
    let Some((order, streams)) = receive(stream)? else { return Ok(()) };
    let reply = match start(&order, streams, confinement) {
        Ok(child) => {
            // A closed connection is fine: then there is no client to watch for, either.
            let _ = (&*stream).write_all(&[STARTED]);
            watch(child, stream)?
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Reply::Missing,
        Err(error) => Reply::Failed(format!("could not start git: {error}")),
    };
    (&*stream).write_all(&serde_json::to_vec(&reply)?)
}

fn start(
    order: &Order,
    [stdin, stdout, stderr]: [OwnedFd; 3],
    confinement: &Confinement,
) -> io::Result<Child> {
    // By its full path: looking it up in another `PATH` would make the standard library fork, which is
    // slower.
    let places = PATH.split(':').map(|place| Path::new(place).join("git"));
    let program = places.into_iter().find(|program| program.is_file()).ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    let environment = order.environment.iter().map(|(name, value)| (name, value));
    command.args(&order.arguments).env_clear().envs(environment).current_dir(&order.directory);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    // Its own process group: git's children must end with it.
    command.process_group(0);
    let child = confinement.spawn(&mut command, &order.places)?;
    // Git gets its input only after this.
    limit(&child, order.memory);
    Ok(child)
}

/// The limits of a process.
fn limits(memory: u64) -> [(Resource, u64); 3] {
    [(Resource::Data, memory), (Resource::As, memory.saturating_add(MAPPED)), (Resource::Core, 0)]
}

/// A runner that has limited itself has inherited at most twice this.
fn limit(child: &Child, memory: u64) {
    let Some(pid) = pid(child) else { return };
    for (resource, most) in limits(memory) {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        if let Err(error) = rustix::process::prlimit(Some(pid), resource, limit) {
            tracing::debug!("could not limit git: {error}");
        }
    }
    let scored = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), OOM_SCORE);
    if let Err(error) = scored {
        tracing::debug!("could not raise the OOM score of git: {error}");
    }
}

fn pid(child: &Child) -> Option<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw)
}

/// Waits for git, or for its client to disconnect.
fn watch(mut child: Child, stream: &UnixStream) -> io::Result<Reply> {
    let group = pid(&child).ok_or(io::ErrorKind::InvalidData)?;
    // Until it was reaped, its pid cannot be reused.
    let end = || kill_process_group(group, Signal::KILL);
    let watched = pidfd_open(group, PidfdFlags::empty()).and_then(|running| {
        loop {
            let mut both = [PollFd::new(&running, PollFlags::IN), PollFd::new(stream, PollFlags::RDHUP)];
            match poll(&mut both, None) {
                Err(rustix::io::Errno::INTR) => {}
                outcome => return outcome,
            }
        }
    });
    // End its children with it.
    let _ = end();
    let status = child.wait()?;
    watched?;
    Ok(Reply::Ended(status.code()))
}

/// The order and git's streams; `None` if the client sends nothing.
fn receive(stream: &UnixStream) -> io::Result<Option<(Order, [OwnedFd; 3])>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let received =
        recvmsg(stream, &mut [IoSliceMut::new(&mut length)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let streams: Vec<OwnedFd> = descriptors.flatten().collect();
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let streams = streams.try_into().map_err(|_| bad())?;
    let length = usize::try_from(u32::from_be_bytes(length)).map_err(|_| bad())?;
    if received.bytes != 4 || length > LONGEST_ORDER {
        return Err(bad());
    }
    let mut order = vec![0; length];
    (&*stream).read_exact(&mut order)?;
    Ok(Some((serde_json::from_slice(&order)?, streams)))
}
