"""Our own command line with real sandboxes: what needs bytes, terminals, signals and files."""

import contextlib
import fcntl
import filecmp
import json
import os
import pathlib
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.request

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from coffer_up import binary, eventually

COFFER = str(binary())


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """The variables that `coffer up` writes, and a configuration directory of the test's own."""
    found = dict(os.environ)
    found["COFFER_CONFIG_DIR"] = str(tmp_path_factory.mktemp("config"))
    found["NO_COLOR"] = "1"
    return found


@pytest.fixture
def coffer(env):
    def run(*arguments, code=0, stdin=b"", **options):
        words = [COFFER, *map(str, arguments)]
        done = subprocess.run(words, input=stdin, capture_output=True, timeout=120, env=env, **options)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    return run


@pytest.fixture
def sandbox(coffer):
    made = coffer("create", "--lifetime", "10m", "--metadata", "suite=coffer").decode().strip()
    yield made
    with contextlib.suppress(AssertionError):
        coffer("rm", made)


def live(coffer):
    return set(coffer("ls", "-q").decode().split())


def test_run_streams_passes_the_exit_code_on_and_leaves_nothing(coffer):
    before = live(coffer)
    assert coffer("run", "--", "sh", "-c", "cat; exit 7", stdin=b"in\0put\xff", code=7) == b"in\0put\xff"
    assert live(coffer) == before


def test_run_can_keep_its_sandbox(coffer, env):
    done = subprocess.run([COFFER, "run", "--keep", "--", "true"], capture_output=True, env=env, timeout=120)
    kept = done.stderr.decode().split()[-1]
    assert done.returncode == 0 and kept in live(coffer)
    coffer("rm", kept)


def test_exit_codes_of_commands(coffer, sandbox):
    for line, code in [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)]:
        coffer("exec", sandbox, "--", "sh", "-c", line, code=code)
    coffer("exec", sandbox, "--timeout", "1s", "--", "sleep", "60", code=124)
    coffer("exec", sandbox, "--", "no-such-program", "x", code=125)
    coffer("exec", "no-such-sandbox", "--", "true", "x", code=125)


def test_streams_stay_apart_and_bytes_stay_bytes(coffer, sandbox, env):
    words = [COFFER, "exec", sandbox, "--", "sh", "-c", "printf 'o\\0\\377'; printf 'e\\n' >&2"]
    done = subprocess.run(words, capture_output=True, env=env, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.stdout, done.stderr) == (b"o\0\xff", b"e\n")


def test_a_megabyte_goes_in_and_comes_back(coffer, sandbox):
    data = os.urandom(1 << 20)
    assert coffer("exec", sandbox, "--", "cat", "-", stdin=data) == data


def test_a_closed_stdin_is_an_end_and_a_program_may_ignore_it(coffer, sandbox):
    assert coffer("exec", sandbox, "--", "wc", "-c", stdin=b"").strip() == b"0"
    assert coffer("exec", sandbox, "--", "echo", "done", stdin=b"x" * 300_000) == b"done\n"


def test_variables_directories_and_users(coffer, sandbox, env):
    env["FROM_HERE"] = "here"
    told = coffer("exec", sandbox, "-e", "A=1=2", "-e", "FROM_HERE", "-c", "/tmp", "echo $A $FROM_HERE; pwd")
    assert told.decode().split() == ["1=2", "here", "/tmp"]
    assert coffer("exec", sandbox, "-u", "root", "--", "id", "-u") == b"0\n"


def test_ctrl_c_ends_the_command_inside(coffer, sandbox, env):
    words = [COFFER, "exec", sandbox, "--", "sh", "-c", "echo begun; exec sleep 1000"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env)
    assert started.stdout.readline() == b"begun\n"
    started.send_signal(signal.SIGINT)
    assert started.wait(30) == 130
    left = lambda: coffer("exec", sandbox, "pgrep -f 'sleep 1000' | grep -v $$ | wc -l").strip() == b"0"
    eventually(left, "the command ended", 20)


def test_ctrl_c_destroys_the_sandbox_of_run(coffer, env):
    before = live(coffer)
    words = [COFFER, "run", "--", "sh", "-c", "echo begun; exec sleep 1000"]
    started = subprocess.Popen(words, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env)
    assert started.stdout.readline() == b"begun\n"
    started.send_signal(signal.SIGINT)
    assert started.wait(60) == 130
    assert live(coffer) == before


