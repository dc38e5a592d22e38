"""The operator's package mirrors: by their names and ports alone, and nothing else at their addresses."""

import ipaddress
import os

import httpx
import pytest
from e2b import Sandbox

from conftest import PATIENCE_S, Attempt, curl, reach
from places import METADATA, MIRROR, MIRROR_NAME, STRAYS

STAND_INS = ipaddress.ip_network("198.19.0.0/16")


def stand_in(sandbox: Sandbox, name: str = MIRROR_NAME) -> str:
    """The address that a sandbox gets for a name."""
    return Attempt(sandbox, f"getent ahostsv4 {name}").stdout.split()[0]


def put_policy(sandbox: Sandbox, policy: dict):
    """Replaces the network policy by our own API."""
    url = f"{os.environ['E2B_API_URL']}/api/v1/sandboxes/{sandbox.sandbox_id}/network"
    headers = {"X-API-Key": os.environ["E2B_API_KEY"]}
    answer = httpx.put(url, json=policy, headers=headers, timeout=PATIENCE_S)
    assert answer.is_success, answer.text


def seen(world) -> list[dict]:
    return [event for event in world.seen("connection") if event["to"] == MIRROR]


@pytest.fixture(scope="module")
def insider(up):
    sandbox = Sandbox.create(timeout=900)
    yield sandbox
    sandbox.kill()


def test_a_mirror_is_reached_by_its_name_and_its_address_is_not_told(insider, world):
    for scheme in ("http", "https"):
        answer = curl(insider, f"{scheme}://{MIRROR_NAME}/")
        assert answer.stdout == f"site {MIRROR} as {MIRROR_NAME}\n", answer
    told = stand_in(insider)
    assert ipaddress.ip_address(told) in STAND_INS
    assert Attempt(insider, f"getent ahostsv6 {MIRROR_NAME} | grep -v ^::ffff:").stdout == ""
    assert {event["port"] for event in seen(world)} == {80, 443}
    addresses = {refusal.get("address") for refusal in reach(insider)["refusals"]}
    assert MIRROR not in addresses


@pytest.mark.parametrize(
    "attempt",
    [
        [f"http://{MIRROR_NAME}:8443/"],
        ["http://{stand_in}:8443/", "-H", f"Host: {MIRROR_NAME}:8443"],
        ["http://198.19.255.255/", "-H", f"Host: {MIRROR_NAME}"],
        [f"http://{MIRROR}/", "-H", f"Host: {MIRROR_NAME}"],
        [f"https://{MIRROR}/"],
        [f"https://{MIRROR_NAME}/", "--resolve", f"{MIRROR_NAME}:443:{MIRROR}"],
        ["http://neighbour.test/"],
        ["https://neighbour.test/"],
        # Another site at the same address, by the mirror's stand-in.
        ["https://neighbour.test/", "--resolve", "neighbour.test:443:{stand_in}"],
        ["http://{stand_in}/", "-H", "Host: neighbour.test"],
        ["http://{stand_in}/"],
        [f"http://{METADATA}/", "-H", f"Host: {MIRROR_NAME}"],
        *([f"http://{name}/"] for name in STRAYS),
    ],
    ids=" ".join,
)
def test_nothing_else_is(insider, world, attempt):
    before = len(seen(world)), len(world.seen("connection"))
    words = [word.replace("{stand_in}", stand_in(insider)) for word in attempt]
    refused = curl(insider, *words)
    assert refused.code not in (0, 2, 3), refused
    assert (len(seen(world)), len(world.seen("connection"))) == before


def test_a_kept_connection_cannot_turn_to_another_site(insider):
    requests = "".join(f"GET / HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n" for name in (MIRROR_NAME, "neighbour.test"))
    script = f'exec 3<>/dev/tcp/{MIRROR_NAME}/80; printf "{requests}" >&3; timeout 20 cat <&3'
    # The refusal resets the connection, which can take the first answer with it.
    for _ in range(5):
        answer = Attempt(insider, f"bash -c '{script}'")
        assert "as neighbour.test" not in answer.stdout, answer
        if answer.stdout:
            break
    assert f"site {MIRROR} as {MIRROR_NAME}" in answer.stdout, answer


def test_policies_apply_by_name(sandboxes, world):
    everything = ["0.0.0.0/0"]
    shut = sandboxes(allow_internet_access=False)
    assert curl(shut, f"http://{MIRROR_NAME}/").code == 6, "no such host"
    refusals = reach(shut)["refusals"]
    assert (MIRROR_NAME, "deny:0.0.0.0/0") in {(refusal.get("name"), refusal["rule"]) for refusal in refusals}
    before = len(seen(world))
    named = sandboxes(network={"allow_out": [MIRROR_NAME], "deny_out": everything})
    assert curl(named, f"https://{MIRROR_NAME}/").code == 0
    assert len(seen(world)) == before + 1
    told = stand_in(named)
    others = sandboxes(network={"allow_out": ["example.com"], "deny_out": everything})
    assert curl(others, f"https://{MIRROR_NAME}/").code == 6
    for policy in ({"base": "none"}, {"base": "public", "deny": [MIRROR_NAME]}):
        put_policy(named, policy)
        # By the address that it knows from before.
        kept = curl(named, f"https://{MIRROR_NAME}/", "--resolve", f"{MIRROR_NAME}:443:{told}")
        assert kept.code not in (0, 2, 3), kept
        assert curl(named, f"https://{MIRROR_NAME}/").code == 6
    assert len(seen(world)) == before + 1
    put_policy(named, {"base": "web"})
    assert curl(named, f"https://{MIRROR_NAME}/").code == 0
