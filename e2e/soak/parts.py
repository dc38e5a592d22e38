"""The processes that can be killed, and what they hold on the host."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

from client import Client
from coffer_up import CofferUp, _descendants, processes

BACK_S = 10  # generous: what is expected is a second, which the report shows and no test demands
UIDS = pathlib.Path("/run/coffer/uids")


class Installation:
    """A `coffer up` that is killed again and again."""

    def __init__(self, up: CofferUp):
        self.up = up.start()
        env = up.env()
        self.client = Client(env["E2B_API_URL"], env["E2B_API_KEY"])

    @property
    def node_dir(self) -> pathlib.Path:
        return self.up.data_dir / "node"

    def parts(self) -> dict[str, int]:
        """Every part that `up` runs, by its role. A new one joins by itself."""
        top = self.up.process.pid
        here, found = os.readlink("/proc/self/ns/pid"), {}
        program = os.stat(f"/proc/{top}/exe")
        for pid in _descendants(top):
            try:
                # A sandbox that is just being made is still this program, but no part.
                ours = os.path.samestat(os.stat(f"/proc/{pid}/exe"), program)
                if ours and os.readlink(f"/proc/{pid}/ns/pid") == here:
                    role = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1].decode()
                    found[role] = pid
            except (OSError, IndexError):
                continue  # it ended while we looked
        return found

    def entries(self) -> list[dict]:
        """The node's journal."""
        found = []
        for path in (self.node_dir / "sandboxes").glob("*.json"):
            try:
                found.append(json.loads(path.read_text()))
            except FileNotFoundError:
                continue
        return found

    def agents(self) -> dict[str, int]:
        """The first process of each running sandbox that has an owner."""
        running = [entry for entry in self.entries() if entry["phase"]["kind"] == "running"]
        return {entry["spec"]["sandbox"]: entry["phase"]["process"]["pid"] for entry in running}

    def slots(self) -> list[int]:
        """The first processes of sandboxes that wait for an owner."""
        names = {entry["spec"]["sandbox"] for entry in self.entries() if entry["phase"]["kind"] == "creating"}
        return [pid for pid, name in self.first_processes().items() if name in names]

    def members(self) -> dict[int, str]:
        """All processes of sandboxes, by the name of their sandbox's cgroup."""
        found, mark = {}, f"/{self.up.cgroup_name}/"
        for pid in processes():
            try:
                text = pathlib.Path(f"/proc/{pid}/cgroup").read_text()
            except OSError:
                continue
            if mark in text:
                found[pid] = text.split(mark)[1].split("\n")[0].split("/")[0]
        return found

    def first_processes(self) -> dict[int, str]:
        found = {}
        for pid, name in self.members().items():
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if status.split("NSpid:")[1].split("\n")[0].split()[-1] == "1":
                found[pid] = name
        return found

    def kill(self, role: str) -> float:
        """Kills one part, or `up`, or `all`; answers how long it took until it was back."""
        parts = self.parts()
        if role in ("up", "all"):
            victims = [self.up.process.pid, *(parts.values() if role == "all" else [])]
        else:
            victims = [parts[role]]
        since = time.monotonic()
        for pid in victims:
            strike(pid)
        if role in ("up", "all"):
            self.up.process.wait()
            self.up.start()  # at once: whatever is still dying must not get in the way of the next
        self.await_back(set(victims), parts)
        return time.monotonic() - since

    def kill_twice(self, role: str, after_s: float):
        """Kills a part, and the one that takes its place while it is still starting."""
        before = self.parts()
        strike(before[role])
        poll(lambda: self.parts().get(role, before[role]) != before[role], lambda: f"another {role}")
        second = self.parts().get(role)
        time.sleep(after_s)
        strike(second)
        self.await_back({before[role], second}, before)

    def kill_up_twice(self, after_s: float):
        """Kills `up`, and the next one while it is still starting."""
        before = self.parts()
        self.up.stop(signal.SIGKILL)
        self.up.launch()
        time.sleep(after_s)
        dead = {*before.values(), *self.parts().values()}
        self.up.stop(signal.SIGKILL)
        self.up.start()
        self.await_back(dead, before)

    def await_back(self, dead: set[int], before: dict[str, int]):
        """Waits until every part runs that ran before, under another number if it was killed, and answers."""

        def back():
            now = self.parts()
            return before.keys() <= now.keys() and not dead & set(now.values()) and self.answers()

        poll(back, lambda: f"all of {set(before)} back; there is {self.parts()}")

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as node:
            try:
                node.connect(str(self.up.run_dir / "node.sock"))
            except OSError:
                return False
        return self.client.healthy()

    def stranded(self, live: dict[str, bool]) -> list[str]:
        """What is on the host more, or less, than the live sandboxes account for.

        `live` says of each sandbox whether it has processes. Slots are whole sandboxes without an owner.
        """
        entries = self.entries()
        wrong, names, with_processes, hibernated = [], set(), set(), set()
        for entry in entries:
            sandbox, phase = entry["spec"]["sandbox"], entry["phase"]["kind"]
            name = entry.get("slot") or sandbox
            names.add(name)
            if phase == "creating" or live.get(sandbox):
                with_processes.add(name)
            # Its boot id is among what it goes on with.
            if phase.startswith("hibernat"):
                hibernated.add(name)
            if phase != "creating" and sandbox not in live:
                wrong.append(f"journal entry of {sandbox}, {phase}")
        if missing := live.keys() - {entry["spec"]["sandbox"] for entry in entries}:
            wrong.append(f"no journal entry of {missing}")
        bases = [entry["uid_base"] for entry in entries]
        if len(set(bases)) != len(bases):
            wrong.append(f"uid ranges used twice: {sorted(bases)}")

        def compare(kind, found, expected):
            for name in found ^ expected:
                wrong.append(f"{kind} {'too much' if name in found else 'missing'}: {name}")

        compare("upper", listed(self.node_dir / "pool/s"), names)
        compare("small files", listed(self.node_dir / "pool/f"), with_processes | hibernated)
        # One that runs may have a half of it, of a dump that failed; whose owner is gone, may not.
        compare("saved memory", listed(self.node_dir / "pool/m") - (names - hibernated), hibernated)
        keys = listed(self.node_dir / "keys") - listed(self.node_dir / "pool/snapshots")
        if orphans := keys - names:
            wrong.append(f"keys of images that are gone: {orphans}")
        if images := {name.partition(".")[0] for name in listed(self.node_dir / "work")} - names:
            wrong.append(f"decrypted images that nobody needs: {images}")
        compare("socket", {name.removesuffix(".sock") for name in listed(self.up.run_dir / "s")}, with_processes)
        for tree in cgroups_of(self.up):
            compare(f"cgroup in {tree}", {name for name in listed(tree) if (tree / name).is_dir()}, with_processes)
        first = sorted(self.first_processes().values())
        if first != sorted(with_processes):
            wrong.append(f"first processes {first}, not {sorted(with_processes)}")
        wrong += [zombie(pid) for pid in _descendants(self.up.process.pid) if is_zombie(pid)]
        for kind, found in self.singles().items():
            expected = 1 if kind == "mounts of memory" else int(self.has_pool())
            if len(found) != expected:
                wrong.append(f"{kind}: {found}, not {expected}")
        return wrong

    def has_pool(self) -> bool:
        """Whether there is a disk image; on a host without loop devices there are plain directories."""
        return (self.node_dir / "pool.img").exists()

    def stray(self, name: str):
        """Leaves files and a socket of that name behind."""
        upper = self.node_dir / "pool/s" / name
        if self.has_pool():
            subprocess.run(["btrfs", "-q", "subvolume", "create", upper], check=True)
        else:
            upper.mkdir()
        with socket.socket(socket.AF_UNIX) as stray:
            stray.bind(str(self.up.run_dir / f"s/{name}.sock"))

    def singles(self) -> dict[str, list[str]]:
        """What there is one of, however many sandboxes there are."""
        here = str(self.up.data_dir)
        loops = pathlib.Path("/sys/block").glob("loop*/loop/backing_file")
        mounts = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
        # Memory for images that are worked on; there with or without a pool.
        work = str(self.node_dir / "work")
        return {
            "loop devices": [str(loop) for loop in loops if loop.read_text().startswith(here)],
            "mounts of the pool": [mount for mount in mounts if mount.startswith(here) and mount != work],
            "mounts of memory": [mount for mount in mounts if mount == work],
        }


