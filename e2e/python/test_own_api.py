"""Our own API beside the SDK: commands, files, and rules for commands that hold on both ways in."""

import hashlib
import json
import os
import pathlib
import random
import time
import uuid

import httpx
import pytest
from e2b import CommandExitException, PtySize, Sandbox

BIG_MIB = int(os.environ.get("E2E_BIG_MIB", "64"))
PIECE = bytes(range(256)) * 4096  # 1 MiB
DATA_DIR = pathlib.Path(os.environ.get("COFFER_E2E_DATA_DIR", "."))


@pytest.fixture(scope="module")
def api():
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    with httpx.Client(base_url=os.environ["E2B_API_URL"] + "/api/v1", headers=headers, timeout=300) as client:
        yield client


@pytest.fixture
def ruled(eventually):
    """A project of its own with a policy, its API, and a sandbox that its key made through the SDK."""
    operator = (DATA_DIR / "operator-key").read_text().strip()
    url = os.environ["E2B_API_URL"] + "/api/v1"
    with httpx.Client(base_url=url, headers={"X-API-KEY": operator}, timeout=60) as admin:
        project = admin.post("/projects", json={"name": f"ruled-{uuid.uuid4().hex[:8]}"}).raise_for_status().json()
        made = admin.post(f"/projects/{project['id']}/keys", json={"name": "test", "role": "admin"})
        key = made.raise_for_status().json()["key"]
    with httpx.Client(base_url=url, headers={"X-API-KEY": key}, timeout=300) as client:
        sandbox = Sandbox.create(api_key=key, timeout=600)
        yield client, sandbox
        sandbox.kill()


