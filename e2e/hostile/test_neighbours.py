"""From one sandbox to another, to agentd, and to the host's own processes."""

import os
import socket
import uuid

import pytest
from e2b import CommandExitException

from coffer_up import eventually


def test_processes_of_others(attacker, bystanders):
    """Signals, traces, memory and descriptors by every number that a process of the host or a neighbour has there."""
    theirs = [bystanders.traces.first, os.getpid(), os.getppid()]
    found = attacker.attack(
        f"""
        class Span(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        here = ctypes.create_string_buffer(8)
        near, far = Span(ctypes.addressof(here), 8), Span(0x10000, 8)
        own = {{int(name) for name in os.listdir("/proc") if name.isdigit()}}
        found = {{}}
        for pid in {theirs}:
            if pid in own:
                continue  # that number is one of ours here
            found[f"kill {{pid}}"] = attempt(os.kill, pid, 9)
            found[f"ptrace {{pid}}"] = call(SYS.ptrace, 16, pid, 0, 0)
            found[f"pidfd {{pid}}"] = call(SYS.pidfd_open, pid, 0)
            found[f"read {{pid}}"] = call(SYS.process_vm_readv, pid, ctypes.byref(near), 1, ctypes.byref(far), 1, 0)
            found[f"proc {{pid}}"] = attempt(os.listdir, f"/proc/{{pid}}")
        report(**found)
        """
    )
    assert found and set(found.values()) <= {"ESRCH", "ENOENT"}, found


def test_kill_everything(attacker, bystanders):
    """SIGKILL to all that there is: agentd, as process 1, is spared and goes on; neighbours never notice."""
    attacker.sandbox.commands.run("sleep 1000", user="user", background=True, timeout=0)
    died = attacker.sandbox.commands.run(
        "python3 -c 'import os, signal; os.setsid(); os.kill(1, signal.SIGKILL) if os.getuid() == 0 else None; "
        "os.kill(-1, signal.SIGKILL)' ; sleep 1000",
        user=attacker.user,
        background=True,
        timeout=0,
    )
    with pytest.raises(CommandExitException):
        died.wait()
    bystanders.answer()
    assert attacker.shell("pgrep -c sleep || true").stdout == "0\n", "the attack ran"
    assert attacker.shell("echo alive").stdout == "alive\n"


def test_trace_agentd(attacker, bystanders):
    """Root inside may stop agentd, which is inside with it; that ends the service of this sandbox alone."""
    held = attacker.sandbox.commands.run(
        "exec python3 -u -c '\n"
        "import ctypes, errno, time\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "result = libc.ptrace(16, 1, 0, 0)\n"  # PTRACE_ATTACH
        'print("ATTACHED" if result == 0 else errno.errorcode[ctypes.get_errno()], flush=True)\n'
        "time.sleep(1000 if result == 0 else 0)\n"
        "'",
        user=attacker.user,
        background=True,
        timeout=0,
    )
    if attacker.user == "user":
        assert held.wait().stdout == "EPERM\n"
        return

    def stopped():
        with open(f"/proc/{attacker.traces.first}/status") as file:
            return any(line.startswith("State:\tt") for line in file)

    eventually(stopped, "agentd stopped by a tracer")
    bystanders.answer()  # and destroying it needs no help of agentd's: the fixture does so


def test_descriptors_of_others(attackers, user, bystanders):
    """`pidfd_getfd` and SCM_RIGHTS carry descriptors within a sandbox; there is no way to hand them to another."""
    name = f"coffer-{uuid.uuid4().hex}"
    one, other = attackers(user), attackers(user)
    one.sandbox.commands.run(
        f"""exec python3 -c '
import os, socket, time
server = socket.socket(socket.AF_UNIX)
server.bind("\\0{name}")
server.listen()
inside = socket.socket(socket.AF_UNIX)
inside.connect("\\0{name}")
taken, _ = server.accept()
socket.send_fds(inside, [b"x"], [os.open("/etc/hostname", os.O_RDONLY)])
print(len(socket.recv_fds(taken, 1, 1)[1]), "SENT", flush=True)
open("/tmp/listening", "w").close()
time.sleep(1000)
'""",
        user=user,
        background=True,
        timeout=0,
    )
    eventually(lambda: one.sandbox.files.exists("/tmp/listening"), "a socket that passes descriptors")
    found = other.attack(
        f"""
        def connect(name):
            socket.socket(socket.AF_UNIX).connect(name)
        pidfd = call(SYS.pidfd_open, 1, 0)
        report(
            neighbour=attempt(connect, "\\0{name}"),
            listed=attempt(read, "/proc/net/unix").replace("@coffer-agentd", "").count("@"),
            agentd=call(SYS.pidfd_getfd, pidfd, 3, 0),
        )
        """
    )
    assert found["neighbour"] == "ECONNREFUSED" and found["listed"] == 0, found
    if user == "user":
        assert found["agentd"] == "EPERM"
    else:
        assert isinstance(
            found["agentd"], int
        )  # agentd's listener, whose peer is the server: tests of outside cover it


def test_abstract_sockets_of_the_host(attacker):
    """They go by network namespace, not by file: the host's must not be found by name."""
    name = f"coffer-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        with socket.socket(socket.AF_UNIX) as here:
            here.connect(f"\0{name}")  # it is there
        found = attacker.attack(
            f"""
            def connect(name):
                socket.socket(socket.AF_UNIX).connect(name)
            report(host=attempt(connect, "\\0{name}"), listed=read("/proc/net/unix").count("{name}"))
            """
        )
    assert found == {"host": "ECONNREFUSED", "listed": 0}


