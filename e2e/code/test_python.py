"""Python code by `e2b-code-interpreter`: state, output, errors, variables, and what is shown beside text."""

import pytest


def test_state_is_kept_and_the_last_value_is_the_result(box):
    assert box.run_code("x = 41").text is None
    done = box.run_code("x += 1\nx")
    assert done.text == "42" and done.results[0].is_main_result
    assert box.run_code("'text'").text == "text"
    first = box.run_code("1").execution_count
    assert box.run_code("2").execution_count == first + 1
    assert box.run_code("").execution_count == first + 2, "empty code runs nothing"
    assert box.run_code("3").execution_count == first + 2


def test_output_comes_while_the_code_runs(box):
    out, err, results = [], [], []
    code = """
import sys, time
for n in range(3):
    print(n, flush=True)
    time.sleep(0.3)
print("bad", file=sys.stderr)
display("shown")
"last"
"""
    done = box.run_code(code, on_stdout=out.append, on_stderr=err.append, on_result=results.append)
    assert "".join(done.logs.stdout) == "0\n1\n2\n" and "".join(done.logs.stderr) == "bad\n"
    assert len(out) >= 2, "it was not sent at once"
    assert err and [shown.text for shown in results] == ["shown", "last"]
    assert [shown.is_main_result for shown in done.results] == [False, True]


def test_an_exception_has_its_name_value_and_traceback(box):
    errors = []
    done = box.run_code("def f():\n    raise KeyError('ü')\nf()", on_error=errors.append)
    assert done.error.name == "KeyError" and done.error.value == "'ü'" and done.text is None
    assert "line 3" in done.error.traceback and "\x1b" not in done.error.traceback
    assert [error.name for error in errors] == ["KeyError"]
    assert box.run_code("import nothing_of_this_name").error.name == "ModuleNotFoundError"
    assert box.run_code("x =").error.name == "SyntaxError"
    assert box.run_code("input()").error.name == "StdinNotImplementedError"
    assert box.run_code("1").error is None


def test_text_of_any_kind_arrives_as_it_is(box):
    text = "ä \u2028 \u2029 \u0085 😀 \x00 \x7f \" ' \\ \r\n \x1b[0m"
    done = box.run_code(f"t = {text!r}\nprint(t, end='')\nt")
    assert "".join(done.logs.stdout) == text
    assert done.text == repr(text)[1:-1]
    long = box.run_code("print('x' * 5_000_000)")
    assert len("".join(long.logs.stdout)) == 5_000_001


def test_cells_that_are_indented_and_shell_commands(box):
    assert box.run_code("    y = 1\n    y + 1\n").text == "2"
    assert "".join(box.run_code("!pwd").logs.stdout).strip() == "/home/user"
    assert box.run_code("await __import__('asyncio').sleep(0, 'awaited')").text == "awaited"
    assert box.run_code("%time 1").error is None


def test_variables_of_sandbox_and_call(make):
    sandbox = make(envs={"PLACE": 'it\'s "here"\n$HOME \\'})
    get = "import os; print(os.environ.get('PLACE'), os.environ.get('CALL'), sep='|', end='')"
    said = lambda **options: "".join(sandbox.run_code(get, **options).logs.stdout)
    mine = 'it\'s "here"\n$HOME \\'
    assert said() == f"{mine}|None"
    assert said(envs={"CALL": "a'b\"é\u2028", "PLACE": "other"}) == "other|a'b\"é\u2028"
    assert said() == f"{mine}|None"
    failed = sandbox.run_code("1/0", envs={"CALL": "x"})
    assert failed.error.name == "ZeroDivisionError" and "line 1" in failed.error.traceback
    assert said() == f"{mine}|None"
    sandbox.run_code("import os; os._exit(1)")
    assert said() == f"{mine}|None", "a new kernel has them too"


