"""Fills a server through its public API, as users do, and records what a later version must return.

`views` of the manifest are GET requests with their answers, taken just before the power cut. A later version may add
fields to an answer; the recorded fields must still be there.
"""

import json
import os
import pathlib
import subprocess
from urllib.parse import urlsplit

from client import Client, Refused
from coffer_up import CofferUp, eventually

API_NAME = "api.test"  # where e2e/network/world.py answers
HOME = "/home/user"
LIFE_S = 3600
WORD = "finish now"
IDENTITY = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
PLAIN = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    # The same commits each time.
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
}
# Does half of its work and waits. It finishes only if its prompt has the word, which a later message brings.
SLOW_AGENT = f"""
echo begun >> ran; echo step one
if ! echo "$1" | grep -qF '{WORD}'; then echo waiting; sleep 3000; fi
echo step two; echo "$COFFER_TASK_ID" > mine
"""
QUICK_AGENT = 'echo working; echo "${COFFER_TASK_ID:-a competition}" > mine; echo done'


class Project:
    """A project, through one of its keys."""

    def __init__(self, url: str, key: str):
        self.url, self.key = url, key
        self.client = Client(url, key)

    def ask(self, method: str, path: str, body=None):
        return self.client.api(method, f"/api/v1{path}", body)

    def get(self, path: str):
        return self.ask("GET", path)

    def post(self, path: str, **body):
        return self.ask("POST", path, body)

    def put(self, path: str, **body):
        return self.ask("PUT", path, body)

    def status(self, path: str) -> int:
        """The status of a GET."""
        try:
            self.get(path)
            return 200
        except Refused as error:
            return error.status

    def sandbox(self, **body) -> str:
        return self.post("/sandboxes", timeout_s=LIFE_S, **body)["id"]

    def run(self, sandbox: str, command: str, **more) -> str:
        done = self.post(f"/sandboxes/{sandbox}/exec", command=command, **more)
        assert done["exit_code"] == 0, done
        return done["stdout"]

    def write(self, sandbox: str, path: str, text: str):
        headers, path = {"X-API-KEY": self.key}, f"/api/v1/sandboxes/{sandbox}/files{path}"
        self.client.exchange("PUT", path, headers, text.encode(), lambda reply: reply.read())

    def read(self, sandbox: str, path: str) -> str:
        return self.download(f"/sandboxes/{sandbox}/files{path}")

    def download(self, path: str) -> str:
        headers = {"X-API-KEY": self.key}
        return self.client.exchange("GET", f"/api/v1{path}", headers, None, lambda reply: reply.read()).decode()

    def clone(self, repository: str, into: pathlib.Path) -> "Clone":
        url = self.get(f"/repositories/{repository}")["clone_url"]
        path = urlsplit(url).path
        git("clone", "--quiet", self.url.replace("http://", f"http://any:{self.key}@") + path, str(into))
        return Clone(into)

    def attempt(self, task: str) -> dict:
        return self.get(f"/tasks/{task}/attempts")[-1]

    def is_over(self, task: str) -> bool:
        return bool(self.attempt(task)["ended_at"])

    def steps(self, task: str) -> list[dict]:
        return self.get(f"/runs/{self.attempt(task)['run_id']}/steps")


class Clone:
    def __init__(self, path: pathlib.Path):
        self.path = path

    def git(self, *words: str) -> str:
        return git(*words, cwd=self.path)

    def commit(self, message: str, **files: str) -> str:
        for name, text in files.items():
            (self.path / name).write_text(text)
        self.git("add", "--all")
        self.git(*IDENTITY, "commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")


