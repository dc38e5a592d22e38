"""Agents that compete in forks of one sandbox, from the request to the winner's pull request."""

import os
import pathlib
import sqlite3
import subprocess
import uuid

import httpx
import pytest

DATA_DIR = pathlib.Path(os.environ.get("COFFER_E2E_DATA_DIR", "."))
URL = os.environ["E2B_API_URL"]
PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
IDENTITY = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
OVER = ("decided", "failed", "cancelled")

# What agents of that name do in the repository; the check wants `answer` to be 42.
AGENTS = {
    "right": "echo 42 > answer",
    "wordy": "echo 42 > answer; seq 30 > notes",
    "wrong": "echo 41 > answer",
    "broken": "echo half > answer; echo no idea >&2; exit 3",
    "lazy": "true",
    "slow": "echo begun > answer; sleep 300",
}


def operator_key() -> str:
    return (DATA_DIR / "operator-key").read_text().strip()


class Project:
    def __init__(self, api: httpx.Client, key: str, scratch: pathlib.Path):
        self.api = api
        made = self.ask("POST", "/repositories", 201, name="app")
        url = made["clone_url"].replace("http://", f"http://any:{key}@")
        work = scratch / "app"
        self.git("clone", "--quiet", url, str(work), cwd=scratch)
        (work / "answer").write_text("0\n")
        self.git("add", "--all", cwd=work)
        self.git(*IDENTITY, "commit", "--quiet", "--message", "feat: begin", cwd=work)
        self.git("push", "--quiet", "origin", "HEAD:refs/heads/main", cwd=work)
        self.agents = {name: self.agent(name, script) for name, script in AGENTS.items()}

    def git(self, *words: str, cwd: pathlib.Path):
        subprocess.run(["git", *words], cwd=cwd, env=PLAIN, check=True, capture_output=True)

    def agent(self, name: str, script: str) -> str:
        definition = {"preset": "custom", "command": ["/bin/sh", "-c", script, "agent", "{prompt}"]}
        return self.ask("POST", "/agents", 201, name=name, definition=definition)["id"]

    def ask(self, method: str, path: str, status: int, **body):
        answer = self.api.request(method, path, json=body if method != "GET" else None)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def entries(self, *names: str) -> list[dict]:
        return [{"label": name, "agent_id": self.agents[name]} for name in names]

    def compete(self, *names: str, status: int = 202, **terms) -> dict:
        terms = {"title": "Find the answer", "repository": "app", "check_command": "grep -qx 42 answer", **terms}
        return self.ask("POST", "/sandboxes/fork", status, **{"entries": self.entries(*names), **terms})

    def get(self, competition: dict) -> dict:
        return self.ask("GET", f"/sandboxes/fork/{competition['id']}", 200)

    def until(self, competition: dict, eventually, *states: str) -> dict:
        def reached():
            found = self.get(competition)
            assert found["state"] in states or found["state"] not in OVER, found["error"]
            return found if found["state"] in states else None

        return eventually(reached, within_s=300)

    def told(self, competition: dict) -> set[str]:
        """The kinds of its events."""
        kinds, cursor = set(), ""
        while cursor is not None:
            page = self.ask("GET", f"/events?subject={competition['id']}&limit=200&cursor={cursor}", 200)
            kinds |= {event["kind"] for event in page["items"]}
            cursor = page["next"]
        return kinds

    def assert_all_given_back(self, competition: dict, but: tuple[str, ...] = ()):
        found = self.get(competition)
        for sandbox in [found["sandbox_id"], *(entry["sandbox_id"] for entry in found["entries"])]:
            if sandbox and sandbox not in but:
                state = self.ask("GET", f"/sandboxes/{sandbox}", 200)["state"]
                assert state == "terminated", f"{sandbox} is {state}"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    with httpx.Client(base_url=f"{URL}/api/v1", headers={"X-API-KEY": operator_key()}, timeout=60) as admin:
        made = admin.post("/projects", json={"name": f"compete-{uuid.uuid4().hex[:8]}"}).raise_for_status().json()
        key = admin.post(f"/projects/{made['id']}/keys", json={"name": "test", "role": "admin"})
        key = key.raise_for_status().json()["key"]
    with httpx.Client(base_url=f"{URL}/api/v1", headers={"X-API-KEY": key}, timeout=120) as api:
        yield Project(api, key, tmp_path_factory.mktemp("compete"))


