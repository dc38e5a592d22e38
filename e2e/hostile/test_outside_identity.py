"""Tokens, signatures, ids and routes that are not the attacker's to use, through the real server."""

import base64
import hashlib
import json
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest

from outside import ENVD, PLAIN, Envd, converse, head, statuses

SECRET = f"of the victim {uuid.uuid4().hex}"
PATH = "/home/user/secret"
LIST = "process.Process/List"


@pytest.fixture
def victim(attackers):
    made = attackers("root").sandbox
    made.files.write(PATH, SECRET)
    return made


@pytest.fixture
def other(attackers):
    return attackers("root").sandbox


def sign(token: str, path: str = PATH, operation: str = "read", user: str = "", expiry: str | None = None) -> str:
    text = f"{path}:{operation}:{user}:{token}" + (f":{expiry}" if expiry else "")
    return "v1_" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def signed(signature: str, path: str = PATH, **more: str) -> str:
    return "&".join(
        f"{name}={quote(value, safe='')}" for name, value in {"path": path, "signature": signature, **more}.items()
    )


def bare(query: str, method: str = "GET", **options) -> httpx.Response:
    """A signed URL that names no sandbox."""
    return PLAIN.request(method, f"/files?{query}", **options)


def test_a_token_opens_its_own_sandbox_only(victim, other):
    token, foreign = victim._envd_access_token, other._envd_access_token
    wrong = [
        None,
        "",
        foreign,
        token[:-1],
        token + "0",
        token.upper(),
        f"{token},{token}",
        f"{foreign} {token}",
        "null",
        "*",
    ]
    for given in wrong:
        envd = Envd(victim, given)
        for answer in (
            envd.get(PATH),
            envd.put("/home/user/forged"),
            envd.client.get("/envs"),
            envd.client.get("/metrics"),
            envd.call(LIST),
            envd.call("ListDir", path="/"),
            envd.call("Remove", path=PATH),
        ):
            assert answer.status_code == 401, f"{given!r}: {answer.text}"
            assert SECRET not in answer.text
    # Two of them, the right one second.
    two = head(
        victim,
        "GET",
        f"/files?path={PATH}",
        ENVD,
        f"X-Access-Token: {foreign}",
        f"X-Access-Token: {token}",
        "Connection: close",
    )
    assert statuses(converse(two)) == [401]
    for place in (f"/files?path={PATH}&access_token={token}", f"/files?path={PATH}&X-Access-Token={token}"):
        assert Envd(victim, None).client.get(place).status_code == 401, "a token in a URL opens nothing"
    assert Envd(victim).get(PATH).text == SECRET
    assert not victim.files.exists("/home/user/forged")


def test_a_signature_is_for_one_file_of_one_sandbox(victim, other):
    token = victim._envd_access_token
    good = signed(sign(token))
    assert Envd(victim, None).client.get(f"/files?{good}").text == SECRET
    assert bare(good).text == SECRET, "and finds its sandbox by itself"
    other.files.write(PATH, "of another")
    assert Envd(other, None).client.get(f"/files?{good}").status_code == 401, "another sandbox's file by that name"
    soon = str(int(time.time()) + 600)
    forged = {
        "another file": good.replace("secret", "other"),
        "dots": signed(sign(token), PATH + "/../secret"),
        "another spelling": signed(sign(token), "/home/user//secret"),
        "another user": good + "&username=root",
        "an expiry": good + f"&signature_expiration={soon}",
        "a later expiry": signed(sign(token, expiry=soon), signature_expiration=str(int(soon) + 1)),
        "an expiry in the past": signed(sign(token, expiry="1"), signature_expiration="1"),
        "an expiry that overflows": signed(sign(token, expiry="9" * 40), signature_expiration="9" * 40),
        "an expiry that is none": signed(sign(token, expiry="never"), signature_expiration="never"),
        "by another's token": signed(sign(other._envd_access_token)),
        "by no token": signed(sign("")),
        "none": signed(""),
        "cut short": signed(sign(token)[:-1]),
        "another version": signed(sign(token).replace("v1_", "v2_")),
        "the colon moved": signed(sign(token, path=PATH + ":read", operation="", user="")),
    }
    for what, query in forged.items():
        for answer in (Envd(victim, None).client.get(f"/files?{query}"), bare(query)):
            assert SECRET not in answer.text, what
            own = what == "by another's token" and answer.text == "of another"
            assert answer.status_code == 401 or own, f"{what}: {answer.text}"
    assert Envd(victim, None).put("", b"x", raw=good).status_code == 401, "to read is not to write"
    assert Envd(victim, None).call("Remove", path=PATH).status_code == 401
    # Of two paths both readers take the first.
    twice = Envd(victim, None).client.get(f"/files?{good}&path=/etc/passwd&signature=x")
    assert twice.text == SECRET
    assert Envd(victim, None).client.get(f"/files?path=/etc/passwd&{good}").status_code == 401
    writable = signed(sign(token, "/home/user/new", "write"), "/home/user/new")
    assert Envd(victim, None).put("", b"allowed", raw=writable).status_code == 200
    assert Envd(victim, None).client.get(f"/files?{writable}").status_code == 401, "to write is not to read"