def git(*words: str, cwd: pathlib.Path | None = None) -> str:
    done = subprocess.run(["git", *words], cwd=cwd, env=PLAIN, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Filler:
    def __init__(self, up: CofferUp, scratch: pathlib.Path):
        self.up, self.scratch = up, scratch
        env = up.env()
        self.url = env["E2B_API_URL"]
        self.operator = Project(self.url, (up.data_dir / "operator-key").read_text().strip())
        self.first = Project(self.url, env["E2B_API_KEY"])
        self.keys = {"operator": self.operator.key, "first": self.first.key}
        self.paths: list[tuple[str, str]] = []  # the name of a key, and what to GET with it
        self.found: dict = {}  # what the tests need besides views

    def view(self, key: str, *paths: str):
        self.paths += [(key, path) for path in paths]

    def fill(self) -> dict:
        """Returns the manifest. Then one task is half-way, one is queued, and the server is idle otherwise."""
        self.make_second_project()
        self.make_keys()
        self.make_project_settings()
        self.make_secrets()
        self.make_webhook()
        self.make_repository()
        self.make_sandboxes()
        self.make_other_sandboxes()
        self.make_artifact()
        self.make_agents()
        self.compete()
        self.finish_a_task()
        self.begin_tasks()
        return self.manifest()

    def make_second_project(self):
        made = self.operator.post("/projects", name="second")
        key = self.operator.post(f"/projects/{made['id']}/keys", name="second", role="admin")["key"]
        self.operator.put(f"/projects/{made['id']}/quotas", sandboxes=3, forks=2, runs=4)
        self.second, self.keys["second"] = Project(self.url, key), key
        self.view("operator", "/projects", f"/projects/{made['id']}/quotas")
        self.view("second", "/me", "/project", "/keys", "/secrets", "/repositories")

    def make_keys(self):
        for name, role in [("reader", "read"), ("writer", "write")]:
            self.keys[name] = self.first.post("/keys", name=name, role=role)["key"]
            self.view(name, "/me")
        revoked = self.first.post("/keys", name="revoked", role="admin")
        self.first.ask("DELETE", f"/keys/{revoked['id']}")
        self.keys["revoked"] = revoked["key"]
        self.view("first", "/me", "/project", "/keys")

    def make_project_settings(self):
        project = self.first.get("/project")["id"]
        # One task at a time, so that the next one waits in the queue.
        self.operator.put(f"/projects/{project}/quotas", runs=1, sandboxes=50)
        self.view("operator", f"/projects/{project}/quotas")
        self.first.put("/project/settings", timeout_s=1800, git={"name": "Grace", "email": "grace@example.com"})
        rule = {"effect": "deny", "pattern": "shutdown", "note": "not here"}
        self.first.put("/policy", default="allow", rules=[rule])
        self.first.post("/budgets", period="total", amount=1000.0, warn_at=[50])
        self.view("first", "/project/settings", "/policy", "/budgets")

    def make_secrets(self):
        values = {"bound": "compat-value-for-a-host", "free": "compat-value-for-variables"}
        self.first.put("/secrets/bound", value=values["bound"], hosts=[API_NAME])
        self.first.put("/secrets/free", value="an older value")
        self.first.put("/secrets/free", value=values["free"])
        # The same name in another project, with another value.
        self.second.put("/secrets/free", value="compat-value-of-the-second")
        self.found["secrets"] = values
        self.view("first", "/secrets")

    def make_webhook(self):
        # No receiver listens there, so deliveries wait for a retry.
        new = {"url": "http://127.0.0.1:9/hook", "events": ["task.*", "issue.*"], "description": "of the fixture"}
        made = self.first.post("/webhooks", **new)
        self.found["webhook"] = {"id": made["id"], "signing_secret": made["signing_secret"]}
        self.view("first", f"/webhooks/{made['id']}")

    def make_repository(self):
        self.first.post("/repositories", name="app")
        work = self.first.clone("app", self.scratch / "app")
        first = work.commit("feat: begin", README="hello\n")
        second = work.commit("feat: say more", README="hello\nworld\n")
        work.git("tag", "v1")
        work.git("push", "--quiet", "origin", "HEAD:refs/heads/main", "v1")
        heads = {}
        for name in ["merged", "open"]:
            work.git("checkout", "--quiet", "-b", name, second)
            heads[name] = work.commit(f"feat: be {name}", **{name: f"{name}\n"})
            work.git("push", "--quiet", "origin", name)
            title = f"Be {name}"
            self.first.post("/repositories/app/pulls", title=title, head=name, base="main", body="of the fixture")
        self.first.post("/repositories/app/pulls/1/merge", method="merge")
        self.first.post("/repositories/app/pulls/2/comments", body="what is this?")
        comments = [{"path": "open", "line": 1, "body": "on this line"}]
        self.first.post("/repositories/app/pulls/2/reviews", verdict="comment", body="looked at it", comments=comments)
        status = {"context": "ci", "state": "success", "description": "passed"}
        self.first.post(f"/repositories/app/commits/{heads['open']}/statuses", **status)
        self.first.put("/repositories/app/protections/release", approvals=1, require_pull=True)
        self.first.post("/repositories/app/issues", title="It creaks", body="The door does.")
        self.first.post("/repositories/app/issues/1/comments", body="oil it")
        self.found["repository"] = {"main": [first, second], "open": heads["open"], "tag": {"v1": second}}
        pull = "/repositories/app/pulls/2"
        self.view("first", "/repositories", "/repositories/app", "/repositories/app/branches")
        self.view("first", "/repositories/app/pulls/1", pull, f"{pull}/comments", f"{pull}/reviews")
        self.view("first", f"{pull}/line-comments", f"{pull}/diff")
        self.view("first", "/repositories/app/protections", f"/repositories/app/commits/{heads['open']}/statuses")
        self.view("first", "/repositories/app/issues", "/repositories/app/issues/1/comments")

    def make_sandboxes(self):
        first, boxes = self.first, {}

        def make(name: str, **more) -> str:
            boxes[name] = first.sandbox(metadata={"name": name}, env={"COLOUR": "red"}, **more)
            first.write(boxes[name], f"{HOME}/kept", f"of {name}\n")
            # Owned by root inside, which is another user id on the host for each sandbox.
            first.run(boxes[name], f"umask 077; mkdir -p /srv/deep; echo {name} > /srv/deep/root", user="root")
            return boxes[name]

        make("running")
        headers = [{"hosts": [API_NAME], "headers": {"X-Token": "${secret:bound}"}}]
        files = make("files", secrets={"TOKEN": "free"}, network={"base": "public", "headers": headers})
        first.run(files, "echo output of the fixture; echo and its errors >&2")
        ended = make("ended")
        first.run(ended, "echo last words")
        first.ask("DELETE", f"/sandboxes/{ended}")
        memory = make("memory")
        source = make("source")
        snapshot = first.post(f"/sandboxes/{source}/snapshots", name="before", memory=False)
        forked = first.post(f"/sandboxes/{source}/fork", count=1, memory=False, timeout_s=LIFE_S)["children"][0]
        boxes["fork"] = forked["sandbox"]["id"]
        first.write(source, f"{HOME}/kept", "changed after the snapshot\n")
        rolled = make("rolled")
        earlier = first.post(f"/sandboxes/{rolled}/snapshots", memory=False)["id"]
        first.write(rolled, f"{HOME}/kept", "lost by the rollback\n")
        first.post(f"/sandboxes/{rolled}/rollback", snapshot_id=earlier)
        for name in ["files", "source", "fork", "rolled"]:
            first.post(f"/sandboxes/{boxes[name]}/pause", memory=False)
        body = {"templateID": "base", "timeout": LIFE_S, "secure": True, "metadata": {"name": "sdk"}}
        made = first.client.api("POST", "/v2/sandboxes", body)
        boxes["sdk"] = made["sandboxID"]
        first.write(boxes["sdk"], f"{HOME}/kept", "of sdk\n")
        first.client.api("POST", f"/sandboxes/{boxes['sdk']}/pause", {"memory": False})
        self.found["token"] = made["envdAccessToken"]
        # Saves its processes to disk if the host has CRIU, and freezes them otherwise.
        first.run(memory, "nohup sleep 100000 > /dev/null 2>&1 &")
        live = first.post(f"/sandboxes/{memory}/snapshots", name="live")
        first.post(f"/sandboxes/{memory}/pause")
        self.found["sandboxes"] = boxes
        self.found["snapshots"] = {"files": snapshot["id"], "live": live["id"]}
        self.found["files"] = {
            "files": "of files\n",
            "source": "changed after the snapshot\n",
            "fork": "of source\n",
            "rolled": "of rolled\n",
        }
        for name in ["files", "source", "fork", "rolled", "memory", "ended"]:
            self.view("first", f"/sandboxes/{boxes[name]}", f"/sandboxes/{boxes[name]}/history")
        for name in ["files", "ended"]:
            self.view("first", f"/sandboxes/{boxes[name]}/executions", f"/sandboxes/{boxes[name]}/logs")
        self.view("first", f"/sandboxes/{source}/lineage", f"/sandboxes/{files}/network")
        self.view("first", "/snapshots", f"/snapshots/{snapshot['id']}")

    def make_other_sandboxes(self):
        sandbox = self.second.sandbox()
        self.second.write(sandbox, f"{HOME}/kept", "of the second project\n")
        self.second.post(f"/sandboxes/{sandbox}/pause", memory=False)
        self.found["of_second"] = sandbox
        self.view("second", f"/sandboxes/{sandbox}")

    def make_artifact(self):
        made = self.first.post("/artifacts", name="report.txt", text="all is well\n", context_id="compat")
        self.found["artifact"] = {"id": made["id"], "content": "all is well\n"}
        self.view("first", f"/artifacts/{made['id']}", "/artifacts?context_id=compat")

    def make_agents(self):
        def agent(name: str, script: str) -> str:
            command = ["/bin/sh", "-euc", script, "agent", "{prompt}"]
            definition = {"preset": "custom", "command": command, "env": {"MOOD": "calm-and-patient"}}
            made = self.first.post("/agents", name=name, definition=definition)["id"]
            self.view("first", f"/agents/{made}")
            return made

        self.slow, self.quick = agent("slow", SLOW_AGENT), agent("quick", QUICK_AGENT)
        self.keys["agent"] = self.first.post("/keys", name="agent", role="write", agent_id=self.quick)["key"]
        self.view("agent", "/me")

    def compete(self):
        entries = [{"label": label, "agent_id": self.quick} for label in ("one", "two")]
        terms = {"title": "Compete", "prompt": "Do it.", "repository": "app", "check_command": "test -f mine"}
        made = self.first.post("/sandboxes/fork", entries=entries, **terms)
        path = f"/sandboxes/fork/{made['id']}"

        def reached(state: str) -> dict | None:
            found = self.first.get(path)
            assert found["state"] != "failed", found
            return found if found["state"] == state else None

        eventually(lambda: reached("waiting"), "a competition that waits for a person", 300)
        self.first.post(f"{path}/winner", entry=2)
        over = eventually(lambda: reached("decided"), "a competition that is over", 300)
        self.view("first", path, f"{path}/entries/{over['entries'][0]['number']}/diff")

    def task(self, title: str, agent: str, **more) -> str:
        new = {"title": title, "repository": "app", "agent_id": agent, "check_command": "test -f mine", **more}
        return self.first.post("/tasks", **new)["id"]

    def finish_a_task(self):
        task = self.task("Add a file", self.quick, labels=["fixture"], priority="high")
        self.first.post(f"/tasks/{task}/start")
        eventually(lambda: self.first.is_over(task), "a task that is over", 300)
        shown = self.first.get(f"/tasks/{task}")
        assert shown["state"] == "in_review", shown
        run = self.first.attempt(task)["run_id"]
        self.view("first", f"/tasks/{task}", f"/tasks/{task}/attempts", f"/tasks/{task}/history", f"/runs/{run}/steps")
        self.view("first", f"/artifacts?task_id={task}")

    def begin_tasks(self):
        planned = self.task("Not yet", self.quick, description="in the backlog", state="backlog")
        self.first.post(f"/tasks/{planned}/messages", body="think about it first")
        cut, queued = self.task("Be cut off", self.slow, budget=50.0), self.task("Wait in the queue", self.quick)
        self.first.post(f"/tasks/{cut}/start")
        eventually(lambda: self.waits(cut), "an agent half-way", 300)
        self.first.post(f"/tasks/{queued}/start")
        self.found["tasks"] = {"planned": planned, "cut": cut, "queued": queued, "word": WORD}
        self.view("first", f"/tasks/{planned}", f"/tasks/{planned}/messages")

    def waits(self, task: str) -> bool:
        """Whether its agent has done the first half of its work."""
        attempt = self.first.attempt(task)
        if attempt.get("ended_at"):
            raise AssertionError(f"the attempt is over: {attempt} {self.first.steps(task)}")
        sandbox = attempt.get("sandbox_id")
        return bool(sandbox) and "waiting" in json.dumps(self.first.get(f"/sandboxes/{sandbox}/logs"))

    def manifest(self) -> dict:
        views = [{"key": key, "path": path, "answer": self.answer(key, path)} for key, path in self.paths]
        return {
            **self.found,
            "keys": self.keys,
            "memory_on_disk": self.first.get("/host")["memory_snapshot"],
            "views": views,
            "events": pages(self.first, "/events"),
            "audit": pages(self.first, "/audit"),
        }

    def answer(self, key: str, path: str):
        return neutral(Project(self.url, self.keys[key]).get(path), self.url)


def neutral(answer, url: str):
    """The answer without the server's address, which has another port at every start."""
    return json.loads(json.dumps(answer).replace(url, "http://server"))


def pages(project: Project, path: str) -> list[dict]:
    """All items of a list."""
    found, cursor = [], ""
    while cursor is not None:
        page = project.get(f"{path}?limit=100{cursor}")
        found += page["items"]
        cursor = f"&cursor={page['next']}" if page["next"] else None
    return found
