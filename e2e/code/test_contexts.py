"""Contexts: made, listed, restarted, removed; in order within one, side by side among several."""

import threading
import time
import uuid

import pytest
from e2b import NotFoundException, SandboxException


def test_defaults_are_listed_and_new_ones_go_last(make):
    sandbox = make()
    assert [(c.language, c.cwd) for c in sandbox.list_code_contexts()] == [
        ("python", "/home/user"),
        ("javascript", "/home/user"),
    ]
    made = sandbox.create_code_context(cwd="/tmp", language="TS ")
    assert (made.language, made.cwd) == ("typescript", "/tmp") and uuid.UUID(made.id)
    assert sandbox.list_code_contexts()[-1].id == made.id
    sandbox.run_code("1", language="bash")
    assert [c.language for c in sandbox.list_code_contexts()] == ["python", "javascript", "typescript", "bash"]


def test_contexts_are_apart(box):
    one, two = box.create_code_context(), box.create_code_context(cwd="/tmp")
    box.run_code("x = 'one'", context=one)
    box.run_code("x = 'two'", context=two)
    assert box.run_code("x", context=one).text == "one" and box.run_code("x", context=two).text == "two"
    assert box.run_code("x").error.name == "NameError"
    assert box.run_code("import os; os.getcwd()", context=two).text == "/tmp"


def test_a_restart_keeps_the_id_and_the_directory(box):
    context = box.create_code_context(cwd="/tmp")
    box.run_code("x = 1", context=context)
    box.restart_code_context(context)
    done = box.run_code("x", context=context)
    assert done.error.name == "NameError" and done.execution_count == 1
    assert box.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert context.id in [c.id for c in box.list_code_contexts()]


def test_a_restart_ends_the_call_that_runs(box):
    context = box.create_code_context()
    ended, printed = [], threading.Event()
    code = "print('began', flush=True)\nimport time; time.sleep(300)"
    run = lambda: ended.append(box.run_code(code, context=context, on_stdout=lambda _: printed.set()))
    call = threading.Thread(target=run)
    call.start()
    assert printed.wait(60)
    box.restart_code_context(context)
    call.join(60)
    assert ended[0].error.name == "ContextRestarting"
    assert box.run_code("1", context=context).text == "1"


def test_a_removed_context_is_gone(box):
    context = box.create_code_context()
    box.remove_code_context(context)
    assert context.id not in [c.id for c in box.list_code_contexts()]
    with pytest.raises(NotFoundException, match=f"Context {context.id} not found"):
        box.run_code("1", context=context)
    for call in (box.remove_code_context, box.restart_code_context):
        with pytest.raises((NotFoundException, SandboxException)):
            call(context)


def test_what_cannot_be_is_refused(box):
    with pytest.raises(SandboxException, match=r"500.*cobol.* is not installed; there are python, javascript"):
        box.run_code("1", language="cobol")
    with pytest.raises(SandboxException):
        box.create_code_context(language="cobol")
    nowhere = box.create_code_context(cwd="/no/such/directory")
    assert nowhere.cwd == "/no/such/directory"
    assert box.run_code("1", context=nowhere).text == "1"
    box.remove_code_context(nowhere)


def test_calls_of_one_context_wait_for_each_other(box):
    order, threads = [], []
    context = box.create_code_context()
    box.run_code("n = 0", context=context)

    def one():
        order.append(int(box.run_code("import time; m = n; time.sleep(0.2); n = m + 1; n", context=context).text))

    threads = [threading.Thread(target=one) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(order) == [1, 2, 3, 4, 5]


def test_several_contexts_run_at_the_same_time(box):
    """Each waits for a file that the other one writes."""
    mark = uuid.uuid4().hex
    code = "import os, time\nopen('/tmp/MARK-MINE', 'w').close()\nwhile not os.path.exists('/tmp/MARK-OTHER'): time.sleep(0.01)\n'met'"
    met = []
    threads = [
        threading.Thread(
            target=lambda mine=mine, other=other: met.append(
                box.run_code(
                    code.replace("MARK", mark).replace("MINE", mine).replace("OTHER", other),
                    context=box.create_code_context(),
                    timeout=60,
                ).text
            )
        )
        for mine, other in (("a", "b"), ("b", "a"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert met == ["met", "met"]


def test_there_are_not_more_than_32(make):
    sandbox = make()
    with pytest.raises(SandboxException, match="there are 32 contexts already"):
        for _ in range(40):
            sandbox.create_code_context(language="bash")
    assert len(sandbox.list_code_contexts()) == 32
    began = time.monotonic()
    for context in sandbox.list_code_contexts()[2:]:
        sandbox.remove_code_context(context)
    assert sandbox.run_code("1").text == "1" and time.monotonic() - began < 120
