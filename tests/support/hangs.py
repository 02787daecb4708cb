"""Ends what hangs: set-up, call and teardown of each test have a limit of their own, which only a hang reaches.

At the limit the stacks of all threads and tasks are taken, every process that the test has started is killed by its
id, and the tasks that it has begun are cancelled: nearly always that lets the test go on, to fail alone. One that
still stands after a moment (a call into C that never returns) takes its process with it, which is a worker of
pytest-xdist: the test is reported as failed, with the same stacks, and another worker goes on with the rest.
"""

import asyncio
import contextlib
import os
import secrets
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

LIMIT_S = 300.0
"""Of a phase of a test without the marker `timeout`."""
GRACE_S = 30.0
"""From the stacks to the end of the process."""
EXIT_CODE = 70
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
MARK = "TURNWISE_TEST_PROCESS"
"""Environment variable which every process that a test starts inherits; its value names the process of the tests."""


@dataclass(slots=True)
class _Phase:
    """What runs: `setup`, `call` or `teardown` of a test."""

    name: str
    began: float
    """When its test began, in seconds since the machine was started, as the kernel tells the start of a process."""
    gives_up: float
    """`time.monotonic()`."""
    tasks_before: "weakref.WeakSet[asyncio.Task[Any]]"
    """Those of its fixtures, say: cancelled, they would break their teardown, and with it what others share."""
    stacks: str = ""


class HangGuard:
    """Watches one phase after the other, from a thread of its own.

    `loops` gives the loops whose tasks are to be cancelled while they run. `give_up` is called with the stacks where
    even that did not help, and does not return.
    """

    def __init__(
        self,
        loops: Callable[[], list[asyncio.AbstractEventLoop]],
        give_up: Callable[[str], None],
        *,
        grace_s: float = GRACE_S,
    ) -> None:
        self._loops = loops
        self._give_up = give_up
        self._grace_s = grace_s
        self._changed = threading.Condition()
        self._phase: _Phase | None = None
        self._test_began = 0.0
        self._ended = False
        self._thread = threading.Thread(target=self._watch, name="hang-guard", daemon=True)
        self._mark = f"{os.getpid()}-{secrets.token_hex(4)}"

    def start(self) -> None:
        """Begin to watch; processes started from now on are ours."""
        os.environ[MARK] = self._mark
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    @contextlib.contextmanager
    def phase(self, test: str, name: str, limit_s: float) -> Iterator[None]:
        """Watch the block. One that went on only because it was let go raises `Hung`, with its stacks."""
        if name == "setup":
            self._test_began = time.clock_gettime(time.CLOCK_BOOTTIME)
        before = weakref.WeakSet(task for loop in self._loops() for task in asyncio.all_tasks(loop))
        phase = _Phase(f"{name} of {test}", self._test_began, time.monotonic() + limit_s, before)
        self._set(phase)
        try:
            yield
        except BaseException as error:
            self._set(None)
            if phase.stacks:
                raise Hung(f"{phase.name} hung for {limit_s:.0f} s\n{phase.stacks}") from error
            raise
        self._set(None)
        if phase.stacks:
            raise Hung(f"{phase.name} hung for {limit_s:.0f} s\n{phase.stacks}")

    def left_behind(self, since: float = 0.0) -> list[psutil.Process]:
        """The living processes that were started from here at or after `since`, and theirs.

        `since` is in seconds since the machine was started. The backends of a Postgres that is older are not among
        them: killing one makes the server throw out everyone.
        """
        children = {child.pid for child in psutil.Process().children(recursive=True)}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                # A server with an environment of its own is a child; one whose parent has ended carries the mark.
                ours = process.pid in children or process.environ().get(MARK) == self._mark
                living = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
                new = _started_at(process.pid) >= since - _TICK_S and not _is_backend_of_older(process, since)
                if ours and living and new:
                    found.append(process)
        return found

    def _set(self, phase: _Phase | None) -> None:
        with self._changed:
            self._phase = phase
            self._changed.notify()

    def _watch(self) -> None:
        while (phase := self._next()) is not None:
            if self._over(phase, phase.gives_up - time.monotonic()):
                continue
            running = [loop for loop in self._loops() if loop.is_running()]
            phase.stacks = _stacks(running)
            for process in self.left_behind(phase.began):
                phase.stacks += f"killed: {process.pid} {command_of(process)}\n"
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            for loop in running:
                with contextlib.suppress(RuntimeError):  # closed since we looked
                    loop.call_soon_threadsafe(_cancel_new, loop, phase.tasks_before)
            if not self._over(phase, self._grace_s):
                self._give_up(f"{phase.name} hung, and could not be ended\n{phase.stacks}")

    def _next(self) -> _Phase | None:
        """The phase that runs, once one does; None at the end of all."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._phase is not None)
            return None if self._ended else self._phase

    def _over(self, phase: _Phase, within_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._ended or self._phase is not phase, max(within_s, 0.0))


class Hung(Exception):
    """A phase of a test reached its limit."""


def end_at_once(stacks: str, place: "Path | int") -> None:
    """Write the stacks and end this process with all that it has started. Never returns.

    `place` is the file in which the process that reports looks for them, or an open descriptor.
    """
    with open(place, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor has no path
        file.write(stacks)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(EXIT_CODE)


def _started_at(pid: int) -> float:
    """Seconds since the machine was started; psutil's tell the time of day, to a second of the machine's start."""
    # Behind the name of the program, which may hold anything: field 22 of proc_pid_stat(5).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) * _TICK_S


def _stacks(loops: list[asyncio.AbstractEventLoop]) -> str:
    """Where every thread stands, and every task of the loops."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            parts.append(f"thread {names.get(ident, ident)}\n" + "".join(traceback.format_stack(frame, limit=30)))
    for loop in loops:
        # The set of tasks may change while another thread copies it; asyncio tries a thousand times.
        with contextlib.suppress(RuntimeError):
            for task in asyncio.all_tasks(loop):
                lines = [line for frame in task.get_stack(limit=30) for line in traceback.format_stack(frame, limit=1)]
                parts.append(f"task {task.get_name()}\n" + "".join(lines))
    return "\n".join(parts)


def _cancel_new(loop: asyncio.AbstractEventLoop, before: "weakref.WeakSet[asyncio.Task[Any]]") -> None:
    for task in asyncio.all_tasks(loop):
        if task not in before:
            task.cancel()


def _is_backend_of_older(process: psutil.Process, since: float) -> bool:
    """Whether it serves a connection to a Postgres that was there before."""
    parent = process.parent()
    return parent is not None and parent.name() == "postgres" and _started_at(parent.pid) < since - _TICK_S


def command_of(process: psutil.Process) -> str:
    """Its command line, cut to 200 characters."""
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return "(ended)"
