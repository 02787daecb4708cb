"""The gates that run apart from the tests (mutants, coverage) look at code that exists, and can fail."""

import ast
import itertools
import py_compile
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.coverage_gate import PACKAGES, TESTS, is_measured, judged, percent_of
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


def test_what_the_coverage_gate_measures_exists() -> None:
    assert [path for path in (*itertools.chain(*PACKAGES), *TESTS) if not (ROOT / path).exists()] == []
    assert all(is_measured(f"{path}/test_any.py::test_any[1]") for path in TESTS if not path.endswith(".py"))
    assert not is_measured("tests/agentic_backend/session_of_others/test_any.py::test_any")


def measured(lines: int, covered: int) -> dict[str, Any]:
    counts = {"num_statements": lines, "covered_lines": covered, "num_branches": 10, "covered_branches": 10}
    return {"summary": counts, "missing_lines": [7] if covered < lines else []}


def test_the_coverage_gate_fails_for_one_package_under_the_floor() -> None:
    packages = list(itertools.chain(*PACKAGES))
    files = {f"{package}/code.py": measured(90, 90) for package in packages}
    lines, enough = judged(files)
    assert (len(lines), enough) == (len(PACKAGES), True)
    files[f"{packages[0]}/code.py"] = measured(90, 79)
    assert percent_of(files) > 90
    lines, enough = judged(files)
    assert not enough
    assert f"         {packages[0]}/code.py: lines 7" in lines
    assert judged({})[1] is False


@pytest.mark.servers
def test_a_run_that_reaches_too_little_fails_and_names_the_lines() -> None:
    alone = ("--noconftest", "-p", "no:cacheprovider", "tests/agentic_backend/spool/test_cache.py")
    line = ("-m", "pytest", "-q", "-n", "1", "-p", "tests.coverage_gate", *alone)
    done = subprocess.run([sys.executable, *line], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert re.search(r"^\d+ passed", done.stdout, re.MULTILINE)
    assert re.search(
        r"^ +[1-4]\d\.\d\d % of agentic_backend/chat, agentic_backend/rest \(\d+ files", done.stdout, re.MULTILINE
    )
    missed = dict(re.findall(r"^ +(agentic_backend/\S+): lines (.*)$", done.stdout, re.MULTILINE))
    assert len(missed["agentic_backend/chat/hub.py"].split(",")) > 200
    # What runs when a module is imported is among what is reached, whoever imports it.
    assert len(missed["agentic_backend/spool/cache.py"].split(",")) < 10
