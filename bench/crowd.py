"""Many at once: bursts of creates, and a thousand sandboxes that live."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from client import Client
from latency import bare_spawn, execute_echo
from machine import CofferUp, available_kib, descendants, proportional_kib, same_program, wait_until
from report import Report, p50, short, table

MIB = 1024  # of KiB


def burst(up: CofferUp, size: int) -> tuple[list[dict], list[float], float, list[str]]:
    """Creates that many at one moment and runs something in each; answers the sandboxes, times and failures."""
    clients = [Client(up.env()) for _ in range(size)]
    together = threading.Barrier(size + 1)
    made: list[dict] = []
    times: list[float] = []
    failures: list[str] = []

    def one(client: Client):
        together.wait()
        since = time.perf_counter()
        try:
            sandbox = client.create()
            times.append((time.perf_counter() - since) * 1000)
            made.append(sandbox)
            if client.execute(sandbox, "/bin/echo", "hello").output != b"hello\n":
                raise RuntimeError("echo said something else")
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=one, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    together.wait()
    since = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - since
    for client in clients:
        client.close()
    return made, times, took, failures


def in_parallel(up: CofferUp, work, items: list, at_once: int = 8) -> list[str]:
    """Does the work for each item, each worker on a connection of its own; answers with the failures."""
    local = threading.local()
    failures: list[str] = []

    def one(item):
        try:
            if not hasattr(local, "client"):
                local.client = Client(up.env())
            work(local.client, item)
        except Exception as error:
            failures.append(str(error))

    with ThreadPoolExecutor(at_once) as workers:
        list(workers.map(one, items))
    return failures


def bursts(report: Report, up: CofferUp, sizes: list[int]):
    report.heading("Bursts")
    report.say("All asked for at one moment, each on a connection of its own; each then runs a command.")
    rows = [["sandboxes at once", "succeeded", "p50 ms", "slowest ms", "all have answered, s", "a second"]]
    for size in sizes:
        made, times, took, failures = burst(up, size)
        good = size - len(failures)
        rows.append(
            [str(size), f"{good}/{size}", short(p50(times or [0])), short(max(times, default=0)), short(took), short(good / took)]
        )
        report.at_least(f"burst of {size}: succeeded", good, size)
        if failures:
            report.error(f"burst of {size}: {len(failures)} failed, the first: {failures[0]}")
        in_parallel(up, Client.destroy, made)
        time.sleep(2)  # the reaper's work must not burden the next
    report.say(table(rows))


def cgroup_kib(up: CofferUp) -> int:
    """What is charged to the sandboxes' memory cgroups, kernel memory included."""
    for pid in descendants(up.process.pid):
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            _, kind, path = line.split(":", 2)
            if kind in ("memory", "") and "coffer-" in path:
                top = Path("/sys/fs/cgroup", kind, path.strip("/")).parents[0 if path.count("/") > 1 else 1]
                files = [*top.glob("*/memory.usage_in_bytes"), *top.glob("*/memory.current")]
                if files:
                    return sum(int(file.read_text()) for file in files) // 1024
    return 0


def live(report: Report, up: CofferUp, count: int, rounds: int):
    """So many sandboxes that live: memory of each, and an exec beside them against one alone."""
    client = Client(up.env())
    alone = client.create()
    execs, spawns = {}, {}

    def sample(when: str):
        execs[when], spawns[when] = [], []
        for _ in range(rounds):
            execs[when].append(execute_echo(client, alone)[1] * 1000)
            spawns[when].append(bare_spawn()[1] * 1000)

    def family() -> tuple[list[int], list[int]]:
        """The processes that serve all sandboxes, and those of the sandboxes: process 1 of each."""
        everyone = [up.process.pid, *descendants(up.process.pid)]
        ours = [pid for pid in everyone if same_program(pid, up.process.pid)]
        return ours, [pid for pid in everyone if pid not in ours]

    def ours_kib() -> int:
        return sum(map(proportional_kib, family()[0]))

    sample("alone")
    before, ours_before = available_kib(), ours_kib()
    made: list[dict] = []
    since = time.perf_counter()
    failures = in_parallel(up, lambda client, _: made.append(client.create()), [None] * (count - 1))
    created = time.perf_counter() - since
    failures += in_parallel(up, lambda client, sandbox: client.execute(sandbox, "/bin/echo", "hello"), made)
    time.sleep(3)  # slots are made when it is quiet
    during, ours_during, charged = available_kib(), ours_kib(), cgroup_kib(up)
    agents = len(family()[1])
    sample("crowd")
    since = time.perf_counter()
    failures += in_parallel(up, Client.destroy, made)
    destroyed = time.perf_counter() - since
    wait_until(lambda: len(family()[1]) < agents // 2, "destroyed sandboxes have ended", 120)
    time.sleep(5)
    after = available_kib()
    client.destroy(alone)
    client.close()

    each = ((before + after) / 2 - during) / count / MIB
    report.heading(f"{count} sandboxes that live")
    report.say(
        f"Made in {short(created)} s, 8 at a time, each ran a command, destroyed in {short(destroyed)} s; "
        f"{len(failures)} errors. Beside them waited {agents - count} slots of the warm pool, whose memory is counted "
        f"in. Memory all told is what MemAvailable lost, against the mean of before and after "
        f"({short(abs(before - after) / MIB)} MiB apart, which is what else went on here); it holds processes, kernel "
        f"objects and the server's own growth."
    )
    report.say(
        table(
            [
                ["memory", "MiB each"],
                ["all told", short(each)],
                ["of it in the sandboxes' cgroups", short(charged / count / MIB)],
                ["of it growth of coffer's own processes", short((ours_during - ours_before) / count / MIB)],
            ]
        )
    )
    report.times(
        "ms",
        {
            "exec, alone": execs["alone"],
            f"exec, one of {count}": execs["crowd"],
            "bare spawn, beside one": spawns["alone"],
            f"bare spawn, beside {count}": spawns["crowd"],
        },
    )
    if failures:
        report.error(f"{count} live: {len(failures)} errors, the first: {failures[0]}")
    report.at_most(f"{count} live: errors", len(failures), 0)
    report.at_most(f"{count} live: MiB each, all told", each, 3)
    report.at_most(f"{count} live: exec / exec alone", p50(execs["crowd"]) / p50(execs["alone"]), 2)
