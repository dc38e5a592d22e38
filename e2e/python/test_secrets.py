"""Secrets by the SDK: managed by id and by name, used in rules, and never given back."""

import asyncio
import os
import uuid

import httpx
import pytest
from e2b import (
    AsyncSecret,
    Sandbox,
    SandboxException,
    Secret,
    SecretException,
    SecretNotFoundException,
)


@pytest.fixture
def name():
    """The name of a secret that ends with the test."""
    name = f"e2e-{uuid.uuid4().hex[:12]}"
    yield name
    Secret.destroy(name)


def test_a_secret_is_created_updated_found_and_destroyed(name):
    made = Secret.create(name.upper(), "first value", metadata={"team": "agents"})
    assert (made.name, made.version, made.metadata) == (name, 1, {"team": "agents"})
    assert made.secret_id.startswith("sec_") and made.created_at == made.updated_at
    assert Secret.get_info(made.secret_id) == Secret.get_info(name) == made
    with pytest.raises(SecretException, match=r"409: a secret named .* exists already"):
        Secret.create(name, "another value")

    updated = Secret.update(name, "second value")
    assert (updated.secret_id, updated.version, updated.metadata) == (made.secret_id, 2, made.metadata)
    noted = Secret.update(made.secret_id, "second value", metadata={})
    assert (noted.version, noted.metadata, noted.created_at) == (3, {}, made.created_at)

    assert Secret.exists(name) and Secret.exists(made.secret_id)
    assert Secret.destroy(made.secret_id) is True
    assert Secret.destroy(made.secret_id) is False and not Secret.exists(name)
    for gone in (made.secret_id, name):
        with pytest.raises(SecretNotFoundException):
            Secret.get_info(gone)
        with pytest.raises(SecretNotFoundException):
            Secret.update(gone, "value")


def test_pages_have_every_secret(name):
    names = [f"{name}-{number}" for number in range(5)]
    try:
        for each in names:
            Secret.create(each, "value")
        pages, found = Secret.list(limit=2), []
        while pages.has_next:
            page = pages.next_items()
            assert len(page) <= 2
            found += [secret.name for secret in page]
        assert [each for each in found if each.startswith(name)] == names
    finally:
        for each in names:
            Secret.destroy(each)


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "", "value": "v"},
        {"name": "no/slash", "value": "v"},
        {"name": "sec_reserved", "value": "v"},
        {"name": "a", "value": ""},
        {"name": "a", "value": "v", "metadata": {"k": "v" * 1025}},
    ],
    ids=str,
)
def test_create_refuses(bad):
    with pytest.raises(SecretException, match=r"^400: "):
        Secret.create(**bad)


def test_the_async_client_does_the_same(name):
    async def work():
        made = await AsyncSecret.create(name, "value")
        assert await AsyncSecret.get_info(name) == made
        return await AsyncSecret.destroy(made.secret_id), await AsyncSecret.exists(name)

    assert asyncio.run(work()) == (True, False)


def test_a_rule_takes_a_secret_and_shows_only_its_name(make, name):
    Secret.create(name, "canary-of-the-rule")
    rule = {"transform": {"headers": {"Authorization": f"Bearer {Secret.fill(name)}"}}}
    sandbox = make(network={"rules": {"api.example.com": [rule]}})
    url, key = os.environ["E2B_API_URL"], {"X-API-Key": os.environ["E2B_API_KEY"]}
    shown = httpx.get(f"{url}/sandboxes/{sandbox.sandbox_id}", headers=key, timeout=60)
    headers = shown.json()["network"]["rules"]["api.example.com"][0]["transform"]["headers"]
    assert headers == {"Authorization": f"Bearer ${{e2b.secrets.{name}}}"}
    assert "canary" not in shown.text
    assert "canary-of-the-rule" not in sandbox.commands.run("env; cat /proc/self/environ").stdout
    with pytest.raises(SandboxException, match="secret 'nothing-of-this-name' not found"):
        rule = {"transform": {"headers": {"X": Secret.fill("nothing-of-this-name")}}}
        Sandbox.create(timeout=60, network={"rules": {"api.example.com": [rule]}}).kill()


def test_workload_identity_is_refused_with_the_reason():
    token = Secret.iam_token(audience="sts.amazonaws.com", token_type="JWT-SVID")
    with pytest.raises(SandboxException, match=r"501: .*iam.*use a secret in network\.rules instead"):
        Sandbox.create(timeout=60, iam={"tokens": {"aws": token}}).kill()
