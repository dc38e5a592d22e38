"""Templates by our own API: Dockerfiles, contexts, secrets, archives of images, and what is refused."""

import hashlib
import io
import json
import os
import pathlib
import shutil
import tarfile

import httpx
import pytest

from coffer_up import eventually
from registry import layer, libraries

SECRET = "s3cret-of-the-build"
DOCKERFILE = """\
ARG WHO=nobody
FROM template://host
ARG WHO
ENV GREETING="hello there"
WORKDIR /srv/app
COPY --chmod=0755 app/ ./
RUN echo "$GREETING $WHO" > hello
RUN --mount=type=secret,id=token,env=TOKEN echo "it is $TOKEN" && echo -n "$TOKEN" | wc -c > length
RUN test -z "$TOKEN" && test "$WHO" = moon
RUN <<EOF
echo one > lines
echo two >> lines
EOF
EXPOSE 8000
"""


class Api:
    def __init__(self, url: str, key: str):
        self.http = httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-KEY": key}, timeout=120)

    def upload(self, content: bytes) -> str:
        return self.http.post("/template-files", content=content).raise_for_status().json()["hash"]

    def build(self, **body) -> tuple[dict, list[str]]:
        """Requests a build and follows it to its end."""
        asked = self.http.post("/templates", json=body)
        assert asked.status_code == 202, asked.text
        messages, kind = [], None
        with self.http.stream("GET", f"/template-builds/{asked.json()['id']}/stream") as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: ") and kind == "line":
                    messages.append(json.loads(line.removeprefix("data: "))["message"])
                elif line.startswith("data: ") and kind == "end":
                    return json.loads(line.removeprefix("data: ")), messages
        raise AssertionError(f"the stream ended early: {messages}")

    def run(self, template: str, command: str) -> str:
        sandbox = self.http.post("/sandboxes", json={"template": template}).raise_for_status().json()["id"]
        ran = self.http.post(f"/sandboxes/{sandbox}/exec", json={"command": ["/bin/sh", "-c", command]})
        self.http.delete(f"/sandboxes/{sandbox}").raise_for_status()
        return ran.raise_for_status().json()["stdout"]


@pytest.fixture
def up(server):
    return server("template-api", "--ephemeral").start()


@pytest.fixture
def api(up):
    return Api(up.env()["E2B_API_URL"], up.env()["E2B_API_KEY"])


