"""A repository on a plain git server, HTTPS with a password: an agent's task becomes a pull request here, and its merge lands there."""

import shutil
import subprocess

import httpx
import pytest

from coffer_up import CofferUp, binary, eventually
from ghe import NAME, Enterprise, git

PASSWORD = "glpat-canary-0123456789"
# Looks for the password inside; the words are put together there, so that they are on no command line.
SCRIPT = f"""
echo done >> README
printf '%s%s\\n' {PASSWORD[:6]} {PASSWORD[6:]} | grep -rslaFf - /home /root /tmp /etc /run /proc/[0-9]*/environ > found.txt
git push origin HEAD:refs/heads/sneaked 2> pushed.txt || true
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if not shutil.which("openssl"):
        pytest.skip("SKIPPED: the server needs openssl for its certificate")
    made = Enterprise(tmp_path_factory.mktemp("git-server"))
    # What git asks for is served to this user alone.
    made.tokens = {f"ada:{PASSWORD}"}
    yield made
    made.stop()


@pytest.fixture(scope="module")
def up(server, tmp_path_factory):
    options = ["--ephemeral", "--warm-slots", "0", "--nameserver", server.nameserver]
    options += [
        "--set",
        f"forge.private_hosts={NAME}:{server.port}",
        "--set",
        f"network.extra_roots={server.authority}",
    ]
    with CofferUp(tmp_path_factory.mktemp("coffer") / "data", *options, pool_size="1GiB") as running:
        yield running


def coffer(up, *words: str, **env: str) -> subprocess.CompletedProcess:
    told = up.env()
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env}
    env |= {"COFFER_URL": told["E2B_API_URL"], "COFFER_API_KEY": told["E2B_API_KEY"]}
    return subprocess.run([binary(), *words], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.timeout(600)
def test_a_task_on_a_git_server(up, server):
    url = f"https://{NAME}:{server.port}/octo/app.git"
    # A wrong password is told, and leaves nothing behind.
    wrong = coffer(up, "repo", "add", url, "--user", "ada", "--token-env", "T", T="wrong")
    assert wrong.returncode != 0 and "did not accept this user and token" in wrong.stderr, wrong
    assert coffer(up, "repo", "connections", "-o", "json").stdout.strip() in ("[]", ""), "nothing is left"
    added = coffer(up, "repo", "add", url, "--user", "ada", "--token-env", "T", T=PASSWORD)
    assert added.returncode == 0, added
    assert PASSWORD not in added.stdout + added.stderr
    env = up.env()
    with httpx.Client(
        base_url=f"{env['E2B_API_URL']}/api/v1", headers={"X-API-KEY": env["E2B_API_KEY"]}, timeout=120
    ) as api:

        def ask(method: str, path: str, /, **body) -> dict:
            answer = api.request(method, path, json=body if method != "GET" else None)
            assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
            assert PASSWORD not in answer.text
            return answer.json()

        repository = ask("GET", "/repositories/app")
        assert (repository["kind"], repository["default_branch"]) == ("git", "main"), repository
        ask("PUT", "/project/settings", git={"name": "A Robot", "email": "robot@example.com"})
        definition = {"preset": "custom", "command": ["/bin/bash", "-c", SCRIPT, "agent", "{prompt}"]}
        agent = ask("POST", "/agents", name="coder", definition=definition)["id"]
        task = ask("POST", "/tasks", title="feat: say done", repository="app", agent_id=agent)["id"]
        ask("POST", f"/tasks/{task}/start")
        state = lambda: ask("GET", f"/tasks/{task}")
        eventually(lambda: state()["state"] == "in_review", lambda: str(state()), 240)
        branch = state()["branch"]
        assert server.tip(branch) and server.tip("sneaked") is None
        assert git(server.bare, "show", f"{branch}:found.txt") == ""
        assert "pushing is closed" in git(server.bare, "show", f"{branch}:pushed.txt")
        pulls = ask("GET", "/repositories/app/pulls")["items"]
        assert [pull["head"] for pull in pulls] == [branch]
        path = f"/repositories/app/pulls/{pulls[0]['number']}"
        assert {file["path"] for file in ask("GET", f"{path}/diff")["files"]} >= {"README"}
        merged = ask("POST", f"{path}/merge", method="squash")
        assert merged["state"] == "merged" and server.tip("main") == merged["merge_commit"], merged
        assert git(server.bare, "show", "main:README").endswith("done")
        # An issue there cannot be read: the number would be another's here.
        refused = api.post("/tasks", json={"issue_url": f"https://{NAME}:{server.port}/octo/app/issues/1"})
        assert refused.status_code == 422 and "cannot read" in refused.text, refused.text
        server.dead = True
        away = api.get("/repositories/app/branches")
        assert (away.status_code, away.json()["code"]) == (503, "forge_unreachable"), away.text
        server.dead = False
