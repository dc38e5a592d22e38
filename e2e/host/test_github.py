"""From clone to pull request on a GitHub Enterprise inside the site, and all that can go wrong between."""

import base64
import hashlib
import hmac
import json
import re
import shutil

import httpx
import pytest

from coffer_up import CofferUp
from ghe import NAME, Enterprise

TOKEN = "ghp_canary_0123456789abcdef"
# Looks for the token, plain and as git sends it. The words are put together inside, so that they are on no command line;
# a decoy shows that they are found.
BASIC = base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()[20:48]
HUNT = f"""
DECOY=$(printf '%s%s' {TOKEN[:6]} {TOKEN[6:]}) sleep 600 > /dev/null 2>&1 & echo $!
until grep -qa DECOY /proc/$!/environ; do :; done
printf '%s%s\\n%s%s\\n' {TOKEN[:6]} {TOKEN[6:]} {BASIC[:9]} {BASIC[9:]} |
    grep -rslaFf - /home /root /tmp /etc /run /var /opt /proc/[0-9]*/environ /proc/[0-9]*/cmdline
kill $!
"""


@pytest.fixture(scope="module")
def forge(tmp_path_factory):
    if not shutil.which("openssl"):
        pytest.skip("SKIPPED: the forge needs openssl for its certificate")
    made = Enterprise(tmp_path_factory.mktemp("ghe"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def up(forge, tmp_path_factory):
    options = ["--ephemeral", "--warm-slots", "0", "--nameserver", forge.nameserver]
    hosts = f"{NAME}:{forge.port},{NAME}:{forge.storage_port}"
    options += ["--set", f"forge.private_hosts={hosts}", "--set", f"network.extra_roots={forge.authority}"]
    with CofferUp(tmp_path_factory.mktemp("coffer") / "data", *options, pool_size="1GiB") as running:
        yield running


class Work:
    """A sandbox with `octo/app` in it, on a branch of its own."""

    def __init__(self, api: httpx.Client, forge: Enterprise, branch: str):
        self.api, self.forge, self.branch = api, forge, branch
        made = api.post("/sandboxes", json={"timeout_s": 600, "network": {"base": "none"}}).raise_for_status().json()
        self.path = f"/sandboxes/{made['id']}"
        assert self.post("clone", repository="app")["branch"] == "main"
        self.post("branch", name=branch)

    def post(self, verb: str, expect: int = 200, **body) -> dict:
        answer = self.api.post(f"{self.path}/{verb}", json=body)
        assert answer.status_code == expect, f"{verb}: {answer.status_code} {answer.text}"
        assert TOKEN not in answer.text
        return answer.json()

    def inside(self, line: str, user: str = "user") -> str:
        done = self.post("exec", command=line, user=user)
        assert done["exit_code"] == 0, done
        return done["stdout"]

    def commit(self, name: str) -> str:
        self.inside(f"echo {name} > app/{name}")
        return self.post("commit", 201, message=f"feat: {name}")["commit"]

    def end(self):
        self.api.delete(self.path)


@pytest.fixture(scope="module")
def api(up, forge):
    env = up.env()
    headers = {"X-API-KEY": env["E2B_API_KEY"]}
    with httpx.Client(base_url=f"{env['E2B_API_URL']}/api/v1", headers=headers, timeout=300) as api:
        api.put("/secrets/pat", json={"value": TOKEN, "hosts": [NAME]}).raise_for_status()
        api.put("/secrets/hook", json={"value": "shared"}).raise_for_status()
        new = {"name": "ghe", "kind": "github", "base_url": forge.url, "secret": "pat", "webhook_secret": "hook"}
        api.connection = api.post("/forge/connections", json=new).raise_for_status().json()
        new = {"name": "app", "connection_id": api.connection["id"], "remote": "octo/app"}
        api.post("/repositories", json=new).raise_for_status()
        settings = {"git": {"name": "A Robot", "email": "robot@example.com"}}
        api.put("/project/settings", json=settings).raise_for_status()
        yield api


@pytest.fixture
def work(api, forge, request):
    forge.tokens, forge.moods[:], forge.drops[:] = {TOKEN}, [], []
    made = Work(api, forge, re.sub("[^a-z]+", "-", request.node.name).strip("-"))
    yield made
    made.end()
    assert forge.flaws == [], "every request was one that GitHub describes"


def test_from_clone_to_pull_request(work, forge):
    commit = work.commit("one")
    pushed = work.post("push")
    assert (pushed["commit"], pushed["previous"], pushed["attempts"]) == (commit, None, 1)
    assert forge.tip(work.branch) == commit
    made = work.post("pr", 201, title="Add one", body="why")
    assert (made["created"], made["pull"]["head_commit"]) == (True, commit)
    again = work.post("pr", 200, title="Add one")
    assert (again["created"], again["pull"]["number"]) == (False, made["pull"]["number"])
    assert forge.pulls[0]["head"]["ref"] == work.branch
    # Scripts and submodules that name the forge itself get to the gate.
    assert commit in work.inside(f"git ls-remote https://{NAME}:{forge.port}/octo/app.git")
    decoy, *found = work.inside(HUNT, user="root").split()
    assert found == [f"/proc/{decoy}/environ"], "the decoy, and nothing else"
    by_hand = work.post("exec", command="cd app && git push origin HEAD:refs/heads/sneaked")
    assert by_hand["exit_code"] != 0 and "pushing is closed" in by_hand["stderr"]


@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_push_that_breaks_off_is_compared_and_then_repeated(work, forge, drop):
    commit = work.commit(drop)
    forge.drops.append(drop)
    pushed = work.post("push")
    assert (pushed["commit"], pushed["attempts"]) == (commit, 2 if drop == "before" else 1)
    assert forge.tip(work.branch) == commit and not forge.drops
    # What the forge took is what git inside believes it has, so that a later push is no surprise.
    later = work.commit("later")
    assert work.post("push")["previous"] == commit
    work.inside("cd app && git commit -q --amend -m 'feat: amended'")
    refused = work.post("push", 409)
    assert refused["code"] == "push_rejected" and "force" in refused["hint"], refused
    assert work.post("push", force=True)["previous"] == later


def test_refusals_have_codes(work, forge, api):
    work.commit("two")
    protection = f"GET /repos/octo/app/branches/{work.branch}/protection"
    # A token that may push need not see the rules of branches.
    forge.moods.append((403, {}, {"message": "Resource not accessible by personal access token"}))
    work.post("push")
    assert forge.asked.count(protection) == 1
    work.post("branch", name="main")
    assert work.post("push", 409)["code"] == "branch_protected"
    work.post("branch", name=work.branch)
    work.commit("three")
    forge.tokens = {"another"}
    assert work.post("push", 409)["code"] == "token_expired"
    assert work.post("branch", 409, name="task-x")["code"] == "token_expired", "git itself is told by the gate"
    assert work.post("pr", 409, title="x")["code"] == "token_expired"
    forge.tokens = {TOKEN}
    forge.moods.append((403, {"retry-after": "1"}, {"message": "You have exceeded a secondary rate limit."}))
    work.post("push")


def test_large_files_are_moved_by_what_only_the_gate_knows(work, forge, api):
    if work.post("exec", command="git lfs version")["exit_code"] != 0:
        pytest.skip(
            "SKIPPED: the template has no git-lfs; `scripts/setup test` installs it, or build the template anew"
        )
    track = "cd app && git lfs install --local && git lfs track '*.bin' && head -c 200000 /dev/urandom > big.bin"
    work.inside(f"{track} && sha256sum big.bin")
    oid = work.inside("sha256sum app/big.bin").split()[0]
    work.post("commit", 201, message="feat: large")
    work.post("push")
    assert hashlib.sha256(forge.objects[oid]).hexdigest() == oid and forge.verified == {oid}
    other = Work(api, forge, "large-too")
    try:
        cloned = other.post("clone", repository="app", branch=work.branch, path="again")
        assert cloned["notes"] == [] and other.inside("sha256sum again/big.bin").split()[0] == oid
        # Where objects are and what opens them was told to the gate, and git-lfs inside heard of neither.
        trace = "cd again && rm -rf .git/lfs/objects && GIT_TRACE=1 GIT_CURL_VERBOSE=1 git lfs fetch --all 2>&1"
        said = other.inside(trace)
        assert "info/lfs/transfer/" in said and "Authorization" not in said, said
        assert "canary" not in said and "/storage/" not in said and forge.remote_auth not in said
        # The words are put together inside, so that they are on no command line.
        auth = forge.remote_auth.split()[1]
        words = f"printf '%s%s\\n%s%s\\n' {auth[:9]} {auth[9:]} canary-in -a-url"
        hunt = f"{words} | grep -rslaFf - /home /root /tmp /etc /run /var"
        found = other.post("exec", command=f"{hunt} || :", user="root")
        assert found["stdout"] == "", found
    finally:
        other.end()


def connect(api: httpx.Client, forge: Enterprise, name: str):
    """A connection of the test's own, as each remembers what became of it."""
    new = {"name": name, "kind": "github", "base_url": forge.url, "secret": "pat"}
    made = api.post("/forge/connections", json=new).raise_for_status().json()
    api.post("/repositories", json={"name": name, "connection_id": made["id"], "remote": "octo/app"}).raise_for_status()


def test_a_forge_that_wants_to_be_left_alone_or_does_not_answer_is_told(work, forge, api):
    connect(api, forge, "limited")
    spent = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "4102444800"}
    forge.moods.append((403, spent, {"message": "API rate limit exceeded"}))
    limited = api.get("/repositories/limited/branches")
    assert limited.status_code == 429 and limited.json()["code"] == "rate_limited" and "retry-after" in limited.headers
    connect(api, forge, "dead")
    work.post("clone", repository="dead")
    forge.dead = True
    try:
        told = work.post("branch", 503, repository="dead", name="task-y")
        assert told["code"] == "forge_unreachable", told
        told = work.post("push", 503, repository="dead", branch="main")
        assert told["code"] == "forge_unreachable", told
    finally:
        forge.dead = False
    operations = api.get(f"{work.path}/git").raise_for_status().json()["items"]
    assert {"forge_unreachable"} == {row["error_code"] for row in operations[:2]}


def test_a_webhook_has_to_prove_itself(api, forge):
    body = json.dumps(
        {"action": "opened", "repository": {"full_name": "octo/app"}, "pull_request": {"number": 1}}
    ).encode()
    path = f"/forge/webhooks/{api.connection['id']}"

    def deliver(secret: str) -> int:
        signature = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers = {"x-github-delivery": "d-1", "x-github-event": "pull_request", "x-hub-signature-256": signature}
        return api.post(path, content=body, headers={**headers, "content-type": "application/json"}).status_code

    assert deliver("guess") == 401
    assert deliver("shared") in (200, 202, 204)
