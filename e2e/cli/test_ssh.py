"""The real OpenSSH client, rsync, sftp, scp, sshfs and git into a sandbox, by `coffer ssh` and `coffer ssh-config`."""

import contextlib
import filecmp
import hashlib
import os
import pathlib
import pty
import select
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid

import httpx
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from coffer_up import binary, eventually, free_port

COFFER = str(binary())
BIG = 64 << 20


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """A home and a configuration directory of the suite's own; ssh itself looks in the real home, hence `-F`."""
    home = tmp_path_factory.mktemp("home")
    found = {name: value for name, value in os.environ.items() if name not in ("SSH_AUTH_SOCK", "DISPLAY")}
    return found | {"HOME": str(home), "COFFER_CONFIG_DIR": str(home / "con fig"), "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def run(env):
    def run(*words, code=0, stdin=b"", timeout=180, **options):
        options = {"env": env} | options
        done = subprocess.run([*map(str, words)], input=stdin, capture_output=True, timeout=timeout, **options)
        assert done.returncode == code, (words, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done

    return run


@pytest.fixture(scope="module")
def config(run, env):
    """What `ssh-config --write` wrote."""
    run(COFFER, "ssh-config", "--write")
    return pathlib.Path(env["HOME"]) / ".ssh/config"


@pytest.fixture(scope="module")
def box(run):
    name = f"ssh-{uuid.uuid4().hex[:8]}"
    made = run(COFFER, "create", "--name", name, "--lifetime", "30m").stdout.decode().strip()
    yield name
    run(COFFER, "rm", made)


@pytest.fixture(scope="module")
def host(box):
    return f"{box}.coffer"


@pytest.fixture(scope="module")
def ssh(run, config, host):
    def ssh(*words, options=(), **more):
        return run("ssh", "-F", config, *options, host, *words, **more)

    return ssh


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    path = tmp_path_factory.mktemp("big") / "big"
    path.write_bytes(os.urandom(BIG))
    return path


def sum_of(path) -> str:
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for number in range(200):
        file = root / f"d{number % 7}" / f"file {number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(number * 31))
    (root / "link").symlink_to("d1/file 1")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


def same(left: pathlib.Path, right: pathlib.Path):
    found = filecmp.dircmp(left, right)
    stack = [found]
    while stack:
        here = stack.pop()
        assert not (here.left_only or here.right_only or here.funny_files), (here.left_only, here.right_only)
        _, different, errors = filecmp.cmpfiles(here.left, here.right, here.common_files, shallow=False)
        assert not (different or errors), (different, errors)
        stack.extend(here.subdirs.values())
    assert os.readlink(right / "link") == "d1/file 1"
    assert os.access(right / "run.sh", os.X_OK)


def test_a_command_has_its_streams_and_exit_code(ssh):
    done = ssh("printf 'o\\0'; printf 'e\\n' >&2; exit 7", code=7)
    assert (done.stdout, done.stderr) == (b"o\0", b"e\n")
    assert ssh("id -un; pwd").stdout.split() == [b"user", b"/home/user"]
    assert ssh("kill -9 $$", code=255).stdout == b""


def test_coffer_ssh_passes_options_and_commands_on(run, box):
    assert run(COFFER, "ssh", box, "echo", "'a  b'").stdout == b"a  b\n"
    assert run(COFFER, "ssh", box, "--", "exit", "3", code=3).stdout == b""
    assert run(COFFER, "ssh", f"root@{box}", "id -u").stdout == b"0\n"
    assert run(COFFER, "ssh", box, "--", "-o", "SetEnv=FROM_HERE=1", "echo $FROM_HERE").stdout == b"1\n"


def test_large_streams_both_ways_with_new_keys_on_the_way(ssh, big):
    data = big.read_bytes()
    done = ssh("cat", options=["-o", "RekeyLimit=4M"], stdin=data, timeout=600)
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def read_until(terminal: int, wanted: bytes, within_s=30) -> bytes:
    seen, deadline = b"", time.monotonic() + within_s
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096)
    return seen


def test_a_terminal_has_its_name_its_size_and_its_keys(config, host, env):
    import fcntl
    import signal
    import struct
    import termios

    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("ssh", ["ssh", "-F", str(config), host], {**env, "TERM": "xterm-256color"})
    try:
        os.write(terminal, b"stty size; echo $TERM-$((40+2))\n")
        read_until(terminal, b"xterm-256color-42")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 51, 133, 0, 0))
        os.kill(pid, signal.SIGWINCH)

        def resized():
            os.write(terminal, b"stty size\n")
            with contextlib.suppress(AssertionError):
                return read_until(terminal, b"51 133", 2)

        eventually(resized, "the new size", 30)
        os.write(terminal, b"sleep 1000\n")
        time.sleep(1)
        os.write(terminal, b"\x03")
        os.write(terminal, b"echo ended-$((1+1)); exit 5\n")
        read_until(terminal, b"ended-2")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 5
    finally:
        os.close(terminal)


