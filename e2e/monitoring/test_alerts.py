"""Each alert fires after the fault that it is for, in a real Prometheus and Alertmanager."""

import json
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import threading
import time

import httpx
import pytest
from e2b import Sandbox

from coffer_up import eventually, processes
from stack import MONITORING, Provider, tool

WITHIN_S = 60  # to end a hang; usually a few seconds

RULES = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())
provoked: set[str] = set()


@pytest.fixture
def calm(webhook):
    """Sees that alerts have not fired before there is a reason."""

    def look(*names: str):
        assert not webhook.fired & set(names), "fired before the fault"

    return look


@pytest.fixture
def fires(stack, webhook):
    """Waits until alerts have fired."""

    def wait(*names: str):
        provoked.update(names)
        eventually(
            lambda: webhook.fired >= set(names), lambda: f"{names}, got {webhook.fired}\n{stack.log()}", WITHIN_S
        )

    return wait


@pytest.fixture
def api(up):
    headers = {"X-API-KEY": up.env()["E2B_API_KEY"]}
    with httpx.Client(base_url=f"http://127.0.0.1:{up.port}", headers=headers, timeout=30) as client:
        yield client


def create(api, timeout: int = 300) -> str:
    made = api.post("/v2/sandboxes", json={"templateID": "base", "timeout": timeout})
    assert made.status_code == 201, made.text
    return made.json()["sandboxID"]


def destroy(api, sandbox: str):
    api.delete(f"/sandboxes/{sandbox}")


def first_process(sandbox: str) -> int | None:
    for pid in processes():
        try:
            in_it = sandbox in pathlib.Path(f"/proc/{pid}/cgroup").read_text()
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue  # it ended while we looked
        if in_it and status.split("NSpid:")[1].split("\n")[0].split()[-1] == "1":
            return pid
    return None


def database(up) -> sqlite3.Connection:
    return sqlite3.connect(next(up.data_dir.rglob("coffer.db")), isolation_level=None, timeout=30)


def age(up, table: str):
    """Has what is there have been there for two hours."""
    with database(up) as connection:
        assert connection.execute(f"UPDATE {table} SET created_ms = created_ms - 7200000").rowcount


