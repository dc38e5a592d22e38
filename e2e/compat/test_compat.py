"""The data of each release opens: nothing is missing, paused sandboxes resume, interrupted work is finished.

All tests of a fixture share one server and run in this order. docs/compatibility.md says what a fixture holds.
"""

import base64
import hashlib
import hmac
import http.server
import json
import threading

import pytest

from client import Refused
from coffer_up import eventually
from fill import API_NAME, HOME, LIFE_S, pages
from opened import differences
from world import Box

END_S = 120


def test_a_missing_field_is_noticed():
    """Guards the tests below: a comparison that finds nothing would always pass."""
    then = {"items": [{"id": 1, "name": "a", "used": 1}, {"id": 2, "name": "b"}], "next": None}
    more = {"items": [{"id": 3}, {"id": 2, "name": "b"}, {"id": 1, "name": "a", "used": 2}], "next": None, "new": 1}
    assert list(differences(then, more, "")) == []
    less = {"items": [{"id": 1, "name": "c"}]}
    assert len(list(differences(then, less, ""))) == 3  # another name, no item 2, no `next`


def test_every_answer_has_what_it_had(opened):
    missing = [line for view in opened.manifest["views"] for line in opened.missing(view)]
    assert not missing, "\n".join(missing)


def test_events_and_audit_go_on(opened):
    then, now = opened.manifest["events"], pages(opened.first, "/events")
    assert list(differences(then, now, "events")) == []
    numbers = sorted(event["sequence"] for event in now)
    assert numbers == list(range(1, len(now) + 1)), "no gap and no duplicate"
    assert len(now) > len(then), "the end of the running sandbox is an event"
    audit = pages(opened.first, "/audit")
    assert list(differences(opened.manifest["audit"], audit, "audit")) == []
    opened.first.put("/secrets/later", value="a value of later")
    eventually(lambda: len(pages(opened.first, "/audit")) > len(audit), "a new line in the audit log")


def test_keys_are_what_they_were(opened):
    assert opened.project("revoked").status("/me") == 401
    with pytest.raises(Refused) as refused:
        opened.project("reader").post("/sandboxes", timeout_s=LIFE_S)
    assert refused.value.status == 403
    # Projects stay separate.
    assert opened.second.status(f"/sandboxes/{opened.sandbox('files')}") == 404
    assert opened.first.status(f"/sandboxes/{opened.manifest['of_second']}") == 404
    assert opened.second.status("/repositories/app") == 404


def test_a_sandbox_that_ran_is_over(opened):
    """Its processes ended with the power; only a pause or a snapshot keeps files."""
    shown = opened.first.get(f"/sandboxes/{opened.sandbox('running')}")
    assert shown["state"] not in ("creating", "running", "paused") and shown["ended_at"], shown
    assert shown["reason"], shown


@pytest.mark.parametrize("name", ["files", "source", "fork", "rolled"])
def test_a_paused_sandbox_resumes_with_its_files(opened, name):
    first, sandbox = opened.first, opened.sandbox(name)
    first.post(f"/sandboxes/{sandbox}/resume", timeout_s=LIFE_S)
    assert first.read(sandbox, f"{HOME}/kept") == opened.manifest["files"][name]
    root = "cat /srv/deep/root; stat -c '%U %a' /srv/deep/root"
    whose = "source" if name == "fork" else name
    assert first.run(sandbox, root, user="root") == f"{whose}\nroot 600\n"
    assert first.run(sandbox, "echo $COLOUR") == "red\n"
    first.write(sandbox, f"{HOME}/later", "written later\n")


def test_a_client_of_e2b_goes_on_with_its_token(opened):
    first, box = opened.first, Box(opened.sandbox("sdk"), opened.manifest["token"], 0, 0)
    connected = first.client.api("POST", f"/v2/sandboxes/{box.id}/connect", {"timeout": LIFE_S})
    assert connected["envdAccessToken"] == box.token
    assert first.client.download(box, f"{HOME}/kept") == b"of sdk\n"
    assert first.client.run(box, "echo here").output == "here\n"


def test_memory_goes_on_or_its_files_are_there(opened):
    """A host without CRIU, or with another kernel or processor, may fail to restore; every host can boot the files."""
    first, sandbox = opened.first, opened.sandbox("memory")
    try:
        first.post(f"/sandboxes/{sandbox}/resume", timeout_s=LIFE_S)
        assert goes_on(first, sandbox)
    except Refused as error:
        assert not opened.must_restore(), error
        assert first.get(f"/sandboxes/{sandbox}")["state"] == "paused", "a failed resume leaves it paused"
        first.post(f"/sandboxes/{sandbox}/resume", timeout_s=LIFE_S, memory=False)
    assert first.read(sandbox, f"{HOME}/kept") == "of memory\n"


def goes_on(project, sandbox: str) -> bool:
    """Whether the process runs that was started by the older release."""
    return "sleep" in project.run(sandbox, "cat /proc/[0-9]*/comm").split()


