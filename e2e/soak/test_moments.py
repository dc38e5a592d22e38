"""Parts are killed in the middle of one thing: a create, a destroy, a pause, a transfer, a start.

The moment is a time after the thing began. A short run throws the dice for it and for the part; a long one (`make soak`)
tries all of them.
"""

import hashlib
import os
import random
import signal
import threading
import time

import pytest

from client import Away, Refused
from coffer_up import eventually
from conftest import KILLS, SEED, installation
from parts import cgroups_of, listed, strike, uid_blocks
from world import CUT, HOME, Box, World

LONG = KILLS >= 100
OFFSETS = [0, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06]  # s: a create takes 5 to 50 ms
MEMORY_OFFSETS = [0.02, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.9]  # to disk takes longer, and is tried out
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
THINGS = ["create", "destroy", "pause", "stop", "connect"]
ROLES = ["node", "spawner", "server", "all"]
dice = random.Random(SEED)


def moments() -> list[float]:
    return OFFSETS if LONG else [dice.choice(OFFSETS)]


def cases() -> list[tuple[str, str]]:
    if LONG:
        return [(what, role) for what in THINGS for role in ROLES]
    return [(what, dice.choice(ROLES)) for what in THINGS]


def after(pause_s: float, disturb):
    return lambda: (time.sleep(pause_s), disturb())


def thin_out(world):
    """Lets nothing pile up."""
    while len(world.boxes) > 2:
        world.destroy(world.boxes[-1])
        world.check()


def meanwhile(work, disturb):
    """Runs `work` and, as soon as it has begun, `disturb`. What `work` raises is raised here."""
    failed = []

    def run():
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        disturb()
    finally:
        thread.join()
    if failed:
        raise failed[0]


@pytest.fixture
def world(shared_world):
    """With a running sandbox that has something to lose, and slots where there are any."""
    world = shared_world
    if not [box for box in world.boxes if not box.killed]:
        world.create()
    for box in world.boxes:
        if box.paused:
            world.connect(box)
    world.upload(world.boxes[0], dice)
    world.launch(world.boxes[0], dice)
    world.report_broken()
    return world


@pytest.fixture
def box(world):
    return world.boxes[0]


@pytest.mark.parametrize(("what", "role"), cases())
def test_in_the_middle_of(world, what, role):
    for offset in moments():
        work = world.create
        if what != "create":
            victim = world.create()
            world.upload(victim, dice)
            world.report_broken()
            if what == "connect":
                world.pause(victim, dice)
            work = {
                "destroy": lambda: world.destroy(victim),
                "pause": lambda: world.pause(victim, dice, memory=True),
                "stop": lambda: world.pause(victim, dice, memory=False),
                "connect": lambda: world.connect(victim),
            }[what]
        meanwhile(work, after(offset, lambda: world.kill(role)))
        world.check()
        thin_out(world)


@pytest.mark.parametrize("role", ROLES if LONG else ["node", "server"])
@pytest.mark.parametrize("what", ["save", "restore"])
def test_in_the_middle_of_memory_to_disk_and_back(world, what, role):
    """Its processes go on, whichever moment it was: `check` looks for them."""
    for offset in MEMORY_OFFSETS if LONG else [dice.choice(MEMORY_OFFSETS)]:
        victim = world.create()
        world.upload(victim, dice)
        world.launch(victim, dice)
        world.report_broken()
        boot = world.client.run(victim, BOOT_ID).output
        work = lambda: world.pause(victim, dice, memory=True)
        if what == "restore":
            work()
            work = lambda: world.connect(victim)
        meanwhile(work, after(offset, lambda: world.kill(role)))
        world.check()
        if victim.paused:
            world.connect(victim)
        world.check()
        assert world.client.run(victim, BOOT_ID).output == boot
        thin_out(world)


