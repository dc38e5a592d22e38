"""Builds the template `code-interpreter-v1` from its definition, with E2B's SDK, on the server that the environment names."""

import pathlib
import shutil
import sys
import tempfile
import time
import tomllib

from e2b import Template

from coffer_up import ROOT

CATALOGUE = ROOT / "crates/coffer-build/catalogue"
PROGRAM = ROOT / "target/agentd/coffer-code"


def build():
    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is missing: run scripts/build-agentd first")
    definition = tomllib.loads((CATALOGUE / "code-interpreter-v1.toml").read_text())
    since = time.monotonic()
    with tempfile.TemporaryDirectory() as context:
        for name in definition["files"]:
            shutil.copy(PROGRAM if name == PROGRAM.name else CATALOGUE / name, pathlib.Path(context) / name)
        # The SDK knows images only, and the server's `base` is one of them.
        dockerfile = definition["dockerfile"].replace("template://base", "e2bdev/base")
        template = Template(file_context_path=context).from_dockerfile(dockerfile)
        template = template.set_start_cmd(definition["start"]["command"], definition["start"]["ready"])
        logs = []
        Template.build(
            template,
            definition["name"],
            cpu_count=definition["cpus"],
            memory_mb=definition["memory_mib"],
            on_build_logs=lambda entry: logs.append(entry.message),
        )
    print(f"{definition['name']} was built in {time.monotonic() - since:.0f} s: {logs[-3]}", flush=True)


if __name__ == "__main__":
    build()
