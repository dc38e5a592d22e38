"""What a sandbox holds on the host, seen from the host."""

import os
import pathlib

from coffer_up import CofferUp

DATA_DIR = pathlib.Path(os.environ.get("COFFER_E2E_DATA_DIR", "/nonexistent"))
PLACES = [DATA_DIR / "node", CofferUp(DATA_DIR).run_dir]
CGROUPS = pathlib.Path("/sys/fs/cgroup")
NAMESPACES = ["user", "mnt", "pid", "net", "ipc", "uts"]


def cgroups(name: str) -> list[pathlib.Path]:
    """The directories called `name` below ours, in every hierarchy."""
    return [*CGROUPS.glob(f"coffer-*/{name}"), *CGROUPS.glob(f"*/coffer-*/{name}")]


def processes(directories: list[pathlib.Path]) -> set[int]:
    found = set()
    for directory in directories:
        try:
            found |= {int(line) for line in (directory / "cgroup.procs").read_text().split()}
        except OSError:
            continue  # it was removed while we looked
    return found


def namespaces(pid: int | str) -> dict[str, str]:
    """A process's namespaces; none if it is gone."""
    try:
        return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}
    except OSError:
        return {}


class Traces:
    """Taken while a sandbox lives, so that what is left of it can be told afterwards.

    Needs a server without warm slots: there the host knows a sandbox by its own id.
    """

    def __init__(self, sandbox_id: str):
        self.name = sandbox_id
        pids = processes(cgroups(sandbox_id))
        assert pids, f"no process of {sandbox_id} in any of {cgroups(sandbox_id)}"
        self.first = min(pids)
        self.namespaces = set(namespaces(self.first).values())
        # Inside, outside, count.
        self.uid_base = int(pathlib.Path(f"/proc/{self.first}/uid_map").read_text().split()[1])

    def counter(self, file: str, field: str | None = None) -> int:
        """A number that the kernel keeps for the sandbox, such as `pids.current` or `max` of `pids.events`."""
        for directory in cgroups(self.name):
            try:
                lines = [line.split() for line in (directory / file).read_text().splitlines()]
            except OSError:
                continue
            for line in lines:
                if field in (None, line[0]):
                    return int(line[-1])
        raise LookupError(f"no cgroup of {self.name} has {field or 'a number'} in {file}")

    def oom_kills(self) -> int:
        try:
            return self.counter("memory.oom_control", "oom_kill")
        except LookupError:
            return self.counter("memory.events", "oom_kill")

    def left(self) -> list[str]:
        """Whatever of the sandbox is still on the host."""
        found = [str(path) for path in cgroups(self.name)]
        for place in PLACES:
            found += [
                str(path) for pattern in ("*", "*/*", "*/*/*") for path in place.glob(pattern) if self.name in path.name
            ]
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                owner = entry.stat().st_uid
            except OSError:
                continue
            ours = self.uid_base <= owner < self.uid_base + 65536
            if ours or self.namespaces & set(namespaces(entry.name).values()):
                found.append(f"process {entry.name}")
        found += [line for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if self.name in line]
        return found
