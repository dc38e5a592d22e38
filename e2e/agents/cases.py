"""What every agent must bear: a row for each case, with what must come of it."""

import dataclasses
from collections.abc import Callable

from agents.bench import RUN_S, Bench, cost, seconds, tokens
from coffer_up import eventually

# How long an attempt may wait for a model that never answers. Its agent must have started by then.
PATIENCE_S = 45
WORKING_S = 120


@dataclasses.dataclass
class Row:
    """A line of the table."""

    agent: str
    case: str
    outcome: str = "not run"
    took: float = 0.0
    told: tuple[int, int] = (0, 0)
    true: tuple[int, int] = (0, 0)
    cost_told: float | None = None
    cost_true: float = 0.0

    def line(self) -> str:
        pair = "{0[0]}+{0[1]}".format
        cost_told = "-" if self.cost_told is None else f"{self.cost_told:.5f}"
        return (
            f"{self.agent:12} {self.case:10} {self.took:6.1f} s  {pair(self.told):>10} {pair(self.true):>10}  "
            f"{cost_told:>8} {self.cost_true:8.5f}  {self.outcome}"
        )


HEAD = f"{'agent':12} {'case':10} {'time':>8}  {'told':>10} {'true':>10}  {'cost':>8} {'true':>8}  outcome"


# Every row that a run began.
TABLE: list[Row] = []


class Scene:
    """One agent, one case."""

    def __init__(self, bench: Bench, agent: dict, row: Row):
        self.bench, self.agent, self.row = bench, agent, row

    def judge(self, task: dict, run: str) -> dict:
        """Writes the row; tokens and cost are those of the ledger in every case. Returns the newest attempt."""
        attempts, lines = self.bench.attempts(task["id"]), self.bench.script.lines(run)
        row, last = self.row, attempts[-1]
        row.took = sum(map(seconds, attempts))
        why = last["error"]
        row.outcome = f"{why['code']}: {why['message']}" if why else task["state"]
        row.told = tuple(sum(one[name] or 0 for one in attempts) for name in ("input_tokens", "output_tokens"))
        row.true, row.cost_true = tokens(lines), cost(lines)
        told = [one["agent_cost"] for one in attempts if one["agent_cost"] is not None]
        row.cost_told = sum(told) if told else None
        return last

    def run(self, mode: str, agent: dict | None = None, **body) -> dict:
        task, run = self.bench.run(agent or self.agent, mode, **body)
        return self.judge(task, run)

    def figures_are_true(self):
        assert self.row.told == self.row.true, self.row
        assert abs((self.row.cost_told or 0) - self.row.cost_true) < 1e-9, self.row

    def failed(self, attempt: dict, code: str, *words: str):
        """It ended with a reason for people: a code, and words in its message."""
        assert attempt["error"] and attempt["error"]["code"] == code, self.row
        message = attempt["error"]["message"]
        assert all(word in message for word in words), self.row
        assert not message.lstrip().startswith("{") and '{"' not in message, f"no raw JSON: {self.row}"
        assert not attempt.get("pull_url"), self.row


def flow(scene: Scene):
    task, run = scene.bench.run(scene.agent)
    scene.judge(task, run)
    assert (task["state"], task["needs_attention"]) == ("in_review", None), scene.row
    changed = scene.bench.changed(task["branch"])
    assert set(changed) == {"answer.txt"}, f"nothing else is in the pull request: {set(changed)}"
    assert changed["answer.txt"].splitlines()[0] == "42"
    scene.figures_are_true()


def turns(scene: Scene):
    """Something is said while it works, and again when it is done: a second turn, then a second attempt."""
    bench = scene.bench
    task, run = bench.start(scene.agent, "held")
    eventually(lambda: bench.script.calls(run), "the first call", WORKING_S)
    bench.post(f"/tasks/{task}/messages", body="And now?")
    bench.script.release(run)
    first = bench.over(task)
    assert first["state"] == "in_review", (scene.judge(first, run), scene.row)
    bench.post(f"/tasks/{task}/messages", body="Once more.", start=True)
    done = bench.over(task)
    scene.judge(done, run)
    attempts = bench.attempts(task)
    assert len(attempts) == 2 and not done["needs_attention"], scene.row
    assert done["pull_url"] == first["pull_url"], "the same pull request"
    heard = {(one["attempt"], one["turn"]) for one in bench.transcript(task) if one["kind"] == "person"}
    assert heard == {(1, 2), (2, 1)}, heard
    scene.figures_are_true()


def refused(scene: Scene):
    scene.failed(scene.run("refused"), "model_key_refused", "refuses the key in secret")
    scene.figures_are_true()


def busy(scene: Scene):
    """529, 429, 503, and then it works: who looks sees why it takes long."""
    task, run = scene.bench.run(scene.agent, "busy")
    scene.judge(task, run)
    assert task["state"] == "in_review", scene.row
    retries = [one["reason"] for one in scene.bench.transcript(task["id"]) if one["kind"] == "retry"]
    assert len(retries) >= 3, retries
    assert any("429" in reason or "rate" in reason.lower() for reason in retries), retries
    scene.figures_are_true()


def overloaded(scene: Scene):
    agent = scene.bench.limited(scene.agent, timeout_s=PATIENCE_S)
    scene.failed(scene.run("overloaded", agent), "model_unavailable", "529")
    scene.figures_are_true()


def halfway(scene: Scene):
    scene.failed(scene.run("halfway"), "agent_failed", "the script ends here")
    scene.figures_are_true()


def idle(scene: Scene):
    scene.failed(scene.run("idle", check_command=None), "no_changes")
    scene.figures_are_true()


def slow(scene: Scene):
    """Its model is silent until the attempt's time is up. What that call costs is not known, so all of it counts."""
    agent = scene.bench.limited(scene.agent, timeout_s=PATIENCE_S)
    scene.failed(scene.run("slow", agent), "agent_failed", "its time was up")


def cancel(scene: Scene):
    bench = scene.bench
    task, run = bench.start(scene.agent, "held")
    eventually(lambda: bench.script.calls(run), "the first call", WORKING_S)
    bench.post(f"/tasks/{task}/cancel", reason="not wanted")
    attempt = scene.judge(bench.over(task), run)
    bench.script.release(run)
    assert attempt["state"] == "cancelled" and not attempt["pull_url"], scene.row
    live = bench.get("/sandboxes", state="creating,running,paused")["items"]
    assert task not in {one["metadata"].get("task") for one in live}, "its sandbox is gone"


def budget(scene: Scene):
    """A budget that not even the first call fits in: none is made, and a person is asked."""
    bench = scene.bench
    task, run = bench.start(scene.agent, budget=0.0001)

    def asked():
        shown = bench.get(f"/tasks/{task}")["needs_attention"]
        return shown and shown["code"] == "budget_wanted"

    eventually(asked, lambda: f"{bench.get(f'/tasks/{task}')}", RUN_S)
    question = bench.get(f"/tasks/{task}/question")
    assert (question["kind"], question["budget"]) == ("budget", 0.0001), question
    assert "raise the budget" in question["message"], question
    bench.post(f"/tasks/{task}/answer", answer="stop")
    scene.failed(scene.judge(bench.over(task), run), "stopped", "nothing was changed")
    assert scene.row.true == (0, 0), scene.row
    scene.figures_are_true()


CASES: dict[str, Callable[[Scene], None]] = {
    case.__name__: case for case in (flow, turns, refused, busy, overloaded, halfway, idle, slow, cancel, budget)
}
