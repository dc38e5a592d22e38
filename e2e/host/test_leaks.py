"""Whatever sandboxes take from the host comes back."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import Sandbox

from coffer_up import eventually, growth, inventory

CYCLES = int(os.environ.get("E2E_CYCLES", "500"))


def cycle(number: int, sdk: dict) -> str:
    sandbox = Sandbox.create(timeout=600, **sdk)
    try:
        answer = sandbox.commands.run(f"echo {number}").stdout
        if number % 25 == 0:  # a few leave more to clean up than one short command
            sandbox.files.write("data", "x" * 100_000)
            sandbox.commands.run("setsid sleep 1000 & python3 -m http.server 8000", background=True, timeout=0)
            sandbox.pause()
        return answer
    finally:
        sandbox.kill()


@pytest.mark.parametrize("slots", [0, 16])
def test_cycles_leave_the_host_as_it_was(server, slots):
    up = server("leaks", "--ephemeral", f"--warm-slots={slots}").start()
    sdk = up.sdk()
    for number in range(3):  # what is made once and kept (pool, template, caches) is there before we count
        cycle(number, sdk)
    eventually(lambda: not Sandbox.list(**sdk).next_items(), "the first sandboxes gone")
    before = settled(up)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: cycle(number, sdk), range(CYCLES)))
    assert answers == [f"{number}\n" for number in range(CYCLES)]
    assert Sandbox.list(**sdk).next_items() == []
    # The answer to a kill does not wait for the reaper, and a pool that has grown shrinks when nobody asks.
    eventually(lambda: not growth(before, inventory(up)), lambda: growth(before, inventory(up)), 120)
    assert up.stop() == 0
    left = {kind: found for kind, found in inventory(up).items() if found and kind != "cgroups"}
    assert not left, left


def settled(up):
    """The inventory once the reaper has nothing more to do."""
    last = inventory(up)

    def same():
        nonlocal last
        previous, last = last, inventory(up)
        return {kind: len(found) for kind, found in previous.items()} == {
            kind: len(found) for kind, found in last.items()
        }

    for _ in range(5):
        # A process that was killed may still be there a moment later, however often one looks in that moment.
        time.sleep(0.2)
        eventually(same, "an inventory that holds still")
    return last


def test_a_running_sandbox_is_counted_at_all(server):
    """Guards the test above: an inventory that sees nothing would always be content."""
    up = server("counted", "--ephemeral", "--warm-slots=0").start()  # a slot that is claimed was there before
    Sandbox.create(timeout=600, **up.sdk()).kill()  # the first of a template has its trust store made, for all
    before = settled(up)
    sandbox = Sandbox.create(timeout=600, **up.sdk())
    grown = growth(before, inventory(up))
    assert {"processes", "network namespaces", "pid namespaces", "sockets"} <= grown.keys(), grown
    assert grown.keys() & {"cgroups", "node files"}, grown
    sandbox.kill()
    eventually(lambda: not growth(before, inventory(up)), "everything given back", 120)
