"""A test that hangs fails alone, with all stacks, and what it started is gone; the others run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.servers

HEAD = """
import asyncio, ctypes, os, pathlib, signal, subprocess, sys, threading, time
import pytest
pytestmark = pytest.mark.servers

KEPT = []  # Popen warns of a process that it forgets

def start(place):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    while b"sleep" not in pathlib.Path(f"/proc/{child.pid}/cmdline").read_bytes():  # comes with its exec
        time.sleep(0.01)
    child.send_signal(signal.SIGSTOP)
    (place / f"{child.pid}.pid").touch()
    KEPT.append(child)
    return child
"""
LIMITS = ("-o", "test_limit_s=6")


def run(directory: Path, tests: str, *options: str) -> str:
    """What these tests say under the project's conftest, with a limit of 6 s for each phase."""
    file = directory / "test_sample.py"
    file.write_text(HEAD + tests.replace("PLACE", f"__import__('pathlib').Path({str(directory)!r})"))
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(file)]
    done = subprocess.run(
        [*command, *LIMITS, "-p", "no:cacheprovider", *options],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def started_in(directory: Path) -> list[int]:
    pids = [int(file.stem) for file in directory.glob("*.pid")]
    assert pids
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


CALL = """
def test_before():
    pass

def test_waits_for_a_suspended_child():
    start(PLACE).wait()

async def test_waits_for_ever():
    await asyncio.Event().wait()

def test_after():
    pass
"""


def test_a_hung_call_fails_alone_and_its_processes_are_killed(tmp_path: Path) -> None:
    out = run(tmp_path, CALL)
    assert "2 failed, 2 passed" in out
    assert ").wait()" in out
    assert "await asyncio.Event().wait()" in out
    assert re.search(r"killed: \d+ .*time\.sleep\(1000\)", out)
    assert started_in(tmp_path) == []


FIXTURES = """
@pytest.fixture
async def never_ready():
    await asyncio.Event().wait()

@pytest.fixture
def child():
    child = start(PLACE)
    yield
    child.wait()

async def test_with_a_hung_setup(never_ready):
    pass

def test_that_fails_and_then_hangs_in_its_teardown(child):
    assert 1 == 2

def test_after():
    pass
"""


def test_setup_and_teardown_have_the_limit_too_even_after_a_failure(tmp_path: Path) -> None:
    out = run(tmp_path, FIXTURES)
    assert "1 failed, 1 passed, 2 errors" in out
    assert "setup of " in out
    assert "teardown of " in out
    assert started_in(tmp_path) == []


SHARED = """
import psycopg

@pytest.fixture
async def server():
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(asyncio.Event().wait())
        yield
        serving.cancel()

@pytest.mark.timeout(120)
def test_before(database):
    pass

async def test_hangs_beside_a_server_and_a_database(server, database):
    with psycopg.connect(database.dsn):
        await asyncio.Event().wait()

def test_after(database):
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM session").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'test_%'").fetchone() == (1,)
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_a_hung_test_shares_with_others_is_theirs_after_it(tmp_path: Path, workers: str) -> None:
    out = run(tmp_path, SHARED, "-n", workers)
    assert "1 failed, 2 passed" in out, out
    assert "killed: " not in out


STUCK = """
def test_before():
    pass

def test_never_returns_from_c():
    start(PLACE)
    ctypes.CDLL(None).pause()

def test_after():
    pass
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_cannot_be_ended_takes_its_worker_and_is_not_run_again(tmp_path: Path, workers: str) -> None:
    out = run(tmp_path, STUCK, "-n", workers, "-o", "hang_grace_s=1")
    assert "1 failed, 2 passed" in out
    assert "ctypes.CDLL(None).pause()" in out
    assert started_in(tmp_path) == []


LEFT = """
def test_forgets_its_child():
    start(PLACE)
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_process_that_is_left_behind_is_ended_and_fails_the_run(tmp_path: Path, workers: str) -> None:
    out = run(tmp_path, LEFT, "-n", workers)
    assert "1 passed" in out
    assert re.search(r"left behind by its test, and ended: \d+ .*time\.sleep\(1000\)", out), out
    assert started_in(tmp_path) == []
