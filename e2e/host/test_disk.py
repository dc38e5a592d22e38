"""A sandbox that fills its disk hurts itself only."""

import io

import pytest
from e2b import NotEnoughSpaceException, Sandbox

FREE = "df --output=avail -B1 /home/user | tail -1"


def test_full_disk(server):
    up = server("disk", "--ephemeral").start()
    full, other = (Sandbox.create(timeout=600, **up.sdk()) for _ in range(2))
    available = int(full.commands.run(FREE).stdout)
    if available > 256 << 30:
        pytest.skip(f"SKIPPED: this host gives sandboxes no disk limit ({available >> 30} GiB are free inside)")
    full.commands.run(
        f"fallocate -l {available - (8 << 20)} ballast || dd if=/dev/zero of=ballast bs=1M status=none || true",
        timeout=500,
    )
    with pytest.raises(NotEnoughSpaceException):
        full.files.write("too-much", io.BytesIO(b"x" * (96 << 20)), request_timeout=300)
    other.files.write("fits", "x" * (1 << 20))
    assert other.files.get_info("fits").size == 1 << 20
    full.files.remove("ballast")
    full.files.remove("too-much")
    full.files.write("enough", "again")
    assert full.files.read("enough") == "again"
