"""Builds and volumes that clients were promised, and the check that every promise is kept.

Requests go out while parts are being killed. An answer is a promise; a request without one is made again, as an SDK's
user would, and what it may have left must never be seen.
"""

import hashlib
import io
import json
import os
import pathlib
import random
import sqlite3
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote

import fsynced
import registry
from client import Away, Client, Refused
from coffer_up import eventually
from parts import Installation, listed
from world import Box

ANSWER_S = 60
END_S = 240  # a build that was interrupted waits before it goes on, and others go first
LIFE_S = 3000
BUSY = (409, 429, 502, 503)
STEPS = 4
KINDS = ("steps-", "copy-", "image-", "service-")
VOLUME_PROGRAM = pathlib.Path(fsynced.__file__).read_bytes()


@dataclass
class Build:
    name: str
    kind: str
    template: str
    id: str
    request: dict
    files: dict[str, bytes] = field(default_factory=dict)  # what a sandbox of it has
    service: bool = False
    ready: bool = False


class Workshop:
    """Builds of all kinds and a volume that is written to, on one installation."""

    def __init__(self, place: Installation, port: int, dice: random.Random):
        self.place, self.port, self.dice = place, port, dice
        self.builds: list[Build] = []
        self.numbers = iter(range(1, 1 << 30))
        self.broken: list[str] = []
        self.counts: dict[str, int] = {}
        self.root = registry.root_layers()[0]
        self.volume = self.insist("POST", "/volumes", {"name": "kept"})
        self.written: dict[str, bytes] = {}  # by the content API, and answered
        self.known = 0  # a number that was on disk in the volume
        mounts = [{"name": "kept", "path": "/data"}]
        new = {"templateID": "base", "timeout": LIFE_S, "volumeMounts": mounts}
        made = self.insist("POST", "/v2/sandboxes", new)
        self.box = Box(made["sandboxID"], made["envdAccessToken"], 0, 0)
        self.client.upload(self.box, "/home/user/fsynced.py", VOLUME_PROGRAM)
        self.client.launch(self.box, "exec python3 /home/user/fsynced.py write /data/w", "writer")

    @property
    def client(self) -> Client:
        return self.place.client

    def insist(self, method: str, path: str, body=None):
        return self.asking(lambda: self.client.api(method, path, body), f"{method} {path}")

    def asking(self, ask, what: str):
        """Asks again while a part is away."""
        last = []

        def answered():
            try:
                return (ask(),)
            except Away as error:
                last[:] = [error]
            except Refused as error:
                if error.status not in BUSY:
                    raise
                last[:] = [error]

        return eventually(answered, lambda: f"{what}: {last}", ANSWER_S)[0]

    # Builds

    def begin(self, kind: str) -> Build:
        number = next(self.numbers)
        name, mark = f"{kind}-{number}", f"{kind} {number}".encode()
        asked = self.insist("POST", "/v3/templates", {"name": name})
        build = Build(name, kind, asked["templateID"], asked["buildID"], {"force": False, "steps": []})
        marks = [f"{name} {step}" for step in range(STEPS)]
        # What a killed try had written is not in the snapshot that the next one begins with.
        runs = [step("RUN", f"echo {each} >> /marks; sleep 0.15", "root") for each in marks]
        build.files["/marks"] = "".join(f"{each}\n" for each in marks).encode()
        if kind == "image":
            self.push(name, mark)
            build.request |= {
                "fromImage": f"127.0.0.1:{self.port}/{name}:1",
                "fromImageRegistry": {"type": "registry", "username": registry.USER, "password": registry.PASSWORD},
            }
            # The image has no `sleep`.
            runs = [step("RUN", f"echo {each} >> /marks", "root") for each in marks]
            build.files |= {"/image": mark, "/more": filling(number)}
        else:
            build.request["fromTemplate"] = "base"
        if kind == "copy":
            content = filling(number)
            hash = self.upload(build, {"copied": content})
            runs.insert(1, {**step("COPY", "copied", "/home/user/copied", "", ""), "filesHash": hash})
            build.files["/home/user/copied"] = content
        if kind == "service":
            build.request |= {
                "startCmd": "while :; do date > /tmp/alive; sleep 0.1; done",
                "readyCmd": "test -s /tmp/alive",
            }
            build.service = True
        build.request["steps"] = runs
        self.start(build)
        self.builds.append(build)
        return build

    def start(self, build: Build):
        path = f"/v2/templates/{build.template}/builds/{build.id}"

        def ask():
            if self.status(build)["status"] == "waiting":
                self.client.api("POST", path, build.request)
            return True

        self.asking(ask, f"start of {build.name}")

    def upload(self, build: Build, files: dict[str, bytes]) -> str:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        hash = hashlib.sha256(build.name.encode()).hexdigest()

        def ask():
            link = self.client.api("GET", f"/templates/{build.template}/files/{hash}")
            # A client that got no answer cannot know; this one uploads again.
            path = "/" + link["url"].removeprefix("http://").partition("/")[2]
            self.client.exchange("PUT", path, {}, packed.getvalue(), lambda reply: reply.read())
            return hash

        return self.asking(ask, f"upload for {build.name}")

    def push(self, name: str, mark: bytes):
        """An image of which no layer is known yet."""
        number = int(name.rpartition("-")[2])
        own = registry.layer(("image", mark, 0o644), ("more", filling(number), 0o644))
        first = registry.layer((f"root-of-{name}", mark, 0o644))
        registry.push(self.port, name, [self.root, first, own], ["PATH=/usr/bin:/bin"])

    def status(self, build: Build) -> dict:
        return self.client.api("GET", f"/templates/{build.template}/builds/{build.id}/status")

    def look(self):
        """Nothing half-built is listed or can be used."""
        unfinished = [build for build in self.builds if not build.ready]
        try:
            shown = {name for each in self.client.api("GET", "/templates") for name in each["names"]}
            for build in unfinished:
                usable = build.name in shown or self.has_alias(build)
                # It was seen before we ask, and once ready it stays so.
                if usable and (now := self.status(build))["status"] != "ready":
                    self.broken.append(f"{build.name} is listed and {now['status']}")
        except Away:
            pass
        except Refused as error:
            if error.status not in BUSY:
                self.broken.append(str(error))

    def has_alias(self, build: Build) -> bool:
        try:
            self.client.api("GET", f"/templates/aliases/{build.name}")
            return True
        except Refused as error:
            if error.status in (404, 400):
                return False
            raise

    @contextmanager
    def watched(self):
        """Looks all the time, and writes to the volume all the time."""
        over = threading.Event()

        def keep(work):
            while not over.is_set():
                try:
                    work()
                except BaseException as error:
                    self.broken.append(f"{type(error).__name__}: {error}")
                    return
                time.sleep(0.02)

        threads = [threading.Thread(target=keep, args=[work]) for work in (self.look, self.write_content)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not self.broken, self.broken

    def check_builds(self):
        """Waits for every build; each is ready, and has what its steps made, once."""
        for build in [build for build in self.builds if not build.ready]:
            found = eventually(lambda build=build: self.ended(build), lambda build=build: self.story(build), END_S)
            # A refusal of a build is no outcome here: nothing of it is wrong, and it is killed less often than it is tried.
            assert found["status"] == "ready", self.story(build)
            build.ready = True
            self.count(build.kind)
            self.use(build)

    def ended(self, build: Build):
        found = self.asking(lambda: self.status(build), "status")
        return found if found["status"] in ("ready", "error") else None

    def story(self, build: Build) -> str:
        path = f"/templates/{build.template}/builds/{build.id}/status"
        found = self.insist("GET", path)
        told = [entry["message"] for entry in found["logEntries"]]
        return f"{build.name} is {found['status']}, {found.get('reason')}\n" + "\n".join(told[-40:])

    def use(self, build: Build):
        made = self.insist("POST", "/v2/sandboxes", {"templateID": build.name, "timeout": LIFE_S})
        box = Box(made["sandboxID"], made["envdAccessToken"], 0, 0)
        try:
            for path, content in build.files.items():
                found = self.download(box, path)
                assert found == content, f"{build.name}: {path} has {len(found)} bytes: {found[:80]}"
            if build.service:
                eventually(lambda: self.download(box, "/tmp/alive"), f"the service of {build.name} runs")
        finally:
            self.insist("DELETE", f"/sandboxes/{box.id}")

    def download(self, box: Box, path: str) -> bytes:
        # As root: a build's files may be anybody's.
        headers = {**self.client._to(box)}
        request = f"/files?path={quote(path)}&username=root"
        return self.client.exchange("GET", request, headers, None, lambda reply: reply.read())

    def delete_some(self):
        """Deletes templates, so that deletions are interrupted too, and what is left stays bounded."""
        ready = [build for build in self.builds if build.ready]
        for build in self.dice.sample(ready, len(ready) // 2):
            self.delete(build)

    def delete(self, build: Build):
        def ask():
            try:
                self.client.api("DELETE", f"/templates/{build.template}")
            except Refused as error:
                if error.status != 404:  # an earlier try did it
                    raise
            return True

        self.asking(ask, f"delete {build.name}")
        self.builds.remove(build)
        assert not self.has_alias(build), f"{build.name} was deleted"

    # Volumes

    def content(self, method: str, path: str, body=None) -> bytes:
        headers = {"Authorization": f"Bearer {self.volume['token']}", "Content-Type": "application/octet-stream"}
        place = f"/volumecontent/{self.volume['volumeID']}/file?path={quote(path)}"
        return self.client.exchange(method, place, headers, body, lambda reply: reply.read())

    def write_content(self):
        number = next(self.numbers)
        path, content = f"/c{number % 50}", filling(number)[: 1 + number * 977 % 60000]
        # Until it is answered, the file has the old content or the new one.
        self.written.pop(path, None)
        try:
            self.content("PUT", path, content)
            self.written[path] = content
            self.count("content writes")
        except Away:
            pass
        except Refused as error:
            if error.status not in BUSY:
                raise

    def check_volume(self):
        for path, content in self.written.items():
            found = self.asking(lambda path=path: self.content("GET", path), f"read {path}")
            assert found == content, f"{path} of the volume has {len(found)} bytes, not {len(content)}"
        script = "python3 /home/user/fsynced.py check /data/w"
        told = self.asking(lambda: self.client.run(self.box, script), "check of the volume").output
        last, *wrong = told.splitlines()
        assert not wrong, wrong
        assert int(last) >= self.known, f"{self.known} was on disk, and {last} is the last there"
        # The line before the last was synced before the last was begun.
        assert int(last) > 0, "the writer wrote nothing"
        self.known = int(last) - 1

    def at_rest(self):
        """Stops the writer where it is, so that the pool can be copied; it goes on with `go_on`."""
        self.insist("POST", f"/sandboxes/{self.box.id}/pause", {"memory": True})

    def go_on(self):
        self.insist("POST", f"/v2/sandboxes/{self.box.id}/connect", {"timeout": LIFE_S})

    # What is left

    def check(self):
        self.check_builds()
        self.check_volume()
        eventually(lambda: not self.wrong_now(), self.wrong_now, 30)

    def wrong_now(self) -> list[str]:
        """What must not be there once no build runs."""
        live = {each["sandboxID"] for each in self.client.api("GET", "/v2/sandboxes?state=running,paused")}
        wrong = [f"sandbox {each} is left" for each in live - {self.box.id}]
        running = "SELECT id FROM template_builds WHERE state = 'building'"
        wrong += [f"build {each} is still building" for (each,) in self.rows(running)]
        half = "SELECT id FROM sandboxes WHERE purpose = 'build' AND state NOT IN ('terminated', 'error')"
        wrong += [f"sandbox {each} of a build is left" for (each,) in self.rows(half)]
        # A build that is not ready has no snapshot, no tag and no secret.
        half = "SELECT id FROM template_builds WHERE state <> 'ready' AND snapshot_id IS NOT NULL"
        half += (
            " UNION SELECT id FROM template_builds WHERE state IN ('ready', 'error') AND registry_secret IS NOT NULL"
        )
        half += " UNION SELECT build_id FROM template_tags"
        half += " WHERE build_id NOT IN (SELECT id FROM template_builds WHERE state = 'ready')"
        wrong += [f"build {each} is recorded in part" for (each,) in self.rows(half)]
        rows = {each for (each,) in self.rows("SELECT id FROM snapshots")}
        manifests = {name.partition(".")[0] for name in listed(self.place.node_dir / "snapshots")}
        files = listed(self.place.node_dir / "pool/snapshots")
        for kind, found in [("manifest", manifests), ("files", files)]:
            wrong += [f"{kind} without a row: snapshot {each}" for each in found - rows]
            wrong += [f"row without {kind}: snapshot {each}" for each in rows - found]
        wrong += [f"a draft is left: {each}" for each in listed(self.place.node_dir / "pool/d")]
        return wrong

    def wrong_later(self) -> list[str]:
        """What must be gone after the sweep that a start begins with, an hour after a crash."""
        server = self.place.up.data_dir / "server"
        wrong = [f"layer {each.name}" for each in server.glob("image-layers/*/*/*")]
        named = {each for (each,) in self.rows("SELECT sha256 FROM template_files")}
        wrong += [f"upload {each.name}" for each in server.glob("template-files/*/*") if each.name not in named]
        stray = "SELECT id FROM snapshots WHERE purpose <> 'use'"
        stray += " AND id NOT IN (SELECT snapshot_id FROM template_layers)"
        stray += " AND id NOT IN (SELECT snapshot_id FROM template_builds WHERE snapshot_id IS NOT NULL)"
        wrong += [f"snapshot {each}, which no build needs" for (each,) in self.rows(stray)]
        missing = "SELECT snapshot_id FROM template_layers UNION"
        missing += " SELECT snapshot_id FROM template_builds WHERE snapshot_id IS NOT NULL"
        wrong += [f"no row of snapshot {each}" for (each,) in self.rows(f"{missing} EXCEPT SELECT id FROM snapshots")]
        # What killed servers had reserved counts until it expires; the rows go with the next that is released.
        left = f"SELECT id FROM storage_reservations WHERE until_ms >= {int(time.time() * 1000)}"
        wrong += [f"reservation {each}" for (each,) in self.rows(left)]
        return wrong + self.wrong_now()

    def rows(self, query: str) -> list[tuple]:
        path = self.place.up.data_dir / "server/coffer.db"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30) as database:
            return database.execute(query).fetchall()

    def an_hour_later(self):
        """Starts the installation again as if it had been off for two hours."""
        assert self.place.up.stop() == 0
        server = self.place.up.data_dir / "server"
        for path in server.glob("image-layers/*/*/*"):
            then = path.stat().st_mtime - 48 * 3600
            os.utime(path, (then, then))
        with sqlite3.connect(server / "coffer.db") as database:
            past = 2 * 3600 * 1000
            database.execute(f"UPDATE snapshots SET created_ms = created_ms - {past} WHERE purpose <> 'use'")
            database.execute(f"UPDATE storage_reservations SET until_ms = until_ms - {past}")
        self.place.up.start()

    def end(self):
        """Deletes everything; the host has nothing of it afterwards but cached layers."""
        for build in list(self.builds):
            self.delete(build)
        self.insist("DELETE", f"/sandboxes/{self.box.id}")

        def gone():
            try:
                self.client.api("DELETE", f"/volumes/{self.volume['volumeID']}")
            except Refused as error:
                if error.status != 404:
                    raise
            return True

        self.asking(gone, "delete the volume")
        names = {name for each in self.insist("GET", "/templates") for name in each["names"]}
        left = {name for name in names if name.startswith(KINDS)}
        assert not left, f"deleted templates are listed: {left}"
        wrong = "SELECT id FROM template_builds WHERE state <> 'waiting'"
        assert self.rows(wrong) == [], "builds of deleted templates"
        eventually(lambda: not listed(self.place.node_dir / "pool/v"), "the volume's files go", 30)
        eventually(lambda: not self.place.stranded({}), lambda: self.place.stranded({}), 90)

    def count(self, what: str):
        self.counts[what] = self.counts.get(what, 0) + 1


def step(kind: str, *arguments: str) -> dict:
    return {"type": kind, "args": list(arguments), "force": False}


def filling(number: int) -> bytes:
    """A few hundred kilobytes that do not compress, the same for the same number."""
    return random.Random(number).randbytes(300_000)


def settings(port: int, path: pathlib.Path) -> pathlib.Path:
    host = json.dumps(f"127.0.0.1:{port}")
    path.write_text(f"[registries]\nprivate_hosts = [{host}]\nplain_http = [{host}]\n")
    return path