@pytest.mark.parametrize("role", ROLES if LONG else ["node", "server"])
@pytest.mark.parametrize("memory", [False, None], ids=["files", "memory"])
def test_in_the_middle_of_a_snapshot(world, memory, role):
    """It is there whole or not at all, and its source goes on as if nothing had been."""
    offsets = OFFSETS if memory is False else MEMORY_OFFSETS
    for offset in offsets if LONG else [dice.choice(offsets)]:
        source = world.create()
        world.upload(source, dice)
        world.launch(source, dice)
        world.report_broken()
        answered = []

        def take():
            body = {} if memory is None else {"memory": memory}
            try:
                answered.append(world.client.api("POST", f"/api/v1/sandboxes/{source.id}/snapshots", body)["id"])
            except Away:
                assert role in CUT
            except Refused as error:
                assert error.status == 503, f"with {role} killed: {error}"

        meanwhile(take, after(offset, lambda: world.kill(role)))
        world.check()
        (made,) = eventually(lambda: settled(world, source), f"the snapshots of {source.id} are made or not")
        assert set(answered) <= {one["id"] for one in made}, f"{answered} was answered, and there are {made}"
        for one in made:
            new = {"templateID": one["id"], "timeout": 300, "metadata": {"number": "0"}}
            child = world.client.api("POST", "/v2/sandboxes", new)
            world.check_inside(Box(child["sandboxID"], child["envdAccessToken"], 0, 0, files=source.files))
            world.client.api("DELETE", f"/sandboxes/{child['sandboxID']}")
            world.client.api("DELETE", f"/api/v1/snapshots/{one['id']}")
        kept = [world.place.node_dir / "snapshots", world.place.node_dir / "pool/snapshots"]
        eventually(lambda: not any(map(listed, kept)), lambda: f"left: {[*map(listed, kept)]}")
        thin_out(world)


def settled(world, source) -> tuple | None:
    """The snapshots of a sandbox, once none of them is under way."""
    every = world.client.api("GET", "/api/v1/snapshots")["items"]
    made = [one for one in every if one["sandbox_id"] == source.id]
    return (made,) if all(one["state"] == "ready" for one in made) else None


@pytest.mark.parametrize("role", ROLES if LONG else ["node", "spawner"])
def test_in_the_middle_of_a_cold_create(cold_world, role):
    for offset in moments():
        meanwhile(cold_world.create, after(offset, lambda: cold_world.kill(role)))
        cold_world.check()
        thin_out(cold_world)


def test_a_request_that_a_node_never_saw(world):
    """It was sent to a node that stood still and then died: the next one answers it."""
    node = world.place.parts()["node"]
    os.kill(node, signal.SIGSTOP)
    meanwhile(world.create, after(0.3, lambda: world.kill("node")))
    world.check()


def test_slots_that_die_just_before_they_are_claimed(world):
    for _ in range(5 if LONG else 1):
        node = world.place.parts()["node"]
        slots = eventually(world.place.slots, "sandboxes that wait for an owner")
        os.kill(node, signal.SIGSTOP)

        def disturb():
            time.sleep(0.2)
            for slot in slots:
                strike(slot)
            os.kill(node, signal.SIGCONT)

        meanwhile(world.create, disturb)
        world.check()


def test_slots_that_die_while_they_are_claimed(world):
    for offset in moments():
        slots = eventually(world.place.slots, "sandboxes that wait for an owner")
        count = len(world.boxes)
        meanwhile(world.create, after(offset, lambda: [strike(slot) for slot in slots]))
        # It may have been somebody's already when it died.
        agents = world.place.agents()
        for box in world.boxes[count:]:
            box.killed = time.monotonic() if agents.get(box.id, slots[0]) in slots else None
        world.check()


@pytest.mark.parametrize("role", ["node", "server", "all"] if LONG else ["node", "server"])
def test_in_the_middle_of_an_upload(world, box, role):
    content = dice.randbytes(400_000)
    path = f"{HOME}/{dice.getrandbits(48):x}"

    def slowly():
        yield content[:200_000]
        world.kill(role)
        yield content[200_000:]

    with world.attempt("upload", box):
        world.client.upload(box, path, slowly())
        box.files[path] = hashlib.sha256(content).hexdigest()
    world.check()
    assert role != "node" or path in box.files


