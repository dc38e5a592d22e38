"""The Debian package: what an upgrade keeps, what a removal ends, and what a purge leaves. These run last, in this order."""

import httpx
import pytest
from e2b import Sandbox

from coffer_up import eventually
from install import NEXT, SETTINGS, dpkg, key, serves, start, write
from test_unit import PATIENCE_S, count, goes_on, start_counting

# All that the program leaves on a machine while it runs.
HELD = "find /sys/fs/cgroup -maxdepth 3 -type d -name 'coffer-*'; grep -F /var/lib/coffer /proc/mounts; losetup -n -O BACK-FILE; ls /run/coffer 2>/dev/null"


@pytest.fixture
def sandbox():
    return Sandbox.create(timeout=3600, request_timeout=PATIENCE_S)


def held(machine) -> list[str]:
    return machine.run(HELD, check=False).stdout.split()


def test_it_installed_all_that_a_service_needs(machine):
    assert machine.run("systemctl is-enabled coffer").stdout.strip() == "enabled"
    owner = "ps -o user= -p $(systemctl show coffer -p MainPID --value); ps -eo user:20,args | grep 'coffer [s]erver'"
    users = [line.split()[0] for line in machine.run(owner).stdout.splitlines()]
    assert users == ["root", "coffer"], users
    # The settings are the tests' own, and these machines leave out documentation.
    changed = machine.run("dpkg --verify coffer | grep -v -e /usr/share/doc -e /etc/coffer/coffer.toml", check=False)
    assert changed.stdout == ""
    machine.run("bash -c '. /usr/share/bash-completion/completions/coffer; complete -p coffer'")


def test_an_upgrade_keeps_sandboxes_alive(machine, sandbox):
    start_counting(sandbox)
    before, secret = count(sandbox), key(machine)
    dpkg(machine, "--install /mnt/payload/coffer-next.deb")
    assert machine.run("dpkg-query -f '${Version}' -W coffer").stdout == NEXT
    eventually(lambda: serves(machine), "the new version serves", PATIENCE_S)
    goes_on(sandbox)
    assert count(sandbox) > before and key(machine) == secret
    sandbox.kill(request_timeout=PATIENCE_S)


def test_an_upgrade_leaves_a_stopped_service_stopped(machine):
    machine.run("systemctl stop coffer")
    dpkg(machine, "--install /mnt/payload/coffer-next.deb")
    assert machine.run("systemctl is-active coffer", check=False).stdout.strip() == "inactive"
    start(machine)


def test_a_removal_ends_sandboxes_and_keeps_data(machine, sandbox):
    start_counting(sandbox)
    frozen = Sandbox.create(timeout=3600, request_timeout=PATIENCE_S)
    frozen.files.write("kept", "by a pause", request_timeout=PATIENCE_S)
    frozen.pause(request_timeout=PATIENCE_S)
    secret = key(machine)
    said = dpkg(machine, "--remove coffer")
    assert "ended" in said, said
    assert held(machine) == [] and machine.run("pgrep -x coffer", check=False).stdout == ""
    with pytest.raises(httpx.TransportError):
        httpx.get(machine.api_url + "/health", timeout=10)

    dpkg(machine, "--install /mnt/payload/coffer.deb")
    start(machine)
    assert key(machine) == secret
    # A paused sandbox continues; the one that ran is known to have ended.
    again = Sandbox.connect(frozen.sandbox_id, request_timeout=PATIENCE_S)
    assert again.files.read("kept", request_timeout=PATIENCE_S) == "by a pause"
    assert not sandbox.is_running(request_timeout=PATIENCE_S)


def test_a_purge_asks_and_keeps_data_without_an_answer(machine):
    said = dpkg(machine, "--purge coffer")
    assert "stays in /var/lib/coffer" in said, said
    assert machine.run("ls /var/lib/coffer/env /var/lib/coffer/server", check=False).returncode == 0
    # Settings go with every purge.
    write(machine, "/etc/coffer/coffer.toml", SETTINGS)
    dpkg(machine, "--install /mnt/payload/coffer.deb")
    start(machine)


def test_a_purge_with_the_answer_yes_leaves_nothing(machine):
    machine.run("umount -l /var/cache/coffer/templates")  # a disk of these tests
    machine.run("echo 'coffer coffer/purge-data boolean true' | debconf-set-selections")
    dpkg(machine, "--purge coffer")
    assert held(machine) == []
    left = "ls -d /var/lib/coffer /var/cache/coffer /etc/coffer /run/coffer /usr/bin/coffer; getent passwd coffer coffer-egress"
    assert machine.run(left + "; dpkg-query -W coffer", check=False).stdout == ""
    # What the tests, the journal and debconf keep is not the package's.
    others = ["/usr/local", "/mnt", "/var/log", "/var/tmp", "/var/cache/debconf", "/proc", "/root"]
    others.append("/etc/systemd/system/coffer.service.d")
    find = "find / -xdev -name '*coffer*' " + " ".join(f"-not -path '{path}*'" for path in others)
    assert machine.run(find, check=False).stdout.split() == []
