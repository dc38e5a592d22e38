"""The API does what its own description says, whatever it is sent.

`API_EXAMPLES` is how many requests each route gets of each kind, `API_SEED` which ones.
"""

import json
import os
import pathlib
import subprocess
import sys

import httpx
import openapi_spec_validator
import pytest

from coffer_up import ROOT

EXAMPLES = os.environ.get("API_EXAMPLES", "4")
SEED = os.environ.get("API_SEED", "4")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# They answer without end, and are looked at below.
STREAMS = r"/(stream|socket)$|/ws$"


def test_the_description_is_valid(document):
    assert document["openapi"].startswith("3.1")
    openapi_spec_validator.validate(document)


def test_it_is_what_is_committed(document):
    """The snapshot that reviewers see is what a server serves."""
    assert document == json.loads((ROOT / "docs/openapi.json").read_text())


@pytest.mark.parametrize("whose", ["project", "operator", "nobody"])
def test_whatever_is_sent(url, key, operator_key, things, whose, tmp_path):
    headers = {"project": key, "operator": operator_key, "nobody": "e2b_" + "0" * 40}
    command = [pathlib.Path(sys.executable).with_name("schemathesis"), "run", f"{url}/api/v1/openapi.json"]
    command += ["--header", f"X-API-KEY: {headers[whose]}", "--checks", CHECKS, "--mode", "all"]
    command += ["--max-examples", EXAMPLES if whose == "project" else "1", "--seed", SEED, "--request-timeout", "60"]
    command += ["--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--generation-database", "none"]
    command += ["--exclude-path-regex", STREAMS, "--no-color", "--warnings", "off"]
    # Declared where it can come, and no failure: what this host or server has not.
    (tmp_path / "schemathesis.toml").write_text(
        '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", "501"]\n'
    )
    env = {**os.environ, "COFFER_API_THINGS": json.dumps(things), "SCHEMATHESIS_HOOKS": "hooks"}
    env["PYTHONPATH"] = f"{pathlib.Path(__file__).parent}:{env.get('PYTHONPATH', '')}"
    done = subprocess.run([str(word) for word in command], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, f"\n{done.stdout[-30_000:]}{done.stderr[-3000:]}"


def test_streams_answer_as_described(document, url, key, things):
    streams = [path for path in document["paths"] if path.endswith(("/stream", "/socket", "/ws"))]
    assert streams
    for path in streams:
        described = document["paths"][path]["get"]["responses"]
        place = path
        for name, value in things.items():
            place = place.replace("{" + name + "}", value)
        for query in ({}, {"after": "nonsense"}, {"after": "-1"}, {"kind": "x" * 500}):
            for secret in (key, "nonsense"):
                headers = {"X-API-KEY": secret}
                with httpx.stream("GET", url + place, params=query, headers=headers, timeout=30) as answer:
                    assert str(answer.status_code) in described, (path, query, answer.status_code)
                    assert answer.status_code < 500, (path, query)
                    kinds = described[str(answer.status_code)].get("content", {})
                    kind = answer.headers.get("content-type", "").split(";")[0]
                    assert kind in kinds or not kinds, (path, query, kind)
