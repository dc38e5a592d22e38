"""The package indexes that this host's own clients use, as the clients tell.

Nothing of it is written down: hosts, addresses and certificates are known only while a test runs.
"""

import ast
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import urllib.parse

# What clients use without any configuration.
PYPI = ["https://pypi.org/simple", "https://files.pythonhosted.org/"]
NPM = "https://registry.npmjs.org/"
# Variables that name certificate authorities for clients.
CERTIFICATES = ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"]


def _said(*command: str) -> str:
    if not shutil.which(command[0]):
        return ""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


class ClientConfig:
    """URLs by client, and certificate files."""

    def __init__(self):
        pip = {}
        for line in _said(sys.executable, "-m", "pip", "config", "list").splitlines():
            key, _, value = line.partition("=")
            pip[key.rpartition(".")[2]] = str(ast.literal_eval(value))
        npm = _said("npm", "config", "get", "registry").strip()
        apt = _said("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
        self.own_pypi = pip.get("index-url")
        self.own_npm = npm if npm.startswith("http") and npm.rstrip("/") != NPM.rstrip("/") else None
        self.urls = {
            "pip": [self.own_pypi] if self.own_pypi else PYPI,
            "npm": [self.own_npm or NPM],
            "apt": sorted({url for url in apt if url.startswith(("http://", "https://"))}),
        }
        files = [pip.get("cert"), _said("npm", "config", "get", "cafile").strip()]
        files += [os.environ.get(name) for name in CERTIFICATES]
        self.certificates = [path for path in dict.fromkeys(files) if path and pathlib.Path(path).is_file()]

    def places(self, client: str) -> list[tuple[str, int]]:
        """Hosts and ports of a client's URLs."""
        parts = [urllib.parse.urlsplit(url) for url in self.urls[client]]
        return sorted({(part.hostname, part.port or (443 if part.scheme == "https" else 80)) for part in parts})

    def lacks(self, client: str) -> str | None:
        """Why this host itself cannot install with a client."""
        if not self.urls[client]:
            return f"this host has no source of packages for {client}"
        if any("@" in urllib.parse.urlsplit(url).netloc for url in self.urls[client]):
            return f"this host's {client} needs a password for its index, which mirrors do not take"
        for host, port in self.places(client):
            try:
                socket.create_connection((host, port), timeout=10).close()
            except OSError as error:
                return f"this host does not reach the index of its own {client}: {error}"
        return None

    def options(self, scratch: pathlib.Path) -> list[str]:
        """What `coffer up` is told of all this."""
        hosts = {f"{host}:{port}" for client in self.urls for host, port in self.places(client)}
        settings = {"hosts": ",".join(sorted(hosts)), "pypi": self.own_pypi, "npm": self.own_npm}
        if self.certificates:
            bundle = scratch / "authorities.pem"
            bundle.write_text("\n".join(pathlib.Path(path).read_text() for path in self.certificates))
            settings["ca"] = str(bundle)
        return [word for key, value in settings.items() if value for word in ("--set", f"mirrors.{key}={value}")]
