"""An agentd that has been taken over: a program of ours answers the server in its place, by raw bytes."""

import contextlib
import os
import socket
import threading

import pytest
from e2b import Sandbox

from coffer_up import CofferUp, eventually
from outside import ENVD, PLAIN, connect, head, parts_of_server, resident_mib, statuses
from traces import Traces

RUN_DIR = CofferUp(os.environ.get("COFFER_E2E_DATA_DIR", "/nonexistent")).run_dir
KEY = {"X-API-KEY": os.environ.get("E2B_API_KEY", "")}


class FakeAgentd:
    """Takes the place of a sandbox's agentd at the socket that the server connects to."""

    def __init__(self, sandbox: Sandbox, answer):
        self.path = RUN_DIR / "s" / f"{sandbox.sandbox_id}.sock"
        self.aside = self.path.with_suffix(".aside")
        self.sandbox = sandbox
        self.answer = answer
        self.asked: list[bytes] = []
        self.ended = threading.Semaphore(0)

    def __enter__(self):
        # The server keeps connections to the real one: each is put to a use that lasts.
        watch = b'{"path": "/tmp"}'
        token = f"X-Access-Token: {self.sandbox._envd_access_token}"
        ask = (
            head(
                self.sandbox,
                "POST",
                "/filesystem.Filesystem/WatchDir",
                ENVD,
                token,
                "Content-Type: application/connect+json",
                f"Content-Length: {len(watch) + 5}",
            )
            + b"\0"
            + len(watch).to_bytes(4, "big")
            + watch
        )
        self.watches = [connect() for _ in range(20)]
        for wire in self.watches:
            wire.sendall(ask)
            assert b"200 OK" in wire.recv(1 << 16)
        mode, group = self.path.stat().st_mode, self.path.stat().st_gid
        self.path.rename(self.aside)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.path))
        os.chown(self.path, -1, group)
        os.chmod(self.path, mode & 0o777)
        self.listener.listen(200)
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()

    def serve(self, wire: socket.socket):
        wire.settimeout(60)
        with contextlib.suppress(OSError), wire:
            request = b""
            while b"\r\n\r\n" not in request:
                piece = wire.recv(1 << 16)
                if not piece:
                    return
                request += piece
            self.asked.append(request)
            self.answer(wire, request)
        self.ended.release()

    def __exit__(self, *_):
        for wire in self.watches:
            wire.close()
        self.path.unlink()
        self.aside.rename(self.path)
        self.listener.close()


@pytest.fixture(scope="module")
def shared(bystanders):
    sandbox = Sandbox.create(timeout=900)
    traces = Traces(sandbox.sandbox_id)
    yield sandbox
    sandbox.kill()
    eventually(lambda: not traces.left(), traces.left, 120)


@pytest.fixture
def taken(shared, bystanders):
    """A sandbox to take over; the server stays the same process and does not grow by what it is told."""
    before = parts_of_server()
    held = resident_mib(before["server"])
    yield shared
    assert shared.commands.run("echo back").stdout == "back\n"
    bystanders.answer()
    assert parts_of_server() == before, "no part was restarted"
    grown = resident_mib(before["server"]) - held
    assert grown < 128, f"the server grew by {grown:.0f} MiB"


def pour(piece: bytes, times: int = 4096):
    """Says a start, then a piece over and over, until it is cut off or there is enough of it."""

    def answer(start: bytes):
        def say(wire: socket.socket, _request: bytes):
            wire.sendall(start)
            for _ in range(times):
                wire.sendall(piece)

        return say

    return answer


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FLOODS = {
    "headers": pour(b"x-a: 0123456789abcdef\r\n" * 2048)(b"HTTP/1.1 200 OK\r\n"),
    "one header": pour(b"y" * 65536)(b"HTTP/1.1 200 OK\r\nx-a: "),
    "interim answers": pour(b"HTTP/1.1 100 Continue\r\n\r\n" * 2048, 200)(b""),
    "early hints": pour(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 1024, 200)(b""),
    "a chunk's extension": pour(b"z" * 65536)(CHUNKED + b"5;x="),
    "trailers": pour(b"x-a: 0123456789abcdef\r\n" * 2048)(CHUNKED + b"0\r\n"),
    "noise": lambda wire, _: wire.sendall(os.urandom(1 << 20)),
    "another protocol": lambda wire, _: wire.sendall(b"SSH-2.0-x\r\n" + b"\0" * 4096),
    "silence, then the end": lambda wire, _: None,
    "a longer body than there is": lambda wire, _: wire.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nshort"
    ),
    "a reset": lambda wire, _: (wire.sendall(CHUNKED + b"5\r\nhello\r\n"), wire.shutdown(socket.SHUT_RDWR)),
    "two answers": lambda wire, _: wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" * 2),
    "a switch nobody asked for": lambda wire, _: wire.sendall(
        b"HTTP/1.1 101 X\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" + b"x" * 999
    ),
    "a connect frame of 4 GiB": pour(b"\0" * 65536, 64)(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\n\r\n\0\xff\xff\xff\xff"
    ),
}


