import pytest
from e2b import Sandbox, SandboxQuery, SandboxState, TimeoutException

from conftest import boot_id

KEEPER = "value=$RANDOM$RANDOM; echo $value > before; until [ -e go ]; do sleep 0.1; done; echo $value > after"


def test_memory_survives(make, eventually, tag):
    sandbox = make(metadata=tag, envs={"COLOUR": "blue"})
    boot, token = boot_id(sandbox), sandbox._envd_access_token
    keeper = sandbox.commands.run(KEEPER, background=True, timeout=0)
    eventually(lambda: sandbox.files.exists("before"))
    assert sandbox.pause() is True
    assert sandbox.pause() is False  # already paused
    assert not sandbox.is_running() and sandbox.get_info().state == SandboxState.PAUSED
    assert [entry.state for entry in Sandbox.list(query=SandboxQuery(metadata=tag)).next_items()] == [
        SandboxState.PAUSED
    ]
    resumed = sandbox.connect(timeout=600)
    assert resumed.sandbox_id == sandbox.sandbox_id and resumed._envd_access_token == token
    assert keeper.pid in {process.pid for process in sandbox.commands.list()}
    assert sandbox.commands.connect(keeper.pid).pid == keeper.pid
    sandbox.files.write("go", "")
    eventually(lambda: sandbox.files.exists("after") and sandbox.files.read("after"))
    assert sandbox.files.read("after") == sandbox.files.read("before")
    assert boot_id(sandbox) == boot
    assert sandbox.commands.run("echo $COLOUR").stdout == "blue\n" and sandbox.get_info().metadata == tag


def test_filesystem_only(make):
    sandbox = make(envs={"COLOUR": "blue"})
    boot = boot_id(sandbox)
    sandbox.files.write("kept", "on disk")
    process = sandbox.commands.run("sleep 1000", background=True, timeout=0)
    assert sandbox.pause(keep_memory=False) is True
    assert not sandbox.is_running()
    sandbox.connect(timeout=600)
    assert sandbox.files.read("kept") == "on disk"
    assert boot_id(sandbox) not in ("", boot)
    assert process.pid not in {entry.pid for entry in sandbox.commands.list()}
    assert sandbox.commands.run("echo $COLOUR").stdout == "blue\n"


def test_commands_on_a_paused_sandbox_time_out_in_the_sdks_words(make):
    sandbox = make()
    sandbox.pause()
    with pytest.raises(TimeoutException):
        sandbox.commands.run("true")
    assert sandbox.get_info().state == SandboxState.PAUSED


def test_a_paused_sandbox_can_be_killed(make, tag):
    sandbox = make(metadata=tag)
    sandbox.pause()
    assert sandbox.kill() is True
    assert Sandbox.list(query=SandboxQuery(metadata=tag)).next_items() == []


def paused(sandbox):
    return lambda: sandbox.get_info().state == SandboxState.PAUSED


def test_auto_pause_waits_for_connect(make, eventually):
    sandbox = make(lifecycle={"on_timeout": "pause", "auto_resume": False})
    boot = boot_id(sandbox)
    sandbox.set_timeout(1)
    eventually(paused(sandbox))
    assert not sandbox.is_running()
    sandbox.connect(timeout=600)
    assert sandbox.is_running() and boot_id(sandbox) == boot


def test_auto_pause_filesystem_only(make, eventually):
    sandbox = make(lifecycle={"on_timeout": {"action": "pause", "keep_memory": False}})
    sandbox.files.write("kept", "on disk")
    boot = boot_id(sandbox)
    sandbox.set_timeout(1)
    eventually(paused(sandbox))
    sandbox.connect(timeout=600)
    assert sandbox.files.read("kept") == "on disk" and boot_id(sandbox) != boot


@pytest.mark.parametrize("by", ["header", "host"])
def test_auto_resume_on_a_visit(make, eventually, serve, visit, by):
    sandbox = make(lifecycle={"on_timeout": "pause", "auto_resume": True})
    serve(sandbox, 8000, "    def do_GET(self):\n        self.answer(b'awake')")
    sandbox.set_timeout(1)
    eventually(paused(sandbox))
    assert visit(sandbox, 8000, by=by).text == "awake"
    assert sandbox.get_info().state == SandboxState.RUNNING


def test_auto_resume_on_an_sdk_call(make, eventually):
    sandbox = make(lifecycle={"on_timeout": "pause", "auto_resume": True})
    sandbox.files.write("kept", "still here")
    sandbox.set_timeout(1)
    eventually(paused(sandbox))
    assert sandbox.files.read("kept") == "still here"
    assert sandbox.get_info().state == SandboxState.RUNNING
