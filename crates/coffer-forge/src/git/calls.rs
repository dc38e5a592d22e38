//! The system calls that git may use, as a seccomp filter. Other calls fail as unknown: C libraries fall back
//! from new calls to these.
//!
//! The kernel runs a new filter once for each existing call, and every git process gets its own. So numbers
//! are compared by ranges: 106 instructions, installed in 0.15 ms; `seccompiler` generates one comparison per
//! number, 705 instructions in 0.4 ms.

use seccompiler::{BpfProgram, sock_filter};

/// The verdict on a range of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Refuse,
    Allow,
    /// `clone` without new namespaces. `clone3` has its flags in memory, which a filter cannot read, so it is
    /// refused.
    Clone,
    /// `ioctl` for queries about a terminal or a pipe.
    Ioctl,
}

/// Offsets of the fields in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument(index: u32) -> u32 {
    // The low half, on a little-endian machine.
    16 + 8 * index
}

#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xc000_00b7;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
const IOCTLS: [libc::Ioctl; 5] =
    [libc::TCGETS, libc::TIOCGWINSZ, libc::FIONREAD, libc::FIONBIO, libc::FIOCLEX];

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

const ALLOW: sock_filter = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
const REFUSE: sock_filter = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned());

pub(super) fn filter() -> BpfProgram {
    // The verdicts follow the ranges, each within reach of a forward jump.
    let mut verdicts = vec![REFUSE, ALLOW];
    let clone_at = verdicts.len();
    verdicts.extend([
        instruction(LOAD, 0, 0, argument(0)),
        instruction(IF_ANY_BIT, 0, 1, NAMESPACES.cast_unsigned()),
        REFUSE,
        ALLOW,
    ]);
    let ioctl_at = verdicts.len();
    verdicts.push(instruction(LOAD, 0, 0, argument(1)));
    for (request, left) in IOCTLS.iter().zip((1..=5).rev()) {
        verdicts.push(instruction(IF_EQUAL, left, 0, u32::try_from(*request).unwrap_or(u32::MAX)));
    }
    verdicts.extend([REFUSE, ALLOW]);
    let place = |verdict| match verdict {
        Verdict::Refuse => 0,
        Verdict::Allow => 1,
        Verdict::Clone => clone_at,
        Verdict::Ioctl => ioctl_at,
    };

    let ranges = ranges();
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(IF_EQUAL, 1, 0, THIS_ARCHITECTURE),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, 0, 0, NUMBER),
    ];
    for (index, (end, verdict)) in ranges.iter().enumerate() {
        let to_verdicts = ranges.len() - index - 1;
        let jump = u8::try_from(to_verdicts + place(*verdict)).expect("a test counts the ranges");
        program.push(instruction(IF_AT_LEAST, 0, jump, *end));
    }
    // After the last range comes the first verdict, which refuses.
    program.extend(verdicts);
    program
}

/// Exclusive ends of ranges with the verdict on the numbers below; numbers after the last are refused.
fn ranges() -> Vec<(u32, Verdict)> {
    let number = |number: i64| u32::try_from(number).expect("numbers of calls are small");
    let mut all: Vec<_> = calls().into_iter().map(|call| (number(call), Verdict::Allow)).collect();
    all.extend([(number(libc::SYS_clone), Verdict::Clone), (number(libc::SYS_ioctl), Verdict::Ioctl)]);
    all.sort_by_key(|(number, _)| *number);
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    for (number, verdict) in all {
        let end = ranges.last().map_or(0, |(end, _)| *end);
        if number > end {
            ranges.push((number, Verdict::Refuse));
        }
        match ranges.last_mut() {
            Some((end, last)) if *last == verdict && *end == number => *end = number + 1,
            _ => ranges.push((number + 1, verdict)),
        }
    }
    ranges
}