def test_pipes_wait_for_slow_clients_and_end_with_lost_ones(ssh, config, host, env):
    """A terminal hangs up at once; a pipe is closed when agentd is sure that nobody comes back. Meanwhile a reader takes
    longer than the 30 seconds after which one that watches a log is cut off."""
    words = ["ssh", "-F", str(config), host]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "env": env}
    slow = subprocess.Popen([*words, "head -c 20000000 /dev/zero"], **streams | {"stdout": subprocess.PIPE})
    began = time.monotonic()
    shell = subprocess.Popen([*words, "-tt", "sleep 4321"], **streams)
    pipe = subprocess.Popen([*words, "sed s/a/4322/"], **streams)
    runs = lambda what: ssh(f"pgrep -f '[{what[0]}]{what[1:]}' || true").stdout.strip() != b""
    eventually(lambda: runs("sleep 4321") and runs("sed s/a/4322/"), "both run", 30)
    for process in (shell, pipe):
        process.kill()
        process.wait()
    eventually(lambda: not runs("sleep 4321"), "the terminal's program ended", 30)
    eventually(lambda: not runs("sed s/a/4322/"), "the pipe's program ended", 90)
    time.sleep(max(0, 35 - (time.monotonic() - began)))
    with slow:
        assert len(slow.stdout.read()) == 20_000_000
        assert slow.wait(60) == 0


def test_sftp_puts_gets_and_lists(run, config, host, tmp_path, big):
    got, names = tmp_path / "got", tmp_path / "names"
    names.mkdir()
    for number in range(20):
        (names / f"n{number}").write_text(str(number))
    batch = f"""mkdir up
put {big} up/big
get up/big {got}
put -r {names} up/
ls -l up
rename up/big up/bigger
ln -s bigger up/link
chmod 600 up/bigger
df
rm up/bigger
-mkdir up
"""
    done = run("sftp", "-F", config, "-b", "-", host, stdin=batch.encode(), timeout=600)
    assert sum_of(got) == sum_of(big)
    assert b"big" in done.stdout and b"user" in done.stdout, done.stdout
    listed = run("sftp", "-F", config, "-b", "-", host, stdin=b"ls -1 up/names\nls -l up").stdout
    assert listed.count(b"up/names/n") == 20 and b"link" in listed, listed


def test_sftp_lists_ten_thousand_files(ssh, run, config, host):
    ssh("mkdir many && cd many && seq 10000 | xargs touch")
    assert run("sftp", "-F", config, "-b", "-", host, stdin=b"ls -1 many").stdout.count(b"many/") >= 10_000


def test_scp_both_ways_and_by_the_user_that_is_named(run, config, host, tree, tmp_path):
    run("scp", "-F", config, "-rp", tree, f"{host}:copied")
    run("scp", "-F", config, "-rp", f"{host}:copied", tmp_path / "back")
    # scp follows links; it has always done so.
    (tmp_path / "back/link").unlink()
    (tmp_path / "back/link").symlink_to("d1/file 1")
    same(tree, tmp_path / "back")
    assert run("scp", "-F", config, tree / "run.sh", f"root@{host}:/etc/run.sh").stdout == b""
    denied = run("scp", "-F", config, tree / "run.sh", f"{host}:/etc/run2.sh", code=1)
    assert b"ermission denied" in denied.stderr


def test_rsync_both_ways(run, config, host, tree, tmp_path):
    shell = f"ssh -F '{config}'"
    run("rsync", "-a", "-e", shell, f"{tree}/", f"{host}:synced/")
    (tree / "new").write_text("new")
    (tree / "d2/file 2").unlink()
    run("rsync", "-a", "--delete", "-e", shell, f"{tree}/", f"{host}:synced/")
    run("rsync", "-a", "-e", shell, f"{host}:synced/", tmp_path / "back/")
    same(tree, tmp_path / "back")


