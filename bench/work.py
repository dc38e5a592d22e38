"""Work of a coding agent inside a sandbox against the same programs on the host."""

import shutil
import time
from pathlib import Path

from client import Client
from machine import CofferUp
from peers import Chroot
from report import Report, p50

TOP = "/home/user/bench"
SCRIPT = "/home/user/workload.py"
WORK = {
    "git clone": (["/usr/bin/git", "clone", "--quiet", f"file://{TOP}/origin", f"{TOP}/clone"], ["/bin/rm", "-r", f"{TOP}/clone"]),
    "many small files": (["/usr/bin/python3", SCRIPT, "files", TOP], None),
    "compile": (["/usr/bin/make", "--silent", "--jobs=2", "-C", f"{TOP}/source"], ["/usr/bin/make", "--silent", "-C", f"{TOP}/source", "clean"]),
}


def measure(report: Report, up: CofferUp, chroot: Chroot, rounds: int):
    client = Client(up.env())
    sandbox = client.create()

    def inside(*words: str) -> float:
        since = time.perf_counter()
        ran = client.execute(sandbox, *words)
        if ran.exit_code != 0:
            raise RuntimeError(f"{words[0]} inside: {ran.output[-300:]!r}")
        return ran.ended - since

    script = Path(__file__).with_name("workload.py")
    shutil.copy(script, chroot.work)
    client.upload(sandbox, SCRIPT, [script.read_bytes()], script.stat().st_size)
    for place in (chroot.execute, inside):
        place("/usr/bin/python3", SCRIPT, "prepare", TOP)
    times: dict[str, list[float]] = {f"{name}{where}": [] for name in WORK for where in (", host", ", inside")}
    for number in range(rounds + 1):
        for name, (words, clean) in WORK.items():
            for where, place in ((", host", chroot.execute), (", inside", inside)):
                took = place(*words)
                if clean:
                    place(*clean)
                if number:  # the first one warms up
                    times[name + where].append(took)
    client.destroy(sandbox)
    client.close()
    report.heading("Work inside")
    report.say("The same programs, from the same files, on the host's own disk and in a sandbox.")
    report.times("s", times)
    for name in WORK:
        report.at_most(f"{name}, inside / host", p50(times[f"{name}, inside"]) / p50(times[f"{name}, host"]), 1.15)