def test_sockets_of_the_host_by_path(attacker):
    """None of the host's directories with sockets is inside: its own, the node's, the server's, Docker's, D-Bus's."""
    found = attacker.attack(
        """
        sockets = []
        for place in "/run", "/var/run", "/tmp", "/var/lib", "/dev":
            for top, _, names in os.walk(place):
                sockets += [os.path.join(top, name) for name in names
                            if stat.S_ISSOCK(os.lstat(os.path.join(top, name)).st_mode)]
        report(sockets=sockets, coffer=sorted(os.listdir("/run/coffer")))
        """
    )
    assert found == {"sockets": [], "coffer": ["agentd"]}


def test_shared_memory_and_queues(attackers, user):
    """SysV and POSIX objects under the same names in two sandboxes are different objects."""
    one, other = attackers(user), attackers(user)
    made = one.attack(
        """
        shm = call(SYS.shmget, 0x70ff, 4096, 0o1666)
        queue = call(SYS.mq_open, b"coffer", 0o102, 0o666, 0)
        message = call(SYS.msgget, 0x70ff, 0o1666)
        semaphore = call(SYS.semget, 0x70ff, 1, 0o1666)
        write("/dev/shm/coffer", "secret")
        report(shm=shm, queue=queue, message=message, semaphore=semaphore)
        """
    )
    assert all(isinstance(each, int) for each in made.values()), made
    seen = other.attack(
        """
        report(shm=call(SYS.shmget, 0x70ff, 4096, 0), queue=call(SYS.mq_open, b"coffer", 0, 0, 0),
               message=call(SYS.msgget, 0x70ff, 0), semaphore=call(SYS.semget, 0x70ff, 1, 0),
               file=attempt(read, "/dev/shm/coffer"), listed=len(read("/proc/sysvipc/shm").splitlines()))
        """
    )
    assert seen == {
        "shm": "ENOENT",
        "queue": "ENOENT",
        "message": "ENOENT",
        "semaphore": "ENOENT",
        "file": "ENOENT",
        "listed": 1,
    }


def test_terminal_input(attacker):
    """TIOCSTI types into a terminal as its user would; TIOCLINUX does more; TIOCSETD has the kernel load drivers."""
    found = attacker.attack(
        """
        leader, follower = os.openpty()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            fcntl.ioctl(follower, 0x540e, 0)  # TIOCSCTTY: its own terminal, the easiest case
            # The kernel looks at the lower half of the number only; so must a filter.
            results = [attempt(fcntl.ioctl, follower, 0x5412, b"x"), attempt(fcntl.ioctl, follower, 0x541c, b"\\x02"),
                       call(SYS.ioctl, follower, 0x5412 | 7 << 32, b"y")]
            results += [attempt(fcntl.ioctl, follower, 0x5423, struct.pack("i", kind)) for kind in (3, 15, 21)]
            os._exit(0 if results == ["EPERM"] * 6 else 1)
        report(refused=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0)
        """
    )
    assert found == {"refused": True}


def test_packets_of_others(attacker):
    """Packet sockets listen to interfaces and raw ones make packets of any kind. Both also hold memory that no limit
    counts, so that not even root inside has them."""
    found = attacker.attack(
        """
        def make(*which):
            return attempt(lambda: socket.socket(*which).close())
        report(
            packet=make(17, 3, socket.htons(3)), packet_pair=attempt(lambda: socket.socketpair(17, 3)),
            old_packet=make(2, 10, socket.htons(3)), raw=make(2, 3, 255), icmp=make(2, 3, 1), icmp6=make(10, 3, 58),
            ping=make(2, 2, 1),
        )
        """
    )
    assert set(found.values()) <= {"EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT"}, found
    assert found["packet"] == "EAFNOSUPPORT" and found["raw"] == "EPERM"


def test_network_administration(attacker):
    """Interfaces, addresses, routes, rules and filters are set from outside; netlink only shows them."""
    found = attacker.attack(
        """
        def netlink(kind, flags, body):
            ear = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            ear.send(struct.pack("IHHII", 16 + len(body), kind, flags | 1 | 4, 1, 0) + body)
            answer = ear.recv(65536)
            code = struct.unpack_from("i", answer, 16)[0]
            return errno.errorcode[-code] if code else "done"
        down = struct.pack("BxHiII", 0, 1, 1, 0, 1)
        address = struct.pack("BBBBI", 2, 8, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([10, 9, 8, 7]))
        route = struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("HHI", 8, 4, 1)
        request = struct.pack("16sH14x", b"lo", 0)
        plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        report(
            link_down=netlink(16, 0, down), address=netlink(20, 0x600, address), route=netlink(24, 0x600, route),
            ioctl_down=attempt(fcntl.ioctl, plain, 0x8914, request),
            iptables=attempt(plain.setsockopt, 0, 64, bytes(128)),
            bind_device=attempt(plain.setsockopt, socket.SOL_SOCKET, 33, 1 << 30),
            interfaces=sorted(os.listdir("/sys/class/net")),
        )
        """
    )
    assert found.pop("interfaces") == ["lo"]
    found.pop("bind_device")
    assert set(found.values()) <= {"EPERM", "EACCES", "ENOPROTOOPT"}, found
    assert found["link_down"] == found["address"] == found["route"] == found["ioctl_down"] == "EPERM"
