"""Every tool over both transports with the official client for Python, good and bad input."""

import asyncio
import contextlib
import os
import subprocess
import time

import httpx
import httpx2
import pytest
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from coffer_up import binary
from mcp import Client, ClientSession, StdioServerParameters

TOOLS = [
    "create_sandbox",
    "list_sandboxes",
    "snapshot_sandbox",
    "fork_sandbox",
    "destroy_sandbox",
    "run_command",
    "start_process",
    "read_process",
    "run_code",
    "read_file",
    "write_file",
    "list_files",
    "search_files",
    "git_clone",
    "git_diff",
    "git_commit",
    "open_pull_request",
    "compare_forks",
    "create_task",
    "start_task",
    "list_tasks",
    "get_task",
]


@contextlib.asynccontextmanager
async def connected(transport: str, url: str, key: str):
    async with contextlib.AsyncExitStack() as stack:
        if transport == "stdio":
            server = StdioServerParameters(
                command=str(binary()), args=["mcp"], env={"COFFER_URL": url, "COFFER_API_KEY": key}
            )
            streams = await stack.enter_async_context(stdio_client(server))
        else:
            headers = {"Authorization": f"Bearer {key}"}
            client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
            way = streamable_http_client(f"{url}/mcp", http_client=client)
            if transport == "stateless":
                # The newest protocol, which has no sessions.
                modern = await stack.enter_async_context(Client(way))
                assert modern.session.protocol_version >= "2026-07-28"
                yield modern
                return
            streams = await stack.enter_async_context(way)
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await session.initialize()
        yield session


class Tools:
    """Calls tools; the result is the structured content."""

    def __init__(self, session: ClientSession):
        self.session = session

    async def __call__(self, tool: str, **arguments) -> dict:
        result = await self.session.call_tool(tool, arguments)
        assert not result.is_error, (tool, result.content[0].text)
        assert result.content[0].text
        return result.structured_content

    async def refused(self, tool: str, **arguments) -> str:
        result = await self.session.call_tool(tool, arguments)
        assert result.is_error, (tool, result.structured_content)
        assert result.structured_content is None and result.meta["coffer/error"]["code"]
        return result.content[0].text


def over(transport, url, key, steps):
    async def go():
        async with connected(transport, url, key) as session:
            await steps(Tools(session))

    asyncio.run(go())


both = pytest.mark.parametrize("transport", ["stdio", "http"])


