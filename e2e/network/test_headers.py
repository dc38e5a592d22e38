"""Tokens that reach the hosts they are for, and nobody else: not the sandbox, not the disk."""

import base64
import os
import secrets
import subprocess

import httpx
import pytest
from e2b import Sandbox, Secret

from coffer_up import CofferUp, eventually
from conftest import PATIENCE_S, Attempt, kill_part
from places import API_NAME

URL = f"https://{API_NAME}/headers"


def canary() -> str:
    return f"canary-{secrets.token_hex(16)}"


def call(method: str, path: str, body=None) -> httpx.Response:
    headers = {"X-API-Key": os.environ["E2B_API_KEY"]}
    return httpx.request(method, os.environ["E2B_API_URL"] + path, json=body, headers=headers, timeout=PATIENCE_S)


def put(name: str, value: str, **more):
    answer = call("PUT", f"/api/v1/secrets/{name}", {"value": value, **more})
    assert answer.status_code in (200, 201), answer.text
    assert value not in answer.text


@pytest.fixture
def make(up):
    """Makes sandboxes by our own API, and ends them with the test."""
    made = []

    def make(**body) -> Sandbox:
        answer = call("POST", "/api/v1/sandboxes", {"timeout_s": 600, **body})
        assert answer.status_code == 201, answer.text
        made.append(Sandbox.connect(answer.json()["id"]))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.kill()


def with_token(name: str) -> dict:
    return {"base": "public", "headers": [{"hosts": [API_NAME], "headers": {"X-Token": f"${{secret:{name}}}"}}]}


def seen(world) -> list[str]:
    return [event["token"] for event in world.seen("headers")]


def found_inside(sandbox: Sandbox, text: str) -> Attempt:
    """Where the text is inside, in files and environments. It is not in the command, which is kept outside."""
    hidden = base64.b64encode(text.encode()).decode()
    look = f'text=$(echo {hidden} | base64 -d); cat /proc/[0-9]*/environ 2>/dev/null | grep -acF "$text"; '
    look += 'grep -rlF --binary-files=text "$text" /etc /home /root /run /tmp /usr/local /var /opt /srv 2>/dev/null'
    return Attempt(sandbox, look, user="root")


def found_outside(up: CofferUp, text: str) -> list[str]:
    places = [up.data_dir, up.log, up.run_dir]
    grep = ["grep", "--recursive", "--devices=skip", "--text", "--files-with-matches", "--fixed-strings", "-e", text]
    found = subprocess.run([*grep, *map(str, places)], capture_output=True, text=True)
    return found.stdout.splitlines()


PROGRAMS = {
    "curl": f"curl -sSf -m 60 {URL}",
    "urllib": f"python3 -c 'import urllib.request as r; print(r.urlopen(\"{URL}\").read())'",
    "requests": f"python3 -c 'import requests; requests.get(\"{URL}\").raise_for_status()'",
    "node": f"node -e 'fetch(\"{URL}\").then(a => a.text()).then(console.log)'",
    "git": f"git ls-remote https://{API_NAME}/repository.git",
}


def test_programs_inside_send_a_token_that_they_do_not_have(make, world, up):
    token = canary()
    put("api", token, hosts=[API_NAME])
    sandbox = make(network=with_token("api"))
    ran = []
    for program, command in PROGRAMS.items():
        there = {"urllib": "command -v python3", "requests": "python3 -c 'import requests'"}
        if Attempt(sandbox, there.get(program, f"command -v {program}")).code != 0:
            continue
        before = len(seen(world))
        attempt = Attempt(sandbox, command)
        assert attempt.code == 0, (program, attempt)
        assert seen(world)[before:] and set(seen(world)[before:]) == {token}, program
        ran.append(program)
    assert {"curl", "urllib", "git"} <= set(ran), ran
    # It may not be told so by a request of its own, nor have it elsewhere.
    lying = Attempt(sandbox, f"curl -sSf -m 60 -H 'X-Token: mine' {URL}")
    assert lying.code == 0 and seen(world)[-1] == token, lying
    before = len(seen(world))
    for elsewhere in [
        f"curl -sSk -m 60 -H 'Host: {API_NAME}' https://example.com/headers",
        f"curl -sS -m 60 http://{API_NAME}/headers",
        f"curl -sSk -m 60 https://{API_NAME}/headers -H 'Host: example.com'",
    ]:
        Attempt(sandbox, elsewhere)
    assert token not in seen(world)[before:]
    inside = found_inside(sandbox, token)
    assert inside.stdout.strip() == "0", inside
    assert found_outside(up, token) == []


