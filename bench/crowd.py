"""Many at once: bursts of creates, and a thousand sandboxes that live."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from client import Client
from latency import bare_spawn, execute_echo
from machine import CofferUp, descendants, meminfo_kib, proportional_kib, same_program, wait_until
from report import Report, p50, short, table


def burst(up: CofferUp, size: int) -> tuple[list[dict], list[float], float, list[str]]:
    """Creates that many at one moment and runs something in each; answers the sandboxes, times and failures."""
    clients = [Client(up.env()) for _ in range(size)]
    together = threading.Barrier(size + 1)
    made: list[dict] = []
    times: list[float] = []
    failures: list[str] = []

    def one(client: Client):
        together.wait(60)
        since = time.perf_counter()
        try:
            sandbox = client.create()
            times.append((time.perf_counter() - since) * 1000)
            made.append(sandbox)
            if client.execute(sandbox, "/bin/echo", "hello").output != b"hello\n":
                raise RuntimeError("echo said something else")
        except Exception as error:
            failures.append(str(error))

    threads = [threading.Thread(target=one, args=(client,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    together.wait(60)
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

    workers = ThreadPoolExecutor(at_once)
    try:
        list(workers.map(one, items))
    finally:
        workers.shutdown(cancel_futures=True)  # an interrupt need not wait for the rest
    return failures


def bursts(report: Report, up: CofferUp, sizes: list[int]):
    report.heading("Bursts")
    report.say("All asked for at one moment, each on a connection of its own; each then runs a command.")
    rows = [["sandboxes at once", "succeeded", "p50 ms", "slowest ms", "all have answered, s", "a second"]]
    for size in sizes:
        made, times, took, failures = burst(up, size)
        good = size - len(failures)
        figures = [p50(times or [0]), max(times, default=0), took, good / took]
        rows.append([str(size), f"{good}/{size}", *map(short, figures)])
        report.at_least(f"burst of {size}: succeeded", good, size)
        if failures:
            report.error(f"burst of {size}: {len(failures)} failed, the first: {failures[0]}")
        in_parallel(up, Client.destroy, made)
        time.sleep(2)  # the reaper's work must not burden the next
    report.say(table(rows))


class Memory:
    """What is in use now, counted from below: of the kernel what it gives to processes and namespaces, and each
    process's share of its pages. `available` is the kernel's own estimate of the rest, in which everything else
    that goes on here shows as well."""

    KERNEL = ("Slab", "KernelStack", "PageTables", "Percpu", "Shmem")

    def __init__(self, up: CofferUp):
        self.kernel = meminfo_kib(*self.KERNEL)
        self.available = meminfo_kib("MemAvailable")
        ours, agents = family(up)
        self.ours = sum(map(proportional_kib, ours))
        self.sandboxes = sum(map(proportional_kib, agents))


def family(up: CofferUp) -> tuple[list[int], list[int]]:
    """The processes that serve all sandboxes, and those of the sandboxes, slots among them."""
    everyone = [up.process.pid, *descendants(up.process.pid)]
    ours = [pid for pid in everyone if same_program(pid, up.process.pid)]
    return ours, [pid for pid in everyone if pid not in ours]


def live(report: Report, up: CofferUp, count: int, rounds: int):
    """So many live sandboxes: memory of each, and an exec among them against one alone."""
    client = Client(up.env())
    alone = client.create()
    execs, spawns = {}, {}

    def sample(when: str):
        execs[when], spawns[when] = [], []
        for _ in range(rounds):
            execs[when].append(execute_echo(client, alone)[1] * 1000)
            spawns[when].append(bare_spawn()[1] * 1000)

    sample("alone")
    before, made = Memory(up), []
    since = time.perf_counter()
    failures = in_parallel(up, lambda client, _: made.append(client.create()), [None] * (count - 1))
    created = time.perf_counter() - since
    failures += in_parallel(up, lambda client, sandbox: client.execute(sandbox, "/bin/echo", "hello"), made)
    time.sleep(3)  # slots are made when it is quiet
    crowded = Memory(up)
    slots = len(family(up)[1]) - count
    sample("crowd")
    since = time.perf_counter()
    failures += in_parallel(up, Client.destroy, made)
    destroyed = time.perf_counter() - since
    most_left = slots + 1 + 16  # the one that was alone, and slots that were made meanwhile
    wait_until(lambda: len(family(up)[1]) <= most_left, "destroyed sandboxes have ended", 120)
    client.destroy(alone)
    client.close()

    def each(growth: int) -> float:
        return growth / (count - 1) / 1024

    kernel, ours = crowded.kernel - before.kernel, crowded.ours - before.ours
    sandboxes = crowded.sandboxes - before.sandboxes
    report.heading(f"{count} live sandboxes")
    report.say(
        f"Created in {short(created)} s, 8 at a time, each ran a command, destroyed in {short(destroyed)} s; "
        f"{len(failures)} errors. {slots} slots of the warm pool are included. Memory is the total "
        f"growth: the kernel's ({', '.join(Memory.KERNEL)} of `/proc/meminfo`), the proportional sizes "
        f"of the processes in sandboxes and of coffer's own. MemAvailable is given for comparison; it "
        f"also shows other work of the machine."
    )
    rows = {
        "total": kernel + ours + sandboxes,
        "kernel": kernel,
        "processes in sandboxes": sandboxes,
        "coffer's own processes": ours,
        "by MemAvailable": before.available - crowded.available,
    }
    report.say(table([["memory", "MiB each"], *([name, short(each(growth))] for name, growth in rows.items())]))
    report.times(
        "ms",
        {
            "exec, alone": execs["alone"],
            f"exec, one of {count}": execs["crowd"],
            "bare spawn, with 1": spawns["alone"],
            f"bare spawn, with {count}": spawns["crowd"],
        },
    )
    if failures:
        report.error(f"{count} live: {len(failures)} errors, the first: {failures[0]}")
    report.at_most(f"{count} live: errors", len(failures), 0)
    report.at_most(f"{count} live: MiB each, in total", each(rows["total"]), 3)
    report.faster(f"{count} live: exec / exec alone", execs["crowd"], execs["alone"], 2)
