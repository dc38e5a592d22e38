"""docs/threat-model.md names a test for every case; here is the proof that they are these."""

import ast
import pathlib
import re

from coffer_up import ROOT


def test_the_table_of_cases_is_true():
    rows = [line for line in (ROOT / "docs/threat-model.md").read_text().splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`(test_\w+)` \|$", row)]
    there = []
    for path in pathlib.Path(__file__).parent.glob("test_*.py"):
        if path.name != pathlib.Path(__file__).name:
            body = ast.parse(path.read_text()).body
            there += [item.name for item in body if isinstance(item, ast.FunctionDef) and item.name.startswith("test_")]
    assert len(named) >= 60 and len(named) == len(set(named)), "a case is there twice, or cases are missing"
    assert {"named but not there": set(named) - set(there), "there but not named": set(there) - set(named)} == {
        "named but not there": set(),
        "there but not named": set(),
    }
