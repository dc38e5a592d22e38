"""What happens when a client leaves, a kernel dies, the service dies, or the sandbox is paused, forked and copied."""

import contextlib
import threading

import pytest
from e2b import TimeoutException

ENDLESS = {
    "python": "import time\ntime.sleep(300)",
    "js": "while (true) {}",
    "r": "Sys.sleep(300)",
    "bash": "while :; do sleep 1; done",
}
STATE = {"python": ("kept = 7", "print(kept)"), "r": ("kept <- 7", "cat(kept)"), "bash": ("kept=7", "echo $kept")}


@pytest.mark.parametrize("language", ENDLESS)
def test_a_client_that_leaves_interrupts_its_code(box, language):
    if language in STATE:
        box.run_code(STATE[language][0], language=language)
    with pytest.raises(TimeoutException):
        box.run_code(ENDLESS[language], language=language, timeout=3)
    if language in STATE:
        again = box.run_code(STATE[language][1], language=language, timeout=20)
        assert "".join(again.logs.stdout).strip() == "7", "its state is kept"
    else:
        assert box.run_code("1 + 1", language=language, timeout=20).text == "2"


def test_code_that_awaits_in_deno_is_ended_too(box):
    with pytest.raises(TimeoutException):
        box.run_code("await new Promise(() => {})", language="js", timeout=2)
    assert box.run_code("1 + 1", language="js", timeout=30).text == "2"


def test_a_silent_call_is_kept_alive(box):
    assert box.run_code("import time; time.sleep(12); 'over'").text == "over"


def test_a_kernel_that_dies_is_started_again(box):
    for language, end in [
        ("python", "import os; os._exit(1)"),
        ("js", "Deno.exit(1)"),
        ("r", "quit(status = 1)"),
        ("bash", "exit 1"),
    ]:
        context = box.create_code_context(language=language)
        died = box.run_code(end, context=context)
        assert died.error and died.error.name == "ContextRestarting", (language, died.error)
        assert died.error.value == "Context was restarted"
        again = box.run_code("1", context=context, timeout=60)
        assert again.error is None or language == "bash", (language, again.error)
        assert again.execution_count == 1


def test_a_kernel_that_is_killed_between_calls_is_started_again(box, eventually):
    box.run_code("x = 1")
    box.commands.run("pkill -9 -f ipykernel_launcher", user="root")
    eventually(lambda: box.run_code("x").error.name == "NameError")
    assert box.run_code("1 + 1").text == "2"


def test_the_service_comes_back_when_it_is_killed(make, eventually):
    sandbox = make()
    sandbox.run_code("x = 1")
    before = sandbox.commands.run("pgrep -c -f ipykernel_launcher").stdout
    # Also by the names of E2B's programs, which are one here.
    for words in ("[c]offer-code serve", "[j]upyter-server", "[u]vicorn main:app"):
        sandbox.commands.run(f"pkill -9 -f '{words}'", user="root")
        health = "curl -s -o /dev/null -w '%{http_code}' --retry 60 --retry-delay 1 --retry-all-errors -f http://0.0.0.0:49999/health"
        assert sandbox.commands.run(health, timeout=60).stdout.endswith("200")
        assert sandbox.run_code("x = 1; x").text == "1"
    eventually(lambda: sandbox.commands.run("pgrep -c -f ipykernel_launcher").stdout == before)


def test_state_survives_a_pause(make, memory):
    sandbox = make()
    second = sandbox.create_code_context()
    sandbox.run_code("import random; random.seed(1); x = object(); i = id(x)")
    sandbox.run_code("y = 'second'", context=second)
    for language in ("js", "r", "bash"):
        sandbox.run_code("z = 5" if language == "r" else "var z = 5" if language == "js" else "z=5", language=language)
    sandbox.pause()
    sandbox.connect(timeout=1200)
    assert sandbox.run_code("id(x) == i").text == "True"
    assert sandbox.run_code("y", context=second).text == "second"
    assert sandbox.run_code("z", language="js").text == "5"
    assert sandbox.run_code("z", language="r").results[0].text == "[1] 5"
    assert sandbox.run_code("echo $z", language="bash").logs.stdout == ["5\n"]


