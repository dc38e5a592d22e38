//! System calls that none of our crates wraps.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::process::Uid;

/// libc's constant of this name has too few bits.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// One side of a [`clone_into`].
pub(super) enum Cloned {
    Parent { pid: i32, pidfd: OwnedFd },
    Child,
}

/// `clone3` that behaves as `fork` does, into new namespaces and straight into a v2 cgroup.
///
/// # Safety
/// The caller must be the only thread of its process: the child has a copy of its memory, in which
/// locks that other threads held would never be released.
pub(super) unsafe fn clone_into(namespaces: i32, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, Errno> {
    let mut pidfd: RawFd = -1;
    // The number may belong to another process by the time it is used; this descriptor never does.
    let mut flags = libc::CLONE_PIDFD as u64 | u64::from(namespaces.cast_unsigned());
    let mut cgroup_fd = 0;
    if let Some(cgroup) = cgroup {
        // Start it under its limits: there is no moment without them, and no wait for the kernel to move a
        // process.
        flags |= CLONE_INTO_CGROUP;
        cgroup_fd = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    let arguments = libc::clone_args {
        flags,
        pidfd: (&raw mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        // As with `fork`: without it the usual wait calls would not see the child.
        exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
        // None, so that the child continues on its copy of ours.
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup_fd,
    };
    // SAFETY: the arguments live through the call and name no stack, so the child continues on its own copy
    // of ours; the caller promised to be the only thread.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match result {
        -1 => Err(last_errno()),
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: on success the kernel stored a new descriptor there that has no other owner.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            let pid = i32::try_from(pid).map_err(|_| Errno::OVERFLOW)?;
            Ok(Cloned::Parent { pid, pidfd })
        }
    }
}

/// Sets the effective user to `uid` and keeps every capability. A user namespace created this way belongs to
/// that user, and what the kernel counts by owner (inotify instances, pending signals, processes, namespaces)
/// is counted separately from every other sandbox's and from root's own.
pub(super) fn take_on_user(uid: Uid) -> Result<(), Errno> {
    rustix::thread::set_thread_res_uid(None, uid, None)?;
    let mut sets = rustix::thread::capabilities(None)?;
    sets.effective = sets.permitted;
    rustix::thread::set_capabilities(None, sets)
}

/// Becomes root again; the capabilities come back with it.
pub(super) fn lay_down_user() -> Result<(), Errno> {
    rustix::thread::set_thread_res_uid(None, Uid::ROOT, None)
}

/// Sets attributes of the mount `mount`, not of mounts on it, and makes it private: a copy of a mount that
/// the host shares, as systemd does with all of them, would stay its peer inside the sandbox.
pub(super) fn set_mount_attributes(
    mount: impl AsFd,
    set: u64,
    id_map: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let attributes = libc::mount_attr {
        attr_set: set | if id_map.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: id_map.map_or(0, |user_namespace| u64::from(user_namespace.as_raw_fd().cast_unsigned())),
    };
    // SAFETY: path and attributes live through the call, and the size is that of the attributes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes every descriptor from `first` on close at the next `exec`.
pub(super) fn close_on_exec_from(first: u32) -> Result<(), Errno> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: takes no pointers and closes nothing now.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Whether the kernel takes system call filters.
pub(super) fn has_seccomp_filter() -> Result<(), Errno> {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_long = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the action lives through the call and is only read.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Leaves the session keyring of the parent: keys of the host are not for a sandbox.
pub(super) fn join_empty_session_keyring() {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring. Kernels without keys refuse, which is as good.
    unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<u8>()) };
}

/// A descriptor that becomes readable when a child ends; `SIGCHLD` itself is blocked.
pub(super) fn child_signals() -> Result<OwnedFd, Errno> {
    // SAFETY: an all-zero set is a valid value to hand to `sigemptyset`.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours and lives through the call.
    unsafe { libc::sigemptyset(&raw mut set) };
    // SAFETY: as above, and the signal exists.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGCHLD) };
    // SAFETY: as above; the old mask is not requested.
    if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: as above; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel just created this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Default actions and an empty mask, as a freshly executed program expects.
pub(super) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: installs the default action; for SIGKILL, SIGSTOP and libc's own it fails harmlessly.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: an all-zero set is a valid value to hand to `sigemptyset`.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours and lives through the call.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: as above; the old mask is not requested.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