def test_the_best_wins_by_rule_and_the_others_stay_as_revisions(project, eventually):
    begun = project.compete(
        "wordy", "right", "wrong", "broken", rule="best", prepare_command="echo made > .git/prepared"
    )
    assert begun["state"] in ("queued", "preparing") and begun["winner"] is None
    found = project.until(begun, eventually, "decided")
    wordy, right, wrong, broken = found["entries"]
    assert (found["winner"], found["picked_by"]) == (2, "rule")
    assert [entry["rank"] for entry in found["entries"]] == [2, 1, 3, 4]
    assert right["reasons"] == [
        "its checks passed",
        "before entry 1: 2 changed lines in 1 file against 32 changed lines in 2 files",
    ]
    assert (right["check"]["passed"], wrong["check"]["passed"], broken["check"]) == (True, False, None)
    assert (broken["state"], broken["error"]["code"], broken["exit_code"]) == ("failed", "agent_failed", 3)
    assert "no idea" in broken["error"]["message"]
    assert right["diff"] == {"files": 1, "added": 1, "removed": 1} and right["duration_ms"] is not None
    # Its pull request, and its alone.
    pulls = project.ask("GET", "/repositories/app/pulls", 200)["items"]
    mine = [pull for pull in pulls if begun["id"] in pull["head"]]
    assert [pull["head"] for pull in mine] == [right["branch"]] == [f"fork-{begun['id']}-2"]
    assert found["pull_url"] == right["pull_url"] and found["pull_url"].endswith(f"/pulls/{mine[0]['number']}")
    assert mine[0]["head_commit"] == right["commit"] and "its checks passed" in mine[0]["body"]
    branches = project.ask("GET", "/repositories/app/branches", 200)
    names = [branch["name"] for branch in branches["items"] if begun["id"] in branch["name"]]
    assert names == [right["branch"]]
    # What the others did can be had again, also of the one that failed.
    for entry, line in ((wordy, "+30"), (wrong, "+41"), (broken, "+half")):
        diff = project.ask("GET", f"/sandboxes/fork/{begun['id']}/entries/{entry['number']}/diff", 200)
        assert line in diff["patch"].splitlines() and diff["base_commit"] == found["base_commit"]
    both = project.ask("GET", f"/sandboxes/fork/{begun['id']}/compare?left=1&right=2", 200)
    assert [(file["path"], file["same"]) for file in both["files"]] == [("answer", True), ("notes", False)]
    assert both["files"][1]["right"] is None and both["files"][1]["left"]["added"] == 30
    project.assert_all_given_back(begun)
    kinds = project.told(begun)
    assert {"competition.created", "competition.entry", "competition.ranked", "competition.winner"} <= kinds


def test_each_fork_has_the_limits_of_its_agent(project, eventually):
    command = ["/bin/sh", "-c", "echo 42 > answer", "agent", "{prompt}"]
    definition = {"preset": "custom", "command": command, "limits": {"cpu_count": 1, "memory_mib": 512}}
    small = project.ask("POST", "/agents", 201, name="small", definition=definition)["id"]
    entries = [{"agent_id": small}, *project.entries("right")]
    found = project.until(project.compete(rule="best", entries=entries), eventually, "decided")
    sizes = [project.ask("GET", f"/sandboxes/{entry['sandbox_id']}", 200) for entry in found["entries"]]
    usual = project.ask("GET", f"/sandboxes/{found['sandbox_id']}", 200)
    assert (sizes[0]["cpu_count"], sizes[0]["memory_mib"]) == (1, 512)
    assert sizes[1]["memory_mib"] == usual["memory_mib"] != 512
    # What is kept of it, though there is no task.
    kept = f"/artifacts?run_id={found['run_id']}"
    kinds = eventually(
        lambda: sorted(one["kind"] for one in project.ask("GET", kept, 200)["items"]) == ["diff", "link"]
    )
    assert kinds


