"""Real agents against the scripted model: templates with both, tasks for them, and what came of it."""

import io
import json
import pathlib
import subprocess
import tarfile
import uuid

import httpx

from coffer_up import CofferUp, eventually

PORT, LEDGER, KEY = 8123, "/tmp/ledger.jsonl", "sk-scripted-4711"
BUILD_S, RUN_S = 1500, 420
MODEL = pathlib.Path(__file__).resolve().parent / "model.py"
CHECK = f"grep -q 'from the shell' answer.txt && cp {LEDGER} ledger.jsonl"
URL = f"http://127.0.0.1:{PORT}"
IDENTITY = ["-c", "user.name=Test", "-c", "user.email=test@example.com"]

# How each is pointed at the model: what is asked of its set-up, and files for its template.
CODEX = f"""
model_provider = "scripted"
[model_providers.scripted]
name = "scripted"
base_url = "{URL}/v1"
env_key = "CODEX_API_KEY"
wire_api = "responses"
"""
OPENCODE = {"provider": {"anthropic": {"options": {"baseURL": f"{URL}/v1"}}}}
COPILOT = {"COPILOT_PROVIDER_TYPE": "openai", "COPILOT_PROVIDER_BASE_URL": f"{URL}/v1", "COPILOT_PROVIDER_API_KEY": KEY}
AGENTS = {
    "claude_code": {"env": {"ANTHROPIC_BASE_URL": URL}, "model": "sonnet"},
    "codex": {"model": "gpt-5.1-codex", "files": {".codex/config.toml": CODEX}},
    "opencode": {
        "model": "anthropic/claude-sonnet-4-5",
        "files": {".config/opencode/opencode.json": json.dumps(OPENCODE)},
    },
    "gemini": {"env": {"GOOGLE_GEMINI_BASE_URL": URL}, "model": "gemini-2.5-flash"},
    "qwen": {"env": {"OPENAI_BASE_URL": f"{URL}/v1"}, "model": "qwen3-coder-plus"},
    "goose": {"env": {"ANTHROPIC_HOST": URL}, "model": "claude-sonnet-4-5"},
    "aider": {"login": "OPENAI_API_KEY", "env": {"OPENAI_API_BASE": f"{URL}/v1"}, "model": "openai/gpt-4o"},
    "copilot": {"env": COPILOT, "model": "gpt-5"},
}


