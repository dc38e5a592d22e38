"""The other languages: JavaScript and TypeScript by Deno, R by IRkernel, Bash and Java by drivers of our own."""

import pytest
from e2b import TimeoutException


def test_javascript(box):
    run = lambda code, **options: box.run_code(code, language="js", **options)
    assert run("console.log('Hello, World!')").logs.stdout == ["Hello, World!\n"]
    run("const x = 1")
    assert run("x").text == "1" and run("const x = 2; x").text == "2"
    assert run("process.cwd()").text == "/home/user"
    assert run("import fs from 'fs'; fs.existsSync('/')").text == "true"
    assert run("require('node:path').join('a', 'b')").text == "a/b"
    assert "".join(run("process.stdout.write('raw')").logs.stdout) == "raw"
    assert run("async function f() { return 'awaited' }; await f()").text == "awaited"
    value = "a'b\"é\u2028`${x}\n\\"
    assert "".join(run("process.stdout.write(process.env.CALL)", envs={"CALL": value}).logs.stdout) == value
    assert run("process.env.CALL ?? 'none'").text == "none"
    failed = run("throw new TypeError('no')")
    assert failed.error.name == "TypeError" and failed.error.value == "no"
    assert run("console.error('bad')").logs.stderr == ["bad\n"]


def test_typescript_is_a_context_of_its_own(box):
    run = lambda code: box.run_code(code, language="ts")
    assert run("function less(x: number, y: number): number { return x - y }; less(1, 2)").text == "-1"
    assert run("enum Colour { Red = 7 }; Colour.Red").text == "7"
    assert box.run_code("typeof less", language="js").text == "undefined"


def test_r(box):
    run = lambda code, **options: box.run_code(code, language="r", **options)
    assert run('print("Hello, World!")').logs.stdout == ['[1] "Hello, World!"\n']
    run("x <- 41")
    assert run("x + 1").results[0].text == "[1] 42"
    assert run("getwd()").results[0].text == '[1] "/home/user"'
    value = "a'b\"é\n\\x"
    assert "".join(run("cat(Sys.getenv('CALL'))", envs={"CALL": value}).logs.stdout) == value
    assert run("Sys.getenv('CALL', unset = 'default')").results[0].text == '[1] "default"'
    assert "no such thing" in run("stop('no such thing')").error.value
    assert run("plot(1:3)").results[0].png
    assert "<table" in run("data.frame(a = 1:2)").results[0].html


def test_bash(box):
    run = lambda code, **options: box.run_code(code, language="bash", **options)
    assert run("cd /tmp; x=5; f() { echo f $x; }").error is None
    done = run("f; pwd; ls /nope; echo é")
    assert "".join(done.logs.stdout) == "f 5\n/tmp\né\n" and "/nope" in "".join(done.logs.stderr)
    assert done.error is None
    failed = run("echo before; (exit 3)")
    assert failed.error.value == "3" and failed.logs.stdout == ["before\n"]
    assert run("cat; echo over").logs.stdout == ["over\n"], "nothing to read"
    assert "syntax error" in "".join(run("if true; then").logs.stderr)
    assert run('echo "$CALL"', envs={"CALL": "a'b $(id)"}).logs.stdout == ["a'b $(id)\n"]
    assert run("echo ${CALL:-default}").logs.stdout == ["default\n"]
    assert "".join(run("seq 100000 | tail -1; echo 'a!b'").logs.stdout) == "100000\na!b\n"
    first = run(":").execution_count
    assert run(":").execution_count == first + 1


@pytest.mark.parametrize(
    ("language", "code", "said"),
    [
        ("python", "import os; print(os.environ['PLACE'])", "here\n"),
        ("js", "console.log(process.env.PLACE)", "here\n"),
        ("r", "cat(Sys.getenv('PLACE'), '\\n', sep = '')", "here\n"),
        ("bash", "echo $PLACE", "here\n"),
    ],
)
def test_each_has_the_sandboxes_variables(make, language, code, said):
    sandbox = make(envs={"PLACE": "here"})
    assert "".join(sandbox.run_code(code, language=language).logs.stdout) == said
    assert "".join(sandbox.run_code(code, language=language, envs={"PLACE": "there"}).logs.stdout) == "there\n"
    assert "".join(sandbox.run_code(code, language=language).logs.stdout) == said


def test_java_keeps_state_prints_shows_and_raises(box):
    context = box.create_code_context(language="java")
    assert box.run_code("int x = 40;\nint twice(int n) {\n    return 2 * n;\n}", context=context).text is None
    done = box.run_code("x += 2;\nx", context=context)
    assert done.text == "42" and done.results[0].is_main_result
    assert box.run_code('"text"', context=context).text == "text"
    out, err = [], []
    code = 'System.out.println("é"); System.err.print("bad"); List.of(twice(3), x)'
    done = box.run_code(code, context=context, on_stdout=out.append, on_stderr=err.append)
    assert "".join(done.logs.stdout) == "é\n" and done.logs.stdout[0] == "é" and done.logs.stderr == ["bad"]
    assert out and err and done.text == "[6, 42]"
    raised = box.run_code('throw new IllegalStateException("oh")', context=context).error
    assert (raised.name, raised.value) == ("java.lang.IllegalStateException", "oh") and "at" in raised.traceback
    refused = box.run_code("int y = ;", context=context).error
    assert refused.name == "CompilationException" and "illegal start of expression" in refused.value
    assert box.run_code("twice(x)", context=context).text == "84", "an error loses nothing"


def test_java_has_variables_as_properties(make):
    sandbox = make(envs={"PLACE": "it's = é"})
    get = 'System.getProperty("PLACE") + "|" + System.getProperty("CALL", "none")'
    assert sandbox.run_code(get, language="java").text == "it's = é|none"
    assert sandbox.run_code(get, language="java", envs={"CALL": "a", "PLACE": "b"}).text == "b|a"
    assert sandbox.run_code(get, language="java").text == "it's = é|none"


def test_java_is_interrupted_and_dies_as_others(box):
    context = box.create_code_context(language="java")
    box.run_code("int kept = 7;", context=context)
    for endless in ("while (true) { }", "Thread.sleep(300_000);"):
        with pytest.raises(TimeoutException):
            box.run_code(endless, context=context, timeout=3)
        assert box.run_code("kept", context=context, timeout=30).text == "7"
    died = box.run_code("System.exit(1)", context=context)
    assert died.error.name == "ContextRestarting"
    assert box.run_code("1 + 1", context=context, timeout=60).text == "2"
