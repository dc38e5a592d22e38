"""E2B's protocol on one kept-alive connection, spoken with a bare socket so that the client costs next to nothing."""

import base64
import json
import socket
import struct
import time
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

PIECE = 256 * 1024


class Refused(Exception):
    """The server answered, but not with what was asked for."""


@dataclass
class Ran:
    """What a command did. Times are of `time.perf_counter`."""

    output: bytes
    exit_code: int
    first_output: float
    ended: float


class Client:
    def __init__(self, env: dict[str, str]):
        url = urlsplit(env["E2B_API_URL"])
        self.key = env["E2B_API_KEY"]
        self.host = url.netloc
        self.socket = socket.create_connection((url.hostname, url.port), timeout=300)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()

    def close(self):
        self.socket.close()

    # What the benchmarks do.

    def create(self) -> dict:
        body = json.dumps({"templateID": "base", "timeout": 3600}).encode()
        self._send("POST", "/v2/sandboxes", {"X-API-KEY": self.key, "Content-Type": "application/json"}, body)
        return json.loads(self._whole_reply(201))

    def destroy(self, sandbox: dict):
        self._send("DELETE", f"/sandboxes/{sandbox['sandboxID']}", {"X-API-KEY": self.key}, b"")
        self._whole_reply(204)

    def fork(self, sandbox: dict, count: int, memory: bool = False) -> list[dict]:
        """A `sandbox` or an `error` for each child, which have the files, and the processes if asked for."""
        body = json.dumps({"count": count, "timeout_s": 3600, "memory": memory}).encode()
        headers = {"X-API-KEY": self.key, "Content-Type": "application/json"}
        self._send("POST", f"/api/v1/sandboxes/{sandbox['sandboxID']}/fork", headers, body)
        return json.loads(self._whole_reply(201))["children"]

    def ask(self, method: str, path: str, body: dict, status: int) -> dict:
        headers = {"X-API-KEY": self.key, "Content-Type": "application/json"}
        self._send(method, path, headers, json.dumps(body).encode())
        return json.loads(self._whole_reply(status))

    def host_can(self) -> dict:
        """What the server's host can do."""
        self._send("GET", "/api/v1/host", {"X-API-KEY": self.key}, b"")
        return json.loads(self._whole_reply(200))

    def pause(self, sandbox: dict):
        self._send("POST", f"/sandboxes/{sandbox['sandboxID']}/pause", {"X-API-KEY": self.key}, b"")
        self._whole_reply(204)

    def connect(self, sandbox_id: str, resumes: bool = False) -> dict:
        """A sandbox that runs or is paused, as its create would have answered."""
        headers = {"X-API-KEY": self.key, "Content-Type": "application/json"}
        self._send("POST", f"/sandboxes/{sandbox_id}/connect", headers, json.dumps({"timeout": 3600}).encode())
        return json.loads(self._whole_reply(201 if resumes else 200))

    def snapshot(self, sandbox: dict, memory: bool = False) -> dict:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        body = json.dumps({"memory": memory}).encode()
        self._send("POST", f"/api/v1/sandboxes/{sandbox['sandboxID']}/snapshots", headers, body)
        return json.loads(self._whole_reply(201))

    def delete_snapshot(self, snapshot: dict):
        headers = {"Authorization": f"Bearer {self.key}"}
        self._send("DELETE", f"/api/v1/snapshots/{snapshot['id']}", headers, b"")
        self._whole_reply(204)

    def execute(self, sandbox: dict, command: str, *arguments: str) -> Ran:
        """Runs a command to its end and keeps its output."""
        message = json.dumps({"process": {"cmd": command, "args": arguments}, "stdin": False}).encode()
        headers = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
        self._send(
            "POST",
            "/process.Process/Start",
            headers | self._to(sandbox),
            struct.pack(">BI", 0, len(message)) + message,
        )
        self._expect(200, self._head())
        output, exit_code, first_output, ended = b"", None, 0.0, 0.0
        for last, frame in self._frames():
            if last:
                if "error" in frame or exit_code is None:
                    raise Refused(f"`{command}` did not end: {frame}")
                continue
            event = frame["event"]
            if "data" in event:
                first_output = first_output or time.perf_counter()
                # A command that prints no more than a pipe holds is what this is for.
                output += base64.b64decode(event["data"].get("stdout", "") or event["data"].get("stderr", ""))
            elif "end" in event:
                exit_code = event["end"].get("exitCode", 0)
                ended = time.perf_counter()
        return Ran(output, exit_code, first_output, ended)

    def upload(self, sandbox: dict, path: str, pieces, length: int):
        """Sends `length` bytes, a piece at a time, to a file."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)} | self._to(sandbox)
        self._send("POST", f"/files?path={quote(path)}", headers, None)
        for piece in pieces:
            self.socket.sendall(piece)
        self._whole_reply(200)

    def download(self, sandbox: dict, path: str) -> int:
        """Reads a file and throws it away; answers with its length."""
        self._send("GET", f"/files?path={quote(path)}", self._to(sandbox), b"")
        head = self._head()
        self._expect(200, head)
        length = int(head["content-length"])
        missing = length - len(self.buffer)
        self.buffer.clear()
        piece = bytearray(PIECE)
        while missing > 0:
            got = self.socket.recv_into(piece, min(missing, PIECE))
            if got == 0:
                raise Refused("the download ended early")
            missing -= got
        return length

    # HTTP/1.1, as much of it as the server speaks.

    def _to(self, sandbox: dict) -> dict[str, str]:
        return {
            "E2b-Sandbox-Id": sandbox["sandboxID"],
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": sandbox["envdAccessToken"],
        }

    def _send(self, method: str, path: str, headers: dict, body: bytes | None):
        """Sends a request; with no body given, only its head, and the caller sends what `headers` promise."""
        if body is not None:
            headers = headers | {"Content-Length": str(len(body))}
        pairs = ({"Host": self.host} | headers).items()
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs), "", ""]
        self.socket.sendall("\r\n".join(lines).encode() + (body or b""))

    def _more(self):
        got = self.socket.recv(PIECE)
        if not got:
            raise Refused("the server closed the connection")
        self.buffer += got

    def _until(self, mark: bytes) -> bytes:
        while (at := self.buffer.find(mark)) < 0:
            self._more()
        found = bytes(self.buffer[:at])
        del self.buffer[: at + len(mark)]
        return found

    def _take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            self._more()
        found = bytes(self.buffer[:count])
        del self.buffer[:count]
        return found

    def _head(self) -> dict[str, str]:
        status, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        return {"status": status.split(" ")[1]} | {name.strip().lower(): value.strip() for name, value in pairs}

    def _body(self, head: dict[str, str]) -> bytes:
        if head.get("transfer-encoding") == "chunked":
            return b"".join(self._chunks())
        return self._take(int(head.get("content-length", "0")))

    def _chunks(self):
        while size := int(self._until(b"\r\n"), 16):
            yield self._take(size)
            self._until(b"\r\n")
        self._until(b"\r\n")

    def _frames(self):
        """The envelopes of a stream: whether it is the last one, and its message."""
        pending = b""
        for chunk in self._chunks():
            pending += chunk
            while len(pending) >= 5:
                flags, length = struct.unpack_from(">BI", pending)
                if len(pending) < 5 + length:
                    break
                yield bool(flags & 2), json.loads(pending[5 : 5 + length])
                pending = pending[5 + length :]

    def _expect(self, status: int, head: dict[str, str]):
        if int(head["status"]) != status:
            raise Refused(f"{head['status']} instead of {status}: {self._body(head)[:300]!r}")

    def _whole_reply(self, status: int) -> bytes:
        head = self._head()
        self._expect(status, head)
        return self._body(head)