def test_git_clones_and_pushes(ssh, run, env, config, host, tmp_path):
    ssh(
        "git init -q -b main repo && cd repo && git config user.name a && git config user.email a@b.c"
        " && git config receive.denyCurrentBranch updateInstead && echo one >a && git add a && git commit -qm one"
    )
    git = {**env, "GIT_SSH_COMMAND": f"ssh -F '{config}'", "GIT_CONFIG_GLOBAL": "/dev/null"}
    run("git", "clone", "-q", f"{host}:repo", tmp_path / "clone", env=git)
    assert (tmp_path / "clone/a").read_text() == "one\n"
    (tmp_path / "clone/a").write_text("two\n")
    here = ["git", "-C", tmp_path / "clone", "-c", "user.name=b", "-c", "user.email=b@b.c"]
    run(*here, "commit", "-qam", "two", env=git)
    run(*here, "push", "-q", env=git)
    assert ssh("cat repo/a").stdout == b"two\n"


@contextlib.contextmanager
def forwarding(config, host, env, *options):
    """ssh without a command, until the block ends."""
    words = ["ssh", "-F", str(config), "-N", "-o", "ExitOnForwardFailure=yes", *options, host]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
    try:
        yield process
    finally:
        end(process)


def end(process):
    """ssh misses a signal that comes just before it waits for its next event, so it is sent until it is heard."""
    eventually(lambda: process.terminate() or process.poll() is not None, "ssh ends", 30)


def test_ports_and_sockets_are_forwarded(ssh, config, host, env, tmp_path):
    ssh(
        "mkdir -p www && cd www && head -c 3000000 /dev/urandom >f && sha256sum <f >s"
        " && (setsid python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 </dev/null &)"
    )
    serve = "import socket,os;s=socket.socket(socket.AF_UNIX);s.bind('/tmp/s');s.listen();c,_=s.accept();c.sendall(c.recv(9)*2)"
    ssh(f'(setsid python3 -c "{serve}" >/dev/null 2>&1 </dev/null &)')
    port, closed, path = free_port(), free_port(), tmp_path / "socket"
    options = ["-L", f"{port}:localhost:8123", "-L", f"{closed}:localhost:1", "-L", f"{path}:/tmp/s"]
    with forwarding(config, host, env, *options) as process:

        def get(name):
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=20).read()

        wanted = eventually(lambda: get("s"), "the forwarded port", 60).split()[0].decode()
        for _ in range(5):
            assert hashlib.sha256(get("f")).hexdigest() == wanted
        with socket.socket(socket.AF_UNIX) as near:
            near.connect(str(path))
            near.sendall(b"twice")
            assert near.recv(100) + near.recv(100) == b"twicetwice"
        with socket.create_connection(("127.0.0.1", closed)) as near:
            near.settimeout(30)
            assert near.recv(1) == b""
        end(process)
        assert b"onnection refused" in process.stderr.read()


def test_what_would_reach_back_is_refused(ssh, config, host, env):
    with forwarding(config, host, env, "-R", "7000:localhost:22") as process:
        assert process.wait(60) == 255
        assert b"remote port forwarding failed" in process.stderr.read()
    assert ssh("echo ${SSH_AUTH_SOCK:-none}", options=["-A"]).stdout == b"none\n"


def test_a_paused_sandbox_is_resumed(run, ssh, box):
    ssh("echo kept >kept")
    run(COFFER, "pause", box)
    done = ssh("cat kept")
    assert done.stdout == b"kept\n" and b"resumed sandbox" in done.stderr


def test_wrong_names_are_named(run, config, box):
    for name in ["no-such-box", "01jxxxxxxxxxxxxxxxxxxxxxxx"]:
        done = run("ssh", "-F", config, f"{name}.coffer", "true", code=255)
        assert f"sandbox '{name}' not found".encode() in done.stderr and b"hint: `coffer ls`" in done.stderr
    run(COFFER, "ssh-config", "no-such-box", "--write", code=4)
    run(COFFER, "ssh-config", "a b", code=2)


def test_another_projects_sandbox_is_not_found(run, config, env, box):
    operator = (pathlib.Path(os.environ["COFFER_E2E_DATA_DIR"]) / "operator-key").read_text().strip()
    with httpx.Client(base_url=f"{env['COFFER_URL']}/api/v1", headers={"X-API-KEY": operator}, timeout=60) as admin:
        project = admin.post("/projects", json={"name": box}).raise_for_status().json()["id"]
        key = admin.post(f"/projects/{project}/keys", json={"name": "ssh", "role": "admin"}).raise_for_status()
    other = {**env, "COFFER_API_KEY": key.json()["key"], "E2B_API_KEY": key.json()["key"]}
    sandbox = next(one for one in run(COFFER, "ls", "-q").stdout.decode().split())
    for name in (box, sandbox):
        done = run("ssh", "-F", config, f"{name}.coffer", "true", code=255, env=other)
        assert f"sandbox '{name}' not found".encode() in done.stderr


