import pathlib
import shutil
import tempfile

import httpx
import pytest

from coffer_up import ROOT, CofferUp

# Whatever is sent, the answer has to be of the API's making and not of a limit's: those have tests of their own.
SETTINGS = [f"limits.rates.{what}_per_s=0" for what in ("requests", "creates", "wrong_keys")]
SETTINGS += ["limits.quotas.sandboxes=12", "sandbox.memory=256MiB", "sandbox.processes=256"]


@pytest.fixture(scope="session")
def up():
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="coffer-api-"))
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    with CofferUp(scratch / "data", "--ephemeral", *settings, pool_size="3GiB") as up:
        yield up
    shutil.copy(up.log, ROOT / "target/e2e/api.log")
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="session")
def url(up) -> str:
    return up.env()["COFFER_URL"]


@pytest.fixture(scope="session")
def key(up) -> str:
    return up.env()["COFFER_API_KEY"]


@pytest.fixture(scope="session")
def operator_key(up) -> str:
    return (up.data_dir / "operator-key").read_text().strip()


@pytest.fixture(scope="session")
def api(url, key):
    with httpx.Client(base_url=url, headers={"X-API-KEY": key}, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def document(api) -> dict:
    return api.get("/api/v1/openapi.json").raise_for_status().json()


@pytest.fixture(scope="session")
def things(api) -> dict[str, str]:
    """One of each kind, so that not every path leads to nothing. By the name that paths have for them."""
    sandbox = api.post("/api/v1/sandboxes", json={"template": "base", "timeout_s": 3600}).raise_for_status().json()
    agent = api.post("/api/v1/agents", json={"name": "fuzzed"}).raise_for_status().json()
    # Not the one that asks, which would turn the rest into refusals.
    key = api.post("/api/v1/keys", json={"name": "spare", "role": "read"}).raise_for_status().json()
    project = api.get("/api/v1/project").raise_for_status().json()
    return {"id": sandbox["id"], "agent": agent["id"], "key": key["id"], "project": project["id"]}
