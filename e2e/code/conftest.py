"""A server whose template `code-interpreter-v1` is built once, and sandboxes of it.

With COFFER_CODE_READY set, the server of the environment is used as it is: for work on the tests.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "host")]

LIFE_S = 1200


@pytest.fixture(scope="session", autouse=True)
def server():
    if os.environ.get("COFFER_CODE_READY"):
        yield
        return
    from client_config import ClientConfig
    from coffer_up import CofferUp, binary

    config = ClientConfig()
    for client in ("pip", "apt"):
        if why := config.lacks(client):
            pytest.skip(f"SKIPPED: the template cannot be built: {why}")
    scratch = Path(tempfile.mkdtemp(prefix="coffer-code-"))
    # The template has 2 GiB, and each memory of a sandbox is kept too.
    with CofferUp(scratch / "data", "--ephemeral", *config.options(scratch), pool_size="8GiB") as up:
        before = dict(os.environ)
        os.environ.update(up.env())
        # As an operator does it.
        subprocess.run([binary(), "template", "build", "code-interpreter-v1", "--data-dir", up.data_dir], check=True)
        yield up
        os.environ.clear()
        os.environ.update(before)
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture
def make():
    """Makes sandboxes that end with the test."""
    from e2b_code_interpreter import Sandbox

    made = []

    def create(**options):
        options.setdefault("timeout", LIFE_S)
        made.append(Sandbox.create(**options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


@pytest.fixture(scope="module")
def box():
    """One sandbox for all tests of a file."""
    from e2b_code_interpreter import Sandbox

    sandbox = Sandbox.create(timeout=LIFE_S)
    yield sandbox
    sandbox.kill()


@pytest.fixture(scope="session")
def eventually():
    def poll(condition, within_s=90, every_s=0.2):
        deadline = time.monotonic() + within_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"did not happen within {within_s} s"
            time.sleep(every_s)
        return found

    return poll


@pytest.fixture
def memory():
    """Skips where the host cannot keep a sandbox's memory."""
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    host = httpx.get(f"{os.environ['E2B_API_URL']}/api/v1/host", headers=headers).raise_for_status().json()
    if not host["memory_snapshot"]:
        pytest.skip(f"SKIPPED: this host saves no memory: {host['memory_snapshot_lacks']}")
