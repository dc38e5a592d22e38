"""What a sandbox uses up is its own: processes, memory, disk, descriptors, terminals, time.

The limits are those of e2e/run: 400 processes, 256 MiB of memory, 256 MiB of disk, one processor.
"""

import pathlib
import time

import pytest
from e2b import AuthenticationException, CommandExitException

from coffer_up import eventually
from traces import CGROUPS, cgroups

PROCESSES = 400
MEMORY = 256 << 20
DISK = 256 << 20


def start(attacker, command: str, **options):
    return attacker.sandbox.commands.run(command, user=attacker.user, background=True, timeout=0, **options)


def ran_out_of_memory(attacker) -> bool:
    """Whether the kernel has killed for want of memory. Where it found no process that was large, it took agentd,
    and with it the sandbox."""
    try:
        return attacker.traces.oom_kills() >= 1
    except LookupError:
        return not attacker.sandbox.is_running()


def test_fork_bomb(attacker, bystanders):
    program = attacker.compile(
        """
        #include <sys/prctl.h>
        #include <unistd.h>
        int main(void) {
            for (;;) fork();
        }
        """
    )
    start(attacker, f"ulimit -u unlimited; exec {program}")
    eventually(lambda: attacker.traces.counter("pids.events", "max") > 1000, "the limit hit a thousand times")
    assert attacker.traces.counter("pids.current") <= PROCESSES
    bystanders.answer()
    assert attacker.traces.counter("pids.current") > PROCESSES - 50, "it still goes on"


def test_thread_bomb(attacker):
    """Threads count as processes do."""
    program = attacker.compile(
        """
        #include <errno.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <string.h>
        #include <unistd.h>
        static void *rest(void *unused) { pause(); return unused; }
        int main(void) {
            pthread_t thread;
            pthread_attr_t small;
            pthread_attr_init(&small);
            pthread_attr_setstacksize(&small, 16384);
            int made = 0, error;
            while (made < 100000 && !(error = pthread_create(&thread, &small, rest, 0))) made++;
            printf("%d %s\\n", made, error == EAGAIN ? "EAGAIN" : strerror(error));
            return 0;
        }
        """
    )
    made, error = attacker.shell(program).stdout.split()
    assert PROCESSES - 50 < int(made) < PROCESSES and error == "EAGAIN"
    assert attacker.traces.counter("pids.events", "max") >= 1


def test_zombies_and_orphans(attacker):
    """Dead children that nobody waits for hold their place in the limit, and go when their parent does; children
    without a parent are agentd's."""
    found = attacker.attack(
        """
        made = 0
        try:
            while made < 100000:
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                made += 1
        except BlockingIOError:
            pass
        states = [read(f"/proc/{name}/stat").rpartition(")")[2].split()[0] for name in os.listdir("/proc") if name.isdigit()]
        report(made=made, zombies=states.count("Z"))
        """
    )
    assert PROCESSES - 50 < found["made"] < PROCESSES and found["zombies"] >= found["made"] - 1, found
    attacker.shell("for i in $(seq 30); do (setsid true & ) ; done")

    def zombies():
        return attacker.shell("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l").stdout.strip()

    eventually(lambda: zombies() == "0", "agentd took in every orphan")


def test_daemons_end_with_the_sandbox(attacker):
    """Twice forked, in a session of their own, deaf to every signal that can be ignored, stopped, or waiting."""
    start(
        attacker,
        """python3 -c '
import os, signal, time
for number in range(12):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for each in range(1, 65):
                try: signal.signal(each, signal.SIG_IGN)
                except (OSError, ValueError): pass
            if number % 3 == 0: os.kill(os.getpid(), signal.SIGSTOP)
            if number % 3 == 1: os.nice(19)
            while True: time.sleep(1000)
        os._exit(0)
'""",
    )
    eventually(lambda: attacker.traces.counter("pids.current") >= 12, "daemons that nobody owns")
    # The fixture finds them by namespace and user id, and fails if one is left.


def test_memory_bomb(attacker, bystanders):
    """The largest process of the sandbox is killed, and the kernel counts it; agentd goes on."""
    bomb = start(attacker, "exec python3 -c 'grow = []\nwhile True: grow.append(bytearray(1 << 20))'")
    bystanders.answer()
    with pytest.raises(CommandExitException) as ended:
        bomb.wait()
    assert ended.value.error == "signal: killed"
    assert attacker.traces.oom_kills() >= 1
    assert attacker.shell("echo alive").stdout == "alive\n"


