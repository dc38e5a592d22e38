"""Template builds by the SDK: steps, files, cache, tags, start commands, errors. No step needs a network."""

import os
import threading
import time
import uuid

import httpx
import pytest
from e2b import Sandbox, Template, wait_for_port
from e2b.exceptions import BuildException

API = os.environ["E2B_API_URL"]
KEY = {"X-API-KEY": os.environ["E2B_API_KEY"]}


@pytest.fixture
def name():
    """The name of a template that goes with the test."""
    chosen = f"tpl-{uuid.uuid4().hex[:12]}"
    yield chosen
    httpx.delete(f"{API}/templates/{chosen}", headers=KEY, timeout=60)


def build(template, name, **options):
    logs = []
    options.setdefault("on_build_logs", lambda entry: logs.append(entry.message))
    info = Template.build(template, name, **options)
    return info, logs


def exists(name):
    return httpx.get(f"{API}/templates/aliases/{name}", headers=KEY).status_code == 200


def test_steps_make_a_template_that_sandboxes_start_from(name, make):
    template = (
        Template()
        .from_base_image()
        .set_envs({"GREETING": "hello", "PATH": "/opt/tool/bin:$PATH"})
        .run_cmd("mkdir -p /opt/tool/bin && echo made > /opt/tool/made", user="root")
        .set_workdir("/srv/app")
        .run_cmd("echo $GREETING > greeting && pwd > where")
    )
    info, logs = build(template, name, cpu_count=1, memory_mb=512)
    assert info.template_id and uuid.UUID(info.build_id)
    assert any("RUN echo $GREETING" in line for line in logs), logs
    sandbox = make(name)
    assert sandbox.files.read("/srv/app/greeting") == "hello\n"
    assert sandbox.files.read("/srv/app/where") == "/srv/app\n"
    shown = sandbox.commands.run("echo $GREETING; pwd; echo $PATH; nproc; cat /opt/tool/made").stdout.splitlines()
    assert shown[:2] == ["hello", "/srv/app"] and shown[3:] == ["1", "made"], shown
    assert sandbox.get_info().template_id == info.template_id
    assert name not in {box.sandbox_id for box in Sandbox.list().next_items()}


