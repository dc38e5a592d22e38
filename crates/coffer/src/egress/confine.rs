//! Privileges that egress gives up. It parses traffic of sandboxes, so it is the part most likely to be
//! compromised: an attacker there finds no file, no capability, and only the system calls that carrying bytes
//! needs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, pivot_root};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Closes all descriptors except the standard ones: the process that started `up` may have left some open.
pub(super) fn close_inherited() -> anyhow::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").context("could not list open files")?;
    let open: Vec<i32> =
        open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|&descriptor| descriptor > 2) {
        // One of them was the list's own, and is closed already.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

/// Moves this process to its own empty root, over a directory that must exist.
pub(super) fn lose_files(over: &Path) -> anyhow::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS)
        .context("could not create namespaces for egress")?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("could not detach the mounts")?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    let become_root = || -> nix::Result<()> {
        mount(Some("none"), over, Some("tmpfs"), flags, Some("size=4k,mode=0555"))?;
        chdir(over)?;
        // The old root is stacked on the new one, and detached with all its mounts.
        pivot_root(".", ".")?;
        umount2(".", MntFlags::MNT_DETACH)?;
        chdir("/")
    };
    become_root().context("could not give egress an empty root")
}

/// Empties the bounding set; the held capabilities are lost with root itself.
pub(super) fn lose_capabilities() -> anyhow::Result<()> {
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // Newer than this kernel.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error).context("could not drop a capability"),
        }
    }
    Ok(())
}

/// Data from sandboxes must not end up on a disk.
pub(super) fn dump_no_core() -> anyhow::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .context("could not forbid core dumps")
}

