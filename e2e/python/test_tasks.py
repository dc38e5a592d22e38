"""Tasks, from start to pull request, by agents that are scripts."""

import pathlib
import subprocess
import uuid
from importlib.metadata import version

import httpx
import pytest

from test_gate import IDENTITY, PLAIN, URL, operator_key

VERSIONS = pathlib.Path(__file__).resolve().parent.parent / "versions.env"
if f"PYTHON_OLD={version('e2b')}" in VERSIONS.read_text().splitlines():
    pytest.skip("SKIPPED: tasks have no SDK; they are tested once, beside the newest", allow_module_level=True)


class Board:
    """A project of its own with a repository `app`, and agents that are shell scripts."""

    def __init__(self, api: httpx.Client, key: str, scratch: pathlib.Path, eventually):
        self.api, self.key, self.scratch, self.eventually = api, key, scratch, eventually
        self.seed("app")

    def seed(self, name: str):
        """A repository with one commit on main."""
        made = self.post("/repositories", name=name)
        work = self.scratch / name
        self.git("clone", "--quiet", made["clone_url"].replace("http://", f"http://any:{self.key}@"), str(work))
        (work / "README").write_text("hello\n")
        self.git("add", "--all", cwd=work)
        self.git(*IDENTITY, "commit", "--quiet", "--message", "feat: begin", cwd=work)
        self.git("push", "--quiet", "origin", "HEAD:refs/heads/main", cwd=work)

    def git(self, *words: str, cwd: pathlib.Path | None = None) -> str:
        done = subprocess.run(["git", *words], cwd=cwd or self.scratch, env=PLAIN, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def fetched(self, *words: str, name: str = "app") -> str:
        """What git says once it has all that the repository has."""
        work = self.scratch / name
        self.git("fetch", "--quiet", "--prune", "origin", cwd=work)
        return self.git(*words, cwd=work)

    def call(self, method: str, path: str, expect: tuple[int, ...], **options) -> dict | list:
        answer = self.api.request(method, path, **options)
        assert answer.status_code in expect, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    def post(self, path: str, *expect: int, **body) -> dict:
        return self.call("POST", path, expect or (200, 201, 202), json=body)

    def get(self, path: str, **query) -> dict | list:
        return self.call("GET", path, (200,), params=query)

    def agent(self, script: str, **definition) -> str:
        """An agent that runs the script with its prompt as the first argument."""
        command = ["/bin/sh", "-euc", script, "agent", "{prompt}"]
        definition = {"preset": "custom", "command": command, **definition}
        return self.post("/agents", name=f"a-{uuid.uuid4().hex[:8]}", definition=definition)["id"]

    def task(self, script: str | None = None, agent: str | None = None, definition: dict | None = None, **body) -> str:
        body = {"title": "Add a greeting", "repository": "app", **body}
        agent = agent or self.agent(script, **(definition or {}))
        return self.post("/tasks", agent_id=agent, **body)["id"]

    def start(self, task: str, **body) -> dict:
        return self.post(f"/tasks/{task}/start", 202, **body)

    def shown(self, task: str) -> dict:
        return self.get(f"/tasks/{task}")

    def attempts(self, task: str) -> list[dict]:
        return self.get(f"/tasks/{task}/attempts")

    def over(self, task: str) -> dict:
        """Waits until the last attempt is over, and says how the task stands."""
        self.eventually(lambda: self.attempts(task)[-1]["ended_at"], 300)
        return self.shown(task)

    def run(self, *arguments, **options) -> dict:
        task = self.task(*arguments, **options)
        self.start(task)
        return self.over(task)

    def live(self) -> list[str]:
        return [sandbox["id"] for sandbox in self.get("/sandboxes", state="creating,running,paused")["items"]]

    def pulls(self, name: str = "app") -> list[dict]:
        return self.get(f"/repositories/{name}/pulls")["items"]

    def steps(self, task: str) -> dict[str, dict]:
        run = self.attempts(task)[-1]["run_id"]
        return {step["name"]: step for step in self.get(f"/runs/{run}/steps")}


@pytest.fixture
def board(tmp_path, eventually):
    with httpx.Client(base_url=f"{URL}/api/v1", headers={"X-API-KEY": operator_key()}, timeout=60) as admin:
        made = admin.post("/projects", json={"name": f"tasks-{uuid.uuid4().hex[:8]}"}).raise_for_status().json()
        key = admin.post(f"/projects/{made['id']}/keys", json={"name": "test", "role": "admin"})
        key = key.raise_for_status().json()["key"]
    with httpx.Client(base_url=f"{URL}/api/v1", headers={"X-API-KEY": key}, timeout=120) as api:
        board = Board(api, key, tmp_path, eventually)
        yield board
        for task in board.get("/tasks")["items"]:
            board.post(f"/tasks/{task['id']}/cancel")
        for task in board.get("/tasks")["items"]:
            eventually(lambda task=task: all(attempt["ended_at"] for attempt in board.attempts(task["id"])))
        for sandbox in board.live():
            board.call("DELETE", f"/sandboxes/{sandbox}", (204, 404))


def needs(done: dict, code: str, *words: str) -> str:
    """The task waits for a person, and says why."""
    attention = done["needs_attention"]
    assert done["state"] == "in_progress" and attention, done
    assert attention["code"] == code, attention
    for word in words:
        assert word in attention["message"], attention
    return attention["message"]


def test_from_start_to_pull_request(board):
    script = 'echo "$1" > told; { pwd; id -un; } > where; echo "$GREETING to $COFFER_BRANCH" > greeting; echo All done.'
    definition = {"env": {"GREETING": "good morning"}}
    task = board.task(script, definition=definition, check_command="grep -q morning greeting", description="Be kind.")
    board.start(task)
    done = board.over(task)
    assert (done["state"], done["needs_attention"]) == ("in_review", None), done
    branch = f"task-{task}"
    assert done["branch"] == branch and done["pull_url"] == "/api/v1/repositories/app/pulls/1"

    [attempt] = board.attempts(task)
    assert (attempt["state"], attempt["commit"], attempt["summary"]) == ("done", done["commit"], "All done.")
    assert list(board.steps(task)) == [
        "prepare", "sandbox", "clone", "setup", "branch", "agent-1", "hear-1", "check", "commit", "push", "pull", "finish",
    ]  # fmt: skip
    said = board.get(f"/executions/{attempt['execution_id']}")
    assert (said["state"], said["exit_code"]) == ("exited", 0)

    assert board.fetched("rev-parse", f"origin/{branch}") == done["commit"]
    assert board.fetched("show", f"origin/{branch}:greeting") == f"good morning to {branch}"
    assert board.fetched("show", f"origin/{branch}:where") == "/home/user/app\nuser"
    told = board.fetched("show", f"origin/{branch}:told")
    assert told.startswith("Add a greeting\n\nBe kind.\n\nAbout this work:\n"), told
    assert f"`{branch}`" in told and "`grep -q morning greeting` is run" in told, told
    kinds = [entry["kind"] for entry in board.get(f"/tasks/{task}/transcript")["items"]]
    assert kinds == ["prompt", "output", "check"], kinds
    message = board.fetched("log", "-1", "--format=%an <%ae>%n%B", f"origin/{branch}")
    assert message.startswith("Cofferdam <noreply@localhost>\nfeat: add a greeting\n\n"), message
    assert f"Task: {task}" in message
    assert board.fetched("rev-list", "--count", f"origin/main..origin/{branch}") == "1"

    [pull] = board.pulls()
    assert (pull["title"], pull["head"], pull["base"], pull["state"]) == ("Add a greeting", branch, "main", "open")
    assert pull["head_commit"] == done["commit"] and pull["author"] == f"agent:{done['agent_id']}"
    for part in ["> All done.", f"`{task}`", "attempt 1", "`grep -q morning greeting` passed"]:
        assert part in pull["body"], pull["body"]
    assert board.live() == []


def test_an_agent_that_fails_leaves_its_sandbox_to_look_at(board):
    board.call("PUT", "/secrets/door", (200, 201, 204), json={"value": "open-sesame-42"})
    script = 'echo half > work; echo "cannot: $DOOR $HUSH" >&2; exit 3'
    task = board.task(script, definition={"secrets": {"DOOR": "door"}, "env": {"HUSH": "quiet-please"}})
    board.start(task)
    done = board.over(task)
    message = needs(done, "agent_failed", "exit code 3", "cannot: ")
    # Secrets are hidden; what is in `env` is plain.
    assert "open-sesame" not in message and "[redacted] quiet-please" in message, message
    [attempt] = board.attempts(task)
    sandbox = attempt["sandbox_id"]
    assert board.live() == [sandbox] and board.pulls() == []
    ran = board.post(f"/sandboxes/{sandbox}/exec", command="cat app/work")
    assert ran["stdout"] == "half\n"

    # Another agent takes over, on the same branch.
    board.start(task, agent_id=board.agent("echo whole > work"))
    done = board.over(task)
    assert (done["state"], done["attempts"], len(board.pulls())) == ("in_review", 2, 1)
    assert board.fetched("show", f"origin/{done['branch']}:work") == "whole"
    assert board.live() == [sandbox]


def test_what_a_person_must_decide(board):
    nothing = board.run("echo Nothing to do.")
    needs(nothing, "no_changes")
    needs(board.run("true", base_branch="nowhere"), "unknown_base", "`nowhere`")
    needs(board.run("true", repository="house"), "unknown_repository", "house")
    kept = [board.attempts(nothing["id"])[0]["sandbox_id"]]
    assert board.live() == kept, "there is something to look at in one alone"
    needs(board.run("no-such-program-here"), "agent_failed", "127", "not found")
    assert board.pulls() == [] and board.fetched("branch", "--remotes") == "origin/main"


def test_what_does_not_pass_is_pushed_and_not_proposed(board):
    task = board.task("echo broken > state", check_command="echo checking; grep -q right state")
    board.start(task)
    done = board.over(task)
    needs(done, "check_failed", "grep -q right state", "exit code 1", done["branch"])
    assert board.pulls() == []
    assert board.fetched("show", f"origin/{done['branch']}:state") == "broken"
    # The next attempt goes on from there.
    board.start(task, agent_id=board.agent("grep -q broken state; echo right > state"))
    done = board.over(task)
    assert done["state"] == "in_review" and len(board.pulls()) == 1
    assert board.fetched("rev-list", "--count", f"origin/main..origin/{done['branch']}") == "2"
    assert "passed" in board.pulls()[0]["body"]
    # One that breaks it again leaves the pull request alone.
    board.start(task, agent_id=board.agent("echo worse > state"))
    worse = board.over(task)
    aside = f"{done['branch']}-attempt-3"
    needs(worse, "check_failed", f"`{aside}`", done["pull_url"])
    assert (worse["branch"], worse["commit"], len(board.pulls())) == (done["branch"], done["commit"], 1)
    assert board.fetched("show", f"origin/{done['branch']}:state") == "right"
    assert board.fetched("show", f"origin/{aside}:state") == "worse"


def test_a_failed_check_is_corrected_in_the_same_sandbox(board):
    script = """
    if [ "$COFFER_TURN" = 1 ]; then echo broken > state; touch /tmp/here; else
      test -e /tmp/here; echo "$1" > told; echo right > state
    fi
    echo "turn $COFFER_TURN is over"
    """
    task = board.task(script, check_command="echo looking for right; grep -q right state")
    board.start(task)
    done = board.over(task)
    assert (done["state"], done["attempts"]) == ("in_review", 1), done
    assert {"check", "agent-2", "check-2"} <= board.steps(task).keys()
    told = board.fetched("show", f"origin/{done['branch']}:told")
    for part in [
        "failed with exit code 1 (correction 1 of 3)",
        "> looking for right",
        "You have worked on this already",
    ]:
        assert part in told, told

    entries = board.get(f"/tasks/{task}/transcript")["items"]
    assert [entry["kind"] for entry in entries] == ["prompt", "output", "check", "prompt", "output", "check"], entries
    assert [entry["turn"] for entry in entries] == [1, 1, 1, 2, 2, 2]
    assert (entries[2]["passed"], entries[2]["exit_code"], entries[5]["passed"]) == (False, 1, True)
    assert entries[2]["output"]["text"] == "looking for right\n" and entries[1]["text"]["text"] == "turn 1 is over"
    page = board.api.get(f"/tasks/{task}/transcript", params={"format": "md"})
    assert page.headers["content-type"].startswith("text/markdown") and "## Attempt 1, turn 2" in page.text

    # An agent that never gets it right is asked so often and no more.
    never = board.task("echo wrong > state", check_command="grep -q right state", check_tries=1)
    board.start(never)
    needs(board.over(never), "check_failed", "after 1 correction")
    assert {"agent-2", "check-2"} <= board.steps(never).keys() and "agent-3" not in board.steps(never)


WAITING = "until [ -e /tmp/go ]; do sleep 0.1; done; "


def at_work(board: Board, task: str) -> dict:
    """Waits until the agent of the last attempt runs."""

    def begun():
        attempt = board.attempts(task)[-1]
        return attempt if attempt["execution_id"] else None

    return board.eventually(begun)


def test_what_is_said_meanwhile_is_the_next_turn(board):
    script = f'if [ "$COFFER_TURN" = 1 ]; then {WAITING} echo one > one; else echo "$1" > two; fi'
    task = board.task(script)
    board.start(task)
    sandbox = at_work(board, task)["sandbox_id"]
    board.post(f"/tasks/{task}/messages", body="and a second file", file="README", line=1)
    board.post(f"/sandboxes/{sandbox}/exec", command="touch /tmp/go")
    done = board.over(task)
    assert done["state"] == "in_review", done
    assert {"agent-1", "agent-2", "hear-2"} <= board.steps(task).keys()
    two = board.fetched("show", f"origin/{done['branch']}:two")
    assert two.endswith("Review comment 1 on `README`, line 1:\nand a second file"), two

    # What is said later begins the next attempt, on the same branch and pull request.
    board.post(f"/tasks/{task}/messages", body="once more", start=True)
    board.eventually(lambda: board.shown(task)["attempts"] == 2)
    attempt = at_work(board, task)
    board.post(f"/sandboxes/{attempt['sandbox_id']}/exec", command="touch /tmp/go")
    again = board.over(task)
    assert (again["state"], again["branch"], again["pull_url"]) == ("in_review", done["branch"], done["pull_url"])
    [pull] = board.pulls()
    assert "attempt 2" in pull["body"] and board.live() == []


def test_cancelled_nothing_is_left(board):
    task = board.task("echo begun > begun; sleep 600")
    board.start(task)
    at_work(board, task)
    board.post(f"/tasks/{task}/cancel", reason="not wanted")
    done = board.over(task)
    assert (done["state"], board.attempts(task)[0]["state"]) == ("cancelled", "cancelled")
    assert board.live() == [] and board.pulls() == []
    assert board.fetched("branch", "--remotes") == "origin/main"


def waits(board: Board, task: str, code: str) -> dict:
    """Waits until the attempt waits for a person, and returns what it asks."""

    def asked():
        attention = board.shown(task)["needs_attention"]
        return attention if attention and attention["code"] == code else None

    board.eventually(asked, 120)
    return board.get(f"/tasks/{task}/question")


def test_at_its_budget_a_task_waits_for_a_person(board):
    spent = '{"type": "result", "subtype": "success", "total_cost_usd": 2.5, "result": "spent"}'
    script = f"echo '{spent}'; echo $COFFER_TURN >> work; if [ $COFFER_TURN = 1 ]; then sleep 600; fi"
    task = board.task(script, definition={"output": "claude_stream"}, budget=1.0)
    board.start(task)
    question = waits(board, task, "budget_wanted")
    assert (question["kind"], question["spent"], question["budget"]) == ("budget", 2.5, 1.0), question
    assert "2.5 USD" in question["message"] and "1 USD" in question["message"], question
    sandbox = board.attempts(task)[0]["sandbox_id"]
    board.eventually(lambda: board.get(f"/sandboxes/{sandbox}")["state"] == "paused")
    board.post(f"/tasks/{task}/answer", 422, answer="raise", budget=2.5)
    board.post(f"/tasks/{task}/answer", answer="raise", budget=10)
    done = board.over(task)
    assert (done["state"], done["needs_attention"], done["budget"]) == ("in_review", None, 10.0), done
    [attempt] = board.attempts(task)
    assert (attempt["agent_cost"], attempt["sandbox_id"]) == (5.0, sandbox)
    assert board.fetched("show", f"origin/{done['branch']}:work") == "1\n2"
    assert board.live() == []

    # Finished, what is there is a draft.
    task = board.task(script, definition={"output": "claude_stream"}, budget=1.0, check_command="false")
    board.start(task)
    waits(board, task, "budget_wanted")
    board.post(f"/tasks/{task}/answer", answer="finish")
    done = board.over(task)
    assert done["state"] == "in_review", done
    [pull] = [pull for pull in board.pulls() if pull["head"] == done["branch"]]
    assert pull["draft"] and "This is a draft" in pull["body"], pull
    assert board.fetched("show", f"origin/{done['branch']}:work") == "1"
    board.post(f"/tasks/{task}/answer", 409, answer="finish")
    # Its attempts cost as much as its budget: another one does not begin.
    board.start(task)
    needs(board.over(task), "budget_exceeded", "earlier attempts")


def test_an_interrupted_agent_keeps_its_work_and_goes_on(board):
    # It takes Ctrl-C as programs do, and writes what it has.
    script = """
        echo "$1" >> told
        if [ $COFFER_TURN = 1 ]; then trap 'echo stopped > end; exit 130' INT; echo half > work; touch /tmp/on; sleep 600 & wait; fi
        echo whole > work"""
    task = board.task(script)
    board.post(f"/tasks/{task}/interrupt", 409)
    board.start(task)
    attempt = at_work(board, task)
    look = {"command": "test -e /tmp/on && echo yes || echo no"}
    board.eventually(lambda: "yes" in board.post(f"/sandboxes/{attempt['sandbox_id']}/exec", **look)["stdout"])
    board.post(f"/tasks/{task}/interrupt")
    question = waits(board, task, "interrupted")
    assert question["answers"] == ["go_on", "finish", "stop"]
    board.post(f"/tasks/{task}/messages", body="the other door")
    done = board.over(task)
    assert (done["state"], done["needs_attention"]) == ("in_review", None), done
    told = board.fetched("show", f"origin/{done['branch']}:told")
    assert "a person interrupted you" in told and "the other door" in told, told
    for name, text in [("end", "stopped"), ("work", "whole")]:
        assert board.fetched("show", f"origin/{done['branch']}:{name}") == text
    assert len(board.attempts(task)) == 1 and board.live() == []


def test_an_agent_has_the_limits_of_its_definition(board):
    script = "{ nproc; awk '/MemTotal/ {print $2}' /proc/meminfo; } > seen"
    done = board.run(script, definition={"limits": {"cpu_count": 1, "memory_mib": 512}})
    assert done["state"] == "in_review", done
    cpus, memory_kib = board.fetched("show", f"origin/{done['branch']}:seen").split()
    assert cpus == "1" and int(memory_kib) <= 512 * 1024, (cpus, memory_kib)
    sandbox = board.get(f"/sandboxes/{board.attempts(done['id'])[0]['sandbox_id']}")
    assert (sandbox["cpu_count"], sandbox["memory_mib"]) == (1, 512)


def test_what_an_agent_was_given_is_shown_nowhere(board):
    """Not in output, records, events, the pull request or what is kept of it; what it pushes is its own doing.

    Values of `env` are no secrets: a pull request may say what region or provider was used.
    """
    board.call("PUT", "/secrets/door", (200, 201, 204), json={"value": 'open "sesame" 42'})
    script = """
        python3 -c '
import json, os
text = "it is %s and %s" % (os.environ["DOOR"], os.environ["HUSH"])
print(json.dumps({"type": "item.completed", "item": {"type": "agent_message", "text": text}}))
'
        echo "$DOOR, $HUSH" >&2
        echo "$DOOR, $HUSH" > leak
    """
    given = {"secrets": {"DOOR": "door"}, "env": {"HUSH": "quiet-please"}, "output": "codex_stream"}
    task = board.task(script, definition=given, check_command="cat leak")
    board.start(task)
    done = board.over(task)
    assert done["state"] == "in_review", done
    [attempt] = board.attempts(task)
    [pull] = board.pulls()
    assert "> it is [redacted] and quiet-please" in pull["body"], pull
    assert attempt["summary"] == "it is [redacted] and quiet-please"
    output = board.api.get(f"/executions/{attempt['execution_id']}/output", params={"raw": 1}).text
    assert "it is [redacted] and quiet-please" in output and "[redacted], quiet-please" in output, output

    def kept():
        found = board.get("/artifacts", run_id=attempt["run_id"], kind="diff")["items"]
        return board.api.get(f"/artifacts/{found[0]['id']}/content").text if found else None

    diff = board.eventually(kept)
    assert "+[redacted], quiet-please" in diff, diff
    seen = [pull, attempt, done, output, diff, board.steps(task)]
    seen += [board.get("/events", subject=subject, limit=200) for subject in (task, attempt["sandbox_id"])]
    seen.append(board.get(f"/sandboxes/{attempt['sandbox_id']}/logs", limit=200))
    seen.append(board.get(f"/sandboxes/{attempt['sandbox_id']}/executions", limit=200))
    for text in map(str, seen):
        assert "sesame" not in text, text
    assert board.fetched("show", f"origin/{done['branch']}:leak") == 'open "sesame" 42, quiet-please'


def test_how_far_an_agent_is_is_told_while_it_works(board):
    says = [
        '{"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": "Looking at it."}],'
        ' "usage": {"input_tokens": 5, "output_tokens": 2}}}',
        '{"type": "assistant", "message": {"id": "m2", "content": [{"type": "tool_use", "name": "Bash", "input": "ls"}],'
        ' "usage": {"input_tokens": 6, "output_tokens": 3}}}',
    ]
    script = "".join(f"echo '{line}'; " for line in says) + WAITING + "echo done > work"
    task = board.task(script, definition={"output": "claude_stream"})
    board.start(task)
    at_work(board, task)
    version = board.shown(task)["version"]

    def doing():
        events = board.get("/events", subject=task, kind="task.progress", limit=200)["items"]
        return [event["payload"] for event in events if event["payload"]["doing"]]

    [told] = board.eventually(doing)
    # A shell has one name, whatever an agent calls its own.
    assert told["doing"] == {"message": "Looking at it.", "tool": "command", "about": "ls"}, told
    assert (told["input_tokens"], told["output_tokens"], told["cost_nanos"]) == (11, 5, None)
    [attempt] = board.attempts(task)
    assert (attempt["ended_at"], attempt["input_tokens"], attempt["summary"]) == (None, 11, "Looking at it.")
    assert board.shown(task)["version"] == version, "whoever edits the task meanwhile can"
    board.post(f"/sandboxes/{attempt['sandbox_id']}/exec", command="touch /tmp/go")
    assert board.over(task)["state"] == "in_review"
    assert len(doing()) == 1, "nothing new, nothing told"


def test_commits_of_the_agents_own_come_along_under_the_projects_name(board):
    settings = {"git": {"name": "A Robot", "email": "robot@example.com"}}
    board.call("PUT", "/project/settings", (200, 204), json=settings)
    script = "git switch -q -c its-own; echo 1 > one; git add one; git commit -q -m 'one of its own'; echo 2 > two"
    done = board.run(script, title="docs: say more")
    assert done["state"] == "in_review", done
    log = board.fetched("log", "--format=%an|%s", f"origin/main..origin/{done['branch']}")
    assert log.splitlines() == ["A Robot|docs: say more", "A Robot|one of its own"]
    assert "its-own" not in board.fetched("branch", "--remotes")


def test_ten_agents_on_one_repository(board):
    """Each proposes its own work, though all of them try to push elsewhere."""
    attack = "for ref in main stolen task-other; do git push -q origin HEAD:refs/heads/$ref && touch stolen; done; "
    agent = board.agent(f'{attack} echo "$COFFER_TASK_ID" > "mine-$COFFER_TASK_ID"', limits={"timeout_s": 300})
    tasks = [board.task(agent=agent, title=f"Add file {number}") for number in range(10)]
    for task in tasks:
        board.start(task)
    done = [board.over(task) for task in tasks]
    assert [task["state"] for task in done] == ["in_review"] * 10, [task["needs_attention"] for task in done]
    branches = board.fetched("for-each-ref", "--format=%(refname:strip=3)", "refs/remotes/origin/*").split()
    assert sorted(branches) == sorted(["main", *(f"task-{task}" for task in tasks)])
    pulls = {pull["head"]: pull for pull in board.pulls()}
    assert len(pulls) == 10
    for task in done:
        assert pulls[task["branch"]]["head_commit"] == task["commit"]
        changed = board.fetched("diff", "--name-only", f"origin/main...origin/{task['branch']}")
        assert changed == f"mine-{task['id']}"
    assert board.fetched("rev-list", "--count", "origin/main") == "1"
    assert board.live() == []


def test_submodules_come_along_as_far_as_they_can_be_had(board):
    board.seed("lib")
    app = board.scratch / "app"
    modules = "".join(
        f'[submodule "{name}"]\n\tpath = vendor/{name}\n\turl = {url}\n'
        for name, url in [("lib", "../lib.git"), ("gone", "../gone.git"), ("far", "https://far.invalid/o/r.git")]
    )
    (app / ".gitmodules").write_text(modules)
    tip = board.git("rev-parse", "HEAD", cwd=board.scratch / "lib")
    for name in ("lib", "gone", "far"):
        board.git("update-index", "--add", "--cacheinfo", f"160000,{tip},vendor/{name}", cwd=app)
    board.git("add", ".gitmodules", cwd=app)
    board.git(*IDENTITY, "commit", "--quiet", "--message", "feat: libraries", cwd=app)
    board.git("push", "--quiet", "origin", "HEAD:refs/heads/main", cwd=app)
    script = "cat vendor/lib/README > from-lib; ls -A vendor/gone vendor/far >> from-lib; git -C vendor/lib push origin HEAD:x 2>&1 || :"
    done = board.run(script)
    assert (done["state"], done["needs_attention"]) == ("in_review", None), done
    told = board.fetched("show", f"origin/{done['branch']}:from-lib")
    assert told.split() == ["hello", "vendor/far:", "vendor/gone:"], told
    # What could not be had is on record, and nothing of it in the commit.
    events = board.get("/events", limit=200)["items"]
    results = [event["payload"].get("result") or {} for event in events if event["kind"] == "git.succeeded"]
    [notes] = [result["notes"] for result in results if result.get("path") == "app" and result.get("notes")]
    assert sorted(note.split("`")[1] for note in notes) == ["vendor/far", "vendor/gone"], notes
    changed = board.fetched("diff", "--name-only", "origin/main", f"origin/{done['branch']}")
    assert changed == "from-lib"
    branches = board.get("/repositories/lib/branches")["items"]
    assert [branch["name"] for branch in branches] == ["main"], "a submodule is for reading"
