"""Runs suites of e2e/ inside a virtual machine, where they can look at the host that `coffer` is on.

    python3 inside.py SUITE REPORT [pytest arguments...]

Nothing is installed here: packages and suites come with the payload. `hostile` gets a server with small limits, as from
e2e/run; the other suites start servers of their own.
"""

import contextlib
import os
import pathlib
import subprocess
import sys

E2E = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(E2E))
from coffer_up import CofferUp, inventory

SCRATCH = pathlib.Path("/var/tmp/coffer-e2e")
# As in e2e/run, which cannot be imported here: it installs packages.
HOSTILE = ["--sandbox-memory=256MiB", "--sandbox-disk=256MiB", "--sandbox-cpus=1", "--sandbox-processes=400"]
HOSTILE += ["--warm-slots=0"]


@contextlib.contextmanager
def server(suite: str):
    """The variables that name a server for the suite, if it has none of its own."""
    if suite != "hostile":
        yield {}
        return
    with CofferUp(SCRATCH / "hostile", "--ephemeral", *HOSTILE, pool_size="2GiB") as up:
        yield {**up.env(), "COFFER_E2E_DATA_DIR": str(up.data_dir)}
    left = {kind: found for kind, found in inventory(up).items() if found and kind != "cgroups"}
    if left:
        raise SystemExit(f"the hostile suite left on this host: {left}")


def main() -> int:
    suite, report, *arguments = sys.argv[1:]
    SCRATCH.mkdir(parents=True, exist_ok=True)
    os.environ |= {"PYTHONPATH": f"{E2E}:{os.environ['PYTHONPATH']}", "COFFER_BIN": "/usr/bin/coffer"}
    os.environ |= {"TMPDIR": str(SCRATCH), "E2E_POOL_SIZE": "2GiB"}
    with server(suite) as names:
        command = [sys.executable, "-m", "pytest", "-c", E2E / "pytest.ini", "--rootdir", E2E, "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", *arguments]
        done = subprocess.run([str(part) for part in command], env=os.environ | names, cwd=E2E / suite)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
