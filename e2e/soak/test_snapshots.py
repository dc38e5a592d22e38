"""Pauses, resumes, snapshots and forks under write load, with the server or the node killed at random moments.

No file may be lost after its fsync, no tree be there in part, nothing be left over.

    SOAK_SEED=7 SOAK_PAUSES=2000 SOAK_FORKS=500 SOAK_IMAGES=50 e2e/run soak -- -k snapshots
"""

import ctypes
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import threading
import time
import zlib

import pytest

import fsynced
from client import Away, Refused
from coffer_up import eventually
from conftest import SEED
from parts import listed
from world import Box

PAUSES = int(os.environ.get("SOAK_PAUSES") or 12)
FORKS = int(os.environ.get("SOAK_FORKS") or 6)
IMAGES = int(os.environ.get("SOAK_IMAGES") or 2)
KILLED = ["server", "node"]
WORK = "/home/user/fsynced"
PROGRAM = pathlib.Path(fsynced.__file__).read_bytes()


class Writer:
    """A sandbox in which something writes all the time, and how far it is known to have come."""

    def __init__(self, place, dice: random.Random):
        self.place, self.dice = place, dice
        made = place.client.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3000})
        self.box = Box(made["sandboxID"], made["envdAccessToken"], 0, 0)
        self.known = 0  # a number that was in the journal, and so on disk
        self.counts: dict[str, int] = {}
        place.client.upload(self.box, "/home/user/fsynced.py", PROGRAM)
        self.write()

    def write(self):
        """Has it write, if it does not."""
        # Asked of the processes, not of a lock: what becomes of locks is not what is looked at here.
        running = "grep -qsz '^write$' /proc/[0-9]*/cmdline"
        script = f"cd /home/user; {running} || exec python3 fsynced.py write {WORK} > /tmp/out 2>&1"
        self.insist(lambda: self.place.client.launch(self.box, script, "writer"))

    def insist(self, ask):
        """Asks again while a part is away."""

        def answered():
            try:
                return ask() or True
            except Away:
                return None
            except Refused as error:
                # Away, or still at what an earlier request began.
                if error.status in (502, 503, 409):
                    return None
                raise

        return eventually(answered, "an answer", 60)

    def note(self):
        """Remembers a number that is on disk: the line before the last was synced before the last was begun."""
        if last := self.look(self.box)[0]:
            assert last >= self.known, f"{last} is before {self.known}"
            self.known = max(self.known, last - 1)

    def look(self, box) -> tuple[int, list[str]]:
        told = self.insist(lambda: self.place.client.run(box, f"cd /home/user; python3 fsynced.py check {WORK}"))
        first, *wrong = told.output.splitlines()
        return int(first), wrong

    def verify(self, box, what: str, at_least: int):
        last, wrong = self.look(box)
        assert not wrong, f"{what}: {wrong}"
        assert last >= at_least, f"{what}: {at_least} was on disk, and {last} is the last there"

    def disturbed(self, ask):
        """Does something while, perhaps, a part is killed. What it answers, or None where that is not known."""
        role = self.dice.choice(KILLED) if self.dice.random() < 0.4 else None
        outcome = []

        def run():
            try:
                outcome.append(ask())
            except Away:
                assert role, "a connection was cut though nothing was killed"
            except Refused as error:
                assert role and error.status in (500, 503), f"with {role} killed: {error}"

        thread = threading.Thread(target=run)
        thread.start()
        if role:
            time.sleep(self.dice.uniform(0, 0.25))
            self.count(f"killed {role}")
            self.place.kill(role)
        thread.join()
        return outcome[0] if outcome else None

    def count(self, what: str):
        self.counts[what] = self.counts.get(what, 0) + 1

    def state(self) -> str:
        return self.insist(lambda: self.place.client.api("GET", f"/sandboxes/{self.box.id}"))["state"]

    def pause_and_resume(self):
        self.note()
        memory = self.dice.random() < 0.5
        path = f"/sandboxes/{self.box.id}"
        self.disturbed(lambda: self.place.client.api("POST", f"{path}/pause", {"memory": memory}) or True)
        if self.state() == "paused":
            resume = {"timeout": 3000, "memory": False} if self.dice.random() < 0.2 else {"timeout": 3000}
            self.disturbed(lambda: self.place.client.api("POST", f"/v2{path}/connect", resume))
        self.insist(lambda: self.place.client.api("POST", f"/v2{path}/connect", {"timeout": 3000}))
        self.verify(self.box, f"after a pause with memory {memory}", self.known)
        self.write()
        self.count("pauses")

    def fork(self):
        self.note()
        ask = {"count": self.dice.choice([1, 1, 2, 3]), "timeout": 300}
        forked = self.disturbed(lambda: self.place.client.api("POST", f"/sandboxes/{self.box.id}/fork", ask))
        for child in forked or []:
            assert "sandbox" in child or self.counts, child
            if made := child.get("sandbox"):
                self.verify(Box(made["sandboxID"], made["envdAccessToken"], 0, 0), "in a child", self.known)
                self.count("children")
        self.end_others()
        self.verify(self.box, "after a fork", self.known)
        self.write()
        self.count("forks")

    def snapshot(self):
        self.note()
        path = f"/sandboxes/{self.box.id}/snapshots"
        made = self.disturbed(lambda: self.place.client.api("POST", path, {"name": "soak"}))
        if made:
            new = {"templateID": made["snapshotID"], "timeout": 300}
            child = self.disturbed(lambda: self.place.client.api("POST", "/v2/sandboxes", new))
            if child:
                self.verify(Box(child["sandboxID"], child["envdAccessToken"], 0, 0), "from a snapshot", self.known)
        self.end_others()
        self.delete_snapshots()
        self.count("snapshots")

    def delete_snapshots(self):
        """All of them, those that nobody was told of included."""
        for one in self.insist(lambda: self.place.client.api("GET", "/api/v1/snapshots"))["items"]:

            def delete(path=f"/api/v1/snapshots/{one['id']}"):
                try:
                    self.place.client.api("DELETE", path)
                except Refused as error:
                    if error.status != 404:
                        raise

            self.insist(delete)

    def end_others(self):
        for one in self.insist(lambda: self.place.client.api("GET", "/v2/sandboxes")):
            if one["sandboxID"] != self.box.id:
                self.insist(lambda: self.destroyed(one["sandboxID"]))

    def destroyed(self, sandbox: str):
        try:
            self.place.client.api("DELETE", f"/sandboxes/{sandbox}")
        except Refused as error:
            if error.status != 404:
                raise

    def left(self) -> list[str]:
        """What is left of snapshots and children, once all of them are over."""
        node = self.place.node_dir
        wrong = [f"manifest {name}" for name in listed(node / "snapshots")]
        wrong += [f"snapshot {name}" for name in listed(node / "pool/snapshots")]
        return wrong + self.place.stranded({self.box.id: self.state() == "running"})


