"""Builds the template `code-interpreter-v1` from its definition, with E2B's SDK, on the server that the environment names."""

import pathlib
import shutil
import sys
import tempfile
import time

from e2b import Template, wait_for_url

from coffer_up import ROOT

DEFINITION = ROOT / "crates/coffer-code/template"
PROGRAM = ROOT / "target/agentd/coffer-code"
NAME = "code-interpreter-v1"


def build():
    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is missing: run scripts/build-agentd first")
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        context = pathlib.Path(scratch) / "context"
        shutil.copytree(DEFINITION, context)
        shutil.copy(PROGRAM, context)
        definition, _, start = (context / "Dockerfile").read_text().rpartition("CMD ")
        template = Template(file_context_path=str(context)).from_dockerfile(definition)
        template = template.set_start_cmd(start.strip(), wait_for_url("http://localhost:49999/health"))
        logs = []
        Template.build(
            template, NAME, cpu_count=2, memory_mb=2048, on_build_logs=lambda entry: logs.append(entry.message)
        )
    print(f"{NAME} was built in {time.monotonic() - since:.0f} s: {logs[-3]}", flush=True)


if __name__ == "__main__":
    build()
