"""System calls that reach the machine itself, or kernel code that a sandbox has no need of.

Each attack makes the calls as they are, with arguments that would do harm if they were let through as far as that
can be: what is asserted is the error that our walls give, not one for a bad argument.
"""

import platform
import time

import pytest

CAP_SYS_RESOURCE = 24


def host_has(capability: int) -> bool:
    with open("/proc/self/status") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff"))
    return bool(int(effective, 16) >> capability & 1)


def refused(found: dict, *but: str, errors=("EPERM",)):
    """All of what was tried ended in one of these errors."""
    let_through = {name: result for name, result in found.items() if result not in errors and name not in but}
    assert found and not let_through, let_through


def test_new_namespaces(attacker):
    """A new user namespace would bring every capability back."""
    found = attacker.attack(
        """
        flags = dict(user=0x10000000, mount=0x20000, pid=0x20000000, net=0x40000000, ipc=0x8000000, uts=0x4000000,
                     cgroup=0x2000000, time=0x80)
        found = {name: call(SYS.unshare, flag) for name, flag in flags.items()}
        found |= {f"clone {name}": call(SYS.clone, flag | signal.SIGCHLD, 0, 0, 0, 0)
                  for name, flag in flags.items() if name != "time"}
        report(clone3=call(SYS.clone3, 0, 0), **found)
        """
    )
    assert found.pop("clone3") == "ENOSYS"  # its flags cannot be looked at, so programs must use clone
    refused(found)


def test_entering_namespaces(attacker):
    """By a process's files, by a pidfd: also of one that root inside may trace, agentd."""
    found = attacker.attack(
        """
        found = {}
        for name in os.listdir("/proc/self/ns"):
            for pid in "self", "1":
                opened = attempt(os.open, f"/proc/{pid}/ns/{name}", os.O_RDONLY)
                found[f"{pid} {name}"] = call(SYS.setns, opened, 0) if isinstance(opened, int) else opened
        pidfd = call(SYS.pidfd_open, 1, 0)
        report(pidfd=call(SYS.setns, pidfd, 0x20000), **found)
        """
    )
    refused(found, errors=("EPERM", "EACCES"))
    assert found["pidfd"] == found["self mnt"] == "EPERM"


def test_mounts(attacker):
    """Old and new ways: mount, remount, unmount, bind, move, overlay, pivot."""
    found = attacker.attack(
        """
        def mount(source, target, kind, flags, data=b""):
            return call(SYS.mount, source, target, kind, flags, data)
        os.makedirs("/tmp/m", exist_ok=True)
        report(
            tmpfs=mount(b"t", b"/tmp/m", b"tmpfs", 0),
            proc=mount(b"p", b"/tmp/m", b"proc", 0),
            sysfs=mount(b"s", b"/tmp/m", b"sysfs", 0),
            cgroup=mount(b"c", b"/tmp/m", b"cgroup", 0, b"memory"),
            cgroup2=mount(b"c", b"/tmp/m", b"cgroup2", 0),
            debugfs=mount(b"d", b"/tmp/m", b"debugfs", 0),
            overlay=mount(b"o", b"/tmp/m", b"overlay", 0, b"lowerdir=/etc,upperdir=/tmp,workdir=/tmp/m"),
            fuse=mount(b"f", b"/tmp/m", b"fuse", 0, b"fd=3,rootmode=40000,user_id=0,group_id=0"),
            bind=mount(b"/proc/sys", b"/tmp/m", b"", 0x1000),
            move=mount(b"/run", b"/tmp/m", b"", 0x2000),
            device=mount(b"/dev/vda", b"/tmp/m", b"ext4", 0),
            remount_root=mount(b"", b"/", b"", 0x20),
            remount_proc_sys=mount(b"", b"/proc/sys", b"", 0x20 | 0x1000),
            shared=mount(b"", b"/", b"", 0x100000),
            unmask=call(SYS.umount2, b"/proc/kcore", 0),
            unmask_lazily=call(SYS.umount2, b"/proc/sys", 2),
            pivot=call(SYS.pivot_root, b"/tmp", b"/tmp/m"),
            open_tree=call(SYS.open_tree, -100, b"/", 1),
            open_tree_attr=call(467, -100, b"/", 1, 0, 0),
            move_mount=call(SYS.move_mount, -100, b"/run", -100, b"/tmp/m", 0),
            fsopen=call(SYS.fsopen, b"tmpfs", 0),
            fspick=call(SYS.fspick, -100, b"/", 0),
            fsconfig=call(SYS.fsconfig, 0, 6, 0, 0, 0),
            fsmount=call(SYS.fsmount, 0, 0, 0),
            mount_setattr=call(SYS.mount_setattr, -100, b"/proc/sys", 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32),
        )
        """
    )
    refused(found)


