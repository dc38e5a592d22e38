"""Attackers, their neighbours, and the host that both live on.

A test takes an `attacker`: a sandbox with small limits in which it runs programs as root and, by default, once more
as `user`. When the test ends, the fixture itself checks what every case must show: a neighbour and the host answer,
and once the attacker is destroyed nothing of it is left. `bystanders.answer()` asks the same while an attack goes on.
"""

import json
import os
import pathlib
import textwrap
import uuid

import httpx
import pytest
from e2b import Sandbox

from coffer_up import eventually
from traces import Traces

LIFE_S = 900
PATIENCE_S = 120  # for any one request; a machine with two busy cores is slow, not wrong

# Comes before every Python attack.
PRELUDE = (pathlib.Path(__file__).parent / "inside.py").read_text()


def pytest_configure(config):
    if "E2B_API_URL" not in os.environ:
        pytest.exit("these tests drive a running server: start them with e2e/run", returncode=2)


class Attacker:
    """A sandbox that a test attacks from, as one user."""

    def __init__(self, user: str, **options):
        self.user = user
        self.sandbox = Sandbox.create(timeout=LIFE_S, **options)
        self.traces = Traces(self.sandbox.sandbox_id)

    def shell(self, command: str, user: str | None = None, **options):
        options.setdefault("timeout", PATIENCE_S)
        return self.sandbox.commands.run(command, user=user or self.user, **options)

    def python(self, source: str, user: str | None = None, **options):
        """Runs a Python program after PRELUDE."""
        path = f"/tmp/attack-{uuid.uuid4().hex[:8]}.py"
        self.sandbox.files.write(path, PRELUDE + textwrap.dedent(source), user=user or self.user)
        return self.shell(f"exec python3 {path}", user, **options)

    def attack(self, source: str, user: str | None = None, **options) -> dict:
        """Runs a Python program and gives what it reported. One that reports nothing did not run to its end."""
        return reported(self.python(source, user, **options))

    def compile(self, source: str) -> str:
        """Compiles C inside; answers with the program's path."""
        path = f"/tmp/attack-{uuid.uuid4().hex[:8]}"
        self.sandbox.files.write(f"{path}.c", textwrap.dedent(source), user=self.user)
        self.shell(f"gcc -O1 -Wall -Werror -pthread -o {path} {path}.c")
        return path


def reported(result) -> dict:
    lines = [line for line in result.stdout.splitlines() if line.startswith("REPORT ")]
    assert len(lines) == 1, f"the attack did not run to its end: {result}"
    return json.loads(lines[0].removeprefix("REPORT "))


class Bystanders:
    """A sandbox that has done nothing wrong, and the host."""

    def __init__(self):
        self.neighbour = Sandbox.create(timeout=LIFE_S)
        self.traces = Traces(self.neighbour.sandbox_id)
        self.neighbour.files.write("/home/user/mine", "untouched")

    def answer(self):
        mark = uuid.uuid4().hex
        said = self.neighbour.commands.run(f"cat /home/user/mine; echo {mark} | tee last; cat last", timeout=PATIENCE_S)
        assert said.stdout == f"untouched{mark}\n{mark}\n"
        health = httpx.get(os.environ["E2B_API_URL"] + "/health", timeout=PATIENCE_S)
        assert health.is_success, health
        fresh = Sandbox.create(timeout=LIFE_S, request_timeout=PATIENCE_S)
        try:
            assert fresh.commands.run(f"echo {mark}", timeout=PATIENCE_S).stdout == f"{mark}\n"
        finally:
            fresh.kill()


@pytest.fixture(scope="session")
def bystanders():
    made = Bystanders()
    yield made
    made.neighbour.kill()


@pytest.fixture(params=["root", "user"])
def user(request):
    """Who attacks. A test for which only one makes sense says so with `parametrize`."""
    return request.param


@pytest.fixture
def attackers(bystanders):
    """Makes attackers; checks at the end that they hurt nobody and left nothing."""
    made = []

    def make(user="root", **options):
        made.append(Attacker(user, **options))
        return made[-1]

    yield make
    try:
        bystanders.answer()
    finally:
        for attacker in made:
            attacker.sandbox.kill()
    for attacker in made:
        eventually(lambda: not attacker.traces.left(), attacker.traces.left, PATIENCE_S)
    bystanders.answer()


@pytest.fixture
def attacker(attackers, user):
    return attackers(user)
