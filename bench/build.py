"""Builds of templates: what the cache saves, how fast images are unpacked, and what a large template costs a create."""

import gzip
import hashlib
import io
import json
import os
import random
import shutil
import socket
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from client import Client
from machine import ROOT, CofferUp, wait_until
from report import Report, p50, short, table

STEPS = 50
SMALL_STEPS = 5
AT_ONCE = 10
POLL_S = 0.01
BUILD_S = 900
# A step that does a little of what an install does.
WORK = "mkdir -p /opt/{0} && head -c 8M /dev/urandom | split -a 4 -d -b 32768 - /opt/{0}/x && sha256sum /opt/{0}/* > /opt/{0}.sums"
CREATE = {"base": "create from `base`", "large": "create from the large template"}
OURS, THEIRS = "coffer: build from the image", "skopeo and umoci"


class Builder:
    """Drives builds as an SDK does, and measures them from request to ready."""

    def __init__(self, up: CofferUp):
        self.up = up
        self.client = Client(up.env())

    def close(self):
        self.client.close()

    def build(self, name: str, steps: list[str], **source) -> float:
        """The milliseconds until a template of that name was ready."""
        source = source or {"fromTemplate": "base"}
        since = time.perf_counter()
        asked = self.client.ask("POST", "/v3/templates", {"name": name}, 202)
        path = f"/templates/{asked['templateID']}/builds/{asked['buildID']}"
        orders = [{"type": "RUN", "args": [step, "root"], "force": False} for step in steps]
        self.send("POST", f"/v2{path}", {**source, "steps": orders, "force": False}, 202)

        def ended():
            found = self.send("GET", f"{path}/status?logsOffset=100000", None, 200)
            return found if found["status"] in ("ready", "error") else None

        deadline = time.monotonic() + BUILD_S
        while not (found := ended()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"build of {name}")
            time.sleep(POLL_S)
        took = (time.perf_counter() - since) * 1000
        if found["status"] != "ready":
            raise RuntimeError(f"build of {name}: {found.get('reason')}")
        return took

    def send(self, method: str, path: str, body: dict | None, status: int):
        headers = {"X-API-KEY": self.client.key, "Content-Type": "application/json"}
        self.client._send(method, path, headers, b"" if body is None else json.dumps(body).encode())
        text = self.client._whole_reply(status)
        return json.loads(text) if text else None

    def delete(self, name: str):
        self.send("DELETE", f"/templates/{name}", None, 204)


def cached(report: Report, builder: Builder, rounds: int):
    times: dict[str, list[float]] = {"first build": [], "again, unchanged": []}
    long: dict[str, list[float]] = {"first build": [], "again, last step changed": []}
    for number in range(rounds):
        steps = [WORK.format(f"{number}-{step}") for step in range(SMALL_STEPS)]
        times["first build"].append(builder.build(f"cached-{number}", steps))
        times["again, unchanged"].append(builder.build(f"cached-{number}", steps))
        builder.delete(f"cached-{number}")
        steps = [f"echo {number} {step} > /step-{step}" for step in range(STEPS)]
        long["first build"].append(builder.build(f"long-{number}", steps))
        steps[-1] += "; echo changed >> /step"
        long["again, last step changed"].append(builder.build(f"long-{number}", steps))
        builder.delete(f"long-{number}")
    report.say(f"A template of {SMALL_STEPS} steps, each of which writes 8 MiB in 256 files and hashes them.")
    report.times("ms to ready", times)
    report.say(f"A template of {STEPS} steps, each of which writes one line.")
    report.times("ms to ready", long)
    report.faster("second build, unchanged / first", times["again, unchanged"], times["first build"], 1 / 10)
    report.faster(
        f"{STEPS} steps, last one changed / first", long["again, last step changed"], long["first build"], 1 / 10
    )


def steps_of(number: int, build: object) -> list[str]:
    return [WORK.format(f"c{number}-{build}-{step}") for step in range(SMALL_STEPS)]


