"""The machine itself: without these, the other tests would test something else."""

import socket


def test_controllers_are_where_the_machine_says(machine):
    mounts = machine.run("cat /proc/self/mountinfo").stdout.splitlines()
    v1 = {line.split(" - ")[1].split()[2] for line in mounts if " - cgroup cgroup " in line}
    controllers = {name for options in v1 for name in options.split(",")} & {"memory", "pids", "cpu", "freezer"}
    assert controllers == ({"memory", "pids", "cpu", "freezer"} if machine.name == "hybrid" else set())


def test_the_machine_reaches_nothing_outside(machine):
    # QEMU's user network would pass this address on to the host's loopback.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        probe = f"import socket; socket.create_connection(('10.0.2.2', {port}), timeout=10)"
        done = machine.run(f'python3 -c "{probe}"', check=False)
    assert done.returncode != 0
    assert "Error" in done.stderr, done.stderr


def test_systemd_started_everything(machine):
    assert machine.run("systemctl --failed --no-legend --plain").stdout == ""
