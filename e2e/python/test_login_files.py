"""Logins that are files: in memory while an agent works, renewed, and nowhere else."""

import base64
import json

from test_tasks import board  # noqa: F401

FILE = "~/.codex/auth.json"


def token(who: str, number: int) -> str:
    about = {"sub": who, "n": number, "https://api.openai.com/auth": {"chatgpt_account_id": "acc-1"}}
    payload = base64.urlsafe_b64encode(json.dumps(about).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJSUzI1NiJ9.{payload}.c2lnbmF0dXJl"


def login(who: str, number: int) -> str:
    tokens = {"id_token": token(who, number), "access_token": token(who, number)}
    return json.dumps({"tokens": {**tokens, "refresh_token": f"refresh-{number:012}"}, "last_refresh": "2026-11-01"})


# Says where the file is and what is in it, and leaves another in its place.
AGENT = """
stat -f -c %T "$HOME/.codex/auth.json" > kind; stat -c %a "$HOME/.codex/auth.json" > mode
grep -o 'refresh-[0-9]*' "$HOME/.codex/auth.json" | tr -d '\\n' | md5sum > seen
cat "$HOME/.codex/auth.json"
env | grep -v '^NEXT=' | grep -c 'refresh-' > in-env || true
printf '%s' "$NEXT" > "$HOME/.codex/new" && mv "$HOME/.codex/new" "$HOME/.codex/auth.json"
"""
# Waits until the other is told to wait for it.
PATIENT = 'cat "$HOME/.codex/auth.json" > /dev/null; echo begun; sleep "${LONG:-0}"; date +%s%N > ended-$COFFER_TASK_ID'


def seen(number: int) -> str:
    import hashlib

    return hashlib.md5(f"refresh-{number:012}".encode()).hexdigest() + "  -"


def test_a_login_is_renewed_and_left_nowhere(board):  # noqa: F811
    board.call("PUT", "/secrets/codex-login", (200, 201, 204), json={"value": login("me", 1)})
    shown = lambda done, name: board.fetched("show", f"origin/{done['branch']}:{name}")

    def work(after: str) -> dict:
        agent = board.agent(AGENT, secrets={FILE: "codex-login"}, env={"NEXT": after})
        done = board.run(agent=agent)
        assert done["state"] == "in_review", done
        assert (shown(done, "kind"), shown(done, "mode"), shown(done, "in-env")) == ("tmpfs", "600", "0")
        return done

    assert shown(work(login("me", 2)), "seen") == seen(1)
    # What the program renewed is what the next attempt gets.
    second = work(login("attacker", 3))
    assert shown(second, "seen") == seen(2)
    # Another account's tokens, and what is none, are not taken over.
    assert shown(work("{}"), "seen") == seen(2)
    third = work(login("me", 4))
    assert shown(third, "seen") == seen(2)
    # Neither the tokens that went in nor those that came out are in a log, a transcript or an event.
    for task in (second, third):
        told = json.dumps(board.get(f"/tasks/{task['id']}/transcript")["items"])
        assert "[redacted]" in told and "refresh-0" not in told and token("me", 2) not in told
    assert "refresh-0" not in json.dumps(board.get("/events"))


def test_one_attempt_at_a_time_has_a_login(board):  # noqa: F811
    board.call("PUT", "/secrets/codex-login", (200, 201, 204), json={"value": login("me", 1)})
    first = board.task(PATIENT, definition={"secrets": {FILE: "codex-login"}, "env": {"LONG": "8"}})
    board.start(first)
    board.eventually(lambda: board.steps(first).get("agent-1"), 120)
    second = board.task(PATIENT, definition={"secrets": {FILE: "codex-login"}})
    board.start(second)

    told = "waiting for the login `codex-login`"
    board.eventually(lambda: told in json.dumps(board.get("/events", subject=second)), 60)
    done = [board.over(task) for task in (first, second)]
    assert [one["state"] for one in done] == ["in_review", "in_review"], done
    ended = [
        int(board.fetched("show", f"origin/{one['branch']}:ended-{task}"))
        for one, task in zip(done, (first, second), strict=True)
    ]
    assert ended[0] < ended[1]
