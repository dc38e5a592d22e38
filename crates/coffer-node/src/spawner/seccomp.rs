//! The system call filter of every sandbox: the table of [`super::calls`] as compact BPF.
//!
//! Root inside a sandbox is the expected attacker. Capabilities and namespaces already refuse most of what is
//! not allowed; the filter also shields the kernel code behind it, and blocks new namespaces, in which a
//! process would regain capabilities. Each instruction costs about two microseconds at start, so ranges of
//! numbers are searched as a tree and the whole stays near a hundred instructions.
//!
//! That is why sandboxes do not use `seccompiler`, as egress does: it compares with each number in turn, which is fine
//! for a process that starts once and has few calls. The filter of git (`git/calls.rs` of `coffer-forge`) is written by
//! ranges too, for the same reason, but it looks at numbers alone, so it needs no [assembler](super::bpf) with labels;
//! the server and the node share no code below the wire.

use std::sync::OnceLock;

use rustix::io::Errno;

use super::bpf::{Assembler, JUMP_ANY_BIT, JUMP_AT_LEAST, JUMP_EQUAL, Label, Range};
use super::calls::{self, Processor, Rule};

const EPERM: u32 = libc::EPERM.cast_unsigned();
const ENOSYS: u32 = libc::ENOSYS.cast_unsigned();
const EAFNOSUPPORT: u32 = libc::EAFNOSUPPORT.cast_unsigned();
const EPROTONOSUPPORT: u32 = libc::EPROTONOSUPPORT.cast_unsigned();
const ENOTTY: u32 = libc::ENOTTY.cast_unsigned();

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
/// The lower half of an argument on a little-endian machine.
const fn offset_argument(index: u32) -> u32 {
    16 + 8 * index
}

/// `CLONE_NEW*` as `clone` takes them; there bit 7 belongs to the exit signal.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();
const NEW_TIME_NAMESPACE: u32 = 0x80;

