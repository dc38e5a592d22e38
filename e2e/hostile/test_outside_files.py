"""Through /files and the filesystem calls: paths, links, special files, and bodies that lie.

agentd is root inside its sandbox and serves whoever has its token, so what these attacks are after is not another
user's file inside but a file of the host, agentd itself, or memory and disk beyond the sandbox's own.
"""

import gzip
import io
import os
import pathlib
import tempfile
import uuid
import zlib
from urllib.parse import quote

import httpx
import pytest
from e2b import Sandbox

from coffer_up import eventually
from outside import Envd, converse, head, statuses
from traces import Traces

LIFE_S = 900
SECRET = f"of the host {uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def host_file():
    """A file that only the host has."""
    with tempfile.TemporaryDirectory(prefix="coffer-outside-") as directory:
        path = pathlib.Path(directory) / "secret"
        path.write_text(SECRET)
        yield path


@pytest.fixture(scope="module")
def shared(bystanders):
    sandbox = Sandbox.create(timeout=LIFE_S)
    traces = Traces(sandbox.sandbox_id)
    yield sandbox, traces
    sandbox.kill()
    eventually(lambda: not traces.left(), traces.left, 120)


@pytest.fixture
def box(shared, bystanders, host_file):
    """A sandbox that several attacks use. After each, everybody answers and the host's file is as it was."""
    sandbox, traces = shared
    kills = traces.oom_kills()
    yield sandbox
    assert sandbox.commands.run("echo alive").stdout == "alive\n"
    assert traces.oom_kills() == kills, "agentd or a process inside ran out of memory"
    assert host_file.read_text() == SECRET
    assert {entry.name for entry in host_file.parent.iterdir()} == {"secret"}
    bystanders.answer()


@pytest.fixture
def here(box):
    path = f"/home/user/{uuid.uuid4().hex[:12]}"
    box.files.make_dir(path)
    return path


def test_dots_lead_to_the_sandboxs_root(box, host_file):
    envd = Envd(box)
    up = "../" * 40
    spelled = [
        f"path={up}{host_file}",
        f"path={quote(up + str(host_file), safe='')}",
        f"path={up.replace('.', '%2e')}{host_file}",
        f"path={up.replace('/', '%2f')}{host_file}",
        f"path=%252e%252e%252f{host_file}",
        f"path=..\\..\\..{host_file}",
        f"path=/home/user/{up}{host_file}",
        f"path=~/{up}{host_file}",
        f"path=/./.././..//{host_file}",
    ]
    for raw in spelled:
        assert envd.get("", raw=raw).status_code == 404, raw
    for raw in spelled:
        assert envd.put("", b"overwritten", raw=raw).status_code == 200, raw
    for name in ("Stat", "ListDir", "Remove"):
        assert SECRET not in envd.call(name, path=up + str(host_file)).text
    box.files.write("/tmp/moved", "inside")
    moved = envd.call("Move", source=up + "tmp/moved", destination=up + str(host_file))
    assert moved.status_code == 200 and box.files.read(str(host_file)) == "inside"
    box.files.remove(str(host_file.parent))  # inside, for those who come next


def test_names_that_no_file_has(box, here):
    envd = Envd(box)
    assert envd.get("", raw="path=a%00b").status_code == 400
    assert envd.put("", raw=f"path={here}/a%00.txt").status_code == 400
    assert envd.get("/" + "a" * 5000).status_code == 400
    assert envd.get("a/" * 2047 + "b").status_code in (400, 404)
    assert envd.put(f"{here}/{'n' * 255}").status_code == 200
    refused = envd.put(f"{here}/{'n' * 256}")
    assert refused.status_code >= 400 and "message" in refused.json()
    for odd in ("\n", "\r\nX-Injected: 1", '"; filename="x', "\x1b[2J", "a" * 200 + "é" * 27, " ", "-rf", "..."):
        path = f"{here}/{odd}"
        assert envd.put(path, odd.encode()).status_code == 200, odd
        answer = envd.get(path)
        assert (answer.status_code, answer.content) == (200, odd.encode()), odd
        assert "x-injected" not in answer.headers
    assert envd.get("", raw="path=%ff%fe").status_code == 404
    assert envd.get("", raw="path=a&username=root%00").status_code == 401
    for user in ("nobody-here", "root:x", "../root", "ro\not", "-1", "0"):
        assert envd.get("", raw=f"path=a&username={quote(user, safe='')}").status_code == 401, user


