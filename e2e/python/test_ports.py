import hashlib
import os
import socket
import threading

import httpx
import pytest
from websockets.sync.client import connect

ECHO = """
    def do_GET(self):
        self.answer(f"{self.path} {self.headers['Host']}".encode())

    def do_POST(self):
        import hashlib
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(hashlib.sha256(body).hexdigest().encode() + b" " + body[:4])
"""


@pytest.fixture(scope="module")
def echo(box, serve):
    serve(box, 8000, ECHO)
    return 8000


@pytest.mark.parametrize("by", ["header", "host"])
def test_http(box, echo, visit, by):
    assert visit(box, echo, "/a/b?c=d", by=by).text.startswith("/a/b?c=d ")
    body = os.urandom(8 << 20)
    answer = visit(box, echo, method="POST", by=by, content=body)
    assert answer.content == hashlib.sha256(body).hexdigest().encode() + b" " + body[:4]


def test_get_host_names_port_and_sandbox(box):
    assert box.get_host(8000).startswith(f"8000-{box.sandbox_id}.")


def test_an_answer_streams(box, serve, server_address, here):
    serve(
        box,
        8001,
        f'''
    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.path != "/stream":
            self.wfile.write(b"0\\r\\n\\r\\n")
            return
        self.wfile.write(b"5\\r\\nfirst\\r\\n")
        while not os.path.exists("{here}/go"):
            time.sleep(0.05)
        self.wfile.write(b"4\\r\\nlast\\r\\n0\\r\\n\\r\\n")
''',
    )
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "8001"}
    host, port = server_address
    with httpx.stream("GET", f"http://{host}:{port}/stream", headers=headers, timeout=300) as answer:
        parts = answer.iter_raw()
        assert next(parts) == b"first"  # the end is only made after this has come
        box.files.write(f"{here}/go", "")
        assert b"".join(parts) == b"last"


WEBSOCKET = """
import base64, hashlib, socket, struct, threading
def exactly(link, count):
    data = b""
    while len(data) < count:
        more = link.recv(count - len(data))
        if not more: raise SystemExit
        data += more
    return data
def talk(link):
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += link.recv(4096)
    key = next(l.split(b": ", 1)[1] for l in head.split(b"\\r\\n") if l.lower().startswith(b"sec-websocket-key"))
    accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    link.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                 b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
    while True:
        kind, size = exactly(link, 2)
        size &= 127
        if size == 126: size = struct.unpack(">H", exactly(link, 2))[0]
        mask, data = exactly(link, 4), exactly(link, size)
        data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        length = bytes([size]) if size < 126 else b"\\x7e" + struct.pack(">H", size)
        link.sendall(bytes([kind]) + length + data)
        if kind & 15 == 8: return link.close()
listener = socket.create_server(("0.0.0.0", 8002))
while True: threading.Thread(target=talk, args=(listener.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def websocket(box, eventually):
    box.files.write("/tmp/websocket.py", WEBSOCKET)
    box.commands.run("python3 /tmp/websocket.py", background=True, timeout=0)
    eventually(lambda: box.commands.run("grep -q ':1F42 ' /proc/net/tcp && echo open || true").stdout)
    return 8002


@pytest.mark.parametrize("by", ["header", "host"])
def test_websocket(box, websocket, server_address, by):
    name, headers = f"{server_address[0]}:{server_address[1]}", {}
    if by == "header":
        headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": str(websocket)}
    else:
        name = box.get_host(websocket)
    # The name goes into Host, the connection always to the server.
    link = socket.create_connection(server_address, timeout=60)
    with connect(f"ws://{name}/talk", sock=link, additional_headers=headers, open_timeout=60) as link:
        for message in ("hello", b"\x00\xff" * 400, "x" * 20000):
            link.send(message)
            assert link.recv(timeout=60) == message


def test_closed_port(box, visit):
    answer = visit(box, 3999)
    expected = {
        "sandboxId": box.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 3999,
        "code": 502,
    }
    assert (answer.status_code, answer.json()) == (502, expected)


def test_no_sandbox(make, visit):
    sandbox = make()
    sandbox.kill()
    for by in ("header", "host"):
        answer = visit(sandbox, 8000, by=by)
        assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")


def test_one_header_without_the_other(box, server_address):
    host, port = server_address
    assert httpx.get(f"http://{host}:{port}/", headers={"E2b-Sandbox-Id": box.sandbox_id}).status_code == 400


def test_traffic_token(make, serve, visit):
    sandbox = make(network={"allow_public_traffic": False})
    token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
    serve(sandbox, 8000, ECHO, headers=token)
    for headers, status in (({}, 403), ({"e2b-traffic-access-token": "wrong"}, 403), (token, 200)):
        assert visit(sandbox, 8000, headers=headers).status_code == status
    assert sandbox.commands.run("echo envd needs none").exit_code == 0


def test_masked_host(make, serve, visit):
    sandbox = make(network={"mask_request_host": "inside.example:${PORT}"})
    serve(sandbox, 8000, "    def do_GET(self):\n        self.answer(bytes(self.headers))")
    for by in ("header", "host"):
        # Some programs look for the usual spelling, so header names go in as `Host`, not `host`.
        assert "Host: inside.example:8000\n" in visit(sandbox, 8000, by=by).text


def test_many_visitors_at_once(box, echo, visit):
    answers = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(visit(box, echo, f"/{n}").text.split()[0]))
        for n in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(answers) == sorted(f"/{n}" for n in range(40))


def test_control_routes_stay_inside(box, visit):
    for path in ("/init", "/freeze", "/coffer/anything"):
        assert visit(box, 49983, path, method="POST", json={}).status_code == 404
