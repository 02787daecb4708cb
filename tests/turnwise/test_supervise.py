"""Children: kept running, prefixed, ended for certain."""

import asyncio
import io
import os
import signal
import sys
from dataclasses import replace

import psutil
import pytest

from backend_kit.parent_death import with_parent_death_signal
from tests.support.patience import PATIENCE_S
from tests.support.processes import ROOT
from turnwise.console import Console
from turnwise.errors import StartRefused
from turnwise.supervise import Child, Program, failure_line, stop_in_reverse

pytestmark = pytest.mark.servers


class Screen(io.StringIO):
    """A terminal whose lines can be awaited. Children write to it from their threads."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self.seen: list[str] = []

    def write(self, text: str, /) -> int:
        self._loop.call_soon_threadsafe(self._lines.put_nowait, text)
        return len(text)

    async def line_with(self, part: str) -> str:
        while True:
            line = await self._lines.get()
            self.seen.append(line)
            if part in line:
                return line


def program(script: str, *, name: str = "sample", stop_s: float = PATIENCE_S) -> Program:
    def command() -> list[str]:
        return with_parent_death_signal([sys.executable, "-u", "-c", script], signal.SIGTERM)

    return Program(name, command, os.environ, ROOT, stop_s=stop_s)


SLEEPER = "import time; print('up'); time.sleep(600)"


async def test_output_carries_the_name_in_a_column_of_one_width() -> None:
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(
            program("import sys, time; print('out'); print('err', file=sys.stderr); time.sleep(600)"), Console(screen)
        )
        tasks.create_task(child.keep_running())
        assert await screen.line_with("out") == "sample   | out\n"
        assert await screen.line_with("err") == "sample   | err\n"
        await child.stop()


async def test_a_child_that_dies_is_said_and_started_again_later_each_time() -> None:
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(program("raise SystemExit(3)"), Console(screen))
        child.is_useful = True
        tasks.create_task(child.keep_running())
        assert await screen.line_with("again") == "sample   | ended with code 3; it starts again in 0.5 s\n"
        assert await screen.line_with("again") == "sample   | ended with code 3; it starts again in 1 s\n"
        assert child.deaths == 2
        await child.stop()


async def test_a_child_that_ends_of_itself_before_it_was_of_use_is_not_started_again() -> None:
    said = "reading\n2026-11-22 10:00:00,000 CRITICAL spool another process has it\n"
    script = f"import os; os.write(2, {said.encode()}); os._exit(3)"
    screen = Screen()
    child = Child(program(script), Console(screen))
    await child.keep_running()
    assert (child.deaths, child.fault) == (1, "another process has it")
    await screen.line_with("sample   | ended with code 3\n")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("the reason", "the reason"),
        ("2026-11-22 10:00:00,000 CRITICAL http the reason", "the reason"),
        ("agent a: a.py:3: OSError: FATAL: no password", "agent a: a.py:3: OSError: FATAL: no password"),
    ],
)
async def test_a_child_that_says_that_it_cannot_be_used_is_not_started_again_however_long_it_was_of_use(
    said: str, reason: str
) -> None:
    script = f"import os; os.write(2, b'ValueError: what it logged\\n{said}\\n'); os._exit(2)"
    child = Child(replace(program(script), hopeless_codes=(2,)), Console(Screen()))
    child.is_useful = True
    await child.keep_running()
    assert (child.deaths, child.fault, child.is_unusable) == (1, reason, True)


async def test_a_child_that_is_killed_each_time_before_it_was_of_use_is_given_up() -> None:
    child = Child(program("import os; os.kill(os.getpid(), 9)"), Console(Screen()), restart_min_s=0.01)
    await child.keep_running()
    assert (child.deaths, child.fault) == (3, "was ended by SIGKILL")


LOGGED = "2026-11-22 10:00:00,000"
MISSING = "ModuleNotFoundError: No module named 'x'"


@pytest.mark.parametrize(
    ("lines", "useful"),
    [
        ([], ""),
        (["", "one", "two", ""], "two"),
        ([f"{LOGGED} CRITICAL a.b port 1 is taken", f"{LOGGED} INFO a.b bye"], "port 1 is taken"),
        (["Traceback (most recent call last):", '  File "x"', MISSING], MISSING),
        (["a.SomeError: why", "cleaning up"], "a.SomeError: why"),
        ([f"{LOGGED} ERROR u Traceback (most", MISSING, f"{LOGGED} ERROR u Application startup failed."], MISSING),
        (["x [1] LOG:  starting", "x [1] FATAL:  could not open it", "x [1] LOG:  shut down"], "could not open it"),
    ],
)
def test_of_what_a_program_said_the_line_that_says_why_is_found(lines: list[str], useful: str) -> None:
    assert failure_line(lines) == useful


async def test_a_child_that_is_killed_is_said_by_the_name_of_the_signal_and_runs_again() -> None:
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(program("import os; print(os.getpid()); import time; time.sleep(600)"), Console(screen))
        tasks.create_task(child.keep_running())
        first = int((await screen.line_with("|")).split("|")[1])
        os.kill(first, signal.SIGKILL)
        await screen.line_with("was ended by SIGKILL")
        second = int((await screen.line_with("|")).split("|")[1])
        assert second != first
        await child.stop()
        assert not psutil.pid_exists(second)


async def test_a_child_that_ignores_the_polite_signal_is_killed() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)"
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(program(deaf, stop_s=0.2), Console(screen))
        tasks.create_task(child.keep_running())
        await screen.line_with("up")
        await child.stop()
    await screen.line_with("did not end within 0.2 s and is killed")


async def test_what_a_dead_child_has_left_behind_is_ended_with_it() -> None:
    parent = (
        "import subprocess, sys;"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print('left', left.pid); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(program(parent), Console(screen))
        tasks.create_task(child.keep_running())
        left = psutil.Process(int((await screen.line_with("left")).split()[-1]))
        await screen.line_with("was ended by SIGKILL")
        await child.stop()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, [left], timeout=PATIENCE_S)
    assert (gone, alive) == ([left], [])


async def test_a_child_stops_while_it_waits_to_start_again() -> None:
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(program("raise SystemExit(0)"), Console(screen))
        tasks.create_task(child.keep_running())
        await screen.line_with("again")
        await child.stop()


async def test_a_start_that_is_refused_is_said_and_tried_again() -> None:
    refusals = iter(["no room"])

    def prepare() -> None:
        for reason in refusals:
            raise StartRefused(reason)

    ready = program(SLEEPER)
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(Program("sample", ready.command, os.environ, ROOT, prepare=prepare), Console(screen))
        tasks.create_task(child.keep_running())
        await screen.line_with("cannot start: no room; it starts again in 0.5 s")
        await screen.line_with("up")
        await child.stop()


async def test_children_end_in_the_opposite_order() -> None:
    polite = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('bye'), sys.exit()));"
        "print('up'); time.sleep(600)"
    )
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        children = [Child(program(polite, name=name), Console(screen)) for name in ("first", "second", "third")]
        for child in children:
            tasks.create_task(child.keep_running())
        for _ in children:
            await screen.line_with("up")
        await stop_in_reverse(children)
    for name in ("third", "second", "first"):
        assert (await screen.line_with("bye")).startswith(name)


async def test_a_child_that_was_never_run_stops_at_once() -> None:
    await Child(program(SLEEPER), Console(Screen())).stop()


async def test_a_line_without_end_is_cut_and_not_kept() -> None:
    screen = Screen()
    async with asyncio.TaskGroup() as tasks:
        child = Child(program("import time; print('x' * 200_000); print('up'); time.sleep(600)"), Console(screen))
        tasks.create_task(child.keep_running())
        await screen.line_with("up")
        await child.stop()
    assert sum(line.count("x") for line in screen.seen) == 200_000


async def test_of_what_a_child_warned_of_its_figures_are_left_out() -> None:
    """They say how long something took, never why it failed."""
    screen = Screen()
    script = """import time
print('2026-11-22 17:59:52,576 WARNING turnwise.kpi [KPI][STALL] lag_ms=103 stack=somewhere')
print('2026-11-22 17:59:55,449 WARNING agentic_backend.llm.client model x failed: HTTP 404')
print('up', flush=True); time.sleep(600)"""
    async with asyncio.TaskGroup() as tasks:
        child = Child(program(script), Console(screen))
        tasks.create_task(child.keep_running())
        await screen.line_with("up")
        assert list(child.warnings) == ["model x failed: HTTP 404"]
        await child.stop()
