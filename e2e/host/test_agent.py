"""One real agent, from nothing: installed by its recipe, it reaches a pull request. `make agents` has the others."""

import pytest

from agents.bench import Bench, total
from client_config import ClientConfig
from coffer_up import CofferUp

PRESET = "codex"
PATIENCE_S = 900


@pytest.mark.timeout(PATIENCE_S)
def test_an_agent_of_today_reaches_a_pull_request(tmp_path):
    config = ClientConfig()
    if why := config.lacks("npm"):
        pytest.skip(f"SKIPPED: {why}")
    with CofferUp(tmp_path / "data", "--ephemeral", *config.options(tmp_path)) as up:
        bench = Bench(up, tmp_path)
        known = {one["name"]: one["build"] for one in bench.get("/templates")["items"]}
        if known["base"] == known.get("host"):
            pytest.skip("SKIPPED: the template base is not built on this host")
        repository = bench.repository()
        # A template without the program: the failure says what installs it.
        failed = bench.run(bench.agent(PRESET, "base"), repository, check_command=None)
        assert failed["needs_attention"]["code"] == "agent_missing", failed
        assert bench.presets[PRESET]["recipe"]["install"] in failed["needs_attention"]["message"], failed
        # The recipe's own, which the first to ask has built; then the same with the model next to it.
        template = bench.presets[PRESET]["recipe"]["template"]
        begun = bench.agent(PRESET, template)
        assert begun["template"]["state"] in ("building", "ready"), begun
        own = bench.template(PRESET, f"FROM template://{bench.built(PRESET)}")
        done = bench.run(bench.agent(PRESET, own), repository)
        assert (done["state"], done["needs_attention"]) == ("in_review", None), done
        changed = bench.changed(repository, done["branch"])
        assert set(changed) == {"answer.txt", "ledger.jsonl"} and changed["answer.txt"].startswith("42\n"), changed
        [attempt] = bench.get(f"/tasks/{done['id']}/attempts")
        assert (attempt["input_tokens"], attempt["output_tokens"]) == total(changed["ledger.jsonl"]), attempt
