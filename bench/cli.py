"""The command line: what `exec` adds to the API's call, and copies against a plain loop and `tar | tar`."""

import os
import random
import shutil
import socket
import subprocess
import time
from pathlib import Path

from client import Client
from machine import COFFER, CofferUp
from report import Report, p50, percentiles
from transfer import BLOCK, PlainCopy

SMALL_FILES, SMALL_BYTES = 10_000, 2048
MOST_MS = 15


def quiet(words: list, env: dict):
    done = subprocess.run([str(word) for word in words], env=env, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{words} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-500:]}")


def processor_ms(words: list, env: dict) -> float:
    """What the process itself used, which a busy machine changes little."""
    process = subprocess.Popen(
        [str(word) for word in words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{words} ended with {process.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)


def taken(subjects: dict, rounds: int, between=lambda: None) -> dict[str, list[float]]:
    """Seconds of each, in turns; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(rounds + 1):
        for name, subject in subjects.items():
            since = time.perf_counter()
            subject()
            if number:
                times[name].append(time.perf_counter() - since)
        between()
    return times


def execute(report: Report, client: Client, sandbox: str, env: dict, rounds: int):
    api = "POST …/exec on an open connection"
    command = {"command": ["/bin/true"]}
    subjects = {
        api: lambda: client.ask("POST", f"/api/v1/sandboxes/{sandbox}/exec", command, 200),
        "coffer exec": lambda: quiet([COFFER, "exec", sandbox, "--", "/bin/true", "x"], env),
        "coffer --version": lambda: quiet([COFFER, "--version"], env),
        "/bin/true here": lambda: quiet(["/bin/true"], env),
    }
    times = {name: [1000 * took for took in all] for name, all in taken(subjects, rounds).items()}
    report.times("ms", times)
    floor, middle, _ = (
        mine - theirs for mine, theirs in zip(percentiles(times["coffer exec"]), percentiles(times[api]), strict=True)
    )
    report.at_most("ms that `coffer exec` adds to the API's call", middle, MOST_MS, quiet=floor)
    calls = {"coffer exec": ["exec", sandbox, "--", "/bin/true", "x"], "coffer --version": ["--version"]}
    used = {name: [processor_ms([COFFER, *words], env) for _ in range(rounds)] for name, words in calls.items()}
    report.times("ms of processor time", used)


def big(report: Report, up: CofferUp, sandbox: str, env: dict, home: Path, mib: int, rounds: int):
    size, source, back = mib * 2**20, home / "cli-big", home / "cli-back"
    with source.open("wb") as file:
        for _ in range(size // len(BLOCK)):
            file.write(BLOCK)
    path, kept = str(up.pool / "bench-cli-copy"), home / "cli-kept"
    plain = PlainCopy(path, size)

    def plain_out():
        """As `plain.read`, into a file."""
        piece, missing = bytearray(len(BLOCK)), size
        view = memoryview(piece)
        with socket.create_connection(plain.address) as peer, kept.open("wb", buffering=0) as file:
            peer.sendall(b"r")
            while missing and (got := peer.recv_into(piece)):
                file.write(view[:got])
                missing -= got

    subjects = {
        "plain copy in": plain.write,
        "coffer cp in": lambda: quiet([COFFER, "cp", "-q", source, f"{sandbox}:big"], env),
        "plain copy out": plain_out,
        "coffer cp out": lambda: quiet([COFFER, "cp", "-q", f"{sandbox}:big", back], env),
    }

    def between():
        os.unlink(path)
        kept.unlink()
        back.unlink()
        quiet([COFFER, "exec", sandbox, "--", "rm", "big"], env)
        os.sync()  # one round's dirty pages must not slow the next

    try:
        times = taken(subjects, rounds, between)
    finally:
        plain.stop()
        source.unlink()
    rates = {name: [mib / took for took in all] for name, all in times.items()}
    report.times("MiB/s", rates)
    for way in ("in", "out"):
        found = p50(rates[f"coffer cp {way}"]) / p50(rates[f"plain copy {way}"])
        report.at_least(f"`coffer cp` of {mib} MiB {way} / plain copy", found, 0.7)


def small(report: Report, up: CofferUp, sandbox: str, env: dict, home: Path, rounds: int):
    source, back, near = home / "cli-small", home / "cli-small-back", home / "cli-small-near"
    pool = up.pool / "bench-cli-small"
    chance = random.Random(7)
    for number in range(SMALL_FILES):
        file = source / f"d{number % 100}" / f"f{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(SMALL_BYTES))

    def tar(here: Path, there: Path):
        there.mkdir()
        words = f'tar -c -C "{here}" . | tar -x -C "{there}"'
        subprocess.run(["bash", "-o", "pipefail", "-c", words], check=True)

    subjects = {
        "tar | tar in": lambda: tar(source, pool),
        "coffer cp in": lambda: quiet([COFFER, "cp", "-q", source, f"{sandbox}:small"], env),
        "tar | tar out": lambda: tar(source, near),
        "coffer cp out": lambda: quiet([COFFER, "cp", "-q", f"{sandbox}:small", back], env),
    }

    def between():
        for directory in (pool, near, back):
            shutil.rmtree(directory)
        quiet([COFFER, "exec", sandbox, "--", "rm", "-r", "small"], env)
        os.sync()

    times = taken(subjects, rounds, between)
    shutil.rmtree(source)
    report.times("s", times)
    for way in ("in", "out"):
        found = p50(times[f"tar | tar {way}"]) / p50(times[f"coffer cp {way}"])
        report.at_least(f"`coffer cp` of {SMALL_FILES} files {way} / `tar | tar`", found, 0.5)


def measure(report: Report, up: CofferUp, home: Path, mib: int, rounds: int):
    client = Client(up.env())
    sandbox = client.create()
    name = sandbox["sandboxID"]
    env = {**os.environ, **up.env(), "COFFER_CONFIG_DIR": str(home / "cli-config")}
    report.heading("Command line")
    report.say(
        "A process for each call, against the same on an open connection, a bare loop of `recv` and `write`, and tar."
    )
    try:
        execute(report, client, name, env, 10 * rounds)
        big(report, up, name, env, home, mib, rounds)
        small(report, up, name, env, home, rounds)
    finally:
        client.destroy(sandbox)
        client.close()
