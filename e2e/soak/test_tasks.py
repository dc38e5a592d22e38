"""Server and node are killed while agents work on tasks. Every task ends right: one branch, one commit, one pull request,
its agent ran once, and no sandbox is left.

    SOAK_SEED=7 TASK_KILLS=200 e2e/run soak -- -k tasks
"""

import os
import pathlib
import random
import subprocess
import time

import pytest

from client import Away, Refused
from coffer_up import eventually
from conftest import SEED, installation
from database import postgres
from parts import Installation
from test_soak import say

KILLS = int(os.environ.get("TASK_KILLS") or 8)
LONG = KILLS >= 100
STEPS = ["prepare", "sandbox", "clone", "setup", "branch", "agent-1", "hear-1"]
STEPS += ["check", "commit", "push", "pull", "finish"]
ROLES = ["server", "node"]
OTHERS = ["egress", "spawner", "up", "all"]  # now and then
END_S = 240  # a server that was just killed waits before it takes a run up again, longer each time
AT_ONCE = 3
# Takes long enough to be hit, and tells how often it ran.
AGENT = """
echo begun >> ran; sleep 0.4; echo working; sleep 0.4; echo "$COFFER_TASK_ID" > mine; sleep 0.2; echo done
"""
# Is at its budget in its first turn.
SPENDER = """
echo begun >> ran
if [ "$COFFER_TURN" = 1 ]; then
    echo '{"type": "result", "subtype": "success", "total_cost_usd": 2.5, "result": "spent"}'
    sleep 600
fi
"""
PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
}


