"""What a coding agent makes a machine do. The same file runs inside a sandbox and on the host.

usage: workload.py prepare DIR | files DIR
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES, FILES = 400, 12  # about what a small web project's node_modules holds
COMMITS, TREE = 30, 1500
UNITS = 12


def text(number: int, size: int) -> str:
    """Lines that differ from each other, the same on every run."""
    line, lines = number, []
    while size > 0:
        line = (line * 1103515245 + 12345) % 2**31
        lines.append(f"const value_{line:x} = require('./part-{line % 997}'); // {line * 7919:x}")
        size -= len(lines[-1])
    return "\n".join(lines) + "\n"


def files(top: Path):
    """As an install of packages does: unpack beside, rename into place, resolve, read, and at last remove."""
    modules = top / "node_modules"
    modules.mkdir()
    contents = [text(number, 300 + 350 * number) for number in range(FILES)]
    for package in range(PACKAGES):
        staged, final = modules / f".staging-{package}", modules / f"package-{package}"
        (staged / "lib").mkdir(parents=True)
        for number, content in enumerate(contents):
            (staged / ("lib" if number % 3 else ".") / f"file-{number}.js").write_text(content)
        staged.rename(final)
    total = 0
    for directory, _, names in os.walk(modules):
        for name in names:
            path = os.path.join(directory, name)
            os.stat(path)
            with open(path, "rb") as file:
                total += len(file.read())
    assert total == PACKAGES * sum(map(len, contents)), total
    shutil.rmtree(modules)


def origin(top: Path):
    """A repository with some history."""
    repository = top / "origin"

    def git(*words):
        identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]
        subprocess.run(["git", *identity, "-C", str(repository), *words], check=True, stdout=subprocess.DEVNULL)

    for number in range(TREE):
        path = repository / f"directory-{number % 60}" / f"file-{number}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(number, 2000))
    git("init", "--quiet")
    for commit in range(COMMITS):
        for number in range(commit, TREE, COMMITS):
            (repository / f"directory-{number % 60}" / f"file-{number}.js").write_text(text(number + commit, 3000))
        git("add", ".")
        git("commit", "--quiet", "--message", f"change {commit}")


def sources(top: Path):
    """A program in C of some units that include what programs include."""
    source = top / "source"
    source.mkdir()
    for unit in range(UNITS):
        body = "".join(
            f'int f{unit}_{n}(int a) {{ char t[64]; snprintf(t, sizeof t, "%d", a + {n});'
            f" for (int i = 0; i < {n % 7 + 2}; i++) a += t[i] * {n} ^ (a >> 3); return a; }}\n"
            for n in range(60)
        )
        headers = "".join(f"#include <{name}.h>\n" for name in ("stdio", "stdlib", "string", "math", "unistd"))
        (source / f"unit{unit}.c").write_text(headers + body)
    declared = "".join(f"int f{unit}_0(int);" for unit in range(UNITS))
    called = "".join(f"a = f{unit}_0(a);" for unit in range(UNITS))
    (source / "main.c").write_text(f"{declared} int main(void) {{ int a = 1; {called} return a == 0; }}\n")
    objects = " ".join([*(f"unit{unit}.o" for unit in range(UNITS)), "main.o"])
    rules = f"CFLAGS = -O2\nprogram: {objects}\n\tgcc -o program {objects}\nclean:\n\trm -f program *.o\n"
    (source / "Makefile").write_text(rules)


if __name__ == "__main__":
    verb, top = sys.argv[1], Path(sys.argv[2])
    if verb == "prepare":
        top.mkdir()
        origin(top)
        sources(top)
    elif verb == "files":
        files(top)
    else:
        raise SystemExit(__doc__)
