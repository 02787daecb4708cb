"""`.ci/run`: each stage once, its seconds in a table, and the end at the first that fails."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.checks.source import ROOT

pytestmark = pytest.mark.servers

STAGES = (
    *("programs", "environment", "check", "fuzz", "mutants", "wheel-test", "bench-short", "bench-micro"),
    *("bench-turn", "chaos", "test-proxy", "test"),
)
ROW = re.compile(r"^(\S+) +\d+ s +\d+ s CPU$", re.MULTILINE)
BESIDE = {"check": "wheel-test", "fuzz": "wheel-test", "mutants": "wheel-test"}
"""What has begun before a stage, and is in the table after it."""


def ci(
    place: Path, *, fails: str = "nothing", lasting: str = "nothing", killed: str = "nothing"
) -> "tuple[subprocess.CompletedProcess[str], list[str]]":
    """The script in a tree of its own, where `make` and the rest only say that they were called.

    One of them fails, once the one that lasts has begun; one is killed with its process group.
    """
    (place / ".ci").mkdir()
    (place / "deploy").mkdir()
    shutil.copy(ROOT / ".ci/run", place / ".ci/run")
    bin_, calls = place / "bin", place / "calls"
    bin_.mkdir()
    waits = ":" if lasting == "nothing" else f"until grep -q lasts {calls}; do sleep 0.01; done"
    said = f'''echo "$(basename "$0") $*" >>{calls}
        [ "$1" != "{lasting}" ] || {{ echo "lasts $$" >>{calls}; exec sleep 600; }}
        [ "$1" != "{killed}" ] || kill -9 0
        [ "$1" != "{fails}" ] || {{ {waits}; exit 7; }}
        '''
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
    done, calls = ci(tmp_path)
    assert done.returncode == 0, done.stderr
    assert tuple(ROW.findall(done.stdout)) == STAGES
    assert re.search(r"^total +\d+ s  within the bound of 1800 s\n\Z", done.stdout, re.MULTILINE)
    assert sorted(call.split()[1] for call in calls) == sorted(["sync", *STAGES[2:]])


@pytest.mark.parametrize("fails", ["mutants", "wheel-test", "fuzz", "check"])
def test_what_fails_is_named_ends_the_run_and_is_not_tried_again(tmp_path: Path, fails: str) -> None:
    done, calls = ci(tmp_path, fails=fails)
    assert done.returncode == 7
    assert re.search(rf"^{fails} +\d+ s  FAILED \(7\)\ntotal ", done.stdout, re.MULTILINE)
    assert tuple(ROW.findall(done.stdout)) == STAGES[: STAGES.index(fails)]
    # What was begun beside it may have been ended before it said so.
    said = [name for name in (call.split()[1] for call in calls) if name != BESIDE.get(fails)]
    assert sorted(said) == sorted(["sync", *STAGES[2 : STAGES.index(fails) + 1]])


def test_what_is_killed_beside_a_stage_is_named_too(tmp_path: Path) -> None:
    done, _ = ci(tmp_path, killed="wheel-test")
    assert done.returncode == 128 + signal.SIGKILL
    assert re.search(r"^wheel-test +\d+ s  FAILED \(137\)\ntotal ", done.stdout, re.MULTILINE)


def test_what_runs_beside_a_stage_that_fails_is_ended(tmp_path: Path) -> None:
    done, calls = ci(tmp_path, fails="mutants", lasting="wheel-test")
    assert done.returncode == 7
    (pid,) = [int(call.split()[1]) for call in calls if call.startswith("lasts ")]
    with contextlib.suppress(psutil.NoSuchProcess):  # it was told to end; until it has, the test waits
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