/// `TIOCSTI` puts characters into a terminal's input; `TIOCLINUX` does so on consoles; `TIOCSETD` puts another driver
/// over a terminal, for which the kernel loads modules.
const FORBIDDEN_IOCTLS: [u32; 3] = [0x5412, 0x541c, 0x5423];
/// ioctls of btrfs, some of which need no privilege: one flushes the whole pool. agentd's own file is on the
/// pool, and can be opened.
const BTRFS_IOCTLS: u32 = 0x9400;
const IOCTL_MAGIC: u32 = 0xff00;
/// Range clones and deduplication have the same magic, and work on any file system that supports them.
const CLONE_IOCTLS: [u32; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

const UNIX: u32 = libc::AF_UNIX.cast_unsigned();
const INTERNET: [u32; 2] = [libc::AF_INET.cast_unsigned(), libc::AF_INET6.cast_unsigned()];
const NETLINK: u32 = libc::AF_NETLINK.cast_unsigned();

/// A raw socket accepts any protocol without loading a module, and needs a capability that no process inside
/// has; the types above it are those of SCTP and DCCP.
const RAW: u32 = libc::SOCK_RAW.cast_unsigned();
const KIND: u32 = 0xf;
/// The default, ICMP, TCP, UDP, ICMPv6. For any other the kernel would try to load a module.
const INTERNET_PROTOCOLS: [u32; 5] = [0, 1, 6, 17, 58];
/// Routes, socket lists (`ss`), device events: what programs without network privileges read.
const NETLINK_PROTOCOLS: [u32; 3] = [0, 4, 15];

/// The kernel's name for the architecture.
const fn architecture(processor: Processor) -> u32 {
    match processor {
        Processor::X86_64 => 0xc000_003e,
        Processor::Aarch64 => 0xc000_00b7,
    }
}

/// All numbers as ranges, each with its rule.
fn ranges(processor: Processor) -> Vec<(u32, u32, Rule)> {
    let mut ranges: Vec<(u32, u32, Rule)> = Vec::new();
    let mut push = |first: u32, last: u32, rule: Rule| match ranges.last_mut() {
        Some(before) if before.2 == rule => before.1 = last,
        _ => ranges.push((first, last, rule)),
    };
    let mut next = 0;
    for (number, rule) in calls::numbers(processor) {
        if number > next {
            push(next, number - 1, Rule::Missing);
        }
        push(number, number, rule);
        next = number + 1;
    }
    // Newer calls, and on x86_64 all of the x32 interface.
    push(next, u32::MAX, Rule::Missing);
    ranges
}

fn program(processor: Processor) -> Vec<libc::sock_filter> {
    let mut code = Assembler::default();
    let (allow, not_permitted, missing) = (code.label(), code.label(), code.label());
    let (no_such_family, no_such_protocol) = (code.label(), code.label());
    let (done, no_such_ioctl) = (code.label(), code.label());
    code.load(OFFSET_ARCHITECTURE);
    code.jump(JUMP_EQUAL, architecture(processor), Label::Next, missing);
    code.load(OFFSET_NUMBER);

    let mut arguments = Vec::new();
    let mut found = Vec::new();
    for (first, last, rule) in ranges(processor) {
        let to = match rule {
            Rule::Allow => allow,
            Rule::NotPermitted => not_permitted,
            Rule::Missing => missing,
            Rule::Pretend => done,
            looks_closer => {
                let label = code.label();
                arguments.push((label, looks_closer));
                label
            }
        };
        found.push(Range { first, last, to });
    }
    code.search(&found);
    for (label, rule) in arguments {
        code.place(label);
        match rule {
            Rule::SameNamespaces | Rule::SameNamespacesAndTime => {
                let time = if rule == Rule::SameNamespaces { 0 } else { NEW_TIME_NAMESPACE };
                code.load(offset_argument(0));
                code.jump(JUMP_ANY_BIT, NEW_NAMESPACES | time, not_permitted, allow);
            }
            Rule::UsualIoctls => {
                code.load(offset_argument(1));
                code.any(&FORBIDDEN_IOCTLS.map(|ioctl| (ioctl, not_permitted)), Label::Next);
                code.any(&CLONE_IOCTLS.map(|ioctl| (ioctl, allow)), Label::Next);
                code.and(IOCTL_MAGIC);
                code.jump(JUMP_EQUAL, BTRFS_IOCTLS, no_such_ioctl, allow);
            }
            Rule::UnixPairs => {
                code.load(offset_argument(0));
                code.jump(JUMP_EQUAL, UNIX, allow, no_such_family);
            }
            Rule::UsualSockets => {
                let (internet, netlink) = (code.label(), code.label());
                code.load(offset_argument(0));
                let [v4, v6] = INTERNET.map(|family| (family, internet));
                code.any(&[(UNIX, allow), (NETLINK, netlink), v4, v6], no_such_family);
                code.place(internet);
                code.load(offset_argument(1));
                code.and(KIND);
                code.jump(JUMP_EQUAL, RAW, allow, Label::Next);
                code.jump(JUMP_AT_LEAST, RAW, no_such_protocol, Label::Next);
                code.load(offset_argument(2));
                code.any(&INTERNET_PROTOCOLS.map(|protocol| (protocol, allow)), no_such_protocol);
                code.place(netlink);
                code.load(offset_argument(2));
                code.any(&NETLINK_PROTOCOLS.map(|protocol| (protocol, allow)), no_such_protocol);
            }
            Rule::Allow | Rule::NotPermitted | Rule::Missing | Rule::Pretend => {
                unreachable!("decided without looking closer")
            }
        }
    }
    for (label, value) in [
        (allow, ALLOW),
        (not_permitted, ERRNO | EPERM),
        (missing, ERRNO | ENOSYS),
        (no_such_family, ERRNO | EAFNOSUPPORT),
        (no_such_protocol, ERRNO | EPROTONOSUPPORT),
        (no_such_ioctl, ERRNO | ENOTTY),
        (done, ERRNO),
    ] {
        code.place(label);
        code.finish_with(value);
    }
    code.assemble()
}

/// The program of this machine, built once: every sandbox's first process is a copy of the spawner.
pub(super) fn prepared() -> &'static [libc::sock_filter] {
    static PROGRAM: OnceLock<Vec<libc::sock_filter>> = OnceLock::new();
    PROGRAM.get_or_init(|| program(Processor::THIS))
}

