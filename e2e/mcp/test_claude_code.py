"""The real Claude Code, set up by `coffer mcp install`, uses a tool because a scripted model tells it to."""

import json
import os
import subprocess
import uuid

import pytest

from coffer_up import binary
from model import Model


@pytest.fixture
def claude() -> str:
    return os.environ["CLAUDE_CODE"]


@pytest.mark.timeout(300)
def test_claude_code_runs_a_command_in_a_sandbox(api, url, key, claude, tmp_path):
    sandbox = api.post("/sandboxes", json={}).raise_for_status().json()["id"]
    mark = uuid.uuid4().hex
    # The profile is Claude Code's way to the key: its configuration names it and has no key.
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COFFER_CONFIG_DIR": str(tmp_path / "coffer")}
    login = [binary(), "login", url, "--name", "work"]
    subprocess.run(login, input=key.encode(), env=env, check=True, capture_output=True, timeout=60)
    project = tmp_path / "project"
    (project / ".claude").mkdir(parents=True)
    install = [binary(), "mcp", "install", "claude-code"]
    subprocess.run(install, env=env, cwd=project, check=True, capture_output=True, timeout=60)
    written = (project / ".mcp.json").read_text()
    assert "cofferdam" in written and key not in written
    # What Claude Code writes when its user trusts the file; without a terminal it cannot ask.
    (project / ".claude/settings.local.json").write_text('{"enabledMcpjsonServers": ["cofferdam"]}')

    arguments = {"sandbox_id": sandbox, "command": f"echo {mark} | tee proof"}
    with Model("mcp__cofferdam__run_command", arguments, f"said {mark}") as model:
        told = {
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "sk-ant-scripted",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "false",
        }
        words = [claude, "-p", "run it", "--output-format", "json", "--allowedTools", "mcp__cofferdam__run_command"]
        done = subprocess.run(
            words,
            env=env | told,
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=240,
        )
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
        assert {"mcp__cofferdam__create_sandbox", "mcp__cofferdam__run_command"} <= model.offered
        assert len(model.results) == 1 and mark in model.results[0], model.results
    assert json.loads(done.stdout)["result"] == f"said {mark}"
    ran = api.post(f"/sandboxes/{sandbox}/exec", json={"command": "cat proof"}).raise_for_status().json()
    assert ran["stdout"].strip() == mark
    api.delete(f"/sandboxes/{sandbox}").raise_for_status()
