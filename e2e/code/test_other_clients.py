"""The same with other clients: `@e2b/code-interpreter`, whose tests Node runs, and the Python SDK of the generation before."""

import os
import pathlib
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
FILES = sorted(path.name for path in (HERE / "js").glob("*.test.mjs"))
PATIENCE_S = 590


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("generation", ["NEW", "OLD"])
def test_javascript(name, generation):
    if not (home := os.environ.get(f"COFFER_CODE_JS_{generation}")):
        pytest.skip("SKIPPED: @e2b/code-interpreter is not installed; start the tests with e2e/run code")
    copy = pathlib.Path(home) / name
    copy.write_text((HERE / "js" / name).read_text())
    done = subprocess.run(["node", "--test", str(copy)], cwd=home, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_the_older_python_sdk():
    if not (python := os.environ.get("COFFER_CODE_PYTHON_OLD")):
        pytest.skip("SKIPPED: the older e2b-code-interpreter is not installed; start the tests with e2e/run code")
    files = [HERE / name for name in ("test_python.py", "test_contexts.py", "test_languages.py")]
    command = [python, "-m", "pytest", "-q", "-c", HERE.parent / "pytest.ini", "--rootdir", HERE.parent, *files]
    env = {**os.environ, "COFFER_CODE_READY": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
