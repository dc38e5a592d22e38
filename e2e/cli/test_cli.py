"""E2B's own command line against our server."""

import json
import os
import pty
import select
import subprocess
import time

import pytest
from e2b import Sandbox

CLI = os.environ.get("E2B_CLI")


@pytest.fixture
def sandbox():
    made = Sandbox.create(timeout=600, metadata={"suite": "cli"})
    yield made
    made.kill()


def e2b(*arguments):
    done = subprocess.run(
        [CLI, "sandbox", *arguments], capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_list_and_info(sandbox):
    listed = json.loads(e2b("list", "--format", "json", "--metadata", "suite=cli"))
    assert sandbox.sandbox_id in {entry["sandboxId"] for entry in listed}
    assert sandbox.sandbox_id in e2b("list")
    assert sandbox.sandbox_id in e2b("info", sandbox.sandbox_id)


def test_exec(sandbox):
    assert "hello from inside" in e2b("exec", sandbox.sandbox_id, "echo hello from inside")


def test_logs_and_metrics_answer(sandbox):
    e2b("logs", sandbox.sandbox_id)
    e2b("metrics", sandbox.sandbox_id)


def test_connect_on_a_terminal(sandbox):
    """`connect` wants a real terminal: it gets one, types, and leaves."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(CLI, [CLI, "sandbox", "connect", sandbox.sandbox_id])
    shown, sent, deadline = b"", 0, time.monotonic() + 120
    lines = [b"echo we are ''in $E2B_SANDBOX_ID\n", b"exit\n"]
    try:
        while time.monotonic() < deadline:
            ready, _, _ = select.select([terminal], [], [], 1)
            if ready:
                try:
                    data = os.read(terminal, 4096)
                except OSError:
                    break  # the other end is gone
                if not data:
                    break
                shown += data
            if sent == 0 and (b"$" in shown or b"#" in shown):
                sent += os.write(terminal, lines[0]) and 1
            elif sent == 1 and f"we are in {sandbox.sandbox_id}".encode() in shown:
                sent += os.write(terminal, lines[1]) and 1
    finally:
        ended, _ = os.waitpid(pid, os.WNOHANG)
        if not ended:
            time.sleep(2)
            ended, _ = os.waitpid(pid, os.WNOHANG)
        if not ended:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        os.close(terminal)
    assert f"we are in {sandbox.sandbox_id}".encode() in shown, shown[-2000:]
    assert sandbox.is_running()


def test_pause_resume_kill(sandbox):
    e2b("pause", sandbox.sandbox_id)
    assert not sandbox.is_running()
    e2b("resume", sandbox.sandbox_id)
    assert sandbox.is_running()
    e2b("kill", sandbox.sandbox_id)
    assert not sandbox.is_running()


def test_a_template_is_created_listed_and_deleted(tmp_path):
    (tmp_path / "e2b.Dockerfile").write_text("FROM e2bdev/base\nCOPY note.txt /srv/note.txt\nRUN cat /srv/note.txt\n")
    (tmp_path / "note.txt").write_text("from the command line")
    name = f"cli-{os.getpid()}-{time.time_ns() % 1_000_000}"

    def template(*arguments):
        command = [CLI, "template", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, cwd=tmp_path
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    template("create", name, "-p", str(tmp_path), "-d", "e2b.Dockerfile")
    listed = {alias: entry for entry in json.loads(template("list", "--format", "json")) for alias in entry["aliases"]}
    assert name in listed
    made = Sandbox.create(name, timeout=600)
    try:
        assert made.files.read("/srv/note.txt") == "from the command line"
    finally:
        made.kill()
    template("delete", "-y", listed[name]["templateID"])
    assert name not in template("list")
