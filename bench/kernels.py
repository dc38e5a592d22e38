"""What it costs to do without kernel features, as on the hosts that people have."""

import time

from client import Client
from latency import SETTLE_S, create_and_echo
from machine import CofferUp
from report import Report, p50

# As in crates/coffer-node/src/features/table.rs.
BEFORE_6_15 = "overlay_descriptors,overlay_detached,pidfd_info"
BEFORE_6_7 = f"overlay_append,btrfs_simple_quotas,{BEFORE_6_15}"
NEWEST = "this kernel"
HOSTS = {
    "as on 6.12 or 6.8 (Debian 13, Ubuntu 24.04)": BEFORE_6_15,
    "as on 6.1 (Debian 12)": BEFORE_6_7,
    "as on 6.1 with cgroup v1": f"{BEFORE_6_7},cgroup_v2",
    "without `cgroup.kill`": "cgroup_kill",
    "without clone into a cgroup": "clone_into_cgroup",
    "without `volatile`": "overlay_volatile",
}


def measure(report: Report, start, rounds: int):
    options = ["--pool-size", "1GiB", "--warm-slots", "0"]
    servers: dict[str, CofferUp] = {NEWEST: start("newest", *options)}
    for number, (name, lacks) in enumerate(HOSTS.items()):
        servers[name] = start(f"kernel-{number}", *options, "--set", f"node.kernel_lacks={lacks}")
    clients = {name: Client(up.env()) for name, up in servers.items()}
    first: dict[str, list[float]] = {name: [] for name in servers}
    whole: dict[str, list[float]] = {name: [] for name in servers}
    for client in clients.values():
        create_and_echo(client)
    for _ in range(rounds):
        for name, client in clients.items():
            output, ended = create_and_echo(client)
            first[name].append(output * 1000)
            whole[name].append(ended * 1000)
            time.sleep(SETTLE_S)
    for client in clients.values():
        client.close()
    for up in servers.values():
        up.stop()
    report.heading("Without kernel features")
    report.say(
        "The same sandboxes, with no slot ready, by a node that was told to do without what other kernels lack "
        "([kernels and hosts](kernels.md)). Real kernels differ in more than this."
    )
    for unit, times in (("ms to first output", first), ("ms to its destruction", whole)):
        base = p50(times[NEWEST])
        report.times(unit, times, {"x this kernel": lambda _, p, base=base: f"{p / base:.2f}"})
