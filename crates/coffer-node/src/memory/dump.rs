//! From the processes of a sandbox to an image in a directory.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Uid};
use rustix::thread::CapabilitySet;
use tokio::process::Child;

use crate::spawner::request::MountPoint;

use super::criu::{Criu, complaints};
use super::deadlock;
use super::hook::{Hook, Moment};

/// A gigabyte takes a second or two. Ending CRIU in the middle would end the sandbox, so its timeout is long.
const PATIENCE: Duration = Duration::from_secs(600);
/// Files without a name are kept in the image up to this size.
const GHOSTS: &str = "67108864";

/// Where to look for directories that a process watches: on an overlay the kernel does not report their
/// names. Watched files cannot be found this way, and make the dump fail.
const WATCHED: [&str; 8] = ["/home", "/root", "/srv", "/tmp", "/var/tmp", "/workspace", "/app", "/repo"];

/// What happens to the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Afterwards {
    End,
    GoOn,
}

/// Why processes were not saved. They keep running.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    #[error("could not {doing}")]
    Step { doing: &'static str, source: io::Error },
    #[error("CRIU ended early: {0}")]
    EndedEarly(String),
    #[error("CRIU: {0}")]
    Failed(String),
    #[error("CRIU took longer than {} s", PATIENCE.as_secs())]
    TooSlow,
    /// The caller's work while they were frozen failed.
    #[error("{0}")]
    AtRest(String),
}

/// Writes all processes below `pid` to `directory`. `at_rest` runs when all is written, while they are still
/// frozen; if it or an earlier step fails, they continue as before.
pub(crate) async fn dump<T>(
    criu: &Criu,
    pid: i32,
    directory: &Path,
    outside: &[MountPoint],
    afterwards: Afterwards,
    at_rest: impl Future<Output = Result<T, DumpError>>,
) -> Result<T, DumpError> {
    let because = |doing: &'static str| move |source: io::Error| DumpError::Step { doing, source };
    let mut hook = Hook::new(directory, &[Moment::Dumped]).map_err(because("write CRIU's hook"))?;
    let mut command = criu.command();
    command
        .args(["dump", "--tree", &pid.to_string(), "--log-file", "dump.log", "-v1"])
        .arg("--images-dir")
        .arg(directory)
        .arg("--action-script")
        .arg(hook.script())
        .args(["--network-lock", "skip", "--empty-ns", "net", "--tcp-established", "--file-locks"])
        .args(["--link-remap", "--ghost-limit", GHOSTS, "--manage-cgroups=ignore"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    for mount in outside {
        command.arg("--external").arg(format!("mnt[{}]:{}", mount.path.display(), mount.key()));
    }
    for place in WATCHED {
        command.args(["--irmap-scan-path", place]);
    }
    if afterwards == Afterwards::GoOn {
        command.arg("--leave-running");
    }
    if let Some(owner) = stand_in(pid).map_err(because("read its user namespace"))? {
        command.arg("--unprivileged");
        // SAFETY: only system calls, which affect no other threads and allocate no memory.
        unsafe { command.pre_exec(move || take_on(owner)) };
    }
    let mut child = tokio::process::Command::from(command).spawn().map_err(because("run CRIU"))?;
    let held = hold(&child).map_err(because("hold CRIU"))?;
    let resolved = AtomicBool::new(false);
    let work = async {
        let asked = tokio::select! {
            asked = hook.asked() => asked.map_err(because("hear CRIU")),
            status = child.wait() => Err(DumpError::EndedEarly(format!("{status:?}"))),
        };
        let kept = match asked {
            // Keep going if CRIU ends: `at_rest` has to undo its own work.
            Ok(_) => beside(at_rest, &mut child).await,
            Err(why) => Err(why),
        };
        if kept.is_ok() {
            hook.go_on().map_err(because("answer CRIU"))?;
        } else {
            drop(hook);
        }
        let status = child.wait().await.map_err(because("wait for CRIU"))?;
        match kept {
            Ok(kept) if status.success() => Ok(kept),
            // If CRIU did not end the processes, its image was complete when they ended.
            Ok(kept) if resolved.load(Ordering::Relaxed) && afterwards == Afterwards::End => Ok(kept),
            // Prefer CRIU's own message: ours would only say that it ended.
            Ok(_) => Err(said(directory, "dump.log")),
            Err(DumpError::EndedEarly(_)) => Err(said(directory, "dump.log")),
            Err(why) => Err(why),
        }
    };
    tokio::select! {
        result = tokio::time::timeout(PATIENCE, work) => match result {
            Ok(result) => result,
            Err(_) => Err(DumpError::TooSlow),
        },
        never = deadlock::resolve(pid, held, &resolved) => match never {},
    }
}

fn hold(child: &Child) -> io::Result<OwnedFd> {
    let number = child.id().and_then(|number| Pid::from_raw(number.cast_signed()));
    let pid = number.ok_or(io::ErrorKind::NotFound)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits for `work`. If the child ends first, reaps it before the stray collector does.
async fn beside<T>(work: impl Future<Output = T>, child: &mut Child) -> T {
    tokio::pin!(work);
    tokio::select! {
        done = &mut work => done,
        _ = child.wait() => work.await,
    }
}

fn said(directory: &Path, log: &str) -> DumpError {
    let log = fs::read(directory.join(log)).unwrap_or_default();
    DumpError::Failed(complaints(&String::from_utf8_lossy(&log)))
}

/// The user whose rights CRIU needs to see all of a sandbox, where root's own are restricted: without
/// `SYS_RESOURCE` the kernel shows the limits of a process only to the owner of its user namespace.
fn stand_in(pid: i32) -> io::Result<Option<Uid>> {
    const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;
    if rustix::thread::capabilities(None)?.effective.contains(CapabilitySet::SYS_RESOURCE) {
        return Ok(None);
    }
    let namespace = fs::File::open(format!("/proc/{pid}/ns/user"))?;
    let mut owner: libc::uid_t = 0;
    // SAFETY: the kernel stores one user id in `owner`, which lives through the call.
    let asked = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut owner) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((owner != 0).then(|| Uid::from_raw(owner)))
}

/// Switches to a user and keeps every capability, also across exec.
fn take_on(owner: Uid) -> io::Result<()> {
    rustix::thread::set_thread_res_uid(None, owner, None)?;
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = sets.permitted;
    sets.inheritable = sets.permitted;
    rustix::thread::set_capabilities(None, sets)?;
    for bit in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if sets.permitted.contains(capability) {
            rustix::thread::configure_capability_in_ambient_set(capability, true)?;
        }
    }
    Ok(())
}
