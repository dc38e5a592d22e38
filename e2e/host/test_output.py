"""What commands did and wrote is on record, whatever becomes of the server meanwhile."""

import json
import os
import signal

import httpx
from e2b import Sandbox

from coffer_up import eventually

CANARY = "ghp_" + "C4n4ryC4n4ryC4n4ryC4n4ryC4n4ryC4n4ry"
COUNTED = "".join(f"line {number}\n" for number in range(1, 61))


def test_executions_and_output_outlive_a_killed_server(server):
    up = server("output").start()
    env = up.env()
    api = httpx.Client(base_url=f"{env['E2B_API_URL']}/api/v1", headers={"X-API-KEY": env["E2B_API_KEY"]}, timeout=30)

    def executions(sandbox):
        answer = api.get(f"/sandboxes/{sandbox.sandbox_id}/executions", params={"limit": 200})
        assert answer.status_code == 200, answer.text
        return {entry["command"].split(" -c ", 1)[-1]: entry for entry in answer.json()["items"]}

    def output(execution, **query):
        answer = api.get(f"/executions/{execution['id']}/output", params={"raw": 1, **query})
        assert answer.status_code == 200, answer.text
        return answer.text

    sandbox = Sandbox.create(timeout=1800, **up.sdk())
    assert sandbox.commands.run("echo out; echo err >&2").stdout == "out\n"
    # In two writes, and in the command itself.
    half = len(CANARY) // 2
    told = sandbox.commands.run(f"printf {CANARY[:half]}; sleep 0.2; printf '{CANARY[half:]}\\n'")
    assert told.stdout == CANARY + "\n", "a caller's own stream is left alone"
    sandbox.commands.run(f"echo {CANARY}")
    counting = "for n in $(seq 60); do echo line $n; sleep 0.1; done"
    sandbox.commands.run(counting, background=True, timeout=0)

    os.kill(up.part("server"), signal.SIGKILL)
    eventually(lambda: up.part("server") and reachable(api), "the server is back")
    eventually(lambda: executions(sandbox).get(counting, {}).get("state") == "exited", lambda: executions(sandbox))
    found = executions(sandbox)
    first = found["echo out; echo err >&2"]
    assert (first["state"], first["exit_code"], first["source"], first["user"]) == ("exited", 0, "e2b", "user")
    assert (output(first, stream="stdout"), output(first, stream="stderr")) == ("out\n", "err\n")
    assert found["echo [redacted]"]["exit_code"] == 0
    assert output(found["echo [redacted]"]) == "[redacted]\n"
    counted = found[counting]
    assert output(counted) == COUNTED and not counted["output_bytes_lost"]
    for offset in (0, 1, 6, 100, len(COUNTED) - 1, len(COUNTED)):
        assert output(counted, stream="stdout", **{"from": offset}) == COUNTED[offset:]

    # The stream tells all of it again, from any place.
    messages = stream(api, sandbox.sandbox_id, "0-0", "line 60\n")
    for place in (messages[0][0], messages[len(messages) // 2][0]):
        rest = stream(api, sandbox.sandbox_id, place, "line 60\n")
        assert written(rest, place) == written(messages, place) != []

    sandbox.kill()
    assert output(counted) == COUNTED, "it outlives its sandbox"
    lines = api.get(f"/sandboxes/{sandbox.sandbox_id}/logs", params={"search": "line 6", "source": "stdout"}).json()
    assert [line["message"] for line in lines["items"]] == ["line 6", "line 60"]
    assert up.stop() == 0
    left = [path for path in (up.data_dir / "server").rglob("*") if path.is_file() and contains(path, CANARY)]
    assert left == [], "a secret is in a file"


def reachable(api) -> bool:
    try:
        return api.get("/ready").status_code == 200
    except httpx.HTTPError:
        return False


def position(place: str) -> int:
    return int(place.split("-")[1])


def written(messages, after: str) -> list[tuple[int, str]]:
    """Output after a place. Events may come between in another order."""
    pieces = [(position(place), text) for place, kind, text in messages if kind == "output"]
    return [piece for piece in pieces if piece[0] > position(after)]


def stream(api, sandbox: str, after: str, until: str) -> list[tuple[str, str, str]]:
    """The id, kind and text of all messages up to the one with that text."""
    messages, fields = [], {}
    with api.stream("GET", f"/sandboxes/{sandbox}/stream", headers={"Last-Event-ID": after}) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            name, _, value = line.partition(":")
            fields[name] = value.strip()
            if line or "id" not in fields:
                continue
            text = json.loads(fields["data"]).get("text") or ""
            messages.append((fields["id"], fields["event"], text))
            fields = {}
            if until in text:
                return messages
    raise AssertionError(f"the stream ended after {messages[-3:]}")


def contains(path, text: str) -> bool:
    return text.encode() in path.read_bytes()
