"""A virtual machine in QEMU: boot it, run commands in it, restart it, take it down."""

import ctypes
import json
import os
import pathlib
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from coffer_up import eventually, free_port
from images import HOME, KEY, Image, image

BOOT_S = 300  # some ten times what it takes where processors are emulated
API_PORT = 3000  # inside
MEMORY = "4G"
PROCESSORS = "2"


def qemu(program: str) -> str:
    """The QEMU that scripts/setup unpacked, or else the system's own."""
    own = HOME / "qemu/bin" / program
    return str(own) if own.exists() else program


class Machine:
    """One machine, on a disk that starts clean; with `attach`, one that another process started."""

    def __init__(self, name: str, payload: pathlib.Path | None = None):
        self.name = name
        self.payload = payload
        self.home = HOME / "machines" / name
        self.process: subprocess.Popen | None = None

    @classmethod
    def attach(cls, name: str) -> "Machine":
        machine = cls(name)
        machine.state = json.loads((machine.home / "state.json").read_text())
        return machine

    @classmethod
    def running(cls, name: str) -> "Machine | None":
        """The machine that an earlier process started, if it is still there."""
        try:
            machine = cls.attach(name)
            command = pathlib.Path(f"/proc/{machine.state['pid']}/cmdline").read_text()
        except FileNotFoundError:
            return None
        return machine if str(machine.home) in command else None

    @property
    def console(self) -> pathlib.Path:
        return self.home / "console.log"

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.state['api_port']}"

    def boot(self, outlive: bool = False) -> float:
        """Boots on clean disks; returns the seconds until ssh answered. `outlive`: QEMU survives this process."""
        if Machine.running(self.name):
            raise RuntimeError(f"{self.name} is up already; hint: e2e/vm/shell --stop {self.name}")
        found = image(self.name)
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        # The path of a socket must be short, the path of a checkout need not be.
        sockets = tempfile.mkdtemp(prefix="coffer-vm-")
        self.state = {"ssh_port": free_port(), "api_port": free_port(), "sockets": sockets}
        started = time.monotonic()
        with (self.home / "qemu.log").open("w") as log:
            self.process = subprocess.Popen(
                self._command(found),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=outlive,
                preexec_fn=None if outlive else _die_with_parent,  # noqa: PLW1509 - no other thread runs yet
            )
        self.state["pid"] = self.process.pid
        (self.home / "state.json").write_text(json.dumps(self.state))
        self._await_boot()
        return time.monotonic() - started

    def _command(self, found: Image) -> list[str]:
        options = f"root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=-1 mitigations=off loglevel=4 systemd.show_status=auto {found.boot_options}"
        forward = f"hostfwd=tcp:127.0.0.1:{self.state['ssh_port']}-:22"
        forward += f",hostfwd=tcp:127.0.0.1:{self.state['api_port']}-:{API_PORT}"
        command = [qemu("qemu-system-x86_64"), "-name", self.name, "-machine", "q35", "-m", MEMORY, "-smp", PROCESSORS]
        command += [*accelerator(found), "-nodefaults", "-display", "none"]
        command += ["-kernel", found.kernel, "-initrd", found.initrd, "-append", options]
        command += [*self._drive("disk", found.disk)]
        command += [*self._drive("payload", self.payload)] if self.payload else []
        # `restrict`: the machine reaches nothing outside.
        command += ["-netdev", f"user,id=net,restrict=on,{forward}", "-device", "virtio-net-pci,netdev=net,romfile="]
        command += ["-device", "virtio-rng-pci", "-serial", f"file:{self.console}"]
        command += ["-qmp", f"unix:{self.state['sockets']}/qmp,server=on,wait=off"]
        return [str(part) for part in command]

    def _drive(self, name: str, base: pathlib.Path) -> list[str]:
        """A layer over that image, so each run starts clean. `unsafe`: no flush reaches the host's disk, which is faster."""
        layer = self.home / f"{name}.qcow2"
        create = [qemu("qemu-img"), "create", "-q", "-f", "qcow2", "-b", str(base), "-F", "raw", str(layer)]
        subprocess.run(create, check=True)
        return ["-drive", f"file={layer},if=virtio,cache=unsafe,discard=unmap"]

    def run(self, command: str, check: bool = True, timeout_s: float = 600, **options) -> subprocess.CompletedProcess:
        """Runs a shell command as root inside; its output is text."""
        done = subprocess.run(
            [*self.ssh(), command], capture_output=True, text=True, timeout=timeout_s, errors="replace", **options
        )
        if check and done.returncode:
            raise RuntimeError(f"{self.name}: `{command}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done

    def ssh(self) -> list[str]:
        """The command that runs what is appended to it inside. One connection serves all: each handshake is slow."""
        options = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "ConnectTimeout": "10",
            "KexAlgorithms": "curve25519-sha256",
            "ControlMaster": "auto",
            "ControlPath": f"{self.state['sockets']}/ssh",
            "ControlPersist": "600",
        }
        flags = [part for pair in options.items() for part in ("-o", "=".join(pair))]
        return ["ssh", "-F", "none", "-i", str(KEY), "-p", str(self.state["ssh_port"]), *flags, "root@127.0.0.1"]

    def put(self, source: pathlib.Path, target: str):
        """Copies a file or a directory to that path inside."""
        source = pathlib.Path(source).resolve()
        pack = subprocess.Popen(["tar", "-C", source.parent, "-cf", "-", source.name], stdout=subprocess.PIPE)
        place = shlex.quote(target)
        unpack = f"rm -rf {place} {place}.put && mkdir -p {place}.put && tar -C {place}.put -xf -"
        unpack += f" && mv {place}.put/{shlex.quote(source.name)} {place} && rmdir {place}.put"
        done = subprocess.run([*self.ssh(), unpack], stdin=pack.stdout, capture_output=True, text=True)
        if pack.wait() or done.returncode:
            raise RuntimeError(f"{self.name}: could not copy {source} to {target}: {done.stderr}")

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id").stdout

    def reboot(self):
        """Clean reboot; returns when ssh answers again."""
        self._restart(lambda: self.run("systemctl reboot", check=False))

    def reset(self):
        """Hard reset, like a power failure; returns when ssh answers again."""
        self._restart(lambda: self.qmp("system_reset"))

    def _restart(self, how):
        before = self.boot_id()
        how()
        self._hang_up()
        self._await_boot(lambda: self.boot_id() != before)

    def power_off(self):
        """Shuts down cleanly if possible; ends QEMU in any case."""
        if self.alive():
            try:
                self.run("systemctl poweroff", check=False, timeout_s=60)
                eventually(lambda: not self.alive(), f"{self.name} powers off", 120)
            except (AssertionError, subprocess.TimeoutExpired):
                print(f"vm: {self.name} did not power off; its console is in {self.console}", flush=True)
        self.destroy()

    def destroy(self):
        """Ends QEMU and removes its sockets."""
        self._hang_up()
        if self.alive():
            os.kill(self.state["pid"], signal.SIGKILL)
        if self.process:
            self.process.wait()
        shutil.rmtree(self.state["sockets"], ignore_errors=True)

    def alive(self) -> bool:
        if self.process:
            return self.process.poll() is None
        return Machine.running(self.name) is not None

    def qmp(self, command: str):
        """Sends a command to QEMU's monitor."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(f"{self.state['sockets']}/qmp")
            lines = monitor.makefile("rw")
            for step in ("qmp_capabilities", command):
                lines.readline()
                lines.write(json.dumps({"execute": step}) + "\n")
                lines.flush()
            lines.readline()

    def _hang_up(self):
        subprocess.run([*self.ssh(), "-O", "exit"], capture_output=True)

    def _await_boot(self, also=lambda: True):
        def answers() -> bool:
            if not self.alive():
                raise RuntimeError(
                    f"{self.name}: QEMU ended:\n{(self.home / 'qemu.log').read_text()}{self._last_words()}"
                )
            try:
                return self.run("true", check=False, timeout_s=30).returncode == 0 and also()
            except (subprocess.TimeoutExpired, RuntimeError):
                self._hang_up()
                return False

        eventually(answers, lambda: f"{self.name} answers by ssh; its console:\n{self._last_words()}", BOOT_S)

    def _last_words(self) -> str:
        return self.console.read_text(errors="replace")[-4000:] if self.console.exists() else "(empty)"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process:
            self.destroy()


def _die_with_parent():
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def accelerator(found: Image) -> list[str]:
    """KVM if it boots this kernel, else emulation. The answer is cached until the host's kernel changes."""
    # Without the fast string instructions: a kernel that is told of them copies memory with what emulation is slow at.
    emulation = ["-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm,-fsrs,-fzrm"]
    hardware = ["-accel", "kvm", "-cpu", "host"]
    given = os.environ.get("VM_ACCEL")
    if given or not os.access("/dev/kvm", os.W_OK):
        return hardware if given == "kvm" else emulation
    answer = HOME / "accelerator"
    key = platform.release()
    if not answer.exists() or answer.read_text().split()[0] != key:
        answer.write_text(f"{key} {'kvm' if _starts(found, hardware) else 'tcg'}\n")
        print(f"vm: accelerator: {answer.read_text().split()[1]}", flush=True)
    return hardware if answer.read_text().split()[1] == "kvm" else emulation


def _starts(found: Image, how: list[str]) -> bool:
    """Whether the kernel gets as far as mounting its root. There is none, so it panics and QEMU exits."""
    command = [qemu("qemu-system-x86_64"), *how, "-m", "1G", "-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-kernel", str(found.kernel), "-append", "console=ttyS0 panic=-1", "-serial", "stdio"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    except subprocess.TimeoutExpired:
        return False
    return b"VFS: " in done.stdout
