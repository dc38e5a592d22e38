"""Everything is bounded, and what is beyond is said."""

import os

import httpx

PORT = 49999


def post(sandbox, path, **options):
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(PORT)}
    return httpx.post(os.environ["E2B_SANDBOX_URL"] + path, headers=headers, timeout=120, **options)


def test_output_without_end_is_cut_and_the_call_ends(make):
    sandbox = make()
    done = sandbox.run_code("for _ in range(300): print('x' * 1_000_000)", timeout=300)
    total = sum(map(len, done.logs.stdout))
    assert done.error is None and 10_000_000 < total < 256 << 20
    assert "bytes of output were dropped" in done.logs.stderr[-1]
    assert sandbox.run_code("1").text == "1"


def test_malformed_requests_are_refused(box):
    assert post(box, "/execute", content=b"{").status_code == 422
    assert post(box, "/execute", json={}).json()["detail"][0]["loc"] == ["body"]
    both = post(box, "/execute", json={"code": "1", "language": "python", "context_id": "x"})
    assert both.status_code == 400 and both.headers["content-type"].startswith("text/plain")
    assert post(box, "/execute", content=b"x" * (17 << 20)).status_code == 413
    assert post(box, "/nothing").status_code == 404


def test_answers_are_as_e2bs(box):
    # By name: the path is one of the server's own, too.
    health = httpx.get(os.environ["E2B_SANDBOX_URL"] + "/health", headers={"Host": box.get_host(PORT)})
    assert health.status_code == 200 and health.text == '"OK"'
    answer = post(box, "/execute", json={"code": "print('é')\n1"})
    assert "content-type" not in answer.headers and answer.headers["access-control-allow-origin"] == "*"
    lines = [line for line in answer.text.split("\n") if line]
    assert answer.text.isascii() and [line.split('"')[3] for line in lines] == [
        "number_of_executions",
        "stdout",
        "result",
        "end_of_execution",
    ]
