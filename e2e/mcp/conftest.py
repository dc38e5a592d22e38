import os
import pathlib
import subprocess
import uuid

import httpx
import pytest


@pytest.fixture(scope="session")
def url() -> str:
    return os.environ["COFFER_URL"]


@pytest.fixture(scope="session")
def key(url) -> str:
    """Of a project of the suite's own, whose commits have a name."""
    operator = (pathlib.Path(os.environ["COFFER_E2E_DATA_DIR"]) / "operator-key").read_text().strip()
    with httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-KEY": operator}, timeout=60) as admin:
        project = admin.post("/projects", json={"name": f"mcp-{uuid.uuid4().hex[:8]}"}).raise_for_status().json()["id"]
        made = admin.post(f"/projects/{project}/keys", json={"name": "suite", "role": "admin"})
    key = made.raise_for_status().json()["key"]
    settings = {"git": {"name": "A Robot", "email": "robot@example.com"}}
    httpx.put(f"{url}/api/v1/project/settings", headers={"X-API-KEY": key}, json=settings).raise_for_status()
    return key


@pytest.fixture(scope="session")
def api(url, key):
    with httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-KEY": key}, timeout=60) as client:
        yield client


@pytest.fixture
def repository(api, url, key, tmp_path) -> str:
    """A repository of the project with one commit on main."""
    name = f"mcp-{uuid.uuid4().hex[:8]}"
    api.post("/repositories", json={"name": name}).raise_for_status()
    clone_url = api.get(f"/repositories/{name}").raise_for_status().json()["clone_url"]
    remote = clone_url.replace("://", f"://coffer:{key}@", 1)
    commands = [
        ["git", "init", "-q", "-b", "main"],
        [
            "git",
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.com",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "feat: begin",
        ],
        ["git", "push", "-q", remote, "main"],
    ]
    for command in commands:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return name
