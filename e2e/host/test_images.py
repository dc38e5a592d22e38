"""Templates from images of a real registry: Debian's `docker-registry`, with a password, on loopback."""

import os

import httpx
import pytest
from e2b import Sandbox, Template
from e2b.exceptions import BuildException

from coffer_up import eventually
from registry import PASSWORD, USER, push, root_layers
from registry import registry as run_registry


@pytest.fixture
def registry(tmp_path):
    with run_registry(tmp_path) as port:
        yield port


def test_a_template_from_an_image_of_a_private_registry(server, registry, tmp_path, monkeypatch):
    host = f"127.0.0.1:{registry}"
    settings = tmp_path / "coffer.toml"
    settings.write_text(f'[registries]\nprivate_hosts = ["{host}"]\nplain_http = ["{host}"]\n')
    up = server("images", "--config", str(settings)).start()
    for name, value in up.env().items():
        monkeypatch.setenv(name, value)
    push(registry, "team/app", root_layers(), ["FROM_IMAGE=yes", "PATH=/usr/bin:/bin"])
    image = f"{host}/team/app:1"

    with pytest.raises(BuildException, match=r"(?i)unauthorized|credentials|denied"):
        Template.build(Template().from_image(image), "unauthorized")
    logs = []
    template = Template().from_image(image, username=USER, password=PASSWORD)
    template = template.run_cmd(
        "ls /old /dir > /made; stat -c %a /new >> /made; echo $FROM_IMAGE >> /made", user="root"
    )
    Template.build(template, "from-image", on_build_logs=lambda entry: logs.append(entry.message))
    assert any("layer 2/2" in line for line in logs), logs
    assert not any(PASSWORD in line for line in logs)
    sandbox = Sandbox.create("from-image", timeout=600)
    try:
        made = sandbox.commands.run("cat /made", user="root").stdout
        assert made.split() == ["/dir:", "above", "/old:", "kept", "4755", "yes"], made
    finally:
        sandbox.kill()
    # What is cached is not downloaded again: the registry may be gone by then, but for the manifest.
    logs.clear()
    Template.build(template, "again", on_build_logs=lambda entry: logs.append(entry.message))
    assert not any("unpacking" in line for line in logs), logs
    # A layer that cannot be unpacked is not kept: no quota counts it once the build has failed.
    push(registry, "team/broken", [os.urandom(1 << 20)], [])
    broken = Template().from_image(f"{host}/team/broken:1", username=USER, password=PASSWORD)
    with pytest.raises(BuildException, match="archive"):
        Template.build(broken, "broken")
    kept = [path for path in (up.data_dir / "server/image-layers").rglob("*") if path.is_file()]
    assert not kept
    # By our own API the password is a secret of the project.
    url = up.env()["E2B_API_URL"]
    with httpx.Client(base_url=f"{url}/api/v1", headers={"X-API-KEY": up.env()["E2B_API_KEY"]}) as api:
        api.put("/secrets/registry", json={"value": PASSWORD}).raise_for_status()
        login = {"username": USER, "secret": "registry"}
        asked = api.post("/templates", json={"name": "own-api", "from": image, "registry": login})
        build = f"/template-builds/{asked.raise_for_status().json()['id']}"
        eventually(lambda: api.get(build).json()["ended_at"], "the build ends")
        assert api.get(build).json()["state"] == "ready", api.get(f"{build}/log").text
        assert PASSWORD not in api.get(f"{build}/log?level=debug").text
    # Another project has to authenticate for itself, and downloads for itself.
    operator = (up.data_dir / "operator-key").read_text().strip()
    headers = {"X-API-KEY": operator}
    made = httpx.post(f"{url}/api/v1/projects", headers=headers, json={"name": "other"})
    project = made.raise_for_status().json()["id"]
    key = httpx.post(f"{url}/api/v1/projects/{project}/keys", headers=headers, json={"name": "k", "role": "write"})
    monkeypatch.setenv("E2B_API_KEY", key.raise_for_status().json()["key"])
    with pytest.raises(BuildException, match=r"(?i)unauthorized|credentials|denied"):
        Template.build(Template().from_image(image), "from-image")
    logs.clear()
    Template.build(template, "from-image", on_build_logs=lambda entry: logs.append(entry.message))
    assert sum("unpacking" in line for line in logs) == 2, logs


def test_an_image_at_a_private_address_is_refused(server, registry, monkeypatch):
    up = server("walls", "--ephemeral").start()
    for name, value in up.env().items():
        monkeypatch.setenv(name, value)
    for image in [f"127.0.0.1:{registry}/team/app:1", "169.254.169.254/team/app:1", "10.0.0.1:5000/x:1"]:
        with pytest.raises(BuildException, match=r"address|plain HTTP|refused"):
            Template.build(Template().from_image(image), "never")


def test_an_operator_maps_names_of_images(server, tmp_path, monkeypatch):
    settings = tmp_path / "coffer.toml"
    settings.write_text('[images]\n"ubuntu:22.04" = "e2bdev/base"\n"python:3" = "host"\n')
    up = server("names", "--ephemeral", "--config", str(settings)).start()
    for name, value in up.env().items():
        monkeypatch.setenv(name, value)
    for image, served in [("ubuntu:22.04", "base"), ("docker.io/library/python:3", "host")]:
        logs = []
        Template.build(Template().from_image(image), "mapped", on_build_logs=lambda entry: logs.append(entry.message))
        assert any(image in line and f"template '{served}'" in line for line in logs), logs