def test_memory_behind_files(attacker):
    """tmpfs is memory: `/dev/shm`, `/run` and memfds are within the limit, as are pipes and socket buffers."""
    found = attacker.attack(
        """
        def fill(path):
            written, chunk = 0, bytes(1 << 20)
            try:
                with open(path, "wb", buffering=0) as file:
                    while written < 1 << 30:
                        written += file.write(chunk)
            except OSError as error:
                return [written, errno.errorcode[error.errno]]
        shm = fill("/dev/shm/ballast")
        run = fill("/run/ballast") if os.getuid() == 0 else [0, "ENOSPC"]
        os.unlink("/dev/shm/ballast")
        if os.getuid() == 0: os.unlink("/run/ballast")
        report(shm=shm, run=run)
        """
    )
    for written, error in found.values():
        assert error == "ENOSPC" and written <= MEMORY // 2, found
    assert found["shm"][0] > MEMORY // 4, "it was really filled"
    start(
        attacker, "exec python3 -c 'import os\nfd = os.memfd_create(\"x\")\nwhile True: os.write(fd, bytes(1 << 20))'"
    )
    eventually(lambda: ran_out_of_memory(attacker), "killed for want of memory")


@pytest.mark.parametrize("user", ["user"])
def test_socket_buffers(attacker, bystanders):
    """Sent to oneself and never read: what the kernel has for this is one pot for the host and all sandboxes."""
    found = attacker.attack(
        """
        def pages():
            return sum(int(line.split("mem ")[1].split()[0]) for line in read("/proc/net/sockstat").splitlines()
                       if line.startswith(("TCP:", "UDP:")))
        before, held, sent = pages(), [], 0
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for _ in range(1500):
            held.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
            held[-1].bind(("127.0.0.1", 0))
            for _ in range(12):
                sent += sender.sendto(bytes(30_000), held[-1].getsockname())
        server = socket.create_server(("127.0.0.1", 0), backlog=200)
        for _ in range(100):
            near = socket.create_connection(server.getsockname())
            held += [near, server.accept()[0]]
            near.setblocking(False)
            try:
                while sent < 1 << 40:
                    sent += near.send(bytes(1 << 20))
            except OSError:
                pass
        report(sent=sent, grown=(pages() - before) * resource.getpagesize())
        """
    )
    assert found["sent"] > 512 << 20, "more than the sandbox has memory"
    # Other sandboxes' own are in the same figure, hence the margin; without a limit it would be all that was sent.
    assert found["grown"] < 160 << 20, found
    bystanders.answer()


def test_all_of_them_together(bystanders):
    """Limits of many sandboxes add up to more than a host has; so all of them have one together."""
    meminfo = pathlib.Path("/proc/meminfo").read_text()
    total = int(meminfo.split("MemTotal:")[1].split()[0]) * 1024
    ids = int(pathlib.Path("/proc/sys/kernel/pid_max").read_text())
    name = cgroups(bystanders.neighbour.sandbox_id)[0].parent.name
    limits = {}
    for file in ("memory.limit_in_bytes", "memory.max", "pids.max"):
        for path in [*CGROUPS.glob(f"{name}/{file}"), *CGROUPS.glob(f"*/{name}/{file}")]:
            limits[file.split(".")[0]] = int(path.read_text())
    assert limits["memory"] < total - (200 << 20) and limits["pids"] <= ids * 3 // 4, limits


@pytest.mark.parametrize("user", ["user"])
def test_shared_memory_segments(attacker, bystanders):
    """SysV segments stay when their makers are killed. A sandbox full of them has lost itself, and nobody else."""
    start(
        attacker,
        """exec python3 -c '
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
while True:
    segment = libc.shmget(0, 16 << 20, 0o1600)
    ctypes.memset(libc.shmat(segment, None, 0), 1, 16 << 20)
'""",
    )
    eventually(lambda: ran_out_of_memory(attacker), "killed for want of memory")
    bystanders.answer()


