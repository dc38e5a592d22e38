"""Real agents, installed by their recipes, whose calls go through the model gateway to a scripted model outside."""

import contextlib
import datetime
import json
import pathlib
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator

import httpx

from coffer_up import ROOT, CofferUp, eventually

KEY = "sk-scripted-4711"
BUILD_S, RUN_S = 1500, 420
MODEL = pathlib.Path(__file__).resolve().parent / "model.py"
REPOSITORY = "app"
CHECK = "grep -q 'from the shell' answer.txt"
IDENTITY = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]
PRICES = json.loads((ROOT / "crates/coffer-core/src/model/prices.json").read_text())["models"]

# What each is set up with, besides its key; the gateway's addresses are the preset's own.
AGENTS = {
    "claude_code": {"model": "sonnet"},
    "codex": {"model": "gpt-5.3-codex"},
    "opencode": {"model": "anthropic/claude-sonnet-4-5"},
    "gemini": {"model": "gemini-2.5-flash"},
    "qwen": {"model": "gpt-5.4-mini"},
    "goose": {"model": "claude-sonnet-4-5"},
    "aider": {"login": "OPENAI_API_KEY", "model": "openai/gpt-4.1"},
    "copilot": {"login": "OPENAI_API_KEY", "model": "gpt-5.4"},
}


class Script:
    """The scripted model, as a process of its own, and its ledger."""

    def __init__(self, process: subprocess.Popen, ledger: pathlib.Path):
        self.ledger = ledger
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def lines(self, run: str) -> list[dict]:
        lines = [json.loads(line) for line in self.ledger.read_text().splitlines()]
        return [line for line in lines if line["run"] == run]

    def calls(self, run: str) -> int:
        return httpx.get(f"{self.url}/run/{run}").json()["calls"]

    def release(self, run: str):
        httpx.post(f"{self.url}/release/{run}", json={})

    def options(self) -> list[str]:
        names = ("anthropic", "openai", "gemini")
        return [word for name in names for word in ("--set", f"models.{name}_url={self.url}")]


@contextlib.contextmanager
def script(scratch: pathlib.Path) -> Iterator[Script]:
    ledger = scratch / "ledger.jsonl"
    words = [sys.executable, str(MODEL), "0", str(ledger), KEY, f"/home/user/{REPOSITORY}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Script(process, ledger)
        finally:
            process.terminate()


class Bench:
    """A project with a repository, agents, and the model that they speak with."""

    def __init__(self, up: CofferUp, scratch: pathlib.Path, script: Script):
        env = up.env()
        self.url, self.key, self.script = env["COFFER_URL"], env["COFFER_API_KEY"], script
        self.api = httpx.Client(base_url=f"{self.url}/api/v1", headers={"X-API-KEY": self.key}, timeout=600)
        self.scratch = scratch
        self.presets = {info["preset"]: info for info in self.get("/agent-presets")}
        self.work = str(scratch / REPOSITORY)
        self.repository()

    def call(self, method: str, path: str, expect: tuple[int, ...], **options):
        answer = self.api.request(method, path, **options)
        assert answer.status_code in expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    def get(self, path: str, **query):
        return self.call("GET", path, (200,), params=query)

    def post(self, path: str, **body):
        return self.call("POST", path, (200, 201, 202), json=body)

    def repository(self):
        """One with a commit on main, which each task leaves as it is."""
        made = self.post("/repositories", name=REPOSITORY)
        url = made["clone_url"].replace("http://", f"http://any:{self.key}@")
        git("clone", "--quiet", url, self.work)
        (pathlib.Path(self.work) / "README").write_text("hello\n")
        git("-C", self.work, "add", "--all")
        git("-C", self.work, *IDENTITY, "commit", "--quiet", "--message", "feat: begin")
        git("-C", self.work, "push", "--quiet", "origin", "HEAD:refs/heads/main")

    def agent(self, preset: str, template: str | None = None, **more) -> dict:
        """Sets an agent up as `coffer agent add` does."""
        body = {"key": KEY, "name": preset, **AGENTS[preset], **more}
        if template:
            body["template"] = template
        return self.call("PUT", f"/agent-presets/{preset}/agent", (200, 201), json=body)["agent"]

    def limited(self, agent: dict, **limits) -> dict:
        """The same agent under another name, with these limits."""
        definition = {**agent["definition"], "limits": limits}
        name = f"{agent['name']}-{uuid.uuid4().hex[:6]}"
        return self.post("/agents", name=name, definition=definition)

    def built(self, preset: str) -> str:
        """Waits for the template of a preset's recipe."""

        def state():
            found = next(info for info in self.get("/agent-presets") if info["preset"] == preset)["recipe"]
            return found if found["state"] in ("ready", "failed") else None

        found = eventually(state, f"the template of {preset} is built", BUILD_S)
        agent = next((one for one in self.get("/agents")["items"] if one["name"] == preset), {})
        assert found["state"] == "ready", agent.get("template")
        return found["template"]

    def start(self, agent: dict, mode: str = "usual", **body) -> tuple[str, str]:
        """Starts a task; returns it and its run in the model's ledger."""
        run = uuid.uuid4().hex[:8]
        body = {"check_command": CHECK, "description": f"MODE-{mode} RUN-{run}", **body}
        task = self.post("/tasks", title="Add an answer", repository=REPOSITORY, agent_id=agent["id"], **body)
        self.post(f"/tasks/{task['id']}/start")
        return task["id"], run

    def over(self, task: str) -> dict:
        """Waits for the end of the newest attempt."""

        def ended():
            found = self.get(f"/tasks/{task}/attempts")
            return found and found[-1]["ended_at"]

        eventually(ended, lambda: f"{self.get(f'/tasks/{task}')}", RUN_S)
        return self.get(f"/tasks/{task}")

    def run(self, agent: dict, mode: str = "usual", **body) -> tuple[dict, str]:
        """One attempt, to its end."""
        task, run = self.start(agent, mode, **body)
        return self.over(task), run

    def attempts(self, task: str) -> list[dict]:
        return self.get(f"/tasks/{task}/attempts")

    def transcript(self, task: str) -> list[dict]:
        return self.get(f"/tasks/{task}/transcript", last=200)["items"]

    def changed(self, branch: str) -> dict[str, str]:
        """Files of a branch that main does not have, or not so."""
        git("-C", self.work, "fetch", "--quiet", "origin")
        names = git("-C", self.work, "diff", "--name-only", f"origin/main...origin/{branch}").split()
        return {name: git("-C", self.work, "show", f"origin/{branch}:{name}") for name in names}


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tokens(lines: list[dict]) -> tuple[int, int]:
    """Tokens in and out, as the model counted them."""
    return sum(line["fresh"] + line["read"] + line["written"] for line in lines), sum(line["said"] for line in lines)


def cost(lines: list[dict]) -> float:
    """What the model's answers cost, by the table of prices."""

    def one(line: dict) -> float:
        name = line["model"].rpartition("/")[2]
        price = PRICES.get(name) or PRICES[re.sub(r"-(\d{8}|\d{4}-\d\d-\d\d)$", "", name)]
        usual = price["input"]
        return (
            line["fresh"] * usual
            + line["read"] * price.get("cached", usual)
            + line["written"] * price.get("cache_write", usual)
            + line["said"] * price["output"]
        ) / 1e6

    return sum(one(line) for line in lines if line["status"] == 200)


def seconds(attempt: dict) -> float:
    times = [datetime.datetime.fromisoformat(attempt[name]) for name in ("started_at", "ended_at")]
    return (times[1] - times[0]).total_seconds()
