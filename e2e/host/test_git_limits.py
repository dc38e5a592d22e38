"""Git of the server: confined, limited, and what is refused for it."""

import hashlib
import os
import pathlib
import signal
import struct
import subprocess
import threading
import time
import zlib

import httpx

from coffer_up import eventually

MIB = 1 << 20
PUSH_MIB = int(os.environ.get("E2E_PUSH_MIB", "64"))  # 1024 is what an installation must take with its defaults
ZERO, SOME = "0" * 40, "1" * 40
WHO = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "gc.auto=0"]


def git(*words, cwd, good=True):
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *WHO, *words], cwd=cwd, env=env, capture_output=True, text=True)
    assert (done.returncode == 0) == good, done.stderr
    return done.stdout + done.stderr


def repository(up, name="app") -> str:
    """Its address, with a key in it."""
    env = up.env()
    made = httpx.post(
        f"{env['COFFER_URL']}/api/v1/repositories", headers={"x-api-key": env["COFFER_API_KEY"]}, json={"name": name}
    )
    assert made.status_code == 201, made.text
    return made.json()["clone_url"].replace("://", f"://any:{env['COFFER_API_KEY']}@")


def first_commit(url: str, at: pathlib.Path) -> pathlib.Path:
    git("clone", "-q", url, "work", cwd=at)
    work = at / "work"
    (work / "README").write_text("hello\n")
    git("add", "-A", cwd=work)
    git("commit", "-qm", "first", cwd=work)
    git("push", "-q", "origin", "HEAD:refs/heads/main", cwd=work)
    return work


def header(kind: int, size: int) -> bytes:
    out = [kind << 4 | size & 15]
    size >>= 4
    while size:
        out[-1] |= 0x80
        out.append(size & 0x7F)
        size >>= 7
    return bytes(out)


def number(size: int) -> bytes:
    out = b""
    while True:
        size, low = size >> 7, size & 0x7F
        out += bytes([low | (0x80 if size else 0)])
        if not size:
            return out


def bomb(mib: int) -> bytes:
    """A pack of some KiB with a blob of a mebibyte, and a delta that makes `mib` of it."""
    base = b"x" * MIB
    name = hashlib.sha1(b"blob %d\0" % MIB + base).digest()
    delta = number(MIB) + number(mib * MIB) + b"\xc0\x10" * mib
    objects = header(3, MIB) + zlib.compress(base, 9) + header(7, len(delta)) + name + zlib.compress(delta, 9)
    pack = b"PACK" + struct.pack(">II", 2, 2) + objects
    return pack + hashlib.sha1(pack).digest()


def push_bytes(url: str, pack: bytes) -> httpx.Response:
    line = f"{ZERO} {SOME} refs/heads/bomb\0report-status side-band-64k".encode()
    body = b"%04x" % (len(line) + 4) + line + b"0000" + pack
    kind = {"content-type": "application/x-git-receive-pack-request"}
    return httpx.post(f"{url}/git-receive-pack", content=body, headers=kind, timeout=120)


def status_of(pid) -> dict[str, str]:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def largest_git(runner: int, until: threading.Event, found: list[int]):
    """The most memory that a process below the runner has had, in KiB."""
    while not until.is_set():
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if status_of(entry.name)["PPid"] != str(runner) and "index-pack" not in (entry / "cmdline").read_text():
                    continue
                found.append(int(status_of(entry.name)["VmHWM"].split()[0]))
            except (OSError, KeyError):
                continue
        time.sleep(0.005)


def memory_limit(pid: int) -> int | None:
    """Of the cgroup that a process is in, and that is the node's for git."""
    for line in pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not path.endswith("-git"):
            continue
        roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] if not controllers else ["/sys/fs/cgroup/memory"]
        for root in roots:
            for name in ("memory.max", "memory.limit_in_bytes"):
                if (file := pathlib.Path(root + path) / name).exists():
                    return int(file.read_text())
    return None


def test_a_bomb_is_refused_and_git_is_limited(server, tmp_path):
    up = server("limits", "--ephemeral", "--set", "forge.git_memory_total=2GiB").start()
    url = repository(up)
    work = first_commit(url, tmp_path)
    runner = up.part("git")
    assert memory_limit(runner) == 2 << 30
    assert pathlib.Path(f"/proc/{runner}/oom_score_adj").read_text().strip() == "1000"
    assert status_of(runner)["Uid"].split()[0] != "0", "it has given up root"
    pack, over, found = bomb(1536), threading.Event(), []
    assert len(pack) < 16 << 10
    looking = threading.Thread(target=largest_git, args=(runner, over, found))
    looking.start()
    refused = push_bytes(url, pack)
    over.set()
    looking.join()
    assert refused.status_code == 200 and b"ng refs/heads/bomb pack_too_large" in refused.content, refused.content
    assert b"512MiB" in refused.content and b"forge.git_memory" in refused.content
    assert max(found, default=0) < 512 << 10, f"git had {max(found)} KiB"
    assert "bomb" not in git("ls-remote", url, cwd=work)
    # What is large without tricks passes.
    with (work / "large").open("wb") as file:
        for _ in range(PUSH_MIB // 2):
            file.write(os.urandom(MIB))
    for part in range(PUSH_MIB // 2):
        (work / f"part-{part}").write_bytes(os.urandom(MIB))
    git("add", "-A", cwd=work)
    git("commit", "-qm", "large", cwd=work)
    git("push", "-q", "origin", "HEAD:refs/heads/main", cwd=work)
    git("clone", "-q", url, "again", cwd=tmp_path)
    assert git("rev-parse", "HEAD", cwd=tmp_path / "again") == git("rev-parse", "HEAD", cwd=work)


def test_git_goes_on_when_its_runner_dies(server, tmp_path):
    up = server("runner", "--ephemeral").start()
    url = repository(up)
    work = first_commit(url, tmp_path)
    first = up.part("git")
    os.kill(first, signal.SIGKILL)
    again = eventually(lambda: (now := up.part("git")) not in (None, first) and now, "another runner")
    assert "the git ended" in up.log.read_text()
    eventually((up.run_dir / "git.sock").exists, "its socket")
    assert "refs/heads/main" in eventually(lambda: tried(url, work), "git that works again")
    assert pathlib.Path(f"/proc/{again}/oom_score_adj").read_text().strip() == "1000"


def tried(url, work):
    done = subprocess.run(["git", "ls-remote", url], cwd=work, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def test_a_kernel_without_landlock_is_pointed_out_and_git_works(server, tmp_path):
    up = server("landlock", "--ephemeral", "--set", "node.kernel_lacks=landlock").start()
    first_commit(repository(up), tmp_path)
    log = up.log.read_text()
    assert "no landlock" in log and "can read the files that the server can" in log, log[-2000:]
