"""The code interpreter: a result in a sandbox against a bare ipykernel, and what a sandbox with a kernel weighs."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from client import Client
from machine import COFFER, ROOT, CofferUp, proportional_kib
from report import Report, short, table

sys.path.insert(0, str(ROOT / "e2e/host"))
from client_config import ClientConfig

TEMPLATE = "code-interpreter-v1"
# The same packages in both, so that the same kernel runs.
PACKAGES = ["ipykernel>=7,<8", "orjson", "jupyter_client"]
RUN, BARE_RUN = "`1+1` in a sandbox, through the server", "`1+1` in a bare ipykernel, by jupyter_client"
FIRST, BARE_FIRST = "create a sandbox, `1+1`", "start a bare ipykernel, `1+1`"
TOGETHER = "an idle sandbox with a Python kernel"
MARK = "run/e2b/.E2B_SANDBOX_ID"
IDLE = 8


class Bare:
    """The program `bare_kernel.py`, in its own environment."""

    def __init__(self, home: Path):
        environment = home / "bare"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        python = environment / "bin/python"
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
        env = {**os.environ, "IPYTHONDIR": str(home / "ipython"), "JUPYTER_PREFER_ENV_PATH": "1"}
        program = Path(__file__).with_name("bare_kernel.py")
        self.process = subprocess.Popen(
            [python, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            text=True,
        )

    def __call__(self, order: str) -> float:
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def create(client: Client) -> dict:
    return client.ask("POST", "/v2/sandboxes", {"templateID": TEMPLATE, "timeout": 3600}, 201)


def result(client: Client, sandbox: dict):
    """What the SDKs send, to the end of the answer."""
    headers = client._to(sandbox) | {"E2b-Sandbox-Port": "49999", "Content-Type": "application/json"}
    client._send("POST", "/execute", headers, b'{"code": "1+1"}')
    lines = client._whole_reply(200).decode().splitlines()
    shown = [line["text"] for line in map(json.loads, lines) if line["type"] == "result"]
    if shown != ["2"]:
        raise RuntimeError(f"`1+1` gave {lines}")


def took(step, *arguments) -> float:
    since = time.perf_counter()
    step(*arguments)
    return (time.perf_counter() - since) * 1000


def calls(report: Report, client: Client, bare: Bare, rounds: int):
    times: dict[str, list[float]] = {RUN: [], BARE_RUN: []}
    sandbox = create(client)
    bare("start")
    for number in range(rounds + 10):
        ours, theirs = took(result, client, sandbox), bare("run")
        if number >= 10:  # what is slow only the first time
            times[RUN].append(ours)
            times[BARE_RUN].append(theirs)
    bare("stop")
    client.destroy(sandbox)
    report.times("ms to the end of the call", times)
    report.faster("`1+1` in a sandbox / in a bare ipykernel", times[RUN], times[BARE_RUN], 1.5)


def first_results(report: Report, client: Client, bare: Bare, rounds: int):
    times: dict[str, list[float]] = {FIRST: [], BARE_FIRST: []}

    def first():
        sandbox = create(client)
        result(client, sandbox)
        return sandbox

    for number in range(rounds + 3):
        since = time.perf_counter()
        sandbox = first()
        ours = (time.perf_counter() - since) * 1000
        client.destroy(sandbox)
        theirs = bare("start")
        bare("stop")
        if number >= 3:  # nothing is ready before the template is used
            times[FIRST].append(ours)
            times[BARE_FIRST].append(theirs)
    report.times("ms to the first result", times)
    report.faster("create and first result / start of a bare ipykernel", times[FIRST], times[BARE_FIRST], 1 / 10)


def inside(ids: set[str]) -> dict[str, list[int]]:
    """The processes of sandboxes, by the name that each sandbox has inside."""
    found = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "root" / MARK).read_text().strip()
        except OSError:
            continue  # another's, or it ended while we looked
        if name in ids:
            found[name].append(int(process.name))
    return found


def kind(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        words = ""
    if "ipykernel_launcher" in words:
        return "the Python kernel"
    return "the interpreter's service" if "coffer-code" in words else "agentd and the rest"


def idle(report: Report, client: Client, bare: Bare):
    sandboxes = [create(client) for _ in range(IDLE)]
    for sandbox in sandboxes:
        result(client, sandbox)
    bare("start")
    time.sleep(2)
    parts: dict[str, list[float]] = defaultdict(list)
    for processes in inside({sandbox["sandboxID"] for sandbox in sandboxes}).values():
        sums = defaultdict(float)
        for pid in processes:
            sums[kind(pid)] += proportional_kib(pid) / 1024
        for name, mib in {TOGETHER: sum(sums.values()), **sums}.items():
            parts[name].append(mib)
    alone = proportional_kib(int(bare("memory"))) / 1024
    bare("stop")
    for sandbox in sandboxes:
        client.destroy(sandbox)
    rows = [[name, short(statistics.median(values))] for name, values in parts.items()]
    rows.append(["a bare ipykernel", short(alone)])
    report.say(
        f"Memory of each of {len(next(iter(parts.values())))} sandboxes that have run `1+1` and are idle; pages that processes "
        "share are counted once, in parts (PSS)."
    )
    report.say(table([["memory", "MiB"], *rows]))


def measure(report: Report, start, home: Path, quick: bool):
    report.heading("Code interpreter")
    config = ClientConfig()
    for client in ("pip", "apt"):
        if why := config.lacks(client):
            report.skip("the code interpreter", f"its template cannot be built: {why}")
            return
    home = home / "code"
    home.mkdir()
    with ExitStack() as cleanup:
        up: CofferUp = start("code-data", "--pool-size", "8GiB", *config.options(home))
        cleanup.callback(up.stop)
        bare = Bare(home)
        cleanup.callback(bare.close)
        since = time.perf_counter()
        command = [COFFER, "template", "build", TEMPLATE, "--data-dir", up.data]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        built_s = time.perf_counter() - since
        client = Client(up.env())
        cleanup.callback(client.close)
        saves = client.host_can()["memory_snapshot"]
        report.say(
            f"Template `{TEMPLATE}`, built in {built_s:.0f} s"
            + ("." if saves else "; this host saves no memory, so that each sandbox starts its own kernel.")
            + " The bare kernel runs on the host, without a sandbox, with the same packages."
        )
        calls(report, client, bare, 30 if quick else 300)
        first_results(report, client, bare, 5 if quick else 30)
        idle(report, client, bare)