/// Restricts all threads of this process to the calls that serving needs. All others fail with EPERM.
pub(super) fn restrict_calls() -> anyhow::Result<()> {
    let program = program().context("could not build the system call filter")?;
    seccompiler::apply_filter_all_threads(&program).context("could not restrict system calls")
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        calls().into_iter().map(|number| (number, Vec::new())).collect();
    for (number, argument, allowed) in arguments() {
        let rule = allowed.condition(argument).and_then(|condition| SeccompRule::new(vec![condition]));
        rules.entry(number).or_default().push(rule?);
    }
    let otherwise = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    SeccompFilter::new(rules, otherwise, SeccompAction::Allow, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Calls with any arguments. No `listen`: egress opens no new sockets to listen on. No `clone`: all its
/// threads exist. No `open`, no `exec`, nothing that takes a path.
fn calls() -> Vec<i64> {
    let mut calls = vec![
        // Connections and questions.
        libc::SYS_accept4,
        libc::SYS_bind,
        libc::SYS_connect,
        libc::SYS_getpeername,
        libc::SYS_getsockname,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_sendto,
        libc::SYS_shutdown,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_close,
        libc::SYS_fcntl,
        // The runtime.
        libc::SYS_epoll_create1,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait,
        libc::SYS_eventfd2,
        libc::SYS_futex,
        libc::SYS_ppoll,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_yield,
        // Memory, randomness and time.
        libc::SYS_brk,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_getrandom,
        libc::SYS_clock_getres,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        // How threads begin and end, and how signals are taken.
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_geteuid,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_restart_syscall,
        libc::SYS_rseq,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_set_robust_list,
        libc::SYS_sigaltstack,
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([libc::SYS_epoll_wait, libc::SYS_poll]);
    calls
}

enum Allowed {
    Is(u64),
    /// None of these bits.
    Without(u64),
}

impl Allowed {
    fn condition(self, argument: u8) -> Result<SeccompCondition, seccompiler::BackendError> {
        let (operation, value) = match self {
            Self::Is(value) => (SeccompCmpOp::Eq, value),
            Self::Without(bits) => (SeccompCmpOp::MaskedEq(bits), 0),
        };
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value)
    }
}

/// Calls that depend on one argument: the number, which argument, and its allowed values.
fn arguments() -> Vec<(i64, u8, Allowed)> {
    let number = |value: i32| u64::from(value.cast_unsigned());
    let without_code = || Allowed::Without(number(libc::PROT_EXEC));
    vec![
        (libc::SYS_socket, 0, Allowed::Is(number(libc::AF_INET))),
        (libc::SYS_socket, 0, Allowed::Is(number(libc::AF_INET6))),
        (libc::SYS_ioctl, 1, Allowed::Is(libc::FIONBIO)),
        (libc::SYS_mmap, 2, without_code()),
        (libc::SYS_mprotect, 2, without_code()),
        (libc::SYS_prctl, 0, Allowed::Is(number(libc::PR_SET_NAME))),
        // Only `abort` of its own process; it may not signal others.
        (libc::SYS_tgkill, 2, Allowed::Is(number(libc::SIGABRT))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::ErrorKind;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::net::UnixDatagram;
    use std::process::Command;

    use rustix::net::{AddressFamily, SocketType, socket};

    use crate::privilege::Identity;

    const DIRECTORY: &str = "TEST_DIRECTORY";

    #[test]
    fn whoever_breaks_in_finds_nothing() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: not root");
            return;
        }
        let test = std::env::current_exe().unwrap();
        let name = "egress::confine::tests::inside";
        let directory = tempfile::tempdir().unwrap();
        let mut inside = Command::new(test);
        inside.args(["--ignored", "--exact", name, "--nocapture"]).env(DIRECTORY, directory.path());
        let output = inside.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{}: {said}{errors}", output.status);
    }

    #[test]
    #[ignore = "runs in the process that the other test starts"]
    fn inside() {
        let files = ["/etc/shadow", "/etc/passwd", "/proc/self/maps", "/proc/1/environ", "/dev/null"];
        for file in files {
            assert!(std::fs::exists(file).unwrap(), "{file} is not there to be lost");
        }
        lose_files(Path::new(&std::env::var_os(DIRECTORY).unwrap())).unwrap();
        lose_capabilities().unwrap();
        Identity { uid: 0x6fff_fff0, gid: 0x6fff_fff0 }.assume().unwrap();
        for file in files {
            assert_eq!(std::fs::read(file).unwrap_err().kind(), ErrorKind::NotFound, "{file}");
        }
        assert_eq!(nix::unistd::setuid(nix::unistd::Uid::from_raw(0)), Err(nix::Error::EPERM));
        assert!(UnixDatagram::unbound().is_ok() && std::thread::spawn(|| {}).join().is_ok());

        restrict_calls().unwrap();
        let refused = |what: &str, kind: ErrorKind| assert_eq!(kind, ErrorKind::PermissionDenied, "{what}");
        refused("a file", std::fs::read("/").unwrap_err().kind());
        refused("a new file", std::fs::File::create("/new").unwrap_err().kind());
        refused("a directory", std::fs::read_dir("/").unwrap_err().kind());
        refused("a program", Command::new("/bin/sh").spawn().unwrap_err().kind());
        refused("a thread", std::thread::Builder::new().spawn(|| {}).unwrap_err().kind());
        refused("a port of its own", TcpListener::bind("127.0.0.1:0").unwrap_err().kind());
        refused("a Unix socket", UnixDatagram::unbound().unwrap_err().kind());
        for family in [AddressFamily::NETLINK, AddressFamily::PACKET, AddressFamily::VSOCK] {
            let error = socket(family, SocketType::DGRAM, None).unwrap_err();
            refused("another kind of socket", error.kind());
        }
        assert_eq!(unshare(CloneFlags::CLONE_NEWUSER), Err(nix::Error::EPERM));
        assert_eq!(nix::unistd::chroot("/"), Err(nix::Error::EPERM));
        let kill = nix::sys::signal::kill(nix::unistd::Pid::this(), None);
        assert_eq!(kill, Err(nix::Error::EPERM), "signals");
        // Calls that it needs.
        assert!(UdpSocket::bind("127.0.0.1:0").is_ok());
    }

    #[test]
    fn the_filter_is_made_and_names_nothing_that_opens_or_starts_things() {
        assert!(!program().unwrap().is_empty());
        let allowed: Vec<i64> = calls().into_iter().chain(arguments().iter().map(|rule| rule.0)).collect();
        for number in [
            libc::SYS_openat,
            libc::SYS_openat2,
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_mount,
            libc::SYS_bpf,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_listen,
            libc::SYS_io_uring_setup,
            libc::SYS_process_vm_readv,
        ] {
            assert!(!allowed.contains(&number), "call {number}");
        }
    }
}
