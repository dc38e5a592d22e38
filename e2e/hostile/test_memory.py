"""Around the saving of memory: who gives agentd orders, and what a sandbox is that came back from disk."""

import pytest

ORDERS = """
    said = {}
    for order in (b"s", b"o", b"x", b"s" * 100000):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(20)
            stranger.connect("\\0coffer-agentd")
            try:
                stranger.sendall(order)
                answer = stranger.recv(10)
            except OSError as error:
                answer = b""
            said[order[:2].decode()] = answer.decode()
    taken = attempt(socket.socket(socket.AF_UNIX).bind, "\\0coffer-agentd")
    report(said=said, taken=taken)
"""

WALLS = """
    status = dict(line.split(":", 1) for line in read("/proc/self/status", 1 << 14).splitlines())
    report(
        bounding=status["CapBnd"].strip(), filtered=status["Seccomp"].strip(), ids=read("/proc/self/uid_map").split()[2],
        mounts=sorted(" ".join(line.split(" - ")[0].split()[4:6]) for line in read("/proc/self/mountinfo").splitlines()),
        cgroup=sorted({line.split(":", 2)[2] for line in read("/proc/self/cgroup").splitlines()}),
        mount=call(SYS.mount, b"none", b"/mnt", b"tmpfs", 0, 0), unshare=call(SYS.unshare, 0x10000000),
        keys=attempt(os.listdir, "/proc/keys"), network=sorted(os.listdir("/sys/class/net")),
    )
"""


def test_orders_from_inside(attacker, bystanders):
    """Whatever runs inside can reach agentd's control socket, and is hung up on; its name cannot be taken."""
    found = attacker.attack(ORDERS)
    assert set(found["said"].values()) == {""} and len(found["said"]) == 4, found
    assert found["taken"] == "EADDRINUSE"
    assert attacker.shell("echo alive").stdout == "alive\n"


@pytest.mark.parametrize("user", ["root"])
def test_a_flood_of_orders_does_not_keep_it_from_pausing(attacker, bystanders):
    """Connections that ask for nothing, for as long as it lives: the pause comes, with its memory here or there."""
    attacker.sandbox.commands.run(
        "exec python3 -c '\n"
        "import socket\n"
        "while True:\n"
        "    try:\n"
        '        socket.socket(socket.AF_UNIX).connect(chr(0) + "coffer-agentd")\n'
        "    except OSError:\n"
        "        pass\n"
        "'",
        background=True,
        timeout=0,
    )
    assert attacker.sandbox.pause() is True
    attacker.sandbox.connect(timeout=600)
    assert attacker.shell("echo alive").stdout == "alive\n"


@pytest.mark.parametrize("user", ["root"])
def test_the_walls_are_the_same_after_a_pause(attacker, bystanders):
    """Rights, filter, mounts, cgroup paths and network of a sandbox that came back are what they were."""
    before = attacker.attack(WALLS)
    assert attacker.sandbox.pause() is True
    attacker.sandbox.connect(timeout=600)
    assert attacker.attack(WALLS) == before
    assert before["mount"] == before["unshare"] == "EPERM" and before["cgroup"] == ["/"], before
