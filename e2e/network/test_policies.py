"""What E2B's settings open and close, by name and by address, now and while connections are open."""

import pytest

from coffer_up import eventually
from conftest import Attempt, curl, kill_part, part, reach
from places import HOST, OTHER, SITE, SITE_V6

EVERYTHING = ["0.0.0.0/0"]


def said(address: str, name: str) -> str:
    return f"site {address} as {name}\n"


def test_by_default_everything_public_is_open(sandboxes):
    sandbox = sandboxes()
    assert curl(sandbox, "http://www.example.com/").stdout == said(SITE, "www.example.com")
    assert curl(sandbox, "https://www.example.com/").stdout == said(SITE, "www.example.com")
    assert curl(sandbox, f"http://{OTHER}/").stdout == said(OTHER, OTHER)
    assert curl(sandbox, f"http://{OTHER}:8443/").stdout == said(OTHER, f"{OTHER}:8443")
    assert curl(sandbox, "-6", "http://example.com/").stdout == said(SITE_V6, "example.com")
    assert curl(sandbox, f"http://[{SITE_V6}]/").stdout == said(SITE_V6, f"[{SITE_V6}]")
    assert curl(sandbox, "-L", f"http://example.com/go?to=http://{OTHER}/").stdout == said(OTHER, OTHER)
    # What an address that means IPv4 means is dialled.
    assert curl(sandbox, "http://[64:ff9b::5db8:d822]/").stdout.startswith(f"site {SITE} ")


def test_without_internet_nothing_is(sandboxes, world):
    sandbox = sandboxes(allow_internet_access=False)
    before = len(world.seen("connection")), len(world.seen("question"))
    assert curl(sandbox, "http://example.com/").code == 6  # no such host
    assert curl(sandbox, f"http://{SITE}/").code != 0
    assert curl(sandbox, f"https://[{SITE_V6}]/").code != 0
    assert (len(world.seen("connection")), len(world.seen("question"))) == before
    found = reach(sandbox)
    rules = {(refusal["kind"], refusal.get("address"), refusal["rule"]) for refusal in found["refusals"]}
    assert ("connection", SITE, "deny:0.0.0.0/0") in rules, found
    assert ("connection", SITE_V6, "deny:::/0") in rules, found
    names = {refusal.get("name") for refusal in found["refusals"] if refusal["kind"] == "question"}
    assert names == {"example.com"}, found
    assert found["total"] == len(found["refusals"]) and all(refusal["at_ms"] > 0 for refusal in found["refusals"])


def test_names_open_what_they_name(sandboxes, world):
    network = {"allow_out": ["example.com", "*.example.com"], "deny_out": EVERYTHING}
    sandbox = sandboxes(network=network)
    for name in ("example.com", "www.example.com", "deep.down.example.com"):
        assert f"as {name}\n" in curl(sandbox, f"http://{name}/").stdout, name
        assert f"as {name}\n" in curl(sandbox, f"https://{name}/").stdout, name
    asked = len(world.seen("question"))
    assert curl(sandbox, "http://other.test/").code == 6
    assert curl(sandbox, "http://secret.other.test/").code == 6, "a question can carry a secret out"
    assert len(world.seen("question")) == asked
    # Its address is not its name, and a name does not make another address its own.
    assert curl(sandbox, f"http://{SITE}/").code != 0
    assert curl(sandbox, f"https://{OTHER}/").code != 0
    before = [event for event in world.seen("connection") if event["to"] == OTHER]
    spoofed = curl(sandbox, "-H", "Host: example.com", f"http://{OTHER}/")
    assert spoofed.stdout.startswith(("site 93.184.216.34 as", f"site {SITE_V6} as")), spoofed
    spoofed = curl(sandbox, "--resolve", f"example.com:443:{OTHER}", "https://example.com/")
    assert spoofed.stdout.startswith(("site 93.184.216.34 as", f"site {SITE_V6} as")), spoofed
    assert [event for event in world.seen("connection") if event["to"] == OTHER] == before


def test_a_wildcard_is_not_the_name_below_it(sandboxes):
    sandbox = sandboxes(network={"allow_out": ["*.example.com"], "deny_out": EVERYTHING})
    assert curl(sandbox, "http://www.example.com/").stdout == said(SITE, "www.example.com")
    assert curl(sandbox, "http://example.com/").code == 6


def test_addresses_and_blocks_open_and_close(sandboxes):
    listed = sandboxes(network={"allow_out": [f"{SITE}/32"], "deny_out": EVERYTHING})
    assert curl(listed, f"http://{SITE}/").stdout == said(SITE, SITE)
    assert curl(listed, f"http://{OTHER}/").code != 0
    assert curl(listed, f"http://[{SITE_V6}]/").code != 0
    unlisted = sandboxes(network={"deny_out": [f"{SITE}/31"]})
    assert curl(unlisted, f"http://{SITE}/").code != 0
    assert curl(unlisted, f"http://{OTHER}/").code != 0
    assert curl(unlisted, f"http://[{SITE_V6}]/").stdout == said(SITE_V6, f"[{SITE_V6}]")
    exempt = sandboxes(network={"allow_out": [SITE], "deny_out": [f"{SITE}/31"]})
    assert curl(exempt, f"http://{SITE}/").stdout == said(SITE, SITE)