def test_a_frame_is_data_and_a_table(box):
    code = """
import pandas as pd
pd.DataFrame({"z": [1, 2], "a": ["x", None], "t": pd.to_datetime(["2026-01-02", None]), "f": [0.5, float("nan")]})
"""
    result = box.run_code(code).results[0]
    assert list(result.data) == ["z", "a", "t", "f"], "columns keep their order"
    assert result.data["z"] == [1, 2] and result.data["a"] == ["x", None]
    assert result.data["t"] == ["2026-01-02T00:00:00", None] and result.data["f"] == [0.5, None]
    assert "<table" in result.html and result.text


def test_json_html_and_own_representations(box):
    assert box.run_code("{'a': [1, None]}").results[0].json == {"a": [1, None]}
    assert box.run_code("[1, float('nan'), object]").results[0].json[:2] == [1, None]
    own = box.run_code("class A:\n    def _repr_latex_(self): return '$x$'\n    def __repr__(self): return 'A'\nA()")
    assert own.results[0].latex == "$x$" and own.text == "A"
    html = box.run_code("from IPython.display import HTML, Javascript, Markdown\nHTML('<b>é</b>')").results[0]
    assert html.html == "<b>é</b>"
    assert box.run_code("Markdown('*m*')").results[0].markdown == "*m*"
    assert box.run_code("display({'application/x-own': {'k': 1}}, raw=True)").results[0].extra == {
        "application/x-own": {"k": 1}
    }


CHARTS = {
    "line": "plt.plot([1, 2], [3, 4], label='a')",
    "scatter": "plt.scatter([1, 2], [3, 4])",
    "bar": "plt.bar(['a', 'b'], [3, 4])",
    "pie": "plt.pie([1, 3], labels=['a', 'b'])",
    "box_and_whisker": "plt.boxplot([[1, 2, 4, 6, 8], [2, 4, 5, 9, 11]], labels=['A', 'B'], patch_artist=True)",
    "superchart": "f, (p, q) = plt.subplots(1, 2)\np.plot([1, 2])\nq.bar(['a', 'b'], [1, 2])",
    "unknown": "plt.imshow([[1, 2], [3, 4]])",
}


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_a_picture_and_data(box, kind):
    code = f"import matplotlib.pyplot as plt\n{CHARTS[kind]}\nplt.title('T')\nplt.xlabel('time (s)')\nplt.show()"
    result = box.run_code(code).results[0]
    assert result.png.startswith("iVBOR")
    assert result.chart.type.value == kind
    if kind in ("line", "scatter"):
        assert [tuple(point) for point in result.chart.elements[0].points] == [(1, 3), (2, 4)]
        assert (result.chart.title, result.chart.x_label, result.chart.x_unit) == ("T", "time (s)", "s")
    if kind == "bar":
        assert [(bar.label, bar.value) for bar in result.chart.elements] == [("a", 3), ("b", 4)]
    if kind == "superchart":
        assert [chart.type.value for chart in result.chart.elements] == ["line", "bar"]


def test_bars_of_equal_heights_stand_upright(box):
    for heights in ([3], [3, 3]):
        code = f"import matplotlib.pyplot as plt\nplt.bar({list('ab')[: len(heights)]!r}, {heights!r})\nplt.xlabel('X')\nplt.show()"
        chart = box.run_code(code).results[0].chart
        assert [bar.value for bar in chart.elements] == heights and chart.x_label == "X"


def test_images_are_shown_when_they_are_saved_or_shown(box):
    image = "from PIL import Image\nimport numpy\n"
    image += "image = Image.fromarray((numpy.random.rand(16, 16, 3) * 255).astype('uint8')).convert('RGBA')\n"
    for last in ("image", "image.show()", "image.save('test.png')"):
        assert box.run_code(image + last).results[0].png, last
    assert not box.run_code("import io\nimage.save(io.BytesIO(), 'png')").results


def test_packages_that_people_expect(box):
    names = "aiohttp bs4 bokeh cv2 gensim imageio joblib librosa nltk openpyxl plotly pytest docx pytz requests"
    names += " skimage sklearn scipy seaborn soundfile spacy sympy textblob tornado xarray xlrd"
    missing = box.run_code(
        f"import importlib.util\n[n for n in {names.split()!r} if importlib.util.find_spec(n) is None]"
    )
    assert missing.results[0].json == []