def test_hosts_are_known_and_strangers_keys_refused(run, env, config, host, tmp_path):
    known = next(pathlib.Path(env["COFFER_CONFIG_DIR"]).glob("ssh/*/known_hosts"))
    assert known.read_text().startswith("coffer ssh-ed25519 ")
    assert "StrictHostKeyChecking yes" in (known.parent.parent / "config").read_text()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key")
    known_key = (known.parent / "id_ed25519").stat().st_mode & 0o777
    assert known_key == 0o600
    stranger = ["-o", f"IdentityFile={tmp_path / 'key'}"]
    own = known.parent / "id_ed25519"
    kept = own.read_bytes()
    done = run("ssh", "-F", config, *stranger, host, "true")
    assert done.stdout == b""
    forged = tmp_path / "known"
    forged.write_text("coffer " + " ".join((tmp_path / "key.pub").read_text().split()[:2]) + "\n")
    done = run("ssh", "-F", config, "-o", f"UserKnownHostsFile={forged}", host, "true", code=255)
    assert b"REMOTE HOST IDENTIFICATION HAS CHANGED" in done.stderr
    shown = run(COFFER, "ssh-config").stdout.decode()
    lines = [line for line in shown.splitlines() if "IdentityFile" not in line]
    only = tmp_path / "config"
    only.write_text("\n".join(lines) + f"\n  IdentityFile {tmp_path / 'key'}\n")
    done = run("ssh", "-F", only, host, "true", code=255)
    assert b"Permission denied (publickey)" in done.stderr
    assert own.read_bytes() == kept


def test_a_name_runs_nothing_here(run, config, tmp_path):
    """Older versions of ssh take any text for a host, and hand it to a shell: git would let a repository choose it."""
    mark = tmp_path / "mark"
    for name in [
        f"$(touch {mark}).coffer",
        f"`touch {mark}`.coffer",
        f"';touch {mark};'.coffer",
        f"x;touch {mark};.coffer",
    ]:
        subprocess.run(["ssh", "-F", str(config), name, "true"], capture_output=True, timeout=60)
        assert not mark.exists(), name


def test_writing_again_changes_nothing_and_lists_boxes(run, env, config, box):
    before = config.read_text()
    run(COFFER, "ssh-config", box, "--write")
    assert config.read_text() == before and before.count("Include") == 1
    written = next(pathlib.Path(env["COFFER_CONFIG_DIR"]).glob("ssh/config")).read_text()
    assert f"Host {box}.coffer *.coffer" in written
    assert b"Host " in run(COFFER, "ssh-config", box).stdout


def test_profiles_have_keys_and_names_of_their_own(run, env, config, box):
    data = pathlib.Path(os.environ["COFFER_E2E_DATA_DIR"])
    bare = {name: value for name, value in env.items() if not name.startswith(("COFFER_", "E2B_"))}
    bare["COFFER_CONFIG_DIR"] = env["COFFER_CONFIG_DIR"]
    run(COFFER, "login", "--env-file", data / "env", "--name", "work", env=bare)
    run(COFFER, "ssh-config", "--write", env=bare)
    for name in (f"{box}.work.coffer", f"{box}.coffer"):
        assert run("ssh", "-F", config, name, "echo here", env=bare).stdout == b"here\n"
    run(COFFER, "ssh-config", "--write")


def test_sshfs_mounts_a_directory(run, ssh, env, config, host, tmp_path):
    if not shutil.which("sshfs"):
        pytest.skip("no sshfs; `scripts/setup test` installs it")
    probe = tmp_path / "mount"
    probe.mkdir()
    mounted = subprocess.run(
        ["sshfs", "-F", str(config), f"{host}:", str(probe)], capture_output=True, timeout=60, env=env
    )
    if mounted.returncode and b"fuse" in mounted.stderr:
        pytest.skip(f"no FUSE here: {mounted.stderr.decode().strip()}")
    assert mounted.returncode == 0, mounted.stderr
    try:
        (probe / "over").write_text("sshfs")
        os.replace(probe / "over", probe / "there")
        with (probe / "there").open("r+b") as file:
            file.seek(2)
            file.write(b"HF")
        assert ssh("cat there").stdout == b"ssHFs"
    finally:
        run("fusermount3", "-u", probe)
