"""Volumes by the SDK: mounted in sandboxes, and their files without one."""

import io
import os
import uuid

import httpx
import pytest
from e2b import AuthenticationException, NotFoundException, Sandbox, SandboxException, Volume
from e2b.exceptions import VolumeException, VolumeNotFoundException, VolumePathNotFoundException


@pytest.fixture
def volumes():
    """Makes volumes that go with the test."""
    made = []

    def create(name=None):
        made.append(Volume.create(name or f"vol-{uuid.uuid4().hex[:12]}"))
        return made[-1]

    yield create
    for volume in made:
        Volume.destroy(volume.volume_id)


@pytest.fixture
def mounts(volumes):
    """Makes sandboxes that end before the volumes do."""
    made = []

    def create(**options):
        made.append(Sandbox.create(timeout=600, **options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def own():
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    with httpx.Client(base_url=os.environ["E2B_API_URL"] + "/api/v1", headers=headers, timeout=120) as client:
        yield client


def test_a_volume_is_created_found_and_destroyed(volumes):
    volume = volumes()
    assert volume.token
    assert (volume.volume_id, volume.name) in [(each.volume_id, each.name) for each in Volume.list()]
    info = Volume.get_info(volume.volume_id)
    assert (info.name, info.token) == (volume.name, volume.token)
    assert Volume.connect(volume.volume_id).name == volume.name
    with pytest.raises(VolumeException, match="409"):
        Volume.create(volume.name)
    with pytest.raises(VolumeException, match="400"):
        Volume.create("not a name")
    assert Volume.destroy(volume.volume_id) is True
    assert Volume.destroy(volume.volume_id) is False
    with pytest.raises(VolumeNotFoundException):
        Volume.get_info(volume.volume_id)


def test_two_sandboxes_share_a_volume_that_outlives_them(volumes, mounts):
    volume = volumes()
    one = mounts(volume_mounts={"/mnt/data": volume})
    two = mounts(volume_mounts={"/data": volume.name})
    one.files.write("/mnt/data/a", "by the default user")
    assert two.files.read("/data/a") == "by the default user"
    two.commands.run("echo more >> /data/b && mkdir /data/d && mv /data/b /data/d", user="root")
    assert one.commands.run("cat /mnt/data/d/b").stdout == "more\n"
    assert one.get_info().volume_mounts == [{"name": volume.name, "path": "/mnt/data"}]
    listed = [each for each in Sandbox.list().next_items() if each.sandbox_id == two.sandbox_id]
    assert listed[0].volume_mounts == [{"name": volume.name, "path": "/data"}]
    with pytest.raises(VolumeException, match="409"):
        Volume.destroy(volume.volume_id)
    one.kill()
    two.kill()
    assert volume.read_file("/a") == "by the default user"
    late = mounts(volume_mounts={"/data": volume})
    assert late.commands.run("cat /data/a /data/d/b").stdout == "by the default usermore\n"
    late.kill()
    assert Volume.destroy(volume.volume_id) is True


def test_a_pause_and_a_fork_keep_the_mount(volumes, mounts):
    volume = volumes()
    sandbox = mounts(volume_mounts={"/data": volume})
    sandbox.files.write("/data/a", "before")
    sandbox.pause()
    volume.write_file("/a", "meanwhile")
    sandbox.connect()
    assert sandbox.files.read("/data/a") == "meanwhile"
    # As after a restart of the host.
    sandbox.pause(keep_memory=False)
    sandbox.connect()
    assert sandbox.files.read("/data/a") == "meanwhile"
    (fork,) = sandbox.fork(timeout=600)
    try:
        fork.files.write("/data/a", "by the fork")
        assert sandbox.files.read("/data/a") == "by the fork"
    finally:
        fork.kill()


def test_unknown_and_bad_mounts_are_refused(volumes):
    volume = volumes()
    with pytest.raises(SandboxException, match="volume 'no-such-volume' not found"):
        Sandbox.create(volume_mounts={"/data": "no-such-volume"})
    for path in ["relative", "/proc/x", "/a/../b"]:
        with pytest.raises(SandboxException, match="400"):
            Sandbox.create(volume_mounts={path: volume})


def test_files_are_written_read_listed_and_removed(volumes):
    volume = volumes()
    written = volume.write_file("/a.txt", "hello", uid=1000, gid=1001, mode=0o640)
    assert (written.name, written.type.value, written.path, written.size) == ("a.txt", "file", "/a.txt", 5)
    assert (written.uid, written.gid, written.mode) == (1000, 1001, 0o640)
    assert volume.read_file("/a.txt") == "hello"
    assert volume.read_file("/a.txt", format="bytes") == b"hello"
    large = os.urandom(9 << 20)
    volume.write_file("large", io.BytesIO(large))
    assert b"".join(volume.read_file("/large", format="stream")) == large
    # What is overwritten keeps its owner.
    again = volume.write_file("/a.txt", "again")
    assert (again.uid, again.mode, volume.read_file("/a.txt")) == (1000, 0o640, "again")
    with pytest.raises(VolumeException, match="409"):
        volume.write_file("/a.txt", "no", force=False)

    with pytest.raises(VolumePathNotFoundException):
        volume.make_dir("/deep/er")
    made = volume.make_dir("/deep/er", force=True, mode=0o700, uid=7)
    assert (made.type.value, made.path, made.mode, made.uid) == ("directory", "/deep/er", 0o700, 7)
    volume.write_file("/deep/er/b", b"\x00\xff")
    assert [each.path for each in volume.list("/")] == ["/a.txt", "/deep", "/large"]
    assert [each.path for each in volume.list("/", depth=3)] == [
        "/a.txt",
        "/deep",
        "/deep/er",
        "/deep/er/b",
        "/large",
    ]
    assert volume.update_metadata("/a.txt", mode=0o600, uid=5).mode == 0o600
    assert (volume.get_info("/a.txt").uid, volume.get_info("/").type.value) == (5, "directory")
    assert volume.exists("/a.txt") and not volume.exists("/missing")
    volume.remove("/deep")
    assert not volume.exists("/deep/er/b")
    for missing in [volume.remove, volume.read_file, volume.list, volume.get_info]:
        with pytest.raises(VolumePathNotFoundException):
            missing("/missing")
    with pytest.raises(VolumeException, match="400"):
        volume.remove("/")
    with pytest.raises(VolumeException, match="400"):
        volume.read_file("/")


def test_links_of_a_volume_lead_nowhere_else(volumes, mounts):
    volume = volumes()
    sandbox = mounts(volume_mounts={"/data": volume})
    sandbox.commands.run(
        "cd /data && ln -s /etc/passwd out && ln -s ../../../etc up && ln -s /real inside && mkdir real"
        " && echo x > real/f && mkfifo pipe && ln -s loop loop",
    )
    assert volume.get_info("/out").target == "/etc/passwd"
    assert volume.get_info("/out").type.value == "symlink"
    for path in ["/out", "/up/passwd", "/loop", "/../../../etc/passwd"]:
        with pytest.raises((VolumeException, NotFoundException)):
            volume.read_file(path)
    assert volume.read_file("/inside/f") == "x\n"
    with pytest.raises(VolumeException, match="400"):
        volume.read_file("/pipe")
    # It replaces the link and not what the link leads to.
    volume.write_file("/out", "mine")
    assert volume.get_info("/out").type.value == "file"
    volume.remove("/up")
    assert volume.exists("/real/f")


def test_a_token_opens_its_own_volume_alone(volumes):
    mine, other = volumes(), volumes()
    stranger = Volume(volume_id=other.volume_id, name=other.name, token=mine.token)
    with pytest.raises(AuthenticationException):
        stranger.list("/")
    Volume.destroy(other.volume_id)
    with pytest.raises(AuthenticationException):
        other.list("/")


def test_the_limit_holds_in_a_sandbox_and_for_content(own, mounts):
    name = f"small-{uuid.uuid4().hex[:12]}"
    made = own.post("/volumes", json={"name": name, "size_mib": 16}).raise_for_status().json()
    try:
        volume = Volume.connect(made["id"])
        sandbox = mounts(volume_mounts={"/data": volume})
        full = sandbox.commands.run("dd if=/dev/zero of=/data/big bs=1M count=40 conv=fsync 2>&1 || true", user="root")
        assert "quota" in full.stdout or "No space" in full.stdout, full.stdout
        sandbox.commands.run("rm /data/big", user="root")
        with pytest.raises(VolumeException, match="507"):
            volume.write_file("/big", bytes(40 << 20))
        assert not volume.exists("/big")
        volume.write_file("/small", "fits")
        reader = {"volumes": [{"name": name, "path": "/data", "read_only": True}]}
        created = own.post("/sandboxes", json=reader).raise_for_status().json()
        assert created["volumes"] == reader["volumes"]
        try:
            box = Sandbox.connect(created["id"])
            assert box.files.read("/data/small") == "fits"
            assert box.commands.run("touch /data/x 2>&1 || true", user="root").stdout.endswith(
                "Read-only file system\n"
            )
        finally:
            own.delete(f"/sandboxes/{created['id']}").raise_for_status()
        sandbox.kill()
    finally:
        own.delete(f"/volumes/{made['id']}").raise_for_status()
