//! Starts processes: descriptors, identity, session.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::account::Account;

/// Above the 500 that a sandbox starts with, so that the kernel kills a user's programs before agentd.
const OOM_SCORE: &[u8] = b"600";

/// The process to start.
#[derive(Debug)]
pub(super) struct Spec<'a> {
    pub(super) command: &'a str,
    pub(super) args: &'a [String],
    pub(super) env: &'a [(String, String)],
    pub(super) cwd: &'a Path,
    pub(super) account: &'a Account,
    pub(super) io: Io,
}

/// Its standard descriptors.
#[derive(Debug, Clone, Copy)]
pub(super) enum Io {
    Pipes { stdin: bool },
    Terminal(Winsize),
}

/// Our ends of them.
#[derive(Debug)]
pub(super) enum Ends {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

/// Starts it in its own session. The reaper waits for the child, not this function.
pub(super) fn spawn(spec: &Spec<'_>) -> io::Result<(u32, Ends)> {
    let mut command = Command::new(spec.command);
    command.args(spec.args).env_clear();
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    let ends = match spec.io {
        Io::Pipes { stdin } => pipes(&mut command, stdin)?,
        Io::Terminal(size) => Ends::Terminal(terminal(&mut command, size, spec.account.uid)?),
    };
    let identity = Identity {
        uid: spec.account.uid,
        gid: spec.account.gid,
        groups: spec.account.groups.clone(),
        cwd: CString::new(spec.cwd.as_os_str().as_bytes())?,
        terminal: matches!(spec.io, Io::Terminal(_)),
    };
    // SAFETY: `assume` runs between fork and exec; it neither allocates nor takes a lock, and all
    // it needs was prepared above.
    unsafe {
        command.pre_exec(move || identity.assume());
    }
    let child = command.spawn()?;
    Ok((child.id(), ends))
}

fn pipes(command: &mut Command, stdin: bool) -> io::Result<Ends> {
    let stdin = if stdin {
        let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        command.stdin(theirs);
        Some(not_blocking(ours)?)
    } else {
        command.stdin(Stdio::null());
        None
    };
    let (stdout, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    command.stdout(theirs);
    let (stderr, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    command.stderr(theirs);
    Ok(Ends::Pipes { stdin, stdout: not_blocking(stdout)?, stderr: not_blocking(stderr)? })
}

fn terminal(command: &mut Command, size: Winsize, uid: u32) -> io::Result<OwnedFd> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&ours)?;
    // By descriptor, not by name: `/dev/pts` in the sandbox is not trusted.
    let theirs = rustix::pty::ioctl_tiocgptpeer(
        &ours,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    rustix::termios::tcsetwinsize(&ours, size)?;
    // Give the user the terminal, so that programs can open it by name. Best effort: most do not.
    let _refused = rustix::fs::fchown(&theirs, Some(rustix::fs::Uid::from_raw(uid)), None);
    command.stdin(theirs.try_clone()?);
    command.stdout(theirs.try_clone()?);
    command.stderr(theirs);
    not_blocking(ours)
}

fn not_blocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    Ok(fd)
}

/// The identity of the child before it executes its program.
struct Identity {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    cwd: CString,
    terminal: bool,
}

impl Identity {
    /// Runs in the child, after its standard descriptors are in place.
    fn assume(&self) -> io::Result<()> {
        // Its own session: signals and hang-ups of one command stay with it.
        rustix::process::setsid()?;
        if self.terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        reset_signals();
        raise_oom_score();
        rustix::process::umask(Mode::from_raw_mode(0o022));
        close_others()?;
        self.drop_privilege()?;
        // Last, with the user's own rights: a directory that the user may not enter must fail.
        rustix::process::chdir(self.cwd.as_c_str())?;
        Ok(())
    }

    /// Direct system calls: the C library would first synchronise all threads, and only this one exists.
    fn drop_privilege(&self) -> io::Result<()> {
        let (uid, gid) = (self.uid, self.gid);
        // SAFETY: the pointer and length describe a live slice of ids that the kernel only reads.
        let groups = unsafe { libc::syscall(libc::SYS_setgroups, self.groups.len(), self.groups.as_ptr()) };
        check(groups)?;
        // SAFETY: takes three plain ids.
        check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
        // SAFETY: takes three plain ids. After the groups: they need the right that this gives up.
        check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Resets signals that we or our parents ignore.
fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: sets a default disposition; the few signals that have none are refused.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Best effort: the file may be read-only in the sandbox.
fn raise_oom_score() {
    let file = rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    if let Ok(file) = file {
        let _refused = rustix::io::write(&file, OOM_SCORE);
    }
}

/// Only the standard descriptors cross the exec.
fn close_others() -> io::Result<()> {
    // SAFETY: only marks descriptors; those in use here stay open until the exec.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    check(marked)
}
