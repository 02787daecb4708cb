"""The gates that run apart from the tests (mutants, coverage) look at code that exists, and can fail."""

import ast
import itertools
import py_compile
from pathlib import Path
from typing import Any

import pytest

from tests.coverage_gate import PACKAGES, TESTS, WITHOUT, percent_of, tell
from tests.mutants.__main__ import StaleMutant, plant
from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_names_a_test(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    file, _, name = mutant.test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name.partition("[")[0] in tests


def test_there_are_mutants_in_each_package_of_the_rule() -> None:
    assert len(MUTANTS) >= 10
    assert set(itertools.chain(*PACKAGES)) <= {str(Path(mutant.file).parent) for mutant in MUTANTS}


def test_a_mutant_is_planted_once_or_not_at_all(tmp_path: Path) -> None:
    mutant = Mutant("m", "code.py", "a = 1\n", "a = 2\n", "t")
    (tmp_path / "code.py").write_text("a = 1\nb = 1\n")
    compiled = Path(py_compile.compile(str(tmp_path / "code.py"), doraise=True) or "")
    plant(mutant, tmp_path)
    assert (tmp_path / "code.py").read_text() == "a = 2\nb = 1\n"
    assert not compiled.exists()  # it would be run in place of the mistake where both are of one second
    with pytest.raises(StaleMutant, match=r"0 times in code\.py"):
        plant(mutant, tmp_path)


def test_what_the_coverage_gate_runs_exists() -> None:
    assert [path for path in (*itertools.chain(*PACKAGES, *TESTS), *WITHOUT) if not (ROOT / path).exists()] == []


def measured(lines: int, covered: int) -> dict[str, Any]:
    counts = {"num_statements": lines, "covered_lines": covered, "num_branches": 10, "covered_branches": 10}
    return {"summary": counts, "missing_lines": [7] if covered < lines else []}


def test_the_coverage_gate_fails_for_one_package_under_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    packages = list(itertools.chain(*PACKAGES))
    files = {f"{package}/code.py": measured(90, 90) for package in packages}
    assert tell(files) == 0
    files[f"{packages[0]}/code.py"] = measured(90, 79)
    assert percent_of(files) > 90
    assert tell(files) == 1
    assert f"{packages[0]}/code.py: lines 7" in capsys.readouterr().out
    assert tell({}) == 1
