"""The command beside neighbours, on which a suite is run five times before it is called steady."""

import os
import subprocess
import sys

import psutil
import pytest

from tests.busy import ROOT

pytestmark = pytest.mark.servers

LOOKS = """
import os, psutil, sys
beside = [child for child in psutil.Process(os.getppid()).children() if child.pid != os.getpid()]
print("beside", *(child.pid for child in beside))
sys.exit(int(sys.argv[1]))
"""


def busy(times: int, code: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.busy", f"--times={times}", sys.executable, "-c", LOOKS, str(code)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_command_runs_beside_neighbours_that_end_with_it() -> None:
    done = busy(times=2, code=0)
    assert done.returncode == 0, done.stderr
    first, second = (line.split()[1:] for line in done.stdout.splitlines() if line.startswith("beside "))
    assert first == second
    assert len(first) == (os.cpu_count() or 1) + 1
    assert [pid for pid in map(int, first) if psutil.pid_exists(pid)] == []


def test_the_first_run_that_fails_is_the_last() -> None:
    done = busy(times=3, code=7)
    assert done.returncode == 7
    assert done.stdout.count("beside ") == 1
    assert "run 1 of 3: exit code 7 after " in done.stdout
