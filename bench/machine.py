"""The machine under the benchmark: a view of its own of the mounts, a `coffer up`, processes, memory."""

import ctypes
import os
import platform
import signal
import statistics
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COFFER = Path(os.environ.get("COFFER_BIN", ROOT / "target/release/coffer"))
TEMPLATES = Path(os.environ.get("COFFER_TEMPLATE_DIR", "/var/cache/coffer/templates"))
CLONE_NEWNS = 0x20000
# In force, and out of the way.
LIMITS = ["quotas.sandboxes=5000", "rates.creates_per_s=10000", "rates.creates_burst=10000"]
LIMITS += ["quotas.forks=1000", "rates.requests_per_s=100000", "rates.requests_burst=100000"]


def wait_until(condition, what: str, within_s: float):
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s} s: {what}")
        time.sleep(0.05)
    return found


def mount(*words):
    subprocess.run(["mount", *map(str, words)], check=True, stdin=subprocess.DEVNULL)


def own_mounts() -> int:
    """Gives this process mounts of its own and answers with a descriptor of the host's.

    What is mounted from here on ends with this process. crun refuses a host whose v2 hierarchy still has a
    controller beside v1 ones; where the v2 hierarchy is not to be seen it works, so here it is not.
    """
    host = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    os.set_inheritable(host, True)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    mount("--make-rprivate", "/")
    if os.path.ismount("/sys/fs/cgroup/unified"):
        subprocess.run(["umount", "/sys/fs/cgroup/unified"], check=True)
    return host


def remove(directory: Path, host_mounts: int):
    """Removes what the benchmark kept there, seen with the host's mounts, among which ours are not: nothing that is
    mounted below it, from the template to a device, can be reached from there."""
    words = ["nsenter", f"--mount=/proc/self/fd/{host_mounts}", "rm", "-rf", "--one-file-system", str(directory)]
    subprocess.run(words, pass_fds=[host_mounts])


def base_rootfs() -> Path:
    """The files of the template `base`, which sandboxes and their rivals alike start from."""
    builds = sorted(TEMPLATES.glob("base/*/manifest.json"))
    if not builds:
        raise SystemExit(f"bench: error: no template `base`\nbench: hint: {COFFER} template build base")
    return builds[-1].parent / "rootfs"


class CofferUp:
    """A `coffer up` on a free port of the loopback, with a data directory and a pool that end with it."""

    def __init__(self, home: Path, host_mounts: int, *options: str):
        self.data = home
        words = ["nsenter", f"--mount=/proc/self/fd/{host_mounts}"]
        # Should this process be killed, the kernel tells coffer, which then gives everything back.
        words += ["setpriv", "--pdeathsig", "TERM"]
        words += [COFFER, "up", "--listen", "127.0.0.1:0", "--data-dir", home, "--ephemeral", "--no-build"]
        words += ["--log", os.environ.get("COFFER_LOG", "warn"), *options]
        for limit in LIMITS:
            words += ["--set", f"limits.{limit}"]
        self.process = subprocess.Popen(
            [str(word) for word in words],
            pass_fds=[host_mounts],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_until(self._ready, "`coffer up` is ready", 120)
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> bool:
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"`coffer up` ended with {code}")
        return (self.data / "env").exists()

    def env(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.data / "env").read_text().splitlines())

    @property
    def pool(self) -> Path:
        """The pool, as the host sees it."""
        return Path(f"/proc/{self.process.pid}/root{self.data}/node/pool")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)


def descendants(pid: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue  # it ended while we looked
        below.setdefault(parent, []).append(int(entry.parent.name))
    found, queue = [], [pid]
    while queue:
        children = below.get(queue.pop(), [])
        found += children
        queue += children
    return found


def same_program(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.stat(f"/proc/{one}/exe"), os.stat(f"/proc/{other}/exe"))
    except OSError:
        return False  # it ended while we looked


def proportional_kib(pid: int) -> int:
    """A process's memory, with what it shares counted in parts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def meminfo_kib(*fields: str) -> int:
    """The sum of some fields of /proc/meminfo, as the median of some seconds."""

    def now() -> int:
        pairs = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return sum(int(value.split()[0]) for name, value in pairs if name in fields)

    samples = []
    for _ in range(10):
        samples.append(now())
        time.sleep(0.2)
    return int(statistics.median(samples))


def lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def description() -> str:
    models = (line.split(":")[1].strip() for line in lines("/proc/cpuinfo") if line.startswith("model name"))
    cpu = next(models, platform.machine())
    memory = next(int(line.split()[1]) for line in lines("/proc/meminfo") if line.startswith("MemTotal:"))
    release = dict(line.rstrip().split("=", 1) for line in lines("/etc/os-release") if "=" in line)
    controllers = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return (
        f"{os.cpu_count()} processors ({cpu}), {memory / 2**20:.0f} GiB of memory, "
        f"{release.get('PRETTY_NAME', 'Linux').strip(chr(34))}, kernel {platform.release()}, "
        f"cgroup {'v2' if controllers else 'v1 (hybrid)'}"
    )
