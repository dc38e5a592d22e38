"""Attackers who are not inside: raw connections to the server, and what it looks like from the host."""

import contextlib
import os
import pathlib
import socket
import time
from urllib.parse import quote, urlsplit

import httpx

SERVER = urlsplit(os.environ.get("E2B_API_URL", "http://127.0.0.1:1"))
ENVD = 49983
PATIENCE_S = 120


# One for all: making a client costs more than most requests. It keeps no connection, so that no attack meets what
# another one left.
PLAIN = httpx.Client(base_url=SERVER.geturl(), timeout=PATIENCE_S, limits=httpx.Limits(max_keepalive_connections=0))


def connect(source: str = "") -> socket.socket:
    """From an address of the loopback, if one is named: the server counts strangers by address."""
    return socket.create_connection((SERVER.hostname, SERVER.port), timeout=PATIENCE_S, source_address=(source, 0))


def converse(request: bytes, silence_s: float = 5) -> bytes:
    """Sends bytes as they are. All that comes back until the server closes, or says nothing for a while."""
    with connect() as wire:
        with contextlib.suppress(ConnectionError):  # one who has refused need not read the rest
            wire.sendall(request)
        wire.settimeout(silence_s)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := wire.recv(1 << 16):
                answer += piece
        return answer


def statuses(answer: bytes) -> list[int]:
    """Of every answer in a row of them."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def head(sandbox, method: str, path: str, port: int = ENVD, *headers: str, host: str | None = None) -> bytes:
    """A request's head, up to its empty line."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'{port}-{sandbox.sandbox_id}.test'}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


class Envd:
    """A sandbox's agentd by plain HTTP, as its owner or as a stranger."""

    def __init__(self, sandbox, token: str | None = "own", port: int = ENVD):
        self.headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
        if token is not None:
            self.headers["X-Access-Token"] = sandbox._envd_access_token if token == "own" else token
        self.client = httpx.Client(base_url=SERVER.geturl(), timeout=PATIENCE_S, headers=self.headers)

    def get(self, path: str, raw: str | None = None, **options) -> httpx.Response:
        """Downloads. `raw` is a query as it stands, for paths that no client would write."""
        return self.client.get("/files?" + (raw or f"path={quote(path, safe='')}"), **options)

    def put(self, path: str, content: bytes = b"x", raw: str | None = None, **options) -> httpx.Response:
        headers = {"Content-Type": "application/octet-stream", **options.pop("headers", {})}
        query = raw or f"path={quote(path, safe='')}"
        return self.client.post(f"/files?{query}", content=content, headers=headers, **options)

    def call(self, name: str, **message) -> httpx.Response:
        """A unary call, `Service/Method`."""
        service = "filesystem.Filesystem" if "." not in name else ""
        return self.client.post(f"/{service}/{name}" if service else f"/{name}", json=message)


def parts_of_server() -> dict[str, int]:
    """The pids of this installation's `coffer server` and `coffer node`."""
    data_dir = os.environ["COFFER_E2E_DATA_DIR"]
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_text().split("\0")
            if len(words) > 1 and words[1] in ("server", "node") and data_dir in " ".join(words):
                found[words[1]] = int(entry.parent.name)
    return found


def resident_mib(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def wait_until(condition, within_s: float = PATIENCE_S):
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.1)
    return found
