"""Bad input raises what the SDK has for it, and leaves nothing behind."""

import os

import httpx
import pytest
from e2b import (
    AuthenticationException,
    FileNotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
)


def listed(tag):
    return Sandbox.list(query=SandboxQuery(metadata=tag)).next_items()


@pytest.mark.parametrize(
    "options, status",
    [
        ({"template": "no-such-template"}, "404"),
        ({"template": "Not A Template!"}, "40"),
        ({"timeout": 10**9}, "400"),
        ({"timeout": -5}, "400"),
        ({"metadata": {"number": 7}}, "400"),
        ({"network": {"deny_out": ["not an address"]}}, "400"),
        ({"network": {"allow_out": ["example.com"]}}, "400"),
    ],
    ids=str,
)
def test_create_refuses(tag, options, status):
    options = {"timeout": 60, **options}
    options["metadata"] = {**tag, **options.get("metadata", {})}
    with pytest.raises(SandboxException) as refused:
        Sandbox.create(**options).kill()
    assert status in str(refused.value)
    assert listed(tag) == []


@pytest.mark.parametrize("key", ["e2b_" + "0" * 40, "e2b_" + "f" * 40])
def test_wrong_key(tag, key):
    for call in (
        lambda: Sandbox.create(api_key=key, metadata=tag),
        lambda: Sandbox.list(api_key=key).next_items(),
        lambda: Sandbox.kill("inonexistent", api_key=key),
    ):
        with pytest.raises(AuthenticationException):
            call()
    assert listed(tag) == []


def test_no_sandbox_of_that_name():
    for call in (
        lambda: Sandbox.connect("inonexistent"),
        lambda: Sandbox.get_info("inonexistent"),
        lambda: Sandbox.set_timeout("inonexistent", 10),
        lambda: Sandbox.pause("inonexistent"),
        lambda: Sandbox.get_metrics("inonexistent"),
    ):
        with pytest.raises(SandboxNotFoundException):
            call()


def test_errors_carry_their_status_in_the_body(server_address):
    """The JavaScript SDK reads `code`, not the status."""
    host, port = server_address
    key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    cases = [
        ("GET", "/sandboxes/inonexistent", key, None, 404),
        ("DELETE", "/sandboxes/inonexistent", key, None, 404),
        ("POST", "/sandboxes", {}, {"templateID": "base"}, 401),
        ("POST", "/v2/sandboxes", key, {"timeout": "soon"}, 400),
        ("POST", "/v2/sandboxes", key, b"{", 400),
        ("GET", "/no/such/route", key, None, 404),
    ]
    for method, path, headers, body, status in cases:
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = httpx.request(method, f"http://{host}:{port}{path}", headers=headers, timeout=60, **content)
        assert (answer.status_code, answer.json()["code"]) == (status, status), (method, path, answer.text)
        assert answer.json()["message"]


def test_missing_file(box):
    for form in ("text", "bytes", "stream"):
        with pytest.raises(FileNotFoundException):
            box.files.read("/no/such/file", format=form)
