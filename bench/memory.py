"""Processes on disk and back, and live forks, against CRIU alone with the same process on the host."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from client import Client
from fork import run
from machine import CofferUp, wait_until
from report import Report, p50

MIB = 50
# Counts, so that one can see that it goes on where it was.
STATE = f"""
import os, time
state, count = os.urandom({MIB} << 20), 0
while True:
    count += 1
    with open("/tmp/count.new", "w") as file:
        file.write(f"{{os.getpid()}} {{count}} {{len(state)}}")
    os.rename("/tmp/count.new", "/tmp/count")
    time.sleep(0.02)
"""
OWN = Path("/usr/local/lib/coffer/criu/command")
CRIU, PAUSE, RESUME, FORK = "criu dump + criu restore", "pause to disk", "resume from disk", "live fork, 1 child"
PLAIN = ", plain"


def criu() -> list[str]:
    return OWN.read_text().split("\n")[:-1] if OWN.exists() else ["criu"]


def lacking(client: Client) -> str | None:
    host = client.host_can()
    return None if host["memory_snapshot"] else host["memory_snapshot_lacks"]


def count(client: Client, sandbox: dict) -> int:
    return int(run(client, sandbox, "cat /tmp/count").output.split()[1])


def begin(client: Client) -> dict:
    sandbox = client.create()
    run(
        client,
        sandbox,
        f"cat > /tmp/state.py <<'END'\n{STATE}\nEND\nsetsid python3 /tmp/state.py </dev/null >/dev/null 2>&1 &",
    )
    wait_until(lambda: run(client, sandbox, "[ ! -e /tmp/count ] || echo y").output, "it counts", 30)
    return sandbox


def goes_on(client: Client, sandbox: dict, before: int):
    """Fails unless the process is the one from before."""
    if not before <= (now := count(client, sandbox)):
        raise RuntimeError(f"it counts {now}, and had {before}")


def alone(directory: Path) -> float:
    """Milliseconds that CRIU needs by itself to put such a process on disk and take it back."""
    code = STATE.replace("/tmp/count", f"{directory}/count")
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    images = directory / "images"
    images.mkdir()
    common = ["--images-dir", images, "--network-lock", "skip", "-v0"]
    try:
        wait_until((directory / "count").exists, "it counts", 30)
        since = time.perf_counter()
        subprocess.run([*criu(), "dump", "--tree", str(process.pid), *common], check=True)
        process.wait()  # it ended with the dump
        subprocess.run([*criu(), "restore", "--restore-detached", *common], check=True)
        took = (time.perf_counter() - since) * 1000
        wait_until(lambda: int((directory / "count").read_text().split()[1]) > 0, "it counts again", 30)
    finally:
        pid = int((directory / "count").read_text().split()[0]) if (directory / "count").exists() else process.pid
        os.kill(pid, 9)
        shutil.rmtree(images)
        (directory / "count").unlink(missing_ok=True)
    return took


def once(client: Client) -> tuple[dict[str, float], float]:
    """Milliseconds of each step, and how long the source of a snapshot stood still."""
    took = {}
    sandbox = begin(client)
    before = count(client, sandbox)
    since = time.perf_counter()
    child = client.fork(sandbox, 1, memory=True)[0]["sandbox"]
    took[FORK] = (time.perf_counter() - since) * 1000
    child = client.connect(child["id"])
    goes_on(client, child, before)
    client.destroy(child)
    snapshot = client.snapshot(sandbox, memory=True)
    client.delete_snapshot(snapshot)
    before = count(client, sandbox)
    since = time.perf_counter()
    client.pause(sandbox)
    took[PAUSE] = (time.perf_counter() - since) * 1000
    since = time.perf_counter()
    sandbox = client.connect(sandbox["sandboxID"], resumes=True)
    took[RESUME] = (time.perf_counter() - since) * 1000
    goes_on(client, sandbox, before)
    client.destroy(sandbox)
    return took, snapshot["paused_us"] / 1000


def measure(report: Report, up: CofferUp, start, rounds: int):
    client = Client(up.env())
    if lacks := lacking(client):
        report.skip("memory", lacks)
        return
    report.heading("Memory")
    report.say(
        f"A sandbox with a Python process that holds {MIB} MiB and counts, through the API, against CRIU alone with the "
        "same process on the host. A pause is answered when everything is on disk and checked; a fork and a resume when "
        "the sandbox answers. Plain is with `node.encrypt_memory=false`."
    )
    unencrypted = start("plain-memory", "--pool-size", "2GiB", "--set", "node.encrypt_memory=false")
    clients = {"": client, PLAIN: Client(unencrypted.env())}
    times: dict[str, list[float]] = {CRIU: []}
    stood: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="coffer-criu-") as directory:
        for number in range(rounds + 1):
            took = {CRIU: alone(Path(directory))}
            for suffix, one in clients.items():
                steps, still = once(one)
                took |= {step + suffix: value for step, value in steps.items()}
                if number:
                    stood.setdefault(f"{MIB} MiB{suffix}", []).append(still)
            if number:  # the first one warms up
                for name, value in took.items():
                    times.setdefault(name, []).append(value)
            time.sleep(0.5)
    for one in clients.values():
        one.close()
    unencrypted.stop()

    def beside_plain(name: str, p: float) -> str:
        return f"{p / p50(times[name + PLAIN]):.2f}" if name + PLAIN in times else ""

    beside_criu = {"this / CRIU alone": lambda _, p: f"{p / p50(times[CRIU]):.2f}", "this / plain": beside_plain}
    report.times("ms", times, beside_criu)
    report.times("ms that the source of a snapshot with memory is frozen", stood)
