"""The model gateway with real sandboxes and a scripted provider: the key is nowhere inside, and the figures are right."""

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


class Provider(http.server.BaseHTTPRequestHandler):
    """Answers Anthropic's Messages, and keeps what it was sent."""

    protocol_version = "HTTP/1.1"
    heard: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Provider.heard.append((self.path, self.headers.get("x-api-key", "")))
        body = json.dumps({"model": "claude-haiku-4-5", "usage": {"input_tokens": 1000, "output_tokens": 20}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_key_stays_outside_and_its_calls_are_counted(server):
    provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{provider.server_port}"
    up = server("models", "--ephemeral", "--set", f"models.anthropic_url={url}").start()
    env = up.env()
    with httpx.Client(
        base_url=f"{env['E2B_API_URL']}/api/v1", headers={"X-API-KEY": env["E2B_API_KEY"]}, timeout=60
    ) as api:

        def ask(method: str, path: str, **body) -> dict:
            answer = api.request(method, path, json=body if method != "GET" else None)
            assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
            return answer.json()

        def now(task: str) -> dict | None:
            try:
                return ask("GET", f"/tasks/{task}")
            except httpx.HTTPError:
                return None  # it is not up again yet

        origin = ask("POST", "/repositories", name="app")["clone_url"]
        origin = origin.replace("http://", f"http://any:{env['E2B_API_KEY']}@")
        work = up.data_dir.parent / "app"
        work.mkdir()
        (work / "README").write_text("hello\n")
        plain = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]

        def git(*words: str) -> str:
            return subprocess.run(
                ["git", *words], cwd=work, env=plain, check=True, capture_output=True, text=True
            ).stdout

        git("init", "-qb", "main")
        git("add", "-A")
        git(*identity, "commit", "-qm", "feat: begin")
        git("push", "-q", origin, "main")
        ask("PUT", "/secrets/anthropic", value=KEY)
        definition = {
            "preset": "custom",
            "command": ["/bin/bash", "-c", AGENT, "agent", "{prompt}"],
            "secrets": {"ANTHROPIC_API_KEY": "anthropic"},
            "model_access": "gateway",
            "env": {"AGENT_SLEEP": "6"},
        }
        agent = ask("POST", "/agents", name="coder", definition=definition)["id"]
        task = ask("POST", "/tasks", title="Look", repository="app", agent_id=agent, budget=1.0)["id"]
        ask("POST", f"/tasks/{task}/start")
        # The server dies while the agent works: it goes on, and so does its way to models.
        eventually(lambda: len(Provider.heard) >= 2, "calls of the agent", 120)
        os.kill(up.part("server"), signal.SIGKILL)
        done = eventually(
            lambda: (found := now(task)) and found["state"] in ("in_review", "failed") and found, "an end", 180
        )
        assert done["state"] == "in_review", done
        git("fetch", "-q", origin, done["branch"])

        def show(name: str) -> str:
            return git("show", f"FETCH_HEAD:{name}")

        assert json.loads(show("answer.json"))["usage"]["output_tokens"] == 20
        assert json.loads(show("again.json"))["usage"]["output_tokens"] == 20, "after the restart"
        assert json.loads(show("tls.json"))["usage"]["output_tokens"] == 20, "by HTTPS"
        assert show("other-status.txt").strip() == "401", "there is no key for that provider"
        assert show("found.txt") == "", "the key, or the pass, is inside"
        assert show("dummy.txt").strip() == "1"
        assert Provider.heard == [("/v1/messages", KEY)] * 3
        calls = ask("GET", f"/model-calls?task_id={task}")["items"]
        assert [(call["outcome"], call["output_tokens"]) for call in calls] == [("answered", 20)] * 3
        attempt = ask("GET", f"/tasks/{task}/attempts")[0]
        assert (attempt["input_tokens"], attempt["output_tokens"]) == (3000, 60)
        # 1000 tokens at 1 and 20 at 5, for a million, three times.
        assert abs(attempt["agent_cost"] - 3 * 0.0011) < 1e-9 and attempt["reported"] is not None
    provider.shutdown()