@pytest.mark.parametrize("user", ["root"])  # where it should work, root should be able to
def test_file_handles(attacker):
    """A handle names a file of the whole file system, past every mount point and overlay."""
    found = attacker.attack(
        """
        class Handle(ctypes.Structure):
            _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("bytes", ctypes.c_ubyte * 128)]
        handle, mount = Handle(128), ctypes.c_int()
        named = call(SYS.name_to_handle_at, -100, b"/run/coffer/agentd", ctypes.byref(handle), ctypes.byref(mount), 0)
        opened = call(SYS.open_by_handle_at, os.open("/run/coffer/agentd", os.O_RDONLY), ctypes.byref(handle), 0)
        report(named=named, opened=opened)
        """
    )
    assert found == {"named": 0, "opened": "EPERM"}


def test_large_subsystems(attacker):
    """bpf, io_uring, userfaultfd, perf: kernel code with a history."""
    found = attacker.attack(
        """
        attr = ctypes.create_string_buffer(128)
        struct.pack_into("IIII", attr, 0, 1, 4, 4, 1)  # a hash map of one entry
        perf = ctypes.create_string_buffer(128)
        struct.pack_into("IIQ", perf, 0, 1, 128, 0)  # the software clock
        report(
            bpf_map=call(SYS.bpf, 0, attr, 128),
            bpf_load=call(SYS.bpf, 5, ctypes.create_string_buffer(128), 128),
            userfaultfd=call(SYS.userfaultfd, 1),  # of user mode only, which needs no right
            perf=call(SYS.perf_event_open, perf, 0, -1, -1, 0),
            perf_host=call(SYS.perf_event_open, perf, -1, 0, -1, 0),
            uring_setup=call(SYS.io_uring_setup, 8, ctypes.create_string_buffer(256)),
            uring_enter=call(SYS.io_uring_enter, 0, 1, 0, 0, 0, 0),
            uring_register=call(SYS.io_uring_register, 0, 0, 0, 0),
            fanotify=call(SYS.fanotify_init, 0, 0),
            userfaultfd_device=attempt(os.open, "/dev/userfaultfd", os.O_RDWR),
        )
        """
    )
    for name in "uring_setup", "uring_enter", "uring_register":
        assert found.pop(name) == "ENOSYS"  # programs take that for an old kernel
    assert found.pop("userfaultfd_device") == "ENOENT"
    assert found.pop("fanotify") in ("EPERM", "ENOSYS")
    refused(found)


def test_keyrings(attackers, user):
    """Keys go by user id in part, so a keyring would be a way from one sandbox to another, and to the host."""
    for one in attackers(user), attackers(user):
        found = one.attack(
            """
            report(
                add=call(SYS.add_key, b"user", b"coffer-test", b"secret", 6, -5),
                session=call(SYS.keyctl, 0, -3, 1),
                user=call(SYS.keyctl, 0, -4, 1),
                join=call(SYS.keyctl, 1, 0),
                request=call(SYS.request_key, b"user", b"coffer-test", 0, 0),
                listing=attempt(read, "/proc/keys"),
            )
            """
        )
        assert found.pop("listing") in ("", "ENOENT")
        refused(found)


