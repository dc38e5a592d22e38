//! The system call filter of every sandbox: a deny list as compact BPF.
//!
//! Root inside a sandbox is the normal attacker. Capabilities and namespaces already refuse most of
//! what is listed; the filter takes away the kernel code behind it, and the ways to new namespaces
//! in which capabilities would come back. Each instruction costs about two microseconds at start,
//! so the numbers are searched as a tree and the whole stays near a hundred instructions.

use rustix::io::Errno;

const EPERM: u32 = libc::EPERM.cast_unsigned();
const ENOSYS: u32 = libc::ENOSYS.cast_unsigned();
const EAFNOSUPPORT: u32 = libc::EAFNOSUPPORT.cast_unsigned();
const EPROTONOSUPPORT: u32 = libc::EPROTONOSUPPORT.cast_unsigned();
const ENOTTY: u32 = libc::ENOTTY.cast_unsigned();

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// `open_tree_attr`, newer than our libc.
const SYS_OPEN_TREE_ATTR: i64 = 467;

/// `CLONE_NEW*` as `clone` knows them; there bit 7 belongs to the exit signal.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();
const NEW_TIME_NAMESPACE: u32 = 0x80;

/// Puts characters into a terminal's input, or does as a console likes.
const FORBIDDEN_IOCTLS: [u32; 2] = [0x5412, 0x541c];
/// What btrfs answers to, also from those without rights: one writes the whole pool out. agentd's own file lies
/// there, and can be opened.
const BTRFS_IOCTLS: u32 = 0x9400;
const IOCTL_MAGIC: u32 = 0xff00;
/// Clones and deduplication of ranges bear the same mark, and work on any file system that can.
const CLONE_IOCTLS: [u32; 3] = [0x4004_9409, 0x4020_940d, 0xc018_9436];

const UNIX: u32 = libc::AF_UNIX.cast_unsigned();
const INTERNET: [u32; 2] = [libc::AF_INET.cast_unsigned(), libc::AF_INET6.cast_unsigned()];
const NETLINK: u32 = libc::AF_NETLINK.cast_unsigned();

/// A raw socket knows any protocol without asking for a module, and needs a capability that nobody inside has;
/// kinds above it are those of SCTP and DCCP.
const RAW: u32 = libc::SOCK_RAW.cast_unsigned();
const KIND: u32 = 0xf;
/// The default, ICMP, TCP, UDP, ICMPv6. For any other the kernel would look for a module to load.
const INTERNET_PROTOCOLS: [u32; 5] = [0, 1, 6, 17, 58];
/// Routes, socket lists (`ss`), device events: what programs without rights over the network read.
const NETLINK_PROTOCOLS: [u32; 3] = [0, 4, 15];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Refuse(u32),
    /// Answers that it was done.
    Pretend,
    /// Refuses when the first argument has one of these bits.
    RefuseFlags(u32),
    RefuseIoctls,
    /// Unix, IPv4, IPv6, netlink, and of these only usual protocols. Others are kernel code that sandboxes
    /// do not need; vsock would even reach past the network namespace, and packet sockets have rings of any
    /// size that no cgroup pays for.
    OnlyUsualSockets,
    OnlyUnixPairs,
}

