"""The first page a newcomer reads is executed as it stands."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def blocks(section: str) -> list[tuple[str, str]]:
    readme = (ROOT / "README.md").read_text()
    text = re.search(rf"^## {section}\n(.*?)^## ", readme, re.S | re.M).group(1)
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.S | re.M)


def test_quick_start(tmp_path):
    """`make run` is what started the server here; what comes after it runs literally, next to a `data` of that server."""
    (tmp_path / "data").symlink_to(os.environ["COFFER_E2E_DATA_DIR"])
    found = blocks("Start")
    shell = next(code for kind, code in found if kind == "sh" and "data/env" in code)
    python = next(code for kind, code in found if kind == "python")
    (tmp_path / "first.py").write_text(python)
    clean = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    clean |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HTTP", "HTTPS", "SSL_"))}
    script = f"set -e\n{shell}\n.venv/bin/python first.py\n"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello from" in done.stdout and "Python 3" in done.stdout
