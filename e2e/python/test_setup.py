"""What a repository asks for before an agent works in it: `.coffer/setup.sh`, or a `devcontainer.json`."""

import json

from test_gate import IDENTITY
from test_tasks import board, needs  # noqa: F401

SECRET = "the-agents-own-secret"
# Leaves a program outside the repository, a directory inside, a changed file, and every place where a secret would be.
SETUP = f"""
set -eu
echo "preparing in $(pwd) as $(id -un)"
mkdir -p vendor && date +%s%N > vendor/stamp
echo changed >> README
printf '#!/bin/sh\\necho tool of the set-up\\n' | sudo tee /usr/local/bin/the-tool > /dev/null
sudo chmod 755 /usr/local/bin/the-tool
{{ env; cat /proc/*/environ 2> /dev/null | tr '\\0' '\\n'; }} | grep -c '{SECRET}' > vendor/found || true
"""
# Says what it found, in its branch.
AGENT = """the-tool > tool; cat vendor/stamp > stamp; cat vendor/found > found; echo "${FROM_FILE:-}" > from-file
test -n "$TOKEN" && echo yes > has-token"""


def push(board, files: dict[str, str]):  # noqa: F811
    work = board.scratch / "app"
    for name, text in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    board.git("add", "--all", cwd=work)
    board.git(*IDENTITY, "commit", "--quiet", "--message", "chore: prepare", cwd=work)
    board.git("push", "--quiet", "origin", "HEAD:refs/heads/main", cwd=work)


def shown(board, done: dict, name: str) -> str:  # noqa: F811
    return board.fetched("show", f"origin/{done['branch']}:{name}")


def prepared(board, task: str) -> dict:  # noqa: F811
    """The entry of the set-up in the transcript."""
    [entry] = [one for one in board.get(f"/tasks/{task}/transcript")["items"] if one["kind"] == "command"]
    return entry


def test_a_set_up_runs_once_without_secrets_and_its_result_is_kept(board):  # noqa: F811
    board.call("PUT", "/secrets/token", (200, 201, 204), json={"value": SECRET})
    push(board, {".coffer/setup.sh": SETUP})
    agent = board.agent(AGENT, secrets={"TOKEN": "token"})
    first = board.run(agent=agent)
    assert first["state"] == "in_review", first
    changed = board.fetched("diff", "--name-only", f"origin/main...origin/{first['branch']}").split()
    assert set(changed) == {"tool", "stamp", "found", "from-file", "has-token"}, "the set-up's own files are no work"
    assert shown(board, first, "tool") == "tool of the set-up"
    assert (shown(board, first, "found"), shown(board, first, "has-token")) == ("0", "yes")
    entry = prepared(board, first["id"])
    assert (entry["command"]["text"], entry["exit_code"]) == (".coffer/setup.sh", 0)
    assert "preparing in /home/user/app as user" in entry["output"].get("end", "") + entry["output"]["text"]
    assert board.live() == []
    # Again: from what was kept, on a newer commit.
    push(board, {"more": "more\n"})
    again = board.run(agent=agent)
    assert again["state"] == "in_review", again
    assert shown(board, again, "stamp") == shown(board, first, "stamp"), "it did not run again"
    assert shown(board, again, "more") == "more", "the base is the newest commit"
    assert "done before" in prepared(board, again["id"])["output"]["text"]
    # A lock file that changes is another set-up.
    push(board, {"package-lock.json": "{}"})
    other = board.run(agent=agent)
    assert shown(board, other, "stamp") != shown(board, first, "stamp")
    kept = [one for one in board.get("/snapshots")["items"] if (one["name"] or "").startswith("setup-app")]
    assert len(kept) == 2, kept


def test_a_devcontainer_is_followed_as_far_as_it_goes(board):  # noqa: F811
    text = """{ // comments, and a last comma
        "image": "mcr.microsoft.com/devcontainers/base",
        "containerEnv": {"FROM_FILE": "in ${containerWorkspaceFolder}", "TOKEN": "from the file"},
        "onCreateCommand": {"one": ["/bin/sh", "-c", "mkdir -p vendor; echo $FROM_FILE > vendor/stamp"]},
        "postCreateCommand": "printf '#!/bin/sh\\\\necho tool\\\\n' > /usr/local/bin/the-tool; chmod 755 /usr/local/bin/the-tool; echo 0 > vendor/found",
        "remoteUser": "root",
    }"""
    push(board, {".devcontainer/devcontainer.json": text})
    done = board.run(AGENT, definition={"env": {"TOKEN": "the agent's own"}})
    assert (done["state"], done["needs_attention"]) == ("in_review", None), done
    assert shown(board, done, "stamp") == shown(board, done, "from-file") == "in /home/user/app"
    entries = board.get(f"/tasks/{done['id']}/transcript")["items"]
    [warned] = [one["text"]["text"] for one in entries if one["kind"] == "output" and "devcontainer" in str(one)]
    assert "`image` is not followed" in warned
    commands = [one["command"]["text"] for one in entries if one["kind"] == "command"]
    assert commands == ["onCreateCommand.one", "postCreateCommand"]


def test_a_set_up_that_fails_says_so_and_can_be_left_out(board):  # noqa: F811
    push(board, {".coffer/setup.sh": "echo the disk of dreams is full >&2; exit 7"})
    done = board.run("echo x > y")
    needs(done, "setup_failed", "`.coffer/setup.sh`", "exit code 7", "the disk of dreams is full")
    assert board.live() == [], "no agent began, so nothing is left"
    done = board.run("echo x > y", definition={"setup": False})
    assert (done["state"], done["needs_attention"]) == ("in_review", None), done
    for bad in ["{", json.dumps({"postCreateCommand": 7}), "[" * 70_000]:
        push(board, {".coffer/setup.sh": "", ".devcontainer.json": bad})
        board.git("rm", "--quiet", ".coffer/setup.sh", cwd=board.scratch / "app")
        push(board, {})
        needs(board.run("echo x > y"), "setup_failed", ".devcontainer.json", "cannot be read")