fn rules() -> Vec<(u32, Rule)> {
    use Rule::{OnlyUnixPairs, OnlyUsualSockets, Pretend, Refuse, RefuseFlags, RefuseIoctls};
    let mut rules = vec![
        // New namespaces. The flags of clone3 are behind a pointer, so programs must fall back to clone.
        (libc::SYS_clone, RefuseFlags(NEW_NAMESPACES)),
        (libc::SYS_unshare, RefuseFlags(NEW_NAMESPACES | NEW_TIME_NAMESPACE)),
        (libc::SYS_setns, Refuse(EPERM)),
        (libc::SYS_clone3, Refuse(ENOSYS)),
        // Mounts.
        (libc::SYS_mount, Refuse(EPERM)),
        (libc::SYS_umount2, Refuse(EPERM)),
        (libc::SYS_pivot_root, Refuse(EPERM)),
        (libc::SYS_open_tree, Refuse(EPERM)),
        (libc::SYS_move_mount, Refuse(EPERM)),
        (libc::SYS_fsopen, Refuse(EPERM)),
        (libc::SYS_fsconfig, Refuse(EPERM)),
        (libc::SYS_fsmount, Refuse(EPERM)),
        (libc::SYS_fspick, Refuse(EPERM)),
        (libc::SYS_mount_setattr, Refuse(EPERM)),
        (SYS_OPEN_TREE_ATTR, Refuse(EPERM)),
        (libc::SYS_open_by_handle_at, Refuse(EPERM)),
        (libc::SYS_quotactl, Refuse(EPERM)),
        (libc::SYS_quotactl_fd, Refuse(EPERM)),
        // Large kernel subsystems with a history.
        (libc::SYS_bpf, Refuse(EPERM)),
        (libc::SYS_io_uring_setup, Refuse(ENOSYS)),
        (libc::SYS_io_uring_enter, Refuse(ENOSYS)),
        (libc::SYS_io_uring_register, Refuse(ENOSYS)),
        (libc::SYS_userfaultfd, Refuse(EPERM)),
        (libc::SYS_perf_event_open, Refuse(EPERM)),
        (libc::SYS_add_key, Refuse(EPERM)),
        (libc::SYS_request_key, Refuse(EPERM)),
        (libc::SYS_keyctl, Refuse(EPERM)),
        // The machine itself.
        (libc::SYS_syslog, Refuse(EPERM)),
        (libc::SYS_reboot, Refuse(EPERM)),
        (libc::SYS_kexec_load, Refuse(EPERM)),
        (libc::SYS_kexec_file_load, Refuse(EPERM)),
        (libc::SYS_init_module, Refuse(EPERM)),
        (libc::SYS_finit_module, Refuse(EPERM)),
        (libc::SYS_delete_module, Refuse(EPERM)),
        (libc::SYS_swapon, Refuse(EPERM)),
        (libc::SYS_swapoff, Refuse(EPERM)),
        (libc::SYS_acct, Refuse(EPERM)),
        (libc::SYS_lookup_dcookie, Refuse(EPERM)),
        (libc::SYS_nfsservctl, Refuse(EPERM)),
        // Both reach past the sandbox: the one writes out every disk of the host, the other the pool. The
        // sandbox's own root is volatile, where neither does anything.
        (libc::SYS_sync, Pretend),
        (libc::SYS_syncfs, Pretend),
        (libc::SYS_ioctl, RefuseIoctls),
        (libc::SYS_socket, OnlyUsualSockets),
        (libc::SYS_socketpair, OnlyUnixPairs),
    ];
    #[cfg(target_arch = "x86_64")]
    rules.extend([
        (libc::SYS_iopl, Refuse(EPERM)),
        (libc::SYS_ioperm, Refuse(EPERM)),
        (libc::SYS_uselib, Refuse(EPERM)),
    ]);
    rules.sort_unstable_by_key(|&(number, _)| number);
    rules
        .into_iter()
        .map(|(number, rule)| (u32::try_from(number).expect("system call numbers are small"), rule))
        .collect()
}

/// A jump's destination, resolved when the program is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    /// The instruction that follows.
    Next,
    At(usize),
}

#[derive(Debug, Clone, Copy)]
enum Line {
    /// Loads the word at this offset of `seccomp_data`.
    Load(u32),
    Jump {
        test: u16,
        value: u32,
        yes: Label,
        no: Label,
    },
    /// Keeps these bits of what is loaded.
    And(u32),
    Return(u32),
}

const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const JUMP_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
/// The lower half of an argument on a little-endian machine.
const fn offset_argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Lines with labels that are placed later: jumps go forward only, as BPF wants.
#[derive(Default)]
struct Assembler {
    lines: Vec<Line>,
    places: Vec<Option<usize>>,
}

impl Assembler {
    fn label(&mut self) -> Label {
        self.places.push(None);
        Label::At(self.places.len() - 1)
    }

    fn place(&mut self, label: Label) {
        if let Label::At(index) = label {
            self.places[index] = Some(self.lines.len());
        }
    }

    fn jump(&mut self, test: u16, value: u32, yes: Label, no: Label) {
        self.lines.push(Line::Jump { test, value, yes, no });
    }

    /// Goes where the loaded value says, to `otherwise` if it is none of these.
    fn any(&mut self, cases: &[(u32, Label)], otherwise: Label) {
        let (last, init) = cases.split_last().expect("there is something to find");
        for &(value, found) in init {
            self.jump(JUMP_EQUAL, value, found, Label::Next);
        }
        self.jump(JUMP_EQUAL, last.0, last.1, otherwise);
    }

    /// Searches `rules` for the loaded number; ends at `otherwise`.
    fn search(&mut self, rules: &[(u32, Label)], otherwise: Label) {
        if rules.len() <= 5 {
            return self.any(rules, otherwise);
        }
        let (low, high) = rules.split_at(rules.len() / 2);
        let upper = self.label();
        self.jump(JUMP_AT_LEAST, high[0].0, upper, Label::Next);
        self.search(low, otherwise);
        self.place(upper);
        self.search(high, otherwise);
    }

    fn finish(self) -> Vec<libc::sock_filter> {
        let distance = |from: usize, label: Label| match label {
            Label::Next => 0,
            Label::At(index) => {
                let to = self.places[index].expect("every label is placed");
                u8::try_from(to - from - 1).expect("the program is short")
            }
        };
        let assemble = |(at, line): (usize, &Line)| match *line {
            Line::Load(offset) => libc::sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: offset },
            Line::And(bits) => libc::sock_filter { code: AND, jt: 0, jf: 0, k: bits },
            Line::Return(value) => libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: value },
            Line::Jump { test, value, yes, no } => {
                libc::sock_filter { code: test, jt: distance(at, yes), jf: distance(at, no), k: value }
            }
        };
        self.lines.iter().enumerate().map(assemble).collect()
    }
}

