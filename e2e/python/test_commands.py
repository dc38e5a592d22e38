import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)


def test_streams_are_apart_and_whole(box):
    result = box.commands.run("echo out; echo err >&2; printf 'ünï\\n'")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\nünï\n", "err\n", 0)


@pytest.mark.parametrize("code", [1, 2, 127, 255])
def test_exit_code(box, code):
    with pytest.raises(CommandExitException) as failed:
        box.commands.run(f"echo some; echo more >&2; exit {code}")
    assert (failed.value.exit_code, failed.value.stdout, failed.value.stderr) == (code, "some\n", "more\n")


def test_broken_utf8_over_a_chunk_border(box):
    result = box.commands.run("head -c 32767 /dev/zero | tr '\\0' a; printf '\\xe2\\x82\\xac\\xe2'")
    assert result.stdout == "a" * 32767 + "€\ufffd"


def test_callbacks_come_while_the_command_runs(box, here, eventually):
    """Nothing is timed: the command waits for a file that is only made once its first line has arrived."""
    seen, result = [], []
    command = f"echo first; echo aside >&2; until [ -e {here}/go ]; do sleep 0.05; done; echo last"

    def run():
        result.append(box.commands.run(command, on_stdout=seen.append, on_stderr=seen.append, timeout=300))

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: "first\n" in seen and "aside\n" in seen)
    assert not result
    box.files.write(f"{here}/go", "")
    thread.join(300)
    assert result[0].stdout == "first\nlast\n" and seen[-1] == "last\n"


def test_output_keeps_its_order(box):
    seen = []
    box.commands.run("seq 1 20000", on_stdout=seen.append)
    assert "".join(seen) == "".join(f"{number}\n" for number in range(1, 20001))


def test_large_output(box):
    size = 50 << 20
    result = box.commands.run(f"head -c {size} /dev/zero | tr '\\0' x", timeout=500)
    assert len(result.stdout) == size and result.stdout.count("x") == size


def test_fifty_at_once(box):
    def run(number):
        return box.commands.run(f"sleep 0.5; echo {number}", timeout=300).stdout

    with ThreadPoolExecutor(50) as pool:
        assert list(pool.map(run, range(50))) == [f"{number}\n" for number in range(50)]


def test_background_list_connect_replay(box, here):
    command = box.commands.run(
        f"echo early; until [ -e {here}/go ]; do sleep 0.05; done; echo late; exit 3", background=True
    )
    listed = {process.pid: process for process in box.commands.list()}
    assert listed[command.pid].cmd == "/bin/bash" and "early" in listed[command.pid].args[-1]
    command.disconnect()  # does not end it
    attached = box.commands.connect(command.pid)
    box.files.write(f"{here}/go", "")
    with pytest.raises(CommandExitException) as ended:
        attached.wait()
    assert (ended.value.exit_code, ended.value.stdout) == (3, "early\nlate\n")
    assert command.pid not in {process.pid for process in box.commands.list()}


def test_stdin(box):
    command = box.commands.run("cat; echo end", background=True, stdin=True)
    for part in ("Hello,\n", "!@#$%^&*()_+ ", "ünï"):
        box.commands.send_stdin(command.pid, part)
    box.commands.close_stdin(command.pid)
    assert command.wait().stdout == "Hello,\n!@#$%^&*()_+ ünïend\n"


def test_without_stdin_there_is_none(box):
    assert box.commands.run("cat; echo end").stdout == "end\n"


def test_kill(box):
    command = box.commands.run("sleep 1000", background=True, timeout=0)
    assert box.commands.kill(command.pid) is True
    with pytest.raises(CommandExitException) as ended:
        command.wait()
    assert ended.value.exit_code != 0 and "killed" in ended.value.error
    assert box.commands.kill(command.pid) is False
    assert box.commands.kill(999999) is False


def test_signal_from_inside_reaches_the_command(box):
    command = box.commands.run(
        "trap 'echo caught; exit 7' TERM; echo $$; while :; do sleep 0.05; done", background=True
    )
    pid = next(out for out, _, _ in command if out).strip()
    box.commands.run(f"kill -TERM {pid}")
    with pytest.raises(CommandExitException) as ended:
        command.wait()
    assert (ended.value.exit_code, ended.value.stdout) == (7, f"{pid}\ncaught\n")


def test_timeout_ends_the_command_too(box, here, eventually):
    with pytest.raises(TimeoutException):
        box.commands.run(f"echo $$ > {here}/pid; exec sleep 1000", timeout=2)
    pid = box.files.read(f"{here}/pid").strip()
    eventually(lambda: box.commands.run(f"kill -0 {pid} 2>/dev/null && echo alive || echo gone").stdout == "gone\n")


def test_env_cwd_user(box, here):
    result = box.commands.run('echo "$COLOUR $PWD $USER $HOME"', envs={"COLOUR": "red"}, cwd=here)
    assert result.stdout == f"red {here} user /home/user\n"
    assert box.commands.run("id -un; pwd; echo $HOME", user="root").stdout == "root\n/root\n/root\n"


@pytest.mark.parametrize(
    "error, options",
    [(InvalidArgumentException, {"cwd": "/no/such/place"}), (AuthenticationException, {"user": "nobody-here"})],
)
def test_refused_start(box, error, options):
    with pytest.raises(error):
        box.commands.run("true", **options)


def test_connect_to_no_process(box):
    with pytest.raises(NotFoundException):
        box.commands.connect(999999)


def test_orphans_are_reaped(box):
    box.commands.run("for i in $(seq 50); do (true &) ; done; sleep 0.5")
    zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true"
    assert box.commands.run(zombies).stdout.strip() == "0"


def test_sandbox_killed_while_a_command_runs(make):
    sandbox = make()
    command = sandbox.commands.run("sleep 1000", background=True, timeout=0)
    sandbox.kill()
    with pytest.raises(SandboxException, match="sandbox was killed or reached its end of life"):
        command.wait()


def test_tools_of_the_template(box):
    missing = box.commands.run(
        "for t in bash python3 node git curl sudo; do command -v $t >/dev/null || echo $t; done"
    ).stdout
    if missing:
        pytest.skip(f"this template (made of the host) has no {missing.split()}")
    shown = box.commands.run("python3 -c 'print(6*7)'; node -p 6*7; git --version | cut -c1-3; sudo id -un").stdout
    assert shown == "42\n42\ngit\nroot\n"


def test_what_a_program_can_know_about_its_sandbox(box):
    command = 'echo "$E2B_SANDBOX $E2B_SANDBOX_ID"; cd /run/e2b; echo "$(cat .E2B_SANDBOX) $(cat .E2B_SANDBOX_ID)"'
    assert box.commands.run(command).stdout == f"true {box.sandbox_id}\n" * 2
