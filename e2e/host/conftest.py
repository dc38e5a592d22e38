import pathlib
import shutil
import tempfile

import pytest

from coffer_up import CofferUp


@pytest.fixture
def server():
    """Makes servers of a test's own; whatever the test left is destroyed with them."""
    made = []
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="coffer-host-"))

    def prepare(name, *options):
        made.append(CofferUp(scratch / name, *options))
        return made[-1]

    yield prepare
    for up in made:
        if up.process and up.process.poll() is None:
            up.stop()
        if (up.data_dir / "node").exists() and "--ephemeral" not in up.options:
            up.start("--ephemeral").stop()
    shutil.rmtree(scratch)
