//! The spawner process: takes requests from the node, creates sandboxes, reaps them.
//!
//! It has one thread, little memory and few mounts, because every clone pays for each of these. It keeps no
//! state: when its node ends it exits, and the sandboxes continue without it.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Signal, Uid, WaitOptions};

use super::child::{self, Inherited};
use super::hand_over::{Made, open_cgroup, prefer_as_victim, send_mounts};
use super::kernel::{self, Cloned};
use super::overlay::{self, IdMap};
use super::own_mounts::OwnMounts;
use super::packet;
use super::probe;
use super::request::{LayerForm, SpawnRequest, SpawnerNews};
use super::restorer;
use super::setup_error::{Doing, SetupError};

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
            // Print the error here: the node sees only a closed socket.
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
                .map_err(|_| SetupError::new("parse a request", Errno::PROTO))?;
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
        // The node is gone, which the next receive detects too.
        Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        sent => sent.doing("answer the node"),
    }
}

/// All in one call: the other namespaces then belong to the new user namespace, and root inside controls only
/// them.
///
/// - `USER`: its ids map to a range that nothing else on the host has, so root inside is unprivileged
///   outside.
/// - `NS`: its own tree of mounts.
/// - `PID`: it sees no other process, and when its first one ends, the kernel kills all.
/// - `NET`: no interface but `lo`; the sockets that egress holds are its only way out.
/// - `IPC`: System V shared memory and queues end with it, instead of staying on the host without an owner.
/// - `UTS`: its own host name.
///
/// Not `CGROUP`: such a namespace shows its creator's cgroup as the root. The child creates it later, once it
/// is in its final cgroup.
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
        return Err(SetupError::new("match the gate's descriptor with the request", Errno::PROTO));
    }
    let cgroup = open_cgroup(request)?;
    let (progress_read, progress_write) = packet::pair().doing("create a socket pair")?;
    let (ours, theirs) = packet::pair().doing("create a socket pair")?;

    kernel::take_on_user(Uid::from_raw(request.uid_base)).doing("switch to the sandbox's user")?;
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
            // Its token was never recorded, so the loop reaps it without a report.
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            Err(error)
        }
    }
}

/// Passes the child its ids and its mounts; returns how many layers could not be id-mapped.
fn hand_over(request: &SpawnRequest, pid: i32, child: &OwnedFd) -> Result<u32, SetupError> {
    prefer_as_victim(pid)?;
    let user_namespace = overlay::map_ids(pid, &overlay::range(0, request.uid_base))?;
    let ids = IdMap { user_namespace: user_namespace.as_fd(), uid_base: request.uid_base };
    send_mounts(request, &ids, child)
}
