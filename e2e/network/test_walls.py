"""What no setting opens: the host, other sandboxes, and addresses that are not public, however they are spelled."""

import socket
import threading

import pytest
from e2b import Sandbox

from coffer_up import eventually
from conftest import Attempt, curl, reach
from places import GATE, HOST, HOST_V6, INNER, METADATA, OTHER, PRIVATE, REBINDING, SITE

NUMBER = int.from_bytes(socket.inet_aton(PRIVATE), "big")
METADATA_NUMBER = int.from_bytes(socket.inet_aton(METADATA), "big")

SPELLINGS = [
    *(f"[{address}]" if ":" in address else address for address in INNER),
    str(NUMBER),
    hex(NUMBER),
    "0x0a.9.9.9",
    "012.011.011.011",
    "10.592137",
    str(METADATA_NUMBER),
    "0xa9fea9fe",
    f"[::ffff:{PRIVATE}]",
    f"[::ffff:{METADATA}]",
    f"[::{PRIVATE}]",
    "[64:ff9b::a09:909]",
    "[64:ff9b:1::a09:909]",
    "[2002:a09:909::1]",
    "[2001:0:a09:909::1]",
    "[fe80::1]",
    "[ff02::1]",
    "0.0.0.0",
    "[::]",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.8",
    "203.0.113.9",
    "inner.test",
    "metadata.test",
    "mapped.test",
    "nat64.test",
    "loop.test",
    "host.test",
]


@pytest.fixture(scope="module")
def insider(up):
    """One sandbox for all these attempts; its settings ask for more than anyone gets."""
    network = {"allow_out": ["10.0.0.0/8", "169.254.0.0/16", "127.0.0.0/8", "0.0.0.0/0", "::/0"]}
    sandbox = Sandbox.create(timeout=900, network=network)
    assert curl(sandbox, f"http://{SITE}/").code == 0, "what is public it reaches"
    yield sandbox
    sandbox.kill()


def inner(world) -> list[dict]:
    return [event for event in world.seen("connection") if event["to"] in INNER]


@pytest.mark.parametrize("place", SPELLINGS)
def test_inner_addresses_are_out_of_reach(insider, world, place):
    for scheme in ("http", "https"):
        attempt = curl(insider, f"{scheme}://{place}/")
        assert attempt.code not in (0, 2, 3), f"it really tried: {attempt}"
    assert inner(world) == []


def test_refusals_name_the_wall(insider):
    curl(insider, f"http://{PRIVATE}/")
    curl(insider, f"http://{METADATA}/")
    rules = {refusal.get("address"): refusal["rule"] for refusal in reach(insider)["refusals"]}
    assert rules[PRIVATE] == "never:private", rules
    assert rules[METADATA].startswith("never:"), rules


def test_a_name_with_both_kinds_of_addresses_leads_outside(insider, world):
    assert curl(insider, "http://mixed.test/").stdout.startswith(f"site {SITE} ")
    assert inner(world) == []


def test_a_redirect_leads_no_further(insider, world, up):
    for place in (f"http://{PRIVATE}/", f"http://{METADATA}/latest/", f"http://127.0.0.1:{up.port}/health"):
        attempt = curl(insider, "-L", f"http://{SITE}/go?to={place}")
        assert attempt.code in (7, 22, 35, 52, 56), attempt
    assert inner(world) == []


def test_a_name_that_changes_its_mind_leads_no_further(insider, world):
    script = f"for each in 1 2 3 4 5 6; do curl -sS -m 10 http://{REBINDING}/; sleep 0.2; done"
    attempt = Attempt(insider, script)
    asked = [event for event in world.seen("question") if event["name"] == REBINDING]
    assert len(asked) >= 2, "it was asked for again"
    assert attempt.stdout.count(f"site {SITE} ") >= 1, attempt
    assert attempt.stdout.count("site ") < 6 or attempt.stdout.count(f"site {SITE} ") == 6, attempt
    assert inner(world) == []


@pytest.fixture
def host_service():
    """A service of the host's, at all its addresses; says who came."""
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    came = []

    def serve():
        while True:
            try:
                stream, peer = listener.accept()
            except OSError:
                return
            came.append(peer)
            stream.sendall(b"HTTP/1.0 200 OK\r\n\r\nthe host\n")
            stream.close()

    threading.Thread(target=serve, daemon=True).start()
    port = listener.getsockname()[1]
    # Not in vain: the host itself gets there by any of these.
    for own in ("127.0.0.1", "::1", HOST, HOST_V6):
        socket.create_connection((own, port), 5).close()
    eventually(lambda: len(came) == 4, lambda: came)
    came.clear()
    yield port, came
    listener.close()