def test_names_that_are_not_text(box, here):
    box.commands.run(
        f"cd {here} && touch $'\\xff\\xfe' $'a\\x80b' && mkdir $'d\\xff' && touch $'d\\xff/x' && ls | wc -l"
    )
    listed = box.files.list(here, depth=3)
    assert len(listed) == 4, listed
    assert box.files.remove(here) is None
    assert not box.files.exists(here)


def test_links_stay_inside(box, here, host_file):
    """Every way for a link or a magic link to name the host's root ends in the sandbox's."""
    envd = Envd(box)
    ways = [
        f"{root}{host_file}"
        for root in (
            "/proc/1/root",
            "/proc/self/root",
            "/proc/1/cwd/..",
            "/proc/thread-self/root",
            "/dev/fd/../../../..",
            "/proc/1/task/1/root",
        )
    ]
    links = {f"{here}/link{number}": way for number, way in enumerate(ways)}
    box.commands.run("\n".join(f"ln -s {way} {link}" for link, way in links.items()), user="root")
    for path in [*ways, *links]:
        assert envd.get(path).status_code in (400, 404, 500), path
        assert SECRET not in envd.get(path).text
        assert SECRET not in envd.call("Stat", path=path).text
    # The attack went through the links: what is there inside is found by them.
    mine = box.commands.run("hostname").stdout.strip()
    box.commands.run(f"ln -s /proc/1/root/etc/hostname {here}/own", user="root")
    assert envd.get(f"{here}/own").text.strip() == mine != os.uname().nodename
    loop = f"ln -s {here}/loop2 {here}/loop1; ln -s {here}/loop1 {here}/loop2; ln -s . {here}/self"
    box.commands.run(loop)
    assert envd.get(f"{here}/loop1").status_code >= 400
    listed = envd.call("ListDir", path=here, depth=50).json()["entries"]
    assert len(listed) == len(links) + 4, "links are not walked"


def test_agentds_own_descriptors_give_nothing(box, host_file):
    envd = Envd(box)
    listed = envd.call("ListDir", path="/proc/self/fd", depth=1)
    assert listed.status_code == 200, listed.text
    entries = listed.json()["entries"]
    assert "3" in [entry["name"] for entry in entries], "it is agentd's own table: its listener is the third"
    numbers = [entry["name"] for entry in entries if entry.get("symlinkTarget") != "/dev/null"]
    for number in numbers:
        for below in ("", str(host_file), "/../.."):
            answer = envd.get(f"/proc/self/fd/{number}{below}")
            assert answer.status_code >= 400, f"{number}{below}: {answer.text[:100]}"
        assert envd.put(f"/proc/self/fd/{number}").status_code != 200
    for path in ("/proc/self/mem", "/proc/1/mem", "/proc/1/environ", "/proc/1/maps", "/proc/1/stack"):
        assert SECRET not in envd.get(path).text


def test_the_kernels_own_files_are_not_written(box):
    """As root inside, through agentd, which is root inside too."""
    core_pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text()
    envd = Envd(box)
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/modprobe",
        "/proc/kcore",
        "/proc/self/uid_map",
        "/proc/1/oom_score_adj",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/power/state",
    ):
        answer = envd.put(path, b"|/tmp/evil", raw=f"path={path}&username=root")
        assert answer.status_code != 200, f"{path}: {answer.text}"
    assert pathlib.Path("/proc/sys/kernel/core_pattern").read_text() == core_pattern


