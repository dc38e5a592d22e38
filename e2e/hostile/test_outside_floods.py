"""Many strangers at once, slow ones, and large ones: what they cost is bounded, and others are served."""

import contextlib
import fcntl
import pathlib
import resource
import select
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from outside import PLAIN, SERVER, connect, converse, head, parts_of_server, resident_mib, statuses, wait_until


@pytest.fixture
def server(bystanders):
    """The pid of the server under attack. It survives, and it and everybody else answer afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    before = parts_of_server()
    yield before["server"]
    bystanders.answer()
    assert parts_of_server() == before, "no part was restarted"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Crowd:
    """Many open connections."""

    def __init__(self, size: int, first: bytes = b"", source: str = ""):
        self.wires: list[socket.socket] = []
        for _ in range(size):
            wire = connect(source)
            self.wires.append(wire)
            with contextlib.suppress(OSError):
                wire.sendall(first)
            wire.setblocking(False)

    def open(self) -> int:
        """How many the server has not closed."""
        count = 0
        for wire in self.wires:
            try:
                count += wire.recv(1 << 16) != b""
            except BlockingIOError:
                count += 1
            except OSError:
                pass
        return count

    def say(self, words: bytes):
        for wire in self.wires:
            with contextlib.suppress(OSError):
                wire.send(words)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for wire in self.wires:
            wire.close()


@pytest.fixture(autouse=True)
def alone():
    """One flood at a time: what each costs the server is measured, and tests of a suite run side by side."""
    with open(pathlib.Path(tempfile.gettempdir()) / "coffer-e2e-floods.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Peak:
    """The most that a process held while this was open, beyond what it held before."""

    def __init__(self, pid: int):
        self.pid, self.before, self.grown = pid, resident_mib(pid), 0.0
        self.over = threading.Event()
        self.watch = threading.Thread(target=self.look, daemon=True)

    def look(self):
        while not self.over.wait(0.05):
            self.grown = max(self.grown, resident_mib(self.pid) - self.before)

    def __enter__(self):
        self.watch.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.watch.join()


def healthy() -> bool:
    return PLAIN.get("/health").text == "OK"


def test_unfinished_heads_hold_little(server):
    """3,000 strangers with 60 KB of a head each, which would be 370 MiB of buffers."""
    half = b"GET / HTTP/1.1\r\nHost: x\r\nX-Half: " + b"y" * 60_000
    with Peak(server) as peak, Crowd(3000, half) as crowd:
        assert healthy()
        assert crowd.open() < 1500, "large unfinished heads are not kept"
    assert peak.grown < 128, f"the server grew by {peak.grown:.0f} MiB"


def test_heads_that_trickle_are_cut_off(server):
    with Crowd(1000, b"GET / HTTP/1.1\r\nX: ") as crowd:
        started = time.monotonic()
        assert crowd.open() == 1000
        while crowd.open():
            crowd.say(b"y")
            assert healthy()
            assert time.monotonic() - started < 120, "a head may take two minutes"
            time.sleep(0.5)


def test_connections_that_say_nothing(server):
    # From an address of its own, whose oldest connections make room for its newest: others keep theirs.
    with Peak(server) as peak, Crowd(20, source="127.0.0.7") as others, Crowd(2500, source="127.0.0.8") as crowd:
        assert healthy()
        deadline = time.monotonic() + 30
        while crowd.open() > 2048 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert 0 < crowd.open() <= 2048
        assert others.open() == 20
    assert peak.grown < 128, f"the server grew by {peak.grown:.0f} MiB"


def test_strangers_are_refused_as_fast_as_they_come(server):
    body = b"[" * 4096

    def knock(number: int) -> set[int]:
        found = set()
        # From an address of its own: whoever is wrong too often there must not keep others from being told.
        away = httpx.HTTPTransport(local_address="127.0.0.9")
        with httpx.Client(base_url=SERVER.geturl(), timeout=120, transport=away) as client:
            for turn in range(150):
                key = {"X-API-KEY": f"e2b_{number:020x}{turn:020x}"}
                found.add(client.post("/v2/sandboxes", headers=key, content=body).status_code)
                found.add(client.get("/sandboxes", headers=key).status_code)
        return found

    with Peak(server) as peak, ThreadPoolExecutor(8) as pool:
        # The first are looked up, the rest of that address are not even that.
        assert set().union(*pool.map(knock, range(8))) == {401, 429}
        assert healthy()
    assert peak.grown < 64, f"the server grew by {peak.grown:.0f} MiB"


@pytest.mark.parametrize("where", ["the API", "a sandbox that is not there"])
def test_a_stranger_cannot_make_us_read_for_ever(server, where):
    """A body without end, to somebody who was refused by its first line."""
    line = "POST /v2/sandboxes" if where == "the API" else "POST /files?path=a"
    host = "localhost" if where == "the API" else "49983-01jd0000000000000000000000.test"
    request = f"{line} HTTP/1.1\r\nHost: {host}\r\nX-API-KEY: e2b_0\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    piece = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    sent, answer = 0, b""
    with Peak(server) as peak, connect() as wire, contextlib.suppress(OSError):
        wire.sendall(request)
        while sent < 1 << 30:
            wire.sendall(piece)
            sent += len(piece)
            if select.select([wire], [], [], 0)[0]:
                answer += wire.recv(1 << 16)
    assert statuses(answer)[:1] in ([401], [502], []), answer
    assert sent < 400 << 20, f"{sent >> 20} MiB were read of a request that was refused"
    assert peak.grown < 64


def test_readers_that_do_not_read(server, bystanders, attackers):
    """300 downloads of 64 MiB each that nobody takes: what is not taken is not read ahead."""
    sandbox = attackers("user").sandbox
    sandbox.commands.run("truncate -s 64M big")
    token = f"X-Access-Token: {sandbox._envd_access_token}"
    ask = head(sandbox, "GET", "/files?path=big", 49983, token)
    with Peak(server) as peak, Crowd(300) as crowd:
        for wire in crowd.wires:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        crowd.say(ask)
        wait_until(lambda: all(select.select([wire], [], [], 0)[0] for wire in crowd.wires))
        assert sandbox.commands.run("echo alive").stdout == "alive\n"
        bystanders.answer()
    print(f"300 downloads that nobody reads: {peak.grown:.0f} MiB")
    assert peak.grown < 160, f"the server grew by {peak.grown:.0f} MiB"


def test_one_sandboxs_crowd_is_not_anothers(server, bystanders, attackers):
    """More requests than one sandbox may have under way: it refuses, the neighbour does not."""
    sandbox = attackers("user").sandbox
    listen = "import socket,time; s=socket.create_server(('127.0.0.1',8000),backlog=4096); time.sleep(600)"
    sandbox.commands.run(f'exec python3 -c "{listen}"', background=True, timeout=0)
    wait_until(lambda: statuses(converse(head(sandbox, "GET", "/", 8000), 1)) != [502])
    # From an address of its own: the crowds of other tests would have its idle connections closed.
    with Crowd(1200, source="127.0.0.6") as crowd:
        crowd.say(head(sandbox, "GET", "/", 8000))
        wait_until(lambda: statuses(converse(head(sandbox, "GET", "/", 8000), 1)) == [429])
        bystanders.answer()
    wait_until(lambda: sandbox.commands.run("echo alive").stdout == "alive\n")