/// Installs the filter for this process and all its descendants. Needs `CAP_SYS_ADMIN` in the user
/// namespace, because `no_new_privs` stays off: `sudo` must work inside.
pub(super) fn install() -> Result<(), Errno> {
    let program = prepared();
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?,
        // The kernel only reads it.
        filter: program.as_ptr().cast_mut(),
    };
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
    // SAFETY: the program lives through the call and `len` is its length; the kernel checks the rest.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    if result == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::super::bpf::{AND, LOAD_WORD, RETURN};
    use super::*;

    const ARCHITECTURE: u32 = architecture(Processor::THIS);
    const BOTH: [Processor; 2] = [Processor::X86_64, Processor::Aarch64];

    /// Runs this machine's program as the kernel would.
    fn verdict(architecture: u32, number: u32, arguments: [u64; 3]) -> u32 {
        run(prepared(), architecture, number, arguments)
    }

    fn run(program: &[libc::sock_filter], architecture: u32, number: u32, arguments: [u64; 3]) -> u32 {
        let word = |offset: u32| match offset {
            OFFSET_NUMBER => number,
            OFFSET_ARCHITECTURE => architecture,
            16 => (arguments[0] & 0xffff_ffff).try_into().unwrap(),
            24 => (arguments[1] & 0xffff_ffff).try_into().unwrap(),
            32 => (arguments[2] & 0xffff_ffff).try_into().unwrap(),
            other => panic!("reads offset {other}"),
        };
        let (mut at, mut loaded) = (0, 0);
        loop {
            let line = program[at];
            let taken = match line.code {
                LOAD_WORD => {
                    loaded = word(line.k);
                    at += 1;
                    continue;
                }
                AND => {
                    loaded &= line.k;
                    at += 1;
                    continue;
                }
                RETURN => return line.k,
                JUMP_EQUAL => loaded == line.k,
                JUMP_AT_LEAST => loaded >= line.k,
                JUMP_ANY_BIT => loaded & line.k != 0,
                other => panic!("no such instruction {other:x}"),
            };
            at += 1 + usize::from(if taken { line.jt } else { line.jf });
        }
    }

    fn call(number: i64, arguments: [u64; 2]) -> u32 {
        let [first, second] = arguments;
        verdict(ARCHITECTURE, u32::try_from(number).unwrap(), [first, second, 0])
    }

    #[test]
    fn it_stays_short() {
        for processor in BOTH {
            let program = program(processor);
            println!("{processor:?}: {} instructions", program.len());
            assert!(program.len() < 128, "{processor:?}: {} instructions", program.len());
        }
    }

    #[test]
    fn every_number_gets_what_the_table_says() {
        for processor in BOTH {
            let (program, table) = (program(processor), calls::numbers(processor));
            let mut allowed = 0;
            for number in (0..600).chain([0x4000_0000, 0x4000_0001, u32::MAX - 1, u32::MAX]) {
                let expected = match table.iter().find(|&&(listed, _)| listed == number) {
                    Some((_, Rule::Allow)) => ALLOW,
                    Some((_, Rule::NotPermitted)) => ERRNO | EPERM,
                    Some((_, Rule::Pretend)) => ERRNO,
                    // These rules check arguments, and zeros are allowed for some.
                    Some((_, Rule::UsualSockets | Rule::UnixPairs)) => ERRNO | EAFNOSUPPORT,
                    Some((_, Rule::SameNamespaces | Rule::SameNamespacesAndTime | Rule::UsualIoctls)) => {
                        ALLOW
                    }
                    Some((_, Rule::Missing)) | None => ERRNO | ENOSYS,
                };
                allowed += u32::from(expected == ALLOW);
                let got = run(&program, architecture(processor), number, [0; 3]);
                assert_eq!(got, expected, "call {number} on {processor:?}");
            }
            assert!(allowed > 250, "{allowed} calls allowed on {processor:?}");
        }
    }

    #[test]
    fn namespaces_are_refused_and_threads_allowed() {
        let thread = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_FILES).cast_unsigned();
        assert_eq!(call(libc::SYS_clone, [u64::from(thread), 0]), ALLOW);
        assert_eq!(call(libc::SYS_clone, [libc::SIGCHLD as u64, 0]), ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            let flag = u64::from(flag.cast_unsigned());
            assert_eq!(call(libc::SYS_clone, [flag, 0]), ERRNO | EPERM);
            assert_eq!(call(libc::SYS_unshare, [flag, 0]), ERRNO | EPERM);
        }
        assert_eq!(call(libc::SYS_unshare, [0x80, 0]), ERRNO | EPERM);
        assert_eq!(call(libc::SYS_unshare, [libc::CLONE_FILES as u64, 0]), ALLOW);
        assert_eq!(call(libc::SYS_clone3, [0, 0]), ERRNO | ENOSYS);
    }

    #[test]
    fn ioctls_are_looked_at() {
        assert_eq!(call(libc::SYS_ioctl, [0, 0x5412]), ERRNO | EPERM);
        assert_eq!(call(libc::SYS_ioctl, [0, 0xffff_ffff_0000_541c]), ERRNO | EPERM);
        assert_eq!(call(libc::SYS_ioctl, [0, 0x5423]), ERRNO | EPERM);
        assert_eq!(call(libc::SYS_ioctl, [0, 0x5413]), ALLOW);
        assert_eq!(call(libc::SYS_ioctl, [0, 0x5424]), ALLOW);
        // The pool's commit, a new subvolume, a search of its trees; and a clone, which is a copy.
        for btrfs in [0x9408, 0x5000_940e, 0xd000_9411] {
            assert_eq!(call(libc::SYS_ioctl, [0, btrfs]), ERRNO | ENOTTY);
        }
        assert_eq!(call(libc::SYS_ioctl, [0, 0x4004_9409]), ALLOW);
    }

    #[test]
    fn only_usual_sockets_are_made() {
        let socket = |family: i32, kind: i32, protocol: u64| {
            let number = u32::try_from(libc::SYS_socket).unwrap();
            verdict(ARCHITECTURE, number, [family as u64, kind as u64, protocol])
        };
        for family in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0), ALLOW);
            assert_eq!(socket(family, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK, 17), ALLOW);
            assert_eq!(socket(family, libc::SOCK_RAW, 132), ALLOW);
            for (kind, protocol) in [
                (libc::SOCK_STREAM, 132),
                (libc::SOCK_STREAM, 262),
                (libc::SOCK_SEQPACKET, 132),
                (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0),
                (6, 33),
                (libc::SOCK_DGRAM, 136),
            ] {
                assert_eq!(socket(family, kind, protocol), ERRNO | EPROTONOSUPPORT, "{kind} {protocol}");
            }
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, 0), ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, 12), ERRNO | EPROTONOSUPPORT);
        for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_TIPC, 0] {
            assert_eq!(socket(family, libc::SOCK_STREAM, 0), ERRNO | EAFNOSUPPORT);
            assert_eq!(call(libc::SYS_socketpair, [family as u64, 0]), ERRNO | EAFNOSUPPORT);
        }
        assert_eq!(call(libc::SYS_socketpair, [libc::AF_UNIX as u64, 0]), ALLOW);
    }

    #[test]
    fn foreign_interfaces_are_refused() {
        assert_eq!(verdict(0x4000_0003, 1, [0; 3]), ERRNO | ENOSYS);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(call(0x4000_0000 | 1, [0, 0]), ERRNO | ENOSYS);
    }
}