@both
def test_commands_and_files(transport, url, key):
    async def steps(tools):
        listed = await tools.session.list_tools()
        assert [tool.name for tool in listed.tools] == TOOLS
        for tool in listed.tools:
            assert tool.input_schema["additionalProperties"] is False and tool.output_schema["type"] == "object"
            assert tool.annotations.read_only_hint is not None
        sandbox = (await tools("create_sandbox", metadata={"suite": "mcp"}))["sandbox_id"]
        here = {"sandbox_id": sandbox}
        assert sandbox in [one["sandbox_id"] for one in (await tools("list_sandboxes"))["sandboxes"]]

        ran = await tools("run_command", **here, command="printf '\\033[31mred\\033[0m'; echo bad >&2; exit 3")
        assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (3, "red", "bad\n")
        ran = await tools("run_command", **here, command="seq 1 100000", max_output_bytes=3000)
        assert len(ran["stdout"]) < 3200 and ran["stdout"].endswith("99999\n100000\n") and ran["stdout_rest"] == 1000
        rest = await tools(
            "read_process", execution_id=ran["execution_id"], stdout_offset=ran["stdout_rest"], wait_s=20
        )
        whole = "".join(f"{number}\n" for number in range(1, 100001))
        assert whole[1000:].startswith(rest["stdout"]["text"]) and rest["stdout"]["more"]
        ran = await tools("run_command", **here, command="sleep 60", timeout_s=1)
        assert ran["timed_out"] and ran["exit_code"] is None

        started = await tools("start_process", **here, command="echo begun; sleep 1; echo over")
        text, offset, state = "", 0, "running"
        while state == "running":
            read = await tools("read_process", execution_id=started["execution_id"], stdout_offset=offset, wait_s=30)
            text, offset, state = text + read["stdout"]["text"], read["stdout"]["next_offset"], read["state"]
        read = await tools("read_process", execution_id=started["execution_id"], stdout_offset=offset, wait_s=5)
        assert text + read["stdout"]["text"] == "begun\nover\n"

        await tools("write_file", **here, path="~/notes/a.txt", content="one\ntwo needle\n")
        await tools("write_file", **here, path="/tmp/raw", content="AAEC/w==", encoding="base64")
        assert (await tools("read_file", **here, path="~/notes/a.txt"))["content"] == "one\ntwo needle\n"
        part = await tools("read_file", **here, path="~/notes/a.txt", offset=4, max_bytes=3)
        assert (part["content"], part["next_offset"], part["size_bytes"]) == ("two", 7, 15)
        raw = await tools("read_file", **here, path="/tmp/raw")
        assert (raw["content"], raw["encoding"]) == ("AAEC/w==", "base64")
        entries = (await tools("list_files", **here, path="/tmp", limit=1000))["entries"]
        assert "/tmp/raw" in [entry["path"] for entry in entries]
        found = (await tools("search_files", **here, pattern="n[e]+dle", glob="*.txt"))["matches"]
        assert [(one["line"], one["text"]) for one in found] == [(2, "two needle")]
        assert (await tools("search_files", **here, pattern="no such thing at all"))["matches"] == []

        log = await tools.session.read_resource(f"coffer://executions/{started['execution_id']}/stdout")
        assert log.contents[0].text == "begun\nover\n"
        resources = [str(one.uri) for one in (await tools.session.list_resources()).resources]
        assert f"coffer://sandboxes/{sandbox}/log" in resources
        assert len((await tools.session.list_resource_templates()).resource_templates) == 5

        taken = await tools("snapshot_sandbox", **here)
        copy = (await tools("create_sandbox", snapshot_id=taken["snapshot_id"], timeout_s=300))["sandbox_id"]
        assert (await tools("read_file", sandbox_id=copy, path="~/notes/a.txt"))["content"].startswith("one")
        for one in (copy, sandbox):
            assert (await tools("destroy_sandbox", sandbox_id=one))["destroyed"]

    over(transport, url, key, steps)


@both
def test_git_forks_and_tasks(transport, url, key, api, repository):
    async def steps(tools):
        sandbox = (await tools("create_sandbox"))["sandbox_id"]
        here = {"sandbox_id": sandbox}
        cloned = await tools("git_clone", **here, repository=repository)
        where = cloned["path"]
        await tools("run_command", **here, command="git switch -c work", cwd=where)
        await tools("write_file", **here, path=f"{where}/a.txt", content="same\n")
        await tools("run_command", **here, command="git add -N .", cwd=where)

        forked = (await tools("fork_sandbox", **here, count=1, timeout_s=300))["forks"][0]["sandbox_id"]
        await tools("write_file", sandbox_id=forked, path=f"{where}/b.txt", content="other\n")
        await tools("run_command", sandbox_id=forked, command="git add -N .", cwd=where)
        compared = await tools("compare_forks", sandbox_ids=[sandbox, forked])
        files = {one["path"]: (one["same"], len(one["changed_by"])) for one in compared["files"]}
        assert files["a.txt"] == (True, 2) and files["b.txt"][1] == 1, compared
        await tools("destroy_sandbox", sandbox_id=forked)

        assert "+same" in (await tools("git_diff", **here))["patch"]
        committed = await tools("git_commit", **here, message="feat: add a file")
        assert committed["branch"] == "work" and committed["commit"]
        opened = await tools("open_pull_request", **here, title="Add a file", body="For the suite.")
        again = await tools("open_pull_request", **here, title="Add a file")
        assert opened["created"] and not again["created"] and again["number"] == opened["number"]
        await tools("destroy_sandbox", **here)

        task = await tools(
            "create_task", title="From a model", description="Do it", repository=repository, priority="low"
        )
        assert task["state"] == "todo"
        assert task["task_id"] in [one["task_id"] for one in (await tools("list_tasks", state="todo"))["tasks"]]
        detail = await tools("get_task", task_id=task["task_id"])
        assert (detail["description"], detail["attempts"]) == ("Do it", [])
        # A task without an agent cannot start.
        assert "agent_id" in await tools.refused("start_task", task_id=task["task_id"])
        agent = {
            "name": f"mcp-{time.monotonic_ns()}",
            "definition": {"preset": "custom", "command": ["true", "{prompt}"]},
        }
        agent = api.post("/agents", json=agent).raise_for_status().json()["id"]
        begun = await tools("start_task", task_id=task["task_id"], agent_id=agent)
        assert begun["attempts"] == 1
        api.post(f"/tasks/{task['task_id']}/cancel", json={})

    over(transport, url, key, steps)


