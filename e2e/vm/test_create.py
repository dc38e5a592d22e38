"""The least that a host must do."""

from e2b import Sandbox

PATIENCE_S = 300  # emulated processors are some ten times slower


def test_create_runs_a_command():
    sandbox = Sandbox.create(timeout=PATIENCE_S, request_timeout=PATIENCE_S)
    try:
        said = sandbox.commands.run("echo hello from $(hostname)", request_timeout=PATIENCE_S, timeout=PATIENCE_S)
        assert said.stdout.startswith("hello from ")
    finally:
        sandbox.kill()