def test_the_servers_own_routes_are_closed_to_clients(victim):
    """/init sets agentd's token: whoever reaches it owns the sandbox."""
    take = '{"accessToken": "stolen", "access_token": "stolen"}'
    own = f"X-Access-Token: {victim._envd_access_token}"
    spelled = [
        "/init",
        "//init",
        "/./init",
        "/x/../init",
        "/%69nit",
        "/INIT",
        "/init/",
        "/init?x",
        "/init;x",
        "/init%20",
        "/%2finit",
        "/..%2finit",
        "/init%00",
        "/init%23",
        "\\init",
        "/%5cinit",
        "/files/../init",
        "/files%2f..%2finit",
        "/init%2f..",
        "/coffer/journal",
        "/coffer/journal?from=0",
        "/coffer/unpack?order=%7B%22kind%22%3A%22layer%22%7D",
        "/%63offer/journal/ack",
        "http://x/init",
        "/freeze",
        "/upgrade",
    ]
    for path in spelled:
        for method in ("POST", "GET", "PUT"):
            request = (
                head(victim, method, path, ENVD, own, f"Content-Length: {len(take)}", "Connection: close")
                + take.encode()
            )
            found = statuses(converse(request))
            assert found and all(status in (400, 404) for status in found), f"{method} {path}: {found}"
    tunnel = head(victim, "CONNECT", "127.0.0.1:22", ENVD, own, host="127.0.0.1:22")
    assert all(status >= 400 for status in statuses(converse(tunnel, 2)))
    named = head(victim, "CONNECT", f"{ENVD}-{victim.sandbox_id}.test", ENVD, own)
    assert all(status >= 400 for status in statuses(converse(named, 2)))
    assert Envd(victim, "stolen").call(LIST).status_code == 401
    assert Envd(victim).get(PATH).text == SECRET


def test_the_port_inside_gives_no_more(attackers, victim):
    """agentd answers callers inside too, on 127.0.0.1, and through the tunnel for ports."""
    thief = attackers("user")
    found = thief.attack(
        """
        import http.client
        def ask(method, path, body=None, **headers):
            wire = http.client.HTTPConnection("127.0.0.1", 49983, timeout=30)
            wire.request(method, path, body, headers)
            answer = wire.getresponse()
            return [answer.status, answer.read(200).decode(errors="replace")]
        take = json.dumps({"access_token": "stolen"})
        report(init=ask("POST", "/init", take), journal=ask("GET", "/coffer/journal"), list=ask("POST", "/process.Process/List", "{}"),
               envs=ask("GET", "/envs"), file=ask("GET", "/files?path=/etc/shadow&username=root"), health=ask("GET", "/health"))
        """
    )
    assert found["init"][0] == found["journal"][0] == 404
    assert found["list"][0] == found["envs"][0] == found["file"][0] == 401
    assert found["health"][0] == 204
    assert thief.sandbox.commands.run("echo mine").stdout == "mine\n"


