import os

import httpx
import pytest
from e2b import Sandbox

LIST = "/process.Process/List"


@pytest.mark.parametrize("headers", [{}, {"X-Access-Token": "wrong"}], ids=["none", "wrong"])
def test_envd_wants_its_token(box, visit, headers):
    answer = visit(box, 49983, LIST, method="POST", headers=headers, json={})
    assert (answer.status_code, answer.json()["code"]) in ((401, 401), (401, "unauthenticated"))
    assert (
        visit(box, 49983, LIST, method="POST", headers={"X-Access-Token": box._envd_access_token}, json={}).status_code
        == 200
    )


def test_a_token_opens_one_sandbox_only(box, make, visit):
    other = make()
    headers = {"X-Access-Token": other._envd_access_token}
    assert other._envd_access_token != box._envd_access_token
    assert visit(box, 49983, LIST, method="POST", headers=headers, json={}).status_code == 401


def test_connect_gives_the_same_token(box):
    assert Sandbox.connect(box.sandbox_id)._envd_access_token == box._envd_access_token


def test_health_needs_none(box, visit):
    assert visit(box, 49983, "/health").status_code == 204


def test_v1_without_secure_has_no_token(server_address, visit):
    """SDKs of the first generation may ask for it; the second has no such call, so this is by hand."""
    host, port = server_address
    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    body = {"templateID": "base", "timeout": 60, "secure": False}
    made = httpx.post(f"http://{host}:{port}/sandboxes", headers=headers, json=body, timeout=120)
    assert made.status_code == 201 and not made.json().get("envdAccessToken")
    sandbox = Sandbox.connect(made.json()["sandboxID"])
    try:
        assert visit(sandbox, 49983, LIST, method="POST", json={}).status_code == 200
    finally:
        sandbox.kill()