def run(api, box, **body):
    answer = api.post(f"/sandboxes/{box.sandbox_id}/exec", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_exec_answers_what_the_command_did(api, box, eventually):
    done = run(api, box, command="echo out; echo err >&2; id -un; echo $A; pwd; exit 3", cwd="/tmp", env={"A": "ä"})
    assert (done["exit_code"], done["stderr"], done["timed_out"]) == (3, "err\n", False)
    assert done["stdout"] == "out\nuser\nä\n/tmp\n"
    assert run(api, box, command=["id", "-un"], user="root")["stdout"] == "root\n"
    assert run(api, box, command="wc -c", stdin="x" * 500_000)["stdout"].strip() == "500000"

    def recorded():
        row = api.get(f"/executions/{done['execution_id']}")
        return row.status_code == 200 and row.json()["state"] != "running" and row.json()

    row = eventually(recorded)
    assert (row["exit_code"], row["sandbox"]) == (3, box.sandbox_id)
    missing = api.post(f"/sandboxes/{box.sandbox_id}/exec", json={"command": "true", "cwd": "/nowhere"})
    assert missing.status_code == 422, missing.text
    nobody = api.post(f"/sandboxes/{box.sandbox_id}/exec", json={"command": "true", "user": "nobody-here"})
    assert nobody.status_code == 422, nobody.text


def test_exec_cuts_output_and_leaves_nothing_behind(api, box):
    much = run(api, box, command="head -c 20000000 /dev/zero | tr '\\0' x", max_output_bytes=1000)
    assert (much["stdout"], much["stdout_truncated"], much["stdout_bytes"]) == ("x" * 1000, True, 20_000_000)
    nap = f"sleep {random.randrange(100_000, 1_000_000)}"
    late = run(api, box, command=f"for i in 1 2 3; do ({nap}) & done; setsid sh -c '{nap}; true' & {nap}", timeout_s=2)
    assert (late["timed_out"], late["exit_code"]) == (True, None)
    left = run(api, box, command=["pgrep", "-a", "-f", nap])
    assert (left["exit_code"], left["stdout"]) == (1, ""), left


def test_background_commands_are_listed_and_killed(api, box, eventually):
    begun = api.post(
        f"/sandboxes/{box.sandbox_id}/exec", json={"command": "sleep 1000 & sleep 1000", "background": True}
    )
    assert begun.status_code == 202, begun.text
    pid = begun.json()["pid"]
    processes = f"/sandboxes/{box.sandbox_id}/processes"
    listed = {item["pid"]: item for item in api.get(processes).json()["items"]}
    assert listed[pid]["tag"] == begun.json()["execution_id"]
    assert api.delete(f"{processes}/{pid}").status_code == 204
    eventually(lambda: pid not in {item["pid"] for item in api.get(processes).json()["items"]})
    assert api.delete(f"{processes}/{pid}").status_code == 404


def test_output_comes_while_the_command_runs(api, box):
    # It waits for a file that is made only once its first line was told.
    line = "echo first; while ! [ -e /tmp/go ]; do sleep 0.05; done; echo second"
    told = []
    path = f"/sandboxes/{box.sandbox_id}/exec"
    with api.stream("POST", path, json={"command": line}, headers={"Accept": "text/event-stream"}) as answer:
        for text in answer.iter_lines():
            if text.startswith("event: "):
                told.append(text[7:])
            if text.startswith("data: ") and "first" in text:
                box.files.write("/tmp/go", "")
    assert told == ["start", "stdout", "stdout", "end"]


def test_the_same_key_runs_a_command_once(api, box, eventually):
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"command": f"echo ran >> /tmp/{key['Idempotency-Key']}; cat /tmp/{key['Idempotency-Key']}"}
    path = f"/sandboxes/{box.sandbox_id}/exec"
    first = api.post(path, json=body, headers=key).json()

    def again():
        answer = api.post(path, json=body, headers=key)
        assert answer.status_code in (200, 409), answer.text
        return answer.status_code == 200 and answer.json()

    second = eventually(again)
    assert (second["execution_id"], second["exit_code"], second["stdout"]) == (first["execution_id"], 0, "ran\n")
    other = api.post(path, json={"command": "true"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


def server_memory_kib():
    """The server's own memory, where its process can be seen from here."""
    for status in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_bytes().split(b"\0")
            environment = (status.parent / "status").read_text()
        except OSError:
            continue
        if b"server" in words[1:2] and any(os.fsencode(DATA_DIR) in word for word in words):
            yield int(next(line.split()[1] for line in environment.splitlines() if line.startswith("VmRSS")))


def test_large_files_go_both_ways_in_little_memory(api, box, here):
    path = f"/sandboxes/{box.sandbox_id}/files{here}/large"
    digest = hashlib.sha256()

    def pieces():
        for number in range(BIG_MIB):
            piece = number.to_bytes(8, "big") + PIECE[8:]
            digest.update(piece)
            yield piece

    before = max(server_memory_kib(), default=0)
    written = api.put(path, content=pieces())
    assert written.status_code == 201, written.text
    assert written.json()["size_bytes"] == BIG_MIB << 20
    sent = digest.hexdigest()
    assert run(api, box, command=f"sha256sum {here}/large")["stdout"].split()[0] == sent
    digest = hashlib.sha256()
    with api.stream("GET", path) as answer:
        assert answer.headers["content-length"] == str(BIG_MIB << 20)
        for piece in answer.iter_bytes():
            digest.update(piece)
    assert digest.hexdigest() == sent
    after = max(server_memory_kib(), default=0)
    # Others use the server too; holding the file even once would be twice this.
    if BIG_MIB >= 64:
        assert after - before < BIG_MIB * 1024 // 2, f"{before} KiB before, {after} KiB after"

    part = api.get(path, headers={"Range": "bytes=1048576-1048583"})
    assert (part.status_code, part.content) == (206, (1).to_bytes(8, "big"))
    assert api.head(path).headers["content-length"] == str(BIG_MIB << 20)
    assert api.get(path, headers={"Range": f"bytes={BIG_MIB << 20}-"}).status_code == 416
    tag = api.head(path).headers["etag"]
    assert api.get(path, headers={"If-None-Match": tag}).status_code == 304
    assert api.put(path, content=b"small").status_code == 200
    assert api.get(path).content == b"small"


def test_files_are_listed_moved_and_removed(api, box, here):
    files = f"/sandboxes/{box.sandbox_id}/files"
    assert api.get(f"{files}{here}/none").status_code == 404
    assert api.post(files, json={"action": "mkdir", "path": f"{here}/a/b"}).status_code == 201
    assert api.post(files, json={"action": "mkdir", "path": f"{here}/a/b"}).status_code == 409
    for number in range(5):
        assert api.put(f"{files}{here}/a/b/{number} ü", content=b"x").status_code == 201
    seen, cursor = [], {}
    while True:
        page = api.get(files, params={"path": here, "depth": 3, "limit": 2, **cursor}).json()
        seen += [item["path"].removeprefix(here) for item in page["items"]]
        if not page["next"]:
            break
        cursor = {"cursor": page["next"]}
    assert seen == ["/a", "/a/b"] + [f"/a/b/{number} ü" for number in range(5)]
    assert len(api.get(f"{files}{here}/a/b").json()["items"]) == 5
    assert api.post(files, json={"action": "move", "path": f"{here}/a/b", "to": f"{here}/c"}).status_code == 200
    assert api.delete(f"{files}{here}/c").status_code == 409
    assert api.delete(f"{files}{here}/c", params={"recursive": "true"}).status_code == 204
    assert api.delete(f"{files}{here}/c").status_code == 404
    assert api.get(f"{files}/etc/../etc/hostname").status_code == 200
    box.files.write(f"{here}/by-sdk", "text")
    assert api.get(f"{files}{here}/by-sdk").text == "text"


def test_a_policy_holds_for_the_sdk_too(ruled, eventually):
    api, sandbox = ruled
    assert sandbox.commands.run("echo before").stdout == "before\n"
    policy = {"rules": [{"effect": "deny", "pattern": "rm -rf", "note": "keep it"}]}
    assert api.put("/policy", json=policy).status_code == 200
    sandbox.files.write("/home/user/kept", "x")
    with pytest.raises(Exception) as refused:
        sandbox.commands.run("cd /home/user && rm -rf kept")
    assert not isinstance(refused.value, CommandExitException)
    assert "keep it" in str(refused.value), refused.value
    with pytest.raises(Exception, match="policy"):
        sandbox.commands.run("rm -rf kept", background=True)
    assert sandbox.files.exists("/home/user/kept")
    assert sandbox.commands.run("ls /home/user | grep kept").stdout == "kept\n"
    # What a terminal is given to start is looked at, what is typed there is not.
    terminal = sandbox.pty.create(size=PtySize(rows=24, cols=80), timeout=60)
    assert terminal.pid > 0
    terminal.kill()
    refused = api.post(f"/sandboxes/{sandbox.sandbox_id}/exec", json={"command": "rm -rf kept"})
    assert (refused.status_code, refused.json()["code"]) == (403, "command_refused")

    only_git = {"default": "deny", "rules": [{"effect": "allow", "pattern": "git"}]}
    assert api.put("/policy", json=only_git).status_code == 200
    assert sandbox.commands.run("git --version").stdout.startswith("git version")
    with pytest.raises(Exception, match="policy"):
        sandbox.commands.run("ls")
    with pytest.raises(Exception, match="policy"):
        sandbox.pty.create(size=PtySize(rows=24, cols=80), timeout=60)
    check = api.post("/policy/check", json={"command": "git log | less"}).json()
    assert (check["allowed"], [item["effect"] for item in check["commands"]]) == (False, ["allow", "deny"])
    assert api.put("/policy", json={}).status_code == 200
    assert sandbox.commands.run("ls /home/user | grep kept").stdout == "kept\n"
    told = api.get("/events", params={"kind": "command.refused", "limit": 200}).json()["items"]
    assert [event["payload"]["source"] for event in told] == ["e2b", "e2b", "api", "e2b", "e2b"]


def test_events_come_over_a_websocket(api, make):
    from websockets.sync.client import connect

    url = os.environ["E2B_API_URL"].replace("http", "ws", 1) + "/api/v1/events/ws?kind=sandbox.*"
    key = os.environ["E2B_API_KEY"]
    with connect(url, subprotocols=["coffer.events.v1", f"coffer.key.{key}"]) as socket:
        sandbox = make()
        deadline = time.monotonic() + 60
        kinds = []
        while "sandbox.running" not in kinds:
            assert time.monotonic() < deadline
            event = json.loads(socket.recv(timeout=60))
            if event["subject"] == sandbox.sandbox_id:
                kinds.append(event["kind"])
    assert kinds == ["sandbox.creating", "sandbox.running"]


def test_links_do_not_lead_readers_to_the_kernels_files(api, box):
    """`/proc/1/environ` has the secrets of a sandbox, and whoever writes inside makes links."""
    box.commands.run(
        "ln -sfn /proc/1 ~/one; ln -sfn /proc/self/environ ~/own; ln -sfn /sys/kernel ~/sys; echo x > ~/plain"
    )
    made = api.post("/keys", json={"name": f"reader-{uuid.uuid4().hex[:8]}", "role": "read"}).raise_for_status().json()
    with httpx.Client(base_url=str(api.base_url), headers={"X-API-KEY": made["key"]}, timeout=60) as reader:
        files = f"/sandboxes/{box.sandbox_id}/files"
        for path in ("one/environ", "one/root/proc/self/environ", "own", "sys/notes"):
            answer = reader.get(f"{files}/~/{path}")
            assert answer.status_code == 403, (path, answer.text)
            assert api.get(f"{files}/~/{path}").status_code == 200, path
        assert reader.get(f"{files}/~/plain").text == "x\n"
        assert reader.get(f"{files}/~/one/root/etc/hostname").status_code == 200
    api.delete(f"/keys/{made['id']}").raise_for_status()
