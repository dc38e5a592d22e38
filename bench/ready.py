"""Sandboxes that are ready to be worked in: forks of a prepared one against as many clones with installs."""

import io
import os
import random
import subprocess
import tarfile
import time
from pathlib import Path

from client import Client
from crowd import in_parallel
from fork import fork, run
from machine import CofferUp
from report import Report

NAME, TO = "ready", "/home/user/app"
PACKAGES, FILES = 300, 20
# What an install does at least, when everything is on the disk already: unpack many small files and link some.
INSTALL = f"cd {TO} && mkdir -p node_modules/.bin && tar -xzf vendor.tgz -C node_modules && "
INSTALL += "for p in node_modules/package-*; do ln -s ../${p#node_modules/}/file-0.js node_modules/.bin/${p##*/}; done"
LOOK = f'cd {TO} && test -z "$(git status --porcelain)" && ls node_modules/.bin | wc -l'
CLONES, FORKS, WHOLE = "clone and install in each", "fork of a prepared one", "the same, with preparing"


def seed(url: str, scratch: Path):
    """A repository with what it needs: an archive of packages with small files, as source code is."""
    chance, work = random.Random(11), scratch / "ready-seed"
    work.mkdir()
    words = ["return", "const", "await", "export", "import", "value", "index", "result", "(", ")", "{", "}", ";\n"]
    with tarfile.open(work / "vendor.tgz", "w:gz", compresslevel=6) as archive:
        for package in range(PACKAGES):
            for number in range(FILES):
                text = " ".join(chance.choices(words, k=chance.randrange(100, 900))).encode()
                entry = tarfile.TarInfo(f"package-{package}/file-{number}.js")
                entry.size, entry.mode = len(text), 0o644
                archive.addfile(entry, io.BytesIO(text))
    (work / ".gitignore").write_text("node_modules\n")
    for number in range(500):
        path = work / f"src-{number % 20}/file-{number}.js"
        path.parent.mkdir(exist_ok=True)
        path.write_text(" ".join(chance.choices(words, k=800)))
    env = {"PATH": os.environ["PATH"], "HOME": str(scratch), "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "feat: everything"],
        ["push", "--quiet", url, "main"],
    ):
        subprocess.run(["git", *identity, "-C", str(work), *words], check=True, env=env)


def prepared(client: Client) -> dict:
    sandbox = client.create()
    order = {"repository": NAME, "path": TO}
    client.ask("POST", f"/api/v1/sandboxes/{sandbox['sandboxID']}/clone", order, 200)
    run(client, sandbox, INSTALL)
    return sandbox


def look(client: Client, sandbox: dict):
    """It is ready when it has answered that all is there."""
    if (found := int(run(client, sandbox, LOOK).output)) != PACKAGES:
        raise RuntimeError(f"{found} of {PACKAGES} packages are there")


def clones(up: CofferUp, count: int) -> tuple[float, list[dict]]:
    made: list[dict] = []

    def one(client: Client, _):
        made.append(sandbox := prepared(client))
        look(client, sandbox)

    since = time.perf_counter()
    wrong = in_parallel(up, one, list(range(count)), count)
    took = time.perf_counter() - since
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {count} clones, the first: {wrong[0]}")
    return took, made


def forks(up: CofferUp, client: Client, count: int) -> tuple[float, float, list[dict]]:
    since = time.perf_counter()
    source = prepared(client)
    look(client, source)
    ready = time.perf_counter()
    children, _ = fork(client, source, count)
    wrong = in_parallel(up, look, children, count)
    end = time.perf_counter()
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {count} forks, the first: {wrong[0]}")
    return end - ready, end - since, [source, *children]


def measure(report: Report, up: CofferUp, home: Path, count: int, rounds: int):
    client = Client(up.env())
    made = client.ask("POST", "/api/v1/repositories", {"name": NAME}, 201)
    seed(made["clone_url"].replace("http://", f"http://bench:{client.key}@"), home)
    times: dict[str, list[float]] = {CLONES: [], FORKS: [], WHOLE: []}
    for number in range(rounds + 1):
        cloned, sandboxes = clones(up, count)
        in_parallel(up, Client.destroy, sandboxes)
        os.sync()  # what one has left to be written must not slow the next
        forked, whole, sandboxes = forks(up, client, count)
        in_parallel(up, Client.destroy, sandboxes)
        os.sync()
        if number:  # the first one warms up
            for name, took in ((CLONES, cloned), (FORKS, forked), (WHOLE, whole)):
                times[name].append(took)
    client.close()
    report.heading("Ready to work")
    report.say(
        f"{count} sandboxes with a repository of 500 files and {PACKAGES * FILES:,} small files that an install unpacks from "
        "the disk, until each has confirmed that its work tree is clean and complete. All at once, in both cases."
    )
    report.times("s", times)
    report.faster(
        f"{count} forks of a prepared sandbox / {count} clones with installs", times[FORKS], times[CLONES], 1 / 5
    )
