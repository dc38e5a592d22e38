"""A SOCKS5 proxy that wants a login; says on its output whom it led where."""

import socket
import socketserver
import sys
import threading

USERNAME, PASSWORD = "someone", "correct horse"
PORT = 1080


def exactly(stream: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        piece = stream.recv(count - len(taken))
        if not piece:
            raise EOFError
        taken += piece
    return taken


def carry(source: socket.socket, sink: socket.socket):
    try:
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Proxy(socketserver.BaseRequestHandler):
    def handle(self):
        stream = self.request
        _version, count = exactly(stream, 2)
        assert 2 in exactly(stream, count), "no login was offered"
        stream.sendall(b"\x05\x02")
        exactly(stream, 1)
        login = [exactly(stream, exactly(stream, 1)[0]).decode() for _ in range(2)]
        if login != [USERNAME, PASSWORD]:
            stream.sendall(b"\x01\x01")
            return print("wrong login", flush=True)
        stream.sendall(b"\x01\x00")
        family = {1: socket.AF_INET, 4: socket.AF_INET6}[exactly(stream, 4)[3]]
        address = socket.inet_ntop(family, exactly(stream, 4 if family == socket.AF_INET else 16))
        port = int.from_bytes(exactly(stream, 2), "big")
        print(f"{address} {port}", flush=True)
        with socket.create_connection((address, port), timeout=60) as far:
            stream.sendall(b"\x05\x00\x00\x01" + bytes(6))
            back = threading.Thread(target=carry, args=(far, stream))
            back.start()
            carry(stream, far)
            back.join()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    with Server((sys.argv[1], PORT), Proxy) as server:
        print("ready", flush=True)
        server.serve_forever()
