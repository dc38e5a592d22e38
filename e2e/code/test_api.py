"""Code through Cofferdam's own API, command line and MCP, with the real interpreter."""

import base64
import json
import os
import subprocess
import threading
import time

import httpx
import nbformat
import pytest

from coffer_up import binary

CHART = """
import matplotlib.pyplot as plt
plt.bar(["a", "b"], [1, 2])
plt.ylabel("sum (EUR)")
plt.show()
"""


@pytest.fixture(scope="module")
def api():
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    with httpx.Client(base_url=f"{os.environ['E2B_API_URL']}/api/v1", headers=headers, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(api):
    made = api.post("/sandboxes", json={"template": "code-interpreter-v1", "timeout_s": 1200}).raise_for_status().json()
    yield made["id"]
    api.delete(f"/sandboxes/{made['id']}")


@pytest.fixture(scope="module")
def run(api, sandbox):
    def call(code, **more):
        answer = api.post(f"/sandboxes/{sandbox}/code", json={"code": code, **more})
        return answer.raise_for_status().json()

    return call


def streamed(api, sandbox, **body):
    """The events of a stream, as they come."""
    headers = {"accept": "text/event-stream"}
    with api.stream("POST", f"/sandboxes/{sandbox}/code", json=body, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        name = None
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_state_results_and_errors(run):
    assert run("x = 20")["results"] == []
    ran = run("print('hi'); x + 1")
    assert (ran["stdout"], ran["results"][0]["text"], ran["error"]) == ("hi\n", "21", None)
    assert ran["results"][0]["is_main_result"] and ran["execution_count"] >= 2
    failed = run("1 / 0")
    assert failed["error"]["name"] == "ZeroDivisionError" and "1 / 0" in failed["error"]["traceback"]
    assert run("import os; os.environ['FROM']", env={"FROM": "call"})["results"][0]["text"] == "call"


@pytest.mark.parametrize(
    ("language", "code"), [("js", "1 + 1"), ("typescript", "const n: number = 2; n"), ("bash", "echo 2")]
)
def test_other_languages(run, language, code):
    ran = run(code, language=language, timeout_s=60)
    assert ran["error"] is None
    shown = ran["stdout"].strip() or ran["results"][0]["text"]
    assert shown == "2"


def test_a_chart_is_an_image_data_and_an_artifact(api, run):
    ran = run(CHART, artifacts=True, timeout_s=60)
    shown = next(result for result in ran["results"] if "png" in result)
    assert base64.b64decode(shown["png"]).startswith(b"\x89PNG")
    assert shown["chart"]["type"] == "bar" and [bar["value"] for bar in shown["chart"]["elements"]] == [1, 2]
    kinds = {kept["content_type"]: kept["id"] for kept in ran["artifacts"]}
    image = api.get(f"/artifacts/{kinds['image/png']}/content").raise_for_status()
    assert image.content.startswith(b"\x89PNG")


def test_events_come_while_the_code_runs(api, sandbox):
    code = "import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.5)\n7"
    began, times = time.monotonic(), {}
    events = []
    for name, data in streamed(api, sandbox, code=code):
        times.setdefault(name, time.monotonic() - began)
        events.append((name, data))
    names = [name for name, _ in events]
    assert names[0] == "start" and names[-1] == "end" and "result" in names
    assert times["stdout"] < times["end"] - 0.8, times
    assert "".join(data["data"] for name, data in events if name == "stdout") == "0\n1\n2\n"
    assert not events[-1][1]["failed"] and events[-1][1]["results"] == 1


def test_a_timeout_and_a_client_that_leaves_interrupt(api, sandbox, run, eventually):
    run("kept = 5")
    late = run("import time\nprint('slept', flush=True)\ntime.sleep(60)", timeout_s=2)
    assert late["timed_out"] and late["stdout"] == "slept\n" and late["duration_ms"] < 10_000
    assert run("kept", timeout_s=20)["results"][0]["text"] == "5", "its state is kept"
    for name, _ in streamed(api, sandbox, code="import time\nprint(1, flush=True)\ntime.sleep(60)"):
        if name == "stdout":
            break
    assert run("kept + 1", timeout_s=20)["results"][0]["text"] == "6"
    statuses = [one["status"] for one in api.get(f"/sandboxes/{sandbox}/executions").json()["items"]]
    assert "interrupted: its client left" in statuses and "interrupted after 2 s, its timeout" in statuses


def test_contexts(api, sandbox, run):
    contexts = f"/sandboxes/{sandbox}/code/contexts"
    made = api.post(contexts, json={"language": "python", "cwd": "/tmp"}).raise_for_status().json()
    assert made["cwd"] == "/tmp" and made["id"] in [one["id"] for one in api.get(contexts).json()["items"]]
    assert run("import os; y = 1; os.getcwd()", context_id=made["id"])["results"][0]["text"] == "/tmp"
    assert run("y")["error"]["name"] == "NameError", "each has its own state"
    assert api.post(f"{contexts}/{made['id']}/restart").status_code == 204
    assert run("y", context_id=made["id"])["error"]["name"] == "NameError"
    assert api.delete(f"{contexts}/{made['id']}").status_code == 204
    gone = api.post(f"/sandboxes/{sandbox}/code", json={"code": "1", "context_id": made["id"]})
    assert gone.status_code == 404


def test_output_without_end_is_cut_and_said(api, run):
    ran = run("print('x' * 3_000_000)", max_output_bytes=1000)
    assert len(ran["stdout"]) == 1000 and ran["truncated"]
    assert ran["stdout_bytes"] == 3_000_001 == ran["dropped_bytes"] + 1000
    kept = api.get(f"/executions/{ran['execution_id']}/output", params={"raw": "true"}).raise_for_status()
    assert len(kept.content) == 3_000_001, "all of it is stored"


def test_calls_at_the_same_time_take_turns(run):
    run("count = 0")
    results = []

    def add():
        results.append(run("count += 1; count", timeout_s=60)["results"][0]["text"])

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results, key=int) == [str(n) for n in range(1, 9)]


def test_the_notebook_is_valid_and_complete(api, sandbox, run):
    run("print('in the notebook'); 6 * 7")
    run("{'a': 1}")
    run("import pandas as pd; pd.DataFrame({'b': [1], 'a': [2]})", timeout_s=60)
    run(CHART, timeout_s=60)
    run("undefined_name")
    answer = api.get(f"/sandboxes/{sandbox}/code/notebook").raise_for_status()
    notebook = nbformat.reads(answer.text, as_version=4)
    nbformat.validate(notebook)
    assert notebook.nbformat_minor == 5 and notebook.metadata.kernelspec.name == "python3"
    cell = next(cell for cell in notebook.cells if "in the notebook" in cell.source)
    assert [output.output_type for output in cell.outputs] == ["stream", "execute_result"]
    assert cell.outputs[1].data["text/plain"] == "42" and cell.outputs[1].execution_count == cell.execution_count
    assert notebook.cells[-1].outputs[0].ename == "NameError"
    only = nbformat.reads(
        api.get(f"/sandboxes/{sandbox}/code/notebook", params={"language": "bash"}).text, as_version=4
    )
    assert all(cell.metadata.coffer.language == "bash" for cell in only.cells)


def coffer(*words, **options):
    env = {**os.environ, "COFFER_URL": os.environ["E2B_API_URL"], "COFFER_API_KEY": os.environ["E2B_API_KEY"]}
    return subprocess.run([binary(), *words], env=env, capture_output=True, text=True, timeout=180, **options)


def test_the_command_line(sandbox, tmp_path, api):
    ran = coffer("code", sandbox, "-c", "z = 3\nprint('out')\nz * 2")
    assert (ran.stdout, ran.stderr, ran.returncode) == ("out\n6\n", "", 0)
    assert coffer("code", sandbox, "-", input="z + 1").stdout == "4\n", "its state stays"
    failed = coffer("code", sandbox, "-c", "1 / 0")
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr and failed.stdout == ""
    late = coffer("code", sandbox, "--timeout", "1s", "-c", "import time; time.sleep(60)")
    assert late.returncode == 124 and "timed out" in late.stderr
    chart = coffer("code", sandbox, "--timeout", "60s", "--save", tmp_path / "saved", "-c", CHART)
    assert chart.returncode == 0, chart.stderr
    assert (tmp_path / "saved/result-1.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "saved/result-1.chart.json").read_text())["type"] == "bar"
    parsed = json.loads(coffer("code", sandbox, "-o", "json", "-c", "z").stdout)
    assert parsed["results"][0]["text"] == "3" and parsed["error"] is None
    written = coffer("code", "--notebook", tmp_path / "out.ipynb", sandbox)
    assert written.returncode == 0 and json.loads((tmp_path / "out.ipynb").read_text())["nbformat"] == 4
    # A sandbox of its own, which is gone afterwards.
    script = tmp_path / "hello.js"
    script.write_text("console.log('from a file')")
    alone = coffer("code", "--timeout", "60s", script)
    assert (alone.stdout, alone.returncode) == ("from a file\n", 0), alone.stderr
    live = api.get("/sandboxes", params={"state": "running", "template": "code-interpreter-v1"})
    assert live.is_error or len(live.json()["items"]) <= 2
