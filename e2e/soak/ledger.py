"""What our own API promised: events without gaps, executions with their output, secrets that no file holds."""

import contextlib
import http.client
import json
import os
import pathlib
import random
import threading
import time
from urllib.parse import quote

from client import Refused
from coffer_up import eventually
from world import LIFE_S, Box, World

CANARY = "canary-3f9a41c7d2e8"  # nothing else on this machine is spelled like this
OVER = {"terminated", "error"}  # a destroy whose record was cut off may be found as a sandbox that was lost
STREAM_S = 30  # a stream that is silent this long is dead: its heartbeats are more frequent


class Follower:
    """Reads a project's events, and comes back with its position whenever the stream ends."""

    def __init__(self, host: str, key: str, after: int = 0):
        self.host, self.key, self.last = host, key, after
        self.events: list[dict] = []
        self.cuts, self.wrong = 0, []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)
        self.thread.start()

    def _follow(self):
        while not self.over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._read()
            self.over.wait(0.02)

    def _read(self):
        connection = http.client.HTTPConnection(self.host, timeout=STREAM_S)
        headers = {"X-API-KEY": self.key, "Accept": "text/event-stream", "Last-Event-ID": str(self.last)}
        heard = False
        try:
            connection.request("GET", "/api/v1/events/stream", headers=headers)
            reply = connection.getresponse()
            if reply.status != 200:
                if reply.status != 503:
                    self.wrong.append(f"the stream answered {reply.status}: {reply.read(300)}")
                return
            heard, number, data = True, None, []
            while line := reply.readline():
                field, _, value = line.decode().rstrip("\n").partition(":")
                if field == "id":
                    number = int(value)
                elif field == "data":
                    data.append(value.strip())
                elif not line.strip() and number is not None:
                    self._take(number, data)
                    number, data = None, []
                if self.over.is_set():
                    return
        finally:
            self.cuts += heard
            connection.close()

    def _take(self, number: int, data: list[str]):
        if number != self.last + 1:
            self.wrong.append(f"event {number} came after {self.last}")
        self.last = number
        self.events.append(json.loads("\n".join(data)))

    def stop(self):
        self.over.set()


