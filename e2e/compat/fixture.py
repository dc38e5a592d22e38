"""Fixtures: packed data directories of releases, each with a manifest of what a later version must find in it."""

import fcntl
import hashlib
import json
import lzma
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "soak")]
from coffer_up import CofferUp, inventory
from database import postgres
from parts import cgroups_of, uid_blocks

FIXTURES = HERE / "fixtures"
# Journal and snapshots have absolute paths of layers, so a fixture must be opened where it was made.
HOME = pathlib.Path("/var/lib/coffer-compat")
DATABASES = ["sqlite", "postgres"]
POOL_SIZE = "1GiB"


@dataclass
class Fixture:
    version: str
    database: str

    @property
    def directory(self) -> pathlib.Path:
        return FIXTURES / self.version / self.database

    @property
    def archive(self) -> pathlib.Path:
        return self.directory / "data.tar.xz"

    def manifest(self) -> dict:
        return json.loads((self.directory / "manifest.json").read_text())

    def __str__(self) -> str:
        return f"{self.version}-{self.database}"


def fixtures() -> list[Fixture]:
    found = sorted(FIXTURES.glob("*/*/manifest.json"))
    return [Fixture(path.parent.parent.name, path.parent.name) for path in found]


@dataclass
class Place:
    """Where a fixture is made and opened: a data directory, a template directory, and a dump of PostgreSQL."""

    root: pathlib.Path = HOME

    @property
    def data_dir(self) -> pathlib.Path:
        return self.root / "data"

    @property
    def template_dir(self) -> pathlib.Path:
        return self.root / "templates"

    @property
    def dump(self) -> pathlib.Path:
        return self.root / "database.sql"

    def up(self, *options: str) -> CofferUp:
        return CofferUp(self.data_dir, "--template-dir", str(self.template_dir), *options, pool_size=POOL_SIZE)

    def pack(self, archive: pathlib.Path):
        """Packs everything but the server's log."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        parts = [path.name for path in (self.data_dir, self.template_dir, self.dump) if path.exists()]
        # The pool's image is fully allocated: the file system reports no holes, so look for zeros.
        command = ["tar", "--create", "--sparse", "--hole-detection=raw", "--numeric-owner", "--sort=name"]
        command += [*XATTRS, "-C", self.root, *parts]
        with (
            subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE) as tar,
            lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        ):
            shutil.copyfileobj(tar.stdout, packed)
        assert tar.returncode == 0, f"tar ended with {tar.returncode}"

    def unpack(self, archive: pathlib.Path):
        command = ["tar", "--extract", "--numeric-owner", "--same-permissions", *XATTRS, "-C", str(self.root)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as tar, lzma.open(archive) as packed:
            shutil.copyfileobj(packed, tar.stdin)
        assert tar.returncode == 0, f"tar ended with {tar.returncode}"


XATTRS = ["--xattrs", "--xattrs-include=*"]


@contextmanager
def place():
    """Empties the place and holds it. Btrfs refuses to mount two copies of one image, so runs wait for each other."""
    HOME.mkdir(mode=0o755, exist_ok=True)
    lock = os.open(HOME, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        clear()
        yield Place()
    finally:
        clear()
        os.close(lock)


def clear():
    """Removes everything, and unmounts what a killed run left behind."""
    mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{HOME}/")]):
        subprocess.run(["umount", "--lazy", mount], check=False)
    for entry in HOME.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@contextmanager
def unpacked(fixture: Fixture, here: Place):
    """Unpacks a fixture, starts its database, and yields the options that name it."""
    here.unpack(fixture.archive)
    if fixture.database == "sqlite":
        yield []
        return
    with postgres() as url:
        restore = ["psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={here.dump}", url]
        subprocess.run(restore, check=True, stdout=subprocess.DEVNULL)
        yield ["--database-url", url]


def openable(fixture: Fixture) -> dict:
    """Returns the manifest. Skips the test if this machine cannot open the fixture."""
    import pytest  # `make` runs without it

    manifest = fixture.manifest()
    if manifest["simple_quotas"] and not has_simple_quotas():
        pytest.skip("SKIPPED: this kernel cannot mount a pool with simple quotas (Linux 6.7 and later can)")
    return manifest


def assert_nothing_left(up: CofferUp):
    """For a server that was stopped after `--ephemeral`."""
    left = inventory(up) | {"cgroups": cgroups_of(up), "uid blocks": uid_blocks(up)}
    assert not any(left.values()), left


def host_mark() -> str:
    """Says whether two hosts have the same kernel and processor, and nothing else about them."""
    cpu = {
        line
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines(keepends=True)
        if line.startswith(("model name", "flags"))
    }
    return hashlib.sha256("".join([platform.release(), *sorted(cpu)]).encode()).hexdigest()[:16]


def has_simple_quotas() -> bool:
    """Whether this kernel can mount a pool with simple quotas."""
    feature = pathlib.Path("/sys/fs/btrfs/features/simple_quota")
    if not feature.exists():
        subprocess.run(["modprobe", "btrfs"], check=False, capture_output=True)
    return feature.exists()
