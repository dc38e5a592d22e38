//! The spawner process: takes requests from the node, makes sandboxes, reaps them.
//!
//! It has one thread, little memory and few mounts, because each of these is paid for at every clone.
//! It keeps nothing: when its node goes away it ends, and the sandboxes go on without it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Signal, Uid, WaitOptions};
use rustix::thread::UnshareFlags;

use super::child::{self, Inherited};
use super::kernel::{self, Cloned};
use super::overlay::{self, IdMap};
use super::packet;
use super::probe;
use super::request::{LayerForm, SpawnRequest, SpawnerNews};
use super::restorer;
use super::setup_error::{Doing, Quoted, SetupError};

/// The entry of the hidden subcommand `spawner`; its socket is the standard input.
pub fn spawner_main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(2);
    let outcome = match arguments.next() {
        Some(word) if word == probe::WORD => probe::run(&arguments.map(PathBuf::from).collect::<Vec<_>>()),
        _ => serve(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody else would learn of it: the node sees only a closed socket.
            let _ = rustix::io::write(rustix::stdio::stderr(), format!("spawner: {error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), SetupError> {
    // A key typed at the terminal is for the node, which then closes our socket.
    let _ = rustix::process::setsid();
    let socket = rustix::stdio::stdin();
    let children_ended = kernel::child_signals().doing("watch for ended children")?;
    super::seccomp::prepared();
    let mut tokens = HashMap::new();
    let mut mounts = OwnMounts::default();
    loop {
        let mut polled = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&children_ended, PollFlags::IN)];
        match rustix::event::poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(SetupError::new("wait for requests", errno)),
        }
        let [request, ended] = polled.map(|polled| !polled.revents().is_empty());
        if ended {
            let mut drained = [0u8; 1024];
            while rustix::io::read(&children_ended, &mut drained).is_ok() {}
            reap(socket, &mut tokens)?;
        }
        if request {
            let Some((bytes, descriptors)) =
                packet::receive(socket, RecvFlags::empty()).doing("receive a request")?
            else {
                return Ok(());
            };
            let request: SpawnRequest = serde_json::from_slice(&bytes)
                .map_err(|_| SetupError::new("understand a request", Errno::PROTO))?;
            answer(socket, &request, descriptors, &mut tokens, &mut mounts)?;
        }
    }
}

fn reap(socket: BorrowedFd<'_>, tokens: &mut HashMap<i32, u64>) -> Result<(), SetupError> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if let Some(token) = tokens.remove(&pid.as_raw_nonzero().get()) {
                    tell(socket, &SpawnerNews::Exited { token, status: status.as_raw() }, &[])?;
                }
            }
            Ok(None) | Err(Errno::CHILD) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(SetupError::new("reap children", errno)),
        }
    }
}

fn answer(
    socket: BorrowedFd<'_>,
    request: &SpawnRequest,
    descriptors: Vec<OwnedFd>,
    tokens: &mut HashMap<i32, u64>,
    mounts: &mut OwnMounts,
) -> Result<(), SetupError> {
    let token = request.token;
    let made = match request.recipe.layers {
        LayerForm::Detached => Ok(()),
        LayerForm::Descriptors | LayerForm::Appended | LayerForm::Joined => {
            mounts.ensure(request.overlays.first().map(|overlay| overlay.writable.as_path()))
        }
    };
    match made.and_then(|()| spawn(request, descriptors)) {
        Ok(made) => {
            tokens.insert(made.pid, token);
            let news = SpawnerNews::Spawned { token, pid: made.pid, plain_layers: made.plain_layers };
            tell(socket, &news, &[made.pidfd.as_fd(), made.progress.as_fd()])
        }
        Err(error) => tell(socket, &SpawnerNews::Refused { token, why: error.to_string() }, &[]),
    }
}

fn tell(
    socket: BorrowedFd<'_>,
    news: &SpawnerNews,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), SetupError> {
    let bytes = serde_json::to_vec(news).map_err(|_| SetupError::new("write an answer", Errno::PROTO))?;
    match packet::send(socket, &bytes, descriptors, SendFlags::empty()) {
        // The node is gone, which the next receive finds too.
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        sent => sent.doing("answer the node"),
    }
}

/// A mount namespace of the spawner's own, in which layers can be attached for a moment. Made at the first
/// request that needs it: by then the pool is mounted. Mounts and unmounts of the host still arrive in it.
#[derive(Debug, Default)]
pub(super) struct OwnMounts {
    made: bool,
}

