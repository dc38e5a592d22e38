"""Puts a built `coffer` into a virtual machine, as an operator would: by its package, with templates and CRIU."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import httpx

from coffer_up import binary, eventually
from images import HOME, ROOT, building, make_disk
from machine import Machine

TEMPLATES = pathlib.Path(os.environ.get("COFFER_TEMPLATE_DIR", "/var/cache/coffer/templates"))
CRIU = pathlib.Path("/usr/local/lib/coffer/criu")
PACKAGING = [
    ROOT / "scripts/deb",
    *sorted((ROOT / "packaging").rglob("*.*")),
    *sorted((ROOT / "packaging/debian").iterdir()),
]
# The version of the second package, to which the machine is upgraded.
NEXT = "9.9.9"
E2E = ROOT / "e2e"
PYTHONS = ["3.11", "3.13"]  # of Debian 12 and 13
PAYLOAD_SIZE = "8G"  # sparse
KEPT_PAYLOADS = 3  # besides a new one
READY_S = 600

SETTINGS = """
listen = "0.0.0.0:3000"
data_dir = "/var/lib/coffer"
[node]
pool_size = "6GiB"
[template]
build = false  # the machine reaches no mirror
"""

# The templates are on a separate disk, which the unit does not know about.
DROP_IN = """
[Unit]
RequiresMountsFor=/var/cache/coffer/templates
"""


def payload() -> pathlib.Path:
    """A disk with the files to install. Copying them by ssh would take minutes on emulated processors."""
    home = HOME / f"payload-{_stamp([binary(), *PACKAGING, CRIU / 'command', *builds(), *E2E.rglob('*.py')])}"
    with building():
        if not home.exists():
            # Machines that are up, or about to boot, may use the latest ones.
            for stale in sorted(HOME.glob("payload-*"), key=lambda path: path.stat().st_mtime_ns)[:-KEPT_PAYLOADS]:
                shutil.rmtree(stale)
            _build_payload(home)
    return home / "disk"


def _build_payload(home: pathlib.Path):
    draft = home.with_name("draft-" + home.name)
    shutil.rmtree(draft, ignore_errors=True)
    tree = draft / "tree"
    (tree / "templates").mkdir(parents=True)
    shutil.copy2(package(), tree / "coffer.deb")
    shutil.copy2(package(NEXT), tree / "coffer-next.deb")
    shutil.copytree(E2E, tree / "e2e", ignore=shutil.ignore_patterns("__pycache__", "js", "ui"))
    # Suites write their logs there.
    (tree / "target/e2e").mkdir(parents=True)
    for version in PYTHONS:
        packages(tree / "python", version)
    copies = [(build, tree / "templates" / build.relative_to(TEMPLATES)) for build in builds()]
    copies += [(CRIU, tree / "criu")] if CRIU.exists() else []
    for source, target in copies:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Hard links are instant, but work only within one file system.
        if subprocess.run(["cp", "-al", source, target], stderr=subprocess.DEVNULL).returncode:
            shutil.rmtree(target, ignore_errors=True)
            subprocess.run(["cp", "-a", source, target], check=True)
    make_disk(tree, draft / "disk", "payload", PAYLOAD_SIZE)
    shutil.rmtree(tree)
    draft.rename(home)


def package(*version: str) -> pathlib.Path:
    """The Debian package of the binary; not compressed, as an emulated processor would take long to unpack it."""
    env = {**os.environ, "COFFER_BIN": str(binary()), "DEB_COMPRESSION": "none:0"}
    done = subprocess.run([ROOT / "scripts/deb", *version], env=env, check=True, stdout=subprocess.PIPE, text=True)
    return ROOT / done.stdout.removeprefix("deb: ").partition(",")[0]


def packages(into: pathlib.Path, version: str):
    """What the suites import, for a Python of that version. Kept between payloads: the registry need not answer."""
    kept = HOME / f"python-{version}"
    if not kept.exists():
        wanted = ["e2b", *suites_packages()]
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", f"{kept}.new", "--only-binary=:all:"]
        command += ["--python-version", version, "--implementation", "cp", *wanted]
        shutil.rmtree(f"{kept}.new", ignore_errors=True)
        subprocess.run(command, check=True)
        os.rename(f"{kept}.new", kept)
    shutil.copytree(kept, into / version)


def suites_packages() -> list[str]:
    return ["pytest>=8,<10", "pytest-timeout>=2.3,<3", "pytest-xdist>=3.5,<4", "httpx", "websockets>=13"]


def builds() -> list[pathlib.Path]:
    """The newest finished build of `base`; without one the machine has its own `host`."""
    found = sorted(TEMPLATES.glob("base/*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
    return [manifest.parent for manifest in found[-1:]]


def _stamp(paths: list[pathlib.Path]) -> str:
    facts = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths if path.exists()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def install(machine: Machine):
    """From the payload. The package starts the service by itself."""
    machine.run("systemctl start mnt-payload.mount var-cache-coffer-templates.mount")
    machine.run(
        "mkdir -p /usr/local/lib/coffer && { [ ! -d /mnt/payload/criu ] || cp -a /mnt/payload/criu /usr/local/lib/coffer/; }"
    )
    write(machine, "/etc/systemd/system/coffer.service.d/vm.conf", DROP_IN)
    write(machine, "/etc/coffer/coffer.toml", SETTINGS)
    dpkg(machine, "--install /mnt/payload/coffer.deb")


def dpkg(machine: Machine, words: str) -> str:
    """With the settings that the tests wrote, not the package's."""
    done = machine.run(f"DEBIAN_FRONTEND=noninteractive dpkg --force-confold {words} 2>&1 </dev/null", check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def write(machine: Machine, path: str, text: str):
    machine.run(f"mkdir -p $(dirname {path}) && cat >{path}", input=text)


def start(machine: Machine, verb: str = "start"):
    """Starts the unit and waits until it serves; on failure the error includes the journal."""
    done = machine.run(f"systemctl reset-failed coffer; systemctl {verb} coffer", check=False)
    try:
        if done.returncode:
            raise AssertionError(done.stderr)
        eventually(lambda: serves(machine), "`coffer up` serves", READY_S)
    except AssertionError as error:
        raise RuntimeError(f"{machine.name}: coffer did not start: {error}\n{journal(machine)}") from None


def serves(machine: Machine) -> bool:
    if machine.run("systemctl is-failed --quiet coffer", check=False).returncode == 0:
        raise AssertionError("the unit failed")
    try:
        return httpx.get(machine.api_url + "/health", timeout=30).is_success and bool(key(machine))
    except httpx.TransportError:
        return False


def key(machine: Machine) -> str:
    return machine.run("sed -n 's/^E2B_API_KEY=//p' /var/lib/coffer/env", check=False).stdout.strip()


def journal(machine: Machine, lines: int = 60) -> str:
    return machine.run(f"journalctl --no-pager -b -o cat -u coffer -n {lines}", check=False).stdout


def client_env(machine: Machine) -> dict[str, str]:
    """What E2B's SDKs on this side need."""
    url = machine.api_url
    secret = key(machine)
    return {
        "E2B_API_URL": url,
        "E2B_SANDBOX_URL": url,
        "E2B_VOLUME_API_URL": url,
        "E2B_API_KEY": secret,
        "COFFER_URL": url,
        "COFFER_API_KEY": secret,
    }
