"""What a project waits for while another takes all that it can get."""

import multiprocessing
import time

from client import Client, Refused
from machine import CofferUp
from report import Report, percentiles

# More than the share of every pool that this presses on.
PRESSING = 48
WARM_UP_S = 2


def second_project(up: CofferUp) -> dict[str, str]:
    """The environment of a client with a key of another project."""
    operator = (up.data / "operator-key").read_text().strip()
    client = Client({**up.env(), "E2B_API_KEY": operator})
    project = client.ask("POST", "/api/v1/projects", {"name": "neighbour"}, 201)
    key = client.ask("POST", f"/api/v1/projects/{project['id']}/keys", {"name": "bench"}, 201)
    client.close()
    return {**up.env(), "E2B_API_KEY": key["key"]}


def steps(client: Client, sandbox: dict) -> dict:
    path = f"/api/v1/sandboxes/{sandbox['sandboxID']}"
    return {
        "list of files": lambda: client.ask("GET", f"{path}/files?path=/usr/bin", {}, 200),
        "command": lambda: client.ask("POST", f"{path}/exec", {"command": "echo hello"}, 200),
        "log": lambda: client.ask("GET", f"{path}/logs", {}, 200),
    }


def press(env: dict[str, str], sandbox: dict, which: int, until):
    """Asks for the same without a pause, whatever the answer is."""
    client = Client(env)
    step = list(steps(client, sandbox).values())[which % 3]
    while not until.is_set():
        try:
            step()
        except (Refused, OSError):
            # Refused for its share, most often: another request follows at once.
            client.close()
            client = Client(env)


def times(client: Client, sandbox: dict, rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    for name, step in steps(client, sandbox).items():
        step()
        for _ in range(rounds):
            began = time.perf_counter()
            step()
            taken.setdefault(name, []).append((time.perf_counter() - began) * 1000)
    return taken


def measure(report: Report, up: CofferUp, rounds: int):
    own, other = up.env(), second_project(up)
    crowd, quiet = Client(own), Client(other)
    busy, sandbox = crowd.create(), quiet.create()
    alone = times(quiet, sandbox, rounds)
    until = multiprocessing.Event()
    pressing = [multiprocessing.Process(target=press, args=(own, busy, n, until)) for n in range(PRESSING)]
    for process in pressing:
        process.start()
    try:
        time.sleep(WARM_UP_S)
        beside = times(quiet, sandbox, rounds)
    finally:
        until.set()
        for process in pressing:
            process.join(timeout=30)
            if process.is_alive():
                process.terminate()
    crowd.destroy(busy)
    quiet.destroy(sandbox)
    crowd.close()
    quiet.close()
    report.heading("Next to a project that uses all it can")
    report.say(
        f"Requests of one project, alone and while another sends the same with {PRESSING} clients and no pause. "
        "The clients and both sandboxes run on this machine too, so this includes more than the time waiting in the server."
    )
    rows = {f"{name}, alone": values for name, values in alone.items()}
    rows |= {f"{name}, next to it": values for name, values in beside.items()}
    report.times("ms", rows)
    for name in alone:
        quiet, _, found = (
            busy / own for busy, own in zip(percentiles(beside[name]), percentiles(alone[name]), strict=True)
        )
        report.at_most(f"{name} next to a busy project, p99, x alone", found, 2.0, quiet=quiet)