def test_the_machine_itself(attacker):
    """Modules, another kernel, reboot, swap, accounting, quotas, the kernel's log, I/O ports."""
    found = attacker.attack(
        """
        calls = dict(
            init_module=(SYS.init_module, b"", 0, b""),
            finit_module=(SYS.finit_module, 0, b"", 0),
            delete_module=(SYS.delete_module, b"loop", 0x800),
            kexec=(SYS.kexec_load, 0, 0, 0, 0),
            kexec_file=(SYS.kexec_file_load, 0, 0, 0, b"", 0),
            reboot=(SYS.reboot, 0xfee1dead, 672274793, 0x89abcdef, 0),  # only sets what Ctrl-Alt-Del does
            swapon=(SYS.swapon, b"/tmp/none", 0),
            swapoff=(SYS.swapoff, b"/tmp/none"),
            acct=(SYS.acct, b"/tmp/none"),
            quotactl=(SYS.quotactl, 0x80000100, b"/dev/vda", 0, 0),
            quotactl_fd=(SYS.quotactl_fd, 0, 0x80000100, 0, 0),
            syslog_read=(SYS.syslog, 3, ctypes.create_string_buffer(64), 64),
            syslog_clear=(SYS.syslog, 5, 0, 0),
        )
        if os.uname().machine == "x86_64":
            calls |= dict(iopl=(SYS.iopl, 3), ioperm=(SYS.ioperm, 0x80, 1, 1))
        report(**{name: call(*arguments) for name, arguments in calls.items()})
        """
    )
    refused(found)


def test_clocks(attacker, bystanders):
    """The host's time is everybody's. The attack asks for the year 2001."""
    found = attacker.attack(
        """
        then = (ctypes.c_long * 2)(1_000_000_000, 0)
        report(
            clock_settime=call(SYS.clock_settime, 0, then),
            settimeofday=call(SYS.settimeofday, then, 0),
            adjtimex=call(SYS.adjtimex, (ctypes.c_long * 26)(0x4000, 0, 0, 0, 0, 0, 0, 0, 0, 9000)),  # ADJ_TICK
            rtc=attempt(os.open, "/dev/rtc0", os.O_RDWR),
        )
        """
    )
    assert found.pop("rtc") == "ENOENT"
    refused(found)
    assert time.time() > 1_700_000_000


@pytest.mark.skipif(platform.machine() != "x86_64", reason="SKIPPED: only x86 has these other ways into the kernel")
def test_other_system_call_tables(attacker):
    """Numbers of 32-bit and x32 programs mean other calls; a filter that knows one table only would be passed."""
    program = attacker.compile(
        """
        #include <errno.h>
        #include <signal.h>
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static long old(long number, long a, long b) {
            long result;
            __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b) : "memory", "r8", "r9", "r10", "r11");
            return result;
        }
        int main(void) {
            int status;
            /* A kernel without 32-bit programs ends the process at the instruction itself. */
            if (fork() == 0) _exit((int)-old(310, 0x10000000, 0));  /* unshare, a new user namespace */
            wait(&status);
            int refused = WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) == ENOSYS;
            long x32 = syscall(0x40000000 | 272, 0x10000000);  /* the same */
            printf("i386 %d x32 %d\\n", refused, x32 == -1 && errno == ENOSYS);
            return 0;
        }
        """
    )
    assert attacker.shell(program).stdout == "i386 1 x32 1\n"


def test_calls_that_nobody_listed(attacker):
    """Old calls that nobody uses, and those of kernels newer than the filter."""
    found = attacker.attack(
        """
        numbers = [*range(459, 462), 468, 469, 470, 471, 500, 1000, 0x3fffffff]
        if os.uname().machine == "x86_64":
            numbers += [134, 136, 139, 156, 180, 212, 236, 400]  # uselib, ustat, sysfs, ...
        report(**{str(number): call(number, 0, 0, 0, 0, 0, 0) for number in numbers})
        """
    )
    refused(found, errors=("ENOSYS",))


