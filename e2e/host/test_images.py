"""Templates from images of a real registry: Debian's `docker-registry`, with a password, on loopback."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile

import httpx
import pytest
from e2b import Sandbox, Template
from e2b.exceptions import BuildException

from coffer_up import ROOT, eventually, free_port

USER, PASSWORD = "puller", "s3cret-of-the-registry"
PROGRAMS = ["bash", "cat", "chown", "id", "ls", "mkdir", "stat"]


def registry_binary() -> str:
    here = ROOT / "target/test-tools/docker-registry"
    found = str(here) if here.exists() else shutil.which("docker-registry")
    if not found:
        pytest.skip("SKIPPED: docker-registry is not installed (`scripts/setup test` gets it)")
    return found


def htpasswd(path: pathlib.Path):
    """With the system's own bcrypt, where perl's crypt knows it; otherwise by htpasswd."""
    hashed = subprocess.run(
        ["perl", "-e", 'print crypt($ARGV[0], q{$2y$04$} . "abcdefghijklmnopqrstuv")', PASSWORD],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if not hashed.startswith("$2"):
        pytest.skip("SKIPPED: this system's crypt makes no bcrypt hashes")
    path.write_text(f"{USER}:{hashed}\n")


@pytest.fixture
def registry(tmp_path):
    port = free_port()
    htpasswd(tmp_path / "htpasswd")
    config = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
        "auth": {"htpasswd": {"realm": "test", "path": str(tmp_path / "htpasswd")}},
    }
    (tmp_path / "config.yml").write_text(json.dumps(config))
    with (tmp_path / "registry.log").open("wb") as log:
        process = subprocess.Popen([registry_binary(), "serve", tmp_path / "config.yml"], stdout=log, stderr=log)

    def answers():
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/v2/").status_code == 401

    try:
        eventually(answers, "the registry answers")
        yield port
    finally:
        process.terminate()
        process.wait(30)


def libraries(program: str) -> set[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    return {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}


def layer(*members) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content, mode in members:
            entry = tarfile.TarInfo(name)
            entry.mode = mode
            if content is None:
                entry.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            else:
                entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    return packed.getvalue()


def push(port: int, name: str, layers: list[bytes], env: list[str]):
    auth = (USER, PASSWORD)
    base = f"http://127.0.0.1:{port}/v2/{name}"

    def blob(content: bytes) -> dict:
        digest = "sha256:" + hashlib.sha256(content).hexdigest()
        place = httpx.post(f"{base}/blobs/uploads/", auth=auth).raise_for_status().headers["location"]
        httpx.put(
            place,
            params={"digest": digest} | dict(httpx.URL(place).params),
            content=content,
            auth=auth,
            headers={"Content-Type": "application/octet-stream"},
        ).raise_for_status()
        return {"digest": digest, "size": len(content)}

    packed = [gzip.compress(content, 1) for content in layers]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Env": env},
        "rootfs": {
            "type": "layers",
            "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest() for content in layers],
        },
    }
    oci = "application/vnd.oci.image"
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": {"mediaType": f"{oci}.config.v1+json"} | blob(json.dumps(config).encode()),
        "layers": [{"mediaType": f"{oci}.layer.v1.tar+gzip"} | blob(content) for content in packed],
    }
    httpx.put(
        f"{base}/manifests/1", content=json.dumps(manifest), auth=auth, headers={"Content-Type": manifest["mediaType"]}
    ).raise_for_status()


def root_layers() -> list[bytes]:
    """A root with a shell and little else, and a layer that removes, replaces and adds."""
    files = {shutil.which(program) for program in PROGRAMS}
    needed = set().union(*(libraries(path) for path in files))
    members = [("etc", None, 0o755), ("old", None, 0o755), ("old/gone", b"gone", 0o644), ("old/kept", b"kept", 0o644)]
    members += [("etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n", 0o644), ("etc/group", b"root:x:0:\n", 0o644)]
    members += [("root", None, 0o700), ("dir", None, 0o755), ("dir/below", b"below", 0o644)]
    for path in sorted(files | needed):
        members.append((path.lstrip("/"), pathlib.Path(path).read_bytes(), 0o755))
    members.append(("bin/sh", "bash", 0o777))
    if "/bin/bash" not in files:
        members.append(("bin/bash", shutil.which("bash"), 0o777))
    second = [("old/.wh.gone", b"", 0o644), ("dir/.wh..wh..opq", b"", 0o644), ("dir/above", b"above", 0o644)]
    second += [("new", b"new", 0o4755)]
    return [layer(*members), layer(*second)]


def test_a_template_from_an_image_of_a_private_registry(server, registry, tmp_path, monkeypatch):
    host = f"127.0.0.1:{registry}"
    settings = tmp_path / "coffer.toml"
    settings.write_text(f'[registries]\nprivate_hosts = ["{host}"]\nplain_http = ["{host}"]\n')
    up = server("images", "--config", str(settings)).start()
    for name, value in up.env().items():
        monkeypatch.setenv(name, value)
    push(registry, "team/app", root_layers(), ["FROM_IMAGE=yes", "PATH=/usr/bin:/bin"])
    image = f"{host}/team/app:1"

    with pytest.raises(BuildException, match=r"(?i)unauthorized|credentials|denied"):
        Template.build(Template().from_image(image), "unauthorized")
    logs = []
    template = Template().from_image(image, username=USER, password=PASSWORD)
    template = template.run_cmd(
        "ls /old /dir > /made; stat -c %a /new >> /made; echo $FROM_IMAGE >> /made", user="root"
    )
    Template.build(template, "from-image", on_build_logs=lambda entry: logs.append(entry.message))
    assert any("layer 2/2" in line for line in logs), logs
    assert not any(PASSWORD in line for line in logs)
    sandbox = Sandbox.create("from-image", timeout=600)
    try:
        made = sandbox.commands.run("cat /made", user="root").stdout
        assert made.split() == ["/dir:", "above", "/old:", "kept", "4755", "yes"], made
    finally:
        sandbox.kill()
    # What is cached is not downloaded again: the registry may be gone by then, but for the manifest.
    logs.clear()
    Template.build(template, "again", on_build_logs=lambda entry: logs.append(entry.message))
    assert not any("unpacking" in line for line in logs), logs
    # By our own API the password is a secret of the project.
    url = up.env()["E2B_API_URL"]
    with httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-KEY": up.env()["E2B_API_KEY"]}) as api:
        api.put("/secrets/registry", json={"value": PASSWORD}).raise_for_status()
        login = {"username": USER, "secret": "registry"}
        asked = api.post("/templates", json={"name": "own-api", "from": image, "registry": login})
        build = f"/template-builds/{asked.raise_for_status().json()['id']}"
        eventually(lambda: api.get(build).json()["ended_at"], "the build ends")
        assert api.get(build).json()["state"] == "ready", api.get(f"{build}/log").text
        assert PASSWORD not in api.get(f"{build}/log?level=debug").text
    # Another project has to authenticate for itself, and downloads for itself.
    operator = (up.data_dir / "operator-key").read_text().strip()
    headers = {"X-API-KEY": operator}
    made = httpx.post(f"{url}/api/v1/projects", headers=headers, json={"name": "other"})
    project = made.raise_for_status().json()["id"]
    key = httpx.post(f"{url}/api/v1/projects/{project}/keys", headers=headers, json={"name": "k", "role": "write"})
    monkeypatch.setenv("E2B_API_KEY", key.raise_for_status().json()["key"])
    with pytest.raises(BuildException, match=r"(?i)unauthorized|credentials|denied"):
        Template.build(Template().from_image(image), "from-image")
    logs.clear()
    Template.build(template, "from-image", on_build_logs=lambda entry: logs.append(entry.message))
    assert sum("unpacking" in line for line in logs) == 2, logs


def test_an_image_at_a_private_address_is_refused(server, registry, monkeypatch):
    up = server("walls", "--ephemeral").start()
    for name, value in up.env().items():
        monkeypatch.setenv(name, value)
    for image in [f"127.0.0.1:{registry}/team/app:1", "169.254.169.254/team/app:1", "10.0.0.1:5000/x:1"]:
        with pytest.raises(BuildException, match=r"address|plain HTTP|refused"):
            Template.build(Template().from_image(image), "never")


def test_an_operator_maps_names_of_images(server, tmp_path, monkeypatch):
    settings = tmp_path / "coffer.toml"
    settings.write_text('[images]\n"ubuntu:22.04" = "e2bdev/base"\n"python:3" = "host"\n')
    up = server("names", "--ephemeral", "--config", str(settings)).start()
    for name, value in up.env().items():
        monkeypatch.setenv(name, value)
    for image, served in [("ubuntu:22.04", "base"), ("docker.io/library/python:3", "host")]:
        logs = []
        Template.build(Template().from_image(image), "mapped", on_build_logs=lambda entry: logs.append(entry.message))
        assert any(image in line and f"template '{served}'" in line for line in logs), logs