def test_a_private_port_wants_its_own_token(attackers):
    one, two = (attackers("user", network={"allow_public_traffic": False}) for _ in range(2))
    for each in (one, two):
        each.sandbox.commands.run(
            "cd /home/user && echo private > index.html && exec python3 -m http.server 8000", background=True, timeout=0
        )
    token, foreign = one.sandbox.traffic_access_token, two.sandbox.traffic_access_token
    assert token and foreign and token != foreign

    def visit(*headers: str) -> list[int]:
        answer = converse(head(one.sandbox, "GET", "/", 8000, *headers, "Connection: close"))
        assert (b"private" in answer) == (statuses(answer) == [200])
        return statuses(answer)

    deadline = time.monotonic() + 60
    while visit(f"e2b-traffic-access-token: {token}") != [200]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for given in (
        foreign,
        "",
        token[:-1],
        token + " x",
        token.swapcase(),
        f"{token}, {foreign}",
        one.sandbox._envd_access_token,
    ):
        assert visit(f"e2b-traffic-access-token: {given}") == [403], given
    assert visit() == [403]
    assert visit(f"e2b-traffic-access-token: {foreign}", f"e2b-traffic-access-token: {token}") == [403]
    assert visit(f"x-access-token: {token}") == [403]
    assert visit("Connection: e2b-traffic-access-token") == [403]
    # A page of one sandbox's name cannot reach another by headers.
    crossed = visit(
        f"e2b-traffic-access-token: {foreign}", f"E2b-Sandbox-Id: {two.sandbox.sandbox_id}", "E2b-Sandbox-Port: 8000"
    )
    assert crossed == [403]


def test_odd_spellings_of_an_id_name_nobody_else(victim, other):
    token = victim._envd_access_token
    one = victim.sandbox_id
    swapped = str.maketrans({"0": "o", "1": "l"})
    spellings = [
        one.upper(),
        one.translate(swapped),
        one + "0",
        one[:-1],
        "0" + one,
        one.replace("0", "%30"),
        one + "-" + other.sandbox_id,
        f"{one}_",
        "..",
        "*",
        "%",
        one[::-1],
        other.sandbox_id,
    ]
    for spelled in spellings:
        by_header = Envd(victim)
        by_header.headers["E2b-Sandbox-Id"] = spelled
        answer = PLAIN.get("/files", params={"path": PATH}, headers=by_header.headers)
        assert (answer.status_code == 200) == (answer.text == SECRET), "this sandbox or none"
        if spelled == other.sandbox_id:
            assert answer.status_code == 401
    for host, expected in [
        (f"{ENVD}-{one}.test", 200),
        (f"{ENVD}-{one.upper()}.TEST.", 200),
        (f"{ENVD}-{one}.test:1", 200),
        (f"0{ENVD}-{one}.test", 200),
        (f"{ENVD + 65536}-{one}.test", 400),
        (f"{ENVD}-{other.sandbox_id}.test", 401),
        (f"{ENVD}-{one}", 404),
        (f"x.{ENVD}-{one}.test", 404),
    ]:
        request = head(
            victim, "GET", f"/files?path={PATH}", ENVD, f"X-Access-Token: {token}", "Connection: close", host=host
        )
        assert statuses(converse(request)) == [expected], host
    absolute = head(
        victim, "GET", f"http://{ENVD}-{other.sandbox_id}.test/files?path={PATH}", ENVD, f"X-Access-Token: {token}"
    )
    assert statuses(converse(absolute, 2)) == [400], "two names for two sandboxes"


def test_keys_that_are_none_are_told_nothing(victim):
    key = os.environ["E2B_API_KEY"]
    one = victim.sandbox_id
    for given in (
        "",
        "e2b_" + "0" * 40,
        key[:-1],
        key + "0",
        key.upper(),
        "' or ''='",
        key.replace("_", "\t"),
        victim._envd_access_token,
    ):
        headers = {"X-API-KEY": given}
        for method, path in [
            ("GET", "/sandboxes"),
            ("GET", f"/sandboxes/{one}"),
            ("DELETE", f"/sandboxes/{one}"),
            ("GET", "/teams"),
            ("POST", f"/sandboxes/{one}/pause"),
            ("GET", f"/sandboxes/{one}/logs"),
            ("PUT", f"/sandboxes/{one}/network"),
        ]:
            answer = PLAIN.request(method, path, headers=headers)
            assert answer.status_code == 401, f"{given!r} {method} {path}: {answer.text}"
            assert one not in answer.text and key not in answer.text
    assert victim.is_running()


