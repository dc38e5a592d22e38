"""A program that writes and fsyncs all the time, and what must be true of its files at any moment.

Runs inside a sandbox (`python3 fsynced.py write DIR`, `check DIR`) and, for its checks, wherever the files are.

Each number `n` has a file, every tenth also a tree, and then a line in the journal, each on disk before the next is
begun. So whoever sees the files as they were at any one moment sees every file and tree that the journal has a line for,
whole, and no tree in part.
"""

import hashlib
import os
import shutil
import sys

WINDOW = 200  # so many of the newest are looked at
KEPT = 10 * WINDOW  # older ones go, so that the disk does not fill up; never while they are looked at
TREE = 12


def content(n: int) -> bytes:
    return hashlib.sha256(str(n).encode()).digest() * (1 + n % 300)


def sync(path: str):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def put(path: str, data: bytes):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def move(directory: str, name: str):
    os.rename(f"{directory}/{name}.tmp", f"{directory}/{name}")
    sync(directory)


def whole_lines(directory: str) -> list[int]:
    """The journal without a last line that was cut off."""
    try:
        with open(f"{directory}/journal", "rb") as journal:
            text = journal.read()
    except FileNotFoundError:
        return []
    return [int(line) for line in text[: text.rfind(b"\n") + 1].split()]


def write(directory: str):
    os.makedirs(directory, exist_ok=True)
    done = whole_lines(directory)
    n = done[-1] + 1 if done else 1
    # What an end in the middle left unfinished.
    for name in os.listdir(directory):
        if name.endswith(".tmp"):
            path = f"{directory}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
    put(f"{directory}/journal.tmp", "".join(f"{m}\n" for m in done[-WINDOW:]).encode())
    move(directory, "journal")
    with open(f"{directory}/journal", "ab") as journal:
        while True:
            put(f"{directory}/f{n}.tmp", content(n))
            move(directory, f"f{n}")
            if n % 10 == 0:
                tree = f"{directory}/t{n}.tmp"
                shutil.rmtree(f"{directory}/t{n}", ignore_errors=True)  # made, and its line was lost
                os.makedirs(f"{tree}/deep/er", exist_ok=True)
                for leaf in range(TREE):
                    put(f"{tree}/deep/er/{leaf}", content(n + leaf))
                sync(f"{tree}/deep/er")
                sync(f"{tree}/deep")
                sync(tree)
                move(directory, f"t{n}")
            journal.write(f"{n}\n".encode())
            journal.flush()
            os.fsync(journal.fileno())
            old = n - KEPT
            if os.path.exists(f"{directory}/f{old}"):
                os.remove(f"{directory}/f{old}")
            if os.path.exists(f"{directory}/t{old}"):
                os.rename(f"{directory}/t{old}", f"{directory}/t{old}.tmp")  # in part is not whole
                shutil.rmtree(f"{directory}/t{old}.tmp")
            n += 1


def check(directory: str) -> tuple[int, list[str]]:
    """The last number that was on disk, and what is wrong."""
    lines = whole_lines(directory)
    if not lines:
        return 0, []
    wrong = []
    if lines != list(range(lines[0], lines[-1] + 1)):
        wrong.append("the journal has gaps")
    for n in lines[-WINDOW:]:
        wrong += differs(f"{directory}/f{n}", n)
        if n % 10 == 0 and not os.path.isdir(f"{directory}/t{n}"):
            wrong.append(f"t{n} is gone")
    for name in os.listdir(directory):
        is_tree = name.startswith("t") and not name.endswith(".tmp")
        if is_tree and int(name[1:]) > lines[-1] - WINDOW:
            for leaf in range(TREE):
                wrong += differs(f"{directory}/{name}/deep/er/{leaf}", int(name[1:]) + leaf)
    return lines[-1], wrong


def differs(path: str, n: int) -> list[str]:
    try:
        with open(path, "rb") as file:
            found = file.read()
    except OSError as error:
        return [f"{path}: {error}"]
    return [] if found == content(n) else [f"{path} has {len(found)} bytes of other content"]


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    last, wrong = check(sys.argv[2])
    print(last, *wrong[:5], sep="\n")