def test_in_the_middle_of_a_download(world, box):
    content = dice.randbytes(30_000_000)  # more than sockets hold
    world.client.upload(box, f"{HOME}/large", content)
    came = []
    meanwhile(lambda: came.append(world.client.download(box, f"{HOME}/large")), lambda: world.kill("node"))
    assert came == [content]
    world.client.run(box, f"rm {HOME}/large")
    world.check()


def test_in_the_middle_of_a_look_at_templates(world):
    time.sleep(2.1)  # the server believes a list of templates for two seconds
    node = world.place.parts()["node"]
    os.kill(node, signal.SIGSTOP)

    def look():
        assert [template["templateID"] for template in world.client.api("GET", "/templates")]

    meanwhile(look, after(0.2, lambda: world.kill("node")))
    world.check()


@pytest.mark.parametrize("role", ["node", "server"])
def test_while_it_starts_and_adopts(world, role):
    for offset in moments():
        with world.disturbed(role):
            world.place.kill_twice(role, offset * 2)
        world.check()


def test_up_while_it_starts(world):
    for offset in moments():
        with world.disturbed("up"):
            world.place.kill_up_twice(offset * 5)
        world.check()


def test_up_while_it_starts_for_the_first_time():
    """There are no records yet, and no pool."""
    with installation(cut_off=[offset * 5 for offset in moments()]) as place:
        world = World(place, SEED)
        world.create()
        world.check()


def test_an_ephemeral_up_that_is_killed_takes_all_along():
    with installation("--ephemeral") as place:
        world = World(place, SEED)
        for _ in range(2):
            world.launch(world.create(), dice)
        world.check()
        assert place.members() and cgroups_of(place.up)
        place.up.stop(signal.SIGKILL)

        def left():
            return [place.members(), *place.singles().values(), cgroups_of(place.up), uid_blocks(place.up)]

        eventually(lambda: not any(left()), left)


def test_an_agent_in_the_middle_of_a_command(world):
    victim = world.create()

    def command():
        with world.attempt("exec", victim):
            world.client.run(victim, "sleep 100")

    def disturb():
        time.sleep(0.1)
        victim.killed = time.monotonic()
        strike(world.place.agents()[victim.id])

    meanwhile(command, disturb)
    world.check()
    assert victim not in world.boxes


def test_orphans_are_removed_and_told(world):
    """As a node leaves them that dies before it has written down what it makes."""
    log = world.place.up.log
    told = log.stat().st_size
    # The id of a sandbox that once was, so that there is somebody to tell it to.
    gone = world.create()
    world.destroy(gone)
    world.check()
    world.place.stray(gone.id)
    assert world.place.stranded({box.id: True for box in world.boxes})
    world.kill("node")
    world.check()
    lines = [line for line in log.read_bytes()[told:].decode().splitlines() if "removed the orphan" in line]
    assert len(lines) == 1 and gone.id in lines[0] and "files, a socket" in lines[0], lines
    eventually(lambda: world.events_of(gone.id, "sandbox.orphan_removed"), "an event tells of it")


def test_the_check_sees_what_is_stranded(world):
    """Guards all of the above: a check that sees nothing would always be content."""
    live = {box.id: True for box in world.boxes}
    world.check()
    assert not world.place.stranded(live)
    stray = world.place.node_dir / "pool/s/stray"
    stray.mkdir()
    assert world.place.stranded(live)
    stray.rmdir()
    assert world.place.stranded({}) and world.place.stranded(live | {"another": True})
    path = f"{HOME}/changed"
    world.client.upload(world.boxes[0], path, b"one")
    world.boxes[0].files[path] = hashlib.sha256(b"two").hexdigest()
    with pytest.raises(AssertionError, match="changed"):
        world.check()
    del world.boxes[0].files[path]
    world.client.run(world.boxes[0], f"rm {path}")