/// Calls with any arguments. No socket of any kind, no namespace, mount, trace, key, BPF or `io_uring`.
fn calls() -> Vec<i64> {
    let mut calls = vec![
        // Files and directories.
        libc::SYS_chdir,
        libc::SYS_close,
        libc::SYS_close_range,
        libc::SYS_copy_file_range,
        libc::SYS_dup,
        libc::SYS_dup3,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_fadvise64,
        libc::SYS_fallocate,
        libc::SYS_fchdir,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fcntl,
        libc::SYS_fdatasync,
        libc::SYS_flock,
        libc::SYS_fstat,
        libc::SYS_fstatfs,
        libc::SYS_fsync,
        libc::SYS_ftruncate,
        libc::SYS_getcwd,
        libc::SYS_getdents64,
        libc::SYS_linkat,
        libc::SYS_lseek,
        libc::SYS_mkdirat,
        libc::SYS_newfstatat,
        libc::SYS_openat,
        libc::SYS_pipe2,
        libc::SYS_pread64,
        libc::SYS_preadv,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_read,
        libc::SYS_readlinkat,
        libc::SYS_readv,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_sendfile,
        libc::SYS_statfs,
        libc::SYS_statx,
        libc::SYS_symlinkat,
        libc::SYS_sync_file_range,
        libc::SYS_truncate,
        libc::SYS_umask,
        libc::SYS_unlinkat,
        libc::SYS_utimensat,
        libc::SYS_write,
        libc::SYS_writev,
        // Memory.
        libc::SYS_brk,
        libc::SYS_madvise,
        libc::SYS_mincore,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_mremap,
        libc::SYS_msync,
        libc::SYS_munmap,
        // Processes and threads.
        libc::SYS_execve,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_futex,
        libc::SYS_get_robust_list,
        libc::SYS_getpgid,
        libc::SYS_getpid,
        libc::SYS_getppid,
        libc::SYS_getrusage,
        libc::SYS_getsid,
        libc::SYS_gettid,
        libc::SYS_kill,
        libc::SYS_membarrier,
        libc::SYS_prctl,
        libc::SYS_prlimit64,
        libc::SYS_rseq,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_yield,
        libc::SYS_set_robust_list,
        libc::SYS_set_tid_address,
        libc::SYS_setpgid,
        libc::SYS_tgkill,
        libc::SYS_wait4,
        libc::SYS_waitid,
        // Signals and waiting.
        libc::SYS_clock_getres,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_getitimer,
        libc::SYS_gettimeofday,
        libc::SYS_nanosleep,
        libc::SYS_ppoll,
        libc::SYS_pselect6,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigpending,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigsuspend,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_setitimer,
        libc::SYS_sigaltstack,
        libc::SYS_times,
        // Ids and working directory of the process.
        libc::SYS_getcpu,
        libc::SYS_getegid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getgroups,
        libc::SYS_getrandom,
        libc::SYS_getuid,
        libc::SYS_sysinfo,
        libc::SYS_uname,
    ];
    // Calls of x86-64 that other processors do by the calls above.
    #[cfg(target_arch = "x86_64")]
    calls.extend([
        libc::SYS_access,
        libc::SYS_alarm,
        libc::SYS_arch_prctl,
        libc::SYS_chmod,
        libc::SYS_dup2,
        libc::SYS_fork,
        libc::SYS_getdents,
        libc::SYS_getpgrp,
        libc::SYS_getrlimit,
        libc::SYS_link,
        libc::SYS_lstat,
        libc::SYS_mkdir,
        libc::SYS_open,
        libc::SYS_pipe,
        libc::SYS_poll,
        libc::SYS_readlink,
        libc::SYS_rename,
        libc::SYS_rmdir,
        libc::SYS_select,
        libc::SYS_stat,
        libc::SYS_symlink,
        libc::SYS_time,
        libc::SYS_unlink,
        libc::SYS_utime,
        libc::SYS_utimes,
        libc::SYS_vfork,
    ]);
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program's verdict on a call, by running it.
    fn verdict(program: &[sock_filter], number: u32, arguments: [u32; 2]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = &program[at];
            let jump = |yes: bool| usize::from(if yes { *jt } else { *jf });
            at += 1;
            match *code {
                LOAD => {
                    loaded = match *k {
                        NUMBER => number,
                        ARCHITECTURE => THIS_ARCHITECTURE,
                        place => arguments[usize::from(place == argument(1))],
                    }
                }
                IF_EQUAL => at += jump(loaded == *k),
                IF_AT_LEAST => at += jump(loaded >= *k),
                IF_ANY_BIT => at += jump(loaded & *k != 0),
                RETURN => return *k,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn each_number_gets_what_the_list_says() {
        let program = filter();
        assert!(program.len() < 160, "{} instructions", program.len());
        let listed = calls();
        let (clone, ioctl) = (libc::SYS_clone, libc::SYS_ioctl);
        for number in (0..1024).filter(|number| *number != clone && *number != ioctl) {
            let expected = if listed.contains(&number) { ALLOW.k } else { REFUSE.k };
            let number = u32::try_from(number).unwrap();
            assert_eq!(verdict(&program, number, [0, 0]), expected, "call {number}");
            assert_eq!(verdict(&program, number | 1 << 30, [0, 0]), REFUSE.k, "call {number} of x32");
        }
        let of = |number: i64, arguments| verdict(&program, u32::try_from(number).unwrap(), arguments);
        assert_eq!(of(clone, [17, 0]), ALLOW.k);
        for namespace in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET] {
            assert_eq!(of(clone, [17 | namespace.cast_unsigned(), 0]), REFUSE.k);
        }
        for request in IOCTLS {
            assert_eq!(of(ioctl, [0, u32::try_from(request).unwrap()]), ALLOW.k);
        }
        assert_eq!(of(ioctl, [0, u32::try_from(libc::TIOCSTI).unwrap()]), REFUSE.k);
    }

    #[test]
    fn nothing_that_reaches_others_is_listed() {
        let listed = calls();
        for number in [
            libc::SYS_socket,
            libc::SYS_socketpair,
            libc::SYS_connect,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_mount,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_clone3,
            libc::SYS_bpf,
            libc::SYS_keyctl,
            libc::SYS_io_uring_setup,
            libc::SYS_userfaultfd,
            libc::SYS_perf_event_open,
            libc::SYS_open_by_handle_at,
            libc::SYS_execveat,
        ] {
            assert!(!listed.contains(&number), "call {number}");
        }
    }
}
