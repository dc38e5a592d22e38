"""The code of docs/code-interpreter.md, as people copy it from there."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs/code-interpreter.md"
PATIENCE_S = 300
# Stands in for a model on the internet, and says what one would say.
SCRIPTED = """
import smolagents
from smolagents import ChatMessage, MessageRole

STEPS = [
    "import pandas as pd\\nsales = pd.read_csv('sales.csv')\\nprint(sales['sum'].mean())",
    "best = sales.sort_values('sum').iloc[-1]\\nfinal_answer([best['month'], int(best['sum'])])",
]


class Scripted(smolagents.Model):
    def __init__(self):
        super().__init__(model_id="scripted")
        self.steps = iter(STEPS)

    def generate(self, messages, **options):
        self.heard = str(messages[-1].content)
        step = next(self.steps)
        if step is STEPS[1]:
            assert "120.0" in self.heard, self.heard
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\\n{step}\\n</code>")


smolagents.InferenceClientModel = Scripted
"""


def block(language: str, mark: str) -> str:
    """The block of code in the guide that has this in it."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return next(found for found in blocks if mark in found)


def run(command: list, directory: pathlib.Path) -> list[str]:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()


def test_the_analysis_in_python(tmp_path):
    (tmp_path / "guide.py").write_text(block("python", "e2b_code_interpreter"))
    said = run([sys.executable, "guide.py"], tmp_path)
    assert said == [
        "[120.0, 80.0, 90.0, None, 150.0, 110.0]",
        "550",
        "Jan 200.0",
        "Feb 90.0",
        "Mar 260.0",
        "KeyError",
        "bar [('Jan', 200.0), ('Feb', 90.0), ('Mar', 260.0)]",
    ]
    assert (tmp_path / "sales.png").read_bytes().startswith(b"\x89PNG")


def test_the_analysis_in_javascript():
    if not (home := os.environ.get("COFFER_CODE_JS_NEW")):
        pytest.skip("SKIPPED: @e2b/code-interpreter is not installed; start the tests with e2e/run code")
    home = pathlib.Path(home)
    (home / "guide.mjs").write_text(block("js", "@e2b/code-interpreter"))
    assert run(["node", "guide.mjs"], home) == ["120.0", "drawing", "line EUR 3", "150"]
    assert (home / "sales-line.png").read_bytes().startswith(b"\x89PNG")


def test_an_agent_of_smolagents(tmp_path):
    if not (python := os.environ.get("COFFER_CODE_SMOLAGENTS")):
        pytest.skip("SKIPPED: smolagents is not installed; start the tests with e2e/run code")
    (tmp_path / "guide.py").write_text(SCRIPTED + block("python", "smolagents"))
    said = run([python, "guide.py"], tmp_path)
    assert "['Mar', 150]" in said, said[-10:]
