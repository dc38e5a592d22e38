"""One real agent, from nothing: installed by its recipe, it reaches a pull request through the model gateway. `make agents`
has the others."""

import subprocess
import sys

import pytest

from agents.bench import KEY, MODEL, Bench, total
from client_config import ClientConfig
from coffer_up import CofferUp

PRESET = "codex"
PATIENCE_S = 900
CHECK = "grep -q 'from the shell' answer.txt"


@pytest.mark.timeout(PATIENCE_S)
def test_an_agent_of_today_reaches_a_pull_request(tmp_path):
    config = ClientConfig()
    if why := config.lacks("npm"):
        pytest.skip(f"SKIPPED: {why}")
    ledger = tmp_path / "ledger.jsonl"
    words = [sys.executable, str(MODEL), "0", str(ledger), KEY, "/home/user/app"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as model:
        try:
            url = f"http://127.0.0.1:{int(model.stdout.readline())}"
            options = [*config.options(tmp_path), "--set", f"models.openai_url={url}"]
            with CofferUp(tmp_path / "data", "--ephemeral", *options) as up:
                work(Bench(up, tmp_path), ledger)
        finally:
            model.terminate()


def work(bench: Bench, ledger):
    known = {one["name"]: one["build"] for one in bench.get("/templates")["items"]}
    if known["base"] == known.get("host"):
        pytest.skip("SKIPPED: the template base is not built on this host")
    repository = bench.repository("app")
    # A template without the program: the failure says what installs it.
    failed = bench.run(bench.agent(PRESET, "base"), repository, check_command=None)
    assert failed["needs_attention"]["code"] == "agent_missing", failed
    assert bench.presets[PRESET]["recipe"]["install"] in failed["needs_attention"]["message"], failed
    # The recipe's own, which the first to ask has built.
    agent = bench.agent(PRESET, bench.presets[PRESET]["recipe"]["template"])
    assert agent["template"]["state"] in ("building", "ready"), agent
    bench.built(PRESET)
    done = bench.run(agent, repository, check_command=CHECK)
    assert (done["state"], done["needs_attention"]) == ("in_review", None), done
    changed = bench.changed(repository, done["branch"])
    assert set(changed) == {"answer.txt"} and changed["answer.txt"].startswith("42\n"), changed
    # The model answers only to the key, which the sandbox never had. Each call is on record, and the sums are its own.
    [attempt] = bench.get(f"/tasks/{done['id']}/attempts")
    assert (attempt["input_tokens"], attempt["output_tokens"]) == total(ledger.read_text()), attempt
    calls = bench.get("/model-calls", task_id=done["id"])["items"]
    assert len(calls) >= 3 and {call["status"] for call in calls} == {200}, calls
