"""`/proc`, `/sys`, `/dev` and control groups: what shows the host, and what would change it."""

import os
import pathlib

import pytest

from traces import CGROUPS, DATA_DIR

NO = ("ENOENT", "EACCES", "EPERM", "EROFS")


def test_switches_in_proc(attacker):
    """Whatever a write could change is the host's, or a namespace's of which the sandbox must not have the rule."""
    before = {
        path: pathlib.Path(path).read_text() for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness")
    }
    found = attacker.attack(
        """
        paths = ["sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/hostname", "sys/kernel/pid_max",
                 "sys/kernel/panic", "sys/kernel/sysrq", "sys/kernel/shmmax", "sys/kernel/randomize_va_space",
                 "sys/kernel/ns_last_pid", "sys/vm/swappiness", "sys/vm/drop_caches", "sys/vm/overcommit_memory",
                 "sys/fs/file-max", "sys/fs/protected_symlinks", "sys/fs/binfmt_misc/register",
                 "sys/net/ipv4/ip_forward", "sys/user/max_user_namespaces", "sysrq-trigger", "irq/default_smp_affinity",
                 "mtrr", "scsi/scsi", "bus/pci/devices", "fs/jbd2", "acpi/wakeup", "kmsg"]
        report(**{path: attempt(write, "/proc/" + path, "1") for path in paths if path != "kmsg"})
        """
    )
    assert len(found) == 24 and set(found.values()) <= {*NO, "EISDIR", "EINVAL"}, found
    assert found["sys/kernel/core_pattern"] in NO and found["sys/vm/drop_caches"] in NO
    assert before == {path: pathlib.Path(path).read_text() for path in before}


def test_files_of_the_node_cannot_be_held(attacker, bystanders):
    """A lease on a file that the node writes would keep it waiting, and with it the figures of all sandboxes."""
    found = attacker.attack(
        """
        paths = ["/proc/meminfo", "/proc/cpuinfo", "/proc/sys/kernel/random/boot_id", "/run/coffer/agentd",
                 "/sys/devices/system/cpu/online"]
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        def lease(path, kind):
            return attempt(lambda: fcntl.fcntl(os.open(path, os.O_RDONLY), 1024, kind) and None)
        def lock(path):
            return attempt(lambda: fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB))
        report(
            leases={f"{path} {kind}": lease(path, kind) for path in paths for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK)},
            locks={path: lock(path) for path in paths},  # which the node does not heed
            modes={path: attempt(os.chmod, path, 0o666) for path in paths},
        )
        """
    )
    assert set(found["leases"].values()) <= {"EACCES", "EINVAL"} and "done" not in found["leases"].values(), found
    assert set(found["modes"].values()) <= {"EPERM", "EROFS"}, found
    bystanders.answer()


def test_switches_in_sys(attacker):
    found = attacker.attack(
        """
        paths = ["kernel/mm/transparent_hugepage/enabled", "kernel/uevent_helper", "kernel/mm/ksm/run", "power/state",
                 "kernel/profiling", "module/loop/parameters/max_loop", "bus/pci/rescan", "class/net/lo/mtu",
                 "devices/system/cpu/cpu0/online", "fs/cgroup/release_agent", "kernel/debug/tracing/trace",
                 "kernel/security/lockdown"]
        tried = {path: attempt(write, "/sys/" + path, "1") for path in paths}
        writable = [os.path.join(top, name) for top, _, names in os.walk("/sys/kernel") for name in names
                    if os.access(os.path.join(top, name), os.W_OK)]
        report(tried=tried, writable=writable)
        """
    )
    assert set(found["tried"].values()) <= {*NO}, found
    assert found["writable"] == []


def test_secrets_of_the_host_in_proc(attacker):
    """Kernel memory, its log, its symbols' addresses, its command line, keys, timers, backing files."""
    found = attacker.attack(
        """
        hidden = ["kcore", "kmsg", "keys", "key-users", "cmdline", "timer_list", "sched_debug", "kpageflags",
                  "kpagecount", "slabinfo", "vmallocinfo", "pagetypeinfo", "latency_stats"]
        symbols = attempt(read, "/proc/kallsyms")
        report(
            hidden={name: attempt(read, "/proc/" + name) for name in hidden},
            addresses=sorted({line.split()[0] for line in symbols.splitlines()[:-1]}),
            iomem=sorted(set(re.findall(r"^ *([0-9a-f]+)-", attempt(read, "/proc/iomem"), re.M))),
            firmware=attempt(os.listdir, "/sys/firmware"),
            loops=attempt(os.listdir, "/sys/devices/virtual/block"),
            btrfs=attempt(os.listdir, "/sys/fs/btrfs"),
            mounts=read("/proc/self/mountinfo") + read("/proc/mounts"),
            processes=sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        )
        """
    )
    assert set(found["hidden"].values()) <= {"", *NO, "EISDIR"}, found["hidden"]
    assert all(set(address) <= {"0"} for address in found["addresses"] if address not in NO)
    assert all(set(address) <= {"0"} for address in found["iomem"])
    assert found["firmware"] in ([], "ENOENT") and found["loops"] in ([], "ENOENT") and found["btrfs"] in ([], "ENOENT")
    assert str(DATA_DIR) not in found["mounts"] and "/var/cache" not in found["mounts"]
    assert len(found["processes"]) < 16, "sees processes that are not its own"


