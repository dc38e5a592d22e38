"""Forks of a sandbox's files against copies of the same tree on the same pool."""

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

from client import Client, Ran
from crowd import in_parallel
from latency import execute_echo
from machine import CofferUp, wait_until
from report import Report, p50, short, table

TREE = "/home/user/tree"
COUNT = 10_000
PLAIN, REFLINK, FORK = "cp -a", "cp -a --reflink=always", "fork, 1 child"
# Nobody else's business: what was written for one subject must not slow the next.
SETTLE_S = 0.1


def run(client: Client, sandbox: dict, script: str) -> Ran:
    ran = client.execute(sandbox, "/bin/sh", "-c", script)
    if ran.exit_code:
        raise RuntimeError(f"`{script}`: {ran.output.decode(errors='replace').strip()}")
    return ran


def grow(client: Client, sandbox: dict, mib: int, files: int):
    """Writes a tree of that many files and so much that nothing can be said about it in fewer bytes."""
    size = -(-mib * 2**20 // files)
    script = f"mkdir -p {TREE} && cd {TREE} && head -c {mib}M /dev/urandom | split -a 4 -d -b {size} && ls | wc -l"
    found = int(run(client, sandbox, script).output)
    if found != files:
        raise RuntimeError(f"{found} files instead of {files}")


def tree_of(up: CofferUp, mark: str) -> Path:
    """Where the pool has the tree of the sandbox that has a file of that name."""
    found = list(up.pool.glob(f"s/*/u0{TREE}/{mark}"))
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} sandboxes have a file {mark}")
    return found[0].parent


def copy(tree: Path, to: Path, *options: str) -> float:
    since = time.perf_counter()
    subprocess.run(["cp", "-a", *options, str(tree), str(to)], check=True)
    took = time.perf_counter() - since
    shutil.rmtree(to)
    return took * 1000


def fork(client: Client, source: dict, count: int) -> tuple[list[dict], float]:
    """That many children, and the milliseconds until all were there."""
    since = time.perf_counter()
    results = client.fork(source, count)
    took = (time.perf_counter() - since) * 1000
    failed = [result["error"] for result in results if result.get("error")]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} children failed, the first: {failed[0]}")
    return [client.connect(result["sandbox"]["id"]) for result in results], took


def against_copies(report: Report, up: CofferUp, client: Client, source: dict, rounds: int):
    run(client, source, f"touch {TREE}/of-the-source")
    tree, to = tree_of(up, "of-the-source"), up.pool / "bench-fork"
    times: dict[str, list[float]] = {PLAIN: [], REFLINK: [], FORK: []}
    for number in range(rounds + 1):
        children, forked = fork(client, source, 1)
        client.destroy(children[0])
        took = {PLAIN: copy(tree, to), REFLINK: copy(tree, to, "--reflink=always"), FORK: forked}
        if number:  # the first one warms up
            for name, value in took.items():
                times[name].append(value)
        os.sync()
        time.sleep(SETTLE_S)
    report.times("ms", times, {"fork / this": lambda _, p: f"1/{p / p50(times[FORK]):.0f}"})
    report.faster("fork of 10,000 files / cp -a", times[FORK], times[PLAIN], 1 / 10)
    report.faster("fork of 10,000 files / cp --reflink", times[FORK], times[REFLINK], 1 / 5)


def many(report: Report, up: CofferUp, client: Client, source: dict, sizes: list[int]):
    rows = [["children of one fork", "all exist, ms", "a child, ms", "each has answered, ms"]]
    for size in sizes:
        since = time.perf_counter()
        children, took = fork(client, source, size)
        wrong = in_parallel(up, check_child, children)
        answered = (time.perf_counter() - since) * 1000
        if wrong:
            report.error(f"{len(wrong)} of {size} children, the first: {wrong[0]}")
        rows.append([str(size), short(took), short(took / size), short(answered)])
        in_parallel(up, Client.destroy, children)
        time.sleep(2)  # the reaper's work must not burden the next
    report.say(table(rows))


