"""Commands and terminals that run while a part of the server dies.

No SDK of E2B's goes on with a broken stream by itself: it says that the connection broke, and `connect` to the pid
gives everything from the start, once. A client that knows E2B's protocol and our offsets does go on.
"""

import base64
import json
import os
import pathlib
import signal
import struct

import httpx
import pytest
from connectrpc.errors import ConnectError
from e2b import CommandExitException, PtySize, Sandbox, SandboxException

from coffer_up import CofferUp, eventually

HALF, ALL = 20, 40


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """A server of these tests' own, since they kill its parts."""
    with CofferUp(tmp_path_factory.mktemp("resume") / "data", "--ephemeral", "--warm-slots", "0") as up:
        yield up


@pytest.fixture
def sandbox(up):
    made = Sandbox.create(timeout=600, **up.sdk())
    yield made
    eventually(lambda: answered(made.kill), "the sandbox can be destroyed")


def answered(call, *arguments):
    """What a call gives once the server is back; nothing while it is away."""
    try:
        return call(*arguments)
    except (SandboxException, ConnectError, httpx.TransportError):
        return None


def script(gate: str) -> str:
    """Prints half of its lines, the rest when the file `gate` is there, and ends with 7."""
    return (
        f"for i in $(seq {HALF}); do echo line $i; echo -$i >&2; done; until [ -e {gate} ]; do sleep 0.05; done; "
        f"for i in $(seq {HALF + 1} {ALL}); do echo line $i; echo -$i >&2; done; exit 7"
    )


STDOUT = "".join(f"line {number}\n" for number in range(1, ALL + 1))
STDERR = "".join(f"-{number}\n" for number in range(1, ALL + 1))
HALF_OUT = f"line {HALF}\n"


def ended(handle):
    with pytest.raises(CommandExitException) as failed:
        handle.wait()
    return failed.value.stdout, failed.value.stderr, failed.value.exit_code


def until_half(handle):
    """Follows a command to its first half; the iterator that goes on with it."""
    events, seen = iter(handle), ""
    while not seen.endswith(HALF_OUT):
        seen += next(events)[0] or ""
    return events


def kill(up, role):
    old = up.part(role)
    os.kill(old, signal.SIGKILL)
    return lambda: up.part(role) not in (None, old)


