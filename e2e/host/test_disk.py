"""A sandbox that fills its disk hurts itself only."""

import io

import pytest
from e2b import NotEnoughSpaceException, Sandbox

LIMIT_MIB = 256


def test_full_disk(server):
    up = server("disk", "--ephemeral", "--sandbox-disk", f"{LIMIT_MIB}MiB").start()
    full, other = (Sandbox.create(timeout=600, **up.sdk()) for _ in range(2))
    # A host without a pool says so when it starts, and limits nothing.
    if "disk use of sandboxes is not limited" in up.log.read_text():
        pytest.skip("SKIPPED: this host gives sandboxes no disk limit")
    filled = full.commands.run(
        f"dd if=/dev/zero of=ballast bs=1M count={LIMIT_MIB * 2} status=none || stat -c %s ballast"
    )
    assert 0 < int(filled.stdout) <= LIMIT_MIB << 20
    with pytest.raises(NotEnoughSpaceException):
        full.files.write("too-much", io.BytesIO(b"x" * (96 << 20)), request_timeout=300)
    other.files.write("fits", "x" * (1 << 20))
    assert other.files.get_info("fits").size == 1 << 20
    full.files.remove("ballast")
    full.files.remove("too-much")
    full.files.write("enough", "again")
    assert full.files.read("enough") == "again"
