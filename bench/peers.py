"""Other ways to start a process in a box of its own, on the same files: crun, runc, bubblewrap, gVisor, Docker."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from machine import ROOT, wait_until

# What commands find in a sandbox of the template: the same everywhere, because reading a locale is part of the time.
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
TOOLS = ROOT / "target/bench-tools"  # where scripts/setup puts what the distribution's own release is too old for
DOCKER_IMAGE = "bench"


def spawn(words: list[str]) -> tuple[float, float]:
    """Starts a program and waits for its end; answers how long the first output and the end took.

    With posix_spawn, which costs the least that starting a process can.
    """
    reader, writer = os.pipe()
    since = time.perf_counter()
    actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, writer, 1)]
    pid = os.posix_spawn(words[0], words, ENVIRONMENT, file_actions=actions)
    os.close(writer)
    output = os.read(reader, 100)
    first_output = time.perf_counter() - since
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    ended = time.perf_counter() - since
    if output != b"hello\n" or status != 0:
        raise RuntimeError(f"{words[0]}: status {status}, output {output!r}")
    return first_output, ended


class Peers:
    """Those of them that run here. What cannot is in `skipped`, with the reason."""

    def __init__(self, home: Path, rootfs: Path):
        self.home = home
        self.rootfs = rootfs
        self.skipped: dict[str, str] = {}
        self.found: dict[str, list[str]] = {}
        self.versions: dict[str, str] = {}
        self.dockerd: subprocess.Popen | None = None
        self.count = 0

    def prepare(self):
        for name, make in {
            "bubblewrap": self._bubblewrap,
            "crun": lambda: self._oci("crun", ["run", "--bundle"]),
            "runc": lambda: self._oci("runc", ["run", "--bundle"]),
            "gVisor": self._gvisor,
            "Docker": self._docker,
        }.items():
            try:
                words, version = make()
                self.found[name] = words
                self.versions[name] = version
                self.run(name)  # the first one reads files that later ones find in memory
            except Exception as error:
                self.found.pop(name, None)
                self.skipped[name] = str(error)

    def run(self, name: str) -> tuple[float, float]:
        """Runs `echo hello` in a new box; answers how long the first output and the end took."""
        self.count += 1
        return spawn([word.replace("{id}", f"bench-{self.count}") for word in self.found[name]])

    def stop(self):
        if self.dockerd and self.dockerd.poll() is None:
            # The daemon is process 1 of a pid namespace, so that whatever it has left ends with it.
            for child in Path(f"/proc/{self.dockerd.pid}/task/{self.dockerd.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGTERM)
            try:
                self.dockerd.wait(30)
            except subprocess.TimeoutExpired:
                self.dockerd.kill()
                self.dockerd.wait()
        for name in ("crun", "runc", "gVisor"):  # an interrupted run leaves its container
            if name in self.found:
                tool, root = self.found[name][0], self.home / self.found[name][0].rsplit("/", 1)[1]
                for entry in root.iterdir() if root.exists() else ():
                    identity = entry.name.split("_")[0]
                    if identity.startswith("bench-"):
                        words = [tool, "--root", str(root), "delete", "--force", identity]
                        subprocess.run(words, capture_output=True)

    def _tool(self, name: str) -> str:
        own = TOOLS / name
        found = str(own) if own.exists() else shutil.which(name)
        if not found:
            raise RuntimeError(f"`{name}` is not installed")
        return found

    def _version(self, *words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True)
        return (done.stdout or done.stderr).splitlines()[0].strip()

    def _bubblewrap(self):
        tool = self._tool("bwrap")
        words = [tool, "--unshare-all", "--ro-bind", str(self.rootfs), "/", "--proc", "/proc", "--dev", "/dev"]
        return [*words, "/bin/echo", "hello"], self._version(tool, "--version")

    def _bundle(self) -> Path:
        """What `runc spec` and `crun spec` write, with our files and command: no network, no limits, read-only."""
        bundle = self.home / "bundle"
        if not bundle.exists():
            bundle.mkdir()
            tool = shutil.which("crun") or shutil.which("runc") or self._tool("runsc")
            subprocess.run([tool, "spec"], cwd=bundle, check=True)
            config = json.loads((bundle / "config.json").read_text())
            environment = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
            config["process"] |= {"terminal": False, "args": ["/bin/echo", "hello"], "env": environment}
            config["root"] = {"path": str(self.rootfs), "readonly": True}
            (bundle / "config.json").write_text(json.dumps(config))
        return bundle

    def _oci(self, name: str, verb: list[str]):
        tool = self._tool(name)
        root = self.home / name
        return [tool, "--root", str(root), *verb, str(self._bundle()), "{id}"], self._version(tool, "--version")

    def _gvisor(self):
        words, version = self._oci("runsc", ["--network=none", "--platform=systrap", "run", "--bundle"])
        return words, version

    def _docker(self):
        """A daemon of our own: its files, network, mounts and processes are its own and end with it."""
        daemon, client = self._tool("dockerd"), self._tool("docker")
        home = self.home / "docker"
        home.mkdir()
        socket = f"unix://{home}/docker.sock"
        script = 'mount -t tmpfs tmpfs /run && exec "$@"'
        words = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        words += ["--mount-proc", "sh", "-c", script, "sh"]
        words += [daemon, "--data-root", home / "data", "--exec-root", home / "exec", "--pidfile", home / "pid"]
        words += ["--host", socket, "--bridge=none", "--iptables=false", "--ip6tables=false"]
        words += ["--config-file", home / "daemon.json"]
        (home / "daemon.json").write_text('{"deprecated-key-path": "%s"}' % (home / "key.json"))
        log = home / "log"
        with log.open("wb") as out:
            self.dockerd = subprocess.Popen(
                [str(word) for word in words],
                env=os.environ | {"PATH": f"{TOOLS}:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

        def ready():
            if self.dockerd.poll() is not None:
                raise RuntimeError(f"dockerd does not start: {log.read_text(errors='replace')[-300:]}")
            return subprocess.run([client, "-H", socket, "version"], capture_output=True).returncode == 0

        wait_until(ready, "dockerd is ready", 60)
        self._import_image(client, socket)
        version = self._version(client, "-H", socket, "version", "--format", "Docker {{.Server.Version}}")
        words = [client, "-H", socket, "run", "--rm", "--network", "none", "--env", f"LANG={ENVIRONMENT['LANG']}"]
        return [*words, DOCKER_IMAGE, "/bin/echo", "hello"], version

    def _import_image(self, client: str, socket: str):
        """echo and the libraries it needs: Docker starts no faster from more."""
        listed = subprocess.run(["chroot", self.rootfs, "ldd", "/bin/echo"], capture_output=True, text=True, check=True)
        libraries = [word for word in listed.stdout.split() if word.startswith("/")]
        files = [path.lstrip("/") for path in ["/bin/echo", *libraries]]
        packed = subprocess.Popen(["tar", "-C", self.rootfs, "--dereference", "-c", *files], stdout=subprocess.PIPE)
        words = [client, "-H", socket, "import", "-", DOCKER_IMAGE]
        subprocess.run(words, stdin=packed.stdout, capture_output=True, check=True)
        if packed.wait() != 0:
            raise RuntimeError("could not pack an image")
