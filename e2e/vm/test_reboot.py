"""The host goes down and comes back: paused sandboxes keep what they had, and nothing of the others is left."""

import httpx
import pytest
from e2b import Sandbox

from coffer_up import eventually
from install import serves

PATIENCE_S = 300


@pytest.mark.parametrize("how", ["reboot", "reset"])
def test_what_was_paused_outlives_the_host(machine, how):
    paused = Sandbox.create(timeout=3600, request_timeout=PATIENCE_S)
    paused.files.write("/home/user/kept", "over the reboot")
    paused.pause(request_timeout=PATIENCE_S)
    running = Sandbox.create(timeout=3600, request_timeout=PATIENCE_S)
    running.commands.run("sleep 1000", background=True, timeout=0, request_timeout=PATIENCE_S)
    getattr(machine, how)()
    eventually(lambda: serves(machine), "the unit serves after the host came back", PATIENCE_S * 2)
    again = patiently(lambda: Sandbox.connect(paused.sandbox_id, timeout=3600, request_timeout=PATIENCE_S))
    assert patiently(lambda: again.files.read("/home/user/kept")) == "over the reboot"
    said = again.commands.run("echo works", timeout=PATIENCE_S, request_timeout=PATIENCE_S)
    assert said.stdout == "works\n"
    live = {found.sandbox_id for found in Sandbox.list().next_items()}
    assert paused.sandbox_id in live and running.sandbox_id not in live
    again.kill(request_timeout=PATIENCE_S)
    nothing_is_left(machine)


def patiently(ask):
    """The SDK keeps connections to a host that lost its power, and finds out at the first request over each."""
    answers = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except httpx.TransportError:
            return False
        return True

    eventually(answered, "an answer over a new connection", PATIENCE_S)
    return answers[0]


def nothing_is_left(machine):
    """Only what the unit itself and its ready sandboxes hold."""

    def strangers() -> str:
        # Mounts of a sandbox never show in the host's table, and what is on disk belongs to one on record.
        listing = "grep -c '/var/lib/coffer/node/pool ' /proc/self/mountinfo; losetup -n -O BACK-FILE | sort | uniq -d"
        return machine.run(listing, check=False).stdout

    assert strangers() == "1\n", strangers()
