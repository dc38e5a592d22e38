"""Builds of templates outlive the server and the node that carry them out."""

import contextlib
import os
import signal
import time

import httpx
from e2b import Sandbox, Template

from coffer_up import eventually


def test_a_build_goes_on_after_its_server_and_its_node_were_killed(server, monkeypatch):
    up = server("build-kills").start()
    env = up.env()
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    template = Template().from_base_image()
    for number in range(10):
        # What a killed step had written is not in the snapshot that the next try begins with.
        template = template.run_cmd(f"echo {number} >> /home/user/steps && sleep 0.6")
    info = Template.build_in_background(template, "killed")
    path = f"{env['E2B_API_URL']}/templates/{info.template_id}/builds/{info.build_id}/status"
    headers = {"X-API-KEY": env["E2B_API_KEY"]}

    def status():
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(path, headers=headers, timeout=10)
            return answer.json() if answer.status_code == 200 else None

    for role in ["server", "node", "server"]:
        time.sleep(1.3)
        killed = up.part(role)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda role=role, killed=killed: up.part(role) not in (None, killed), f"a new {role}")
        # Nothing half-built is listed.
        known = eventually(status, "the server answers")
        alias = httpx.get(f"{env['E2B_API_URL']}/templates/aliases/killed", headers=headers, timeout=10)
        assert (alias.status_code == 200) == (known["status"] == "ready") or status()["status"] == "ready"
    done = eventually(lambda: (found := status()) and found["status"] in ("ready", "error") and found, "its end", 120)
    assert done["status"] == "ready", done
    sandbox = Sandbox.create("killed", timeout=600)
    assert sandbox.files.read("/home/user/steps").split() == [str(number) for number in range(10)]
    sandbox.kill()
    operator = (up.data_dir / "operator-key").read_text().strip()

    def left():
        listed = httpx.get(f"{env['E2B_API_URL']}/api/v1/admin/sandboxes", headers={"X-API-KEY": operator}, timeout=10)
        return listed.raise_for_status().json()["items"]

    eventually(lambda: not left(), lambda: f"no sandbox of a build is left: {left()}")
