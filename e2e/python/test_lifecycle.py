import asyncio
import os
import uuid
from datetime import timedelta

import httpx
import pytest
from e2b import AsyncSandbox, Sandbox, SandboxNotFoundException, SandboxQuery, SandboxState


def listed(tag, **query):
    return Sandbox.list(query=SandboxQuery(metadata=tag, **query)).next_items()


def test_create_is_usable_on_return_and_described(make, tag):
    sandbox = make(metadata=tag, envs={"COLOUR": "blue"}, timeout=300)
    assert sandbox.is_running()
    assert (
        sandbox.commands.run('echo "$COLOUR $E2B_SANDBOX $E2B_SANDBOX_ID"').stdout
        == f"blue true {sandbox.sandbox_id}\n"
    )
    info = sandbox.get_info()
    assert (info.sandbox_id, info.state, info.metadata) == (sandbox.sandbox_id, SandboxState.RUNNING, tag)
    assert info.cpu_count >= 1 and info.memory_mb >= 64 and info.envd_version
    assert timedelta(seconds=290) < info.end_at - info.started_at <= timedelta(seconds=310)
    assert sandbox.sandbox_id.isalnum() and sandbox.sandbox_id.islower()


def test_list_filters_by_awkward_metadata(make, tag):
    awkward = {**tag, "a key": "a=b&c%20d", "ünïcode": "☂ +/?"}
    sandbox = make(metadata=awkward)
    make(metadata={**tag, "a key": "other"})
    found = listed(awkward)
    assert [(entry.sandbox_id, entry.metadata) for entry in found] == [(sandbox.sandbox_id, awkward)]


def test_list_pages_newest_first_over_states(make, tag):
    ids = [make(metadata=tag).sandbox_id for _ in range(3)]
    Sandbox.pause(ids[1])
    for order, expected in ((None, ids[::-1]), ("asc", ids)):
        pages = Sandbox.list(query=SandboxQuery(metadata=tag), limit=2, order=order)
        first, second = pages.next_items(), pages.next_items()
        assert [entry.sandbox_id for entry in first + second] == expected
        assert (len(first), pages.has_next, pages.next_token) == (2, False, None)
    assert [entry.sandbox_id for entry in listed(tag, state=[SandboxState.PAUSED])] == [ids[1]]
    assert {entry.sandbox_id for entry in listed(tag, state=[SandboxState.RUNNING])} == {ids[0], ids[2]}


def test_timeout_ends_the_sandbox(make, eventually, tag):
    sandbox = make(metadata=tag)
    sandbox.set_timeout(1)
    eventually(lambda: not sandbox.is_running())
    eventually(lambda: not listed(tag))
    for call in (sandbox.get_info, lambda: sandbox.set_timeout(10), sandbox.connect):
        with pytest.raises(SandboxNotFoundException):
            call()


def test_set_timeout_moves_the_end_both_ways(make):
    sandbox = make(timeout=300)
    ends = []
    for seconds in (60, 1200):
        sandbox.set_timeout(seconds)
        ends.append(sandbox.get_info().end_at)
    assert ends[1] - ends[0] > timedelta(seconds=1100)


def test_connect_only_extends(make):
    sandbox = make(timeout=300)
    before = sandbox.get_info().end_at
    again = Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert again.get_info().end_at == before
    assert again.commands.run("echo same").stdout == "same\n"
    Sandbox.connect(sandbox.sandbox_id, timeout=900)
    assert sandbox.get_info().end_at > before


def test_kill_twice(make, tag):
    sandbox = make(metadata=tag)
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert not sandbox.is_running()
    assert listed(tag) == []
    assert Sandbox.kill("inonexistent") is False


def test_async_client_creates_many_at_once(tag):
    async def all_at_once():
        sandboxes = await asyncio.gather(*(AsyncSandbox.create(timeout=300, metadata=tag) for _ in range(8)))
        answers = await asyncio.gather(*(sandbox.commands.run("echo $E2B_SANDBOX_ID") for sandbox in sandboxes))
        killed = await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes))
        return sandboxes, answers, killed

    sandboxes, answers, killed = asyncio.run(all_at_once())
    assert [answer.stdout.strip() for answer in answers] == [sandbox.sandbox_id for sandbox in sandboxes]
    assert killed == [True] * 8 and listed(tag) == []


def test_a_repeated_request_makes_one_sandbox(tag):
    """What the second generation of SDKs relies on when it retries a create."""
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"], "Idempotency-Key": uuid.uuid4().hex}
    body = {"templateID": "base", "timeout": 300, "metadata": tag}
    answers = [
        httpx.post(f"{os.environ['E2B_API_URL']}/v2/sandboxes", headers=headers, json=body, timeout=120)
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [201, 201]
    ids = {answer.json()["sandboxID"] for answer in answers}
    try:
        assert len(ids) == 1 and {entry.sandbox_id for entry in listed(tag)} == ids
    finally:
        for sandbox in ids:
            Sandbox.kill(sandbox)