def check_child(client: Client, child: dict):
    if (found := int(run(client, child, f"ls {TREE} | wc -l").output)) < COUNT:
        raise RuntimeError(f"it has {found} files")


def first_output(report: Report, client: Client, source: dict, rounds: int):
    created, forked = "create (warm)", "fork of 10,000 files and 1 GiB"
    times: dict[str, list[float]] = {created: [], forked: []}
    for _ in range(rounds):
        for name, make in ((created, client.create), (forked, lambda: fork(client, source, 1)[0][0])):
            since = time.perf_counter()
            sandbox = make()
            execute_echo(client, sandbox)
            times[name].append((time.perf_counter() - since) * 1000)
            client.destroy(sandbox)
            time.sleep(SETTLE_S)
    report.say("Until a command in the new sandbox has ended.")
    report.times("ms to a command's end", times)


def pauses(report: Report, up: CofferUp, client: Client, source: dict, rounds: int):
    times: dict[str, list[float]] = {}
    writer = f"while [ ! -e /tmp/end ]; do head -c 4M /dev/urandom > {TREE}/busy; sync {TREE}/busy; done"
    for name, busy in (("source is idle", False), ("source writes", True)):
        other = Client(up.env())
        writing = threading.Thread(target=lambda: other.execute(source, "/bin/sh", "-c", writer), daemon=True)
        if busy:
            writing.start()
            wait_until(lambda: run(client, source, f"[ ! -e {TREE}/busy ] || echo y").output, "it writes", 30)
        times[name] = []
        for _ in range(rounds):
            snapshot = client.snapshot(source)
            times[name].append(snapshot["paused_us"] / 1000)
            client.delete_snapshot(snapshot)
        if busy:
            run(client, source, "touch /tmp/end")
            writing.join(60)
        other.close()
    report.say("How long the source of a snapshot is frozen.")
    report.times("ms", times)


def used_bytes(up: CofferUp) -> int:
    """What the pool holds, once what was deleted is free."""

    def now() -> int:
        os.sync()
        stat = os.statvfs(up.pool)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    before = now()
    for _ in range(60):
        time.sleep(1)
        if (after := now()) >= before - 2**20:
            return after
        before = after
    raise TimeoutError("the pool is still giving back what was deleted")


def disk(report: Report, up: CofferUp, client: Client, mib: int, count: int):
    empty = used_bytes(up)
    source = client.create()
    grow(client, source, mib, COUNT)
    one = used_bytes(up) - empty
    children, _ = fork(client, source, count)
    for child in children:
        run(client, child, f"echo own > {TREE}/own && sync")
    all_of_them = used_bytes(up) - empty
    report.say(
        f"A tree of {mib} MiB takes {one / 2**20:.0f} MiB of the pool; with {count} forks of it, each of which has "
        f"written a file, {all_of_them / 2**20:.0f} MiB."
    )
    report.at_most(f"disk of {count} forks and their source / of the source", all_of_them / one, 1.05)
    in_parallel(up, Client.destroy, [*children, source])


def measure(report: Report, up: CofferUp, quick: bool):
    report.heading("Forks")
    report.say(
        "A sandbox with 10,000 files and 1 GiB, forked through the API while it runs, against copies of its files on the "
        "same pool. The copies are not on disk when `cp` ends; the fork is, and its child runs."
    )
    client = Client(up.env())
    # First, because nothing is deleted yet whose space might come back meanwhile.
    disk(report, up, client, 256 if quick else 2048, 20)
    source = client.create()
    try:
        grow(client, source, 1024, COUNT)
        against_copies(report, up, client, source, 1 if quick else 5)
        many(report, up, client, source, [1, 8] if quick else [1, 8, 100])
        first_output(report, client, source, 3 if quick else 30)
        pauses(report, up, client, source, 3 if quick else 30)
        client.destroy(source)
    finally:
        client.close()
