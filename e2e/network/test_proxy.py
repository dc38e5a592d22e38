"""E2B's `egress_proxy`: what is allowed goes through the owner's proxy, and nothing past it."""

import pathlib
import subprocess
import sys

import pytest

import socks
from coffer_up import eventually
from conftest import curl, reach
from places import OTHER, PRIVATE, SITE

ADDRESS = f"{OTHER}:{socks.PORT}"
LOGIN = {"username": socks.USERNAME, "password": socks.PASSWORD}


@pytest.fixture
def led(world, tmp_path):
    """A proxy in the world; gives what it has said of whom it led where."""
    said = tmp_path / "said"
    command = ["nsenter", f"--net=/proc/{world.process.pid}/ns/net", sys.executable, pathlib.Path(socks.__file__)]
    with said.open("w") as file:
        process = subprocess.Popen([*command, OTHER], stdout=file)
    try:
        eventually(lambda: said.read_text() == "ready\n", "the proxy is there")
        yield lambda: said.read_text().splitlines()[1:]
    finally:
        process.kill()
        process.wait()


def test_what_is_allowed_goes_through_the_proxy(sandboxes, world, led):
    network = {"deny_out": [f"{PRIVATE}/32", "8.8.8.8"], "egress_proxy": {"address": ADDRESS, **LOGIN}}
    sandbox = sandboxes(network=network)
    assert curl(sandbox, "http://www.example.com/").stdout == f"site {SITE} as www.example.com\n"
    assert curl(sandbox, f"https://{SITE}/").code == 0
    assert led() == [f"{SITE} 80", f"{SITE} 443"]
    assert curl(sandbox, "http://8.8.8.8/").code != 0
    assert curl(sandbox, f"http://{PRIVATE}/").code != 0
    assert curl(sandbox, "http://inner.test/").code != 0
    assert led() == [f"{SITE} 80", f"{SITE} 443"], "what is refused never gets as far as the proxy"
    shown = reach(sandbox)["policy"]["proxy"]
    assert shown == {"address": ADDRESS, "username": socks.USERNAME}


@pytest.mark.parametrize(
    "proxy",
    [
        {"address": ADDRESS, "username": socks.USERNAME, "password": "wrong"},
        {"address": f"{OTHER}:9", **LOGIN},
        {"address": f"{PRIVATE}:80", **LOGIN},
        {"address": "inner.test:80", **LOGIN},
        {"address": "127.0.0.1:80", **LOGIN},
    ],
)
def test_a_proxy_that_fails_is_not_gone_around(sandboxes, world, led, proxy):
    sandbox = sandboxes(network={"egress_proxy": proxy})
    before = len([event for event in world.seen("connection") if event["to"] in (SITE, PRIVATE)])
    assert curl(sandbox, f"http://{SITE}/").code != 0
    assert len([event for event in world.seen("connection") if event["to"] in (SITE, PRIVATE)]) == before
    sandbox.update_network({})
    assert curl(sandbox, f"http://{SITE}/").stdout == f"site {SITE} as {SITE}\n"


def test_a_proxy_by_tls_is_refused_rather_than_spoken_to_in_the_clear(sandboxes):
    with pytest.raises(Exception, match=r"(?i)tls"):
        sandboxes(network={"egress_proxy": {"address": ADDRESS, "tls": True, **LOGIN}})
