"""What limits of single sandboxes cannot bound: more disk than there is, and memory that is charged to nobody."""

import io
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import Sandbox

from coffer_up import CofferUp, eventually

HOGS = 3
LIMIT_MIB = 300  # of each; the pool has 1 GiB for all


def fill(sandbox) -> int:
    """Writes until it is told to stop; answers with how many bytes there was room for."""
    done = sandbox.commands.run(
        f"dd if=/dev/zero of=ballast bs=1M count={LIMIT_MIB} status=none; stat -c %s ballast", timeout=300
    )
    return int(done.stdout)


def test_a_full_pool_has_room_for_small_ones(tmp_path):
    """All fill what is promised to each: a neighbour still writes, and another sandbox is made."""
    options = ["--ephemeral", "--warm-slots=0", f"--sandbox-disk={LIMIT_MIB}MiB", "--sandbox-memory=256MiB"]
    with CofferUp(tmp_path / "data", *options, pool_size="1GiB") as up:
        if "disk use of sandboxes is not limited" in up.log.read_text():
            pytest.skip("SKIPPED: this host gives sandboxes no disk limit")
        sdk = up.sdk()
        neighbour, *hogs = (Sandbox.create(timeout=900, **sdk) for _ in range(1 + HOGS))
        with ThreadPoolExecutor(HOGS) as threads:
            written = list(threads.map(fill, hogs))
        assert any(size < LIMIT_MIB << 20 for size in written), f"all of it fitted: {written}"
        assert "cannot grow" in up.log.read_text()
        for number in range(8):
            neighbour.files.write(f"small-{number}", io.BytesIO(bytes(1 << 20)), request_timeout=120)
        assert neighbour.commands.run("cat small-* | wc -c").stdout == f"{8 << 20}\n"
        another = Sandbox.create(timeout=900, **sdk)
        assert another.commands.run("echo written > file; cat file").stdout == "written\n"
        # Who frees what it holds may grow again.
        for hog in hogs:
            hog.commands.run("rm ballast")
        assert fill(hogs[0]) > 128 << 20
        assert up.stop() == 0


def test_memory_that_nobody_is_charged_for(tmp_path):
    """Answers of netlink that nobody reads are in no cgroup. Here the host wants nearly all memory for itself, so that
    it is short of it from the start, and who opens sockets by the thousand is ended."""
    meminfo = pathlib.Path("/proc/meminfo").read_text()
    reserve = (int(meminfo.split("MemTotal:")[1].split()[0]) << 10) - (1 << 30)
    options = ["--ephemeral", "--warm-slots=0", "--sandbox-memory=256MiB", f"--memory-reserve={reserve}B"]
    with CofferUp(tmp_path / "data", *options, pool_size="1GiB") as up:
        attacker, neighbour = (Sandbox.create(timeout=900, **up.sdk()) for _ in range(2))
        assert attacker.commands.run(hoard(1000)).stdout == "held 1000\n", "a thousand sockets are nobody's business"
        attacker.commands.run(hoard(8000), background=True, timeout=0)
        eventually(lambda: not attacker.is_running(), "the sandbox ended")
        assert f"killing sandbox {attacker.sandbox_id}" in up.log.read_text()
        assert neighbour.commands.run("echo alive").stdout == "alive\n"
        assert up.stop() == 0


def hoard(sockets: int) -> str:
    return f"""exec python3 -c '
import socket, struct, time
question = struct.pack("IHHIIBxHiII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0, 0)  # all links
held = []
for _ in range({sockets}):
    held.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    for _ in range(4):
        held[-1].send(question)
print("held", len(held), flush=True)
time.sleep({sockets} // 8000 * 1000)
'"""
