//! Every system call that the filter knows, in one table. A call that is not in it does not exist inside a
//! sandbox: programs get `ENOSYS`, as from an older kernel, and use a fallback. `docs/system-calls.md` is
//! generated from here.
//!
//! It allows the calls that container runtimes allow by default, except those that need a capability that no
//! process inside has.

/// What the filter does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    Allow,
    /// `EPERM`: programs treat it as a missing permission.
    NotPermitted,
    /// `ENOSYS`: programs treat it as an older kernel, and use a fallback.
    Missing,
    /// Reports success and does nothing.
    Pretend,
    /// `clone`, without new namespaces.
    SameNamespaces,
    /// `unshare`, without new namespaces; one more of its bits is a namespace.
    SameNamespacesAndTime,
    /// `ioctl`, without requests that type into terminals or reach the pool.
    UsualIoctls,
    /// Unix, IPv4, IPv6, netlink, and of these only common protocols. Others are kernel code that sandboxes
    /// do not need; vsock would even reach past the network namespace, and packet sockets have rings of any
    /// size that no cgroup is charged for.
    UsualSockets,
    UnixPairs,
}

/// A processor that sandboxes run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "each build is for one; tests look at both"))]
pub(super) enum Processor {
    X86_64,
    Aarch64,
}

impl Processor {
    #[cfg(target_arch = "x86_64")]
    pub(super) const THIS: Self = Self::X86_64;
    #[cfg(target_arch = "aarch64")]
    pub(super) const THIS: Self = Self::Aarch64;
}

/// The call does not exist on that processor.
const NONE: i16 = -1;

