"""Snapshots and forks by the SDK, and what only our own API tells of them."""

import os
import time
import uuid

import httpx
import pytest
from e2b import NotFoundException, RateLimitException, Sandbox, SandboxException

from conftest import boot_id

COUNTER = "import time, pathlib\nn = 0\nwhile True:\n    n += 1\n    pathlib.Path('/tmp/count').write_text(str(n))\n    time.sleep(0.02)\n"


@pytest.fixture
def name():
    """The name of a snapshot that goes with the test."""
    chosen = f"snap-{uuid.uuid4().hex[:12]}"
    yield chosen
    Sandbox.delete_snapshot(chosen)


@pytest.fixture
def forks():
    """Forks that end with the test."""
    made = []

    def fork(sandbox, **options):
        options.setdefault("timeout", 600)
        # The quota is the project's, and other tests have forks in it too.
        for _ in range(120):
            try:
                children = sandbox.fork(**options)
                break
            except RateLimitException:
                time.sleep(1)
        else:
            children = sandbox.fork(**options)
        made.extend(child for child in children if isinstance(child, Sandbox))
        return children

    yield fork
    for sandbox in made:
        sandbox.kill()


@pytest.fixture
def own():
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    with httpx.Client(base_url=os.environ["E2B_API_URL"] + "/api/v1", headers=headers, timeout=120) as client:
        yield client


def needs_memory(own):
    """Skips, and says why, where the host cannot save memory."""
    host = own.get("/host").raise_for_status().json()
    if not host["memory_snapshot"]:
        pytest.skip(f"SKIPPED: this host saves no memory: {host['memory_snapshot_lacks']}")


def listed(**query) -> list[str]:
    found, pages = [], Sandbox.list_snapshots(**query)
    while pages.has_next:
        found += [snapshot.snapshot_id for snapshot in pages.next_items()]
    return found


def test_a_snapshot_outlives_its_sandbox_and_children_are_apart(make):
    source = make(envs={"COLOUR": "blue"})
    source.files.write("/home/user/kept", "from the source")
    source.commands.run("mkdir -p deep/er && ln -s ../kept deep/link && chmod 700 deep && sudo touch /opt/installed")
    boot = boot_id(source)
    snapshot = source.create_snapshot()
    try:
        assert snapshot.snapshot_id.endswith(":default") and snapshot.names == []
        assert boot_id(source) == boot and source.is_running()
        source.files.write("/home/user/kept", "changed since")
        source.files.write("/home/user/later", "not there")
        source.kill()
        one, other = make(snapshot.snapshot_id), make(snapshot.snapshot_id)
        for child in (one, other):
            assert child.files.read("/home/user/kept") == "from the source"
            assert not child.files.exists("/home/user/later")
            assert child.commands.run("stat -c %a deep; cat deep/link").stdout == "700\nfrom the source"
            assert child.files.exists("/opt/installed")
            assert child.commands.run("whoami; stat -c %U kept").stdout == "user\nuser\n"
        one.files.write("/home/user/kept", "of one")
        assert other.files.read("/home/user/kept") == "from the source"
        assert one.sandbox_id in listed_sandboxes() and one._envd_access_token != other._envd_access_token
    finally:
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    assert one.files.read("/home/user/kept") == "of one", "what began with it goes on"
    with pytest.raises((NotFoundException, SandboxException)):
        make(snapshot.snapshot_id)


def listed_sandboxes() -> list[str]:
    found, pages = [], Sandbox.list()
    while pages.has_next:
        found += [sandbox.sandbox_id for sandbox in pages.next_items()]
    return found


def test_a_name_moves_to_the_newest(make, name):
    source = make()
    source.files.write("/home/user/version", "1")
    first = source.create_snapshot(name=name)
    assert first.snapshot_id.endswith(f"/{name}:default") and first.names == [first.snapshot_id]
    source.files.write("/home/user/version", "2")
    second = source.create_snapshot(name=name)
    assert second.snapshot_id == first.snapshot_id
    for template in (name, second.snapshot_id):
        assert make(template).files.read("/home/user/version") == "2"
    assert listed(name=name) == [second.snapshot_id]
    assert listed(sandbox_id=source.sandbox_id) == [second.snapshot_id]
    assert second.snapshot_id in listed(limit=1)
    assert Sandbox.delete_snapshot(second.snapshot_id) is True
    assert listed(name=name) == []