class Bench:
    """A project with a repository, and agents whose templates have the model next to their program."""

    def __init__(self, up: CofferUp, scratch: pathlib.Path):
        env = up.env()
        self.url, self.key = env["COFFER_URL"], env["COFFER_API_KEY"]
        self.api = httpx.Client(base_url=f"{self.url}/api/v1", headers={"X-API-KEY": self.key}, timeout=600)
        self.scratch = scratch
        self.presets = {info["preset"]: info for info in self.get("/agent-presets")}

    def call(self, method: str, path: str, expect: tuple[int, ...], **options):
        answer = self.api.request(method, path, **options)
        assert answer.status_code in expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    def get(self, path: str, **query):
        return self.call("GET", path, (200,), params=query)

    def post(self, path: str, **body):
        return self.call("POST", path, (200, 201, 202), json=body)

    def repository(self, name: str | None = None) -> str:
        """One with a commit on main."""
        name = name or f"app-{uuid.uuid4().hex[:8]}"
        made = self.post("/repositories", name=name)
        work = self.scratch / name
        url = made["clone_url"].replace("http://", f"http://any:{self.key}@")
        git("clone", "--quiet", url, str(work))
        (work / "README").write_text("hello\n")
        git("-C", str(work), "add", "--all")
        git("-C", str(work), *IDENTITY, "commit", "--quiet", "--message", "feat: begin")
        git("-C", str(work), "push", "--quiet", "origin", "HEAD:refs/heads/main")
        return name

    def template(self, preset: str, *lines: str) -> str:
        """Builds a template that starts as `lines` say, with the model as its service."""
        name = f"test-{preset.replace('_', '-')}"
        files = {"model.py": MODEL.read_text()}
        copies = ["COPY model.py /opt/model.py"]
        for number, (path, text) in enumerate(AGENTS[preset].get("files", {}).items()):
            files[f"file-{number}"] = text
            copies.append(f"COPY --chown=user:user file-{number} /home/user/{path}")
        parents = [f"/home/user/{path.split('/')[0]}" for path in AGENTS[preset].get("files", {})]
        copies += [f"RUN chown -R user:user {parent}" for parent in parents]
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(text.encode()), 0o644
                archive.addfile(entry, io.BytesIO(text.encode()))
        kind = {"Content-Type": "application/octet-stream"}
        context = self.call("POST", "/template-files", (200, 201), content=packed.getvalue(), headers=kind)["hash"]
        made = self.post(
            "/templates",
            name=name,
            dockerfile="\n".join([*lines, *copies]) + "\n",
            context=context,
            start_command=f"python3 /opt/model.py {PORT} {LEDGER} {KEY}",
            ready_command=f"python3 -c \"import urllib.request as u; u.urlopen('{URL}/v1/models')\"",
        )
        build = made["id"]
        done = eventually(lambda: self.ended(build), lambda: f"{name}: {self.log(build)}", BUILD_S)
        assert done["state"] == "ready", f"{done['failure']}\n{self.log(build)}"
        return name

    def ended(self, build: str) -> dict | None:
        found = self.get(f"/template-builds/{build}")
        return found if found["state"] not in ("waiting", "building") else None

    def log(self, build: str) -> str:
        lines = self.get(f"/template-builds/{build}/log")["items"]
        return "\n".join(line["message"] for line in lines[-40:])

    def agent(self, preset: str, template: str | None = None, **more) -> dict:
        """Sets an agent up as `coffer agent add` does."""
        asked = {name: value for name, value in AGENTS[preset].items() if name != "files"}
        body = {"key": KEY, "name": preset, **asked, **more}
        if template:
            body["template"] = template
        return self.call("PUT", f"/agent-presets/{preset}/agent", (200, 201), json=body)["agent"]

    def built(self, preset: str) -> str:
        """Waits for the template of a preset's recipe."""

        def state():
            found = next(info for info in self.get("/agent-presets") if info["preset"] == preset)["recipe"]
            return found if found["state"] in ("ready", "failed") else None

        found = eventually(state, f"the template of {preset} is built", BUILD_S)
        agent = next((one for one in self.get("/agents")["items"] if one["name"] == preset), {})
        assert found["state"] == "ready", agent.get("template")
        return found["template"]

    def run(self, agent: dict, repository: str, title: str = "Add an answer", **body) -> dict:
        """One attempt, to its end."""
        task = self.post(
            "/tasks", title=title, repository=repository, agent_id=agent["id"], **{"check_command": CHECK, **body}
        )
        self.post(f"/tasks/{task['id']}/start")
        return self.over(task["id"])

    def over(self, task: str) -> dict:
        ended = lambda: self.get(f"/tasks/{task}/attempts")[-1]["ended_at"]
        eventually(ended, lambda: f"{self.get(f'/tasks/{task}')}", RUN_S)
        return self.get(f"/tasks/{task}")

    def changed(self, repository: str, branch: str) -> dict[str, str]:
        """Files of a branch that main does not have, or not so."""
        work = str(self.scratch / repository)
        git("-C", work, "fetch", "--quiet", "origin")
        names = git("-C", work, "diff", "--name-only", f"origin/main...origin/{branch}").split()
        return {name: git("-C", work, "show", f"origin/{branch}:{name}") for name in names}


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def total(ledger: str) -> tuple[int, int]:
    """Tokens in and out of the main conversation, as the model counted them."""
    lines = [json.loads(line) for line in ledger.splitlines()]
    main = [line for line in lines if not line["aside"]]
    caches = (
        0
        if any(
            "completions" in line["path"] or "responses" in line["path"] or "Generate" in line["path"] for line in main
        )
        else 1
    )
    fed = sum(line["fresh"] + line["read"] + caches * line["written"] for line in main)
    return fed, sum(line["said"] for line in main)