def together(report: Report, builder: Builder, rounds: int):
    alone, wall = [], []
    for number in range(rounds):
        alone.append(builder.build(f"alone-{number}", steps_of(number, "alone")))
        builders = [Builder(builder.up) for _ in range(AT_ONCE)]
        since = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            builds = [
                pool.submit(each.build, f"together-{number}-{place}", steps_of(number, place))
                for place, each in enumerate(builders)
            ]
            for build in builds:
                build.result()
        wall.append((time.perf_counter() - since) * 1000)
        builder.delete(f"alone-{number}")
        for place, each in enumerate(builders):
            builder.delete(f"together-{number}-{place}")
            each.close()
    rows = [["builds at once", "all ready, ms", "a build, ms"]]
    rows += [["1", short(p50(alone)), short(p50(alone))]]
    rows += [[str(AT_ONCE), short(p50(wall)), short(p50(wall) / AT_ONCE)]]
    report.say(table(rows))
    one_by_one = [AT_ONCE * each for each in alone]
    report.faster(f"{AT_ONCE} builds at once / one after the other", wall, one_by_one, 1.0)


def large(report: Report, builder: Builder, mib: int, rounds: int):
    """A create from a template with that much in it, in turns with one from `base`."""
    script = f"mkdir /large && cd /large && head -c {mib}M /dev/urandom | split -a 4 -d -b 1M"
    builder.build("large", [script])
    client = builder.client
    times: dict[str, list[float]] = {CREATE["base"]: [], CREATE["large"]: []}
    for number in range(rounds + 5):
        for template, name in CREATE.items():
            since = time.perf_counter()
            sandbox = client.ask("POST", "/v2/sandboxes", {"templateID": template, "timeout": 3600}, 201)
            ran = client.execute(sandbox, "/bin/echo", "hello")
            if number >= 5:  # what is slow only the first time
                times[name].append((ran.first_output - since) * 1000)
            client.destroy(sandbox)
            time.sleep(0.05)
    report.say(f"Until the first output of a command in a new sandbox; the large template has {mib} MiB of its own.")
    report.times("ms to first output", times)
    report.faster("create from a large template / from `base`", times[CREATE["large"]], times[CREATE["base"]], 1.15)
    builder.delete("large")


# Images


def program(name: str) -> str | None:
    places = [ROOT / "target/bench-tools" / name, ROOT / "target/test-tools" / name]
    return next((str(place) for place in places if place.exists()), None) or shutil.which(name)


@contextmanager
def registry(home: Path, port: int):
    home.mkdir()
    config = {
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(home / "registry")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (home / "config.yml").write_text(json.dumps(config))
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([program("docker-registry"), "serve", home / "config.yml"], stdout=log, stderr=log)

    def answers():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, "the registry answers", 60)
        yield
    finally:
        process.terminate()
        process.wait(30)


