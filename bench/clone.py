"""A clone into a sandbox, through the gate, against the host's own clone of the same address."""

import os
import random
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from chroot import Chroot, mount_pool
from client import Client
from machine import CofferUp
from report import Report

NAME, TO = "bench", "/home/user/clone"
GIT = "/usr/bin/git"
HOST, POOL, INSIDE = "host", "host on the pool", "inside"
FILE = 50 * 1024


def seed(url: str, scratch: Path, mib: int):
    """Fills the repository with that much that cannot be said in fewer bytes, as files of a usual size."""
    chance, work = random.Random(7), scratch / "seed"
    work.mkdir()
    for number in range(mib * 2**20 // FILE):
        path = work / f"directory-{number % 60}" / f"file-{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(chance.randbytes(FILE))
    env = {"PATH": os.environ["PATH"], "HOME": str(scratch), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "feat: everything"],
        ["push", "--quiet", url, "main"],
    ):
        subprocess.run(["git", *identity, "-C", str(work), *words], check=True, env=env)
    shutil.rmtree(work)


def measure(report: Report, up: CofferUp, home: Path, rootfs: Path, mib: int, rounds: int):
    client = Client(up.env())
    made = client.ask("POST", "/api/v1/repositories", {"name": NAME}, 201)
    url = made["clone_url"].replace("http://", f"http://bench:{client.key}@")
    seed(url, home, mib)
    sandbox = client.create()

    def inside() -> float:
        since = time.perf_counter()
        client.ask("POST", f"/api/v1/sandboxes/{sandbox['sandboxID']}/clone", {"repository": NAME, "path": TO}, 200)
        return time.perf_counter() - since

    with ExitStack() as cleanup:
        host = Chroot(home / "clone-root", rootfs, home / "clone-work")
        cleanup.callback(host.close)
        mount_pool(up, home / "clone-pool")
        cleanup.callback(subprocess.run, ["umount", str(home / "clone-pool")], check=True)
        pool = Chroot(home / "clone-pool-root", rootfs, home / "clone-pool/bench-clone")
        cleanup.callback(shutil.rmtree, pool.work)
        cleanup.callback(pool.close)
        words = [GIT, "clone", "--quiet", url, TO]
        places = {HOST: lambda: host.execute(*words), POOL: lambda: pool.execute(*words), INSIDE: inside}
        clean = {HOST: host.execute, POOL: pool.execute, INSIDE: lambda *words: client.execute(sandbox, *words)}
        times: dict[str, list[float]] = {name: [] for name in places}
        for number in range(rounds + 1):
            for name, clone in places.items():
                took = clone()
                clean[name]("/bin/rm", "-r", TO)
                os.sync()  # what one has left to be written must not slow the next
                if number:  # the first one warms up
                    times[name].append(took)
    client.destroy(sandbox)
    client.close()
    report.heading("Clone")
    report.say(
        f"A repository of {mib} MiB on this server, by HTTP: cloned by the host onto its own disk and into a "
        "directory of coffer's pool, and into a sandbox by the API, through the gate that adds the credential."
    )
    report.times("s", times)
    for where in (HOST, POOL):
        report.faster(f"clone of {mib} MiB, {INSIDE} / {where}", times[INSIDE], times[where], 1.25)
