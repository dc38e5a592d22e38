"""A PostgreSQL of a test's own."""

import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

from coffer_up import eventually


@contextmanager
def postgres():
    """Runs one that listens on a socket alone, and yields the address of an empty database."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        import pytest  # e2e/compat/make runs without it

        pytest.skip("SKIPPED: no PostgreSQL under /usr/lib/postgresql (Debian: apt-get install postgresql)")
    programs, nobody = found[-1].parent, pwd.getpwnam("nobody")  # it refuses to run as root
    home = pathlib.Path(tempfile.mkdtemp(prefix="coffer-pg-"))
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    home.chmod(0o755)
    options = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": home}
    server = None
    try:
        init = [programs / "initdb", "--pgdata", home / "data", "--no-sync", "--auth=trust", "--username=coffer"]
        subprocess.run([*init, "--encoding=UTF8", "--locale=C.UTF-8"], check=True, capture_output=True, **options)
        run = [programs / "postgres", "-D", home / "data", "-k", home, "-c", "listen_addresses=", "-c", "fsync=off"]
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(run, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        ask = [programs / "psql", "-h", home, "-U", "coffer", "-qc", "CREATE DATABASE soak", "postgres"]
        eventually(lambda: subprocess.run(ask, capture_output=True, **options).returncode == 0, "a database")
        yield f"postgres://coffer@localhost/soak?host={home}"
    finally:
        if server:
            server.terminate()
            server.wait(30)
        shutil.rmtree(home, ignore_errors=True)