def test_locked_and_huge_pages(attacker):
    """Pages that cannot be swapped or come from the host's reserve of large ones."""
    found = attacker.attack(
        """
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        def map(flags, length):
            ctypes.set_errno(0)
            place = libc.mmap(None, length, 3, 0x22 | flags, -1, 0)
            return errno.errorcode[ctypes.get_errno()] if place in (None, 2**64 - 1) else place
        plain = map(0, 64 << 20)
        report(
            huge=map(0x40000, 2 << 20), gigantic=map(0x40000 | 30 << 26, 1 << 30),
            huge_segment=call(SYS.shmget, 0, 2 << 20, 0o1600 | 0o4000),
            locked=call(SYS.mlock, ctypes.c_void_p(plain), 64 << 20), all=call(SYS.mlockall, 3),
            limit=resource.getrlimit(resource.RLIMIT_MEMLOCK)[1],
        )
        """
    )
    assert {found["huge"], found["gigantic"]} <= {"ENOMEM", "EPERM", "EINVAL"}, found
    assert found["huge_segment"] in ("EPERM", "ENOMEM")
    assert found["limit"] < 64 << 20 and found["locked"] in ("ENOMEM", "EPERM", "EAGAIN"), found


@pytest.mark.parametrize("user", ["user"])
def test_disk_filler(attacker, bystanders):
    found = attacker.attack(
        """
        written, chunk = 0, os.urandom(1 << 20)
        try:
            with open("/home/user/ballast", "wb", buffering=0) as file:
                while written < 2 << 30:
                    written += file.write(chunk)
        except OSError as error:
            name = errno.errorcode[error.errno]
        again = attempt(write, "/home/user/one-more", "x" * 100000)
        report(written=written, error=name, again=again)
        """
    )
    assert found["error"] in ("EDQUOT", "ENOSPC") and DISK // 2 < found["written"] <= DISK, found
    assert found["again"] in ("EDQUOT", "ENOSPC")
    bystanders.answer()  # which writes a file in the neighbour
    attacker.shell("rm /home/user/ballast && echo fits > /home/user/again")


@pytest.mark.parametrize("user", ["user"])
def test_inode_filler(attacker, bystanders):
    """Empty files with attributes: no data, all metadata, which the same limit counts."""
    found = attacker.attack(
        """
        os.makedirs("/home/user/many")
        made, value = 0, os.urandom(15000)
        try:
            while made < 400_000:
                path = f"/home/user/many/{made:0200}"
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
                os.setxattr(path, "user.ballast", value)
                made += 1
        except OSError as error:
            name = errno.errorcode[error.errno]
        report(made=made, error=name)
        """,
        timeout=300,
    )
    assert found["error"] in ("EDQUOT", "ENOSPC") and found["made"] > 1000, found
    bystanders.answer()


def test_trees_that_are_hard_to_delete(attacker):
    """Deep, wide, linked, sparse, immutable, with bits and names that make `rm` stumble. The fixture deletes them."""
    found = attacker.attack(
        """
        os.makedirs("/tmp/hard", exist_ok=True)
        os.chdir("/tmp/hard")
        depth = 0
        for _ in range(4000):  # far past what a path can name
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
            depth += 1
        os.chdir("/tmp/hard")
        open("one", "w").close()
        links = 0
        error = "none"
        try:
            for links in range(20_000):
                os.link("one", f"link-{links}")
        except OSError as failure:
            error = errno.errorcode[failure.errno]
        with open("sparse", "wb") as sparse:
            sparse.truncate(1 << 50)
        odd = [b"new\\nline", b"\\xff\\xfe", b"-rf", b" ", b"a" * 255]
        for name in odd:
            open(os.path.join(b"/tmp/hard", name), "w").close()
        os.mkdir("closed")
        open("closed/inside", "w").close()
        os.chmod("closed", 0)
        flags = {}
        for name, bit in dict(immutable=0x10, append=0x20).items():
            open(name, "w").close()
            with open(name) as file:
                flags[name] = attempt(fcntl.ioctl, file, 0x40086602, struct.pack("l", bit))
        report(depth=depth, links=links, link_error=error, flags=flags, sparse=os.stat("sparse").st_size)
        """
    )
    assert found["depth"] == 4000 and found["links"] > 1000 and found["sparse"] == 1 << 50, found
    assert found["flags"] == {"immutable": "EPERM", "append": "EPERM"}, "only CAP_LINUX_IMMUTABLE may"