# Answers as the code interpreter does; the real one needs a template that takes minutes to build (e2e/code).
INTERPRETER = """
import http.server, json
SHOWN = [{"type": "stdout", "text": "printed\\n"}, {"type": "result", "text": "<Figure>", "png": "aGVsbG8=", "extra": {}},
         {"type": "result", "text": "42", "extra": {}, "is_main_result": True}]
RAISED = [{"type": "error", "name": "ValueError", "value": "no", "traceback": "ValueError: no"}]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(["[]"])
    def do_POST(self):
        code = json.loads(self.rfile.read(int(self.headers["content-length"])))["code"]
        lines = [*(RAISED if code == "raise" else SHOWN), {"type": "end_of_execution"}]
        self.answer([json.dumps(line) for line in lines])
    def answer(self, lines):
        body = ("\\n".join(lines) + "\\n").encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 49999), Handler).serve_forever()
"""


@both
def test_code(transport, url, key):
    async def steps(tools):
        sandbox = (await tools("create_sandbox", metadata={"suite": "mcp"}))["sandbox_id"]
        here = {"sandbox_id": sandbox}
        assert "code_interpreter_missing" in await tools.refused("run_code", **here, code="1")
        await tools("write_file", **here, path="/tmp/interpreter.py", content=INTERPRETER)
        await tools("start_process", **here, command="python3 /tmp/interpreter.py")
        wait = "for n in $(seq 100); do curl -fs http://127.0.0.1:49999/ && exit; sleep 0.1; done; exit 1"
        assert (await tools("run_command", **here, command=wait))["exit_code"] == 0
        result = await tools.session.call_tool("run_code", {**here, "code": "show"})
        assert not result.is_error and [block.type for block in result.content] == ["text", "image"]
        assert (result.content[1].data, result.content[1].mime_type) == ("aGVsbG8=", "image/png")
        assert [shown["text"] for shown in result.structured_content["results"]] == ["<Figure>", "42"]
        assert result.structured_content["stdout"] == "printed\n"
        assert (await tools("run_code", **here, code="raise"))["error"]["name"] == "ValueError"
        await tools("destroy_sandbox", **here)

    over(transport, url, key, steps)


@both
def test_bad_input_is_an_error_that_a_model_can_read(transport, url, key):
    nowhere = {"sandbox_id": "nope"}
    some = {
        "run_command": {**nowhere, "command": "true"},
        "start_process": {**nowhere, "command": "true"},
        "read_process": {"execution_id": "nope"},
        "run_code": {**nowhere, "code": "1"},
        "read_file": {**nowhere, "path": "/x"},
        "write_file": {**nowhere, "path": "/x", "content": ""},
        "list_files": nowhere,
        "search_files": {**nowhere, "pattern": "x"},
        "git_clone": {**nowhere, "repository": "x"},
        "git_diff": nowhere,
        "git_commit": {**nowhere, "message": "fix: x"},
        "open_pull_request": {**nowhere, "title": "x"},
        "fork_sandbox": nowhere,
        "compare_forks": {"sandbox_ids": ["a", "b"]},
        "snapshot_sandbox": nowhere,
        "destroy_sandbox": nowhere,
        "start_task": {"task_id": "nope"},
        "get_task": {"task_id": "nope"},
        "create_sandbox": {"template": "no-such-template"},
        "create_task": {"title": ""},
        "list_tasks": {"state": "no-such-state"},
        "list_sandboxes": {"state": "no-such-state"},
    }
    assert sorted(some) == sorted(TOOLS)

    async def steps(tools):
        for tool, arguments in some.items():
            text = await tools.refused(tool, **arguments)
            assert ": " in text, (tool, text)
        assert "unknown field" in await tools.refused("run_command", **some["run_command"], shell="zsh")
        assert "missing field" in await tools.refused("run_command", command="x")
        assert "invalid type" in await tools.refused("read_file", sandbox_id=1, path="/x")
        with pytest.raises(Exception, match="no tool"):
            await tools.session.call_tool("rm_rf", {})
        with pytest.raises(Exception, match="no resource"):
            await tools.session.read_resource("file:///etc/passwd")

    over(transport, url, key, steps)