def test_a_pause_in_the_middle_of_a_call_leaves_a_context_that_works(make, memory, eventually):
    sandbox = make()
    sandbox.run_code("x = 1")
    printed = threading.Event()

    def run():
        code = "print('began', flush=True)\nimport time; time.sleep(300)"
        with contextlib.suppress(Exception):  # the pause cuts it
            sandbox.run_code(code, on_stdout=lambda _: printed.set())

    call = threading.Thread(target=run)
    call.start()
    assert printed.wait(60)
    sandbox.pause()
    call.join(60)
    sandbox.connect(timeout=1200)
    assert sandbox.run_code("x", timeout=60).text == "1"


def test_forks_go_on_with_the_state_and_are_apart(make, memory):
    source = make(envs={"PLACE": "here"})
    source.run_code("import random; random.seed(5); rows = [1, 2, 3]")
    forks = source.fork(count=2, timeout=1200)
    try:
        assert forks[0].run_code("rows.append(4); sum(rows)").text == "10"
        assert forks[1].run_code("sum(rows)").text == "6"
        assert source.run_code("len(rows)").text == "3"
        drawn = [each.run_code("random.random()").text for each in (source, *forks)]
        assert len(set(drawn)) == 1, "a seed that the user chose is part of the state"
        where = "import os; os.environ['PLACE'], os.environ['E2B_SANDBOX_ID']"
        assert [each.run_code(where).text for each in forks] == [str(("here", each.sandbox_id)) for each in forks]
    finally:
        for each in forks:
            each.kill()


# What must differ between copies of one memory: the key of messages, also in its file, and whatever draws random numbers.
RANDOMNESS = """
import json, random, ssl, sys, tempfile, uuid

def randomness():
    import multiprocessing, numpy

    key = get_ipython().kernel.session.key.decode()
    file = next(word for word in open("/proc/self/cmdline").read().split("\\0") if word.endswith(".json"))
    assert json.load(open(file))["key"] == key, "the file has another key"
    return {
        "key": key,
        "random": random.random(),
        "numpy": float(numpy.random.rand()),
        "ssl": ssl.RAND_bytes(16).hex(),
        "tempfile": next(tempfile._get_candidate_names()),
        "uuid1": str(uuid.uuid1()),
        "uuid4": str(uuid.uuid4()),
        "multiprocessing": bytes(multiprocessing.current_process().authkey).hex(),
    }

randomness()
"""
R_KEY = """
for (frame in sys.frames()) {
    kernel <- get0("kernel", frame, inherits = FALSE)
    if (methods::is(kernel, "Kernel")) cat(kernel$connection_info$key)
}
"""


def test_copies_of_a_memory_share_neither_keys_nor_random_numbers(make, memory):
    drawn = [make().run_code(RANDOMNESS) for _ in range(3)]
    assert not any(each.error for each in drawn), drawn
    for name in drawn[0].results[0].json:
        assert len({each.results[0].json[name] for each in drawn}) == 3, name
    r = {make().run_code("cat(runif(1))", language="r").logs.stdout[0] for _ in range(2)}
    assert len(r) == 2


def test_a_fork_has_keys_of_its_own_and_keeps_its_seeds(make, memory):
    source = make()
    source.run_code(RANDOMNESS)
    source.run_code("random.seed(5); numpy = __import__('numpy'); numpy.random.seed(5)")
    source.run_code("set.seed(5)", language="r")
    fork = source.fork(timeout=1200)[0]
    try:
        both = [each.run_code("randomness()").results[0].json for each in (source, fork)]
        same = {name for name in both[0] if both[0][name] == both[1][name]}
        assert same == {"random", "numpy"}, both
        keys = [each.run_code(R_KEY, language="r").logs.stdout for each in (source, fork)]
        assert all(keys) and keys[0] != keys[1]
        assert len({each.run_code("cat(runif(1))", language="r").logs.stdout[0] for each in (source, fork)}) == 1
    finally:
        fork.kill()


def test_a_secured_sandbox_asks_for_its_token(make):
    sandbox = make(secure=True, allow_internet_access=False, envs={"PLACE": "here"})
    assert sandbox.run_code("import os; os.environ['PLACE']").text == "here"