RAW_SERVER = """
import json, socket, threading
seen, lock = [], threading.Lock()
def serve(wire):
    wire.settimeout(1.5)
    got = b""
    try:
        while piece := wire.recv(65536):
            got += piece
    except OSError:
        pass
    with lock:
        if got.startswith(b"GET /seen"):
            body = json.dumps(seen).encode()
        else:
            seen.append(got.decode("latin-1"))
            body = b"ok"
    wire.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    wire.close()
listener = socket.create_server(("127.0.0.1", 8000), backlog=200)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def test_no_request_is_hidden_in_another(attackers):
    """A server inside that reads bare bytes sees of every request one head and one way to tell its end."""
    sandbox = attackers("user").sandbox
    sandbox.files.write("/tmp/raw.py", RAW_SERVER)
    sandbox.commands.run("exec python3 /tmp/raw.py", background=True, timeout=0)
    hidden = "POST /hidden HTTP/1.1\r\nHost: inside\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    size = len(hidden)
    framings = [
        f"Content-Length: {size}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
        f"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n{size:x}\r\n{hidden}\r\n0\r\n\r\n",
        f"Transfer-Encoding: xchunked\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"Transfer-Encoding: chunked, identity\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"Transfer-Encoding : chunked\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"Transfer-Encoding:\x0bchunked\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"X: y\nTransfer-Encoding: chunked\nContent-Length: {size}\n\n{hidden}",
        f"Content-Length: 0\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"Content-Length: {size}, 0\r\n\r\n{hidden}",
        f"Content-Length: +{size}\r\n\r\n{hidden}",
        f"Connection: content-length\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f'Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n\r\n{size:x};a="b\r\n"\r\n{hidden}\r\n0\r\n\r\n',
        f"Transfer-Encoding: chunked\r\n\r\n{size:x}\n{hidden}\n0\n\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\nHost: x\r\n\r\n",
        f"Expect: 100-continue\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: {size}\r\n\r\n{hidden}",
        f"X-A: %0d%0aX-B: c\r\nContent-Length: 0\r\n\r\n{hidden}",
    ]
    line = f"Host: 8000-{sandbox.sandbox_id}.test\r\n"

    def attack(number: int) -> bytes:
        return converse(f"POST /first{number} HTTP/1.1\r\n{line}{framings[number]}".encode("latin-1"), 4)

    deadline = time.monotonic() + 60
    while statuses(converse(f"GET /seen HTTP/1.1\r\n{line}Connection: close\r\n\r\n".encode(), 10)) != [200]:
        assert time.monotonic() < deadline
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(attack, range(len(framings))))
    for framing, answer in zip(framings, answers, strict=True):
        assert all(status in (100, 200, 400, 404, 501, 502) for status in statuses(answer)), f"{framing!r}: {answer}"
    asked = converse(f"GET /seen HTTP/1.1\r\n{line}Connection: close\r\n\r\n".encode(), 10)
    seen = [text for text in json.loads(asked.split(b"\r\n\r\n", 1)[1]) if "/first" in text]
    assert seen, "well-formed ones arrived"
    assert len({text.split(" ")[1] for text in seen}) == len(seen), "one request each"
    for text in seen:
        first, _, body = text.partition("\r\n\r\n")
        lines = first.lower().split("\r\n")
        framed = [each for each in lines if each.startswith(("content-length:", "transfer-encoding:"))]
        assert len(framed) <= 1, text
        if "/hidden" in body and framed[0].startswith("content-length:"):
            assert int(framed[0].split(":")[1]) == len(body), text
        elif "/hidden" in body:
            length, _, rest = body.partition("\r\n")
            assert rest[int(length, 16) :] in ("\r\n0\r\n\r\n", "\r\n"), "whole, or cut off behind it: " + text
        assert "\n" not in first.replace("\r\n", "") and "\r" not in first.replace("\r\n", ""), text
