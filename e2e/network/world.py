"""The rest of the world, in a network namespace of its own: sites, a nameserver, and a record of who came.

Started with the path of the record. Says `ready` once a line on its input tells that the link is there.
"""

import http.server
import ipaddress
import json
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.parse

from places import API, API_NAME, GATE, GATE_V6, INNER, MIRROR, NAMES, OTHER, PRIVATE, REBINDING, SITE, SITE_V6

record_lock = threading.Lock()
rebinding_asked = 0


def record(**event):
    with record_lock, open(sys.argv[1], "a") as file:
        file.write(json.dumps(event) + "\n")


def plain(address: str) -> str:
    found = ipaddress.ip_address(address)
    return str(getattr(found, "ipv4_mapped", None) or found)


class Site(http.server.BaseHTTPRequestHandler):
    """Says which site it is; `/go?to=` leads elsewhere, `/slow` never ends, `/bytes?n=` sends so many."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        where, query = urllib.parse.urlsplit(self.path).path, urllib.parse.urlsplit(self.path).query
        query = dict(urllib.parse.parse_qsl(query))
        here = plain(self.connection.getsockname()[0])
        self.close_connection = True
        if where == "/slow":
            self.send_response(200)
            self.end_headers()
            for tick in range(1200):
                self.wfile.write(f"tick {tick}\n".encode())
                self.wfile.flush()
                time.sleep(0.1)
            return
        if where == "/headers" or where.startswith("/repository.git/"):
            record(kind="headers", path=where, name=self.headers.get("Host"), token=self.headers.get("X-Token"))
        body = f"site {here} as {self.headers.get('Host', '')}\n".encode()
        if where == "/repository.git/info/refs":
            body = f"{'0' * 39}1\trefs/heads/main\n".encode()
        if where == "/bytes":
            body = bytes(int(query["n"]))
        self.send_response(302 if where == "/go" else 200)
        if where == "/go":
            self.send_header("Location", query["to"])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        while size > 0 and (piece := self.rfile.read(min(size, 1 << 16))):
            size -= len(piece)
        self.do_GET()


class Sites(http.server.ThreadingHTTPServer):
    """On all addresses of both families; `tls` where there is a certificate."""

    address_family = socket.AF_INET6
    daemon_threads = True
    request_queue_size = 512
    tls: ssl.SSLContext | None = None

    def get_request(self):
        stream, peer = super().get_request()
        record(kind="connection", to=plain(stream.getsockname()[0]), port=stream.getsockname()[1])
        stream.settimeout(120)
        return stream, peer

    def finish_request(self, request, client_address):
        if self.tls:
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, *_):
        pass


def answer(query: bytes) -> bytes:
    global rebinding_asked
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    kind = struct.unpack("!H", query[at + 1 : at + 3])[0]
    question, name = query[12 : at + 5], ".".join(labels).lower()
    record(kind="question", name=name)
    addresses = NAMES.get(name)
    if name == REBINDING:
        rebinding_asked += kind == 1
        addresses = [SITE if rebinding_asked <= 1 else PRIVATE]
    wanted = {1: 4, 28: 6}.get(kind)
    found = [ipaddress.ip_address(each) for each in addresses or []]
    found = [each for each in found if each.version == wanted]
    records = b"".join(
        b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 0 if name == REBINDING else 60, len(each.packed)) + each.packed
        for each in found
    )
    code = 0 if addresses is not None else 3
    return query[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(found), 0, 0) + question + records


class Names(socketserver.BaseRequestHandler):
    def handle(self):
        query, wire = self.request
        wire.sendto(answer(query), self.client_address)


def start(server):
    threading.Thread(target=server.serve_forever, daemon=True).start()


def main():
    run = lambda *command: subprocess.run(command, check=True)
    run("ip", "link", "set", "lo", "up")
    sys.stdin.readline()
    run("ip", "link", "set", "world", "up")
    run("ip", "address", "add", f"{GATE}/24", "dev", "world")
    run("ip", "-6", "address", "add", f"{GATE_V6}/64", "dev", "world", "nodad")
    for address in [SITE, SITE_V6, OTHER, API, MIRROR, *INNER]:
        run("ip", "address", "add", address, "dev", "lo")
    for port in (80, 443, 8443):
        site = Sites(("::", port), Site)
        if port == 443:
            site.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            site.tls.load_cert_chain(sys.argv[2])
            certified = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certified.load_cert_chain(sys.argv[3])
            site.tls.sni_callback = lambda stream, name, _, certified=certified: (
                setattr(stream, "context", certified) if name == API_NAME else None
            )
        start(site)
    start(socketserver.ThreadingUDPServer((GATE, 53), Names))
    print("ready", flush=True)
    sys.stdin.readline()


main()