class Ledger(World):
    """The world of the soak test, with what our own API adds to it."""

    def __init__(self, place, seed: int):
        super().__init__(place, seed)
        self.executions: dict[str, tuple[str, str]] = {}  # by id: the sandbox, and what it said
        self.made: set[str] = set()
        self.cursor = ""
        self.client.api("PUT", "/api/v1/secrets/canary", {"value": CANARY})
        self.followers = [Follower(self.client.host, self.client.key) for _ in range(4)]

    def create(self) -> Box | None:
        """By our own API, with a secret inside."""
        with self.lock:
            number = next(self.numbers)
            self.unanswered.add(number)
        body = {"template": "base", "timeout_s": LIFE_S, "metadata": {"number": str(number)}}
        with self.attempt("create", None):
            made = self.client.api("POST", "/api/v1/sandboxes", body | {"secrets": {"CANARY": "canary"}})
            box = Box(made["id"], "", number, time.time() + LIFE_S)
            with self.lock:
                self.unanswered.discard(number)
                self.boxes.append(box)
                self.made.add(box.id)
            return box

    def execute(self, box: Box, dice: random.Random):
        word = f"{dice.random()}"
        with self.attempt("exec", box):
            done = self.client.api(
                "POST", f"/api/v1/sandboxes/{box.id}/exec", {"command": f"echo {word}; echo $CANARY"}
            )
            if (done["exit_code"], done["stdout"].split("\n")[0]) != (0, word):
                self.broken.append(f"exec in {box.id} gave {done}")
            self.executions[done["execution_id"]] = (box.id, word)

    def step(self, dice: random.Random):
        with self.lock:
            usable = [box for box in self.boxes if box.destroyed is False]
            wanted = len(usable) + len(self.unanswered) < 4
        if wanted:
            return self.create()
        box = dice.choice(usable) if usable else None
        if box is None or not box.lock.acquire(blocking=False):
            return time.sleep(0.01)
        try:
            if dice.random() < 0.1:
                self.destroy(box)
            else:
                self.execute(box, dice)
        finally:
            box.lock.release()

    def check(self):
        """Everything that was answered is there, and every reader has seen all of it, once and in order."""
        self.report_broken()
        for box in list(self.boxes):
            shown = self.sandbox(box)
            if box.destroyed is not False:
                # Whether a destroy that was not answered was heard, the next one tells.
                if box.destroyed is None and shown["state"] not in OVER:
                    self.destroy_again(box)
                eventually(lambda: self.sandbox(box)["state"] in OVER, lambda: self.sandbox(box), 30)
                self.boxes.remove(box)
            else:
                assert shown["state"] == "running", shown
        self.settle()
        live = {box.id: True for box in self.boxes}
        eventually(lambda: not self.place.stranded(live), lambda: self.place.stranded(live), 30)
        last = self.newest()
        for follower in self.followers:
            eventually(lambda: follower.last >= last, lambda: f"a reader is at {follower.last}, not {last}", 30)
            assert not follower.wrong, follower.wrong[:5]
        told = {event["subject"] for event in self.followers[0].events if event["kind"] == "sandbox.running"}
        assert self.made <= told, f"no event of {self.made - told}"
        self.report_broken()

    def destroy_again(self, box: Box):
        try:
            self.client.api("DELETE", f"/sandboxes/{box.id}")
        except Refused as error:
            assert error.status == 404, error

    def sandbox(self, box: Box) -> dict:
        try:
            return self.client.api("GET", f"/api/v1/sandboxes/{box.id}")
        except Refused as error:
            raise AssertionError(f"{box.id} was made and is not on record: {error}") from error

    def settle(self):
        """Ends what was made without an answer."""
        known = {box.id for box in self.boxes}
        for entry in self.client.api("GET", "/v2/sandboxes"):
            if entry["sandboxID"] not in known:
                assert int(entry["metadata"]["number"]) in self.unanswered, f"{entry} should not exist"
                self.client.api("DELETE", f"/sandboxes/{entry['sandboxID']}")
        self.unanswered.clear()

    def newest(self) -> int:
        """The number of the newest event; what came before the last look is not read again."""
        while True:
            page = self.client.api("GET", f"/api/v1/events?limit=200{self.cursor}")
            if not page["next"]:
                return page["items"][-1]["sequence"]
            self.cursor = f"&cursor={quote(page['next'])}"

    def check_executions(self):
        """Those that were answered are on record with their end; their output is there, without the secret."""
        living = {box.id for box in self.boxes}
        for execution, (sandbox, word) in self.executions.items():

            def shown():
                return self.client.api("GET", f"/api/v1/executions/{execution}")

            # The end of a command whose sandbox was destroyed at once may be told to its caller alone.
            if sandbox in living:
                eventually(lambda: shown()["state"] == "exited", shown, 60)
            row = shown()
            known = (row["state"], row["exit_code"]) == ("exited", 0)
            assert row["sandbox"] == sandbox and (known or sandbox not in living), row
            self.count("executions on record" if known else "executions whose sandbox ended first")
            assert word in row["command"] and CANARY not in json.dumps(row), row

    def check_canary(self):
        held = [str(path) for path in self.place.up.data_dir.rglob("*") if path.is_file() and holds(path, CANARY)]
        held += [str(self.place.up.log)] if holds(self.place.up.log, CANARY) else []
        assert not held, f"the secret is in {held}"

    def finish(self):
        for follower in self.followers:
            follower.stop()


def holds(path: pathlib.Path, text: str) -> bool:
    """Whether a file holds the text, holes skipped."""
    needle, overlap = text.encode(), len(text) - 1
    try:
        with path.open("rb", buffering=0) as file:
            size, at = path.stat().st_size, 0
            while at < size:
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:
                    return False  # only a hole is left
                end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
                file.seek(at)
                tail = b""
                while at < end and (piece := file.read(min(1 << 24, end - at))):
                    if needle in tail + piece:
                        return True
                    tail, at = piece[-overlap:], at + len(piece)
    except FileNotFoundError:
        pass  # it went while we looked
    return False
