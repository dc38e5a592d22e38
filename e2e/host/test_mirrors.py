"""Real package managers in a sandbox of `base`, with the package indexes that this host's own clients use."""

import ipaddress
import shutil

import httpx
import pytest
from e2b import CommandExitException, Sandbox

from client_config import ClientConfig
from coffer_up import CofferUp

PATIENCE_S = 300
STAND_INS = ipaddress.ip_network("198.19.0.0/16")

INSTALL = {
    "pip": "python3 -m pip install --quiet --no-deps --no-cache-dir --target /tmp/pip six"
    " && PYTHONPATH=/tmp/pip python3 -c 'import six; print(six.__file__)'",
    "npm": "mkdir -p /tmp/npm && cd /tmp/npm && npm install --no-audit --no-fund --loglevel=error is-number"
    " && node -p 'require(\"is-number\")(7)'",
    "apt": "apt-get -qq -o Acquire::Languages=none -o APT::Update::Error-Mode=any update"
    " && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends hello && hello",
}
SAID = {"pip": "/tmp/pip/six.py", "npm": "true", "apt": "Hello, world!"}


@pytest.fixture(scope="module")
def config():
    return ClientConfig()


@pytest.fixture(scope="module")
def up(config, tmp_path_factory):
    if all(config.lacks(client) for client in INSTALL):
        pytest.skip(f"SKIPPED: {config.lacks('pip')}")
    scratch = tmp_path_factory.mktemp("mirrors")
    with CofferUp(scratch / "data", "--ephemeral", *config.options(scratch)) as running:
        env = running.env()
        headers = {"X-API-Key": env["E2B_API_KEY"]}
        listed = httpx.get(f"{env['E2B_API_URL']}/api/v1/templates", headers=headers, timeout=PATIENCE_S).text
        if '"base"' not in listed:
            pytest.skip("SKIPPED: the template `base` is not built; `coffer template build base` builds it")
        yield running
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="module")
def sandbox(up):
    made = Sandbox.create(timeout=1200, **up.sdk())
    yield made
    made.kill()


def run(sandbox: Sandbox, command: str) -> tuple[int, str]:
    try:
        done = sandbox.commands.run(command, user="root", timeout=PATIENCE_S)
    except CommandExitException as error:
        return error.exit_code, error.stdout + error.stderr
    return done.exit_code, done.stdout + done.stderr


@pytest.mark.parametrize("client", INSTALL)
def test_a_package_is_installed(config, sandbox, client):
    if why := config.lacks(client):
        pytest.skip(f"SKIPPED: {why}")
    code, said = run(sandbox, INSTALL[client])
    assert code == 0 and SAID[client] in said, said[-3000:]
    for host, _ in config.places(client):
        _, found = run(sandbox, f"getent ahostsv4 {host}")
        assert ipaddress.ip_address(found.split()[0]) in STAND_INS, "it does not learn where the mirror is"


def test_without_internet_there_are_no_mirrors(config, up):
    sandbox = Sandbox.create(timeout=600, allow_internet_access=False, **up.sdk())
    try:
        host, port = config.places("pip")[0]
        code, said = run(sandbox, f"curl -sS -m 20 -o /dev/null https://{host}:{port}/")
        assert code == 6, said
    finally:
        sandbox.kill()


def test_clients_are_told_and_the_creator_wins(server):
    """Variables, files and authorities of mirrors that are not there: nothing is installed."""
    settings = {"pypi": "https://pypi.mirror.test/simple", "npm": "https://npm.mirror.test/r"}
    settings |= {"go": "https://go.mirror.test", "maven": "https://m2.mirror.test/all"}
    settings |= {"crates": "https://crates.mirror.test/index", "apt": "http://10.255.255.1:3142/deb"}
    options = [word for key, value in settings.items() for word in ("--set", f"mirrors.{key}={value}")]
    up = server("told", "--ephemeral", *options).start()
    plain, other = (
        Sandbox.create(timeout=600, envs=envs, **up.sdk()) for envs in ({}, {"PIP_INDEX_URL": "https://other.test/"})
    )
    said = run(plain, "env; cat /.cargo/config.toml /etc/coffer/maven-settings.xml")[1]
    for expected in (
        "PIP_INDEX_URL=https://pypi.mirror.test/simple\n",
        "npm_config_registry=https://npm.mirror.test/r/\n",
        "GOPROXY=https://go.mirror.test\n",
        "MAVEN_ARGS=-gs /etc/coffer/maven-settings.xml\n",
        'registry = "sparse+https://crates.mirror.test/index/"\n',
        "<url>https://m2.mirror.test/all</url>",
    ):
        assert expected in said, said
    assert "PIP_INDEX_URL=https://other.test/\n" in run(other, "env")[1]
    sources = run(plain, "cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null")[1]
    archives = [line for line in sources.splitlines() if line.startswith(("deb ", "URIs:"))]
    assert all("http://apt.mirrors.coffer.internal:3142/deb/" in line for line in archives), sources
    assert "10.255.255.1" not in said + sources, "an address is not told"
    snapshot = plain.create_snapshot()
    again = Sandbox.create(snapshot.snapshot_id, timeout=600, **up.sdk())
    assert "PIP_INDEX_URL=https://pypi.mirror.test/simple\n" in run(again, "env")[1]
    assert 'registry = "sparse+https://crates.mirror.test/index/"' in run(again, "cat /.cargo/config.toml")[1]
