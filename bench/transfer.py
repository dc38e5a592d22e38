"""Big files through the API against a plain copy over the loopback, both into the pool."""

import os
import socket
import time

from client import PIECE, Client
from machine import CofferUp
from report import Report, p50

BLOCK = os.urandom(PIECE)
PATH = "/home/user/big"


class PlainCopy:
    """Another process that copies between a loopback connection and a file: read, write, and nothing else."""

    def __init__(self, path: str, size: int):
        self.size = size
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._serve(listener, path)
            finally:
                os._exit(1)
        listener.close()

    def _serve(self, listener, path):
        piece = bytearray(PIECE)
        view = memoryview(piece)
        while True:
            peer, _ = listener.accept()
            with peer:
                if peer.recv(1) == b"w":
                    with open(path, "wb", buffering=0) as file:
                        missing = self.size
                        while missing and (got := peer.recv_into(piece, min(missing, PIECE))):
                            file.write(view[:got])
                            missing -= got
                    peer.sendall(b"." if missing == 0 else b"!")
                else:
                    with open(path, "rb", buffering=0) as file:
                        while got := file.readinto(piece):
                            peer.sendall(view[:got])

    def write(self):
        with socket.create_connection(self.address) as peer:
            peer.sendall(b"w")
            for _ in range(self.size // PIECE):
                peer.sendall(BLOCK)
            if peer.recv(1) != b".":
                raise RuntimeError("the plain copy failed")

    def read(self):
        piece, missing = bytearray(PIECE), self.size
        with socket.create_connection(self.address) as peer:
            peer.sendall(b"r")
            while missing and (got := peer.recv_into(piece, PIECE)):
                missing -= got
        if missing:
            raise RuntimeError("the plain copy was cut short")

    def stop(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def measure(report: Report, up: CofferUp, mib: int, rounds: int):
    size = mib * 2**20
    client = Client(up.env())
    sandbox = client.create()
    path = str(up.pool / "bench-copy")
    plain = PlainCopy(path, size)
    upload, download = f"upload of {mib} MiB", f"download of {mib} MiB"
    subjects = {
        "plain copy in": plain.write,
        upload: lambda: client.upload(sandbox, PATH, (BLOCK for _ in range(size // PIECE)), size),
        "plain copy out": plain.read,
        download: lambda: client.download(sandbox, PATH),
    }
    rates: dict[str, list[float]] = {name: [] for name in subjects}
    try:
        for number in range(rounds + 1):
            for name, subject in subjects.items():
                since = time.perf_counter()
                subject()
                took = time.perf_counter() - since
                if number:  # the first one warms up
                    rates[name].append(mib / took)
            os.unlink(path)
            if client.execute(sandbox, "/bin/rm", PATH).exit_code:
                raise RuntimeError("could not remove what was sent")
            os.sync()  # one round's dirty pages must not slow the next
    finally:
        plain.stop()
        client.destroy(sandbox)
        client.close()
    report.heading("Files")
    report.say("Through the API and a sandbox's disk, against a bare loop of `recv` and `write` on the same pool.")
    report.times("MiB/s", rates)
    report.at_least("upload / plain copy", p50(rates[upload]) / p50(rates["plain copy in"]), 0.5)
    report.at_least("download / plain copy", p50(rates[download]) / p50(rates["plain copy out"]), 0.5)
