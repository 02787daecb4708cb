"""A missing program is never silent: its tests are left out and named, or fail where all are required."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.programs import PROGRAMS, Choice, Needed

pytestmark = pytest.mark.servers

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

@pytest.mark.java
def test_on_java():
    pass
"""


def run(directory: Path, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """These tests under the project's conftest, on a machine whose PATH is empty."""
    file = directory / "test_sample.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(file)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    env |= {"PATH": str(directory), **environment}
    return subprocess.run(
        [*command, *options, "-p", "no:cacheprovider"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("workers", ["0", "2"])
def test_tests_without_their_program_are_left_out_and_named_with_what_brings_it(tmp_path: Path, workers: str) -> None:
    done = run(tmp_path, "-n", workers, TURNWISE_REQUIRE="")
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    for name, count, packages in (
        ("chromium", 2, "chromium fonts-dejavu-core"),
        ("faketime", 1, "faketime"),
        ("java", 1, "default-jdk-headless maven"),
    ):
        assert (
            f"{name}: {count} test(s) left out; TURNWISE_REQUIRE={name} (or all) runs them; "
            f"Debian: apt-get install {packages}" in done.stdout
        )


def test_where_all_are_required_they_fail(tmp_path: Path) -> None:
    done = run(tmp_path, TURNWISE_REQUIRE="all")
    assert done.returncode == 1, done.stdout
    assert "1 passed, 3 errors" in done.stdout
    assert "chromium is required here: apt-get install chromium fonts-dejavu-core" in done.stdout
    assert "java: required by TURNWISE_REQUIRE; Debian: apt-get install default-jdk-headless maven" in done.stdout


def test_where_one_is_required_only_that_one_fails(tmp_path: Path) -> None:
    done = run(tmp_path, TURNWISE_REQUIRE="java")
    assert done.returncode == 1, done.stdout
    assert "1 passed, 2 deselected, 1 error" in done.stdout


def test_an_unknown_program_is_told_at_once(tmp_path: Path) -> None:
    done = run(tmp_path, TURNWISE_REQUIRE="jawa")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        "TURNWISE_REQUIRE: jawa is none of "
        "all, chromium, faketime, java, node, pgbouncer, postgres, prometheus, proxies, redis" in done.stderr
    )


def test_where_all_are_required_a_run_that_needs_none_fails_too(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "of_its_own", TURNWISE_REQUIRE="all")
    assert "1 passed" in done.stdout
    assert done.returncode == 1, done.stdout


def test_every_marker_that_stands_for_a_program_is_looked_for(pytestconfig: pytest.Config) -> None:
    declared = {line.split(":")[0] for line in pytestconfig.getini("markers") if ": needs " in line}
    assert {program.name for program in PROGRAMS} == declared


def test_what_is_run_follows_from_what_is_required_and_what_is_here() -> None:
    here = Needed("here", "a", lambda: True)
    common = Needed("common", "b", lambda: True, runs_where_here=True)
    gone = Needed("gone", "c", lambda: False, runs_where_here=True)
    programs = (here, common, gone)

    def choice(require: str) -> Choice:
        return Choice.of({"TURNWISE_REQUIRE": require}, programs)

    assert choice("") == Choice.of({}, programs) == Choice((), (here, gone))
    assert choice("all") == Choice((gone,), ())
    assert choice("gone, here") == Choice((gone,), ())
    assert choice("here") == Choice((), (gone,))
