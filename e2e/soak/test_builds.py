"""Server and node are killed over builds of templates, pulls of images and writes to a volume.

Every build is ready in the end, with each step done once; nothing half-built is listed meanwhile; what was synced in a volume
is there; nothing is left over.

    SOAK_SEED=7 BUILD_KILLS=100 e2e/run soak -- -k builds
"""

import os
import random
import time

import pytest

import registry
from builds import Workshop, settings
from conftest import SEED, installation
from test_snapshots import check_copy, copy_of
from test_soak import say

KILLS = int(os.environ.get("BUILD_KILLS") or 4)
KINDS = ["steps", "copy", "image", "service"]
ROLES = ["server", "node"]
OTHERS = ["spawner", "up", "all"]  # now and then
MOST_IN_A_ROW = 2  # a build that five servers died over fails, rightly


@pytest.fixture
def workshop(tmp_path):
    with registry.registry(tmp_path) as port:
        config = str(settings(port, tmp_path / "coffer.toml"))
        fast = ["--set", "limits.rates.requests_per_s=0", "--set", "limits.rates.creates_per_s=0"]
        with installation("--config", config, *fast) as place:
            yield Workshop(place, port, random.Random(SEED))


def check_host_crash(workshop):
    """What a mount would find of the volume after the host lost its power: all that was synced."""
    image = workshop.place.node_dir / "pool.img"
    if not image.exists():
        return
    workshop.check_volume()
    workshop.at_rest()
    with copy_of(image) as copy:
        assert check_copy(copy, workshop.known, "v/*/w/journal") == 1
    workshop.go_on()


@pytest.mark.timeout(120 + 60 * KILLS)
def test_builds_with_kills_at_random_moments(workshop, capsys):
    dice = workshop.dice
    say(capsys, f"builds: {KILLS} kills, seed {SEED}; again with `make soak SEED={SEED} BUILD_KILLS={KILLS}`")
    # First, while there is little to copy and nothing is being deleted.
    workshop.place.kill("node")
    check_host_crash(workshop)
    left, killed, kinds = KILLS, {}, []
    while left > 0:
        for _ in range(2):
            # Every kind has its turn; the order and the moments are the dice's.
            kinds = kinds or dice.sample(KINDS, len(KINDS))
            workshop.begin(kinds.pop())
        with workshop.watched():
            for _ in range(min(left, dice.randint(1, MOST_IN_A_ROW))):
                left -= 1
                role = dice.choice(OTHERS if left % 10 == 9 else ROLES)
                time.sleep(dice.uniform(0, 1.2))
                try:
                    workshop.place.kill(role)
                except BaseException:
                    say(capsys, f"builds: failed at a kill of {role}, {left} before the last, seed {SEED}")
                    raise
                killed[role] = killed.get(role, 0) + 1
            workshop.check_builds()
        workshop.check()
        workshop.delete_some()
    workshop.an_hour_later()
    workshop.check()
    left = workshop.wrong_later()
    assert not left, left
    workshop.end()
    say(capsys, f"builds: killed {killed} at random moments; {workshop.counts}, all right; seed {SEED}")
