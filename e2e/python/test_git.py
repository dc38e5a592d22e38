import pytest

REMOTE = "git://127.0.0.1:9418/remote.git"


def test_the_sdks_git_against_a_daemon_inside(make, eventually):
    sandbox = make()
    if not sandbox.commands.run("test -x $(git --exec-path)/git-daemon && echo yes || true").stdout:
        pytest.skip("SKIPPED: this template has no git daemon")
    sandbox.git.init("/tmp/repo", initial_branch="main")
    sandbox.git.configure_user("Somebody", "somebody@example.com")
    sandbox.files.write("/tmp/repo/README.md", "hello\n")
    sandbox.git.add("/tmp/repo", all=True)
    sandbox.git.commit("/tmp/repo", message="First", author_name="Somebody", author_email="somebody@example.com")
    sandbox.commands.run("git init -q --bare --initial-branch=main /tmp/served/remote.git")
    daemon = "git daemon --base-path=/tmp/served --export-all --enable=receive-pack --listen=127.0.0.1"
    sandbox.commands.run(daemon, background=True, timeout=0)
    eventually(lambda: sandbox.commands.run(f"git ls-remote {REMOTE} >/dev/null 2>&1 && echo up || true").stdout)
    sandbox.git.remote_add("/tmp/repo", "origin", REMOTE)
    sandbox.git.push("/tmp/repo", remote="origin", branch="main", set_upstream=True)
    sandbox.git.clone(REMOTE, "/tmp/clone")
    assert sandbox.files.read("/tmp/clone/README.md") == "hello\n"
