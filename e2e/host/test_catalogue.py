"""Templates of the catalogue, built by a real server with the package indexes that this host's own clients use.

`E2E_CATALOGUE=all` (`make catalogue`) builds all of them; otherwise the two smallest.
"""

import os
import shutil
import subprocess

import httpx
import pytest
from e2b import Sandbox, Template
from e2b.exceptions import BuildException

from client_config import ClientConfig
from coffer_up import CofferUp, binary

BUILD_S = 1800
PATIENCE_S = 120
CLIENTS = ["apt", "npm"]

# What must be inside, as the default user sees it.
INSIDE = {
    "minimal": {"git --version": "git version 2.", "id -un": "user", "pwd": "/home/user"},
    "node": {
        "node --version": "v22.",
        "npm --version": "10.",
        "git --version": "git version 2.",
        "cd $(mktemp -d) && npm install --no-audit --no-fund --loglevel=error is-number && node -p 'require(\"is-number\")(7)'": "true",
    },
    "python": {
        "python --version": "Python 3.",
        "python -m venv /tmp/v && /tmp/v/bin/python -c 'print(6 * 7)'": "42",
        "git --version": "git version 2.",
    },
    "agent-sandbox-dev-node22": {
        "node --version": "v22.",
        "python --version": "Python 3.",
        "gh --version": "gh version 2.",
        "rg --version": "ripgrep 1",
        "tmux -V": "tmux 3.",
        "npm install -g --no-audit --no-fund --loglevel=error cowsay && cowsay moo": "< moo >",
    },
}
FEW = ["minimal", "node"]


@pytest.fixture(scope="module")
def config():
    return ClientConfig()


@pytest.fixture(scope="module")
def up(config, tmp_path_factory):
    for client in CLIENTS:
        if why := config.lacks(client):
            pytest.skip(f"SKIPPED: {why}")
    if not shutil.which("mmdebstrap") and not shutil.which("debootstrap"):
        pytest.skip("SKIPPED: neither mmdebstrap nor debootstrap is installed, which make debian-12")
    scratch = tmp_path_factory.mktemp("catalogue")
    with CofferUp(scratch / "data", "--ephemeral", *config.options(scratch)) as running:
        yield running
    shutil.rmtree(scratch, ignore_errors=True)


def coffer(up: CofferUp, *words: str) -> subprocess.CompletedProcess:
    command = [binary(), "template", *words, "--data-dir", up.data_dir]
    return subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S)


def api(up: CofferUp, key: str | None = None, method: str = "GET", path: str = "/api/v1/templates", **more):
    env = up.env()
    headers = {"X-API-Key": key or env["E2B_API_KEY"]}
    return httpx.request(method, env["E2B_API_URL"] + path, headers=headers, timeout=PATIENCE_S, **more)


def listed(up: CofferUp) -> dict[str, dict]:
    return {item["name"]: item for item in api(up).json()["items"]}


def operator(up: CofferUp) -> str:
    return (up.data_dir / "operator-key").read_text().strip()


def test_a_template_that_is_not_built_names_the_command_that_builds_it(up):
    found = listed(up)["python"]
    assert (found["kind"], found["state"]) == ("server", "not_built")
    e2b = {item["templateID"]: item for item in api(up, path="/templates").json()}
    assert e2b["python"]["buildStatus"] == "waiting" and e2b["python"]["public"] is True
    refused = api(up, method="POST", path="/api/v1/sandboxes", json={"template": "python"})
    assert refused.status_code == 404, refused.text
    assert refused.json()["code"] == "template_not_built"
    assert "coffer template build python" in refused.json()["hint"]
    with pytest.raises(Exception, match="not built"):
        Sandbox.create("python", timeout=60, **up.sdk())


@pytest.mark.timeout(BUILD_S)
@pytest.mark.parametrize("name", INSIDE)
def test_it_is_built_and_has_what_it_should(config, up, name):
    if name not in FEW and os.environ.get("E2E_CATALOGUE") != "all":
        pytest.skip(f"SKIPPED: {name} is built by `make catalogue`")
    before = api(up, path="/api/v1/quotas").json()
    done = coffer(up, "build", name)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "[smoke]" in done.stdout and f"built template {name}" in done.stdout, done.stdout[-2000:]
    assert listed(up)[name]["state"] == "ready"
    assert api(up, path="/api/v1/quotas").json()["used"] == before["used"], "it is in no project's quota"
    sandbox = Sandbox.create(name, timeout=600, **up.sdk())
    try:
        for command, said in INSIDE[name].items():
            found = sandbox.commands.run(command, timeout=PATIENCE_S)
            assert said in found.stdout, (command, found)
        assert sandbox.get_info().template_id == name, "ids of a project that nobody sees stay inside"
    finally:
        sandbox.kill()
    again = coffer(up, "build", name)
    assert again.returncode == 0 and "is built already" in again.stdout, again


@pytest.mark.timeout(BUILD_S)
def test_every_project_uses_it_and_none_changes_it(up):
    assert coffer(up, "build", "minimal").returncode == 0
    made = api(up, operator(up), "POST", "/api/v1/projects", json={"name": "other"}).json()
    names = [item["name"] for item in api(up, operator(up), path="/api/v1/projects").json()["items"]]
    assert sorted(names) == ["default", "other"], "its owner is hidden"
    keys = f"/api/v1/projects/{made['id']}/keys"
    key = api(up, operator(up), "POST", keys, json={"name": "k", "role": "admin"}).json()["key"]
    sdk = up.sdk() | {"api_key": key}
    sandbox = Sandbox.create("minimal", timeout=600, **sdk)
    assert sandbox.commands.run("git --version").stdout.startswith("git version")
    sandbox.kill()
    assert Template.exists("minimal", **{name: sdk[name] for name in ("api_url", "api_key")})
    # Neither by name nor by building it anew.
    assert api(up, key, "DELETE", "/templates/minimal").status_code == 403
    for name in ("minimal", "node"):
        with pytest.raises(BuildException, match="belongs to a template of the server"):
            Template.build(Template().from_template("base").run_cmd("true"), name, api_url=sdk["api_url"], api_key=key)
    refused = api(up, key, "POST", "/api/v1/admin/catalogue/minimal/build", json={})
    assert refused.status_code == 403, refused.text
    # A template of the project's own may start from it.
    own = Template().from_template("minimal").run_cmd("touch /home/user/mine")
    Template.build(own, "mine", api_url=sdk["api_url"], api_key=key)
    sandbox = Sandbox.create("mine", timeout=600, **sdk)
    assert sandbox.commands.run("ls /home/user/mine && git --version").exit_code == 0
    sandbox.kill()
