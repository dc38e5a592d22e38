"""The demo as it stands, and a competition whose server is killed in the middle."""

import json
import os
import signal
import subprocess

import httpx

from coffer_up import ROOT, binary, eventually, growth, inventory


def test_the_demo_ends_with_a_pull_request_and_leaves_nothing(tmp_path):
    out = tmp_path / "demo.json"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "COFFER_"))}
    env["COFFER_BIN"] = str(binary())
    done = subprocess.run([ROOT / "scripts/demo", "--json", out], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    competition = found["competition"]
    by_label = {entry["label"]: entry for entry in competition["entries"]}
    assert (competition["state"], competition["winner"]) == ("decided", by_label["careful"]["number"])
    assert {label: entry["rank"] for label, entry in by_label.items()} == {"careful": 1, "thorough": 2, "hasty": 3}
    assert {label: entry["check"]["passed"] for label, entry in by_label.items()} == {
        "careful": True,
        "thorough": True,
        "hasty": False,
    }
    assert by_label["careful"]["agent_cost"] == 0.041 and by_label["careful"]["input_tokens"] == 5200
    assert found["task_state"] == "in_review" and found["task_pull_url"] == competition["pull_url"]
    assert [pull["head"] for pull in found["pulls"]] == [by_label["careful"]["branch"]]
    assert found["left"] == [] and len(found["diffs"]) == 3
    for word in ("careful", "won", "kept as a revision", "/ui/tasks/"):
        assert word in done.stdout


def test_a_race_goes_on_after_its_server_was_killed(server):
    up = server("race", "--ephemeral").start()
    env = up.env()
    with httpx.Client(
        base_url=f"{env['E2B_API_URL']}/api/v1", headers={"X-API-KEY": env["E2B_API_KEY"]}, timeout=60
    ) as api:

        def ask(method: str, path: str, **body) -> dict:
            answer = api.request(method, path, json=body if method != "GET" else None)
            assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
            return answer.json()

        def now() -> dict | None:
            try:
                return ask("GET", f"/sandboxes/fork/{begun['id']}")
            except httpx.HTTPError:
                return None  # it is not up again yet

        url = ask("POST", "/repositories", name="app")["clone_url"]
        url = url.replace("http://", f"http://any:{env['E2B_API_KEY']}@")
        work = up.data_dir.parent / "app"
        work.mkdir()
        (work / "answer").write_text("0\n")
        plain = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
        for words in (
            ["init", "-qb", "main"],
            ["add", "-A"],
            [*identity, "commit", "-qm", "feat: begin"],
            ["push", "-q", url, "main"],
        ):
            subprocess.run(["git", *words], cwd=work, env=plain, check=True, capture_output=True)
        # Each is begun once, whoever looks after it: a second time would leave a second line.
        scripts = ["echo run >> runs; echo 42 > answer", "echo run >> runs; sleep 6; echo 42 > answer; seq 9 > notes"]
        scripts += ["echo run >> runs; sleep 4; exit 1"]
        entries = []
        for number, script in enumerate(scripts):
            definition = {"preset": "custom", "command": ["/bin/sh", "-c", script, "agent", "{prompt}"]}
            agent = ask("POST", "/agents", name=f"agent-{number}", definition=definition)
            entries.append({"agent_id": agent["id"]})
        before = inventory(up)
        check = "grep -qx 42 answer && test $(wc -l < runs) = 1"
        begun = ask(
            "POST",
            "/sandboxes/fork",
            title="Find it",
            repository="app",
            check_command=check,
            rule="best",
            entries=entries,
        )
        eventually(lambda: [e["state"] for e in now()["entries"]].count("working") >= 2, "agents at work", 120)
        os.kill(up.part("server"), signal.SIGKILL)
        found = eventually(
            lambda: (found := now()) and found["state"] in ("decided", "failed") and found, "an end", 180
        )
        assert found["state"] == "decided", found["error"]
        assert found["winner"] == 1 and [entry["state"] for entry in found["entries"]] == ["done", "done", "failed"]
        assert [entry["check"]["passed"] for entry in found["entries"][:2]] == [True, True]
        pulls = ask("GET", "/repositories/app/pulls")["items"]
        assert [pull["head"] for pull in pulls] == [found["entries"][0]["branch"]]
        running = ask("GET", "/sandboxes")["items"]
        assert [sandbox["id"] for sandbox in running if sandbox["state"] in ("running", "paused", "creating")] == []
        # Slots that are kept warm come and go; what belongs to sandboxes goes with them.
        kinds = ("mounts", "loop devices")
        eventually(
            lambda: not {kind: found for kind, found in growth(before, inventory(up)).items() if kind in kinds},
            "all is given back",
            60,
        )
