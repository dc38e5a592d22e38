import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import contextmanager

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from coffer_up import ROOT, CofferUp, inventory
from parts import Installation, cgroups_of, uid_blocks
from world import World

SEED = int(os.environ.get("SOAK_SEED") or 3)
KILLS = int(os.environ.get("SOAK_KILLS") or 10)


@contextmanager
def installation(*options: str, cut_off: Iterable[float] = ()):
    """An installation of a test's own, after starts that were cut off. Later nothing of it is left, or the test failed."""
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="coffer-soak-"))
    up = CofferUp(scratch / "data", *options)
    try:
        for after_s in cut_off:
            up.launch()
            time.sleep(after_s)
            up.stop(signal.SIGKILL)
        yield Installation(up)
    finally:
        if up.process.poll() is None:
            up.stop()
        # It adopts what is left, and takes it along when it stops.
        up.start(*{"--ephemeral"} - set(options))
        ended = up.stop()
        test = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split()[0]
        shutil.copy(up.log, ROOT / f"target/e2e/soak-{test}.log")
        told = up.log.read_text(errors="replace").splitlines()
        print("\n".join(line for line in told if " INFO " not in line)[-20000:])
        left = inventory(up) | {"cgroups": cgroups_of(up), "uid blocks": uid_blocks(up)}
        shutil.rmtree(scratch, ignore_errors=True)
    assert ended == 0
    assert not any(left.values()), left


@pytest.fixture
def place():
    with installation("--set", "limits.rates.requests_per_s=0", "--set", "limits.rates.creates_per_s=0") as place:
        yield place


@pytest.fixture
def world():
    with installation() as place:
        yield World(place, SEED)


@pytest.fixture(scope="module")
def shared_world():
    """One for all tests of a file."""
    with installation() as place:
        world = World(place, SEED)
        yield world
        world.destroy_all()
        world.check()


@pytest.fixture
def cold_world():
    """One that keeps no sandbox ready."""
    with installation("--warm-slots=0") as place:
        yield World(place, SEED)
