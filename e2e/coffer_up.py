"""A `coffer up` of a test's own, and what it holds on the host."""

import hashlib
import os
import pathlib
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
READY_S = 300  # the first start may make a pool and a template
STOP_S = 150
POOL_SIZE = os.environ.get("E2E_POOL_SIZE", "3GiB")  # enough for the suites; the default would take what it can get


def binary() -> pathlib.Path:
    return pathlib.Path(os.environ.get("COFFER_BIN", ROOT / "target/release/coffer"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(condition, what, within_s: float = 60):
    """Polls until the condition gives something true; the deadline is generous, never a gate."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what() if callable(what) else what}"
        time.sleep(0.2)
    return found


class CofferUp:
    def __init__(self, data_dir, *options: str, pool_size: str = POOL_SIZE):
        self.data_dir = pathlib.Path(data_dir).resolve()
        self.pool_size = pool_size
        self.options = options
        self.port = free_port()
        self.process: subprocess.Popen | None = None
        self._written = None

    @property
    def log(self) -> pathlib.Path:
        return self.data_dir.with_name(self.data_dir.name + ".log")

    @property
    def cgroup_name(self) -> str:
        """The node's own directory in each hierarchy of control groups."""
        return "coffer-" + hashlib.sha256(os.fsencode(self.data_dir / "node")).hexdigest()[:8]

    @property
    def run_dir(self) -> pathlib.Path:
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()
        return pathlib.Path("/run/coffer") / digest[:8]

    def start(self, *options: str) -> "CofferUp":
        """Returns when it is ready."""
        self.launch(*options)
        eventually(self._ready, f"{self.data_dir}/env written by `coffer up`", READY_S)
        return self

    def launch(self, *options: str):
        # The file of an earlier start stays where it is: it holds the key. It is written anew when all is ready.
        self._written = self._env_written()
        command = [binary(), "up", "--listen", f"127.0.0.1:{self.port}", "--data-dir", self.data_dir]
        command += ["--no-build", "--pool-size", self.pool_size]
        with self.log.open("ab") as log:
            # The key of another server in our environment would become one of this server's, as would a token.
            env = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "GITHUB_"))}
            self.process = subprocess.Popen(
                [*command, *self.options, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )

    def _ready(self) -> bool:
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"`coffer up` ended with {code}:\n{self.log.read_text(errors='replace')[-4000:]}")
        return self._env_written() not in (None, self._written)

    def _env_written(self):
        try:
            found = (self.data_dir / "env").stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def stop(self, with_signal=signal.SIGTERM) -> int:
        self.process.send_signal(with_signal)
        return self.process.wait(STOP_S)

    def part(self, role: str) -> int | None:
        """The process that `up` runs in that role now."""
        for pid in _descendants(self.process.pid):
            try:
                arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                parent = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended while we looked
            if parent == self.process.pid and arguments[1:2] == [role.encode()]:
                return pid
        return None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()

    def env(self) -> dict[str, str]:
        """What a shell gets by sourcing DIR/env."""
        script = 'set -a; . "$1"; env -0'
        done = subprocess.run(
            ["env", "-i", "/bin/sh", "-euc", script, "sh", self.data_dir / "env"], capture_output=True, check=True
        )
        pairs = (entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
        return {name: value for name, value in pairs if name.startswith(("E2B_", "COFFER_"))}

    def sdk(self) -> dict[str, str]:
        """The same as keyword arguments of the Python SDK."""
        env = self.env()
        return {"api_url": env["E2B_API_URL"], "sandbox_url": env["E2B_SANDBOX_URL"], "api_key": env["E2B_API_KEY"]}


def processes() -> list[int]:
    """All of this host, some of which may end while one looks at them."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _descendants(pid: int) -> set[int]:
    parents: dict[int, list[int]] = {}
    for child in processes():
        try:
            parent = int(pathlib.Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended while we looked
        parents.setdefault(parent, []).append(child)
    found, queue = set(), [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            found.add(child)
            queue.append(child)
    return found


def _family(up: CofferUp) -> set[int]:
    """The processes of this installation: below `coffer up`, in its cgroups, or on its disks.

    Sandboxes outlive the processes that made them, so descent alone would miss those that were left behind.
    """
    found = _descendants(up.process.pid) if up.process and up.process.poll() is None else set()
    ours = os.readlink("/proc/self/ns/mnt")
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "ns/mnt") == ours:
                continue
            marks = (entry / "cgroup").read_text() + (entry / "mountinfo").read_text()
        except OSError:
            continue
        if up.run_dir.name in marks or str(up.data_dir) in marks:
            found.add(int(entry.name))
    return found


def _namespaces(kind: str, pids: set[int]) -> set[str]:
    found = set()
    for pid in pids:
        try:
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
        except OSError:
            continue
    return found


def _walk(top: pathlib.Path, depth: int) -> set[str]:
    """Names below `top`, directories and files, down to `depth`."""
    found = set()
    if depth == 0 or not top.is_dir() or top.is_symlink():
        return found
    try:
        entries = list(os.scandir(top))
    except OSError:
        return found
    for entry in entries:
        found.add(entry.path)
        if entry.is_dir(follow_symlinks=False):
            found |= _walk(pathlib.Path(entry.path), depth - 1)
    return found


def _cgroups(up: CofferUp) -> set[str]:
    found = set()
    for top, directories, _ in os.walk("/sys/fs/cgroup"):
        found |= {f"{top}/{name}" for name in directories if up.cgroup_name in f"{top}/{name}"}
    return found


def inventory(up: CofferUp) -> dict[str, set]:
    """Everything that making a sandbox can leave on this host, by kind."""
    family = _family(up)
    journal_and_pool = {path for path in _walk(up.data_dir / "node", 4) if not path.endswith((".tmp", "-wal", "-shm"))}
    loops = pathlib.Path("/sys/block").glob("loop*/loop/backing_file")
    return {
        "processes": family,
        "network namespaces": _namespaces("net", family),
        "pid namespaces": _namespaces("pid", family),
        "mounts": {line.split()[4] for line in open("/proc/self/mountinfo") if str(up.data_dir) in line},
        "cgroups": _cgroups(up),
        "loop devices": {str(loop) for loop in loops if str(up.data_dir) in loop.read_text()},
        "node files": journal_and_pool,
        "sockets": _walk(up.run_dir, 3),
    }


def growth(before: dict[str, set], after: dict[str, set]) -> dict[str, list]:
    """What there is more of; an empty answer means that all was given back."""
    grown = {}
    for kind, then in before.items():
        now = after[kind]
        if len(now) > len(then):
            grown[kind] = sorted(map(str, now - then))[:10] or len(now) - len(then)
    return grown
