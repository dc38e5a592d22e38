"""A `coffer up` in a network namespace of its own, with the world at the other end of a link.

These tests run in that namespace too: for coffer they are programs of its host. Nothing here touches the machine's
own network.
"""

import os
import pathlib
import signal

import httpx
import pytest
from e2b import CommandExitException, Sandbox

from coffer_up import CofferUp, eventually, inventory
from outside import World, ip, leave_network
from places import GATE, GATE_V6, HOST_V6, MIRROR_NAME, STRAYS

LIFE_S = 600
PATIENCE_S = 120


class Attempt:
    """What a command inside came to."""

    def __init__(self, sandbox: Sandbox, command: str, **options):
        options.setdefault("timeout", PATIENCE_S)
        try:
            result = sandbox.commands.run(command, **options)
        except CommandExitException as error:
            result = error
        self.code, self.stdout, self.stderr = result.exit_code, result.stdout, result.stderr

    def __repr__(self):
        return f"exit {self.code}: {self.stdout[-500:]!r} {self.stderr[-500:]!r}"


def curl(sandbox: Sandbox, *arguments: str) -> Attempt:
    """Fails (22) where an answer says that it refuses: egress refuses plain HTTP in words."""
    return Attempt(sandbox, "curl -sSgkf -m 20 " + " ".join(f"'{each}'" for each in arguments))


def reach(sandbox: Sandbox) -> dict:
    """What the server says of a sandbox's network."""
    url = f"{os.environ['E2B_API_URL']}/api/v1/sandboxes/{sandbox.sandbox_id}/network"
    answer = httpx.get(url, headers={"X-API-Key": os.environ["E2B_API_KEY"]}, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    if why := leave_network():
        pytest.skip(f"SKIPPED: {why}")
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.end()


@pytest.fixture(scope="session")
def up(world, tmp_path_factory):
    options = ["--ephemeral", "--nameserver", GATE, "--warm-slots", "2"]
    options += ["--set", f"network.extra_roots={world.authority}"]
    options += ["--set", f"mirrors.hosts={','.join([MIRROR_NAME, *STRAYS])}"]
    with CofferUp(tmp_path_factory.mktemp("coffer") / "data", *options, pool_size="2GiB") as running:
        os.environ.update(running.env())
        yield running
    left = {kind: found for kind, found in inventory(running).items() if found and kind != "cgroups"}
    assert not left, "all that it made goes with it"


@pytest.fixture
def sandboxes(up):
    """Makes sandboxes, and ends them with the test."""
    made = []

    def make(**options) -> Sandbox:
        made.append(Sandbox.create(timeout=LIFE_S, **options))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def without_ipv6(up):
    """The host's link has no address of IPv6; coffer notices."""
    ip("-6", "address", "flush", "dev", "uplink", "scope", "global")
    ip("-6", "route", "flush", "dev", "uplink")
    eventually(lambda: "IPv4 alone" in _last_news(up), "egress knows")
    yield
    ip("-6", "address", "add", f"{HOST_V6}/64", "dev", "uplink", "nodad")
    ip("-6", "route", "replace", "default", "via", GATE_V6)
    eventually(lambda: "IPv4 alone" not in _last_news(up), "egress knows")


def _last_news(up: CofferUp) -> str:
    """What egress last said of its surroundings."""
    said = [line for line in up.log.read_text(errors="replace").splitlines() if "using nameservers" in line]
    return said[-1]


def part(up: CofferUp, name: str) -> int:
    """The process of one of `coffer up`'s parts."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == up.process.pid and name.encode() in words[:2]:
            return int(entry.name)
    raise LookupError(f"no part {name}")


def kill_part(up: CofferUp, name: str) -> int:
    pid = part(up, name)
    os.kill(pid, signal.SIGKILL)
    return pid
