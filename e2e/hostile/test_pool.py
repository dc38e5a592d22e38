"""Sandboxes that together want more disk than there is."""

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from coffer_up import CofferUp
from e2b import Sandbox

HOGS = 5
LIMIT_MIB = 600  # of each; the pool has 2 GiB for all


def fill(sandbox) -> int:
    """Writes until it is told to stop; answers with how many bytes there was room for."""
    done = sandbox.commands.run(
        f"dd if=/dev/urandom of=ballast bs=1M count={LIMIT_MIB} status=none; stat -c %s ballast", timeout=300
    )
    return int(done.stdout)


def test_a_full_pool_has_room_for_small_ones(tmp_path):
    """Five fill what is promised to each: a neighbour still writes, and another sandbox is made."""
    options = ["--ephemeral", "--warm-slots=0", f"--sandbox-disk={LIMIT_MIB}MiB", "--sandbox-memory=256MiB"]
    with CofferUp(tmp_path / "data", *options, pool_size="2GiB") as up:
        if "disk use of sandboxes is not limited" in up.log.read_text():
            pytest.skip("SKIPPED: this host gives sandboxes no disk limit")
        sdk = up.sdk()
        neighbour, *hogs = (Sandbox.create(timeout=900, **sdk) for _ in range(1 + HOGS))
        with ThreadPoolExecutor(HOGS) as threads:
            written = list(threads.map(fill, hogs))
        assert any(size < LIMIT_MIB << 20 for size in written), f"all of it fitted: {written}"
        assert "cannot grow" in up.log.read_text()
        for number in range(8):
            neighbour.files.write(f"small-{number}", io.BytesIO(bytes(1 << 20)), request_timeout=120)
        assert neighbour.commands.run("cat small-* | wc -c").stdout == f"{8 << 20}\n"
        another = Sandbox.create(timeout=900, **sdk)
        assert another.commands.run("echo written > file; cat file").stdout == "written\n"
        # Who frees what it holds may grow again.
        for hog in hogs:
            hog.commands.run("rm ballast")
        assert fill(hogs[0]) > 128 << 20
        assert up.stop() == 0
