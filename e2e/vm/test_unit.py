"""The unit of systemd: what a stop, a restart and a killed part leave, and what the journal says of it."""

import re
import time

import httpx
import pytest
from e2b import Sandbox

from coffer_up import eventually
from install import journal, key, serves

PATIENCE_S = 300  # emulated processors are some ten times slower
PARTS = ["egress", "node", "server", "spawner"]


@pytest.fixture
def sandbox():
    made = Sandbox.create(timeout=3600, request_timeout=PATIENCE_S)
    yield made
    made.kill(request_timeout=PATIENCE_S)


def start_counting(sandbox) -> int:
    """A process that writes a number every half second, for ever."""
    script = "i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.5; done"
    handle = sandbox.commands.run(script, background=True, timeout=0, request_timeout=PATIENCE_S)
    eventually(lambda: count(sandbox) > 1, "a process that counts", PATIENCE_S)
    return handle.pid


def count(sandbox) -> int:
    read = sandbox.commands.run("cat /tmp/count || echo 0", timeout=PATIENCE_S, request_timeout=PATIENCE_S)
    return int(read.stdout.strip() or 0)


def goes_on(sandbox):
    before = count(sandbox)
    eventually(lambda: count(sandbox) > before, "the process still counts", PATIENCE_S)


def part(machine, role: str) -> str:
    """The pid of a part of the unit's own installation."""
    cgroup = "/sys/fs/cgroup/system.slice/coffer.service"
    unified = "/sys/fs/cgroup/unified/system.slice/coffer.service"
    processes = machine.run(f"cat {cgroup}/cgroup.procs {unified}/cgroup.procs 2>/dev/null | sort -un", check=False)
    for pid in processes.stdout.split():
        words = machine.run(f"tr '\\0' ' ' </proc/{pid}/cmdline", check=False).stdout.split()
        if words[1:2] == [role]:
            return pid
    return ""


def test_the_unit_is_ready_when_it_says_so(machine):
    status = machine.run("systemctl show coffer -p ActiveState -p StatusText -p NotifyAccess -p Type").stdout
    assert "ActiveState=active" in status and "StatusText=serving on" in status and "Type=notify" in status, status
    assert "preflight passed" in journal(machine, 400)


def test_keys_and_links_are_not_in_the_journal(machine):
    text = machine.run("journalctl --no-pager -u coffer -o cat").stdout
    assert "Cofferdam is ready at" in text
    assert key(machine) and key(machine) not in text
    assert not re.search(r"e2b_[0-9a-f]{20}|link_[0-9a-f]{10}|coffer-master-", text)
    modes = machine.run("stat -c '%a %n' /var/lib/coffer/env /var/lib/coffer/operator-key /var/lib/coffer/sign-in")
    assert {line.split()[0] for line in modes.stdout.splitlines()} == {"600"}, modes.stdout


def test_sandboxes_are_outside_the_unit(machine, sandbox):
    inside = machine.run("systemctl show coffer -p ControlGroup --value").stdout.strip()
    found = machine.run("find /sys/fs/cgroup -maxdepth 4 -type d -path '*coffer-*/*'").stdout.split()
    assert found and not any(inside in path for path in found), found


def test_a_check_passes_next_to_the_running_unit(machine):
    done = machine.run("coffer up --check --data-dir /var/lib/coffer", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a sandbox was created, used and destroyed" in done.stdout
    assert machine.run("ls -d /var/lib/coffer/check", check=False).returncode != 0


def test_an_unusable_host_is_told_at_the_start(machine):
    lacks = "COFFER_KERNEL_LACKS=overlay_mapped_layers"
    done = machine.run(f"{lacks} coffer up --check --data-dir /var/lib/coffer", check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "overlay_mapped_layers is missing" in done.stderr and "fix:" in done.stderr


def test_a_restart_keeps_sandboxes_and_says_nothing_wrong(machine, sandbox):
    pid = start_counting(sandbox)
    boot = sandbox.commands.run("cat /proc/sys/kernel/random/boot_id", request_timeout=PATIENCE_S).stdout
    mark = machine.run("journalctl -u coffer -n 0 --show-cursor --no-pager | sed -n 's/^-- cursor: //p'").stdout.strip()
    machine.run("systemctl restart coffer")
    eventually(lambda: serves(machine), "the unit serves again", PATIENCE_S)
    goes_on(sandbox)
    assert sandbox.commands.run("cat /proc/sys/kernel/random/boot_id", request_timeout=PATIENCE_S).stdout == boot
    # A client that was cut off attaches again.
    handle = sandbox.commands.connect(pid, request_timeout=PATIENCE_S)
    handle.disconnect()
    said = machine.run(f"journalctl -u coffer --no-pager -o cat --after-cursor '{mark}'").stdout
    wrong = [
        line for line in said.splitlines() if " ERROR " in line or "left-over" in line or "starting it again" in line
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("role", [*PARTS, "up"])
def test_a_killed_part_comes_back_and_sandboxes_go_on(machine, sandbox, role):
    start_counting(sandbox)
    pid = part(machine, role)
    assert pid, f"no process of {role}"
    machine.run(f"kill -9 {pid}")
    eventually(lambda: part(machine, role) not in ("", pid), f"another {role}", PATIENCE_S)
    eventually(lambda: serves(machine), "it serves again", PATIENCE_S)
    goes_on(sandbox)
    fresh = Sandbox.create(timeout=600, request_timeout=PATIENCE_S)
    assert fresh.commands.run("echo made", request_timeout=PATIENCE_S).stdout == "made\n"
    fresh.kill(request_timeout=PATIENCE_S)


def test_a_stop_ends_the_unit_and_not_the_sandboxes(machine, sandbox):
    start_counting(sandbox)
    machine.run("systemctl stop coffer")
    assert machine.run("systemctl show coffer -p ActiveState -p Result").stdout.split() == [
        "Result=success",
        "ActiveState=inactive",
    ]
    with pytest.raises(httpx.TransportError):
        httpx.get(machine.api_url + "/health", timeout=10)
    alive = "cat $(find /sys/fs/cgroup -path '*coffer-*/*' -name cgroup.procs) | sort -u | wc -l"
    assert int(machine.run(alive).stdout) >= 2
    stopped = time.monotonic()
    machine.run("systemctl start coffer")
    eventually(lambda: serves(machine), "it serves again", PATIENCE_S)
    print(f"served again after {time.monotonic() - stopped:.0f} s")
    goes_on(sandbox)
