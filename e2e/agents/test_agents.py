"""Agents of today, installed by their recipes, from nothing to a pull request and back from every failure.

`make agents` runs all; `AGENTS=claude_code,codex make agents` some, `e2e/run agents -- -k flow` one case. They speak with a
model that follows a script, through the model gateway, so no key and no network but the package registries is needed.
"""

import os
import shutil

import pytest

from agents.bench import AGENTS, Bench, script
from agents.cases import CASES, TABLE, Row, Scene
from coffer_up import CofferUp
from host.client_config import ClientConfig

CHOSEN = [name for name in os.environ.get("AGENTS", "").split(",") if name] or list(AGENTS)
PATIENCE_S = 2400
pytestmark = pytest.mark.timeout(PATIENCE_S)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    config = ClientConfig()
    for client in ["apt", "npm", "pip"]:
        if why := config.lacks(client):
            pytest.skip(f"SKIPPED: {why}")
    scratch = tmp_path_factory.mktemp("agents")
    pool_size = os.environ.get("E2E_AGENTS_POOL", "16GiB")
    with script(scratch) as model:
        options = [*config.options(scratch), *model.options()]
        with CofferUp(scratch / "data", "--ephemeral", *options, pool_size=pool_size) as up:
            bench = Bench(up, scratch, model)
            known = {one["name"]: one["build"] for one in bench.get("/templates")["items"]}
            if known["base"] == known.get("host"):
                pytest.skip("SKIPPED: the template base is not built on this host: `coffer template build base`")
            yield bench
    shutil.rmtree(scratch, ignore_errors=True)


@pytest.fixture(scope="module", params=CHOSEN)
def ready(request, bench):
    """An agent set up as a newcomer does it, with the template of its recipe."""
    agent = bench.agent(request.param)
    bench.built(request.param)
    return bench, request.param, agent


@pytest.mark.parametrize("case", CASES)
def test_it_bears(ready, case):
    bench, preset, agent = ready
    row = Row(preset, case)
    TABLE.append(row)
    CASES[case](Scene(bench, agent, row))


def test_a_test_says_version_and_answer(ready):
    bench, _, agent = ready
    result = bench.call("POST", f"/agents/{agent['id']}/test", (200,))
    assert result["ok"], result
    assert "ok" in result["answer"].lower() and any(letter.isdigit() for letter in result["version"] or ""), result
    live = bench.get("/sandboxes", state="creating,running,paused")["items"]
    assert not [one for one in live if "agent_test" in one["metadata"]], "its sandbox is gone"