def figure(up, name: str) -> float:
    key = (up.data_dir / "operator-key").read_text().strip()
    answer = httpx.get(f"http://127.0.0.1:{up.port}/metrics", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    found = [line.rpartition(" ")[2] for line in answer.text.splitlines() if line.startswith(f"{name} ")]
    return float(found[0]) if found else 0.0


def is_scraped(stack) -> bool:
    """Whether Prometheus has seen the server, before which nothing can rise."""
    answer = httpx.get(f"http://127.0.0.1:{stack.prometheus}/api/v1/query", params={"query": "sandbox_timeout_total"})
    return answer.status_code == 200 and bool(answer.json()["data"]["result"])


@pytest.fixture(autouse=True)
def scraped(stack):
    def look():
        try:
            return is_scraped(stack)
        except httpx.TransportError:
            return False  # it is starting

    eventually(look, stack.log, WITHIN_S)


def test_timeouts_and_spans_that_nobody_takes(api, calm, fires):
    calm("SandboxTimeouts")
    for _ in range(8):
        create(api, timeout=1)
    fires("SandboxTimeouts", "CofferSpansDropped")


def test_sandboxes_that_die(api, calm, fires):
    calm("SandboxHighErrorRate")
    made = [create(api) for _ in range(4)]
    for sandbox in made:
        os.kill(eventually(lambda: first_process(sandbox), sandbox), signal.SIGKILL)
    fires("SandboxHighErrorRate")


def test_a_full_disk(up, api, calm, fires):
    calm("CofferPoolNearlyFull")
    with Sandbox.create(**up.sdk()) as sandbox:
        sandbox.commands.run("fallocate --length 2500MiB /home/user/large")
        fires("CofferPoolNearlyFull")
        eventually(lambda: figure(up, 'sandbox_command_total{outcome="succeeded"}') >= 1, "the command is counted")
        assert figure(up, "sandbox_execution_duration_seconds_count") >= 1
        sandbox.kill()


def test_a_slow_database(up, api, calm, fires):
    calm("CofferStoreSlow")
    stop = threading.Event()

    def hold():
        connection = database(up)
        while not stop.is_set():
            connection.execute("BEGIN IMMEDIATE")
            stop.wait(1.5)
            connection.execute("ROLLBACK")
            time.sleep(0.05)
        connection.close()

    holding = threading.Thread(target=hold)
    holding.start()
    sandbox = create(api)  # from now on its usage is written every second
    try:
        fires("CofferStoreSlow")
    finally:
        stop.set()
        holding.join()
        destroy(api, sandbox)


def test_a_node_that_hangs(up, api, calm, fires):
    calm("CofferNodeDown", "CofferApiErrors")
    node = up.part("node")
    os.kill(node, signal.SIGSTOP)
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            assert api.get("/api/v1/ready").status_code == 503

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        fires("CofferNodeDown", "CofferApiErrors")
    finally:
        stop.set()
        asking.join()
        os.kill(node, signal.SIGCONT)
    eventually(lambda: api.get("/api/v1/ready").status_code == 200, "the node is back")


def test_a_budget(api, calm, fires):
    calm("SandboxCostThreshold", "SandboxBudgetSpent")
    sandbox = create(api)
    made = api.post("/api/v1/budgets", json={"period": "total", "amount": 6, "sandbox_id": sandbox})
    assert made.status_code == 201, made.text
    fires("SandboxCostThreshold", "SandboxBudgetSpent")
    eventually(lambda: api.get(f"/sandboxes/{sandbox}").json()["state"] == "paused", "it is paused")
    assert api.post(f"/v2/sandboxes/{sandbox}/connect", json={}).status_code == 402
    api.delete(f"/api/v1/budgets/{made.json()['id']}").raise_for_status()
    destroy(api, sandbox)


def test_a_server_that_hangs(up, calm, fires):
    calm("CofferDown")
    server = up.part("server")
    os.kill(server, signal.SIGSTOP)
    try:
        fires("CofferDown")
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_receiver_of_webhooks_that_is_away(up, api, calm, fires):
    calm("CofferWebhooksFail")
    made = api.post("/api/v1/webhooks", json={"url": "https://localhost:1/", "events": ["sandbox.*"]})
    assert made.status_code == 201, made.text
    path = f"/api/v1/webhooks/{made.json()['id']}"
    destroy(api, create(api))
    eventually(lambda: api.get(path).json()["failures"], "it was tried")
    age(up, "webhook_sends")
    fires("CofferWebhooksFail")
    api.delete(path).raise_for_status()


def test_attempts_that_wait(up, api, calm, fires):
    calm("CofferRunsWait")
    operator = {"X-API-KEY": (up.data_dir / "operator-key").read_text().strip()}
    with database(up) as connection:
        (project,) = connection.execute("SELECT project_id FROM api_keys").fetchone()
    quotas = f"/api/v1/projects/{project}/quotas"
    api.put(quotas, json={"runs": 0}, headers=operator).raise_for_status()
    definition = {"preset": "custom", "command": ["true", "{prompt}"]}
    agent = api.post("/api/v1/agents", json={"name": "idle", "definition": definition}).raise_for_status().json()
    api.post("/api/v1/repositories", json={"name": "quiet"}).raise_for_status()
    task = {"title": "wait", "repository": "quiet", "agent_id": agent["id"]}
    task = api.post("/api/v1/tasks", json=task).raise_for_status().json()
    api.post(f"/api/v1/tasks/{task['id']}/start", json={}).raise_for_status()
    age(up, "runs")
    fires("CofferRunsWait")
    api.post(f"/api/v1/tasks/{task['id']}/cancel", json={}).raise_for_status()
    api.put(quotas, json={}, headers=operator).raise_for_status()


# Commits, and calls its model twice: the first key's provider is overloaded, the second one's is not.
AGENT = """
echo more >> README
for _ in 1 2; do
    curl -sSf -m 60 -H 'content-type: application/json' -H "x-api-key: $ANTHROPIC_API_KEY" \\
        -d '{"model": "claude-haiku-4-5", "max_tokens": 100, "messages": []}' "$ANTHROPIC_BASE_URL/v1/messages"
done
"""


def work(up, api, scratch: pathlib.Path):
    """An agent works on a task up to a pull request."""
    for name, value in [("first", "sk-ant-first"), ("second", Provider.KEY)]:
        api.put(f"/api/v1/secrets/{name}", json={"value": value}).raise_for_status()
    policy = {"fallbacks": [{"provider": "anthropic", "secret": "second"}]}
    api.put("/api/v1/model-policy", json=policy).raise_for_status()
    settings = {"git": {"name": "A Robot", "email": "robot@example.com"}}
    api.put("/api/v1/project/settings", json=settings).raise_for_status()
    made = api.post("/api/v1/repositories", json={"name": "busy"}).raise_for_status().json()
    origin = made["clone_url"].replace("http://", f"http://any:{up.env()['E2B_API_KEY']}@")
    place = scratch / "busy"
    place.mkdir()
    (place / "README").write_text("hello\n")
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for words in (["init", "-qb", "main"], ["add", "-A"], [*who, "commit", "-qm", "feat: begin"]):
        subprocess.run(["git", *words], cwd=place, check=True, capture_output=True)
    subprocess.run(["git", "push", "-q", origin, "main"], cwd=place, check=True, capture_output=True)
    definition = {
        "preset": "custom",
        "command": ["/bin/bash", "-c", AGENT, "agent", "{prompt}"],
        "secrets": {"ANTHROPIC_API_KEY": "first"},
        "model_access": "gateway",
    }
    agent = api.post("/api/v1/agents", json={"name": "busy", "definition": definition}).raise_for_status().json()
    task = {"title": "Say more", "repository": "busy", "agent_id": agent["id"]}
    task = api.post("/api/v1/tasks", json=task).raise_for_status().json()
    path = f"/api/v1/tasks/{task['id']}"
    api.post(f"{path}/start", json={}).raise_for_status()
    eventually(lambda: api.get(path).json()["state"] == "in_review", lambda: api.get(path).text, 120)
    calls = api.get("/api/v1/model-calls", params={"task_id": task["id"]}).json()["items"]
    tried = [[one["outcome"] for one in call["tries"]] for call in calls]
    assert tried == [["overloaded", "answered"]] * 2, calls
    assert {call["outcome"] for call in calls} == {"answered"}, calls


def test_every_panel_has_a_series(up, api, stack, scratch):
    work(up, api, scratch)
    budget = api.post("/api/v1/budgets", json={"period": "total", "amount": 1000}).raise_for_status().json()
    with Sandbox.create(**up.sdk()) as sandbox:
        sandbox.commands.run("true")
    assert api.get("/api/v1/tasks/nothing").status_code == 404
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    missing = {target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])}
    # These show what went wrong, and are empty where nothing did; alerts above test them.
    for quiet in ("sandbox_orphan_found_timestamp_seconds",):
        missing = {expr for expr in missing if quiet not in expr}

    def look() -> bool:
        for expr in list(missing):
            query = expr.replace("$__rate_interval", "5m")
            answer = httpx.get(f"http://127.0.0.1:{stack.prometheus}/api/v1/query", params={"query": query})
            assert answer.status_code == 200, answer.text
            if answer.json()["data"]["result"]:
                missing.discard(expr)
        return not missing

    eventually(look, lambda: f"panels without a series: {sorted(missing)}", WITHIN_S)
    api.delete(f"/api/v1/budgets/{budget['id']}").raise_for_status()


def test_an_orphan(up, api, calm, fires):
    calm("SandboxOrphanFound")
    sandbox = create(api)
    ended = json.dumps({"state": "terminated", "reason": "requested"})
    with database(up) as connection:
        sql = "UPDATE sandboxes SET state = 'terminated', state_data = ? WHERE id = ?"
        assert connection.execute(sql, (ended, sandbox)).rowcount == 1
    # What has it in memory believes its memory; the next server finds on its host what no record explains.
    os.kill(up.part("server"), signal.SIGKILL)
    fires("SandboxOrphanFound")
    eventually(lambda: first_process(sandbox) is None, "it is gone")


def test_no_alert_was_forgotten():
    assert provoked == set(RULES)


def test_the_rules_and_the_dashboard_are_well_formed(stack):
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(expressions) > 20
    rules = [
        {"record": f"dashboard:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions)
    ]
    file = stack.scratch / "dashboard-rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    for rules in (file, MONITORING / "alerts.yml", stack.scratch / "alerts.yml"):
        checked = subprocess.run([tool("promtool"), "check", "rules", rules], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    config = stack.scratch / "prometheus.yml"
    checked = subprocess.run([tool("promtool"), "check", "config", config], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