class Terminal:
    """A program on a terminal of 100 columns and 30 rows."""

    def __init__(self, words, env):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.execve(words[0], words, {**env, "TERM": "xterm-256color"})
        self.size(100, 30)
        self.shown = b""

    def size(self, columns, rows):
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.file, text)

    def expect(self, text, within=60):
        deadline = time.monotonic() + within
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.file], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.file, 4096)
                except OSError:
                    assert text in self.shown, self.shown

    def code(self):
        with contextlib.suppress(OSError):
            while os.read(self.file, 4096):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_shell_on_a_terminal_has_its_size_and_its_keys(sandbox, env):
    shell = Terminal([COFFER, "sh", sandbox], env)
    shell.expect(b"$")
    shell.type(b"test -t 0 && echo is''tty; stty size\r")
    shell.expect(b"istty")
    shell.expect(b"30 100")
    shell.size(120, 40)
    os.kill(shell.pid, signal.SIGWINCH)
    time.sleep(0.5)  # the size travels by itself; nothing reports that it has arrived
    shell.type(b"stty size\r")
    shell.expect(b"40 120")
    # Ctrl-C is the shell's, not ours.
    shell.type(b"sleep 1000\r")
    time.sleep(0.5)
    shell.type(b"\x03")
    shell.type(b"echo al''ive; exit 9\r")
    shell.expect(b"alive")
    assert shell.code() == 9


def test_exec_has_a_terminal_only_if_there_is_one(coffer, sandbox, env):
    coffer("exec", sandbox, "--", "test", "-t", "1", code=1)
    on_terminal = Terminal([COFFER, "exec", sandbox, "--", "test", "-t", "1"], env)
    assert on_terminal.code() == 0
    without = Terminal([COFFER, "exec", "-T", sandbox, "--", "test", "-t", "1"], env)
    assert without.code() == 1


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "sub" / "deep").mkdir(parents=True)
    for number in range(300):
        (root / "sub" / f"file {number}").write_text(str(number))
    (root / "sub" / "deep" / "empty").touch()
    (root / "program").write_text("#!/bin/sh\necho ran\n")
    (root / "program").chmod(0o755)
    (root / "link").symlink_to("sub/deep")
    return root


def same(left, right):
    compared = filecmp.dircmp(left, right)
    assert not (compared.left_only or compared.right_only or compared.diff_files), compared.report()
    for below in compared.subdirs:
        same(left / below, right / below)


def test_cp_of_directories_both_ways(coffer, sandbox, tree, tmp_path):
    coffer("cp", tree, f"{sandbox}:")
    assert coffer("exec", sandbox, "tree/program; readlink tree/link") == b"ran\nsub/deep\n"
    coffer("cp", f"{sandbox}:tree", tmp_path / "back")
    same(tree, tmp_path / "back")
    assert os.access(tmp_path / "back/program", os.X_OK) and os.readlink(tmp_path / "back/link") == "sub/deep"
    # A directory that exists gets the copy inside it.
    coffer("cp", f"{sandbox}:tree", tmp_path / "back")
    same(tree, tmp_path / "back/tree")


def test_cp_of_files_both_ways(coffer, sandbox, tmp_path):
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    coffer("cp", tmp_path / "data", f"{sandbox}:/tmp/new/dir/")
    coffer("cp", f"{sandbox}:/tmp/new/dir/data", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert coffer("cp", f"{sandbox}:/tmp/new/dir/data", "-") == data
    coffer("cp", "-", f"{sandbox}:piped", stdin=b"from a pipe")
    assert coffer("exec", sandbox, "cat piped") == b"from a pipe"
    coffer("cp", tmp_path / "nothing", f"{sandbox}:", code=4)
    coffer("cp", f"{sandbox}:nothing", tmp_path, code=4)
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".coffer")]


def test_cp_does_not_believe_the_tar_of_a_sandbox(coffer, sandbox, tmp_path):
    """The program `tar` in a sandbox is its own: it may write any archive."""
    script = """import io, sys, tarfile
out = tarfile.open(fileobj=sys.stdout.buffer, mode='w|')
for name in ['good', '../escaped']:
    info = tarfile.TarInfo(name); info.size = 4
    out.addfile(info, io.BytesIO(b'evil'))
out.close()
"""
    coffer("cp", "-", f"{sandbox}:/tmp/evil.py", stdin=script.encode())
    install = "printf '#!/bin/sh\\nexec python3 /tmp/evil.py\\n' > /usr/local/bin/tar && chmod 755 /usr/local/bin/tar"
    coffer("exec", "-u", "root", sandbox, "--", "sh", "-c", install)
    coffer("exec", sandbox, "mkdir -p src")
    coffer("cp", f"{sandbox}:src", tmp_path / "into", code=1)
    assert not (tmp_path / "escaped").exists()


def test_a_port_of_a_sandbox_is_here(coffer, sandbox, env):
    coffer("exec", sandbox, "mkdir -p www && echo served > www/index.html")
    start = "nohup python3 -m http.server 8000 -d www > /dev/null 2>&1 &"
    coffer("exec", sandbox, start)
    eventually(lambda: b"8000" in coffer("ports", sandbox), "the port is open", 30)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [COFFER, "ports", sandbox, f"{port}:8000"]
    forward = subprocess.Popen(words, stderr=subprocess.PIPE, env=env)
    try:
        assert str(port).encode() in forward.stderr.readline()
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
                assert answer.read() == b"served\n"
    finally:
        forward.send_signal(signal.SIGINT)
        assert forward.wait(30) == 130