def test_the_host_is_out_of_reach(insider, host_service, up):
    port, came = host_service
    own = ["127.0.0.1", "127.1", "[::1]", "localhost", "0.0.0.0", HOST, f"[{HOST_V6}]", f"[::ffff:{HOST}]", "host.test"]
    own += [str(int.from_bytes(socket.inet_aton(HOST), "big")), "192.0.2.1", "[2001:db8::1]", "192.0.2.53"]
    for place in own:
        for each in (port, up.port, 22):
            attempt = curl(insider, f"http://{place}:{each}/")
            assert attempt.code not in (0, 2, 3), attempt
            assert "the host" not in attempt.stdout and "E2B" not in attempt.stdout
    assert came == []


def test_neighbours_are_out_of_reach(sandboxes, insider):
    neighbour = sandboxes()
    serve = neighbour.commands.run("exec python3 -m http.server 8000 --bind 0.0.0.0", background=True, timeout=0)
    waited = "for each in $(seq 100); do curl -sf http://192.0.2.1:8000/ && exit; sleep 0.1; done; exit 1"
    assert Attempt(neighbour, waited).code == 0, "its own it reaches, at its own address too"
    addresses = Attempt(neighbour, "hostname -I; hostname -i").stdout.split()
    for place in {"192.0.2.1", "127.0.0.1", "127.0.1.1", "[2001:db8::1]", HOST, *addresses}:
        host = f"[{place}]" if ":" in place and "[" not in place else place
        assert curl(insider, f"http://{host}:8000/").code not in (0, 2, 3), place
    serve.kill()


def test_only_tcp_and_questions_leave(insider, world):
    script = """
import socket
kinds = []
for place in (("93.184.216.34", 9999), ("224.0.0.251", 5353), ("10.9.9.9", 53000), ("255.255.255.255", 67)):
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    wire.settimeout(1)
    try:
        wire.sendto(b"anyone?", place)
        kinds.append(wire.recv(10))
    except OSError as error:
        kinds.append(type(error).__name__)
print(kinds)
"""
    insider.files.write("/tmp/udp.py", script)
    attempt = Attempt(insider, "python3 /tmp/udp.py")
    assert attempt.code == 0 and "b'" not in attempt.stdout, attempt
    assert Attempt(insider, f"ping -c1 -W1 {SITE}", user="root").code != 0


def test_every_nameserver_is_ours(insider, world):
    """A question to any server is answered by egress: of addresses alone, and of no inner ones."""
    script = """
import socket, struct, sys
server, name, kind = sys.argv[1], sys.argv[2], int(sys.argv[3])
question = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\\0" + struct.pack("!HH", kind, 1)
query = b"\\x12\\x34" + struct.pack("!HHHHH", 0x0100, 1, 0, 0, 0) + question
wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
wire.settimeout(20)
wire.connect((server, 53))
wire.send(query)
answer = wire.recv(4096)
print(answer[3] & 15, struct.unpack("!H", answer[6:8])[0], answer[-4:].hex())
"""
    insider.files.write("/tmp/ask.py", script)
    ask = lambda *words: Attempt(insider, "python3 /tmp/ask.py " + " ".join(words)).stdout.split()
    for server in ("8.8.8.8", GATE, PRIVATE, "192.0.2.53"):
        assert ask(server, "www.example.com", "1") == ["0", "1", socket.inet_aton(SITE).hex()], server
    _, count, _ = ask("8.8.8.8", "inner.test", "1")
    assert count == "0", "inner addresses are left out"
    before = len(world.seen("question"))
    for kind in (16, 12, 255, 65):
        assert ask("8.8.8.8", "www.example.com", str(kind))[1] == "0", kind
    assert len(world.seen("question")) == before, "only addresses are asked for"


def test_a_flood_hurts_nobody_else(sandboxes, insider, up):
    """More connections than anyone may have, and none of them says anything."""
    script = f"""
import resource, select, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
wires = []
for _ in range(700):
    wire = socket.socket()
    wire.setblocking(False)
    wire.connect_ex(("{SITE}", 80))
    wires.append(wire)
poll = select.poll()
for wire in wires:
    poll.register(wire, select.POLLIN)
ended = set()
deadline = time.monotonic() + 60
while len(ended) < 400 and time.monotonic() < deadline:
    for number, _ in poll.poll(1000):
        ended.add(number)
        poll.unregister(number)
print("ended", len(ended), flush=True)
time.sleep(600)
"""
    insider.files.write("/tmp/flood.py", script)
    heard = []
    flood = insider.commands.run("exec python3 /tmp/flood.py", background=True, timeout=0)
    try:
        threading.Thread(target=_follow, args=(flood, heard), daemon=True).start()
        eventually(lambda: "ended" in "".join(heard), lambda: heard, 120)
        ended = int("".join(heard).split()[1])
        assert ended >= 400, "those beyond the bound are refused"
        other = sandboxes()
        assert curl(other, f"http://{OTHER}/").code == 0
        assert any(refusal["rule"] == "limit:connections" for refusal in reach(insider)["refusals"])
    finally:
        flood.kill()
    assert curl(insider, f"http://{SITE}/").code == 0, "it has its own way again"


def _follow(command, heard):
    try:
        command.wait(on_stdout=heard.append)
    except Exception as error:
        heard.append(f" {error}")