def test_files_are_copied_as_a_dockerfile_copies_them(name, make, tmp_path, monkeypatch):
    (tmp_path / "app/deep").mkdir(parents=True)
    (tmp_path / "app/run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "app/run.sh").chmod(0o755)
    (tmp_path / "app/deep/data.txt").write_text("deep")
    (tmp_path / "app/link").symlink_to("deep/data.txt")
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").write_text("two")
    template = (
        Template(file_context_path=str(tmp_path))
        .from_base_image()
        .set_workdir("/home/user")
        .copy("app", "/srv/app")
        .copy("one.txt", "renamed.txt", mode=0o600)
        .copy("*.txt", "texts")
        .copy("two.txt", "/etc/into/", user="root")
    )
    build(template, name)
    sandbox = make(name)
    run = sandbox.commands.run
    assert run("/srv/app/run.sh").stdout == "ran\n"
    assert run("cat /srv/app/link; readlink /srv/app/link").stdout == "deepdeep/data.txt\n"
    assert run("stat -c '%a %U' renamed.txt /srv/app/run.sh").stdout == "600 user\n755 user\n"
    assert run("cd texts && ls").stdout == "one.txt\ntwo.txt\n"
    assert run("stat -c '%U %n' /etc/into/two.txt").stdout == "root /etc/into/two.txt\n"


def test_unchanged_steps_come_from_the_cache(name):
    mark = uuid.uuid4().hex
    template = Template().from_base_image().run_cmd(f"echo {mark} > /tmp/a; date +%N > /tmp/when")
    _, first = build(template, name)
    _, again = build(template, name)
    assert not any("CACHED" in line for line in first)
    assert any("CACHED RUN" in line for line in again), again
    longer = Template().from_base_image().run_cmd(f"echo {mark} > /tmp/a; date +%N > /tmp/when").run_cmd("true")
    _, more = build(longer, name)
    assert sum("CACHED" in line for line in more) == 1, more
    _, forced = build(template, name, skip_cache=True)
    assert not any("CACHED" in line for line in forced)


def test_a_failed_step_tells_its_command_its_output_and_its_number(name):
    template = Template().from_base_image().run_cmd("true").run_cmd("echo the reason >&2; exit 3")
    with pytest.raises(BuildException) as failed:
        build(template, name)
    text = str(failed.value)
    assert "failed to run command" in text and "exit status 3" in text and "the reason" in text, text
    assert not exists(name)
    with pytest.raises(BuildException, match="invalid username: 'root123'"):
        build(Template().from_base_image().run_cmd("whoami", user="root123"), name)
    with pytest.raises(BuildException, match="template 'no-such-template' not found"):
        build(Template().from_template("no-such-template"), name)
    # A registry inside the operator's network is behind the walls.
    with pytest.raises(BuildException, match=r"registries.private_hosts|plain HTTP"):
        build(Template().from_image("127.0.0.1:1/no-such-image:1"), name)


def test_a_template_is_the_base_of_another(name, make):
    build(Template().from_base_image().run_cmd("echo below > /home/user/below").set_envs({"A": "1"}), name)
    other = f"{name}-2"
    try:
        build(
            Template().from_template(name).run_cmd("cat /home/user/below > /home/user/above; echo $A >> above"), other
        )
        assert make(other).files.read("/home/user/above") == "below\n1\n"
    finally:
        httpx.delete(f"{API}/templates/{other}", headers=KEY, timeout=60)


def test_a_start_command_runs_in_every_sandbox(name, make):
    template = (
        Template()
        .from_base_image()
        .run_cmd("mkdir -p /home/user/www && echo served > /home/user/www/index.html")
        .set_start_cmd("cd /home/user/www && exec python3 -m http.server 8123", wait_for_port(8123))
    )
    build(template, name)
    for _ in range(2):
        sandbox = make(name)
        assert (
            sandbox.commands.run("curl -s --retry 20 --retry-connrefused http://127.0.0.1:8123/").stdout == "served\n"
        )
        assert sandbox.commands.run("pgrep -fc '[h]ttp.server 8123'").stdout == "1\n"


def test_tags_name_builds(name, make):
    first, _ = build(Template().from_base_image().run_cmd("echo 1 > /home/user/version"), f"{name}:v1")
    second, _ = build(Template().from_base_image().run_cmd("echo 2 > /home/user/version"), f"{name}:v2")
    assert first.template_id == second.template_id
    body = {"target": f"{name}:v1", "tags": ["stable", "default"]}
    tagged = httpx.post(f"{API}/templates/tags", headers=KEY, json=body)
    assert tagged.status_code == 201 and tagged.json()["buildID"] == first.build_id, tagged.text
    for tag, version in [("v1", "1"), ("v2", "2"), ("stable", "1"), ("default", "1")]:
        assert make(f"{name}:{tag}").files.read("/home/user/version") == version + "\n"
    gone = httpx.request("DELETE", f"{API}/templates/tags", headers=KEY, json={"name": name, "tags": ["v2"]})
    assert gone.status_code == 204
    listed = httpx.get(f"{API}/templates/{first.template_id}/tags", headers=KEY).json()
    assert {tag["tag"] for tag in listed} == {"v1", "stable", "default"}
    for body, status in [({"name": name, "tags": ["default"]}, 400), ({"name": name, "tags": ["never"]}, 404)]:
        assert httpx.request("DELETE", f"{API}/templates/tags", headers=KEY, json=body).status_code == status


def test_builds_in_the_background_can_be_watched(name, eventually):
    template = Template().from_base_image().skip_cache().run_cmd("for n in 1 2 3; do echo line $n; sleep 0.5; done")
    info = Template.build_in_background(template, name)
    status = Template.get_build_status(info)
    assert status.status.value == "building"
    assert not exists(name)
    eventually(lambda: Template.get_build_status(info).status.value == "ready")
    assert exists(name)


def test_a_deleted_template_is_gone_and_its_sandboxes_run_on(name, make):
    info, _ = build(Template().from_base_image().run_cmd("echo kept > /home/user/kept"), name)
    sandbox = make(name)
    assert httpx.delete(f"{API}/templates/{info.template_id}", headers=KEY).status_code == 204
    assert not exists(name)
    assert httpx.delete(f"{API}/templates/{info.template_id}", headers=KEY).status_code == 404
    assert sandbox.files.read("/home/user/kept") == "kept\n"


def test_a_build_that_is_deleted_ends(name, eventually):
    info = Template.build_in_background(Template().from_base_image().run_cmd(f"sleep 600; : {name}"), name)
    eventually(lambda: Template.get_build_status(info).log_entries)
    assert httpx.delete(f"{API}/templates/{info.template_id}", headers=KEY, timeout=60).status_code == 204
    status = httpx.get(f"{API}/templates/{info.template_id}/builds/{info.build_id}/status", headers=KEY)
    assert status.status_code == 404
    # The sandbox of the build goes with it: it counted in the project's quota.
    executions = httpx.get(f"{API}/api/v1/executions", headers=KEY, params={"limit": 100}).json()["items"]
    sandbox = next(each["sandbox"] for each in executions if each["command"] == f"sleep 600; : {name}")
    shown = eventually(lambda: httpx.get(f"{API}/api/v1/sandboxes/{sandbox}", headers=KEY).json())
    assert shown["state"] == "terminated", shown


def test_names_of_the_server_are_taken_and_links_work_once(name):
    taken = httpx.post(f"{API}/v3/templates", headers=KEY, json={"name": "base"})
    assert taken.status_code == 409, taken.text
    requested = httpx.post(f"{API}/v3/templates", headers=KEY, json={"name": name}).json()
    files = uuid.uuid4().hex * 2
    link = httpx.get(f"{API}/templates/{requested['templateID']}/files/{files}", headers=KEY)
    assert link.status_code == 201 and link.json()["present"] is False
    assert httpx.put(link.json()["url"], content=b"x").status_code == 201
    assert httpx.put(link.json()["url"], content=b"y").status_code == 403
    bad = httpx.get(f"{API}/templates/{requested['templateID']}/files/..%2f..%2fetc", headers=KEY)
    assert bad.status_code in (400, 404)
    start = {"fromImage": "e2bdev/base", "steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": files}]}
    path = f"/v2/templates/{requested['templateID']}/builds/{requested['buildID']}"
    assert httpx.post(API + path, headers=KEY, json=start).status_code == 202
    assert httpx.post(API + path, headers=KEY, json=start).status_code == 409
    deadline = time.monotonic() + 60
    while True:
        status = httpx.get(
            f"{API}/templates/{requested['templateID']}/builds/{requested['buildID']}/status", headers=KEY
        )
        if status.json()["status"] == "error":
            break
        assert time.monotonic() < deadline, status.text
        time.sleep(0.2)
    assert status.json()["reason"]["step"] == "1"


def test_many_builds_at_once(name):
    names = [f"{name}-{number}" for number in range(6)]
    failures = []

    def one(chosen):
        try:
            build(Template().from_base_image().run_cmd(f"echo {chosen} > /home/user/me"), chosen)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(chosen,)) for chosen in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert not failures
        assert all(exists(chosen) for chosen in names)
    finally:
        for chosen in names:
            httpx.delete(f"{API}/templates/{chosen}", headers=KEY, timeout=60)


def test_bad_tags_and_names_are_refused():
    for body in [{"name": "Bad Name"}, {"name": "x", "tags": ["a b"]}, {"name": "x", "cpuCount": 0}]:
        assert httpx.post(f"{API}/v3/templates", headers=KEY, json=body).status_code == 400, body
