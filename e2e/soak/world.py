"""What clients were promised, the work that collects promises, and the check that all of them are kept.

A promise is an answer: 201 to a create, 200 to an upload, 204 to a destroy. What was not answered may have happened
or not; `None` in a sandbox's record says so, and the check finds out which.
"""

import datetime
import hashlib
import random
import sqlite3
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

from client import Away, Client, Refused
from coffer_up import eventually
from parts import Installation, strike

POPULATION = 6
LIFE_S = 3000
HOME = "/home/user"
REMEMBERED_S = 25  # an ended process can be attached to for a while; agentd promises a little more
TOLD_S = 20  # by then the API must tell of a sandbox's death

# What clients may notice of a part's death. Whoever is not named here is not missed by anyone.
CUT = {"server", "up", "all"}  # connections break


@dataclass
class Command:
    """A process that runs until its file `go` appears, and then ends with a known code."""

    pid: int
    tag: str
    code: int
    released: float | None = None

    @property
    def go(self) -> str:
        return f"/tmp/{self.tag}.go"


@dataclass
class Box:
    id: str
    token: str
    number: int
    ends_at: float
    files: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    paused: bool | None = False
    destroyed: bool | None = False
    killed: float | None = None  # when its agentd was
    struck: int | None = None  # the number that it had on the host, where a pause or a resume was under way
    lock: threading.Lock = field(default_factory=threading.Lock)


class Disturbance:
    """A time in which a part was away."""

    def __init__(self, role: str):
        self.role, self.since, self.until = role, time.monotonic(), float("inf")