def blob(layout: Path, content: bytes) -> dict:
    digest = hashlib.sha256(content).hexdigest()
    place = layout / "blobs/sha256" / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def tree(mib: int) -> tuple[bytes, int]:
    """A layer of that size, and how many files it has: mostly small ones, as of programs; gzip saves about half."""
    chance, packed = random.Random(7), io.BytesIO()
    text = " ".join(chance.choices(["return", "const", "await", "export", "value", "index", ";\n"], k=20000)).encode()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        left, number = mib * 2**20, 0
        while left > 0:
            size = min(left, chance.choices([1500, 6000, 20_000, 2_000_000], [40, 30, 20, 1])[0])
            content = chance.randbytes(size) if number % 2 else (text * (size // len(text) + 1))[:size]
            entry = tarfile.TarInfo(f"srv/{number % 97}/file-{number}")
            entry.size, entry.mode = size, 0o644
            archive.addfile(entry, io.BytesIO(content))
            left, number = left - size, number + 1
    return packed.getvalue(), number


def publish(home: Path, port: int, name: str, layers: list[tuple[bytes, str]]):
    """Pushes an image of compressed layers with their digests."""
    layout, oci = home / name, "application/vnd.oci.image"
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest for _, digest in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": {"mediaType": f"{oci}.config.v1+json"} | blob(layout, json.dumps(config).encode()),
        "layers": [{"mediaType": f"{oci}.layer.v1.tar+gzip"} | blob(layout, packed) for packed, _ in layers],
    }
    entry = {"mediaType": manifest["mediaType"]} | blob(layout, json.dumps(manifest).encode())
    entry["annotations"] = {"org.opencontainers.image.ref.name": "1"}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    to = f"docker://127.0.0.1:{port}/{name}:1"
    skopeo("copy", "--quiet", "--dest-tls-verify=false", f"oci:{layout}:1", to)
    shutil.rmtree(layout)


def skopeo(*words: str, within: tuple[str, ...] = ()):
    command = [*within, program("skopeo"), "--insecure-policy", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def peers_unpack(up: CofferUp, port: int, name: str) -> float:
    """Downloads and unpacks it as people do without a daemon, onto the same pool."""
    # The pool is mounted where the host is, and not where we are.
    within = ("nsenter", f"--mount=/proc/{up.process.pid}/ns/mnt")
    place, here = up.data / "node/pool/bench-umoci", up.pool / "bench-umoci"
    here.mkdir()
    source = f"docker://127.0.0.1:{port}/{name}:1"
    since = time.perf_counter()
    skopeo("copy", "--quiet", "--src-tls-verify=false", source, f"oci:{place}/oci:1", within=within)
    words = [*within, program("umoci"), "unpack", "--image", f"{place}/oci:1", f"{place}/bundle"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    took = (time.perf_counter() - since) * 1000
    shutil.rmtree(here)
    return took


def images(report: Report, builder: Builder, home: Path, port: int, mib: int, rounds: int):
    body, files = tree(mib)
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    big = gzip.compress(body, 1), digest
    del body
    times: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for number in range(rounds):
        # Another first layer: what is above it was unpacked on something else, and is not cached.
        mark = io.BytesIO()
        with tarfile.open(fileobj=mark, mode="w") as archive:
            entry = tarfile.TarInfo(f"mark-{number}")
            archive.addfile(entry, io.BytesIO(b""))
        first = gzip.compress(mark.getvalue(), 1), "sha256:" + hashlib.sha256(mark.getvalue()).hexdigest()
        name = f"bench/image-{number}"
        publish(home, port, name, [first, big])
        times[OURS].append(builder.build(f"image-{number}", [], fromImage=f"127.0.0.1:{port}/{name}:1"))
        builder.delete(f"image-{number}")
        times[THEIRS].append(peers_unpack(builder.up, port, name))
        os.sync()
    report.say(
        f"An image of {mib} MiB ({len(big[0]) >> 20} MiB compressed) in {files:,} files, from a registry on the loopback to "
        "files on the same pool. Coffer unpacks in a sandbox, and its result is a snapshot that is on disk; `umoci`'s is "
        "not synced."
    )
    report.times("ms", times, {"coffer / this": lambda _, p: f"{p50(times[OURS]) / p:.2f}"})
    report.faster(f"image of {mib} MiB / skopeo and umoci", times[OURS], times[THEIRS], 1.25)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(report: Report, start, home: Path, quick: bool):
    report.heading("Template builds")
    home = home / "builds"
    home.mkdir()
    port = free_port()
    host = json.dumps(f"127.0.0.1:{port}")
    config = home / "coffer.toml"
    config.write_text(f"[registries]\nprivate_hosts = [{host}]\nplain_http = [{host}]\n")
    options = ["--pool-size", "4GiB" if quick else "10GiB", "--sandbox-disk", "3GiB", "--config", str(config)]
    up = start("builds-data", *options, "--set", "limits.quotas.storage=100GiB")
    builder = Builder(up)
    with ExitStack() as cleanup:
        cleanup.callback(up.stop)
        cleanup.callback(builder.close)
        cached(report, builder, 3 if quick else 5)
        together(report, builder, 1 if quick else 3)
        large(report, builder, 256 if quick else 2048, 30 if quick else 200)
        lacking = [name for name in ("docker-registry", "skopeo", "umoci") if program(name) is None]
        if lacking:
            report.skip("unpacking an image", f"no {', '.join(lacking)}")
            return
        with registry(home / "served", port):
            images(report, builder, home, port, 128 if quick else 1024, 2 if quick else 3)