def test_a_person_picks_and_only_what_can_win(project, eventually):
    begun = project.compete("right", "wrong", "lazy")
    path = f"/sandboxes/fork/{begun['id']}"
    project.ask("POST", f"{path}/winner", 409, entry=1)
    found = project.until(begun, eventually, "waiting")
    assert found["decide_by"] and found["winner"] is None
    right, wrong, lazy = found["entries"]
    assert (right["can_win"], wrong["can_win"], lazy["can_win"]) == (True, True, False)
    assert lazy["error"]["code"] == "no_changes"
    # Forks that wait use no memory.
    assert project.ask("GET", f"/sandboxes/{right['sandbox_id']}", 200)["state"] == "paused"
    assert project.ask("POST", f"{path}/winner", 422, entry=3)["code"] == "invalid"
    assert project.ask("POST", f"{path}/winner", 422, entry=9)["code"] == "invalid"
    picked = project.ask("POST", f"{path}/winner", 202, entry=2)
    assert (picked["winner"], picked["picked_by"][:4]) == (2, "key:")
    project.ask("POST", f"{path}/winner", 202, entry=2)
    project.ask("POST", f"{path}/winner", 409, entry=1)
    found = project.until(begun, eventually, "decided")
    assert found["pull_url"] and found["entries"][1]["pull_url"] == found["pull_url"]
    project.assert_all_given_back(begun)
    assert project.ask("POST", f"{path}/cancel", 409)["code"] == "conflict"


def test_cancelling_gives_everything_back(project, eventually):
    begun = project.compete("slow", "right")
    eventually(lambda: project.get(begun)["entries"][0]["state"] == "working", within_s=120)
    eventually(lambda: project.get(begun)["entries"][1]["state"] == "done", within_s=120)
    project.ask("POST", f"/sandboxes/fork/{begun['id']}/cancel", 202, reason="not wanted")
    found = project.until(begun, eventually, "cancelled")
    assert found["error"]["message"] == "not wanted"
    assert [entry["state"] for entry in found["entries"]] == ["cancelled", "done"]
    project.assert_all_given_back(begun)


def test_patches_on_record_have_no_secrets(project, eventually):
    project.api.put("/secrets/door", json={"value": "open-sesame-4711"}).raise_for_status()
    teller = project.agent("teller", "echo open-sesame-4711 > told")
    begun = project.compete(rule="best", check_command=None, entries=[{"agent_id": teller}])
    found = project.until(begun, eventually, "decided")
    diff = project.ask("GET", f"/sandboxes/fork/{begun['id']}/entries/1/diff", 200)
    assert "+[redacted]" in diff["patch"].splitlines() and "open-sesame-4711" not in str([diff, found])


def test_an_agent_that_is_out_is_ended_and_its_patch_is_kept(project, eventually):
    begun = project.compete("slow", "right", budget=0.01)
    eventually(lambda: project.get(begun)["entries"][0]["state"] == "working", within_s=120)
    eventually(lambda: project.get(begun)["entries"][1]["state"] == "done", within_s=120)
    # Sandboxes have no price here, and no agent says that it cost something: so that is put on record.
    with sqlite3.connect(next(DATA_DIR.rglob("coffer.db")), isolation_level=None, timeout=30) as database:
        sql = "UPDATE competition_entries SET agent_cost_nanos = 1000000000 WHERE competition_id = ? AND number = 2"
        assert database.execute(sql, (begun["id"],)).rowcount == 1
    found = project.until(begun, eventually, "waiting")
    assert found["entries"][0]["error"]["code"] == "budget_exceeded"
    diff = project.ask("GET", f"/sandboxes/fork/{begun['id']}/entries/1/diff", 200)
    assert "+begun" in diff["patch"].splitlines()
    assert project.ask("GET", f"/executions/{found['entries'][0]['execution_id']}", 200)["state"] != "running"
    project.ask("POST", f"/sandboxes/fork/{begun['id']}/cancel", 202)
    project.until(begun, eventually, "cancelled")


def test_one_that_is_decided_late_gives_everything_back(project, eventually):
    begun = project.compete("right", "wrong")
    waiting = project.until(begun, eventually, "waiting")
    # As after a day: nothing but the competition's own record says whose the sandboxes are.
    with sqlite3.connect(next(DATA_DIR.rglob("coffer.db")), isolation_level=None, timeout=30) as database:
        keys = database.execute(
            "UPDATE idempotency_keys SET expires_ms = 1 WHERE key LIKE ?", (f"%run:{waiting['run_id']}/%",)
        )
        assert keys.rowcount >= 2
    project.ask("POST", f"/sandboxes/fork/{begun['id']}/cancel", 202, reason="not wanted")
    project.until(begun, eventually, "cancelled")
    project.assert_all_given_back(begun)