class World:
    def __init__(self, place: Installation, seed: int):
        self.place, self.seed = place, seed
        self.boxes: list[Box] = []
        self.unanswered: set[int] = set()  # numbers of creates
        self.disturbances: list[Disturbance] = []
        self.broken: list[str] = []  # promises and rules
        self.counts: dict[str, int] = {}
        self.numbers = iter(range(1, 1 << 30))
        self.lock = threading.Lock()

    @property
    def client(self) -> Client:
        return self.place.client

    # --- Work: each of these may be hit by a kill at any moment.

    @contextmanager
    def attempt(self, what: str, box: Box | None):
        """Counts an operation; lets it fail only where a part that everybody needs was away meanwhile."""
        since = time.monotonic()
        try:
            yield
            self.count(what)
        except (Away, Refused) as error:
            with self.lock:
                roles = {d.role for d in self.disturbances if d.until >= since}
            self.count(f"{what} failed")
            time.sleep(0.02)  # as a client would; and the part that is away needs the processor too
            if box and box.killed:
                return
            typed = isinstance(error, Away) and roles & CUT
            typed = typed or (isinstance(error, Refused) and error.status == 503 and error.retry_after)
            if not typed or not roles & CUT:
                self.broken.append(f"{what} failed while {roles or 'nothing'} was away: {error}")

    def count(self, what: str):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def create(self) -> Box | None:
        with self.lock:
            number = next(self.numbers)
            self.unanswered.add(number)
        body = {"templateID": "base", "timeout": LIFE_S, "secure": True, "metadata": {"number": str(number)}}
        with self.attempt("create", None):
            made = self.client.api("POST", "/v2/sandboxes", body)
            box = Box(made["sandboxID"], made["envdAccessToken"], number, time.time() + LIFE_S)
            with self.lock:
                self.unanswered.remove(number)
                self.boxes.append(box)
            return box

    def execute(self, box: Box, dice: random.Random):
        word = f"{dice.random()}"
        with self.attempt("exec", box):
            outcome = self.client.run(box, f"echo {word}; exit 3")
            if (outcome.output, outcome.exit_code) != (f"{word}\n", 3):
                self.broken.append(f"exec in {box.id} gave {outcome}")

    def upload(self, box: Box, dice: random.Random):
        content = dice.randbytes(dice.choice([1000, 100_000, 3_000_000]))
        path = f"{HOME}/{dice.getrandbits(48):x}"
        with self.attempt("upload", box):
            self.client.upload(box, path, content)
            box.files[path] = hashlib.sha256(content).hexdigest()

    def download(self, box: Box, dice: random.Random):
        if not box.files:
            return self.upload(box, dice)
        path = dice.choice(list(box.files))
        with self.attempt("download", box):
            if hashlib.sha256(self.client.download(box, path)).hexdigest() != box.files[path]:
                self.broken.append(f"{path} in {box.id} came back changed")

    def launch(self, box: Box, dice: random.Random):
        tag, code = f"{dice.getrandbits(48):x}", dice.randrange(1, 100)
        script = f"echo begin; until [ -e /tmp/{tag}.go ]; do sleep 0.05; done; echo end; exit {code}"
        with self.attempt("launch", box):
            box.commands.append(Command(self.client.launch(box, script, tag).pid, tag, code))

    def finish(self, box: Box, dice: random.Random):
        """Lets a process end and hears all that it ever said."""
        if not box.commands:
            return self.launch(box, dice)
        command = dice.choice(box.commands)
        with self.attempt("finish", box):
            self.hear_out(box, command)

    def hear_out(self, box: Box, command: Command):
        command.released = command.released or time.monotonic()
        self.client.upload(box, command.go, b"")
        try:
            outcome = self.client.attach(box, command.pid)
        except Refused as error:
            if "not_found" in str(error) and time.monotonic() - command.released > REMEMBERED_S:
                box.commands.remove(command)
                return
            raise
        box.commands.remove(command)
        if (outcome.output, outcome.exit_code) != ("begin\nend\n", command.code):
            self.broken.append(f"process {command} in {box.id} was heard as {outcome}")

    def set_timeout(self, box: Box, dice: random.Random):
        timeout = dice.randrange(LIFE_S, LIFE_S * 2)
        before, box.ends_at = box.ends_at, None
        with self.attempt("timeout", box):
            self.client.api("POST", f"/sandboxes/{box.id}/timeout", {"timeout": timeout})
            box.ends_at = time.time() + timeout
        # A refusal changes nothing; a cut connection may hide a change.
        if box.ends_at is None and not self.is_cut():
            box.ends_at = before

    def is_cut(self) -> bool:
        return bool(self.disturbances) and self.disturbances[-1].role in CUT

    def pause(self, box: Box, dice: random.Random, memory: bool | None = None):
        memory = dice.random() < 0.6 if memory is None else memory
        box.paused = None
        if not memory:
            box.commands.clear()
        with self.attempt("pause", box):
            self.client.api("POST", f"/sandboxes/{box.id}/pause", {"memory": memory})
            box.paused = True

    def connect(self, box: Box):
        box.paused = box.ends_at = None
        with self.attempt("connect", box):
            self.client.api("POST", f"/v2/sandboxes/{box.id}/connect", {"timeout": LIFE_S})
            box.paused = False

    def destroy(self, box: Box):
        box.destroyed = None
        with self.attempt("destroy", box):
            self.client.api("DELETE", f"/sandboxes/{box.id}")
            box.destroyed = True

    def step(self, dice: random.Random):
        """Some operation on some sandbox that nobody else is busy with."""
        with self.lock:
            usable = [box for box in self.boxes if box.destroyed is False and not box.killed]
            free = [box for box in usable if box.lock.acquire(blocking=False)]
            box = dice.choice(free) if free else None
            for other in free:
                if other is not box:
                    other.lock.release()
        if len(usable) + len(self.unanswered) < POPULATION:
            if box:
                box.lock.release()
            return self.create()
        if box is None:
            return time.sleep(0.01)
        try:
            if box.paused is not False:
                return self.connect(box)
            work = dice.choices(
                [self.execute, self.upload, self.download, self.launch, self.finish, self.set_timeout, self.pause],
                [4, 3, 3, 2, 2, 1, 1],
            )[0]
            if dice.random() < 0.08:
                return self.destroy(box)
            work(box, dice)
        finally:
            box.lock.release()

    @contextmanager
    def busy(self, workers: int = 4):
        """Work goes on as long as this is held; then it has come to rest."""
        over = threading.Event()

        def work(dice: random.Random):
            while not over.is_set():
                try:
                    self.step(dice)
                except Exception as error:  # a bug of the test's own, or a hang: seen by the check
                    self.broken.append(f"{type(error).__name__}: {error}")
                    return

        threads = [
            threading.Thread(target=work, args=[random.Random(f"{self.seed}/{next(self.numbers)}")])
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    # --- Kills.

    def kill(self, role: str) -> float:
        """Kills a part and says after how long it was back."""
        with self.disturbed(role):
            return self.place.kill(role)

    @contextmanager
    def disturbed(self, role: str):
        """Operations may fail meanwhile, if that part's absence can be noticed at all."""
        disturbance = Disturbance(role)
        with self.lock:
            self.disturbances.append(disturbance)
        yield
        disturbance.until = time.monotonic()

    def kill_agent(self, dice: random.Random) -> str:
        """Kills process 1 of a sandbox, or of one that waits for an owner."""
        agents = self.place.agents()
        with self.lock:
            owned = [box for box in self.boxes if box.id in agents and not box.killed and box.destroyed is False]
            slots = self.place.slots()
            if slots and (not owned or dice.random() < 0.3):
                strike(dice.choice(slots))
                return "slot"
            if not owned:
                return "nobody"
            box = dice.choice(owned)
            box.killed = time.monotonic()
            box.struck = agents[box.id] if box.paused is not False else None
        strike(agents[box.id])
        return "agentd"

    # --- The check, while nothing is under way.

    def check(self):
        self.report_broken()
        for box in list(self.boxes):
            self.check_box(box)
        self.check_list()
        eventually(lambda: not self.stranded(), self.stranded, 30)
        self.report_broken()

    def stranded(self) -> list[str]:
        return self.place.stranded({box.id: not self.stopped(box) for box in self.boxes})

    def report_broken(self):
        assert not self.broken, "\n".join(self.broken[:10])

    def shown(self, box: Box) -> dict | None:
        try:
            return self.client.api("GET", f"/sandboxes/{box.id}")
        except Refused as error:
            assert error.status == 404, error
            return None

    def stopped(self, box: Box) -> bool:
        """Whether it is paused without processes: they ended, or are on disk."""
        on_disk = {entry["spec"]["sandbox"] for entry in self.place.entries() if entry["phase"]["kind"] == "hibernated"}
        return bool(box.paused) and (box.id in on_disk or self.shown(box).get("pauseMode") == "filesystem")

    def check_box(self, box: Box):
        if box.killed:
            eventually(
                lambda: self.shown(box) is None or self.was_saved(box),
                f"the API tells of the death of {box.id}",
                TOLD_S,
            )
            if self.was_saved(box):
                self.count("deaths that came after the image")
                box.killed = box.struck = None
        if box.killed:
            self.count("deaths told")
            if box.destroyed is False:
                causes = eventually(lambda: self.causes(box.id), f"the API says what {box.id} died of", TOLD_S)
                assert any("signal 9" in cause or "no node was running" in cause for cause in causes), causes
            return self.boxes.remove(box)
        if box.destroyed is None and self.shown(box) is not None:
            self.destroy(box)
        if box.destroyed is not False:
            assert self.shown(box) is None, f"{box.id} was destroyed and is back"
            return self.boxes.remove(box)
        shown = self.shown(box)
        assert shown, f"{box.id} was made, not destroyed, and is gone: {self.causes(box.id)}"
        assert shown["metadata"] == {"number": str(box.number)}, shown
        if box.paused is None:
            box.paused = shown["state"] == "paused"
        assert shown["state"] == ("paused" if box.paused else "running"), f"{shown}, but paused is {box.paused}"
        if box.ends_at is not None:
            ends_at = datetime.datetime.fromisoformat(shown["endAt"]).timestamp()
            assert abs(ends_at - box.ends_at) < 30, f"{box.id} ends at {ends_at}, not {box.ends_at}"
        if box.paused and random.random() < 0.5:
            self.connect(box)
        if not box.paused:
            self.check_inside(box)

    def was_saved(self, box: Box) -> bool:
        """Whether its memory was on disk, or its processes ended, before they were killed.

        A kill in the middle of a pause hits processes that stand still: once their image is complete, what becomes of
        them is nobody's concern. Such a sandbox must go on from the image as if nothing had been, which is checked next.
        """
        if box.struck is None:
            return False
        for entry in self.place.entries():
            if entry["spec"]["sandbox"] == box.id:
                phase = entry["phase"]
                again = phase["kind"] == "running" and phase["process"]["pid"] != box.struck
                return again or phase["kind"] in ("hibernated", "stopped")
        return False

    def check_inside(self, box: Box):
        names = " ".join(box.files)
        sums = self.client.run(box, f"cd {HOME}; [ -z '{names}' ] || sha256sum {names}").output
        found = {path: digest for digest, path in (line.split() for line in sums.splitlines())}
        assert found == box.files, f"files of {box.id}: {found}, not {box.files}"
        waiting = {command.pid for command in box.commands if not command.released}
        assert waiting <= self.client.processes(box), f"{waiting} of {box.id} are not running"
        for command in [command for command in box.commands if command.released]:
            self.hear_out(box, command)

    def check_list(self):
        listed = {entry["sandboxID"]: entry for entry in self.client.api("GET", "/v2/sandboxes")}
        for sandbox in listed.keys() - {box.id for box in self.boxes}:
            number = int(listed[sandbox]["metadata"]["number"])
            assert number in self.unanswered, f"{listed[sandbox]} should not exist"
            self.client.api("DELETE", f"/sandboxes/{sandbox}")
            self.count("creates that were made and not answered")
        assert {box.id for box in self.boxes} <= listed.keys()
        self.unanswered.clear()

    def causes(self, sandbox: str) -> list[str]:
        """What the API says about the end of a sandbox that ended unasked."""
        told = self.client.api("GET", f"/v2/sandboxes/{sandbox}/logs?level=error")
        return [entry["message"] for entry in told["logs"]]

    def events_of(self, sandbox: str, kind: str) -> list[str]:
        """From the event log itself: no API shows it yet."""
        path = self.place.up.data_dir / "server/coffer.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            query = "SELECT payload FROM events WHERE subject = ? AND kind = ?"
            return [row[0] for row in database.execute(query, [sandbox, kind])]

    def destroy_all(self):
        for box in self.boxes:
            if box.destroyed is not True:
                self.client.api("DELETE", f"/sandboxes/{box.id}")
        self.boxes.clear()
