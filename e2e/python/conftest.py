"""Sandboxes for the tests, and the ways to reach them that are not the SDK's own."""

import os
import time
import uuid
from urllib.parse import urlsplit

import httpx
import pytest
from e2b import Sandbox

LIFE_S = 600  # long enough that no slow machine loses a sandbox in the middle of a test


def pytest_configure(config):
    if "E2B_API_URL" not in os.environ:
        pytest.exit("these tests drive a running server: start them with e2e/run", returncode=2)


@pytest.fixture
def make():
    """Makes sandboxes that end with the test."""
    made = []

    def create(template=None, **options):
        options.setdefault("timeout", LIFE_S)
        made.append(Sandbox.create(template, **options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture(scope="module")
def box():
    """One sandbox for all tests of a file; each works in a directory of its own."""
    sandbox = Sandbox.create(timeout=LIFE_S * 3)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def here(box):
    """A fresh directory in the shared sandbox."""
    path = f"/home/user/{uuid.uuid4().hex[:12]}"
    box.files.make_dir(path)
    return path


@pytest.fixture
def tag():
    """Metadata that only this test's sandboxes carry."""
    return {"test": uuid.uuid4().hex}


@pytest.fixture(scope="session")
def eventually():
    def poll(condition, within_s=90, every_s=0.2):
        deadline = time.monotonic() + within_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"did not happen within {within_s} s"
            time.sleep(every_s)
        return found

    return poll


@pytest.fixture(scope="session")
def visit():
    """Requests to a port of a sandbox, named by header or by Host."""
    server = os.environ["E2B_SANDBOX_URL"]

    def request(sandbox, port, path="/", by="header", method="GET", headers=None, **options):
        headers = dict(headers or {})
        if by == "header":
            headers |= {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}
        else:
            headers["Host"] = sandbox.get_host(port)
        return httpx.request(method, server + path, headers=headers, timeout=120, **options)

    return request


@pytest.fixture(scope="session")
def serve(visit, eventually):
    """Starts a Python HTTP server in a sandbox and waits until the port answers."""

    def start(sandbox, port, handler, **request):
        source = HTTP_SERVER.replace("HANDLER", handler.strip("\n")).replace("PORT", str(port))
        sandbox.files.write(f"/tmp/server-{port}.py", source)
        sandbox.commands.run(f"python3 /tmp/server-{port}.py", background=True, timeout=0)
        eventually(lambda: visit(sandbox, port, **request).status_code != 502)

    return start


HTTP_SERVER = """
import http.server, os, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

HANDLER

http.server.ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
"""


@pytest.fixture(scope="session")
def server_address():
    parts = urlsplit(os.environ["E2B_SANDBOX_URL"])
    return parts.hostname, parts.port


def boot_id(sandbox) -> str:
    return sandbox.commands.run("cat /proc/sys/kernel/random/boot_id").stdout.strip()
