"""The status line, from what the service says of itself; in the log, what other programs use."""

import asyncio
from pathlib import Path

import pytest

from tests.backend_kit.test_processes import ALL
from tests.support.patience import PATIENCE_S
from tests.turnwise.test_supervise import Screen, program
from turnwise.console import Console
from turnwise.status import ProcessLog, describe, status_line
from turnwise.supervise import Child


def step(turns: int, p95: float | None, bound_by: str) -> dict[str, object]:
    latency = None if p95 is None else {"p50": 1.0, "p95": p95, "max": p95}
    return {"turns": turns, "window_s": 10.0, "turn_latency_ms": latency, "bound_by": bound_by}


def test_it_tells_the_rate_of_the_window_and_the_newest_p95_and_verdict() -> None:
    live = {"steps": [step(30, 900.0, "model"), step(10, 3085.4, "pool"), step(0, None, "nobody")]}
    assert describe(live) == "1.33 turns/s  p95 3.09 s  bound by pool"
    assert describe({"steps": [step(1, 15.4, "nobody")]}) == "0.10 turns/s  p95 15 ms  bound by nobody"


def test_without_turns_and_without_an_answer_it_says_so() -> None:
    assert describe({"steps": []}) == ""
    assert describe({"steps": [step(0, None, "nobody")]}) == ""
    assert "no turns" in status_line("", "http://h", Path("/l"))
    assert status_line(None, "http://h", Path("/l")) == " http://h  not answering  log /l"


WITH_A_CHILD = """
import subprocess, sys, time
with subprocess.Popen([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(600)"]):
    time.sleep(600)
"""


@pytest.mark.servers
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
