//! The process that becomes CRIU and restores a sandbox.
//!
//! CRIU creates the sandbox's namespaces itself, from its image, and what it can mount in them. It takes the
//! rest from here: the overlays, and all files of the host that are visible inside. All of it is below one
//! directory of a mount namespace that only this process has, so nothing is left behind.

use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountPropagationFlags, MoveMountFlags};
use rustix::net::SendFlags;
use rustix::thread::UnshareFlags;

use super::child;
use super::filesystem::{self, Handed};
use super::hand_over::{Made, open_cgroup, prefer_as_victim, send_mounts};
use super::kernel::{self, Cloned};
use super::overlay::{self, IdMap};
use super::packet;
use super::request::{Restore, SpawnRequest};
use super::setup_error::{Doing, Quoted, SetupError};

/// One of these is covered, in this process's own mount namespace.
const SCRATCHES: [&str; 4] = ["/mnt", "/media", "/srv", "/opt"];
/// As in a dump.
const GHOSTS: &str = "67108864";

/// Creates the process. It is not the parent of the sandbox: what CRIU restores becomes the spawner's child.
pub(super) fn spawn(
    request: &SpawnRequest,
    restore: &Restore,
    gate: Option<OwnedFd>,
) -> Result<Made, SetupError> {
    if !request.volumes.is_empty() {
        return Err(SetupError::new("restore a sandbox with volumes", Errno::NOTSUP));
    }
    if gate.is_some() != request.gated {
        return Err(SetupError::new("match the gate's descriptor with the request", Errno::PROTO));
    }
    let cgroup = open_cgroup(request)?;
    let (progress_read, progress_write) = packet::pair().doing("create a socket pair")?;
    let (ours, theirs) = packet::pair().doing("create a socket pair")?;
    // SAFETY: the spawner has one thread.
    let cloned = unsafe { kernel::clone_into(libc::CLONE_NEWNS, cgroup.as_ref().map(AsFd::as_fd)) };
    let (pid, pidfd) = match cloned.doing("clone into a new mount namespace")? {
        Cloned::Child => {
            drop((ours, progress_read, cgroup));
            run(request, restore, gate, &theirs, &progress_write)
        }
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop((theirs, progress_write));
    match hand_over(request, pid, &ours) {
        Ok(plain_layers) => Ok(Made { pid, pidfd, progress: progress_read, plain_layers }),
        Err(error) => {
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            Err(error)
        }
    }
}

fn hand_over(request: &SpawnRequest, pid: i32, child: &OwnedFd) -> Result<u32, SetupError> {
    prefer_as_victim(pid)?;
    // The sandbox's own does not exist yet; one with the same map works too.
    let user_namespace = overlay::user_namespace(&overlay::range(0, request.uid_base))?;
    let ids = IdMap { user_namespace: user_namespace.as_fd(), uid_base: request.uid_base };
    send_mounts(request, &ids, child)
}

fn run(
    request: &SpawnRequest,
    restore: &Restore,
    gate: Option<OwnedFd>,
    mounts: &OwnedFd,
    progress: &OwnedFd,
) -> ! {
    let error = match become_criu(request, restore, gate, mounts, progress) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let _ = packet::send(progress, error.to_string().as_bytes(), &[], SendFlags::empty());
    // SAFETY: ends this process without running the exit handlers of the spawner it is a copy of.
    unsafe { libc::_exit(1) }
}

fn become_criu(
    request: &SpawnRequest,
    restore: &Restore,
    gate: Option<OwnedFd>,
    mounts: &OwnedFd,
    progress: &OwnedFd,
) -> Result<Infallible, SetupError> {
    rustix::process::setsid().doing("start a session")?;
    kernel::reset_signals();
    let handed = child::receive_mounts(request, mounts)?;
    kernel::join_empty_session_keyring();
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let places = lay_out(request, restore, handed)?;
    // Its children inherit these two; an image contains neither.
    child::pin(&request.cpus)?;
    child::standard_streams()?;
    if let Some(gate) = gate {
        child::pass(&gate)?;
    }
    // SAFETY: a new cgroup namespace shares nothing with threads, of which there is one.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP) }.doing("create a cgroup namespace")?;
    execute(restore, &places, progress)
}

/// Puts everything where CRIU finds it; returns the paths of the mounts that are not in the image.
fn lay_out(
    request: &SpawnRequest,
    restore: &Restore,
    handed: Handed,
) -> Result<Vec<(String, String)>, SetupError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).doing("leave the host's mount propagation")?;
    let scratch = filesystem::fresh("tmpfs", &[("mode", "0755"), ("size", "1m")], MountAttrFlags::empty())
        .doing("create a directory for mounts")?;
    let at = scratch_for(restore)?;
    place(&scratch, at)?;

    let mut overlays = handed.overlays.into_iter();
    let root =
        overlays.next().ok_or_else(|| SetupError::new("find a root among the overlays", Errno::INVAL))?;
    let root_at = root_in(at);
    make_directory(&root_at)?;
    place(&root, &root_at)?;
    let mut sources: Vec<(&Path, OwnedFd)> = Vec::new();
    for (overlay, mount) in request.overlays.iter().skip(1).zip(overlays) {
        sources.push((&overlay.target, mount));
    }
    sources.push((Path::new(filesystem::AGENTD), handed.agentd));
    for (bind, mount) in request.binds.iter().zip(handed.binds) {
        sources.push((&bind.target, mount));
    }

    let mut places = Vec::with_capacity(restore.mounts.len());
    for (number, point) in restore.mounts.iter().enumerate() {
        let below_root = |path: &Path| path.strip_prefix("/").unwrap_or(path).to_path_buf();
        let wanted = below_root(&point.path);
        let found = sources.iter().position(|(target, _)| below_root(target) == wanted);
        let source = match found {
            Some(found) => sources.swap_remove(found).1,
            None => filesystem::stand_in(&wanted, point.is_directory)?,
        };
        let at = format!("{at}/{number}");
        if point.is_directory {
            make_directory(&at)?;
        } else {
            rustix::fs::open(
                &at,
                OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o444),
            )
            .doing(format_args!("make `{at}`"))?;
        }
        place(&source, &at)?;
        places.push((point.key(), at));
    }
    Ok(places)
}

