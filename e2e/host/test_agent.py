"""One real agent, from nothing: installed by its recipe, it reaches a pull request through the model gateway, and each failure
has its reason. `make agents` has the others."""

import pytest

from agents.bench import Bench, script
from agents.cases import CASES, Row, Scene
from client_config import ClientConfig
from coffer_up import CofferUp

PRESET = "codex"
PATIENCE_S = 900
# The others wait for minutes, or take long.
SHORT = ["flow", "turns", "refused", "busy", "halfway", "idle", "budget"]


@pytest.mark.timeout(PATIENCE_S)
def test_an_agent_of_today_reaches_a_pull_request(tmp_path):
    config = ClientConfig()
    if why := config.lacks("npm"):
        pytest.skip(f"SKIPPED: {why}")
    with script(tmp_path) as model:
        options = [*config.options(tmp_path), *model.options()]
        with CofferUp(tmp_path / "data", "--ephemeral", *options) as up:
            work(Bench(up, tmp_path, model))


def work(bench: Bench):
    known = {one["name"]: one["build"] for one in bench.get("/templates")["items"]}
    if known["base"] == known.get("host"):
        pytest.skip("SKIPPED: the template base is not built on this host")
    # A template without the program: the failure says what installs it.
    failed, _ = bench.run(bench.agent(PRESET, "base"), check_command=None)
    assert failed["needs_attention"]["code"] == "agent_missing", failed
    assert bench.presets[PRESET]["recipe"]["install"] in failed["needs_attention"]["message"], failed
    # The recipe's own, which the first to ask has built.
    agent = bench.agent(PRESET, bench.presets[PRESET]["recipe"]["template"])
    assert agent["template"]["state"] in ("building", "ready"), agent
    bench.built(PRESET)
    for case in SHORT:
        # The model answers only to the key, which the sandbox never had.
        CASES[case](Scene(bench, agent, Row(PRESET, case)))