def test_what_is_no_file_is_neither_read_nor_written(box, here):
    """None of them may hold a request up: each is answered."""
    box.commands.run(
        f"cd {here} && mkfifo fifo && mkdir dir && touch plain && "
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"
    )
    envd = Envd(box)
    for name in ("fifo", "dir", "socket"):
        for answer in (envd.get(f"{here}/{name}"), envd.put(f"{here}/{name}")):
            assert answer.status_code == 400, f"{name}: {answer.text}"
    for path in ("/dev/zero", "/dev/random", "/dev/full", "/dev/null", "/dev/tty", "/dev/ptmx", "/dev"):
        answer = envd.get(path)
        assert answer.status_code >= 400 and len(answer.content) < 1000, path
    assert envd.put("/dev/full", b"x" * 1_000_000).status_code >= 400
    assert envd.put(f"{here}/plain/below").status_code == 400
    assert envd.get(f"{here}/plain/below").status_code == 404
    assert envd.put("/").status_code == 400
    assert envd.call("Move", source=f"{here}/dir", destination=f"{here}/dir/within").status_code >= 400
    assert envd.call("Remove", path="/proc/1/root").status_code >= 400
    assert envd.call("Remove", path="/dev/null").status_code in (200, 500)


def test_files_without_end_are_the_readers_to_end(box, here):
    envd = Envd(box)
    box.commands.run(f"truncate -s 7E {here}/sparse || truncate -s 15T {here}/sparse")
    size = box.files.get_info(f"{here}/sparse").size
    for headers in ({}, {"Accept-Encoding": "gzip"}, {"Range": f"bytes=0-{size}"}):
        with envd.client.stream("GET", f"/files?path={here}/sparse", headers=headers) as answer:
            assert answer.status_code in (200, 206)
            read = 0
            for piece in answer.iter_raw():
                read += len(piece)
                if read > 256 << 10:
                    break
            assert read > 256 << 10
    with envd.client.stream("GET", "/files?path=/proc/1/pagemap&username=root") as answer:
        taken = next(answer.iter_raw(), b"") if answer.status_code == 200 else answer.read()
    assert taken, "the kernel's endless file was begun"


def test_ranges_that_lie(box, here):
    envd = Envd(box)
    envd.put(f"{here}/ten", b"0123456789")
    most = 2**64
    for value, status, content in [
        ("bytes=0-0", 206, b"0"),
        (f"bytes=0-{most - 1}", 206, b"0123456789"),
        (f"bytes=-{most - 1}", 206, b"0123456789"),
        (f"bytes={most - 1}-", 416, b""),
        (f"bytes=9-{most}", 416, b""),
        (f"bytes={most}-{most}", 416, b""),
        ("bytes=5-4", 416, b""),
        ("bytes=-0", 416, b""),
        ("bytes=--1", 416, b""),
        ("bytes=+1-+2", None, None),
        ("bytes=0-0," * 500 + "1-1", 200, b"0123456789"),
        ("bytes=" + "9" * 10_000 + "-", 416, b""),
        ("bytes=\t0-1", None, None),
        ("items=0-1", 200, b"0123456789"),
    ]:
        answer = envd.get(f"{here}/ten", headers={"Range": value, "Accept-Encoding": "identity"})
        if status is None:
            assert answer.status_code in (200, 206, 416), value
        else:
            assert (answer.status_code, answer.content) == (status, content), value[:60]


def form(*parts: tuple[str, bytes], boundary: str = "xyz", end: bytes = b"--xyz--\r\n") -> bytes:
    body = b""
    for disposition, content in parts:
        body += f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"
    return body + end


def send_form(envd: Envd, body: bytes, query: str = "", content_type: str = "multipart/form-data; boundary=xyz"):
    return envd.client.post(f"/files?{query}", content=body, headers={"Content-Type": content_type})