/// A directory that contains nothing CRIU needs.
fn scratch_for(restore: &Restore) -> Result<&'static str, SetupError> {
    let needed = [&restore.images, &restore.work, &restore.hook];
    let is_free = |at: &&str| {
        Path::new(at).is_dir()
            && !needed.iter().any(|path| path.starts_with(at))
            && !restore.command.iter().any(|word| Path::new(word).starts_with(at))
    };
    SCRATCHES.into_iter().find(is_free).ok_or_else(|| {
        SetupError::new(format_args!("find a directory among {SCRATCHES:?} to cover"), Errno::NOENT)
    })
}

fn root_in(scratch: &str) -> String {
    format!("{scratch}/root")
}

fn make_directory(path: &str) -> Result<(), SetupError> {
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).doing(format_args!("make `{path}`"))
}

fn place(mount: &OwnedFd, at: &str) -> Result<(), SetupError> {
    rustix::mount::move_mount(mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .doing(format_args!("mount on `{at}`"))
}

fn execute(
    restore: &Restore,
    places: &[(String, String)],
    progress: &OwnedFd,
) -> Result<Infallible, SetupError> {
    let mut words: Vec<String> = restore.command.clone();
    let mut say = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    say(&["restore", "--images-dir", &shown(&restore.images), "--work-dir", &shown(&restore.work)]);
    say(&[
        "--log-file",
        "restore.log",
        "-v1",
        "--root",
        &root_in(scratch_for(restore)?),
        "--action-script",
        &shown(&restore.hook),
    ]);
    say(&["--empty-ns", "net", "--tcp-established", "--file-locks", "--link-remap"]);
    say(&["--ghost-limit", GHOSTS, "--manage-cgroups=ignore", "--restore-detached", "--restore-sibling"]);
    for (key, at) in places {
        say(&["--external", &format!("mnt[{key}]:{at}")]);
    }
    let text = |value: String| {
        CString::new(value).map_err(|_| SetupError::new("build CRIU's command line", Errno::INVAL))
    };
    let words = words.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let environment = CString::new("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .expect("our own words hold no zero byte");
    kernel::close_on_exec_from(3).doing("close the other descriptors")?;
    let program = words.first().ok_or_else(|| SetupError::new("find CRIU", Errno::NOENT))?;
    let Err(errno) = nix::unistd::execve(program, &words, &[environment]);
    let _ = progress;
    Err(SetupError::new(
        format_args!("execute {}", Quoted(Path::new(&*program.to_string_lossy()))),
        Errno::from_raw_os_error(errno as i32),
    ))
}
