"""HTTPS as an operator sets it up, and E2B's SDK by the domain alone."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from coffer_up import binary, eventually, free_port

NAME = "coffer.test"

# What a user writes.
CLIENT = """
import httpx
from e2b import Sandbox
sandbox = Sandbox.create(timeout=120)
try:
    print(sandbox.commands.run("echo by https").stdout.strip())
    sandbox.files.write("note", "kept")
    print(sandbox.files.read("note"))
    sandbox.commands.run("mkdir -p site && echo hello > site/index.html")
    sandbox.commands.run("cd site && python3 -m http.server 8000", background=True)
    url = f"https://{sandbox.get_host(8000)}/"
    for _ in range(300):
        answer = httpx.get(url)
        if answer.status_code == 200:
            break
    print(answer.text.strip())
finally:
    sandbox.kill()
"""


@pytest.fixture
def resolver(tmp_path):
    """Starts programs that see a wildcard record for the domain, from a name server of the test's own."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.77.53", 53))

    def answer():
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                query, peer = server.recvfrom(512)
                end = query.index(b"\0", 12) + 5
                is_ours = query[12 : end - 5].endswith(b"\x06coffer\x04test")
                is_a = query[end - 4 : end - 2] == b"\0\1"
                head = query[:2] + (b"\x81\x80" if is_ours else b"\x81\x83") + b"\0\1"
                head += (b"\0\1" if is_ours and is_a else b"\0\0") + bytes(4)
                record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1" if is_ours and is_a else b""
                server.sendto(head + query[12:end] + record, peer)

    threading.Thread(target=answer, daemon=True).start()
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.77.53\n")
    mount = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    yield ["unshare", "--mount", "sh", "-c", mount, tmp_path / "resolv.conf"]
    server.close()


def openssl(*words, cwd):
    subprocess.run(["openssl", *map(str, words)], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def authority(tmp_path):
    """A certificate authority of the test's own, as a company has one."""
    words = ["-subj", "/CN=Test authority", "-keyout", "ca.key", "-out", "ca.pem", "-days", "90"]
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *words, cwd=tmp_path)

    def issue(days, names=(NAME, f"*.{NAME}")):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "new.key"]
        openssl("req", *key, "-subj", f"/CN={NAME}", "-out", "new.csr", cwd=tmp_path)
        (tmp_path / "names").write_text("subjectAltName=" + ",".join(f"DNS:{name}" for name in names) + "\n")
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", days, "-extfile", "names"]
        openssl("x509", "-req", "-in", "new.csr", *sign, "-out", "new.pem", cwd=tmp_path)
        (tmp_path / "new.key").chmod(0o600)
        os.replace(tmp_path / "new.key", tmp_path / "server.key")
        os.replace(tmp_path / "new.pem", tmp_path / "server.pem")

    issue.directory = tmp_path
    return issue


def served(port, ca) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as stream,
        context.wrap_socket(stream, server_hostname=f"api.{NAME}") as tls,
    ):
        return tls.getpeercert(binary_form=True)


def ask(port, head: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stream:
        stream.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: stream.recv(65536), b"")).decode(errors="replace")


def findings(up, *options) -> dict:
    words = [binary(), "doctor", "--quick", "-o", "json", "--listen", f"127.0.0.1:{up.port}"]
    done = subprocess.run([*words, "--data-dir", up.data_dir, *options], capture_output=True, text=True)
    return {found["check"]: found for found in json.loads(done.stdout)["findings"]}


def test_https_with_a_domain_from_the_first_start_to_a_renewal(server, authority, resolver):
    authority(60)
    scratch = authority.directory
    ca, https, redirect = scratch / "ca.pem", free_port(), free_port()
    pair = {"tls.cert": scratch / "server.pem", "tls.key": scratch / "server.key"}
    settings = {**pair, "tls.listen": f"127.0.0.1:{https}", "tls.redirect": f"127.0.0.1:{redirect}"}
    settings |= {"tls.hsts": "180d", "domain": f"{NAME}:{https}", "network.extra_roots": ca}
    options = [f"--set={key}={value}" for key, value in settings.items()]
    up = server("tls", "--ephemeral", *options).start()
    assert f"Other machines reach it at https://{NAME}:{https}" in up.log.read_text()

    # The SDK knows the domain and a key, and nothing else.
    env = {"PATH": os.environ["PATH"], "E2B_DOMAIN": f"{NAME}:{https}", "E2B_API_KEY": up.env()["E2B_API_KEY"]}
    env["SSL_CERT_FILE"] = str(ca)
    words = [*resolver, sys.executable, "-c", CLIENT]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240)
    assert done.stdout.split("\n")[:3] == ["by https", "kept", "hello"], done.stdout + done.stderr

    moved = ask(redirect, f"GET /ui/tasks?a=b HTTP/1.1\r\nHost: {NAME}")
    assert moved.startswith("HTTP/1.1 308") and f"location: https://{NAME}:{https}/ui/tasks?a=b" in moved.lower()
    assert ask(up.port, "GET /health HTTP/1.1\r\nHost: localhost").startswith("HTTP/1.1 20"), (
        "this machine is not moved"
    )

    found = findings(up, *options)
    checks = ("certificate.time", "certificate.names", "certificate.issuer", "breakers")
    assert {check: found[check]["status"] for check in checks} == dict.fromkeys(checks, "ok"), found

    # A renewal, then one that went wrong.
    before = served(https, ca)
    authority(7)
    eventually(lambda: served(https, ca) != before, "the new certificate", 60)
    renewed = served(https, ca)
    found = findings(up, *options)
    time = found["certificate.time"]
    assert time["status"] == "warn" and time["found"] in ("it ends in 7 days", "it ends in 6 days"), time
    (scratch / "server.key").write_text((scratch / "ca.key").read_text())
    said = "the server keeps the previous one"
    eventually(lambda: said in up.log.read_text(), "the error in the log", 60)
    assert served(https, ca) == renewed
    found = findings(up, *options)["certificate"]
    assert found["status"] == "fail" and "the key belongs to another certificate" in found["found"]


def test_a_certificate_that_cannot_be_used_stops_the_start_and_doctor_says_what_is_missing(server, authority):
    authority(60, names=["other.test"])
    scratch = authority.directory
    pair = [f"--set=tls.cert={scratch / 'server.pem'}", f"--set=tls.key={scratch / 'server.key'}"]
    options = ["--ephemeral", *pair, f"--set=tls.listen=127.0.0.1:{free_port()}", "--domain", NAME]
    up = server("names", *options)
    found = findings(up, *options[1:])
    assert found["certificate.names"]["status"] == "fail"
    assert found["certificate.names"]["found"] == f"not valid for {NAME} and *.{NAME}"
    assert found["certificate.issuer"]["status"] == "warn"
    (scratch / "server.pem").write_text("nothing\n")
    with pytest.raises(RuntimeError, match="could not use the certificate"):
        up.start()
