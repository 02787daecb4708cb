"""A missing program is never silent: its tests are left out and named, or fail where all are required."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.programs import PROGRAMS, Needed, missing_programs

TESTS = """
import pytest

def test_of_its_own():
    pass

@pytest.mark.chromium
def test_in_a_browser():
    pass

@pytest.mark.chromium
@pytest.mark.faketime
def test_in_a_browser_at_another_time():
    pass
"""


def run(directory: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """These tests under the project's conftest, on a machine whose PATH is empty."""
    file = directory / "test_sample.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(file)]
    env = {**os.environ, "PATH": str(directory), **environment}
    return subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


def test_tests_without_their_program_are_left_out_and_named_with_the_package_that_brings_it(tmp_path: Path) -> None:
    done = run(tmp_path, TURNWISE_REQUIRE="")
    assert done.returncode == 0, done.stdout
    assert "1 passed, 2 deselected" in done.stdout
    assert "chromium: 2 test(s) left out; Debian: apt-get install chromium fonts-dejavu-core" in done.stdout
    assert "faketime: 1 test(s) left out; Debian: apt-get install faketime" in done.stdout
    assert "java: 0 test(s) left out; Debian: apt-get install default-jdk-headless maven" in done.stdout


def test_where_all_are_required_they_fail(tmp_path: Path) -> None:
    done = run(tmp_path, TURNWISE_REQUIRE="all")
    assert done.returncode == 1, done.stdout
    assert "1 passed, 2 errors" in done.stdout
    assert "chromium is required here: apt-get install chromium fonts-dejavu-core" in done.stdout
    assert "java: required by TURNWISE_REQUIRE=all; Debian: apt-get install default-jdk-headless maven" in done.stdout


def test_where_all_are_required_a_run_that_needs_none_fails_too(tmp_path: Path) -> None:
    global_tests = TESTS.split("@pytest", 1)[0]
    assert "chromium" not in global_tests
    (tmp_path / "test_only.py").write_text(global_tests)
    env = {**os.environ, "PATH": str(tmp_path), "TURNWISE_REQUIRE": "all"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(tmp_path / "test_only.py")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout
    assert done.returncode == 1, done.stdout


def test_every_marker_that_stands_for_a_program_is_looked_for(pytestconfig: pytest.Config) -> None:
    declared = {line.split(":")[0] for line in pytestconfig.getini("markers") if ": needs " in line}
    assert {program.name for program in PROGRAMS} == declared


def test_a_program_is_missing_when_it_is_not_here() -> None:
    here = Needed("here", "a", lambda: True)
    gone = Needed("gone", "b", lambda: False)
    assert missing_programs((here, gone)) == [gone]
