"""The launcher's log tells what programs use that do not tell of themselves."""

import asyncio

import pytest

from tests.backend_kit.test_processes import ALL
from tests.support.patience import PATIENCE_S
from tests.turnwise.test_supervise import Screen, program
from turnwise.console import Console
from turnwise.processes import ProcessLog
from turnwise.supervise import Child

pytestmark = pytest.mark.servers

WITH_A_CHILD = """
import subprocess, sys, time
with subprocess.Popen([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]):
    time.sleep(600)
"""


async def test_a_program_is_told_of_with_what_it_has_started_and_the_launcher_too() -> None:
    screen = Screen()
    console = Console(screen, verbose=True)
    child = Child(program(WITH_A_CHILD, name="postgres"), console)
    running = asyncio.create_task(child.keep_running())
    assert child.pid is None
    await screen.line_with("ready")
    log = asyncio.create_task(ProcessLog("turnwise", console, lambda: [child]).write_each(0.05))
    lines = [await screen.line_with("name=postgres processes=2 "), await screen.line_with("name=turnwise processes=1 ")]
    log.cancel()
    await child.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    for line in lines:
        name, _, told = line.partition("| ")
        assert name.strip() == "turnwise"
        assert ALL.match(told.strip())
    assert child.pid is None
