"""docs/trust.md: every promise of the list has its row, and what a row names as its proof is there."""

import ast
import re

import pytest

from tests.chaos.scenarios import SCENARIOS
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/trust.md"
WANTED = {"C": 13, "D": 19, "E": 23, "F": 12, "G": 19, "H": 8}
ROW = re.compile(r"^\| ([C-H]\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
ROWS = {row: proof for row, _, _, proof in ROW.findall(PAGE.read_text())}


def test_every_promise_has_a_row() -> None:
    assert set(ROWS) == {f"{letter}{number}" for letter, count in WANTED.items() for number in range(1, count + 1)}


@pytest.mark.parametrize("row", ROWS)
def test_what_a_row_names_is_there(row: str) -> None:
    names = re.findall(r"`([^`]+)`", ROWS[row])
    assert names, f"{row} names no proof"
    for name in names:
        if name.startswith("make "):
            assert_target(name)
        elif name.startswith("row "):
            assert name.removeprefix("row ") in {one for scenario in SCENARIOS for one in scenario.ids}, name
        else:
            assert_test(f"tests/{name}")


def test_what_an_attempt_names_is_there() -> None:
    attempts = PAGE.read_text().partition("## I. Attempts to break it")[2].partition("\n## ")[0]
    names = re.findall(r"`([\w/]+\.py(?:::\w+)?)`", attempts)
    assert names
    for name in names:
        assert_test(f"tests/{name}")


def assert_target(name: str) -> None:
    """A target of the Makefile."""
    target = name.split()[1]
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE), name


def assert_test(name: str) -> None:
    """`file::test`, or a whole file."""
    path, _, test = name.partition("::")
    assert (ROOT / path).is_file(), name
    if test:
        tree = ast.parse((ROOT / path).read_text())
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in tests, name
