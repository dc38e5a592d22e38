import pathlib
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from coffer_up import CofferUp, inventory  # noqa: E402
from parts import Installation, cgroups_of, uid_blocks  # noqa: E402


@pytest.fixture
def place():
    """An installation of the test's own. After the test nothing of it is left, or the test failed."""
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="coffer-soak-"))
    up = CofferUp(scratch / "data")
    try:
        yield Installation(up)
    finally:
        if up.process.poll() is None:
            up.stop()
        # It adopts what is left, and takes it along when it stops.
        up.start("--ephemeral")
        ended = up.stop()
        told = up.log.read_text(errors="replace").splitlines()
        print("\n".join(line for line in told if " INFO " not in line)[-20000:])
        after = inventory(up)
        blocks = uid_blocks(up)
        shutil.rmtree(scratch, ignore_errors=True)
    assert ended == 0
    assert not blocks, f"uid blocks left: {blocks}"
    after["cgroups"] = cgroups_of(up)
    assert not any(after.values()), after
