//! A sandbox's processes. The first is held by a pidfd, so that a reused pid cannot be mistaken for it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::cgroup::SandboxCgroup;

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// In the kernel's ticks since the host started.
    pub(crate) start_ticks: u64,
    pub(crate) pid_namespace: u64,
    pub(crate) host_boot_id: String,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    const fn from_wait_status(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Code(libc::WEXITSTATUS(status))
        }
    }
}

/// A live process whose exit we are notified of.
#[derive(Debug)]
pub(crate) struct Watched {
    pidfd: AsyncFd<OwnedFd>,
    /// From the spawner, if it was the one to start this.
    exited: Option<oneshot::Receiver<i32>>,
}

impl Watched {
    pub(crate) fn new(pidfd: OwnedFd, exited: Option<oneshot::Receiver<i32>>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pidfd, true).or_else(|_| {
            // A pidfd takes the flag by fcntl only.
            let flags = rustix::fs::fcntl_getfl(&pidfd)?;
            rustix::fs::fcntl_setfl(&pidfd, flags | rustix::fs::OFlags::NONBLOCK)
        })?;
        // SAFETY: an `OwnedFd` stays open, and the same descriptor, until it is dropped.
        let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) }?;
        Ok(Self { pidfd, exited })
    }

    /// Opens a process of the journal, if it is still the same one.
    pub(crate) fn again(process: &Process, host_boot_id: &str) -> Option<OwnedFd> {
        if process.host_boot_id != host_boot_id {
            return None;
        }
        // Open the descriptor first: what is compared afterwards is then about the same process.
        let pidfd = rustix::process::pidfd_open(Pid::from_raw(process.pid)?, PidfdFlags::empty()).ok()?;
        let found = identify(process.pid, host_boot_id).ok()?;
        if has_ended(&pidfd) {
            // If it has become our child, we have to reap it.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            let _ = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), options);
            return None;
        }
        (found == *process).then_some(pidfd)
    }

    /// Waits until it, and with it every process of its pid namespace, has ended. Can be dropped.
    pub(crate) async fn ended(&self) {
        // An error would mean that the descriptor cannot be polled, and registering proved that it can.
        let _ = self.pidfd.readable().await.map(|mut ready| ready.retain_ready());
    }

    pub(crate) fn has_ended(&self) -> bool {
        has_ended(self.pidfd.get_ref())
    }

    pub(crate) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.get_ref().as_fd()
    }

    pub(crate) fn kill(&self) {
        // An error means that it has ended.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
    }

    /// Reaps a process that has become our child; otherwise it would stay a zombie.
    pub(crate) fn reap(&self) -> Option<Exit> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let ended = rustix::process::waitid(WaitId::PidFd(self.pidfd.get_ref().as_fd()), options);
        let status = ended.ok().flatten()?;
        status.terminating_signal().map(Exit::Signal).or_else(|| status.exit_status().map(Exit::Code))
    }

    /// How it ended, if known: from our wait, the spawner that reaped it, or the kernel.
    pub(crate) async fn exit(self) -> Option<Exit> {
        if let Some(exit) = self.reap() {
            return Some(exit);
        }
        if let Some(exited) = self.exited
            && let Ok(Ok(status)) = tokio::time::timeout(Duration::from_secs(1), exited).await
        {
            return Some(Exit::from_wait_status(status));
        }
        // Its current parent reaps it soon; before that the kernel does not report the status.
        for _ in 0..20 {
            if let Some(status) = exit_status(self.pidfd.get_ref()) {
                return Some(Exit::from_wait_status(status));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }
}

/// Resources of a sandbox with processes.
#[derive(Debug)]
pub(crate) struct Alive {
    pub(crate) watched: Watched,
    pub(crate) cgroup: SandboxCgroup,
    pub(crate) quota: Option<u64>,
}

impl Alive {
    /// Kills every process and waits until they have exited.
    pub(crate) async fn end(&self) {
        self.watched.kill();
        self.cgroup.kill();
        self.watched.ended().await;
        self.watched.reap();
    }
}

/// Whether a process has ended, without waiting.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut polled = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}

/// Identifies this process among all that have or had its number.
pub(crate) fn identify(pid: i32, host_boot_id: &str) -> io::Result<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "unexpected text in /proc");
    // The name is in parentheses and may hold anything; the start time is 20 fields after it.
    let (_, after_name) = stat.rsplit_once(") ").ok_or_else(invalid)?;
    let start_ticks =
        after_name.split(' ').nth(19).and_then(|field| field.parse().ok()).ok_or_else(invalid)?;
    let pid_namespace = fs::metadata(format!("/proc/{pid}/ns/pid"))?.ino();
    Ok(Process { pid, start_ticks, pid_namespace, host_boot_id: host_boot_id.to_string() })
}

/// Whether the kernel reports the exit status of a process that is not our child.
pub(crate) fn kernel_tells_exit() -> bool {
    // For a live process the kernel answers without a status.
    let pidfd = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    pidfd.is_ok_and(|pidfd| get_info(pidfd).is_some())
}

/// The wait status of a reaped process, from Linux 6.15 on.
fn exit_status(pidfd: impl AsFd) -> Option<i32> {
    get_info(pidfd).flatten()
}

/// The kernel's report on a process: `None` if it does not support the request, and no status before the
/// process was reaped.
fn get_info(pidfd: impl AsFd) -> Option<Option<i32>> {
    #[repr(C)]
    struct PidfdInfo {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const EXIT: u64 = 1 << 3;
    const SIZE: u32 = 64;
    const { assert!(size_of::<PidfdInfo>() == SIZE as usize) };
    /// `_IOWR(0xFF, 11, struct pidfd_info)` for a structure of this size.
    const GET_INFO: u32 = (3 << 30) | (SIZE << 16) | (0xff << 8) | 11;
    let mut info = PidfdInfo { mask: EXIT, cgroup: 0, ids: [0; 11], exit_code: 0 };
    // SAFETY: the request encodes the size of the structure, which is ours and lives through the call.
    let result = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), GET_INFO as libc::Ioctl, &raw mut info) };
    (result == 0).then(|| (info.mask & EXIT != 0).then_some(info.exit_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_another_with_its_number() {
        let boot_id = "this boot";
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let process = identify(child.id().cast_signed(), boot_id).unwrap();
        assert!(Watched::again(&process, boot_id).is_some());
        assert!(Watched::again(&process, "another boot").is_none());
        let other = Process { start_ticks: process.start_ticks + 1, ..process.clone() };
        assert!(Watched::again(&other, boot_id).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Watched::again(&process, boot_id).is_none());
    }

    #[tokio::test]
    async fn an_end_is_heard_and_explained() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let watched = Watched::new(pidfd, None).unwrap();
        watched.kill();
        tokio::time::timeout(Duration::from_secs(5), watched.ended()).await.unwrap();
        child.wait().unwrap();
        match watched.exit().await {
            Some(exit) => assert_eq!(exit, Exit::Signal(9)),
            None => println!("SKIPPED: this kernel does not tell how a process ended (Linux 6.15)"),
        }
    }
}
