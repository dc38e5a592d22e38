"""The template's programs run on the host itself: the same files, no box around them."""

import os
import shutil
import subprocess
import time
from pathlib import Path

from machine import CofferUp, mount

USER = 1000  # of the template's user


class Chroot:
    """Its home directory is `work`; nothing else can be written."""

    def __init__(self, root: Path, rootfs: Path, work: Path):
        self.root = root
        self.work = work
        root.mkdir()
        work.mkdir(exist_ok=True)
        os.chown(work, USER, USER)
        mount("--bind", rootfs, root)
        mount("-o", "remount,bind,ro", root)
        mount("-t", "proc", "proc", root / "proc")
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", root / "dev")
        for name in ("null", "zero", "full", "random", "urandom"):
            (root / "dev" / name).touch()
            mount("--bind", f"/dev/{name}", root / "dev" / name)
        mount("--bind", work, root / "home/user")
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root / "tmp")

    def execute(self, command: str, *arguments: str) -> float:
        """Runs a command as the template's user; answers how long it took."""
        words = [shutil.which("chroot"), f"--userspec={USER}:{USER}", str(self.root), command, *arguments]
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/user", "LANG": "C.UTF-8"}
        since = time.perf_counter()
        done = subprocess.run(words, env=env, capture_output=True, stdin=subprocess.DEVNULL)
        took = time.perf_counter() - since
        if done.returncode != 0:
            raise RuntimeError(f"{command} on the host: {done.stderr[-300:]!r}")
        return took

    def close(self):
        subprocess.run(["umount", "--recursive", str(self.root)], check=True)


def mount_pool(up: CofferUp, at: Path):
    """Mounts coffer's pool a second time, among our own mounts; it must be unmounted before coffer ends."""
    at.mkdir()
    words = ["losetup", "--noheadings", "--output", "NAME", "--associated", str(up.data / "node/pool.img")]
    device = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    if not device:
        raise RuntimeError("the pool is not on a loop device")
    mount("-o", "noatime", device, at)