def test_a_secret_of_the_sdk_is_in_the_requests_that_a_rule_names(sandboxes, world, up):
    first, second = canary(), canary()
    secret = Secret.create("Of-The-SDK", first)
    try:
        rule = {"transform": {"headers": {"X-Token": Secret.fill("Of-The-SDK")}}}
        sandbox = sandboxes(network={"rules": {API_NAME: [rule]}})
        curl = f"curl -sSf -m 20 {URL}"
        attempt = Attempt(sandbox, curl)
        assert attempt.code == 0 and seen(world)[-1] == first, attempt
        Secret.update(secret.secret_id, second)
        eventually(lambda: Attempt(sandbox, curl).code == 0 and seen(world)[-1] == second, "the new value")
        assert found_inside(sandbox, second).stdout.strip() == "0"
    finally:
        Secret.destroy(secret.secret_id)
    eventually(lambda: Attempt(sandbox, curl).code != 0, "no way without the secret")
    assert found_outside(up, first) == [] and found_outside(up, second) == []


def test_other_hosts_keep_their_own_certificates(make):
    put("api", canary())
    sandbox = make(network=with_token("api"))
    shown = "echo | openssl s_client -connect {0}:443 -servername {0} 2>/dev/null | openssl x509 -noout -issuer"
    issuer = Attempt(sandbox, shown.format("example.com")).stdout
    assert "example.com" in issuer and "Cofferdam" not in issuer, issuer
    assert "Cofferdam" in Attempt(sandbox, shown.format(API_NAME)).stdout
    # Whose certificate nobody vouches for is refused inside, as it would be without us.
    assert Attempt(sandbox, "curl -sS -m 60 https://example.com/").code == 60
    assert "as example.com\n" in Attempt(sandbox, "curl -sSk -m 60 https://example.com/").stdout


def test_a_changed_secret_and_a_killed_part_are_made_up_for(make, world, up):
    first, second = canary(), canary()
    put("api", first)
    sandbox = make(network=with_token("api"))
    curl = f"curl -sSf -m 20 {URL}"
    assert Attempt(sandbox, curl).code == 0 and seen(world)[-1] == first
    put("api", second)
    eventually(lambda: Attempt(sandbox, curl).code == 0 and seen(world)[-1] == second, "the new value")
    for part in ("egress", "node", "server"):
        kill_part(up, part)
        before = len(seen(world))

        def again(before=before):
            try:
                return Attempt(sandbox, curl).code == 0 and len(seen(world)) > before
            except Exception:  # the server itself may be away for a moment
                return False

        eventually(again, f"a token after {part} was killed", 120)
        # Meanwhile nothing went out without one.
        assert set(seen(world)[before:]) == {second}, part
    assert call("DELETE", "/api/v1/secrets/api").status_code == 204
    eventually(lambda: Attempt(sandbox, curl).code != 0, "no way without the secret")
    assert None not in seen(world)[before:]
    assert found_outside(up, first) == [] and found_outside(up, second) == []


def test_rules_of_e2b_put_headers_in(up, world):
    token = canary()
    rules = {API_NAME: [{"transform": {"headers": {"X-Token": token}}}]}
    body = {"templateID": "base", "timeout": 300, "secure": True, "network": {"rules": rules}}
    answer = call("POST", "/sandboxes", body)
    assert answer.status_code == 201, answer.text
    sandbox = Sandbox.connect(answer.json()["sandboxID"])
    try:
        assert Attempt(sandbox, f"curl -sSf -m 60 {URL}").code == 0
        assert seen(world)[-1] == token
        shown = call("GET", f"/sandboxes/{sandbox.sandbox_id}").text
        assert token not in shown and "***" in shown, shown
        assert found_outside(up, token) == []
    finally:
        sandbox.kill()


def test_a_secret_in_the_environment_comes_back_after_a_pause(make, up):
    token = canary()
    put("plain", token)
    sandbox = make(secrets={"MY_TOKEN": "plain"})
    length = 'test "${#MY_TOKEN}" = 39 && echo yes'
    assert Attempt(sandbox, length).stdout == "yes\n"
    assert call("POST", f"/api/v1/sandboxes/{sandbox.sandbox_id}/pause", {"memory": False}).status_code == 200
    assert call("POST", f"/api/v1/sandboxes/{sandbox.sandbox_id}/resume", {}).status_code == 200
    assert Attempt(Sandbox.connect(sandbox.sandbox_id), length).stdout == "yes\n"
    assert found_outside(up, token) == []
    refused = call("POST", "/api/v1/sandboxes", {"secrets": {"A": "nothing"}})
    assert refused.status_code == 422 and "nothing" in refused.json()["message"], refused.text
