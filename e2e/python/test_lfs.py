"""Large files in sandboxes, by the real git-lfs: from clone to push and back, and no credential on the way."""

import hashlib
from importlib.metadata import version

import pytest

from test_gate import VERSIONS, Project, project, sign  # noqa: F401

if f"PYTHON_OLD={version('e2b')}" in VERSIONS.read_text().splitlines():
    pytest.skip("SKIPPED: git has no SDK; large files are tested once, beside the newest", allow_module_level=True)

POINTER = "version https://git-lfs.github.com/spec/v1"
BIG = 3_000_000


@pytest.fixture
def large(project):  # noqa: F811
    """A project whose sandbox has `app`, with a large file on the branch `task-1`."""
    if project.inside("git lfs version")[0] != 0:
        pytest.skip(
            "SKIPPED: the template has no git-lfs; `scripts/setup test` installs it, or build the template anew"
        )
    sign(project)
    project.post("clone", repository="app")
    project.post("branch", name="task-1")
    begin = f"cd app && git lfs install --local && git lfs track '*.bin' && head -c {BIG} /dev/urandom > big.bin"
    code, said = project.inside(begin)
    assert code == 0, said
    project.post("commit", 201, message="feat: a large file")
    project.post("push")
    return project


def digest(project: Project, path: str) -> str:  # noqa: F811
    code, said = project.inside(f"sha256sum {path}")
    assert code == 0, said
    return said.split()[0]


def other_sandbox(project: Project) -> str:  # noqa: F811
    made = (
        project.api.post("/sandboxes", json={"timeout_s": 600, "network": {"base": "none"}}).raise_for_status().json()
    )
    return f"/sandboxes/{made['id']}"


def test_a_large_file_goes_to_the_forge_and_comes_back(large):
    first = digest(large, "app/big.bin")
    code, said = large.inside("git -C app show HEAD:big.bin")
    assert code == 0 and said.startswith(POINTER) and first in said, said
    # The object is on the forge, and whole.
    place = large.api.get("/repositories/app").raise_for_status().json()["clone_url"] + f"/info/lfs/objects/{first}"
    object_ = large.api.get(place, headers={"X-API-KEY": large.key}).raise_for_status().content
    assert (len(object_), hashlib.sha256(object_).hexdigest()) == (BIG, first)

    source, large.path = large.path, other_sandbox(large)
    cloned = large.post("clone", repository="app", branch="task-1")
    assert cloned["notes"] == [] and digest(large, "app/big.bin") == first
    assert large.get("status")["changes"] == []
    assert large.inside("head -c 1000 /dev/urandom >> app/big.bin && echo small > app/small")[0] == 0
    second = digest(large, "app/big.bin")
    large.post("commit", 201, message="feat: more of it")
    large.post("push")
    large.api.delete(large.path)

    # One that was there follows, and so does a clone that never saw the first.
    large.path = source
    assert large.inside("cd app && git pull -q origin task-1")[0] == 0
    assert digest(large, "app/big.bin") == second != first
    again = large.post("clone", repository="app", branch="task-1", path="again")
    assert again["notes"] == [] and digest(large, "again/big.bin") == second
    # A branch without it, and back.
    assert large.post("branch", repository="app", name="main")["notes"] == []
    assert large.inside("test ! -e again/big.bin")[0] == 0
    assert large.post("branch", repository="app", name="task-1")["notes"] == []
    assert digest(large, "again/big.bin") == second


def test_uploads_pass_in_a_push_and_no_credential_is_ever_inside(large):
    before, first = len(large.rules()), digest(large, "app/big.bin")
    line = "cd app && echo more >> big.bin && git -c user.name=a -c user.email=a@b commit -qam x && git lfs push --all origin"
    code, said = large.inside(line)
    assert code != 0 and "pushing is closed" in said, said
    assert "git:push-closed" in large.rules()[before:]
    # Nor by hand at the gate, nor of another repository's.
    gate, body = (
        "http://git.coffer.internal",
        '{"operation": "download", "objects": [{"oid": "%s", "size": 1}]}' % ("a" * 64),
    )
    large.seed("other")
    code, said = large.inside(f"curl -sS -d '{body}' {gate}/other.git/info/lfs/objects/batch")
    assert "no such repository" in said, said
    code, said = large.inside(f"curl -sS -d '{body}' {gate}/app.git/info/lfs/objects/batch")
    assert code == 0 and "no such object" in said, said
    # All that git-lfs sees and tells, while it fetches what the forge has anew and while the API pushes.
    kept = f".git/lfs/objects/{first[:2]}/{first[2:4]}/{first}"
    trace = f"cd app && rm {kept} && GIT_TRACE=1 GIT_CURL_VERBOSE=1 GIT_TRANSFER_TRACE=1 git lfs fetch --all"
    code, said = large.inside(f"{trace} 2>&1")
    assert code == 0 and "info/lfs/transfer/" in said, said
    assert "cofpass" not in said and "uthorization" not in said
    large.post("push")
    # The word is put together inside, so that it is on no command line.
    hunt = "p=$(printf '%s%s' cof pass_); b=$(printf '%s%s' Y29mZmVy OmNvZnBhc3Nf); "
    hunt += 'grep -rslaF -e "$p" -e "$b" /home /root /tmp /etc /run /var /opt 2>/dev/null; '
    hunt += 'grep -slaF -e "$p" -e "$b" /proc/[0-9]*/environ 2>/dev/null; :'
    assert large.inside(hunt, user="root") == (0, "")


def test_without_git_lfs_a_clone_is_there_and_says_what_is_missing(large):
    # As in a template that never had it, in the system's settings either.
    line = "mv $(command -v git-lfs) /root/ && ! command -v git-lfs && ! git config --system --remove-section filter.lfs 2>&1 | grep ."
    code, said = large.inside(line, user="root")
    assert code == 0, said
    cloned = large.post("clone", repository="app", branch="task-1", path="bare")
    [note] = cloned["notes"]
    assert "no git-lfs" in note and "git lfs pull" in note, note
    code, said = large.inside("cat bare/big.bin")
    assert code == 0 and said.startswith(POINTER), said
    assert large.get("git")["items"][0]["result"]["notes"] == [note]


def test_an_object_that_the_forge_has_not_is_told_and_no_failure(large):
    """As where somebody pushed a pointer and never its object."""
    oid = "b" * 64
    pointer = f"{POINTER}\\noid sha256:{oid}\\nsize 12\\n"
    line = f"cd app && printf '{pointer}' > gone.bin && git add gone.bin && git -c user.name=a -c user.email=a@b commit -qm 'feat: gone'"
    code, said = large.inside(line)
    assert code == 0, said
    # As a program would that does not want its objects looked for.
    assert large.inside("cd app && git config lfs.allowincompletepush true")[0] == 0
    large.post("push")
    large.path, source = other_sandbox(large), large.path
    cloned = large.post("clone", repository="app", branch="task-1")
    [note] = cloned["notes"]
    assert "files of Git LFS are missing" in note, note
    assert digest(large, "app/big.bin") and large.inside("head -c 7 app/gone.bin") == (0, "version")
    large.api.delete(large.path)
    large.path = source