@pytest.mark.parametrize("transport", ["stdio", "http", "stateless"])
def test_progress_is_told_and_a_cancelled_command_is_killed(transport, url, key, api):
    async def steps(tools):
        sandbox = (await tools("create_sandbox"))["sandbox_id"]
        told = []

        async def note(progress, total, message):
            told.append((progress, message))

        command = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.5; done"
        result = await tools.session.call_tool(
            "run_command", {"sandbox_id": sandbox, "command": command}, progress_callback=note
        )
        assert result.structured_content["exit_code"] == 0
        assert told and "line" in told[0][1], told

        slow = {"sandbox_id": sandbox, "command": "echo $$; exec sleep 600"}
        with pytest.raises(Exception, match=r"(?i)timed out|timeout"):
            await tools.session.call_tool("run_command", slow, read_timeout_seconds=2)
        deadline = time.monotonic() + 30
        while "sleep 600" in str(api.get(f"/sandboxes/{sandbox}/processes").json()):
            assert time.monotonic() < deadline, "the command still runs"
            await asyncio.sleep(0.2)
        await tools("destroy_sandbox", sandbox_id=sandbox)

    over(transport, url, key, steps)


@both
def test_an_agents_key_has_no_tasks_to_start(transport, url, api):
    agent = api.post("/agents", json={"name": f"mcp-agent-{time.monotonic_ns()}"}).raise_for_status().json()["id"]
    agents_key = api.post("/keys", json={"name": "agent", "agent_id": agent}).raise_for_status().json()["key"]
    task = api.post("/tasks", json={"title": "not yours"}).raise_for_status().json()["id"]

    async def steps(tools):
        assert "forbidden" in await tools.refused("create_task", title="mine")
        assert "forbidden" in await tools.refused("start_task", task_id=task)
        assert (await tools("list_sandboxes"))["sandboxes"] == []
        sandbox = (await tools("create_sandbox"))["sandbox_id"]
        assert (await tools("run_command", sandbox_id=sandbox, command="id -un"))["exit_code"] == 0
        await tools("destroy_sandbox", sandbox_id=sandbox)

    over(transport, url, agents_key, steps)


BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def begin(url, key, **headers):
    return httpx.post(f"{url}/mcp", json=BEGIN, headers={"X-API-KEY": key, **ACCEPT, **headers})


def test_pages_of_other_sites_and_strangers_are_refused(url, key):
    assert begin(url, key).status_code == 200
    assert begin(url, key, Origin="http://localhost:6274").status_code == 200
    assert begin(url, key, Origin="https://evil.example").status_code == 403
    rebound = begin(url, key, Origin="http://evil.example:3000", Host="evil.example:3000")
    assert (rebound.status_code, rebound.json()["code"]) == (403, "forbidden")
    assert begin(url, "e2b_" + "0" * 40).status_code == 401
    assert httpx.post(f"{url}/mcp", json=BEGIN, headers=ACCEPT).status_code == 401


def test_a_session_belongs_to_its_key_and_ends(url, key, api):
    other = api.post("/keys", json={"name": "other"}).raise_for_status().json()["key"]
    session = begin(url, key).headers["mcp-session-id"]
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}

    def send(with_key, method="POST"):
        headers = {"X-API-KEY": with_key, "Mcp-Session-Id": session, **ACCEPT}
        return httpx.request(method, f"{url}/mcp", json=ping if method == "POST" else None, headers=headers).status_code

    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    headers = {"X-API-KEY": key, "Mcp-Session-Id": session, **ACCEPT}
    assert httpx.post(f"{url}/mcp", json=initialized, headers=headers).status_code == 202
    assert send(key) == 200
    assert (send(other), send(other, "DELETE"), send(other, "GET")) == (404, 404, 404)
    assert send(key) == 200
    assert send(key, "DELETE") in (200, 202, 204)
    assert send(key) == 404


def test_the_javascript_client_calls_every_tool(url, key, tmp_path):
    home = os.environ["MCP_SDK_HOME"]
    env = {**os.environ, "COFFER_BIN": str(binary()), "COFFER_URL": url, "COFFER_API_KEY": key}
    done = subprocess.run(
        ["node", "suite/every_tool.mjs"], cwd=home, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["stdio", "ok", "http", "ok"]
