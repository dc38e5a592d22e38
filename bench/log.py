"""The control plane's log: many readers of one sandbox, many events a second, a long list."""

import http.client
import json
import os
import selectors
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

from machine import ROOT, CofferUp, descendants, proportional_kib
from report import Report, p50, short, table


def server_kib(up: CofferUp) -> int:
    """What the server holds in memory."""
    for pid in descendants(up.process.pid):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[1:2] == [b"server"]:
            return proportional_kib(pid)
    raise RuntimeError("there is no server")


# --- Readers


def readers(report: Report, up: CofferUp, count: int, megabytes: int):
    """Each of `count` readers follows the output of one sandbox by server-sent events."""
    report.heading(f"{count} readers of one busy sandbox")
    api = Api(up)
    sandbox = api.ask("POST", "/api/v1/sandboxes", {"template": "base", "timeout_s": 1800})["id"]
    head = (
        f"GET /api/v1/sandboxes/{sandbox}/stream?after=0-0 HTTP/1.1\r\nHost: bench\r\n"
        f"X-API-KEY: {api.key}\r\nAccept: text/event-stream\r\n\r\n"
    ).encode()
    sockets = []
    for _ in range(count):
        reader = socket.create_connection(api.address)
        reader.sendall(head)
        sockets.append(reader)
    crowd = Crowd(sockets)
    try:
        lost, took, grown = busy(api, up, sandbox, crowd, megabytes)
    finally:
        # Open streams would weigh on what is measured next.
        crowd.close()
    api.ask("DELETE", f"/api/v1/sandboxes/{sandbox}")
    total = crowd.total
    bare = loopback(count, total // count)
    report.say(
        table(
            [
                [f"{count} readers, {total / 2**20:.0f} MiB to all of them", "MiB/s", "note"],
                ["server-sent events of the sandbox's output", short(total / 2**20 / took), ""],
                ["the same bytes copied to as many loopback sockets", short(total / 2**20 / bare), "the limit"],
            ]
        )
    )
    report.say(f"- Readers cut off as too slow: {lost}; the server grew by {grown / 1024:.1f} MiB meanwhile")
    report.at_most("memory that each reader costs the server, MiB", max(grown, 0) / 1024 / count, 0.25)


def busy(api: "Api", up: CofferUp, sandbox: str, crowd: "Crowd", megabytes: int) -> tuple[int, float, int]:
    """Has the sandbox print; how many readers were lost, seconds until all had it, KiB that the server grew by."""
    crowd.await_all(lambda seen: seen > 0, "every stream has begun")
    before = server_kib(up)
    mark, lines = b"the-end-of-it", megabytes * 1024 * 1024 // 1024
    script = f"head -c 1011 /dev/zero | tr '\\0' x > /tmp/l; for i in $(seq {lines}); do cat /tmp/l; echo; done; echo {mark[:6].decode()}''{mark[6:].decode()}"
    since = time.monotonic()
    api.ask("POST", f"/api/v1/sandboxes/{sandbox}/exec", {"command": script, "background": True})
    lost = crowd.until_marked(mark)
    return lost, time.monotonic() - since, server_kib(up) - before


class Api:
    """Our own API, on one kept-alive connection."""

    def __init__(self, up: CofferUp):
        env = up.env()
        self.key, url = env["COFFER_API_KEY"], urlsplit(env["COFFER_URL"])
        self.address = url.hostname, url.port
        self.connection = http.client.HTTPConnection(*self.address, timeout=300)

    def ask(self, method: str, path: str, body=None):
        headers = {"X-API-KEY": self.key, "Content-Type": "application/json"}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = self.connection.getresponse()
        text = reply.read()
        if reply.status >= 300:
            raise RuntimeError(f"{method} {path}: {reply.status} {text[:300]!r}")
        return json.loads(text) if text else None


class Crowd:
    """Sockets that are read by one thread, as fast as they give."""

    def __init__(self, sockets: list[socket.socket]):
        self.selector = selectors.DefaultSelector()
        self.sockets, self.total = sockets, 0
        self.seen = dict.fromkeys(sockets, 0)
        self.tails = dict.fromkeys(sockets, b"")
        for reader in sockets:
            reader.setblocking(False)
            self.selector.register(reader, selectors.EVENT_READ)

    def turn(self, mark: bytes | None = None) -> tuple[set, set]:
        """Reads once wherever there is something; answers whose end came, and who was cut."""
        marked, cut = set(), set()
        for event, _ in self.selector.select(1):
            reader = event.fileobj
            try:
                piece = reader.recv(1 << 18)
            except BlockingIOError:
                continue
            except OSError:
                piece = b""
            if not piece:
                cut.add(reader)
                self.selector.unregister(reader)
                continue
            self.seen[reader] += len(piece)
            self.total += len(piece)
            if mark:
                window = self.tails[reader] + piece
                if mark in window:
                    marked.add(reader)
                self.tails[reader] = window[-len(mark) :]
        return marked, cut

    def await_all(self, condition, what: str, within_s: float = 120):
        deadline = time.monotonic() + within_s
        while not all(condition(seen) for seen in self.seen.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(what)
            self.turn()

    def until_marked(self, mark: bytes, within_s: float = 600) -> int:
        waiting, lost, deadline = set(self.sockets), 0, time.monotonic() + within_s
        while waiting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(waiting)} readers never saw the end")
            marked, cut = self.turn(mark)
            lost += len(cut & waiting)
            waiting -= marked | cut
        return lost

    def close(self):
        for reader in self.sockets:
            reader.close()


def loopback(count: int, each: int) -> float:
    """Seconds to copy `each` bytes to `count` loopback sockets, read in the same way."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=count)
    theirs, ours = [], []
    for _ in range(count):
        ours.append(socket.create_connection(listener.getsockname()))
        theirs.append(listener.accept()[0])
    piece = b"x" * (1 << 16)

    def write():
        left = dict.fromkeys(theirs, each)
        while left:
            for sender in list(left):
                part = piece[: left[sender]]
                sender.sendall(part)
                left[sender] -= len(part)
                if not left[sender]:
                    del left[sender]
                    sender.close()

    crowd = Crowd(ours)
    since = time.monotonic()
    writer = threading.Thread(target=write)
    writer.start()
    open_ones = count
    while open_ones:
        open_ones -= len(crowd.turn()[1])
    took = time.monotonic() - since
    writer.join()
    crowd.close()
    listener.close()
    return took


# --- Events


def events(report: Report, up: CofferUp, count: int):
    report.heading("Events a second into the log, on SQLite")
    with tempfile.TemporaryDirectory(prefix="coffer-events-", dir=up.data.parent) as home:
        words = ["cargo", "run", "--release", "-q", "-p", "coffer-store", "--example", "event_rate", "--"]
        done = subprocess.run([*words, home, str(count)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    report.say(
        table(
            [
                [
                    f"{found['events']} events by {found['callers']} callers, each answered once it is on disk",
                    "a second",
                    "note",
                ],
                ["the event log", f"{found['events_per_s']:.0f}", ""],
                ["the same bytes appended, one flush for as many", f"{found['append_per_s']:.0f}", "the limit"],
            ]
        )
    )
    report.say(f"- Memory grew by {found['grown_kib'] / 1024:.1f} MiB meanwhile")
    report.at_least("events a second, on SQLite", found["events_per_s"], 10_000)


# --- List


def listed(report: Report, up: CofferUp, count: int):
    """All sandboxes of a project, page by page."""
    report.heading(f"A list of {count} sandboxes, paged by cursor")
    api = Api(up)
    model = api.ask("POST", "/api/v1/sandboxes", {"template": "base", "timeout_s": 600})["id"]
    api.ask("DELETE", f"/api/v1/sandboxes/{model}")
    database = up.data / "server/coffer.db"
    fill(database, model, count)
    before, pages, sizes, cursor, seen = server_kib(up), [], [], "", 0
    while cursor is not None:
        since = time.monotonic()
        page = api.ask("GET", f"/api/v1/sandboxes?limit=200{cursor}")
        pages.append((time.monotonic() - since) * 1000)
        sizes.append(len(json.dumps(page)))
        seen += len(page["items"])
        cursor = f"&cursor={quote(page['next'])}" if page["next"] else None
    if seen < count:
        raise RuntimeError(f"the list has {seen} sandboxes, not {count}")
    grown = server_kib(up) - before
    bare = walk(database, len(pages))
    tenth = max(len(pages) // 10, 2)
    copied = loopback(1, sum(sizes)) * 1000 / len(pages)
    first, last = pages[:tenth], pages[-tenth:]
    rows = {"first tenth of the pages": first, "last tenth": last, "SQLite alone, by key": bare}
    report.times("ms for a page of 200", rows)
    report.say(
        f"- {seen} sandboxes in {len(pages)} pages, {sum(sizes) / 2**20:.0f} MiB of JSON, in {sum(pages) / 1000:.1f} s; "
        f"to copy a page over the loopback takes {short(copied)} ms; the server grew by {grown / 1024:.1f} MiB"
    )
    report.at_most("last pages of a list / first pages", p50(last) / p50(first), 1.5)


def fill(database: Path, model: str, count: int):
    """Adds ended sandboxes like one that was."""
    with sqlite3.connect(database, timeout=60) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(sandboxes)")]
        row = dict(
            zip(names, connection.execute("SELECT * FROM sandboxes WHERE id = ?", [model]).fetchone(), strict=True)
        )
        marks = ", ".join("?" * len(names))

        def rows():
            for _ in range(count):
                copy = {**row, "id": "0" + os.urandom(13).hex()[1:]}
                yield [copy[name] for name in names]

        connection.executemany(f"INSERT INTO sandboxes ({', '.join(names)}) VALUES ({marks})", rows())
    connection.close()


def walk(database: Path, pages: int) -> list[float]:
    """Milliseconds for each page of the bare table, read by key."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    took, after = [], ""
    for _ in range(pages):
        since = time.monotonic()
        rows = connection.execute("SELECT * FROM sandboxes WHERE id > ? ORDER BY id LIMIT 200", [after]).fetchall()
        took.append((time.monotonic() - since) * 1000)
        if not rows:
            break
        after = rows[-1][0]
    connection.close()
    return took