def test_devices(attacker):
    """Nodes cannot be made, and there is none of a disk, memory, port, console, KVM, FUSE, loop or tun."""
    found = attacker.attack(
        """
        kinds = dict(disk=(stat.S_IFBLK, 254, 0), loop=(stat.S_IFBLK, 7, 0), memory=(stat.S_IFCHR, 1, 1),
                     port=(stat.S_IFCHR, 1, 4), log=(stat.S_IFCHR, 1, 11), kvm=(stat.S_IFCHR, 10, 232),
                     fuse=(stat.S_IFCHR, 10, 229), tun=(stat.S_IFCHR, 10, 200), null=(stat.S_IFCHR, 1, 3),
                     btrfs=(stat.S_IFCHR, 10, 234))
        made = {}
        for place in "/tmp", "/dev/shm":
            for name, (kind, major, minor) in kinds.items():
                made[f"{place}/{name}"] = attempt(os.mknod, f"{place}/node-{name}", 0o666 | kind, os.makedev(major, minor))
        names = ["mem", "kmem", "port", "kmsg", "kvm", "fuse", "loop0", "loop-control", "vda", "sda", "net/tun", "console",
                 "tty0", "mapper/control", "btrfs-control", "vhost-net", "uinput", "vsock", "snapshot", "rtc0"]
        # sorted() of what there is, with what of it is a device.
        there = sorted(name for name in os.listdir("/dev") if stat.S_ISCHR(os.stat("/dev/" + name).st_mode))
        blocks = [name for name in os.listdir("/dev") if stat.S_ISBLK(os.lstat("/dev/" + name).st_mode)]
        opened = {name: attempt(os.open, "/dev/" + name, os.O_RDWR) for name in names}
        report(made=made, opened=opened, there=there, blocks=blocks)
        """
    )
    assert set(found["made"].values()) <= {"EPERM"}, found["made"]
    assert set(found["opened"].values()) == {"ENOENT"}, found["opened"]
    assert set(found["there"]) <= {
        "full",
        "null",
        "ptmx",
        "random",
        "tty",
        "urandom",
        "zero",
        "stdin",
        "stdout",
        "stderr",
    }
    assert found["blocks"] == []


def test_shared_device_nodes(attacker, bystanders):
    """`/dev/null` and its like are the host's own files: their mode, owner and times must stay."""
    before = {name: os.stat(f"/dev/{name}") for name in ("null", "zero", "tty", "urandom")}
    found = attacker.attack(
        """
        found = {}
        for name in "null", "zero", "tty", "urandom":
            path = "/dev/" + name
            found[name] = [
                attempt(os.chmod, path, 0), attempt(os.chown, path, 0, 0), attempt(os.unlink, path),
                attempt(os.rename, path, "/dev/gone"), attempt(os.utime, path), attempt(os.utime, path, (0, 0)),
                attempt(os.setxattr, path, "user.coffer", b"1"), attempt(os.link, path, "/dev/shm/" + name),
            ]
        with open("/dev/null", "w") as null:
            found["still writes"] = [str(null.write("x"))]
        report(**found)
        """
    )
    assert found.pop("still writes") == ["1"]
    refusals = {"EPERM", "EACCES", "EBUSY", "EROFS", "EXDEV", "ENOTSUP"}
    assert all(set(results) <= refusals for results in found.values()), found
    for name, then in before.items():
        now = os.stat(f"/dev/{name}")
        assert (now.st_mode, now.st_uid, now.st_atime_ns) == (then.st_mode, then.st_uid, then.st_atime_ns)


def test_control_groups(attacker):
    """No file of a control group can be reached; `release_agent` is how containers were left."""
    agents = list(CGROUPS.glob("*/release_agent"))
    before = [path.read_text() for path in agents]
    found = attacker.attack(
        """
        trees = [line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup" in line]
        found = []
        for top, directories, names in os.walk("/sys/fs/cgroup"):
            found += [os.path.join(top, name) for name in directories + names]
        report(trees=trees, found=found, own=read("/proc/self/cgroup").split(),
               made=attempt(os.mkdir, "/sys/fs/cgroup/x"), agent=attempt(write, "/sys/fs/cgroup/release_agent", "/tmp/x"))
        """
    )
    assert found["trees"] == [] and found["found"] == [], found
    assert {line.rpartition(":")[2] for line in found["own"]} == {"/"}, "the names of its cgroups are the host's affair"
    assert found["made"] in NO and found["agent"] in NO
    assert [path.read_text() for path in agents] == before


@pytest.mark.parametrize("user", ["root"])
def test_core_dumps(attacker):
    """A crash neither starts the host's handler nor leaves a file where the host's pattern says."""
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text()
    before = {path for place in (".", "/", "/tmp", "/var/crash") for path in pathlib.Path(place).glob("core*")}
    found = attacker.attack(
        """
        os.chdir("/tmp")
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError):
            pass
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGSEGV)
        _, status = os.waitpid(pid, 0)
        report(signal=os.WTERMSIG(status), dumped=os.WCOREDUMP(status), files=glob.glob("/tmp/core*"))
        """
    )
    assert found == {"signal": 11, "dumped": False, "files": []}, pattern
    after = {path for place in (".", "/", "/tmp", "/var/crash") for path in pathlib.Path(place).glob("core*")}
    assert after <= before


def test_host_names(attacker, bystanders):
    """Neither the sandbox's own name (it is given) nor anybody else's."""
    names = bystanders.neighbour.commands.run("hostname").stdout, os.uname().nodename
    found = attacker.attack(
        """
        report(name=attempt(socket.sethostname, "evil"), domain=call(SYS.setdomainname, b"evil", 4),
               sysctl=attempt(write, "/proc/sys/kernel/hostname", "evil"), now=socket.gethostname())
        """
    )
    assert found.pop("now") != "evil"
    assert set(found.values()) <= {"EPERM", "EROFS", "EACCES"}, found
    assert (bystanders.neighbour.commands.run("hostname").stdout, os.uname().nodename) == names