def test_unusual_sockets(attacker):
    """Families and protocols that nobody needs: kernel code that would be loaded for the asking; vsock leaves the
    network namespace."""
    found = attacker.attack(
        """
        def make(*which):
            return attempt(lambda: socket.socket(*which).close())
        def pair(family):
            return attempt(lambda: [end.close() for end in socket.socketpair(family, socket.SOCK_DGRAM)] and None)
        families = dict(ax25=3, ipx=4, x25=9, rds=21, llc=26, can=29, tipc=30, bluetooth=31, alg=38, nfc=39, vsock=40,
                        kcm=41, qipcrtr=42, smc=43, xdp=44, mctp=45)
        odd = dict(sctp=(1, 132), sctp_packets=(5, 132), dccp=(6, 33), udplite=(2, 136), l2tp=(2, 115), mptcp=(1, 262))
        netlink = dict(netfilter=12, xfrm=6, generic=16, crypto=21, rdma=20, iscsi=8, unknown=31)
        report(
            families={name: make(number, socket.SOCK_DGRAM) for name, number in families.items()},
            streams={name: make(number, socket.SOCK_STREAM) for name, number in families.items()},
            pairs={name: pair(number) for name, number in families.items()},
            protocols={f"{name} {family}": make(family, *which) for name, which in odd.items() for family in (2, 10)},
            netlink={name: make(16, 3, number) for name, number in netlink.items()},
            usual={"tcp": make(2, 1, 6), "udp": make(10, 2, 17), "unix": make(1, 1), "unix pair": pair(1),
                   "routes": make(16, 3, 0)},
        )
        """
    )
    refused(found["families"], errors=("EAFNOSUPPORT",))
    refused(found["streams"], errors=("EAFNOSUPPORT",))
    refused(found["pairs"], errors=("EAFNOSUPPORT",))
    refused(found["protocols"], errors=("EPROTONOSUPPORT",))
    refused(found["netlink"], errors=("EPROTONOSUPPORT",))
    assert set(found["usual"].values()) == {"done"}, found["usual"]


def test_personality(attacker, bystanders):
    """Address randomisation can be turned off, for a process and its children, and for nobody else."""
    found = attacker.attack(
        """
        was = call(SYS.personality, 0xffffffff)
        call(SYS.personality, was | 0x0040000 | 0x0400000)  # ADDR_NO_RANDOMIZE, READ_IMPLIES_EXEC
        seen = {subprocess.run(["sed", "-n", "1p", "/proc/self/maps"], capture_output=True, text=True).stdout
                for _ in range(4)}
        report(was=was, layouts=len(seen))
        """
    )
    assert found == {"was": 0, "layouts": 1}
    for traces in attacker.traces, bystanders.traces:
        with open(f"/proc/{traces.first}/personality") as file:
            assert int(file.read(), 16) == 0


def test_scheduling_and_limits(attacker):
    """Real time, negative niceness, deadlines, I/O classes, a lower chance to be killed, limits that were lowered."""
    found = attacker.attack(
        """
        def raise_limit(which):
            try:
                resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                return "done"
            except (ValueError, OSError):
                return "EPERM"
        deadline = struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10_000_000, 30_000_000, 30_000_000)
        report(
            fifo=attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(50)),
            round_robin=attempt(os.sched_setscheduler, 0, os.SCHED_RR, os.sched_param(1)),
            deadline=call(SYS.sched_setattr, 0, deadline, 0),
            nice=attempt(os.setpriority, os.PRIO_PROCESS, 0, -20),
            nice_of_agentd=attempt(os.setpriority, os.PRIO_PROCESS, 1, -20),
            io_class=call(SYS.ioprio_set, 1, 0, (1 << 13) | 0),
            files=raise_limit(resource.RLIMIT_NOFILE),
            core=raise_limit(resource.RLIMIT_CORE),
            locked=raise_limit(resource.RLIMIT_MEMLOCK),
            queues=raise_limit(resource.RLIMIT_MSGQUEUE),
            oom=attempt(write, "/proc/self/oom_score_adj", "-1000"),
            oom_as_the_host=attempt(write, "/proc/self/oom_score_adj", "0"),
            autogroup=attempt(write, "/proc/self/autogroup", "-20"),
        )
        """
    )
    with open(f"/proc/{attacker.traces.first}/oom_score_adj") as file:
        assert int(file.read()) == 500  # sandboxes go before the host's own processes do
    if not host_has(CAP_SYS_RESOURCE):  # then its root cannot make that the least there is, and limits bear it alone
        found.pop("oom_as_the_host")
    refused(found, errors=("EPERM", "EACCES"))