@pytest.mark.parametrize("what", FLOODS)
def test_whatever_agentd_answers(taken, what):
    """A client gets a 502, or its connection is cut, or it gets the bytes; others notice nothing."""
    with FakeAgentd(taken, FLOODS[what]) as fake:
        for path, port in (("/files?path=x", ENVD), ("/", 8000)):
            answer = b""
            with connect() as wire:
                wire.sendall(head(taken, "GET", path, port, "Connection: close"))
                wire.settimeout(20)
                with contextlib.suppress(OSError):
                    while len(answer) < 64 << 20 and (piece := wire.recv(1 << 20)):
                        answer += piece
            assert statuses(answer)[:1] in ([200], [502], []), answer[:200]
            if port == 8000:
                assert statuses(answer)[:1] in ([502], []), "no tunnel was opened"
        assert fake.asked, "it was asked"
        assert all(fake.ended.acquire(timeout=60) for _ in fake.asked), "and let go of"


def test_a_journal_of_agentds_own_making(taken):
    """Logs are read from agentd: its pages are bounded in size, number and time, and what is in them is text."""
    record = (
        b'{"offset":1,"time_ms":9223372036854775807,"pid":4294967295,"what":{"kind":"started","command":"%s"}},'
        % (b"<b>\\u0000" * 50)
    )
    tail = b'{"offset":1,"time_ms":1,"pid":1,"what":{"kind":"started","command":"last"}}'

    def page(body: bytes, length: int | None = None):
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (length or len(body)) + body

    endless = b'{"next":1,"dropped":0,"records":[' + record * 5000 + tail + b"]}"
    answers = {
        "pages without end": lambda wire, request: wire.sendall(
            page(endless.replace(b'"next":1', b'"next":%d' % (len(request) * 10**6)))
        ),
        "one page of 64 MiB": lambda wire, _: wire.sendall(page(b" " * (64 << 20))),
        "depth": lambda wire, _: wire.sendall(page(b"[" * (3 << 20))),
        "packed": lambda wire, _: wire.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\0"
        ),
        "a length that lies": lambda wire, _: wire.sendall(page(b"{}", 10**12)),
        "one byte a second": lambda wire, _: [wire.sendall(b"H"), wire.recv(1)],
        "nonsense": lambda wire, _: wire.sendall(b"\0" * 4096),
    }
    for what, answer in answers.items():
        with FakeAgentd(taken, answer) as fake:
            logs = PLAIN.get(f"/v2/sandboxes/{taken.sandbox_id}/logs", headers=KEY)
            assert logs.status_code == 200, f"{what}: {logs.text[:200]}"
            assert 1 <= len(logs.json()["logs"]) <= 1000 and len(logs.content) < 32 << 20, what
            assert fake.asked, what
    assert PLAIN.get(f"/sandboxes/{taken.sandbox_id}/metrics", headers=KEY).status_code == 200


def test_a_command_whose_agent_is_replaced_midway(taken, bystanders):
    """The client learns that its stream broke; the server and the neighbour go on."""
    running = taken.commands.run("echo begun; sleep 600", background=True, timeout=0)
    with FakeAgentd(taken, lambda wire, _: wire.sendall(b"garbage")):
        with pytest.raises(Exception):  # noqa: B017 - which one depends on the SDK
            taken.commands.run("echo unreachable", timeout=20)
        bystanders.answer()
    running.kill()