def poll(condition, what, within_s: float = BACK_S):
    """As `eventually`, but looks often enough to measure by."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what()}"
        time.sleep(0.005)


def strike(pid: int):
    with contextlib.suppress(ProcessLookupError):  # it was about to end anyway
        os.kill(pid, signal.SIGKILL)


def is_zombie(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def zombie(pid: int) -> str:
    """Who does not collect it, and what that waits for."""
    try:
        name, _, rest = pathlib.Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(")")
        parent = rest.split()[1]
        lines = pathlib.Path(f"/proc/{parent}/status").read_text().splitlines()
        wanted = ("Name", "State", "NSpid", "TracerPid", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt")
        status = ", ".join(" ".join(line.split()) for line in lines if line.split(":")[0] in wanted)
        waits = pathlib.Path(f"/proc/{parent}/wchan").read_text()
        return f"zombie {pid} ({name}) of {parent} ({status}; in {waits})"
    except OSError as error:
        return f"zombie {pid} ({error})"


def listed(path: pathlib.Path) -> set[str]:
    return set(os.listdir(path)) if path.is_dir() else set()


def cgroups_of(up: CofferUp) -> list[pathlib.Path]:
    """The node's own directory in each hierarchy of control groups."""
    points = [
        line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup" in line
    ]
    return [own for point in points if (own := pathlib.Path(point) / up.cgroup_name).is_dir()]


def uid_blocks(up: CofferUp) -> set[str]:
    """The blocks of user ids that this installation holds."""
    owner = os.fsencode(up.data_dir / "node")
    return {path.name for path in UIDS.glob("block-*") if path.read_bytes() == owner}
