"""A test that starts a program or a server carries the mark by which `make test-fast` leaves it out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = pytest.mark.servers

TESTS = """
import asyncio, socket, subprocess, sys
import pytest

PROGRAM = (sys.executable, "-c", "")

@pytest.fixture(scope="module")
def program():
    subprocess.run(PROGRAM, check=True)

def test_plain():
    subprocess.run(PROGRAM, check=True)

async def test_on_the_loop():
    await (await asyncio.create_subprocess_exec(*PROGRAM)).wait()

def test_of_a_fixture_of_the_file(program):
    pass

async def test_of_a_server_on_the_loop():
    (await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)).close()

def test_of_a_server_in_a_thread():
    socket.create_server(("127.0.0.1", 0)).close()

@pytest.mark.servers
async def test_with_its_mark():
    await (await asyncio.create_subprocess_exec(*PROGRAM)).wait()

def test_that_starts_none():
    pass

@pytest.mark.node
def test_of_a_program():
    subprocess.run(PROGRAM, check=True)
"""


def test_who_starts_a_program_or_a_server_without_the_mark_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(file)]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_XDIST", "TURNWISE_"))}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    found = {line.split("::")[1].split()[0] for line in done.stdout.splitlines() if line.startswith("ERROR ")}
    assert found == {
        "test_plain",
        "test_on_the_loop",
        "test_of_a_fixture_of_the_file",
        "test_of_a_server_on_the_loop",
        "test_of_a_server_in_a_thread",
    }, done.stdout
    assert "mark it pytest.mark.servers" in done.stdout