def test_a_sandbox_that_is_prepared_already_is_forked_and_stays(project, eventually):
    source = project.ask("POST", "/sandboxes", 201, timeout_s=600, idle_s=300)["id"]
    try:
        project.ask("POST", f"/sandboxes/{source}/clone", 200, repository="app")
        terms = {"sandbox_id": source, "repository": None, "rule": "best"}
        begun = project.compete("right", "wrong", **terms)
        found = project.until(begun, eventually, "decided")
        assert (found["winner"], found["sandbox_id"]) == (1, source)
        # Forks wait for each other: that they are not used meanwhile is no reason to end them.
        forks = [project.ask("GET", f"/sandboxes/{entry['sandbox_id']}", 200) for entry in found["entries"]]
        assert [fork["idle_s"] for fork in forks] == [None, None]
        project.assert_all_given_back(begun, but=(source,))
        assert project.ask("GET", f"/sandboxes/{source}", 200)["state"] == "running"
    finally:
        project.ask("DELETE", f"/sandboxes/{source}", 204)


def test_a_task_takes_the_winner(project, eventually):
    task = project.ask(
        "POST", "/tasks", 201, title="Find it", repository="local/app", check_command="grep -qx 42 answer"
    )
    path = f"/tasks/{task['id']}"
    terms = {"entries": project.entries("wrong", "right"), "rule": "best"}
    project.ask("POST", f"{path}/start", 422, compete=terms, model="m")
    project.ask("POST", f"{path}/start", 202, compete=terms)
    project.ask("POST", f"{path}/start", 409, compete=terms)
    found = eventually(
        lambda: next(iter(project.ask("GET", f"/sandboxes/fork?task_id={task['id']}", 200)["items"]), None)
    )
    found = project.until(found, eventually, "decided")
    task = project.ask("GET", path, 200)
    assert (task["state"], task["pull_url"], task["branch"]) == ("in_review", found["pull_url"], f"task-{task['id']}-2")
    attempt = project.ask("GET", f"{path}/attempts", 200)[0]
    assert (attempt["fork_id"], attempt["state"], attempt["commit"]) == (
        found["id"],
        "done",
        found["entries"][1]["commit"],
    )


def test_what_cannot_be_begun_is_refused_and_nothing_is_made(project):
    before = project.ask("GET", "/sandboxes/fork?limit=200", 200)["items"]
    six = ["right"] * 6
    over = project.compete(*six, status=429)
    assert (over["code"], over["details"]["quota"], over["details"]["limit"]) == ("quota_exceeded", "forks", 5)
    assert project.compete(status=422)["code"] == "invalid"
    nobody = [{"agent_id": "0" * 26}]
    assert "names no agent" in project.compete(status=422, entries=nobody)["message"]
    bare = project.ask("POST", "/agents", 201, name=f"bare-{uuid.uuid4().hex[:6]}")["id"]
    assert "no definition" in project.compete(status=422, entries=[{"agent_id": bare}])["message"]
    assert project.compete("right", status=404, repository="nowhere")["code"] == "not_found"
    assert project.compete("right", status=422, repository=None)["code"] == "invalid"
    assert project.compete("right", status=422, decide_within_s=1)["code"] == "invalid"
    assert project.compete("right", status=422, budget=-1)["code"] == "invalid"
    assert project.compete("right", status=422, rule="loudest")["code"] == "invalid"
    long = [{**entry, "prompt": "x" * 60_000} for entry in project.entries("right", "wrong", "lazy")]
    assert "at most 160 KiB" in project.compete(status=422, entries=long)["message"]
    project.ask("GET", f"/sandboxes/fork/{'0' * 26}", 404)
    assert project.ask("GET", "/sandboxes/fork?limit=200", 200)["items"] == before


def test_an_unknown_base_is_a_failure_that_says_so(project, eventually):
    begun = project.compete("right", base_branch="nowhere")
    found = project.until(begun, eventually, "failed")
    assert found["error"]["code"] == "unknown_base" and "nowhere" in found["error"]["message"]
    assert [entry["state"] for entry in found["entries"]] == ["cancelled"]
    project.assert_all_given_back(begun)