def hosts_view(needle: str) -> list[int]:
    """The processes whose command line holds `needle`, as the host sees them."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if needle.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked
    return found


def test_a_killed_node_is_not_noticed(up, sandbox):
    command = sandbox.commands.run(script("/tmp/node-gate"), background=True, timeout=300)
    events = until_half(command)
    back = kill(up, "node")
    sandbox.files.write("/tmp/node-gate", "")
    with pytest.raises(StopIteration):
        while True:
            next(events)
    assert ended(command) == (STDOUT, STDERR, 7)
    eventually(back, "another node")


def test_a_killed_server_costs_the_connection_and_no_output(up, sandbox):
    command = sandbox.commands.run(script("/tmp/server-gate"), background=True, timeout=300)
    events = until_half(command)
    back = kill(up, "server")
    with pytest.raises(SandboxException) as broken:  # never an exit code that nobody saw
        for _ in events:
            pass
    assert not isinstance(broken.value, CommandExitException)
    again = eventually(lambda: answered(sandbox.commands.connect, command.pid), "the server is back")
    assert back()
    sandbox.files.write("/tmp/server-gate", "")
    assert ended(again) == (STDOUT, STDERR, 7)
    # Ended, and still there for whoever comes late.
    assert ended(sandbox.commands.connect(command.pid)) == (STDOUT, STDERR, 7)


def test_what_ended_while_the_server_was_down_is_there(up, sandbox):
    gate = f"/tmp/{sandbox.sandbox_id}"
    command = sandbox.commands.run(script(gate), background=True, timeout=300)
    until_half(command)
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=300)
    typed = f"echo on''e; until [ -e {gate} ]; do sleep 0.05; done; echo tw''o; exit 5\n"
    sandbox.pty.send_stdin(terminal.pid, typed.encode())
    shown = b""
    for _, _, data in terminal:
        shown += data or b""
        if b"one\r\n" in shown:
            break
    # The shell of the terminal got its line by typing, so only the command matches. Each `sleep` matches too, for the
    # moment between its fork and its exec.
    waits = f"until [ -e {gate} ]"
    (waiting,) = eventually(lambda: len(found := hosts_view(waits)) == 1 and found, "the command alone waits")
    up.process.send_signal(signal.SIGSTOP)  # so that nobody starts another server meanwhile
    try:
        kill(up, "server")
        pathlib.Path(f"/proc/{waiting}/root{gate}").touch()
        eventually(lambda: not hosts_view(gate), "the command ends while no server runs")
    finally:
        up.process.send_signal(signal.SIGCONT)
    again = eventually(lambda: answered(sandbox.commands.connect, command.pid), "the server is back")
    assert ended(again) == (STDOUT, STDERR, 7)

    screen = []
    with pytest.raises(CommandExitException) as closed:
        sandbox.pty.connect(terminal.pid, timeout=300).wait(on_pty=screen.append)
    screen = b"".join(screen)
    assert closed.value.exit_code == 5
    assert screen.startswith(shown) and (screen.count(b"one\r\n"), screen.count(b"two\r\n")) == (1, 1)

    env = up.env()
    logs = httpx.get(
        f"{env['E2B_API_URL']}/v2/sandboxes/{sandbox.sandbox_id}/logs?limit=1000",
        headers={"X-API-KEY": env["E2B_API_KEY"]},
    ).json()["logs"]
    mine = [entry for entry in logs if entry["fields"].get("pid") == str(command.pid)]
    lines = [entry["message"] for entry in mine if entry["fields"].get("stream") == "stdout"]
    assert "\n".join(lines) + "\n" == STDOUT
    assert [entry["message"] for entry in mine][-1] == f"process {command.pid} ended: exit status 7"


class Follower:
    """A client that goes on where it was: it counts the bytes it has had of each stream."""

    def __init__(self, env: dict):
        self.url, key = env["E2B_SANDBOX_URL"], {"X-API-KEY": env["E2B_API_KEY"]}
        made = httpx.post(f"{self.url}/v2/sandboxes", json={"templateID": "base", "timeout": 600}, headers=key).json()
        self.headers = {
            "E2b-Sandbox-Id": made["sandboxID"],
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": made["envdAccessToken"],
        }
        self.had, self.pid, self.exit_code = {"stdout": b"", "stderr": b""}, None, None

    def follow(self, method: str, message: dict, until=lambda: False):
        body = json.dumps(message).encode()
        headers = self.headers | {"Content-Type": "application/connect+json"}
        framed = struct.pack(">BI", 0, len(body)) + body
        with httpx.stream(
            "POST", f"{self.url}/process.Process/{method}", content=framed, headers=headers, timeout=60
        ) as reply:
            buffer = b""
            for data in reply.iter_raw():
                buffer += data
                while len(buffer) >= 5 and len(buffer) >= 5 + (length := struct.unpack(">I", buffer[1:5])[0]):
                    self.take(json.loads(buffer[5 : 5 + length]).get("event", {}))
                    buffer = buffer[5 + length :]
                if until():
                    return

    def take(self, event: dict):
        if "start" in event:
            self.pid = event["start"]["pid"]
        for stream in self.had.keys() & event.get("data", {}).keys():
            assert int(event["data"]["offset"]) == len(self.had[stream])
            self.had[stream] += base64.b64decode(event["data"][stream])
        if "end" in event:
            self.exit_code = event["end"].get("exitCode", 0)

    def resume(self):
        offsets = {stream: len(data) for stream, data in self.had.items()}
        self.follow("Connect", {"process": {"pid": self.pid}, "resumeFrom": offsets})


def test_a_client_with_offsets_goes_on_where_it_was(up):
    follower = Follower(up.env())
    back = None

    def kill_at_half():
        nonlocal back
        if follower.had["stdout"].endswith(HALF_OUT.encode()):
            back = back or kill(up, "server")

    arguments = ["-c", script("/tmp/gate")]
    start = {"process": {"cmd": "/bin/bash", "args": arguments}, "stdin": False, "offsets": True}
    with pytest.raises(httpx.TransportError):
        follower.follow("Start", start, until=kill_at_half)
    eventually(back, "another server")
    gate = {"params": {"path": "/tmp/gate"}, "headers": follower.headers | {"Content-Type": "application/octet-stream"}}
    eventually(lambda: answered(lambda: httpx.post(f"{follower.url}/files", content=b"x", **gate)), "it answers")
    follower.resume()
    assert {stream: data.decode() for stream, data in follower.had.items()} == {"stdout": STDOUT, "stderr": STDERR}
    assert follower.exit_code == 7