def test_logs_and_events_follow(coffer, sandbox, env):
    logs = subprocess.Popen([COFFER, "logs", "-f", sandbox], stdout=subprocess.PIPE, env=env)
    events = subprocess.Popen(
        [COFFER, "events", "-f", "-o", "json", "--subject", sandbox, "--after", "0"], stdout=subprocess.PIPE, env=env
    )
    try:
        coffer("exec", sandbox, "echo seen in the log")
        assert logs.stdout.readline() == b"seen in the log\n"
        assert json.loads(events.stdout.readline())["kind"] == "sandbox.creating"
        # It ends with the sandbox.
        coffer("rm", sandbox)
        assert logs.wait(30) == 0
    finally:
        for watcher in (logs, events):
            watcher.kill()
            watcher.wait()


def test_pause_resume_snapshot_fork(coffer, sandbox):
    coffer("exec", sandbox, "echo kept > file")
    coffer("pause", sandbox)
    assert json.loads(coffer("show", sandbox, "-o", "json"))["state"] == "paused"
    coffer("resume", sandbox)
    snapshot = coffer("snapshot", sandbox, "--files-only").decode().strip()
    assert coffer("run", "--template", snapshot, "cat file") == b"kept\n"
    forks = coffer("fork", sandbox, "-n", "2").decode().split()
    assert len(forks) == 2
    for fork in forks:
        assert coffer("exec", fork, "cat file") == b"kept\n"
    coffer("rm", *forks)
    coffer("snapshot", "rm", snapshot)


def test_names_and_escapes(coffer, sandbox):
    name = f"evil-\x1b[2J-{os.getpid()}"
    made = coffer("create", "--name", name).decode().strip()
    try:
        listed = coffer("ls").decode()
        assert "\x1b" not in listed and "evil-\\u{1b}[2J-" in listed
        assert json.loads(coffer("show", name, "-o", "json"))["id"] == made
        assert json.loads(coffer("show", made[:-2], "-o", "json"))["id"] == made
        coffer("exec", name, "true")
    finally:
        coffer("rm", name)
    coffer("show", name, code=4)


@pytest.fixture
def workshop(coffer, env, tmp_path):
    """A repository with one commit, and agents that are lines of a shell."""
    suffix = os.urandom(3).hex()
    repository = f"answer-{suffix}"
    made = json.loads(coffer("repo", "add", repository, "-o", "json"))
    key = env.get("COFFER_API_KEY") or env["E2B_API_KEY"]
    url = made["clone_url"].replace("http://", f"http://any:{key}@")
    plain = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    work = tmp_path / "work"

    def git(*words, cwd=work):
        return subprocess.run(["git", *map(str, words)], cwd=cwd, env=plain, check=True, capture_output=True).stdout

    git("clone", "-q", url, work, cwd=tmp_path)
    (work / "answer").write_text("0\n")
    git("add", "-A")
    git("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "-qm", "feat: begin")
    git("push", "-q", "origin", "HEAD:refs/heads/main")
    agents = {"right": "sleep 2; echo 42 > answer", "wrong": "echo 41 > answer"}
    for name, line in agents.items():
        definition = {"preset": "custom", "command": ["/bin/sh", "-c", line, "agent", "{prompt}"]}
        coffer("agent", "add", f"{name}-{suffix}", "--definition", "-", stdin=json.dumps(definition).encode())
    return repository, {name: f"{name}-{suffix}" for name in agents}, git


def test_agents_compete_in_a_live_table(workshop, env):
    repository, agents, _ = workshop
    words = [COFFER, "compete", "Find the answer", "--agents", ",".join(agents.values()), "--repo", repository]
    words += ["--check", "grep -qx 42 answer"]
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=env)
    os.close(theirs)
    drawn = b""
    with contextlib.suppress(OSError):  # the last writer is gone
        while piece := os.read(terminal, 65536):
            drawn += piece
    os.close(terminal)
    result = process.stdout.read().decode()
    assert process.wait(120) == 0, (result, drawn)
    winner = next(line for line in result.splitlines() if "winner" in line)
    assert agents["right"] in winner and "passed" in winner
    assert any(agents["wrong"] in line and "failed" in line for line in result.splitlines()), result
    # On the terminal the table was drawn over itself while entries worked, and left nothing.
    assert b"working" in drawn and drawn.count(b"A\x1b[J") > 1 and drawn.endswith(b"A\x1b[J")
    assert "working" not in result


def test_a_task_goes_from_a_line_to_a_merge(coffer, workshop):
    repository, agents, git = workshop
    words = ["--repo", repository, "--agent", agents["right"], "--check", "grep -qx 42 answer", "--start", "-o", "json"]
    task = json.loads(coffer("task", "add", "Find the answer", *words))["id"]

    def show():
        return json.loads(coffer("task", "show", task, "-o", "json"))

    eventually(lambda: show()["state"] == "in_review", show, 240)
    assert b"+42" in coffer("task", "diff", task)
    assert b"merged pull request" in coffer("task", "merge", task, "--method", "squash")
    eventually(lambda: show()["state"] == "done", show, 60)
    git("pull", "-q", "origin", "main")
    assert git("show", "HEAD:answer") == b"42\n"
    # There is nothing left to merge.
    coffer("task", "merge", task, code=6)
