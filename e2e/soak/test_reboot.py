"""The host goes down: every process, mount, loop device, cgroup and everything below /run is gone at once.

What is left is the data directory. This does to one installation what a restart does to all of a machine.
"""

import os
import pathlib
import shutil
import subprocess

from client import Refused
from coffer_up import _descendants, eventually
from parts import UIDS, Installation, cgroups_of, poll, strike, uid_blocks
from world import Box

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
COUNT = "n=0; while :; do n=$((n+1)); echo $n > /tmp/n.new; mv /tmp/n.new /tmp/n; sleep 0.02; done"
# On an overlay a watched file has no name that could be found again, so such a sandbox cannot go to disk.
WATCH = (
    "import ctypes, time; c = ctypes.CDLL(None); w = c.inotify_init();"
    "assert c.inotify_add_watch(w, b'/home/user/kept', 2) > 0; print('watches', flush=True); time.sleep(3000)"
)


def cut_power(place: Installation):
    up = place.up
    boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for pid in {up.process.pid, *_descendants(up.process.pid), *place.members()}:
        strike(pid)
    up.process.wait()

    def gone():
        for pid in place.members():
            strike(pid)
        return not place.members()

    poll(gone, lambda: f"{place.members()} are gone")
    for tree in cgroups_of(up):
        for directory, _, _ in os.walk(tree, topdown=False):
            os.rmdir(directory)
    found = place.singles()
    for mount in found["mounts of the pool"] + found["mounts of memory"]:
        subprocess.run(["umount", mount], check=True)
    # The last mount takes the device along, or leaves it to us.
    for line in subprocess.run(
        ["losetup", "-nO", "NAME,BACK-FILE"], capture_output=True, text=True
    ).stdout.splitlines():
        device, _, file = line.partition(" ")
        if file.strip().startswith(str(up.data_dir)):
            subprocess.run(["losetup", "-d", device], check=False)
    poll(lambda: not any(place.singles().values()), place.singles)
    shutil.rmtree(up.run_dir)
    for block in uid_blocks(up):
        (UIDS / block).unlink()
    # The next boot has another id, which the kernel does not let us give it.
    for path in (place.node_dir / "sandboxes").glob("*.json"):
        text = path.read_text()
        path.write_text(text.replace(boot_id, "another"))


def test_what_is_on_disk_outlives_the_host(place):
    client = place.client

    def make(**more) -> Box:
        made = client.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 3000, **more})
        box = Box(made["sandboxID"], made["envdAccessToken"], 0, 0)
        if "templateID" not in more:
            client.upload(box, "/home/user/kept", box.id.encode())
            client.launch(box, COUNT, "count")
            eventually(lambda: counted(box), "it counts")
        return box

    def counted(box: Box) -> int:
        return int(client.run(box, "cat /tmp/n 2>/dev/null || echo 0").output)

    def pause(box: Box, memory: bool):
        client.api("POST", f"/sandboxes/{box.id}/pause", {"memory": memory})

    with_memory, files_only, watching, running = make(), make(), make(), make()
    boxes = {"with memory": with_memory, "files only": files_only, "watching": watching}
    boots = {name: client.run(box, BOOT_ID).output for name, box in boxes.items()}
    able = client.api("GET", "/api/v1/host")["memory_snapshot"]
    watcher = client.launch(watching, f'exec python3 -c "{WATCH}"', "watch")
    eventually(lambda: watcher.pid in client.processes(watching), "it watches")
    eventually(lambda: client.run(watching, "grep -ls inotify /proc/*/fdinfo/* 2>/dev/null; true").output, "a watch")
    snapshot = client.api("POST", f"/sandboxes/{with_memory.id}/snapshots", {"name": "before"})["snapshotID"]
    before = counted(with_memory)
    pause(with_memory, True)
    pause(files_only, False)
    pause(watching, True)
    held = {entry["spec"]["sandbox"]: entry["phase"]["kind"] for entry in place.entries()}
    assert held[with_memory.id] == ("hibernated" if able else "running"), held
    assert held[watching.id] == "running", "it stands still where it is"

    cut_power(place)
    place.up.start()

    for name, box in boxes.items():
        shown = client.api("GET", f"/sandboxes/{box.id}")
        assert shown["state"] == "paused", f"{name}: {shown}"
        client.api("POST", f"/v2/sandboxes/{box.id}/connect", {"timeout": 3000})
        assert client.download(box, "/home/user/kept") == box.id.encode(), name
        keeps = able and name == "with memory"
        assert (client.run(box, BOOT_ID).output == boots[name]) == keeps, name
    if able:
        eventually(lambda: counted(with_memory) > before, "it counts on")
        child = make(templateID=snapshot)
        eventually(lambda: counted(child) > 0, "a child goes on where the snapshot was made")
    # Its processes were in no image.
    eventually(lambda: not is_there(client, running), "the API tells of the one that ran")
    for one in client.api("GET", "/v2/sandboxes"):
        client.api("DELETE", f"/sandboxes/{one['sandboxID']}")
    for one in client.api("GET", "/api/v1/snapshots")["items"]:
        client.api("DELETE", f"/api/v1/snapshots/{one['id']}")
    eventually(lambda: not place.stranded({}), lambda: place.stranded({}))


def is_there(client, box: Box) -> bool:
    try:
        client.api("GET", f"/sandboxes/{box.id}")
        return True
    except Refused as error:
        assert error.status == 404, error
        return False
