"""Git in a sandbox, from clone to pull request, and a hostile sandbox that looks for the credential meanwhile."""

import base64
import os
import pathlib
import subprocess
import time
import uuid

import httpx
import pytest
from e2b import Sandbox

DATA_DIR = pathlib.Path(os.environ.get("COFFER_E2E_DATA_DIR", "."))
URL = os.environ["E2B_API_URL"]
VERSIONS = pathlib.Path(__file__).resolve().parent.parent / "versions.env"
PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
}
IDENTITY = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]


def operator_key() -> str:
    return (DATA_DIR / "operator-key").read_text().strip()


class Project:
    """A project of its own with a repository `app`, and a sandbox."""

    def __init__(self, api: httpx.Client, key: str, sandbox: Sandbox, scratch: pathlib.Path):
        self.api, self.key, self.sandbox, self.scratch = api, key, sandbox, scratch
        self.path = f"/sandboxes/{sandbox.sandbox_id}"
        self.seed("app")

    def seed(self, name: str):
        """A repository with one commit on main."""
        made = self.api.post("/repositories", json={"name": name})
        assert made.status_code == 201, made.text
        url = made.json()["clone_url"].replace("http://", f"http://any:{self.key}@")
        work = self.scratch / name
        self.host_git("clone", "--quiet", url, str(work), cwd=self.scratch)
        (work / "README").write_text("hello\n")
        self.host_git("add", "--all", cwd=work)
        self.host_git(*IDENTITY, "commit", "--quiet", "--message", "feat: begin", cwd=work)
        self.host_git("push", "--quiet", "origin", "HEAD:refs/heads/main", cwd=work)

    def host_git(self, *words: str, cwd: pathlib.Path) -> str:
        done = subprocess.run(["git", *words], cwd=cwd, env=PLAIN, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def post(self, verb: str, expect: int = 200, **body) -> dict:
        answer = self.api.post(f"{self.path}/{verb}", json=body)
        assert answer.status_code == expect, f"{verb}: {answer.status_code} {answer.text}"
        return answer.json()

    def get(self, what: str, expect: int = 200, **query) -> dict:
        answer = self.api.get(f"{self.path}/{what}", params=query)
        assert answer.status_code == expect, f"{what}: {answer.status_code} {answer.text}"
        return answer.json()

    def inside(self, line: str, user: str = "user") -> tuple[int, str]:
        done = self.post("exec", command=line, user=user)
        return done["exit_code"], done["stdout"] + done["stderr"]

    def rules(self) -> list[str]:
        return [refusal["rule"] for refusal in self.get("network")["refusals"]]


@pytest.fixture
def project(tmp_path):
    with httpx.Client(base_url=f"{URL}/api/v1", headers={"X-API-KEY": operator_key()}, timeout=60) as admin:
        made = admin.post("/projects", json={"name": f"git-{uuid.uuid4().hex[:8]}"}).raise_for_status().json()
        key = admin.post(f"/projects/{made['id']}/keys", json={"name": "test", "role": "admin"})
        key = key.raise_for_status().json()["key"]
    with httpx.Client(base_url=f"{URL}/api/v1", headers={"X-API-KEY": key}, timeout=300) as api:
        # Nothing but the gate is open.
        made = api.post("/sandboxes", json={"timeout_s": 600, "network": {"base": "none"}}).raise_for_status().json()
        sandbox = Sandbox.connect(made["id"], api_key=key)
        yield Project(api, key, sandbox, tmp_path)
        sandbox.kill()


def sign(project: Project):
    settings = {"git": {"name": "A Robot", "email": "robot@example.com"}}
    project.api.put("/project/settings", json=settings).raise_for_status()


def test_a_clone_that_is_there_is_brought_up_to_date_or_says_how_far_behind_it_is(project):
    def push(text: str) -> str:
        work = project.scratch / "app"
        (work / "README").write_text(text)
        project.host_git(*IDENTITY, "commit", "--quiet", "--all", "--message", "feat: more", cwd=work)
        project.host_git("push", "--quiet", "origin", "HEAD:refs/heads/main", cwd=work)
        return project.host_git("rev-parse", "HEAD", cwd=work)

    cloned = project.post("clone", repository="app")
    assert (cloned["updated"], cloned["behind"]) == (False, 0)
    # A clean work tree goes on to what the forge has; files that git does not know are in nobody's way.
    newest = push("two\n")
    project.inside("touch app/untracked")
    again = project.post("clone", repository="app")
    assert (again["updated"], again["behind"], again["commit"]) == (True, 0, newest)
    assert project.inside("cat app/README; ls app/untracked") == (0, "two\napp/untracked\n")
    # Work that is not committed stays as it is, and so do commits of its own.
    push("three\n")
    project.inside("echo mine > app/README")
    behind = project.post("clone", repository="app")
    assert (behind["updated"], behind["behind"], behind["commit"]) == (False, 1, newest)
    assert project.inside("cat app/README") == (0, "mine\n")
    project.inside("git -C app -c user.name=a -c user.email=a@b commit --quiet --all --message mine")
    diverged = project.post("clone", repository="app")
    assert (diverged["updated"], diverged["behind"]) == (False, 1)
    assert project.get("status")["ahead"] == 1
    # A branch without an upstream has nothing to be behind.
    project.post("branch", name="task-1")
    assert project.post("clone", repository="app")["behind"] is None


def test_from_clone_to_pull_request(project):
    cloned = project.post("clone", repository="app")
    assert (cloned["branch"], cloned["updated"]) == ("main", False)
    assert project.post("clone", repository="app")["updated"] is True
    branched = project.post("branch", name="task-1")
    assert (branched["created"], branched["base"], branched["commit"]) == (True, "main", cloned["commit"])
    assert project.post("branch", name="task-1")["created"] is False

    assert project.inside("cd app && echo more >> README && echo new > 'a file'") == (0, "")
    status = project.get("status")
    assert status["branch"] == "task-1"
    assert sorted((change["path"], change["unstaged"]) for change in status["changes"]) == [
        ("README", "M"),
        ("a file", "?"),
    ]
    assert "+more" in project.get("diff")["patch"]

    assert project.post("commit", 409, message="feat: more")["code"] == "identity_missing"
    sign(project)
    refused = project.post("commit", 422, message="did things")
    assert refused["code"] == "commit_message" and "type(scope): description" in refused["message"]
    commit = project.post("commit", 201, message="feat(app)!: more\n\nA body.\n\nRefs: #1")
    assert (commit["kind"], commit["scope"], commit["breaking"]) == ("feat", "app", True)
    assert project.post("commit", 409, message="feat: more")["code"] == "nothing_to_commit"
    code, author = project.inside("cd app && git log -1 --format='%an <%ae>|%s'")
    assert (code, author.strip()) == (0, "A Robot <robot@example.com>|feat(app)!: more")

    pushed = project.post("push")
    assert (pushed["branch"], pushed["commit"], pushed["previous"]) == ("task-1", commit["commit"], None)
    made = project.post("pr", 201, title="More", body="why")
    assert (made["created"], made["pull"]["head_commit"]) == (True, commit["commit"])
    again = project.post("pr", 200, title="More")
    assert (again["created"], again["pull"]["number"]) == (False, made["pull"]["number"])

    done = project.get("git")["items"]
    kinds = [(row["kind"], row["state"], row["error_code"]) for row in done]
    assert ("push", "succeeded", None) in kinds and ("commit", "failed", "commit_message") in kinds
    events = project.api.get("/events", params={"limit": 200}).raise_for_status().json()["items"]
    assert {"git.started", "git.succeeded", "git.failed"} <= {event["kind"] for event in events}
    metrics = httpx.get(f"{URL}/metrics", headers={"X-API-KEY": operator_key()}, timeout=60).text
    assert 'git_operation_total{operation="push",outcome="success"}' in metrics


def test_what_is_not_announced_does_not_pass(project):
    project.seed("other")
    project.post("clone", repository="app")
    sign(project)
    gate = "http://git.coffer.internal"
    code, said = project.inside(f"git ls-remote {gate}/other.git")
    assert code != 0 and "no such repository" in said, said
    code, said = project.inside("cd app && git push origin HEAD:refs/heads/sneaked")
    assert code != 0 and "pushing is closed" in said, said
    code, said = project.inside("cd app && git push origin --delete main")
    assert code != 0, said
    assert {"git:repository", "git:push-closed"} <= set(project.rules())

    # While a window is open for one branch, a loop inside tries everything else.
    attack = "cd app; while :; do git push -q origin HEAD:refs/heads/sneaked; git push -q origin :main; "
    attack += "git push -q origin HEAD:task-2 HEAD:refs/heads/other; done"
    project.post("exec", 202, command=attack, background=True)
    project.post("branch", name="task-2")
    project.inside("cd app && for i in $(seq 200); do head -c 20000 /dev/urandom > blob-$i; done")
    project.post("commit", 201, message="test: much")
    project.post("push")
    branches = project.api.get("/repositories/app/branches").raise_for_status().json()["items"]
    assert {branch["name"] for branch in branches} == {"main", "task-2"}
    code, said = project.inside(
        "cd app && git reset -q --hard HEAD~1 && git push --force origin HEAD:refs/heads/task-2"
    )
    assert code != 0 and "pushing is closed" in said, "the window was shut"

    unknown = project.post("branch", 404, name="task-3", base="nowhere")
    assert "nowhere" in unknown["message"]
    protect = {"require_pull": True}
    project.api.put("/repositories/app/protections/main", json=protect).raise_for_status()
    project.post("branch", name="main")
    assert project.post("push", 409)["code"] == "branch_protected"
    assert project.post("clone", 404, repository="absent")["code"] == "not_found"


def test_nobody_makes_a_route_of_their_own(project):
    route = {"slug": "host", "upstream": "http://127.0.0.1:1/x.git"}
    policy = {"base": "none", "git": [route]}
    assert project.api.post("/sandboxes", json={"network": policy}).status_code in (400, 422)
    assert project.api.put(f"{project.path}/network", json=policy).status_code in (400, 422)
    headers = {"X-API-KEY": project.key}
    e2b = {"templateID": "base", "network": {"policy": policy}}
    assert httpx.post(f"{URL}/sandboxes", json=e2b, headers=headers, timeout=60).status_code in (400, 422)


def test_concurrent_work_is_told_and_not_lost(project):
    sign(project)
    project.post("clone", repository="app")
    project.post("branch", name="task-9")
    project.inside("cd app && echo one > one")
    first = project.post("commit", 201, message="feat: one")
    project.post("push")
    # Somebody else pushes to the same branch.
    work = project.scratch / "app"
    project.host_git("fetch", "--quiet", "origin", cwd=work)
    project.host_git("checkout", "--quiet", "-B", "task-9", "origin/task-9", cwd=work)
    (work / "theirs").write_text("x")
    project.host_git("add", "--all", cwd=work)
    project.host_git(*IDENTITY, "commit", "--quiet", "--message", "feat: theirs", cwd=work)
    project.host_git("push", "--quiet", "origin", "task-9", cwd=work)
    project.inside("cd app && echo two > two")
    project.post("commit", 201, message="feat: two")
    refused = project.post("push", 409)
    assert refused["code"] == "push_rejected" and "fetch first" in refused["message"], refused
    assert project.post("push", 409, force=True)["code"] == "push_rejected", "it would lose what was never seen"
    assert project.inside("cd app && git fetch -q && git rebase -q origin/task-9")[0] == 0
    pushed = project.post("push")
    assert pushed["previous"] != first["commit"]
    project.inside("cd app && git reset -q --hard HEAD~2")
    assert project.post("push", 409)["code"] == "push_rejected"
    assert project.post("push", force=True)["previous"] == pushed["commit"]


def test_several_repositories_submodules_and_depth(project):
    sign(project)
    project.seed("lib")
    app, lib = project.scratch / "app", project.scratch / "lib"
    # As submodules are written that move with their repositories: beside the one that has them.
    url = project.host_git("config", "remote.origin.url", cwd=lib)
    project.host_git("submodule", "--quiet", "add", url, "vendor/lib", cwd=app)
    project.host_git("config", "-f", ".gitmodules", "submodule.vendor/lib.url", "../lib.git", cwd=app)
    project.host_git("add", "--all", cwd=app)
    project.host_git(*IDENTITY, "commit", "--quiet", "--message", "feat: a library", cwd=app)
    project.host_git("push", "--quiet", "origin", "main", cwd=app)

    # A submodule is a repository like another: only one that the sandbox was given is fetched.
    refused = project.post("clone", 404, repository="app", submodules=True)
    assert "no such repository" in refused["message"], refused
    project.inside("rm -rf app")
    project.post("clone", repository="lib", path="libraries/lib")
    cloned = project.post("clone", repository="app", submodules=True)
    assert cloned["updated"] is False
    assert project.inside("cat app/vendor/lib/README") == (0, "hello\n")
    assert project.inside("git -C app rev-list --count HEAD")[1].strip() == "2", "all of the history"

    # Each has its own work tree, branch and gate.
    ambiguous = project.post("branch", 422, name="task-1")
    assert "several" in ambiguous["message"], ambiguous
    project.post("branch", repository="lib", name="task-1")
    project.inside("echo more >> libraries/lib/README")
    commit = project.post("commit", 201, repository="lib", message="feat: more")
    assert project.post("push", repository="lib")["commit"] == commit["commit"]
    assert project.get("status", repository="app")["branch"] == "main"
    branches = project.api.get("/repositories/app/branches").raise_for_status().json()["items"]
    assert [branch["name"] for branch in branches] == ["main"], "nothing of the other"

    shallow = project.post("clone", repository="app", path="shallow", depth=1)
    assert (shallow["commit"], shallow["path"]) == (cloned["commit"], "shallow")
    assert project.inside("git -C shallow rev-list --count HEAD")[1].strip() == "1"
    project.post("branch", repository="app", name="task-2")
    project.inside("echo more >> shallow/README")
    commit = project.post("commit", 201, repository="app", message="feat: from little")
    assert project.post("push", repository="app")["commit"] == commit["commit"]
    assert project.inside("git -C shallow fetch -q --unshallow && git -C shallow rev-list --count HEAD") == (0, "3\n")


def test_a_fork_goes_on_where_its_source_was(project):
    sign(project)
    project.post("clone", repository="app")
    project.post("branch", name="task-1")
    project.inside("cd app && echo one > one")
    first = project.post("commit", 201, message="feat: one")
    project.post("push")
    kept = project.post("snapshots", 201)["id"]
    forked = project.post("fork", 201, count=2, timeout_s=300)["children"]
    source = project.path
    made = project.api.post("/sandboxes", json={"template": kept, "timeout_s": 300, "network": {"base": "none"}})
    children = [child["sandbox"]["id"] for child in forked] + [made.raise_for_status().json()["id"]]
    for number, child in enumerate(children):
        project.path = f"/sandboxes/{child}"
        # A program inside reads what the source could, and pushes as little.
        code, said = project.inside("cd app && for i in $(seq 100); do git fetch -q && exit 0; sleep 0.1; done; exit 1")
        assert code == 0, said
        code, said = project.inside("cd app && git push origin HEAD:refs/heads/sneaked")
        assert code != 0 and "pushing is closed" in said, said
        project.post("branch", name=f"task-1-{number}", base="task-1")
        project.inside(f"cd app && echo {number} > two")
        commit = project.post("commit", 201, message="feat: two")
        assert project.post("push")["commit"] == commit["commit"]
        assert project.post("pr", 201, title=f"Two, {number}")["pull"]["head_commit"] == commit["commit"]
        project.api.delete(project.path)
    project.path = source
    branches = project.api.get("/repositories/app/branches").raise_for_status().json()["items"]
    found = {branch["name"]: branch["commit"] for branch in branches}
    assert set(found) == {"main", "task-1", "task-1-0", "task-1-1", "task-1-2"} and found["task-1"] == first["commit"]


# Reads all that root inside can read: files, environments, arguments, memory of every process.
HUNT = r"""
import os, re, sys, time
found, until = set(), time.time() + float(sys.argv[1])
pattern = re.compile(rb"cofpass_[0-9a-f]{16}|Y29mZmVyOmNvZnBhc3Nf[A-Za-z0-9+/]{8}")
def look(where, data):
    for match in pattern.finditer(data):
        found.add((where, match.group()[:24].decode()))
while time.time() < until:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        for name in ("environ", "cmdline"):
            try:
                look(f"{name} of {pid}", open(f"/proc/{pid}/{name}", "rb").read())
            except OSError:
                pass
        try:
            maps, memory = open(f"/proc/{pid}/maps").read(), open(f"/proc/{pid}/mem", "rb", 0)
        except OSError:
            continue
        for line in maps.splitlines():
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if " r" not in line[:40] or end - start > 1 << 26:
                continue
            try:
                memory.seek(start)
                look(f"memory of {pid}", memory.read(end - start))
            except (OSError, ValueError, OverflowError):
                pass
    for root in ("/home", "/root", "/tmp", "/etc", "/run", "/var"):
        for at, _, names in os.walk(root):
            for name in names:
                try:
                    with open(os.path.join(at, name), "rb") as file:
                        look(os.path.join(at, name), file.read(1 << 20))
                except OSError:
                    pass
print("looked", sorted(found))
"""


def test_a_hostile_root_finds_no_credential_during_a_push(project):
    project.post("clone", repository="app")
    sign(project)
    code, _ = project.inside("command -v python3", user="root")
    if code != 0:
        pytest.skip("SKIPPED: the template has no python3 to look with")
    hunt = base64.b64encode(HUNT.encode()).decode()
    # A decoy shows that the hunt finds what is there. All its digits are one: a shell moves its text about, and what it leaves
    # in between must not look like another.
    line = f"echo {hunt} | base64 -d > /root/hunt.py; "
    line += f"(DECOY=cofpass_{'0' * 16} sleep 1000 & ) ; "
    line += "python3 /root/hunt.py 25 > /root/found 2>&1"
    project.post("exec", 202, command=line, user="root", background=True)
    until = time.monotonic() + 20
    pushes = 0
    while time.monotonic() < until:
        pushes += 1
        project.post("branch", name=f"task-{pushes}")
        project.inside(f"cd app && head -c 2000000 /dev/urandom > blob-{pushes}")
        project.post("commit", 201, message=f"test: {pushes}")
        project.post("push")
    deadline = time.monotonic() + 120
    while not (told := project.inside("cat /root/found", user="root")[1]).startswith("looked"):
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    found = told.split("(")[1:]
    decoys = [entry for entry in found if f"cofpass_{'0' * 8}" in entry]
    others = [entry for entry in found if entry not in decoys]
    assert decoys, f"the hunt found not even the decoy: {told}"
    assert not others, others
    assert pushes >= 1