fn program() -> Vec<libc::sock_filter> {
    let mut code = Assembler::default();
    let (allow, not_permitted, no_such_call) = (code.label(), code.label(), code.label());
    let (no_such_family, no_such_protocol) = (code.label(), code.label());
    let (done, no_such_ioctl) = (code.label(), code.label());
    code.lines.push(Line::Load(OFFSET_ARCHITECTURE));
    code.jump(JUMP_EQUAL, ARCHITECTURE, Label::Next, no_such_call);
    code.lines.push(Line::Load(OFFSET_NUMBER));
    // The x32 interface has numbers of its own for everything above; nobody uses it.
    #[cfg(target_arch = "x86_64")]
    code.jump(JUMP_AT_LEAST, 0x4000_0000, no_such_call, Label::Next);

    let mut arguments = Vec::new();
    let mut targets = Vec::new();
    for (number, rule) in rules() {
        let target = match rule {
            Rule::Refuse(ENOSYS) => no_such_call,
            Rule::Refuse(_) => not_permitted,
            Rule::Pretend => done,
            looks_closer => {
                let label = code.label();
                arguments.push((label, looks_closer));
                label
            }
        };
        targets.push((number, target));
    }
    code.search(&targets, allow);
    for (label, rule) in arguments {
        code.place(label);
        match rule {
            Rule::RefuseFlags(flags) => {
                code.lines.push(Line::Load(offset_argument(0)));
                code.jump(JUMP_ANY_BIT, flags, not_permitted, allow);
            }
            Rule::RefuseIoctls => {
                code.lines.push(Line::Load(offset_argument(1)));
                code.any(&FORBIDDEN_IOCTLS.map(|ioctl| (ioctl, not_permitted)), Label::Next);
                code.any(&CLONE_IOCTLS.map(|ioctl| (ioctl, allow)), Label::Next);
                code.lines.push(Line::And(IOCTL_MAGIC));
                code.jump(JUMP_EQUAL, BTRFS_IOCTLS, no_such_ioctl, allow);
            }
            Rule::OnlyUnixPairs => {
                code.lines.push(Line::Load(offset_argument(0)));
                code.jump(JUMP_EQUAL, UNIX, allow, no_such_family);
            }
            Rule::OnlyUsualSockets => {
                let (internet, netlink) = (code.label(), code.label());
                code.lines.push(Line::Load(offset_argument(0)));
                let [v4, v6] = INTERNET.map(|family| (family, internet));
                code.any(&[(UNIX, allow), (NETLINK, netlink), v4, v6], no_such_family);
                code.place(internet);
                code.lines.push(Line::Load(offset_argument(1)));
                code.lines.push(Line::And(KIND));
                code.jump(JUMP_EQUAL, RAW, allow, Label::Next);
                code.jump(JUMP_AT_LEAST, RAW, no_such_protocol, Label::Next);
                code.lines.push(Line::Load(offset_argument(2)));
                code.any(&INTERNET_PROTOCOLS.map(|protocol| (protocol, allow)), no_such_protocol);
                code.place(netlink);
                code.lines.push(Line::Load(offset_argument(2)));
                code.any(&NETLINK_PROTOCOLS.map(|protocol| (protocol, allow)), no_such_protocol);
            }
            Rule::Refuse(_) | Rule::Pretend => unreachable!("decided without looking closer"),
        }
    }
    for (label, value) in [
        (allow, ALLOW),
        (not_permitted, ERRNO | EPERM),
        (no_such_call, ERRNO | ENOSYS),
        (no_such_family, ERRNO | EAFNOSUPPORT),
        (no_such_protocol, ERRNO | EPROTONOSUPPORT),
        (no_such_ioctl, ERRNO | ENOTTY),
        (done, ERRNO),
    ] {
        code.place(label);
        code.lines.push(Line::Return(value));
    }
    code.finish()
}

/// Installs the filter for this process and all that come of it. Needs `CAP_SYS_ADMIN` in the user
/// namespace, because `no_new_privs` stays off: `sudo` must work inside.
pub(super) fn install() -> Result<(), Errno> {
    let mut program = program();
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?,
        filter: program.as_mut_ptr(),
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
    use super::*;

    /// Runs the program as the kernel would.
    fn verdict(architecture: u32, number: u32, arguments: [u64; 3]) -> u32 {
        let program = program();
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
        assert!(program().len() < 128, "{} instructions", program().len());
    }

    #[test]
    fn every_listed_call_is_refused_and_every_other_allowed() {
        let rules = rules();
        for number in 0..600 {
            let expected = match rules.iter().find(|&&(listed, _)| listed == number) {
                Some((_, Rule::Refuse(errno))) => ERRNO | errno,
                Some((_, Rule::Pretend)) => ERRNO,
                Some(_) => continue,
                None => ALLOW,
            };
            assert_eq!(verdict(ARCHITECTURE, number, [0; 3]), expected, "call {number}");
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
        assert_eq!(call(libc::SYS_ioctl, [0, 0x5413]), ALLOW);
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
