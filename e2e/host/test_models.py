"""The model gateway with real sandboxes and a scripted provider: the key is nowhere inside, and the figures are right."""

import contextlib
import http.server
import json
import os
import signal
import subprocess
import threading
from typing import ClassVar

import httpx

from coffer_up import eventually

KEY = "sk-ant-this-is-the-real-key"
# What the agent leaves in its branch: what it heard, and every place inside where the key is.
AGENT = r"""
set -u
ask() {
    curl -sS -m 60 -H 'content-type: application/json' -H "x-api-key: $ANTHROPIC_API_KEY" \
        -d '{"model": "claude-haiku-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}' "$@"
}
ask "$ANTHROPIC_BASE_URL/v1/messages" > answer.json
ask -o tls.json "https://model.coffer.internal/anthropic/v1/messages" || echo "no TLS" > tls.json
ask -o other.txt -w '%{http_code}' "http://model.coffer.internal/openai/v1/responses" > other-status.txt
sleep "${AGENT_SLEEP:-0}"
ask "$ANTHROPIC_BASE_URL/v1/messages" > again.json
{
    env; cat /proc/*/environ 2> /dev/null | tr '\0' '\n'
    grep -rsl 'this-is-the-real' /etc /home /root /run /tmp /var 2> /dev/null
} | grep -a 'this-is-the-real\|cofmodel_' > found.txt
env | grep -c 'ANTHROPIC_API_KEY=.*outside' > dummy.txt
"""


# Like Claude Code with a wrong key: it tries again for minutes, and says nothing.
STUBBORN = r"""
for _ in $(seq 600); do
    curl -sS -m 60 -o /dev/null -H 'content-type: application/json' -H "x-api-key: $ANTHROPIC_API_KEY" \
        -d '{"model": "claude-haiku-4-5", "max_tokens": 100, "messages": []}' "$ANTHROPIC_BASE_URL/v1/messages"
    sleep 1
done
"""


class Provider(http.server.BaseHTTPRequestHandler):
    """Answers Anthropic's Messages, and keeps what it was sent."""

    protocol_version = "HTTP/1.1"
    heard: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        key = self.headers.get("x-api-key", "")
        Provider.heard.append((self.path, key))
        if key == KEY:
            self.answer(200, {"model": "claude-haiku-4-5", "usage": {"input_tokens": 1000, "output_tokens": 20}})
        else:
            error = {"type": "authentication_error", "message": f"invalid x-api-key {key}"}
            self.answer(401, {"type": "error", "error": error})

    def answer(self, status: int, content: dict):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Scene:
    """A server with a repository, whose provider of models is scripted."""

    def __init__(self, up, api: httpx.Client):
        self.up, self.api = up, api
        key = up.env()["E2B_API_KEY"]
        self.origin = self.ask("POST", "/repositories", name="app")["clone_url"].replace(
            "http://", f"http://any:{key}@"
        )
        self.work = up.data_dir.parent / "app"
        self.work.mkdir()
        (self.work / "README").write_text("hello\n")
        self.git("init", "-qb", "main")
        self.git("add", "-A")
        self.git("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "-qm", "feat: begin")
        self.git("push", "-q", self.origin, "main")

    def ask(self, method: str, path: str, **body) -> dict:
        answer = self.api.request(method, path, json=body if method != "GET" else None)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def git(self, *words: str) -> str:
        plain = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
        return subprocess.run(
            ["git", *words], cwd=self.work, env=plain, check=True, capture_output=True, text=True
        ).stdout

    def start(self, script: str, key: str, **env: str) -> str:
        """Starts a task with an agent that is a script; returns the task."""
        self.ask("PUT", "/secrets/anthropic", value=key)
        definition = {
            "preset": "custom",
            "command": ["/bin/bash", "-c", script, "agent", "{prompt}"],
            "secrets": {"ANTHROPIC_API_KEY": "anthropic"},
            "model_access": "gateway",
            "env": env,
        }
        agent = self.ask("POST", "/agents", name="coder", definition=definition)["id"]
        task = self.ask("POST", "/tasks", title="Look", repository="app", agent_id=agent, budget=1.0)["id"]
        self.ask("POST", f"/tasks/{task}/start")
        return task


@contextlib.contextmanager
def scene(server, name: str):
    Provider.heard.clear()
    provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{provider.server_port}"
    up = server(name, "--ephemeral", "--set", f"models.anthropic_url={url}").start()
    env = up.env()
    with httpx.Client(
        base_url=f"{env['E2B_API_URL']}/api/v1", headers={"X-API-KEY": env["E2B_API_KEY"]}, timeout=60
    ) as api:
        yield Scene(up, api)
    provider.shutdown()


def test_a_wrong_key_ends_the_attempt_with_the_reason(server):
    with scene(server, "wrong-key") as here:
        task = here.start(STUBBORN, "sk-ant-revoked")

        def ended() -> dict | None:
            attempt = here.ask("GET", f"/tasks/{task}/attempts")[0]
            return attempt if attempt["state"] == "failed" else None

        attempt = eventually(ended, "the end of the attempt", 90)
        assert attempt["error"]["code"] == "model_key_refused", attempt
        assert "provider `anthropic` refuses the key in secret `anthropic`" in attempt["error"]["message"]
        assert "revoked" not in json.dumps(attempt), "the key is not quoted"
        assert 3 <= len(Provider.heard) < 60


def test_a_key_stays_outside_and_its_calls_are_counted(server):
    with scene(server, "models") as here:

        def now(task: str) -> dict | None:
            try:
                return here.ask("GET", f"/tasks/{task}")
            except httpx.HTTPError:
                return None  # it is not up again yet

        task = here.start(AGENT, KEY, AGENT_SLEEP="6")
        # The server dies while the agent works: it goes on, and so does its way to models.
        eventually(lambda: len(Provider.heard) >= 2, "calls of the agent", 120)
        os.kill(here.up.part("server"), signal.SIGKILL)
        done = eventually(
            lambda: (found := now(task)) and found["state"] in ("in_review", "failed") and found, "an end", 180
        )
        assert done["state"] == "in_review", done
        here.git("fetch", "-q", here.origin, done["branch"])

        def show(name: str) -> str:
            return here.git("show", f"FETCH_HEAD:{name}")

        assert json.loads(show("answer.json"))["usage"]["output_tokens"] == 20
        assert json.loads(show("again.json"))["usage"]["output_tokens"] == 20, "after the restart"
        assert json.loads(show("tls.json"))["usage"]["output_tokens"] == 20, "by HTTPS"
        assert show("other-status.txt").strip() == "401", "there is no key for that provider"
        assert show("found.txt") == "", "the key, or the pass, is inside"
        assert show("dummy.txt").strip() == "1"
        assert Provider.heard == [("/v1/messages", KEY)] * 3
        calls = here.ask("GET", f"/model-calls?task_id={task}")["items"]
        assert [(call["outcome"], call["output_tokens"]) for call in calls] == [("answered", 20)] * 3
        attempt = here.ask("GET", f"/tasks/{task}/attempts")[0]
        assert (attempt["input_tokens"], attempt["output_tokens"]) == (3000, 60)
        # 1000 tokens at 1 and 20 at 5, for a million, three times.
        assert abs(attempt["agent_cost"] - 3 * 0.0011) < 1e-9 and attempt["reported"] is not None