@pytest.mark.timeout(180 + 20 * (PAUSES + 2 * FORKS))
def test_snapshots_and_pauses_lose_nothing(place, capsys):
    dice = random.Random(SEED)
    writer = Writer(place, dice)
    again = f"SOAK_SEED={SEED} SOAK_PAUSES={PAUSES} SOAK_FORKS={FORKS}"
    work = [writer.pause_and_resume] * PAUSES + [writer.fork] * FORKS + [writer.snapshot] * max(1, FORKS // 3)
    dice.shuffle(work)
    for number, step in enumerate(work):
        time.sleep(dice.uniform(0, 0.3))
        try:
            step()
        except BaseException:
            say(capsys, f"soak: failed at step {number + 1} of {len(work)}, {step.__name__}; again with {again}")
            raise
    eventually(lambda: not writer.left(), writer.left, 60)
    say(capsys, f"soak: {writer.counts}, {writer.known} numbers on disk; again with {again}")
    place.client.api("DELETE", f"/sandboxes/{writer.box.id}")


@pytest.mark.timeout(180 + 90 * IMAGES)
def test_what_was_synced_is_on_the_disk_itself(place, capsys):
    """A page cache survives `kill -9`; a copy of the image has what a power cut would have left."""
    if not place.has_pool():
        pytest.skip("SKIPPED: there is no disk image on this host")
    if not pathlib.Path("/sys/fs/btrfs/features/temp_fsid").exists():
        pytest.skip("SKIPPED: this kernel mounts no second copy of a btrfs file system")
    dice = random.Random(SEED)
    writer = Writer(place, dice)
    image, checked = place.node_dir / "pool.img", 0
    for number in range(IMAGES):
        time.sleep(dice.uniform(0.3, 1.5))
        if number % 2:
            forked = place.client.api("POST", f"/sandboxes/{writer.box.id}/fork", {"timeout": 300})
            assert "sandbox" in forked[0], forked
        writer.note()
        # Nothing is written while it is copied, and nothing is flushed that was not before. A child has its
        # source's processes where memory can be saved, and writes as that does.
        for one in place.client.api("GET", "/v2/sandboxes"):
            place.client.api("POST", f"/sandboxes/{one['sandboxID']}/pause", {"memory": True})
        with copy_of(image) as copy:
            checked += check_copy(copy, writer.known)
        place.client.api("POST", f"/v2/sandboxes/{writer.box.id}/connect", {"timeout": 3000})
        writer.end_others()
    assert checked >= IMAGES, "no sandbox's files were found in the copies"
    say(capsys, f"soak: {IMAGES} copies of the pool had everything up to number {writer.known}")
    place.client.api("DELETE", f"/sandboxes/{writer.box.id}")


def say(capsys, text: str):
    with capsys.disabled():
        print(text, flush=True)


def generation(image: pathlib.Path) -> bytes:
    """Of the file system: which commit and which log a mount would begin with."""
    with image.open("rb") as file:
        file.seek(0x10000)
        superblock = file.read(4096)
    assert superblock[0x40:0x48] == b"_BHRfS_M", "this is no btrfs"
    return superblock[0x48:0x50] + superblock[0x50:0x70]


class copy_of:
    """A copy of the image as it is at one moment: taken again where something was committed meanwhile."""

    def __init__(self, image: pathlib.Path):
        self.image = image

    def __enter__(self) -> pathlib.Path:
        self.scratch = pathlib.Path(tempfile.mkdtemp(prefix="coffer-soak-copy-"))
        copy = self.scratch / "pool.img"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            before = generation(self.image)
            subprocess.run(["cp", "--sparse=always", self.image, copy], check=True)
            if generation(self.image) == before:
                return copy
        shutil.rmtree(self.scratch)
        raise AssertionError("the pool was never at rest for as long as a copy takes")

    def __exit__(self, *_):
        shutil.rmtree(self.scratch)


def damaged(manifest: pathlib.Path) -> list[str]:
    """What of a saved memory is not what its manifest says."""
    wrong = []
    for file in json.loads(manifest.read_text())["files"]:
        path = manifest.with_name(file["name"])
        found = path.read_bytes() if path.exists() else b""
        # An encrypted one has tags of its own, under a key that is not in the pool: the next wake compares them.
        tags = 16 * max(1, -(-file["bytes"] // (1 << 20))) if file["checksum"] is None else 0
        same = tags or zlib.crc32(found) == file["checksum"]
        if not same or len(found) != file["bytes"] + tags:
            wrong.append(f"{path} has {len(found)} bytes, not {file['bytes']}, or others")
    return wrong


def check_copy(copy: pathlib.Path, at_least: int, journals: str = "**/home/user/fsynced/journal") -> int:
    """Mounts it in a namespace of its own, which takes the mount along, and checks what the writers wrote."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        told = "the child died"
        try:
            os.close(reads)
            mounted = copy.with_name("mounted")
            mounted.mkdir()
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(0x00020000):
                raise OSError(ctypes.get_errno(), "unshare")
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            # Writable: what was synced since the last commit is in a log that the mount plays again.
            subprocess.run(["mount", "-o", "loop", copy, mounted], check=True)
            found, wrong = {}, []
            for journal in mounted.glob(journals):
                last, here = fsynced.check(str(journal.parent))
                found[str(journal.relative_to(mounted))] = last
                wrong += here
            wrong += [text for manifest in mounted.glob("m/*/image.json") for text in damaged(manifest)]
            # Forks and snapshots are of earlier moments.
            if max(found.values(), default=0) < at_least:
                wrong.append(f"{at_least} was on disk, and there are {found}")
            told = "\n".join([str(len(found)), *wrong])
            subprocess.run(["umount", "-d", mounted], check=True)
        except BaseException as error:
            told = f"0\n{type(error).__name__}: {error}"
        finally:
            os.write(writes, told.encode()[:60000])
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        first, *wrong = pipe.read().splitlines()
    os.waitpid(child, 0)
    assert not wrong, wrong[:10]
    return int(first)
