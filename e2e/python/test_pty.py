import pytest
from e2b import CommandExitException, PtySize


def wait(terminal):
    """Everything the terminal shows until its end, and the exit code."""
    shown = []
    try:
        code = terminal.wait(on_pty=lambda data: shown.append(data.decode(errors="replace"))).exit_code
    except CommandExitException as ended:
        code = ended.exit_code
    return "".join(shown), code


def test_size_resize_environment_and_directory(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), envs={"COLOUR": "green"}, cwd="/tmp", timeout=300)
    box.pty.send_stdin(terminal.pid, b"stty size; echo $COLOUR:$PWD:$TERM\n")
    box.pty.resize(terminal.pid, PtySize(rows=33, cols=121))
    box.pty.send_stdin(terminal.pid, b"sleep 1; stty size; exit 5\n")
    shown, code = wait(terminal)
    assert code == 5
    assert "green:/tmp:xterm" in shown and "33 121" in shown


def read_until(terminal, word):
    shown = ""
    for _, _, data in terminal:
        shown += (data or b"").decode(errors="replace")
        if word in shown:
            return


def test_connect_after_disconnect(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), envs={"WORD": "first"}, timeout=300)
    box.pty.send_stdin(terminal.pid, b"echo ==$WORD==\n")
    read_until(terminal, "==first==")
    terminal.disconnect()
    again = box.pty.connect(terminal.pid, timeout=300)
    assert again.pid == terminal.pid
    box.pty.send_stdin(terminal.pid, b"echo ++$WORD++; exit\n")
    output, code = wait(again)
    assert code == 0 and "++first++" in output


def test_interrupt_is_a_signal(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80), timeout=300)
    # In a subshell: an interactive shell gives the terminal to its jobs and hears no interrupt itself. In a loop: an
    # interrupt that comes before a long sleep would not end it.
    box.pty.send_stdin(
        terminal.pid, b"(trap 'echo inter''rupted; exit' INT; echo rea''dy; while :; do sleep 0.1; done)\n"
    )
    read_until(terminal, "ready")
    box.pty.send_stdin(terminal.pid, b"\x03")
    # The shell may drop what is typed before it has the terminal back.
    read_until(terminal, "interrupted")
    box.pty.send_stdin(terminal.pid, b"exit 0\n")
    _, code = wait(terminal)
    assert code == 0


def test_kill(box):
    terminal = box.pty.create(PtySize(rows=24, cols=80))
    assert box.pty.kill(terminal.pid) is True
    with pytest.raises(CommandExitException):
        terminal.wait()
    assert box.pty.kill(terminal.pid) is False