def test_forms_whose_names_lie(box, here, host_file):
    envd = Envd(box)
    up = "../" * 30
    for disposition, written in [
        (f'form-data; name="file"; filename="{up}{str(host_file)[1:]}"', str(host_file)),
        (f'form-data; name="file"; filename="{here}/a\\"b"', f'{here}/a"b'),
        (f'form-data; name="file"; filename="{here}/one"; filename="{here}/two"', f"{here}/one"),
        (
            f'form-data; name="file"; filename="{here}/plain"; filename*=UTF-8\'\'{quote(here + "/extended")}',
            f"{here}/extended",
        ),
        (f"form-data; name=file; filename*=UTF-8''{quote(here + '/x', safe='')}%2f..%2fdots", f"{here}/dots"),
    ]:
        answer = send_form(envd, form((disposition, b"content")))
        assert answer.status_code == 200, f"{disposition}: {answer.text}"
        assert [entry["path"] for entry in answer.json()] == [written], disposition
        assert envd.get(written).content == b"content"
    for disposition in [
        'form-data; name="file"',
        'form-data; name="file"; filename=""',
        f'form-data; name="file"; filename="{here}/\0"',
        "form-data; name=\"file\"; filename*=UTF-8''%00",
        'form-data; name="file"; filename="~other/x"',
        f'form-data; name="file"; filename="{"a/" * 3000}"',
    ]:
        assert send_form(envd, form((disposition, b"content"))).status_code == 400, disposition
    # Fields that are no files, and a disposition that is none, write nothing.
    assert (
        send_form(envd, form((f'form-data; name="other"; filename="{here}/no"', b"x"), ("nonsense", b"x"))).json() == []
    )
    assert not box.files.exists(f"{here}/no")


def test_forms_whose_boundaries_lie(box, here):
    envd = Envd(box)
    one = (f'form-data; name="file"; filename="{here}/one"', b"content")
    assert send_form(envd, form(one)).status_code == 200
    broken = {
        "another boundary": (form(one), "multipart/form-data; boundary=abc"),
        "no boundary": (form(one), "multipart/form-data"),
        "a boundary too long": (form(one), f"multipart/form-data; boundary={'b' * 201}"),
        "no end": (form((one[0].replace("one", "half"), b"content"), end=b""), None),
        "an end that is none": (form((one[0].replace("one", "half"), b"content"), end=b"--xy--"), None),
        "words after a boundary": (b"--xyzzy\r\n\r\nx\r\n--xyz--", None),
        "a head without end": (b"--xyz\r\nX: " + b"y" * 100_000, None),
        "blanks without end": (b"--xyz" + b" " * 100_000, None),
        "one file twice": (form(one, one), None),
    }
    for what, (body, content_type) in broken.items():
        answer = send_form(envd, body, content_type=content_type or "multipart/form-data; boundary=xyz")
        assert answer.status_code == 400, f"{what}: {answer.status_code} {answer.text[:200]}"
    assert not box.files.exists(f"{here}/half"), "half a file stays nowhere"
    box.files.remove(here)


def test_bodies_whose_lengths_lie(box, here):
    """What breaks off is no file; what follows a body is no request."""
    token = f"X-Access-Token: {box._envd_access_token}"
    raw = "Content-Type: application/octet-stream"
    path = f"/files?path={here}/lied"
    half = head(box, "POST", path, 49983, token, raw, "Content-Length: 1000") + b"only this"
    converse(half, silence_s=1)
    envd = Envd(box)
    eventually(lambda: envd.get(f"{here}/lied").status_code == 404, "half a file goes away", 60)
    chunks = head(box, "POST", path, 49983, token, raw, "Transfer-Encoding: chunked") + b"5\r\nhello\r\nzz\r\n"
    answer = converse(chunks)
    assert 200 not in statuses(answer), answer
    eventually(lambda: envd.get(f"{here}/lied").status_code == 404, "half a file goes away", 60)
    hidden = head(box, "POST", "/init", 49983, "Content-Length: 2", "Connection: close") + b"{}"
    short = head(box, "POST", path, 49983, token, raw, "Content-Length: 5") + b"hello" + hidden
    assert statuses(converse(short)) == [200, 404]
    assert envd.get(f"{here}/lied").content == b"hello"