def test_files_cannot_be_made_for_others(attacker):
    """Reserving space, marking files, defragmenting, subvolumes: ioctls of the file system below the overlay."""
    found = attacker.attack(
        """
        with open("/tmp/file", "w+") as file:
            agentd = os.open("/run/coffer/agentd", os.O_RDONLY)
            def ioctl(descriptor, request):
                return call(SYS.ioctl, descriptor, request, ctypes.create_string_buffer(4096))
            report(
                reserve=attempt(os.posix_fallocate, file.fileno(), 0, 1 << 30),
                subvolume=ioctl(file.fileno(), 0x5000940e),
                snapshot=ioctl(file.fileno(), 0x50009401),
                quota=ioctl(file.fileno(), 0xc0109428),
                freeze=ioctl(file.fileno(), 0xc0045877),
                trim=ioctl(file.fileno(), 0xc0185879),
                shutdown=attempt(fcntl.ioctl, file, 0x8004587d, struct.pack("I", 2)),
                agentd_quota=ioctl(agentd, 0xc0109428),
                agentd_search=ioctl(agentd, 0xd0009411),
                agentd_limit=ioctl(agentd, 0x8030942b),
                agentd_sync=ioctl(agentd, 0x9408),
            )
        """
    )
    assert found.pop("reserve") in ("EDQUOT", "ENOSPC", "EOPNOTSUPP")
    assert set(found.values()) <= {"ENOTTY", "EPERM", "EOPNOTSUPP", "EINVAL", "EACCES", "EROFS"}, found


def test_sync_storm(attacker, bystanders):
    """Writing out is for all files of a disk: a loop of it would hold up everyone who shares the pool, or the host."""
    commits = list(pathlib.Path("/sys/fs/btrfs").glob("*/commit_stats"))
    if not commits:
        pytest.skip("SKIPPED: this kernel does not count commits of btrfs")

    def count():
        return sum(int(path.read_text().split()[1]) for path in commits)

    before = count()
    found = attacker.attack(
        """
        agentd = os.open("/run/coffer/agentd", os.O_RDONLY)
        done = 0
        for number in range(500):
            write("/tmp/dirty", str(number))
            results = {call(SYS.sync), call(SYS.syncfs, agentd), call(SYS.fsync, agentd)}
            results.add(call(SYS.ioctl, agentd, 0x9408, 0))
            done += results <= {0, "ENOTTY"}
        report(done=done)
        """
    )
    assert found == {"done": 500}
    assert count() - before < 250, "each round wrote the pool out"


def test_delete_everything(attacker, bystanders):
    """What a sandbox deletes are its own copies; the next one has all of them."""
    attacker.shell("sudo rm -rf /etc /home /var /srv /opt /usr/bin /usr/sbin; echo /usr/bin/* /etc/*")
    with pytest.raises(AuthenticationException):  # not even its users are left
        attacker.shell("python3 --version")
    bystanders.answer()
    assert bystanders.neighbour.commands.run("test -x /usr/bin/python3 && echo there").stdout == "there\n"


def test_output_flood(attacker, bystanders):
    """Nobody reads what a command prints: agentd keeps a part, and neither it nor the server grows without bound."""
    flood = start(attacker, "touch /tmp/started; exec head -c 3G /dev/zero")
    eventually(lambda: attacker.sandbox.files.exists("/tmp/started"), "the flood")
    bystanders.answer()
    assert attacker.traces.oom_kills() == 0
    assert attacker.shell("echo alive").stdout == "alive\n"
    flood.disconnect()


def test_descriptor_flood(attacker, bystanders):
    found = attacker.attack(
        """
        opened = []
        try:
            while True:
                opened.append(os.dup(0))
        except OSError as error:
            name = errno.errorcode[error.errno]
        count = len(opened)
        for each in opened:
            os.close(each)
        # In flight over sockets they would count for nobody, were there no limit.
        left, right = socket.socketpair()
        left.setblocking(False)
        flying, pairs = 0, [(left, right)]
        try:
            while flying < 1_000_000:
                try:
                    socket.send_fds(pairs[-1][0], [b"x"], [1] * 200)
                    flying += 200
                except BlockingIOError:
                    pairs.append(socket.socketpair())
                    pairs[-1][0].setblocking(False)
            flight = "none"
        except OSError as error:
            flight = errno.errorcode[error.errno]
        report(opened=count, error=name, flying=flying, flight=flight)
        """
    )
    assert found["error"] == "EMFILE" and 1000 < found["opened"] <= 65536, found
    assert found["flight"] in ("ETOOMANYREFS", "EMFILE") and found["flying"] < 200_000, found


