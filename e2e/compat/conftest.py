import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fixture import Fixture, assert_nothing_left, fixtures, openable, place, unpacked

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "network"))
from coffer_up import ROOT
from opened import Opened
from outside import World, leave_network
from places import GATE

# A fixture gets older than the time that records are kept by default.
AGES = ["limits.retention.events", "limits.retention.records", "limits.retention.audit", "webhooks.keep"]
AGES += ["webhooks.disable_after", "output.prune_after"]
OPTIONS = ["--warm-slots=2", "--set", "webhooks.local_targets=true"]
OPTIONS += [word for name in AGES for word in ("--set", f"{name}=36500d")]


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """The network outside, or None if this machine cannot have one."""
    if why := leave_network():
        print(f"no world outside: {why}")
        yield None
        return
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.end()


@pytest.fixture(scope="module", params=fixtures(), ids=str)
def opened(request, world, tmp_path_factory):
    """Today's server on the data of a release. After the last test it must leave nothing on the host."""
    fixture: Fixture = request.param
    manifest = openable(fixture)
    options = list(OPTIONS)
    if world:
        options += ["--nameserver", GATE, "--set", f"network.extra_roots={world.authority}"]
    with place() as here, unpacked(fixture, here) as database:
        up = here.up(*options, *database)
        try:
            up.start()
            yield Opened(manifest, up, tmp_path_factory.mktemp("work"))
            # The second start removes everything when it ends.
            ended = [up.stop(), up.start("--ephemeral").stop()]
        finally:
            if up.process.poll() is None:
                up.stop()
            shutil.copy(up.log, ROOT / f"target/e2e/compat-{fixture}.log")
        assert ended == [0, 0]
        assert_nothing_left(up)
