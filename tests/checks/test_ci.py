"""`.ci/run`: each stage once, its seconds in a table, and the end at the first that fails."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.checks.source import ROOT

pytestmark = pytest.mark.servers

STAGES = (
    *("programs", "environment", "check", "wheel-test", "gates", "bench-short", "bench-micro", "bench-turn"),
    *("chaos", "fuzz", "test"),
)


def ci(place: Path, fails: str) -> "tuple[subprocess.CompletedProcess[str], list[str]]":
    """The script in a tree of its own, where `make` and the rest only say that they were called; one of them fails."""
    (place / ".ci").mkdir()
    (place / "deploy").mkdir()
    shutil.copy(ROOT / ".ci/run", place / ".ci/run")
    bin_, calls = place / "bin", place / "calls"
    bin_.mkdir()
    said = f'echo "$(basename "$0") $*" >>{calls}; [ "$1" != "{fails}" ] || exit 7\n'
    installed = f"sed -n 's/.*packages+*=(\\([^)]*\\)).*/\\1/p' {place}/.ci/run | tr ' ' '\\n' | sed 's/^/ii  /'\n"
    programs = {"bin/make": said, "deploy/toolchain.sh": said, "bin/dpkg-query": installed}
    for name in ("java", "mvn", "apt-get"):
        programs[f"bin/{name}"] = said
    for name, code in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{code}")
        (place / name).chmod(0o755)
    calls.touch()
    environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"}
    done = subprocess.run([place / ".ci/run"], env=environment, capture_output=True, text=True, check=False)
    return done, calls.read_text().splitlines()


def test_each_stage_runs_once_and_is_in_the_table(tmp_path: Path) -> None:
    done, calls = ci(tmp_path, fails="nothing")
    assert done.returncode == 0, done.stderr
    assert tuple(re.findall(r"^(\S+) +\d+ s$", done.stdout, re.MULTILINE)) == STAGES
    assert re.search(r"^total +\d+ s  within the bound of 1800 s\n\Z", done.stdout, re.MULTILINE)
    assert [call.split()[1] for call in calls] == ["sync", *STAGES[2:]]


def test_what_fails_is_named_ends_the_run_and_is_not_tried_again(tmp_path: Path) -> None:
    done, calls = ci(tmp_path, fails="gates")
    assert done.returncode == 7
    assert re.search(r"^gates +\d+ s  FAILED \(7\)\ntotal ", done.stdout, re.MULTILINE)
    assert tuple(re.findall(r"^(\S+) +\d+ s$", done.stdout, re.MULTILINE)) == STAGES[: STAGES.index("gates")]
    assert [call.split()[1] for call in calls] == ["sync", *STAGES[2 : STAGES.index("gates") + 1]]
