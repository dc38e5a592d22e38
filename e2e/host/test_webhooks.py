"""Events reach their receivers whatever becomes of the server, and artifacts are copied out of sandboxes whole."""

import hashlib
import http.server
import json
import os
import signal
import threading

import httpx
from e2b import Sandbox

from coffer_up import eventually


class Receiver(http.server.ThreadingHTTPServer):
    """Takes nothing until it is told to."""

    def __init__(self):
        self.taking = threading.Event()
        self.asked = []
        self.taken = {}
        super().__init__(("127.0.0.1", 0), Take)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class Take(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        delivery = self.headers["x-coffer-delivery"]
        self.server.asked.append(delivery)
        if self.server.taking.is_set():
            self.server.taken.setdefault(delivery, []).append(json.loads(body))
            self.send_response(204)
        else:
            self.send_response(503)
        self.end_headers()

    def log_message(self, *_):
        pass


def settings(directory, text: str) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "coffer.toml"
    path.write_text(text)
    return str(path)


def test_no_event_is_lost_when_the_server_is_killed_before_it_is_told(server, tmp_path):
    config = settings(tmp_path, '[webhooks]\nlocal_targets = true\nfirst_retry = "1s"\ntries = 20\n')
    up = server("webhooks", "--config", config).start()
    env = up.env()
    api = httpx.Client(base_url=f"{env['E2B_API_URL']}/api/v1", headers={"X-API-KEY": env["E2B_API_KEY"]}, timeout=30)
    receiver = Receiver()
    made = api.post("/webhooks", json={"url": receiver.url, "events": ["task.created"]})
    assert made.status_code == 201, made.text

    expected = []
    for round in range(3):
        for number in range(10):
            task = api.post("/tasks", json={"title": f"{round}.{number}"})
            assert task.status_code == 201, task.text
            expected.append(task.json()["id"])
        # Some are on their way, some are not even queued.
        os.kill(up.part("server"), signal.SIGKILL)
        eventually(lambda: up.part("server") and reachable(api), "the server is back")
    receiver.taking.set()

    def told():
        return sorted(event["subject"] for events in receiver.taken.values() for event in events[:1])

    eventually(lambda: len(receiver.taken) >= len(expected), lambda: (len(receiver.taken), len(expected)))
    assert told() == sorted(expected), "each event has one delivery"
    webhook = api.get(f"/webhooks/{made.json()['id']}").json()
    eventually(lambda: api.get(f"/webhooks/{webhook['id']}").json()["waiting"] == 0, "all are settled")
    log = api.get(f"/webhooks/{webhook['id']}/deliveries", params={"limit": 200}).json()["items"]
    assert {entry["state"] for entry in log} == {"delivered"} and len(log) == len(expected)
    figures = httpx.get(f"{env['E2B_API_URL']}/metrics")
    assert figures.status_code in (200, 401)
    receiver.shutdown()


def test_a_file_of_a_sandbox_becomes_an_artifact_that_outlives_it(server):
    up = server("artifacts").start()
    env = up.env()
    api = httpx.Client(base_url=f"{env['E2B_API_URL']}/api/v1", headers={"X-API-KEY": env["E2B_API_KEY"]}, timeout=30)
    sandbox = Sandbox.create(timeout=300, **up.sdk())
    sandbox.commands.run("mkdir -p /home/user/out && head -c 3000000 /dev/urandom > '/home/user/out/a b.bin'")
    digest = sandbox.commands.run("sha256sum < '/home/user/out/a b.bin'").stdout.split()[0]
    asked = {"sandbox_id": sandbox.sandbox_id, "path": "/home/user/out/a b.bin", "context_id": "h-1"}
    made = api.post("/artifacts", json=asked)
    assert made.status_code == 201, made.text
    artifact = made.json()
    assert (artifact["name"], artifact["size_bytes"], artifact["sha256"]) == ("a b.bin", 3_000_000, digest)
    for path, status in (("/home/user/out", 409), ("/home/user/absent", 404)):
        refused = api.post("/artifacts", json={**asked, "path": path, "name": "x"})
        assert refused.status_code == status, refused.text
    sandbox.kill()
    os.kill(up.part("server"), signal.SIGKILL)
    eventually(lambda: up.part("server") and reachable(api), "the server is back")
    content = api.get(f"/artifacts/{artifact['id']}/content")
    assert hashlib.sha256(content.content).hexdigest() == digest
    assert content.headers["content-disposition"].startswith("attachment;")
    assert api.delete(f"/artifacts/{artifact['id']}").status_code == 204


def reachable(api) -> bool:
    try:
        return api.get("/ready").status_code == 200
    except httpx.TransportError:
        return False