def test_terminal_flood(attacker, bystanders):
    """The host has some thousands of terminals for all; a sandbox has 256."""
    found = attacker.attack(
        """
        held = []
        try:
            while len(held) < 5000:
                held.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
            error = "none"
        except OSError as failure:
            error = errno.errorcode[failure.errno]
        report(held=len(held), error=error)
        """
    )
    assert 0 < found["held"] <= 256 and found["error"] in ("ENOSPC", "EIO"), found
    terminal = bystanders.neighbour.pty.create(size=_size(), timeout=60)
    terminal.kill()


def _size():
    from e2b import PtySize

    return PtySize(rows=24, cols=80)


def test_watch_flood(attacker, bystanders):
    """inotify instances are counted by user, and a sandbox's users are no one else's."""
    start(
        attacker,
        """exec python3 -c '
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
held = 0
while held < 100000 and libc.inotify_init1(0) >= 0: held += 1
open("/tmp/held", "w").write(f"{held} {ctypes.get_errno()}")
time.sleep(1000)
'""",
    )
    eventually(
        lambda: attacker.sandbox.files.exists("/tmp/held") and attacker.sandbox.files.read("/tmp/held"),
        "all instances taken",
    )
    held, error = attacker.sandbox.files.read("/tmp/held").split()
    assert 0 < int(held) < 100000 and int(error) in (24, 23)  # EMFILE, ENFILE
    watch = bystanders.neighbour.files.watch_dir("/home/user")
    bystanders.neighbour.files.write("/home/user/seen", "x")
    eventually(lambda: any(event.name == "seen" for event in watch.get_new_events()), "the neighbour's watch works")
    watch.stop()


def test_queue_timer_and_signal_floods(attacker):
    """Kernel objects that are counted by user or by namespace."""
    found = attacker.attack(
        """
        def flood(make, most=200_000):
            made = 0
            while made < most:
                result = make(made)
                if isinstance(result, str):
                    return [made, result]
                made += 1
            return [made, "none"]
        timer = ctypes.c_int()
        event = struct.pack("QiiQQQQQQ", 0, 0, 1, 0, 0, 0, 0, 0, 0)  # SIGEV_NONE
        queues = flood(lambda number: call(SYS.mq_open, b"q%d" % number, 0o102, 0o600, 0))
        timers = flood(lambda number: call(SYS.timer_create, 1, event, ctypes.byref(timer)))
        signal.pthread_sigmask(signal.SIG_BLOCK, {40})
        info = struct.pack("iiii", 40, 0, -1, 0) + bytes(112)
        signals = flood(lambda number: call(SYS.rt_sigqueueinfo, os.getpid(), 40, info))
        semaphores = flood(lambda number: call(SYS.semget, 0, 1, 0o600))
        report(queues=queues, timers=timers, signals=signals, semaphores=semaphores)
        """
    )
    assert all(error != "none" for _, error in found.values()), found
    assert found["queues"][1] in ("EMFILE", "ENOSPC") and found["timers"][1] == found["signals"][1] == "EAGAIN", found


def test_processor_hog(attacker, bystanders):
    """More busy processes than processors, on every processor there is: the quota slows them, neighbours go on."""
    start(
        attacker,
        """exec python3 -c '
import os
os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
for _ in range(15):
    if os.fork() == 0: break
while True: pass
'""",
    )

    def used_s():
        return attacker.traces.counter("cpu.stat", "usage_usec") / 1e6

    eventually(lambda: attacker.traces.counter("pids.current") >= 16, "sixteen busy processes")
    began, before = time.monotonic(), used_s()
    eventually(lambda: used_s() - before > 2, "two seconds of processor time burnt")
    bystanders.answer()
    after, ended = used_s(), time.monotonic()
    # One processor's worth, whatever they ask for; the kernel counts in slices, hence the margin.
    assert after - before <= 1.1 * (ended - began) + 0.2
