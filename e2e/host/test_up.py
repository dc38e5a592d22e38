"""`coffer up` as its operator sees it."""

import itertools
import os
import pty
import signal
import stat
import subprocess

import httpx
import pytest
from e2b import AuthenticationException, Sandbox

from coffer_up import binary, eventually, inventory

NAMES = {"E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL", "E2B_API_KEY", "COFFER_URL", "COFFER_API_KEY"}


def test_env_is_private_and_can_be_sourced(server):
    up = server("env", "--ephemeral").start()
    assert stat.S_IMODE((up.data_dir / "env").stat().st_mode) == 0o600
    env = up.env()
    assert env.keys() >= NAMES
    assert env["E2B_API_URL"] == f"http://127.0.0.1:{up.port}"
    assert env["E2B_API_KEY"].startswith("e2b_") and len(env["E2B_API_KEY"]) == 44
    int(env["E2B_API_KEY"][4:], 16)
    # The log is no terminal, and more people may read it than may have keys.
    eventually(lambda: "The operator's key" in up.log.read_text(), "what `coffer up` prints")
    printed = up.log.read_text()
    assert "Cofferdam is ready at" in printed and str(up.data_dir / "env") in printed
    assert env["E2B_API_KEY"] not in printed and "#token=" not in printed
    assert stat.S_IMODE((up.data_dir / "sign-in").stat().st_mode) == 0o600
    assert "/#token=link_" in (up.data_dir / "sign-in").read_text()


def test_a_terminal_is_shown_keys_and_a_link(tmp_path):
    terminal, theirs = pty.openpty()
    command = [binary(), "up", "--ephemeral", "--no-build", "--listen", "127.0.0.1:0", "--pool-size", "1GiB"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "GITHUB_"))}
    command += ["--data-dir", tmp_path / "data"]
    up = subprocess.Popen(command, stdout=theirs, stdin=subprocess.DEVNULL, env=env)
    os.close(theirs)
    try:
        shown = b""
        while b"#token=" not in shown:
            shown += os.read(terminal, 4096)
        assert all(f"{name}=".encode() in shown for name in NAMES)
    finally:
        up.terminate()
        assert up.wait(150) == 0
        os.close(terminal)


def test_two_side_by_side(server):
    first, second = (server(name, "--ephemeral").start() for name in ("first", "second"))
    boxes = [Sandbox.create(timeout=600, **up.sdk()) for up in (first, second)]
    for up, box in zip((first, second), boxes, strict=True):
        assert box.commands.run("echo $E2B_SANDBOX_ID").stdout.strip() == box.sandbox_id
        assert [entry.sandbox_id for entry in Sandbox.list(**up.sdk()).next_items()] == [box.sandbox_id]
    with pytest.raises(AuthenticationException):
        Sandbox.list(**{**second.sdk(), "api_key": first.sdk()["api_key"]}).next_items()
    assert first.stop() == 0
    assert boxes[1].commands.run("echo still here").stdout == "still here\n"


def test_a_data_directory_has_one_owner(server):
    up = server("owned", "--ephemeral").start()
    other = server("owned", "--ephemeral")
    with pytest.raises(RuntimeError, match="another coffer"):
        other.start()
    assert up.process.poll() is None and Sandbox.list(**up.sdk()).next_items() == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_the_next_start_takes_running_sandboxes_up(server, how):
    up = server("adopt").start()
    sdk = up.sdk()
    sandbox = Sandbox.create(timeout=1800, metadata={"kept": "yes"}, envs={"COLOUR": "blue"}, **sdk)
    paused = Sandbox.create(timeout=1800, **sdk)
    paused.files.write("kept", "asleep")
    paused.pause()
    ticker = sandbox.commands.run(
        "n=0; while :; do n=$((n+1)); echo $n; echo $n > count; sleep 0.2; done", background=True, timeout=0
    )

    def count():
        return int(sandbox.files.read("/home/user/count").strip() or 0)

    eventually(lambda: sandbox.files.exists("count") and count(), "a tick")
    up.stop(how)
    up.start()
    assert up.sdk() == sdk  # the key is still the key
    again = Sandbox.connect(sandbox.sandbox_id, **sdk)
    assert again.get_info().metadata == {"kept": "yes"}
    assert ticker.pid in {process.pid for process in again.commands.list()}
    then = count()
    eventually(lambda: count() > then, "more ticks of the process started before")
    attached = again.commands.connect(ticker.pid, timeout=300)
    lines = "".join(out for out, _, _ in first(attached, 5))
    assert lines.strip(), "the output of the process started before goes on"
    assert again.commands.run("echo $COLOUR").stdout == "blue\n"
    assert Sandbox.connect(paused.sandbox_id, **sdk).files.read("kept") == "asleep"
    assert Sandbox.kill(sandbox.sandbox_id, **sdk) and Sandbox.kill(paused.sandbox_id, **sdk)


def first(handle, count):
    """The first events of a stream that never ends."""
    for event in itertools.islice(handle, count):
        yield tuple(part or "" for part in event)
    handle.disconnect()


def test_a_sandbox_whose_time_ran_out_while_we_were_down_ends(server):
    up = server("late").start()
    sdk = up.sdk()
    sandbox = Sandbox.create(timeout=600, **sdk)
    sandbox.set_timeout(1)
    up.stop(signal.SIGKILL)
    up.start()
    eventually(lambda: not Sandbox.list(**sdk).next_items(), "the overdue sandbox ended")


def test_ephemeral_leaves_nothing(server):
    up = server("brief", "--ephemeral")
    nothing = {kind: found for kind, found in inventory(up).items() if kind != "cgroups"}
    assert not any(nothing.values()), nothing
    up.start()
    for _ in range(3):
        sandbox = Sandbox.create(timeout=600, **up.sdk())
        sandbox.commands.run("sleep 1000", background=True, timeout=0)
    sandbox.pause()
    tag = up.run_dir.name
    assert up.stop() == 0
    left = inventory(up)
    left["cgroups"] = {path for path in left["cgroups"] if tag in path}
    assert not any(left.values()), left
    assert not up.run_dir.exists()


def test_a_token_for_github_connects_the_project(server):
    up = server("github")
    settings = up.data_dir.with_name("github.toml")
    for token, version in [("ghp_first0123456789", 1), ("ghp_second0123456789", 2)]:
        settings.write_text(f'[github]\ntoken = "{token}"\n')
        up.start("--config", str(settings))
        env = up.env()
        headers = {"X-API-KEY": env["E2B_API_KEY"]}
        with httpx.Client(base_url=f"{env['E2B_API_URL']}/api/v1", headers=headers, timeout=60) as api:
            [connection] = api.get("/forge/connections").raise_for_status().json()["items"]
            assert (connection["name"], connection["base_url"]) == ("github", "https://api.github.com")
            [secret] = api.get("/secrets").raise_for_status().json()["items"]
            assert (secret["name"], secret["version"]) == (connection["secret"], version)
            # It is for GitHub alone: nobody has it shown by a sandbox.
            refused = api.post("/sandboxes", json={"secrets": {"TOKEN": secret["name"]}})
            assert refused.status_code == 422 and secret["name"] in refused.text, refused.text
            shown = [
                api.get(path).raise_for_status().text
                for path in ("/forge/connections", "/secrets", "/events", "/audit")
            ]
        assert up.stop() == 0
        assert not any("ghp_" in text for text in [*shown, up.log.read_text()])
