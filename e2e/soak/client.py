"""E2B's protocol over bare HTTP, so that every status, header and cut connection is seen as it is."""

import base64
import http.client
import json
import struct
import time
from dataclasses import dataclass, field
from urllib.parse import quote

BOUND_S = 60  # no request may take longer, whatever has just been killed
AGENT = {"E2b-Sandbox-Port": "49983"}
STREAM = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}


class Away(Exception):
    """The connection was refused or cut: what a client sees of a server that was killed."""


class Hang(AssertionError):
    """No answer at all, which is never fine."""


class Refused(Exception):
    """An answer that is not a success."""

    def __init__(self, what: str, status: int, retry_after: str | None, text: str):
        super().__init__(f"{what}: {status} {text[:300]}")
        self.status, self.retry_after = status, retry_after


@dataclass
class Outcome:
    """What a process said, as far as it was heard."""

    pid: int = 0
    output: str = ""
    exit_code: int | None = None
    frames: list = field(default_factory=list)


class Client:
    def __init__(self, url: str, key: str):
        self.host, self.key = url.removeprefix("http://"), key
        self.slowest_s = 0.0

    def exchange(self, method, path, headers, body, read):
        """One request on a connection of its own; `read` makes something of a successful answer."""
        what, since = f"{method} {path}", time.monotonic()
        connection = http.client.HTTPConnection(self.host, timeout=BOUND_S)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            if reply.status >= 300:
                text = reply.read(4096).decode(errors="replace")
                raise Refused(what, reply.status, reply.headers.get("Retry-After"), text)
            return read(reply)
        except TimeoutError as error:
            raise Hang(f"{what}: no answer within {BOUND_S} s") from error
        except (OSError, http.client.HTTPException, struct.error) as error:
            raise Away(f"{what}: {error!r}") from error
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - since)
            connection.close()

    def api(self, method, path, body=None):
        headers = {"X-API-KEY": self.key, "Content-Type": "application/json"}
        text = self.exchange(method, path, headers, None if body is None else json.dumps(body), lambda r: r.read())
        return json.loads(text) if text else None

    def healthy(self) -> bool:
        try:
            self.exchange("GET", "/health", {}, None, lambda reply: reply.read())
            return True
        except Away:
            return False

    def upload(self, box, path: str, content):
        """`content` may be an iterator, which then goes out piece by piece."""
        headers = {**self._to(box), "Content-Type": "application/octet-stream"}
        self.exchange("POST", _file(path), headers, content, lambda reply: reply.read())

    def download(self, box, path: str) -> bytes:
        return self.exchange("GET", _file(path), self._to(box), None, lambda reply: reply.read())

    def run(self, box, script: str) -> Outcome:
        """Runs a script to its end."""
        return self._stream(box, "Start", _start(script), lambda outcome: False)

    def launch(self, box, script: str, tag: str) -> Outcome:
        """Starts a script and lets go as soon as it runs."""
        return self._stream(box, "Start", {**_start(script), "tag": tag}, lambda outcome: outcome.pid)

    def attach(self, box, pid: int) -> Outcome:
        """Hears what a process says until it ends."""
        return self._stream(box, "Connect", {"process": {"pid": pid}}, lambda outcome: False)

    def processes(self, box) -> set[int]:
        headers = {**self._to(box), "Content-Type": "application/json"}
        text = self.exchange("POST", "/process.Process/List", headers, "{}", lambda reply: reply.read())
        return {process["pid"] for process in json.loads(text).get("processes", [])}

    def _to(self, box) -> dict:
        return {**AGENT, "E2b-Sandbox-Id": box.id, "X-Access-Token": box.token}

    def _stream(self, box, method, message, enough) -> Outcome:
        body = json.dumps(message).encode()

        def read(reply):
            outcome = Outcome()
            while not enough(outcome):
                flags, length = struct.unpack(">BI", reply.read(5))
                frame = json.loads(reply.read(length))
                outcome.frames.append(frame)
                if flags & 2:
                    if error := frame.get("error"):
                        raise Refused(f"{method} in {box.id}", 200, None, json.dumps(error))
                    if outcome.exit_code is None:
                        raise Away(f"{method} in {box.id}: the stream ended before the process")
                    break
                _hear(outcome, frame.get("event", {}))
            return outcome

        path = f"/process.Process/{method}"
        return self.exchange("POST", path, {**self._to(box), **STREAM}, struct.pack(">BI", 0, len(body)) + body, read)


def _file(path: str) -> str:
    return f"/files?path={quote(path)}&username=user"


def _start(script: str) -> dict:
    return {"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": False}


def _hear(outcome: Outcome, event: dict):
    if start := event.get("start"):
        outcome.pid = start["pid"]
    for stream in ("stdout", "stderr"):
        outcome.output += base64.b64decode(event.get("data", {}).get(stream, "")).decode()
    if (end := event.get("end")) is not None:
        outcome.exit_code = end.get("exitCode", 0)