def packed(**files: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def saved(*layers: bytes) -> bytes:
    """As `docker save` writes it."""
    digests = [hashlib.sha256(content).hexdigest() for content in layers]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {"Env": ["FROM_IMAGE=yes", "PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
    }
    names = [f"{digest}/layer.tar" for digest in digests]
    manifest = [{"Config": "config.json", "RepoTags": ["small:1"], "Layers": names}]
    files = dict(zip(names, layers, strict=True))
    files |= {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def small_root() -> bytes:
    """A root with `sh` and without bash, useradd and adduser."""
    programs = {name: shutil.which(name) for name in ["cat", "chown", "ls", "mkdir"]}
    shell = shutil.which("dash")
    if shell is None:
        pytest.skip("SKIPPED: there is no dash to make a small image of")
    needed = set().union(*(libraries(path) for path in [*programs.values(), shell]))
    members = [("etc", None, 0o755), ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)]
    members += [("etc/group", b"root:x:0:\n", 0o644), ("root", None, 0o700), ("gone", b"gone", 0o644)]
    members += [(path.lstrip("/"), pathlib.Path(path).read_bytes(), 0o755) for path in sorted(needed)]
    members += [(f"bin/{name}", pathlib.Path(path).read_bytes(), 0o755) for name, path in programs.items()]
    members.append(("bin/sh", pathlib.Path(shell).read_bytes(), 0o755))
    return layer(*members)


def test_a_dockerfile_with_a_context_and_a_secret(api):
    api.http.put("/secrets/token", json={"value": SECRET}).raise_for_status()
    context = api.upload(packed(app__main_py=b"print('hi')\n", other=b"not copied"))
    request = {"name": "app:v1", "dockerfile": DOCKERFILE, "context": context, "args": {"WHO": "moon"}}
    build, log = api.build(**request, disk_mib=1024)
    assert build["state"] == "ready", build
    assert any("EXPOSE has no effect" in line for line in log), log
    assert "it is [redacted]" in log and not any(SECRET in line for line in log), log
    shown = api.http.get("/templates/app").raise_for_status().json()
    assert (shown["state"], shown["user"], shown["workdir"], shown["disk_mib"]) == ("ready", "user", "/srv/app", 1024)
    output = api.run("app:v1", "cat hello lines length; ls; echo ${WHO:-none} ${TOKEN:-none} $GREETING")
    expected = f"hello there moon one two {len(SECRET)} hello length lines main.py none none hello there"
    assert output.split() == expected.split(), output
    # All of it is cached; a new value of the secret is not.
    _, log = api.build(**request)
    assert sum("CACHED" in line for line in log) == build["step_count"], log
    api.http.put("/secrets/token", json={"value": SECRET + "-2"}).raise_for_status()
    _, log = api.build(**request)
    assert sum("CACHED" in line for line in log) == 6, log
    failed, _ = api.build(name="app:v2", dockerfile="FROM template://app:v1\n\nRUN ls /nowhere")
    assert (failed["state"], failed["failure"]["step"], failed["failure"]["line"]) == ("error", "3", 3)
    assert "exit status 2" in failed["failure"]["message"], failed


def test_an_archive_of_an_image_without_bash(api):
    second = layer((".wh.gone", b"", 0o644), ("new", b"new", 0o644))
    archive = api.upload(saved(small_root(), second))
    build, log = api.build(
        name="small", dockerfile=f"FROM archive://{archive}\nRUN echo $0 $FROM_IMAGE > /shell; ls / > /list"
    )
    assert build["state"] == "ready", (build, log)
    assert any("small:1" in line and archive in line for line in log), log
    output = api.run("small", "cat /shell /list; echo $HOME").split()
    assert output[:2] == ["/bin/sh", "yes"] and "new" in output and "gone" not in output, output
    assert output[-1] == "/home/user", output
    # The same layers are unpacked once, and nothing of the archive stays but the upload.
    _, log = api.build(name="again", **{"from": f"archive://{archive}"})
    assert not any("unpacking" in line for line in log), log


def test_hostile_archives_leave_nothing(api, tmp_path):
    outside = tmp_path / "outside"
    for members in [
        [(f"../../../../../../..{outside}", b"x", 0o644)],
        [("a", b"1", 0o644), ("a", b"2", 0o644)],
        [("link", "/", 0o777), ("link/" + str(outside).lstrip("/"), b"x", 0o644)],
    ]:
        archive = api.upload(saved(layer(*members)))
        build, _ = api.build(**{"from": f"archive://{archive}"})
        assert build["state"] == "error" or not outside.exists(), build
        assert not outside.exists()
    build, _ = api.build(**{"from": f"archive://{api.upload(saved(small_root()))}", "platform": "linux/s390x"})
    assert build["failure"]["step"] == "base" and "linux/s390x" in build["failure"]["message"], build


def test_a_cancelled_build_leaves_no_sandbox(api):
    def sandboxes():
        return api.http.get("/sandboxes").raise_for_status().json()["items"]

    steps = [{"kind": "RUN", "args": ["sleep 300"]}]
    asked = api.http.post("/templates", json={"name": "slow", "from": "template://host", "steps": steps})
    build = f"/template-builds/{asked.raise_for_status().json()['id']}"
    eventually(lambda: "sleep 300" in api.http.get(f"{build}/log").text, "the step begins")
    cancelled = api.http.post(f"{build}/cancel").raise_for_status().json()
    assert (cancelled["state"], cancelled["failure"]["message"]) == ("error", "the build was cancelled")
    assert api.http.post(f"{build}/cancel").status_code == 409
    eventually(lambda: not sandboxes(), "its sandbox ends")
    assert api.http.get("/templates/slow").json()["state"] == "error"


def test_another_project_finds_nothing(up, api):
    context = api.upload(packed(file=b"x"))
    build, _ = api.build(name="mine", **{"from": "template://host"})
    headers = {"X-API-KEY": (up.data_dir / "operator-key").read_text().strip()}
    url = up.env()["E2B_API_URL"]
    project = httpx.post(f"{url}/api/v1/projects", headers=headers, json={"name": "other"}).json()["id"]
    key = httpx.post(f"{url}/api/v1/projects/{project}/keys", headers=headers, json={"name": "k", "role": "write"})
    other = Api(url, key.raise_for_status().json()["key"])
    for path in ["/templates/mine", f"/template-builds/{build['id']}/log", f"/template-files/{context}"]:
        assert other.http.get(path).status_code == 404, path
    refused = other.http.post(
        "/templates", json={"dockerfile": "FROM template://host\nCOPY file /", "context": context}
    )
    assert refused.status_code == 422 and "were not uploaded" in refused.text
    failed, _ = other.build(**{"from": "template://mine"})
    assert failed["failure"]["message"] == "template 'mine' not found"
