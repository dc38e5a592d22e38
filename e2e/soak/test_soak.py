"""Parts are killed at random moments while clients work. Nothing that was answered may be lost, nothing may leak.

SOAK_SEED=7 SOAK_KILLS=100 e2e/run soak -- -k random
"""

import random
import statistics
import time

import pytest

from conftest import KILLS, SEED


@pytest.mark.timeout(120 + 30 * KILLS)
def test_kills_at_random_moments(world, capsys):
    dice = random.Random(SEED)
    say(capsys, f"soak: {KILLS} kills, seed {SEED}; again with `make soak SEED={SEED} KILLS={KILLS}`")
    took: dict[str, list[float]] = {}
    with world.busy():  # so that there is something to lose
        time.sleep(2)
    world.check()
    for number in range(KILLS):
        roles = [*sorted(world.place.parts()), "agentd", "up", "all"]
        # Every role has its turn; the order and the moments are the dice's.
        if number % len(roles) == 0:
            turn = dice.sample(roles, len(roles))
        role = turn[number % len(roles)]
        try:
            with world.busy():
                time.sleep(dice.uniform(0.1, 0.8))
                if role in ("agentd", "all"):
                    world.kill_agent(dice)
                if role != "agentd":
                    took.setdefault(role, []).append(world.kill(role))
                time.sleep(dice.uniform(0, 0.3))
            world.check()
        except BaseException:
            say(capsys, f"soak: failed at kill {number + 1}, of {role}, seed {SEED}")
            raise
    say(capsys, f"soak: {world.counts}")
    say(capsys, f"soak: the slowest request took {world.client.slowest_s:.2f} s")
    for role, times in sorted(took.items()):
        middle, worst = statistics.median(times), max(times)
        say(capsys, f"soak: {role:8} killed {len(times):3} times, back after {middle:.2f} s (worst {worst:.2f} s)")
    world.destroy_all()
    world.check()


def say(capsys, text: str):
    with capsys.disabled():
        print(text, flush=True)