def test_a_fork_is_apart_from_its_source_and_siblings(make, forks):
    source = make(envs={"COLOUR": "blue"}, metadata={"who": "source"})
    source.files.write("/home/user/shared", "before")
    before = source.get_info()
    children = forks(source, count=3)
    assert len(children) == 3 and all(isinstance(child, Sandbox) for child in children), children
    assert len({child.sandbox_id for child in children} | {source.sandbox_id}) == 4
    assert len({child._envd_access_token for child in children} | {source._envd_access_token}) == 4
    for number, child in enumerate(children):
        assert child.files.read("/home/user/shared") == "before"
        child.files.write("/home/user/shared", f"child {number}")
        assert child.commands.run("echo $COLOUR").stdout == "blue\n"
        assert child.get_info().metadata == {"who": "source"}
        assert child.commands.run("echo $E2B_SANDBOX_ID").stdout.strip() == child.sandbox_id
    assert source.files.read("/home/user/shared") == "before"
    assert [child.files.read("/home/user/shared") for child in children] == [f"child {n}" for n in range(3)]
    after = source.get_info()
    assert (after.end_at, after.sandbox_id) == (before.end_at, before.sandbox_id), "the source keeps id and expiry"
    machines = {child.commands.run("cat /etc/machine-id; hostname").stdout for child in [source, *children]}
    assert len(machines) == 4, machines
    source.kill()
    assert children[0].files.read("/home/user/shared") == "child 0"


def test_a_pause_puts_memory_on_disk(make, own, eventually):
    needs_memory(own)
    sandbox = make()
    sandbox.files.write("/home/user/count.py", COUNTER)
    counter = sandbox.commands.run("python3 count.py", background=True, timeout=0)
    eventually(lambda: sandbox.files.exists("/tmp/count"))
    boot = boot_id(sandbox)
    for _ in range(3):
        sandbox.pause()
        history = own.get(f"/sandboxes/{sandbox.sandbox_id}/history").raise_for_status().json()["items"]
        assert "its memory is on disk" in history[-1]["reason"], history[-1]
        sandbox.connect(timeout=600)
        assert counter.pid in {process.pid for process in sandbox.commands.list()}
        seen = int(sandbox.files.read("/tmp/count") or 0)
        eventually(lambda: int(sandbox.files.read("/tmp/count") or 0) > seen)
    assert boot_id(sandbox) == boot


def test_a_fork_goes_on_with_the_processes(make, forks, own, eventually):
    needs_memory(own)
    source = make()
    source.files.write("/home/user/count.py", COUNTER)
    counter = source.commands.run("python3 count.py", background=True, timeout=0)
    count = lambda sandbox: int(sandbox.files.read("/tmp/count") or 0)
    eventually(lambda: source.files.exists("/tmp/count") and count(source) > 5)
    children = forks(source, count=2)
    for child in children:
        assert counter.pid in {process.pid for process in child.commands.list()}
        seen = count(child)
        eventually(lambda: count(child) > seen)
        assert boot_id(child) != boot_id(source)
        child.commands.kill(counter.pid)
    alive = count(source)
    eventually(lambda: count(source) > alive)


def test_what_cannot_be_forked_says_what_to_do(make):
    source = make()
    with pytest.raises(RateLimitException):
        source.fork(count=6)
    source.pause()
    with pytest.raises(SandboxException, match="resume it first"):
        source.fork()
    with pytest.raises(SandboxException, match="resume it first"):
        source.create_snapshot()
    source.kill()
    with pytest.raises((NotFoundException, SandboxException)):
        source.fork()


def test_lineage_and_rollback(make, forks, own):
    source = make()
    source.files.write("/home/user/state", "good")
    path = f"/sandboxes/{source.sandbox_id}"
    snapshot = own.post(f"{path}/snapshots", json={"memory": False}).raise_for_status().json()
    [child] = forks(source, count=1)
    tree = own.get(f"/sandboxes/{child.sandbox_id}/lineage").raise_for_status().json()
    assert tree["ancestors"] == [source.sandbox_id]
    assert [(node["id"], node["origin"]) for node in tree["nodes"]] == [
        (source.sandbox_id, "created"),
        (child.sandbox_id, "fork"),
    ]
    source.files.write("/home/user/state", "bad")
    source.files.write("/home/user/more", "bad")
    before, boot = source.get_info(), boot_id(source)
    own.post(f"{path}/rollback", json={"snapshot_id": snapshot["id"]}).raise_for_status()
    assert source.files.read("/home/user/state") == "good" and not source.files.exists("/home/user/more")
    assert boot_id(source) != boot and source.get_info().end_at == before.end_at
    own.delete(f"/snapshots/{snapshot['id']}").raise_for_status()
    assert source.files.read("/home/user/state") == "good", "it does not need the snapshot any more"
    assert own.post(f"{path}/rollback", json={"snapshot_id": snapshot["id"]}).status_code == 404
