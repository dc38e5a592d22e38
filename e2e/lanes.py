"""Runs jobs side by side. The output of each is kept apart and shown whole, in the order of the jobs.

A job prints with `say` and starts programs with `show`, which know where its output goes. Jobs that name the same
`group` never run at the same time. With one lane the output is shown as it comes.
"""

import contextvars
import dataclasses
import pathlib
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable

_out = contextvars.ContextVar("out", default=None)


def say(text: str):
    print(text, file=_out.get() or sys.stdout, flush=True)


def show(*command, **options) -> subprocess.CompletedProcess:
    """Runs a program whose output is part of the job's."""
    if (out := _out.get()) is not None:
        options |= {"stdout": out, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    return subprocess.run([str(part) for part in command], **options)


@dataclasses.dataclass
class Job:
    name: str
    work: Callable[[], object]
    group: str | None = None
    # What `work` returned, `None` if it raised.
    result: object = None
    seconds: float = 0
    _done: threading.Event = dataclasses.field(default_factory=threading.Event)


class _Queue:
    """Jobs that wait, in their order, and the groups that are busy."""

    def __init__(self, jobs: list[Job]):
        self.waiting, self.busy, self.changed = list(jobs), set(), threading.Condition()

    def take(self) -> Job | None:
        with self.changed:
            while self.waiting:
                for job in self.waiting:
                    if job.group is None or job.group not in self.busy:
                        self.waiting.remove(job)
                        self.busy.add(job.group)
                        return job
                self.changed.wait()
            return None

    def give_back(self, job: Job):
        with self.changed:
            self.busy.discard(job.group)
            self.changed.notify_all()

    def drop(self):
        with self.changed:
            self.waiting.clear()
            self.changed.notify_all()


def _run(job: Job):
    since = time.monotonic()
    try:
        job.result = job.work()
    except Exception:
        say(traceback.format_exc())
    job.seconds = time.monotonic() - since
    job._done.set()


def run_all(jobs: list[Job], lanes: int, logs: pathlib.Path):
    """Runs the jobs in so many lanes; keeps their output below `logs`."""
    if lanes < 2 or len(jobs) < 2:
        for job in jobs:
            _run(job)
        return
    queue = _Queue(jobs)
    progress = threading.Lock()

    def lane():
        while job := queue.take():
            with progress:
                print(f"… {job.name} begins", flush=True)
            with (logs / f"{job.name}.out").open("w") as out:
                token = _out.set(out)
                _run(job)
                _out.reset(token)
            queue.give_back(job)

    threads = [threading.Thread(target=lane) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        for job in jobs:
            job._done.wait()
            with progress:
                print(f"\n──── {job.name}, {job.seconds:.0f} s", flush=True)
                sys.stdout.write((logs / f"{job.name}.out").read_text(errors="replace"))
                sys.stdout.flush()
    except KeyboardInterrupt:
        queue.drop()
        raise
    finally:
        for thread in threads:
            thread.join()
