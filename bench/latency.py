"""How long it takes until something runs, ours and others' in turn."""

import time

from client import Client
from machine import CofferUp
from peers import Peers, spawn
from report import Report, p50, percentiles

WARM, COLD = "coffer", "coffer, no slot ready"
BARE, EXEC = "bare spawn", "coffer: exec in a live sandbox"
SETTLE_S = 0.03  # what one subject leaves behind (a reaper, a new slot) must not burden the next
SLOW = {"gVisor", "Docker"}  # these come in every fourth round only


def create_and_echo(client: Client) -> tuple[float, float]:
    """Answers how long a first output took, and the whole of it with the destruction."""
    since = time.perf_counter()
    sandbox = client.create()
    ran = client.execute(sandbox, "/bin/echo", "hello")
    client.destroy(sandbox)
    ended = time.perf_counter()
    if ran.output != b"hello\n":
        raise RuntimeError(f"echo said {ran.output!r}")
    return ran.first_output - since, ended - since


def execute_echo(client: Client, sandbox: dict) -> tuple[float, float]:
    since = time.perf_counter()
    ran = client.execute(sandbox, "/bin/echo", "hello")
    return ran.first_output - since, ran.ended - since


def bare_spawn() -> tuple[float, float]:
    return spawn(["/bin/echo", "hello"])


def measure(report: Report, up: CofferUp, cold: CofferUp, peers: Peers, rounds: int):
    client, cold_client = Client(up.env()), Client(cold.env())
    live = client.create()
    subjects = {
        BARE: bare_spawn,
        EXEC: lambda: execute_echo(client, live),
        WARM: lambda: create_and_echo(client),
        COLD: lambda: create_and_echo(cold_client),
        **{name: (lambda name=name: peers.run(name)) for name in peers.found},
    }
    first: dict[str, list[float]] = {name: [] for name in subjects}
    whole: dict[str, list[float]] = {name: [] for name in subjects}
    for subject in subjects.values():  # what is slow only the first time
        subject()
    for number in range(rounds):
        for name, subject in subjects.items():
            if name in SLOW and number % 4:
                continue
            output, ended = subject()
            first[name].append(output * 1000)
            whole[name].append(ended * 1000)
            time.sleep(SETTLE_S)
    client.destroy(live)
    client.close()
    cold_client.close()

    report.heading("From create to the first output")
    report.say(
        "Time until `hello` of `/bin/echo hello` in a new sandbox arrives. Coffer through the E2B API; the others by "
        "their commands, on the files of the same template, read-only, without a network or limits, as `crun spec` "
        "writes it. Coffer also has limits, a separate disk, a system call filter and a user namespace. Callers of the "
        "others have to start a program, so that is included."
    )
    starts = {name: first[name] for name in subjects if name not in (BARE, EXEC)}
    warm, bare = p50(first[WARM]), p50(whole[BARE])
    report.times(
        "ms to first output",
        {BARE: first[BARE], **starts},
        {"x bare spawn": lambda _, p: f"{p / p50(first[BARE]):.1f}", "coffer / this": lambda _, p: f"{warm / p:.3f}"},
    )
    report.say("The same to its end: the command has ended, or the sandbox is destroyed.")
    report.times(
        "ms in all",
        {name: whole[name] for name in [BARE, *starts]},
        {"coffer / this": lambda _, p: f"{p50(whole[WARM]) / p:.3f}"},
    )
    report.heading("A command in a running sandbox")
    report.say("Time until its exit code arrives, against `posix_spawn` and `waitpid` of the same on the host.")
    execs = {BARE: whole[BARE], EXEC: whole[EXEC]}
    report.times("ms", execs, {"x bare spawn": lambda _, p: f"{p / bare:.2f}"})

    for name, command, limit, aim in (("crun", "crun run", 0.4, 1 / 8), ("Docker", "docker run", 1 / 50, 1 / 150)):
        if name in first:
            report.faster(f"create to first output / `{command}` to its end", first[WARM], whole[name], limit, aim)
            report.faster(f"create to first output / `{command}` to its output", first[WARM], first[name], limit, aim)
    report.at_most("create to first output, p99 / p50", percentiles(first[WARM])[2] / warm, 3)
    report.faster("exec / bare spawn", whole[EXEC], whole[BARE], 3)
