"""Work of a coding agent inside a sandbox against the same programs on the host."""

import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from chroot import Chroot, mount_pool
from client import Client
from machine import CofferUp
from report import Report

TOP = "/home/user/bench"
SCRIPT = "/home/user/workload.py"
GIT, MAKE = "/usr/bin/git", ["/usr/bin/make", "--silent", "-C", f"{TOP}/source"]
WORK = {  # what is measured, and what makes it possible again
    "git clone": ([GIT, "clone", "--quiet", f"file://{TOP}/origin", f"{TOP}/clone"], ["/bin/rm", "-r", f"{TOP}/clone"]),
    "many small files": (["/usr/bin/python3", SCRIPT, "files", TOP], None),
    "compile": ([*MAKE, "--jobs=2"], [*MAKE, "clean"]),
}
HOST, POOL, INSIDE = "host", "host on the pool", "inside"


def measure(report: Report, up: CofferUp, home: Path, rootfs: Path, rounds: int):
    client = Client(up.env())
    sandbox = client.create()

    def inside(*words: str) -> float:
        since = time.perf_counter()
        ran = client.execute(sandbox, *words)
        if ran.exit_code != 0:
            raise RuntimeError(f"{words[0]} inside: {ran.output[-300:]!r}")
        return ran.ended - since

    with ExitStack() as cleanup:
        host = Chroot(home / "host-root", rootfs, home / "host-work")
        cleanup.callback(host.close)
        mount_pool(up, home / "pool")
        cleanup.callback(subprocess.run, ["umount", str(home / "pool")], check=True)
        pool = Chroot(home / "pool-root", rootfs, home / "pool/bench-work")
        cleanup.callback(shutil.rmtree, pool.work)
        cleanup.callback(pool.close)
        script = Path(__file__).with_name("workload.py")
        shutil.copy(script, host.work)
        shutil.copy(script, pool.work)
        client.upload(sandbox, SCRIPT, [script.read_bytes()], script.stat().st_size)
        times = take_turns({HOST: host.execute, POOL: pool.execute, INSIDE: inside}, rounds)
    client.destroy(sandbox)
    client.close()
    report.heading("Work inside")
    report.say(
        "The same programs, from the same files: on the host's own disk, on the host in a directory of coffer's pool, "
        "and in a sandbox."
    )
    report.times("s", {f"{name}, {where}": values for (name, where), values in times.items()})
    for name in WORK:
        for where in (HOST, POOL):
            report.faster(f"{name}, {INSIDE} / {where}", times[name, INSIDE], times[name, where], 1.15)


def take_turns(places: dict, rounds: int) -> dict[tuple[str, str], list[float]]:
    for place in places.values():
        place("/usr/bin/python3", SCRIPT, "prepare", TOP)
    times = {(name, where): [] for name in WORK for where in places}
    for number in range(rounds + 1):
        for name, (words, clean) in WORK.items():
            for where, place in places.items():
                took = place(*words)
                if clean:
                    place(*clean)
                if number:  # the first one warms up
                    times[name, where].append(took)
    return times