def gzip_of_zeros(mib: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = bytes(1 << 20)
    return b"".join(packer.compress(piece) for _ in range(mib)) + packer.flush()


def test_a_bomb_fills_only_the_sandboxs_disk(box, here):
    """512 MiB out of half a one, where the disk has 256: refused when it is full, and nothing of it stays."""
    bomb = gzip_of_zeros(512)
    assert len(bomb) < 1 << 20
    envd = Envd(box)
    answer = envd.put(f"{here}/bomb", bomb, headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 507, answer.text
    assert envd.get(f"{here}/bomb").status_code == 404
    twice = envd.put(f"{here}/twice", gzip.compress(bomb), headers={"Content-Encoding": "gzip"})
    assert twice.status_code == 200 and box.files.get_info(f"{here}/twice").size == len(bomb), "unpacked once"
    for coding in ("gzip, gzip", "deflate", "br", "zstd", "x" * 1000):
        assert envd.put(f"{here}/other", b"x", headers={"Content-Encoding": coding}).status_code == 400, coding
    broken = envd.put(f"{here}/other", bomb[:1000] + b"\xff" * 1000, headers={"Content-Encoding": "gzip"})
    assert broken.status_code == 400 and not box.files.exists(f"{here}/other")
    box.files.remove(here)


SWAP = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
one, two = sys.argv[1].encode(), sys.argv[2].encode()
print("swapping", flush=True)
while True:
    libc.renameat2(-100, one, -100, two, 2)  # exchanges both
"""


@pytest.fixture
def swapping(box, here):
    """A directory and a link to another one change places all the time."""
    box.commands.run(
        f"mkdir {here}/kept {here}/race {here}/race/x && echo dear > {here}/kept/file && ln -s {here}/kept {here}/race/y"
    )
    box.files.write("/tmp/swap.py", SWAP)
    swap = box.commands.run(f"exec python3 /tmp/swap.py {here}/race/x {here}/race/y", background=True, timeout=0)
    yield f"{here}/race"
    swap.kill()


def test_removing_never_follows_a_link(box, here, swapping):
    envd = Envd(box)
    outcomes = set()
    again = f"mkdir -p {swapping}/x; [ -L {swapping}/x ] || [ -L {swapping}/y ] || ln -sn {here}/kept {swapping}/y"
    for _ in range(12):
        for _ in range(8):
            envd.call("MakeDir", path=f"{swapping}/x/deep/deeper")
            outcomes.add(envd.call("Remove", path=swapping).status_code)
        # The link or the directory went, or both.
        box.commands.run(again)
    assert 200 in outcomes
    assert box.files.read(f"{here}/kept/file") == "dear\n", "what a link led to was removed"


def test_files_survive_paths_that_change_under_them(box, here, swapping):
    """Upload, download, list, stat, move and watch while a parent is now a directory, now a link."""
    envd = Envd(box)
    watcher = envd.call("CreateWatcher", path=swapping, recursive=True)
    assert watcher.status_code == 200
    seen = set()
    for _ in range(60):
        path = f"{swapping}/x/f"
        for answer in (
            envd.put(path, b"mine"),
            envd.get(path),
            envd.call("ListDir", path=f"{swapping}/x", depth=5),
            envd.call("Stat", path=path),
            envd.call("Move", source=path, destination=f"{swapping}/y/g"),
        ):
            assert answer.status_code in (200, 400, 404, 500), answer.text
            assert SECRET not in answer.text
            seen.add(answer.status_code)
    assert 200 in seen
    events = envd.call("GetWatcherEvents", watcherId=watcher.json()["watcherId"])
    assert events.status_code in (200, 500), events.text
    assert envd.call("RemoveWatcher", watcherId=watcher.json()["watcherId"]).status_code == 200
    assert box.files.read(f"{here}/kept/file") == "dear\n"


def test_watches_are_bounded(box, here):
    envd = Envd(box)
    made = []
    while (answer := envd.call("CreateWatcher", path=here, recursive=False)).status_code == 200:
        made.append(answer.json()["watcherId"])
        assert len(made) <= 200
    assert answer.json()["code"] == "resource_exhausted" and len(made) >= 50
    # More events than are kept: the watcher is told of the loss, and memory does not grow with them.
    box.commands.run(f"cd {here} && python3 -c 'import os\nfor n in range(10000): os.mknod(str(n)); os.unlink(str(n))'")
    texts = [envd.call("GetWatcherEvents", watcherId=made[0]).text for _ in range(3)]
    assert any("data_loss" in text for text in texts), [text[:100] for text in texts]
    for watcher in made:
        assert envd.call("RemoveWatcher", watcherId=watcher).status_code == 200
    assert envd.call("GetWatcherEvents", watcherId="../../etc").status_code == 404


def test_trees_of_any_depth_are_listed_and_removed(box, here):
    box.commands.run(f'cd {here} && python3 -c \'import os\nfor n in range(3000):\n  os.mkdir("d"); os.chdir("d")\'')
    envd = Envd(box)
    for depth in (2**32, -1, "9" * 400):
        assert envd.call("ListDir", path=here, depth=depth).status_code == 400, depth
    answer = envd.call("ListDir", path=here, depth=2**32 - 1)
    assert answer.status_code in (200, 500), answer.text[:200]
    assert envd.call("Remove", path=here).status_code == 200
    assert not box.files.exists(here)


def test_composing_from_what_never_ends(box, here):
    envd = Envd(box)

    def compose(sources, destination=f"{here}/joined"):
        body = {"source_paths": sources, "destination": destination, "username": "root"}
        return envd.client.post("/files/compose", json=body)

    box.commands.run(f"truncate -s 4T {here}/sparse && echo part > {here}/part && mkfifo {here}/fifo")
    assert compose(["/dev/zero"]).status_code == 400
    assert compose([f"{here}/fifo"]).status_code == 400
    assert compose([here]).status_code == 400
    assert compose([f"{here}/part"] * 10_001).status_code == 400
    assert compose([f"{here}/part"], f"{here}/part").status_code == 400
    assert compose([f"{here}/part", "/proc/1/pagemap"]).status_code in (400, 500, 507)
    assert box.files.read(f"{here}/part") == "part\n", "a failure costs nothing"
    left = [entry["name"] for entry in envd.call("ListDir", path=here, depth=1).json()["entries"]]
    assert sorted(left) == ["fifo", "part", "sparse"], left
    box.files.remove(here)


def test_a_user_database_that_is_none(attackers):
    """A sandbox can break its own /etc/passwd, and with it only its own calls."""
    attacker = attackers("root")
    envd = Envd(attacker.sandbox)
    for trick in ("mkfifo", "mkdir", "ln -s /dev/zero", "ln -s passwd"):
        attacker.shell(
            f"cp /etc/passwd /tmp/passwd; rm -rf /etc/passwd; {trick} /etc/passwd; (sleep 1; rm -rf /etc/passwd; "
            "cp /tmp/passwd /etc/passwd) >/dev/null 2>&1 &"
        )
        refused = envd.get("/etc/hostname")
        assert refused.status_code in (200, 401), f"{trick}: {refused.text}"
        eventually(lambda: envd.get("/etc/hostname").status_code == 200, "it is put right again", 60)


def test_messages_that_lie_about_themselves(box):
    """The Connect protocol, on the wire."""
    envd = Envd(box)
    stream = {"Content-Type": "application/connect+json"}
    for what, body in {
        "an envelope of 4 GiB": b"\0\xff\xff\xff\xff{}",
        "one that breaks off": b"\0\0\0\0\xff{}",
        "a compressed one": b"\x01\0\0\0\x02{}",
        "half a head": b"\0\0",
        "nothing": b"",
        "no JSON": b"\0\0\0\0\x02xx",
        "depth": b"\0\0\x03\x0d\x40" + b"[" * 200_000,
        "17 MiB": b"\0\x01\x10\0\0" + bytes(17 << 20),
    }.items():
        for method in ("process.Process/Start", "filesystem.Filesystem/WatchDir", "process.Process/StreamInput"):
            if (what, method) == ("nothing", "process.Process/StreamInput"):
                continue  # a stream of no messages is one
            answer = envd.client.post(f"/{method}", content=body, headers=stream)
            assert answer.status_code == 200 and b'"error"' in answer.content, (
                f"{method} {what}: {answer.content[:200]}"
            )
    for content_type in ("application/connect+proto", "application/proto", "application/json", "text/plain", ""):
        answer = envd.client.post(
            "/process.Process/List", content=os.urandom(4096), headers={"Content-Type": content_type}
        )
        assert answer.status_code in (200, 400, 415, 429), f"{content_type}: {answer.status_code}"
    big = io.BytesIO(bytes(32 << 20))
    with pytest.raises((httpx.HTTPError, AssertionError)):
        answer = envd.client.post("/process.Process/List", content=big, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200