impl OwnMounts {
    /// `own` lies on the pool that is needed; those of other installations are let go of.
    pub(super) fn ensure(&mut self, own: Option<&Path>) -> Result<(), SetupError> {
        if !self.made {
            // SAFETY: the spawner has one thread.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
                .doing("make a mount namespace for layers")?;
            let downstream = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", downstream).doing("keep layers out of the host's mounts")?;
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").doing("list the mounts")?;
            for pool in crate::mounted_pools(&mounts) {
                if own.is_none_or(|own| !own.starts_with(&pool)) {
                    let _ = rustix::mount::unmount(&pool, UnmountFlags::DETACH);
                }
            }
            self.made = true;
        }
        Ok(())
    }
}

pub(super) struct Made {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) progress: OwnedFd,
    pub(super) plain_layers: u32,
}

const NAMESPACES: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

fn spawn(request: &SpawnRequest, descriptors: Vec<OwnedFd>) -> Result<Made, SetupError> {
    let mut descriptors = descriptors.into_iter();
    if let Some(restore) = &request.restore {
        return restorer::spawn(request, restore, descriptors.next());
    }
    let listener = descriptors.next().ok_or_else(|| SetupError::new("find a listener", Errno::PROTO))?;
    let gate = descriptors.next();
    if gate.is_some() != request.gated {
        return Err(SetupError::new("find a gate where one is asked for", Errno::PROTO));
    }
    let cgroup = open_cgroup(request)?;
    let (progress_read, progress_write) = packet::pair().doing("make a socket pair")?;
    let (ours, theirs) = packet::pair().doing("make a socket pair")?;

    kernel::take_on_user(Uid::from_raw(request.uid_base)).doing("take on the sandbox's user")?;
    // SAFETY: the spawner has one thread.
    let cloned = unsafe { kernel::clone_into(NAMESPACES, cgroup.as_ref().map(AsFd::as_fd)) };
    if !matches!(cloned, Ok(Cloned::Child)) {
        kernel::lay_down_user().doing("become root again")?;
    }
    let (pid, pidfd) = match cloned.doing("clone into new namespaces")? {
        Cloned::Child => {
            drop((ours, progress_read, cgroup));
            child::run(request, Inherited { listener, gate, mounts: theirs, progress: progress_write })
        }
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop((theirs, progress_write));
    match hand_over(request, pid, &ours) {
        Ok(plain_layers) => Ok(Made { pid, pidfd, progress: progress_read, plain_layers }),
        Err(error) => {
            // Its token was never recorded, so the loop reaps it in silence.
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            Err(error)
        }
    }
}

pub(super) fn open_cgroup(request: &SpawnRequest) -> Result<Option<OwnedFd>, SetupError> {
    let Some(path) = &request.cgroup else { return Ok(None) };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    Ok(Some(opened.doing(format_args!("open the cgroup {}", Quoted(path)))?))
}

/// Gives the child its ids and its mounts; says how many layers could not be id-mapped.
fn hand_over(request: &SpawnRequest, pid: i32, child: &OwnedFd) -> Result<u32, SetupError> {
    prefer_as_victim(pid)?;
    let user_namespace = overlay::map_ids(pid, &overlay::range(0, request.uid_base))?;
    let ids = IdMap { user_namespace: user_namespace.as_fd(), uid_base: request.uid_base };
    send_mounts(request, &ids, child)
}

/// Makes the mounts that only the host's rights can make, and sends them.
pub(super) fn send_mounts(
    request: &SpawnRequest,
    ids: &IdMap<'_>,
    child: &OwnedFd,
) -> Result<u32, SetupError> {
    let mut plain_layers = 0;
    let mut mounts = Vec::with_capacity(request.overlays.len() + 1 + request.binds.len());
    for overlay in &request.overlays {
        let made = overlay::make(overlay, ids, request.recipe)?;
        plain_layers += made.plain_layers;
        mounts.push(made.mount);
    }
    mounts.push(overlay::read_only_file(&request.agentd)?);
    for bind in &request.binds {
        mounts.push(overlay::read_only_file(&bind.source)?);
    }
    let borrowed: Vec<_> = mounts.iter().map(AsFd::as_fd).collect();
    packet::send(child, b"mounts", &borrowed, SendFlags::empty()).doing("hand the mounts over")?;
    Ok(plain_layers)
}

/// When the whole host is short of memory, sandboxes go before anything else does. Written by the host's
/// root, it is the least that anyone inside can set.
pub(super) fn prefer_as_victim(pid: i32) -> Result<(), SetupError> {
    let file = rustix::fs::open(
        format!("/proc/{pid}/oom_score_adj"),
        OFlags::WRONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .doing("open the child's score")?;
    rustix::io::write(file, b"500").doing("raise the child's score")?;
    Ok(())
}