def test_a_change_cuts_what_is_open(sandboxes):
    sandbox = sandboxes()
    downloads = {
        name: sandbox.commands.run(f"curl -sSN http://{address}/slow > {name}", background=True, timeout=0)
        for name, address in (("cut", SITE), ("kept", OTHER))
    }
    ticks = lambda name: Attempt(sandbox, f"wc -l < {name}").stdout.strip()
    for name in downloads:
        eventually(lambda: int(ticks(name) or 0) > 2, f"{name} runs")
    sandbox.update_network({"allow_out": [OTHER], "deny_out": EVERYTHING})
    at_answer = ticks("cut")
    eventually(lambda: Attempt(sandbox, f"pgrep -f {SITE}/slow").code != 0, "the connection is cut")
    assert ticks("cut") == at_answer, "nothing came after the answer"
    kept = ticks("kept")
    eventually(lambda: ticks("kept") != kept, "the other goes on")
    cut = [refusal for refusal in reach(sandbox)["refusals"] if refusal["kind"] == "cut"]
    assert [(refusal["address"], refusal["port"]) for refusal in cut] == [(SITE, 80)]
    assert curl(sandbox, f"http://{SITE}/").code != 0
    sandbox.update_network({})
    assert curl(sandbox, f"http://{SITE}/").stdout == said(SITE, SITE)
    downloads["kept"].kill()


def test_a_policy_outlives_pause_and_resume(sandboxes):
    sandbox = sandboxes(network={"allow_out": [SITE], "deny_out": EVERYTHING})
    assert curl(sandbox, f"http://{SITE}/").stdout == said(SITE, SITE)
    sandbox.pause()
    sandbox.connect()
    assert curl(sandbox, f"http://{SITE}/").stdout == said(SITE, SITE)
    assert curl(sandbox, f"http://{OTHER}/").code != 0


def test_bytes_are_counted(sandboxes):
    sandbox = sandboxes()
    sandbox.files.write("/tmp/sent", "x" * 300_000)
    assert len(curl(sandbox, f"http://{SITE}/bytes?n=1000000").stdout) == 1_000_000
    assert curl(sandbox, "--data-binary", "@/tmp/sent", f"http://{OTHER}/").code == 0

    def counted():
        traffic = reach(sandbox)["traffic"]
        return traffic["received_bytes"] >= 1_000_000 and traffic["sent_bytes"] >= 300_000 and traffic["opened"] >= 2

    eventually(counted, lambda: reach(sandbox)["traffic"])


@pytest.mark.parametrize("name", ["egress", "node", "server"])
def test_a_killed_part_costs_the_network_little(sandboxes, up, name):
    sandbox = sandboxes(network={"allow_out": [SITE], "deny_out": EVERYTHING})
    assert curl(sandbox, f"http://{SITE}/").stdout == said(SITE, SITE)
    download = sandbox.commands.run(f"curl -sSN http://{SITE}/slow > slow", background=True, timeout=0)
    eventually(lambda: Attempt(sandbox, "test -s slow").code == 0, "a connection is open")
    old = kill_part(up, name)
    eventually(lambda: part(up, name) != old if _runs(up, name) else False, f"another {name}")
    eventually(lambda: _quiet(lambda: curl(sandbox, f"http://{SITE}/").stdout) == said(SITE, SITE), "the way is back")
    assert curl(sandbox, f"http://{OTHER}/").code != 0, "the policy is the same"
    alive = Attempt(sandbox, f"pgrep -f {SITE}/slow").code == 0
    assert alive == (name != "egress"), "connections end with egress alone"
    download.kill()


def _runs(up, name) -> bool:
    try:
        return bool(part(up, name))
    except LookupError:
        return False


def _quiet(attempt):
    """While a part is away its callers are told so."""
    try:
        return attempt()
    except Exception as error:
        return error


def test_settings_that_make_no_sense_are_refused(sandboxes, up):
    sandbox = sandboxes(allow_internet_access=False)
    for network in ({"deny_out": ["example.com"]}, {"allow_out": ["example.com"]}, {"allow_out": ["a..b"]}):
        with pytest.raises(Exception, match=r"(?i)allowOut|denyOut|domain|CIDR"):
            sandbox.update_network(network)
    assert curl(sandbox, f"http://{SITE}/").code != 0, "the old policy is still in force"
    assert curl(sandbox, f"http://{HOST}:{up.port}/health").code != 0


def test_a_host_without_ipv6_answers_with_what_it_can_reach(sandboxes, without_ipv6):
    """Whoever gets an address of IPv6 uses it first, and would find nobody."""
    sandbox = sandboxes()
    assert curl(sandbox, "http://example.com/").stdout == said(SITE, "example.com")
    found = Attempt(sandbox, "python3 -c 'import socket; print(socket.getaddrinfo(\"example.com\", 80))'")
    assert SITE in found.stdout and SITE_V6 not in found.stdout, found