class Works:
    """A repository, an agent, and tasks."""

    def __init__(self, place: Installation, scratch: pathlib.Path):
        self.place, self.work = place, scratch / "app"
        made = self.api("POST", "/repositories", {"name": "app"})
        url = made["clone_url"].replace("http://", f"http://any:{place.client.key}@")
        self.git("clone", "--quiet", url, str(self.work), cwd=scratch)
        (self.work / "README").write_text("hello\n")
        self.git("add", "--all")
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        self.git(*identity, "commit", "--quiet", "--message", "feat: begin")
        self.git("push", "--quiet", "origin", "HEAD:refs/heads/main")
        command = ["/bin/sh", "-euc", AGENT, "agent", "{prompt}"]
        definition = {"preset": "custom", "command": command}
        self.agent = self.api("POST", "/agents", {"name": "worker", "definition": definition})["id"]
        self.tasks: list[str] = []
        self.ended = 0  # the first so many of them

    def git(self, *words: str, cwd: pathlib.Path | None = None) -> str:
        done = subprocess.run(["git", *words], cwd=cwd or self.work, env=PLAIN, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def api(self, method: str, path: str, body=None):
        """Asks until there is an answer; only what can be asked twice is asked while something is away."""
        deadline = time.monotonic() + 60
        while True:
            try:
                return self.place.client.api(method, f"/api/v1{path}", body)
            except Away:
                assert method == "GET" and time.monotonic() < deadline
            except Refused as error:
                if error.status != 503 or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def begin(self) -> str:
        new = {"title": f"Add file {len(self.tasks)}", "repository": "app", "agent_id": self.agent}
        task = self.api("POST", "/tasks", {**new, "check_command": "test -f mine"})["id"]
        self.api("POST", f"/tasks/{task}/start", {})
        self.tasks.append(task)
        return task

    def attempt(self, task: str) -> dict:
        return self.api("GET", f"/tasks/{task}/attempts")[-1]

    def is_over(self, task: str) -> bool:
        return bool(self.attempt(task)["ended_at"])

    def reached(self, task: str, step: str) -> bool:
        """Whether a step has begun."""
        steps = self.api("GET", f"/runs/{self.attempt(task)['run_id']}/steps")
        return any(found["name"] == step for found in steps)

    def kill_at(self, task: str, step: str, role: str, after_s: float):
        deadline = time.monotonic() + END_S
        while not self.reached(task, step):
            assert time.monotonic() < deadline, f"{step} is not reached"
            time.sleep(0.002)
        time.sleep(after_s)
        self.place.kill(role)

    def check_new(self):
        """Waits until all tasks are over, and says at once if one went wrong."""
        for task in self.tasks[self.ended :]:
            eventually(lambda task=task: self.is_over(task), lambda task=task: self.story(task), END_S)
            assert self.api("GET", f"/tasks/{task}")["state"] == "in_review", self.story(task)
        self.ended = len(self.tasks)

    def story(self, task: str) -> str:
        steps = self.api("GET", f"/runs/{self.attempt(task)['run_id']}/steps")
        told = [f"{step['name']} {step['state']} ({step['starts']}) {step['error'] or ''}" for step in steps]
        return f"{self.attempt(task)}\n" + "\n".join(told)

    def check(self):
        """Every task came to exactly one branch, commit and pull request, and nothing is left of them."""
        self.check_new()
        self.git("fetch", "--quiet", "--prune", "origin")
        refs = self.git("for-each-ref", "--format=%(refname:strip=3)", "refs/remotes/origin/*").split()
        assert sorted(refs) == sorted(["main", *(f"task-{task}" for task in self.tasks)])
        pulls, cursor = [], ""
        while cursor is not None:
            page = self.api("GET", f"/repositories/app/pulls?limit=100{cursor}")
            pulls += page["items"]
            cursor = f"&cursor={page['next']}" if page["next"] else None
        heads = sorted(pull["head"] for pull in pulls)
        assert heads == sorted(f"task-{task}" for task in self.tasks)
        commits = {pull["head"]: pull["head_commit"] for pull in pulls}
        for task in self.tasks:
            shown, branch = self.api("GET", f"/tasks/{task}"), f"task-{task}"
            assert shown["state"] == "in_review" and shown["attempts"] == 1, self.story(task)
            commit = self.git("rev-parse", f"origin/{branch}")
            assert commit == shown["commit"] == commits[branch], self.story(task)
            assert self.git("rev-list", "--count", f"origin/main..origin/{branch}") == "1", self.story(task)
            assert self.git("show", f"origin/{branch}:mine") == task
            assert self.git("show", f"origin/{branch}:ran") == "begun", f"its agent ran twice: {self.story(task)}"
        live = self.api("GET", "/sandboxes?state=creating,running,paused")["items"]
        assert live == [], f"sandboxes are left: {live}"
        eventually(lambda: not self.place.stranded({}), lambda: self.place.stranded({}), 30)


@pytest.fixture(params=["sqlite", "postgres"])
def works(request, tmp_path):
    fast = ["--set", "limits.rates.requests_per_s=0", "--set", "limits.rates.creates_per_s=0"]
    if request.param == "sqlite":
        with installation(*fast) as place:
            yield Works(place, tmp_path)
    else:
        with postgres() as url, installation(*fast, "--database-url", url) as place:
            yield Works(place, tmp_path)


@pytest.mark.timeout(60 + 40 * len(STEPS) * len(ROLES))
def test_tasks_with_kills_at_every_step(works, capsys):
    dice = random.Random(SEED)
    moments = [(step, role) for step in STEPS for role in ROLES]
    if not LONG:
        moments = dice.sample(moments, 2)
    for step, role in moments:
        works.kill_at(works.begin(), step, role, dice.choice([0, 0.01, 0.05]))
        works.check_new()
    works.check()
    say(capsys, f"tasks: {len(moments)} kills at the beginning of steps, {len(works.tasks)} tasks, all right")


@pytest.mark.timeout(120 + 30 * KILLS)
def test_tasks_with_kills_at_random_moments(works, capsys):
    dice = random.Random(SEED)
    killed: dict[str, int] = {}
    left = KILLS if LONG else max(1, KILLS // 2)  # half of them on each database
    while left > 0:
        for _ in range(AT_ONCE):
            works.begin()
        # A run that five servers died over is put aside, rightly: no more than two in a row.
        for _ in range(min(left, dice.choice([1, 1, 2]))):
            left -= 1
            role = dice.choice(OTHERS if LONG and left % 10 == 9 else ROLES)
            time.sleep(dice.uniform(0, 3.5))
            try:
                works.place.kill(role)
            except BaseException:
                say(capsys, f"tasks: failed at a kill of {role}, {left} before the last, seed {SEED}")
                raise
            killed[role] = killed.get(role, 0) + 1
        works.check_new()
    works.check()
    say(capsys, f"tasks: killed {killed} at random moments, {len(works.tasks)} tasks, all right; seed {SEED}")


@pytest.mark.timeout(120 + 240 * 8)
def test_a_waiting_task_with_kills(works, capsys):
    """Killed while it asks, rests, waits and wakes, it asks once and goes on once."""
    dice = random.Random(SEED)
    moments = [(step, role) for step in ["ask-1", "rest-1", "settle-1", "wake-1"] for role in ROLES]
    if not LONG:
        moments = dice.sample(moments, 1)
    definition = {"preset": "custom", "command": ["/bin/sh", "-euc", SPENDER, "agent", "{prompt}"]}
    definition["output"] = "claude_stream"
    agent = works.api("POST", "/agents", {"name": "spender", "definition": definition})["id"]
    for step, role in moments:
        new = {"title": "Spend", "repository": "app", "agent_id": agent, "budget": 1.0}
        task = works.api("POST", "/tasks", new)["id"]
        works.api("POST", f"/tasks/{task}/start", {})
        is_early = step in ("ask-1", "rest-1")
        if is_early:
            works.kill_at(task, step, role, 0)
        eventually(lambda task=task: works.reached(task, "answer-1"), lambda task=task: works.story(task), END_S)
        works.place.kill(role)
        assert works.api("GET", f"/tasks/{task}")["needs_attention"]["code"] == "budget_wanted"
        works.api("POST", f"/tasks/{task}/answer", {"answer": "raise", "budget": 9})
        if not is_early:
            works.kill_at(task, step, role, 0)
        eventually(lambda task=task: works.is_over(task), lambda task=task: works.story(task), END_S)
        shown = works.api("GET", f"/tasks/{task}")
        assert (shown["state"], shown["attempts"], shown["budget"]) == ("in_review", 1, 9.0), works.story(task)
        events = works.api("GET", f"/events?subject={task}&limit=200")["items"]
        kinds = [event["kind"] for event in events]
        assert (kinds.count("task.needs_attention"), kinds.count("task.answered")) == (1, 1), kinds
        works.git("fetch", "--quiet", "origin")
        ran = works.git("show", f"origin/{shown['branch']}:ran")
        assert ran == "begun\nbegun", f"{step} {role}: {ran}"
    live = works.api("GET", "/sandboxes?state=creating,running,paused")["items"]
    assert live == [], f"sandboxes are left: {live}"
    say(capsys, f"tasks: {2 * len(moments)} kills around a question, all right; seed {SEED}")