def test_snapshots_make_sandboxes(opened):
    first, snapshots = opened.first, opened.manifest["snapshots"]
    made = first.sandbox(snapshot_id=snapshots["files"])
    assert first.read(made, f"{HOME}/kept") == "of source\n", "as it was when the snapshot was made"
    try:
        live = first.sandbox(snapshot_id=snapshots["live"], memory=True)
        assert goes_on(first, live)
    except Refused as error:
        assert not opened.must_restore(), error
        live = first.sandbox(snapshot_id=snapshots["live"], memory=False)
    assert first.read(live, f"{HOME}/kept") == "of memory\n"
    for sandbox in (made, live):
        first.ask("DELETE", f"/sandboxes/{sandbox}")


def test_secrets_reach_variables_and_the_wire(opened, world):
    first, sandbox, values = opened.first, opened.sandbox("files"), opened.manifest["secrets"]
    assert first.run(sandbox, "echo $TOKEN; echo end of secrets") == f"{values['free']}\nend of secrets\n"
    kept = eventually(lambda: kept_output(first, sandbox, "end of secrets"), "the output on record")
    assert "[redacted]" in kept and values["free"] not in kept
    if world is None:
        pytest.skip("SKIPPED: there is no network namespace for a world outside")
    first.run(sandbox, f"curl -sSf -m 60 https://{API_NAME}/headers")
    assert world.seen("headers")[-1]["token"] == values["bound"]


def kept_output(project, sandbox: str, mark: str) -> str | None:
    """The sandbox's stored output, once it contains the mark."""
    text = json.dumps(pages(project, f"/sandboxes/{sandbox}/logs"))
    return text if mark in text else None


def test_the_repository_can_be_cloned_and_pushed_to(opened):
    told, work = opened.manifest["repository"], opened.first.clone("app", opened.scratch / "app")
    log = work.git("log", "--format=%H", "origin/main").split()
    assert set(told["main"]) <= set(log)
    assert work.git("rev-parse", "origin/open") == told["open"]
    assert work.git("rev-parse", "v1") == told["tag"]["v1"]
    later = work.commit("feat: come later", later="later\n")
    work.git("push", "--quiet", "origin", "HEAD:refs/heads/later")
    branches = {branch["name"]: branch["commit"] for branch in opened.first.get("/repositories/app/branches")["items"]}
    assert branches["later"] == later
    opened.first.post("/repositories/app/pulls/2/merge", method="squash")
    assert opened.first.get("/repositories/app/pulls/2")["state"] == "merged"


def test_artifacts_have_their_content(opened):
    told = opened.manifest["artifact"]
    assert opened.first.download(f"/artifacts/{told['id']}/content") == told["content"]


def test_a_webhook_signs_as_before(opened):
    told, heard = opened.manifest["webhook"], []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}/hook"
        opened.first.ask("PATCH", f"/webhooks/{told['id']}", {"url": url})
        opened.first.post(f"/webhooks/{told['id']}/test")
        eventually(lambda: any(headers["X-Coffer-Event"] == "webhook.ping" for headers, _ in heard), "a ping")
        receiver.shutdown()
    key = base64.b64decode(told["signing_secret"].removeprefix("whsec_"))
    for headers, body in heard:
        signed = headers["X-Coffer-Timestamp"].encode() + b"." + body
        assert headers["X-Coffer-Signature"] == "sha256=" + hmac.new(key, signed, hashlib.sha256).hexdigest()


def test_work_that_was_cut_off_is_finished(opened):
    first, tasks = opened.first, opened.manifest["tasks"]
    eventually(lambda: first.is_over(tasks["cut"]), lambda: first.steps(tasks["cut"]), END_S)
    cut = first.get(f"/tasks/{tasks['cut']}")
    assert cut["needs_attention"]["code"] == "sandbox_lost", cut
    # The queued task starts without help.
    eventually(lambda: first.is_over(tasks["queued"]), lambda: first.steps(tasks["queued"]), END_S)
    assert_proposed(opened, tasks["queued"], attempts=1)
    first.post(f"/tasks/{tasks['cut']}/messages", body=tasks["word"], start=True)
    eventually(lambda: first.get(f"/tasks/{tasks['cut']}")["attempts"] == 2, "another attempt")
    eventually(lambda: first.is_over(tasks["cut"]), lambda: first.steps(tasks["cut"]), END_S)
    assert_proposed(opened, tasks["cut"], attempts=2)
    planned = tasks["planned"]
    first.post(f"/tasks/{planned}/start")
    eventually(lambda: first.is_over(planned), lambda: first.steps(planned), END_S)
    assert_proposed(opened, planned, attempts=1)


def assert_proposed(opened, task: str, attempts: int):
    """The task has a pull request with its work."""
    shown, branch = opened.first.get(f"/tasks/{task}"), f"task-{task}"
    assert shown["state"] == "in_review" and shown["attempts"] == attempts, shown
    pulls = [pull for pull in opened.first.get("/repositories/app/pulls")["items"] if pull["head"] == branch]
    assert [pull["head_commit"] for pull in pulls] == [shown["commit"]], pulls
    work = opened.first.clone("app", opened.scratch / task)
    assert work.git("show", f"origin/{branch}:mine") == task
