"""The network outside of a server under test, from the server's side of the link."""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys

from coffer_up import eventually
from places import API_NAME, GATE, GATE_V6, HOST, HOST_V6

HERE = pathlib.Path(__file__).parent
CLONE_NEWNET = 0x40000000


def leave_network() -> str | None:
    """Moves this process and its later children to an empty network namespace. Returns the reason if it cannot."""
    missing = [tool for tool in ("ip", "unshare", "openssl") if not shutil.which(tool)]
    if missing:
        return f"the world needs {missing}"
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return "no network namespace of its own"
    ip("link", "set", "lo", "up")
    return None


def ip(*arguments: str):
    subprocess.run(["ip", *arguments], check=True)


def certify(scratch: pathlib.Path, name: str) -> tuple[pathlib.Path, pathlib.Path]:
    """An authority of the world's, and a certificate of it with its key."""
    authority, key, leaf = scratch / "authority.pem", scratch / "authority-key.pem", scratch / "certified.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", "/CN=An authority of the world", "-keyout", key, "-out", authority]
    subprocess.run([*request, *subject], check=True, capture_output=True)
    of = ["-CA", authority, "-CAkey", key, "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    of += ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", leaf, "-out", scratch / "leaf.pem"]
    subprocess.run([*request, *of], check=True, capture_output=True)
    leaf.write_bytes(leaf.read_bytes() + (scratch / "leaf.pem").read_bytes())
    return authority, leaf


class World:
    """What happens outside, as it is seen there."""

    def __init__(self, scratch: pathlib.Path):
        self.events = scratch / "events"
        self.events.touch()
        certificate = scratch / "certificate"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-subj", "/CN=example.com", "-keyout", certificate, "-out", scratch / "public", "-days", "2"]
        subprocess.run(command, check=True, capture_output=True)
        with certificate.open("ab") as file:
            file.write((scratch / "public").read_bytes())
        self.authority, certified = certify(scratch, API_NAME)
        self.process = subprocess.Popen(
            ["unshare", "--net", sys.executable, HERE / "world.py", self.events, certificate, certified],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ours = os.readlink("/proc/self/ns/net")
        theirs = pathlib.Path(f"/proc/{self.process.pid}/ns/net")
        eventually(lambda: os.readlink(theirs) != ours, "a network namespace for the world")
        ip("link", "add", "uplink", "type", "veth", "peer", "name", "world", "netns", str(self.process.pid))
        ip("link", "set", "uplink", "up")
        ip("address", "add", f"{HOST}/24", "dev", "uplink")
        ip("-6", "address", "add", f"{HOST_V6}/64", "dev", "uplink", "nodad")
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"
        ip("route", "add", "default", "via", GATE)
        ip("-6", "route", "add", "default", "via", GATE_V6)

    def seen(self, kind: str) -> list[dict]:
        events = map(json.loads, self.events.read_text().splitlines())
        return [event for event in events if event["kind"] == kind]

    def end(self):
        self.process.kill()
        self.process.wait()