/// A name, and its numbers on x86_64 and aarch64.
type Call = (&'static str, i16, i16);

/// All calls, by rule.
pub(super) const TABLE: [(Rule, &[Call]); 9] = [
    (Rule::Allow, ALLOWED),
    // Mounts, namespaces, modules, clocks, keys, and large parts of the kernel with a history of mistakes.
    (Rule::NotPermitted, NOT_PERMITTED),
    // The flags of clone3 are behind a pointer, so programs must fall back to clone.
    (Rule::Missing, MISSING),
    // Both reach past the sandbox: the one writes out every disk of the host, the other the pool. The
    // sandbox's own root is volatile, where neither does anything.
    (Rule::Pretend, &[("sync", 162, 81), ("syncfs", 306, 267)]),
    (Rule::SameNamespaces, &[("clone", 56, 220)]),
    (Rule::SameNamespacesAndTime, &[("unshare", 272, 97)]),
    (Rule::UsualIoctls, &[("ioctl", 16, 29)]),
    (Rule::UsualSockets, &[("socket", 41, 198)]),
    (Rule::UnixPairs, &[("socketpair", 53, 199)]),
];

/// The numbers of a processor that are in the table, in order.
pub(super) fn numbers(processor: Processor) -> Vec<(u32, Rule)> {
    let number = |&(_, x86_64, aarch64): &Call| match processor {
        Processor::X86_64 => u32::try_from(x86_64).ok(),
        Processor::Aarch64 => u32::try_from(aarch64).ok(),
    };
    let of = |&(rule, calls): &(Rule, &'static [Call])| {
        calls.iter().filter_map(move |call| Some((number(call)?, rule)))
    };
    let mut numbers: Vec<_> = TABLE.iter().flat_map(of).collect();
    numbers.sort_unstable_by_key(|&(number, _)| number);
    numbers
}

#[rustfmt::skip]
const ALLOWED: &[Call] = &[
    ("accept", 43, 202), ("accept4", 288, 242), ("access", 21, NONE), ("adjtimex", 159, 171),
    ("alarm", 37, NONE), ("arch_prctl", 158, NONE), ("bind", 49, 200), ("brk", 12, 214),
    ("cachestat", 451, 451), ("capget", 125, 90), ("capset", 126, 91), ("chdir", 80, 49), ("chmod", 90, NONE),
    ("chown", 92, NONE), ("chroot", 161, 51), ("clock_adjtime", 305, 266), ("clock_getres", 229, 114),
    ("clock_gettime", 228, 113), ("clock_nanosleep", 230, 115), ("close", 3, 57), ("close_range", 436, 436),
    ("connect", 42, 203), ("copy_file_range", 326, 285), ("creat", 85, NONE), ("dup", 32, 23),
    ("dup2", 33, NONE), ("dup3", 292, 24), ("epoll_create", 213, NONE), ("epoll_create1", 291, 20),
    ("epoll_ctl", 233, 21), ("epoll_pwait", 281, 22), ("epoll_pwait2", 441, 441), ("epoll_wait", 232, NONE),
    ("eventfd", 284, NONE), ("eventfd2", 290, 19), ("execve", 59, 221), ("execveat", 322, 281),
    ("exit", 60, 93), ("exit_group", 231, 94), ("faccessat", 269, 48), ("faccessat2", 439, 439),
    ("fadvise64", 221, 223), ("fallocate", 285, 47), ("fanotify_mark", 301, 263), ("fchdir", 81, 50),
    ("fchmod", 91, 52), ("fchmodat", 268, 53), ("fchmodat2", 452, 452), ("fchown", 93, 55),
    ("fchownat", 260, 54), ("fcntl", 72, 25), ("fdatasync", 75, 83), ("fgetxattr", 193, 10),
    ("flistxattr", 196, 13), ("flock", 73, 32), ("fork", 57, NONE), ("fremovexattr", 199, 16),
    ("fsetxattr", 190, 7), ("fstat", 5, 80), ("fstatfs", 138, 44), ("fsync", 74, 82), ("ftruncate", 77, 46),
    ("futex", 202, 98), ("futex_requeue", 456, 456), ("futex_wait", 455, 455), ("futex_waitv", 449, 449),
    ("futex_wake", 454, 454), ("futimesat", 261, NONE), ("get_mempolicy", 239, 236),
    ("get_robust_list", 274, 100), ("getcpu", 309, 168), ("getcwd", 79, 17), ("getdents", 78, NONE),
    ("getdents64", 217, 61), ("getegid", 108, 177), ("geteuid", 107, 175), ("getgid", 104, 176),
    ("getgroups", 115, 158), ("getitimer", 36, 102), ("getpeername", 52, 205), ("getpgid", 121, 155),
    ("getpgrp", 111, NONE), ("getpid", 39, 172), ("getppid", 110, 173), ("getpriority", 140, 141),
    ("getrandom", 318, 278), ("getresgid", 120, 150), ("getresuid", 118, 148), ("getrlimit", 97, 163),
    ("getrusage", 98, 165), ("getsid", 124, 156), ("getsockname", 51, 204), ("getsockopt", 55, 209),
    ("gettid", 186, 178), ("gettimeofday", 96, 169), ("getuid", 102, 174), ("getxattr", 191, 8),
    ("getxattrat", 464, 464), ("inotify_add_watch", 254, 27), ("inotify_init", 253, NONE),
    ("inotify_init1", 294, 26), ("inotify_rm_watch", 255, 28), ("io_cancel", 210, 3), ("io_destroy", 207, 1),
    ("io_getevents", 208, 4), ("io_pgetevents", 333, 292), ("io_setup", 206, 0), ("io_submit", 209, 2),
    ("ioprio_get", 252, 31), ("ioprio_set", 251, 30), ("kcmp", 312, 272), ("kill", 62, 129),
    ("landlock_add_rule", 445, 445), ("landlock_create_ruleset", 444, 444),
    ("landlock_restrict_self", 446, 446), ("lchown", 94, NONE), ("lgetxattr", 192, 9), ("link", 86, NONE),
    ("linkat", 265, 37), ("listen", 50, 201), ("listmount", 458, 458), ("listxattr", 194, 11),
    ("listxattrat", 465, 465), ("llistxattr", 195, 12), ("lremovexattr", 198, 15), ("lseek", 8, 62),
    ("lsetxattr", 189, 6), ("lstat", 6, NONE), ("madvise", 28, 233), ("map_shadow_stack", 453, 453),
    ("mbind", 237, 235), ("membarrier", 324, 283), ("memfd_create", 319, 279), ("memfd_secret", 447, 447),
    ("mincore", 27, 232), ("mkdir", 83, NONE), ("mkdirat", 258, 34), ("mknod", 133, NONE), ("mknodat", 259, 33),
    ("mlock", 149, 228), ("mlock2", 325, 284), ("mlockall", 151, 230), ("mmap", 9, 222), ("mprotect", 10, 226),
    ("mq_getsetattr", 245, 185), ("mq_notify", 244, 184), ("mq_open", 240, 180), ("mq_timedreceive", 243, 183),
    ("mq_timedsend", 242, 182), ("mq_unlink", 241, 181), ("mremap", 25, 216), ("mseal", 462, 462),
    ("msgctl", 71, 187), ("msgget", 68, 186), ("msgrcv", 70, 188), ("msgsnd", 69, 189), ("msync", 26, 227),
    ("munlock", 150, 229), ("munlockall", 152, 231), ("munmap", 11, 215), ("name_to_handle_at", 303, 264),
    ("nanosleep", 35, 101), ("newfstatat", 262, 79), ("open", 2, NONE), ("openat", 257, 56),
    ("openat2", 437, 437), ("pause", 34, NONE), ("personality", 135, 92), ("pidfd_getfd", 438, 438),
    ("pidfd_open", 434, 434), ("pidfd_send_signal", 424, 424), ("pipe", 22, NONE), ("pipe2", 293, 59),
    ("pkey_alloc", 330, 289), ("pkey_free", 331, 290), ("pkey_mprotect", 329, 288), ("poll", 7, NONE),
    ("ppoll", 271, 73), ("prctl", 157, 167), ("pread64", 17, 67), ("preadv", 295, 69), ("preadv2", 327, 286),
    ("prlimit64", 302, 261), ("process_madvise", 440, 440), ("process_mrelease", 448, 448),
    ("process_vm_readv", 310, 270), ("process_vm_writev", 311, 271), ("pselect6", 270, 72),
    ("ptrace", 101, 117), ("pwrite64", 18, 68), ("pwritev", 296, 70), ("pwritev2", 328, 287), ("read", 0, 63),
    ("readahead", 187, 213), ("readlink", 89, NONE), ("readlinkat", 267, 78), ("readv", 19, 65),
    ("recvfrom", 45, 207), ("recvmmsg", 299, 243), ("recvmsg", 47, 212), ("remap_file_pages", 216, 234),
    ("removexattr", 197, 14), ("removexattrat", 466, 466), ("rename", 82, NONE), ("renameat", 264, 38),
    ("renameat2", 316, 276), ("restart_syscall", 219, 128), ("rmdir", 84, NONE), ("rseq", 334, 293),
    ("rt_sigaction", 13, 134), ("rt_sigpending", 127, 136), ("rt_sigprocmask", 14, 135),
    ("rt_sigqueueinfo", 129, 138), ("rt_sigreturn", 15, 139), ("rt_sigsuspend", 130, 133),
    ("rt_sigtimedwait", 128, 137), ("rt_tgsigqueueinfo", 297, 240), ("sched_get_priority_max", 146, 125),
    ("sched_get_priority_min", 147, 126), ("sched_getaffinity", 204, 123), ("sched_getattr", 315, 275),
    ("sched_getparam", 143, 121), ("sched_getscheduler", 145, 120), ("sched_rr_get_interval", 148, 127),
    ("sched_setaffinity", 203, 122), ("sched_setattr", 314, 274), ("sched_setparam", 142, 118),
    ("sched_setscheduler", 144, 119), ("sched_yield", 24, 124), ("seccomp", 317, 277), ("select", 23, NONE),
    ("semctl", 66, 191), ("semget", 64, 190), ("semop", 65, 193), ("semtimedop", 220, 192),
    ("sendfile", 40, 71), ("sendmmsg", 307, 269), ("sendmsg", 46, 211), ("sendto", 44, 206),
    ("set_mempolicy", 238, 237), ("set_mempolicy_home_node", 450, 450), ("set_robust_list", 273, 99),
    ("set_tid_address", 218, 96), ("setfsgid", 123, 152), ("setfsuid", 122, 151), ("setgid", 106, 144),
    ("setgroups", 116, 159), ("setitimer", 38, 103), ("setpgid", 109, 154), ("setpriority", 141, 140),
    ("setregid", 114, 143), ("setresgid", 119, 149), ("setresuid", 117, 147), ("setreuid", 113, 145),
    ("setrlimit", 160, 164), ("setsid", 112, 157), ("setsockopt", 54, 208), ("setuid", 105, 146),
    ("setxattr", 188, 5), ("setxattrat", 463, 463), ("shmat", 30, 196), ("shmctl", 31, 195), ("shmdt", 67, 197),
    ("shmget", 29, 194), ("shutdown", 48, 210), ("sigaltstack", 131, 132), ("signalfd", 282, NONE),
    ("signalfd4", 289, 74), ("splice", 275, 76), ("stat", 4, NONE), ("statfs", 137, 43),
    ("statmount", 457, 457), ("statx", 332, 291), ("symlink", 88, NONE), ("symlinkat", 266, 36),
    ("sync_file_range", 277, 84), ("sysinfo", 99, 179), ("tee", 276, 77), ("tgkill", 234, 131),
    ("time", 201, NONE), ("timer_create", 222, 107), ("timer_delete", 226, 111), ("timer_getoverrun", 225, 109),
    ("timer_gettime", 224, 108), ("timer_settime", 223, 110), ("timerfd_create", 283, 85),
    ("timerfd_gettime", 287, 87), ("timerfd_settime", 286, 86), ("times", 100, 153), ("tkill", 200, 130),
    ("truncate", 76, 45), ("umask", 95, 166), ("uname", 63, 160), ("unlink", 87, NONE), ("unlinkat", 263, 35),
    ("utime", 132, NONE), ("utimensat", 280, 88), ("utimes", 235, NONE), ("vfork", 58, NONE),
    ("vmsplice", 278, 75), ("wait4", 61, 260), ("waitid", 247, 95), ("write", 1, 64), ("writev", 20, 66),
];

#[rustfmt::skip]
const NOT_PERMITTED: &[Call] = &[
    ("acct", 163, 89), ("add_key", 248, 217), ("bpf", 321, 280), ("clock_settime", 227, 112),
    ("create_module", 174, NONE), ("delete_module", 176, 106), ("fanotify_init", 300, 262),
    ("finit_module", 313, 273), ("fsconfig", 431, 431), ("fsmount", 432, 432), ("fsopen", 430, 430),
    ("fspick", 433, 433), ("get_kernel_syms", 177, NONE), ("init_module", 175, 105), ("ioperm", 173, NONE),
    ("iopl", 172, NONE), ("kexec_file_load", 320, 294), ("kexec_load", 246, 104), ("keyctl", 250, 219),
    ("migrate_pages", 256, 238), ("modify_ldt", 154, NONE), ("mount", 165, 40), ("mount_setattr", 442, 442),
    ("move_mount", 429, 429), ("move_pages", 279, 239), ("open_by_handle_at", 304, 265),
    ("open_tree", 428, 428), ("open_tree_attr", 467, 467), ("perf_event_open", 298, 241),
    ("pivot_root", 155, 41), ("query_module", 178, NONE), ("quotactl", 179, 60), ("quotactl_fd", 443, 443),
    ("reboot", 169, 142), ("request_key", 249, 218), ("setdomainname", 171, 162), ("sethostname", 170, 161),
    ("setns", 308, 268), ("settimeofday", 164, 170), ("swapoff", 168, 225), ("swapon", 167, 224),
    ("syslog", 103, 116), ("umount2", 166, 39), ("userfaultfd", 323, 282), ("vhangup", 153, 58),
];

#[rustfmt::skip]
const MISSING: &[Call] = &[
    ("clone3", 435, 435), ("io_uring_enter", 426, 426), ("io_uring_register", 427, 427),
    ("io_uring_setup", 425, 425),
];

/// `docs/system-calls.md`.
#[cfg(test)]
fn page() -> String {
    let mut page = "\
# System calls

<!-- Generated from crates/coffer-node/src/spawner/calls.rs: change that, then
     `COFFER_UPDATE=1 cargo test -p coffer-node --lib calls`. -->

Every process of a sandbox runs under one filter. It knows the calls below; any other number, of a newer kernel or of
another interface (32-bit, x32), gets `ENOSYS`, and programs use a fallback, as on an older kernel. Numbers are those of
x86_64 and aarch64; names that one of them lacks are left out there.
The kernel itself lets `uretprobe` past every filter: it works only from the kernel's own code.
"
    .to_string();
    for (rule, title) in [
        (Rule::Allow, "Allowed"),
        (Rule::NotPermitted, "Refused with `EPERM`"),
        (Rule::Missing, "Refused with `ENOSYS`"),
        (Rule::Pretend, "Answered with success, and not done"),
        (Rule::SameNamespaces, "Allowed without new namespaces, otherwise `EPERM`"),
        (Rule::SameNamespacesAndTime, "The same, and without a new time namespace"),
        (
            Rule::UsualIoctls,
            "Allowed, but `TIOCSTI`, `TIOCLINUX` and `TIOCSETD` get `EPERM`, btrfs but clones `ENOTTY`",
        ),
        (
            Rule::UsualSockets,
            "Unix, IPv4, IPv6 (TCP, UDP, ICMP) and netlink (routes, socket lists, device events)",
        ),
        (Rule::UnixPairs, "Unix alone"),
    ] {
        let mut names: Vec<_> = TABLE.iter().filter(|row| row.0 == rule).flat_map(|row| row.1).collect();
        names.sort();
        let names: Vec<_> = names.iter().map(|call| format!("`{}`", call.0)).collect();
        page.push_str(&format!("\n## {title}\n\n{}\n", names.join(" ")));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/system-calls.md");
        if std::env::var_os("COFFER_UPDATE").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == page(), "run `COFFER_UPDATE=1 cargo test -p coffer-node --lib calls`");
    }

    #[test]
    fn every_call_is_listed_once() {
        let mut names: Vec<_> = TABLE.iter().flat_map(|row| row.1).map(|call| call.0).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for processor in [Processor::X86_64, Processor::Aarch64] {
            let numbers = numbers(processor);
            assert!(numbers.windows(2).all(|pair| pair[0].0 < pair[1].0), "two calls with one number");
        }
    }

    /// The numbers as the kernel's own headers have them.
    #[test]
    fn numbers_are_the_kernels() {
        let headers = [
            ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", Processor::X86_64),
            ("/usr/include/asm-generic/unistd.h", Processor::Aarch64),
        ];
        for (path, processor) in headers {
            let Ok(text) = std::fs::read_to_string(path) else {
                println!("SKIPPED: no kernel headers at {path}");
                continue;
            };
            let mut compared = 0;
            for line in text.lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                let ["#define", name, number] = words[..] else { continue };
                let name = name.strip_prefix("__NR3264_").or_else(|| name.strip_prefix("__NR_"));
                let (Some(name), Ok(number)) = (name, number.parse::<i16>()) else { continue };
                let name = if name == "fstatat" { "newfstatat" } else { name };
                let Some(call) = TABLE.iter().flat_map(|row| row.1).find(|call| call.0 == name) else {
                    continue;
                };
                let ours = if processor == Processor::X86_64 { call.1 } else { call.2 };
                assert_eq!(ours, number, "{name} on {processor:?}");
                compared += 1;
            }
            assert!(compared > 250, "{compared} numbers in {path}");
        }
    }
}
