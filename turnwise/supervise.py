"""Runs programs as children: logs their output, restarts them with back-off, and stops them in order.

A program that exits with an error before it has ever been useful would do so again: it is not restarted, and the fault
is reported at once. So is, at any time, a program that says by its exit code that it cannot be used as configured.

Each child leads a session of its own, so that a Ctrl-C at the terminal reaches the launcher alone, and has a
parent-death signal (parent_death.py), so that it ends even when the launcher is killed. Threads read the pipes and
wait for the exits: what asyncio's own `Process.wait` waits for besides the exit (the pipes, which a grandchild may hold
open) differs between patch releases of Python.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from turnwise.console import Console
from turnwise.errors import StartRefused

RESTART_MIN_S = 0.5
RESTART_MAX_S = 10.0
HEALTHY_S = 30.0
DEATHS_BEFORE_USE = 3
LINE_BYTES = 64 * 1024
_LAST_LINES = 40
_RAISED = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit)(?::|$)")
_LOGGED = re.compile(r"^\S+ \S+ (CRITICAL|ERROR) \S+ ")
_SAYS_NOTHING = ("Traceback ", "Application startup failed")
_WARNED = re.compile(r"^\S+ \S+ (WARNING|ERROR|CRITICAL) \S+ ")
_FIGURES = "[KPI]"
_FATAL = re.compile(r"\b(?:FATAL|PANIC):\s+")


@dataclass(frozen=True, slots=True)
class Program:
    """How to run one child.

    `prepare` runs before every start, may block and may raise `StartRefused`; then `command` gives the argument vector,
    with its parent-death signal. To end the program: `stop_signal`, then SIGKILL after `stop_s` seconds. After one of
    `hopeless_codes` it is never restarted.
    """

    name: str
    command: Callable[[], list[str]]
    environment: Mapping[str, str]
    cwd: Path
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 10.0
    prepare: Callable[[], None] = lambda: None
    hopeless_codes: tuple[int, ...] = ()


class Child:
    """One program, kept running from `keep_running()` until `stop()`, or until restarting it is hopeless."""

    def __init__(self, program: Program, console: Console, *, restart_min_s: float = RESTART_MIN_S) -> None:
        """`restart_min_s`: delay before the first restart."""
        self.name = program.name
        self.deaths = 0
        self.is_useful = False
        """True once it has served its purpose or has run for 30 s: from then on it is restarted however it ends. Before
        that it is restarted only after a signal. Its hopeless codes count at any time."""
        self.fault: str | None = None
        """Why it is not restarted, in one line; None while it runs."""
        self.is_unusable = False
        """Whether that is what it said itself, by one of its hopeless codes."""
        self.warnings: deque[str] = deque(maxlen=_LAST_LINES)
        """Lines that it logged as a warning or worse, without time and name; its KPI lines are left out."""
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._program = program
        self._console = console
        self._restart_min_s = restart_min_s
        self._process: subprocess.Popen[bytes] | None = None
        self._began = False
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Its process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def keep_running(self) -> None:
        """Restart the program whenever it ends: after 0.5 s, doubling each time up to 10 s.

        The delay is reset once the program has run for 30 s. Call it once; it returns after `stop()`, or with `fault`
        set.
        """
        self._began = True
        loop = asyncio.get_running_loop()
        delay_s = self._restart_min_s
        try:
            while not self._stopping.is_set():
                born = loop.time()
                code, how = await self._run_once()
                if self._stopping.is_set():
                    break
                self.deaths += 1
                if loop.time() - born >= HEALTHY_S:
                    self.is_useful, delay_s = True, self._restart_min_s
                self.is_unusable = code in self._program.hopeless_codes
                if self.is_unusable or (not self.is_useful and (code > 0 or self.deaths >= DEATHS_BEFORE_USE)):
                    self._console.print_line(self.name, how)
                    # Its own last word, not what the code that it tried to load had to say.
                    self.fault = (last_word if self.is_unusable else failure_line)(self._lines) or how
                    break
                self._console.print_line(self.name, f"{how}; it starts again in {delay_s:g} s")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
                delay_s = min(2 * delay_s, RESTART_MAX_S)
        finally:
            self.kill()
            self._ended.set()

    async def stop(self) -> None:
        """Send the stop signal, then SIGKILL after `stop_s`; return when the program is gone. Does nothing if it is not
        running."""
        self._stopping.set()
        if not self._began:
            return
        if self._process is not None:
            self._process.send_signal(self._program.stop_signal)
        try:
            await asyncio.wait_for(self._ended.wait(), self._program.stop_s)
        except TimeoutError:
            self._console.print_line(self.name, f"did not end within {self._program.stop_s:g} s and is killed")
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        """Send SIGKILL to the program's process group and do not restart it. Does nothing if it is not running."""
        self._stopping.set()
        if self._process is not None:
            kill_group(self._process.pid)

    async def _run_once(self) -> tuple[int, str]:
        """Run the program to its end; its exit code (negative: a signal) and a phrase that says how it ended."""
        try:
            await asyncio.to_thread(self._program.prepare)
        except StartRefused as error:
            return -1, f"cannot start: {error}"
        if self._stopping.is_set():
            return -1, "was not started"
        # From the main thread: the parent-death signal is bound to the starting thread.
        process = subprocess.Popen(  # noqa: ASYNC220, S603 - waits for no more than the exec of our own command
            self._program.command(),
            cwd=self._program.cwd,
            env=dict(self._program.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._process = process
        self._lines.clear()
        reader = threading.Thread(target=self._read_output, args=(process.stdout,), name=self.name, daemon=True)
        reader.start()
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        kill_group(process.pid)  # processes that it started and left behind
        code = process.wait()
        self._process = None
        await asyncio.to_thread(reader.join, 2.0)  # the last lines of its output
        return code, end_phrase(code)

    def _read_output(self, pipe: IO[bytes] | None) -> None:
        if pipe is None:
            return
        with pipe:
            while line := pipe.readline(LINE_BYTES):
                text = line.decode(errors="replace").rstrip("\r\n")
                self._lines.append(text)
                if (found := _WARNED.match(text)) and not text.startswith(_FIGURES, found.end()):
                    self.warnings.append(text[found.end() :])
                self._console.output(self.name, text)


async def stop_in_reverse(children: list[Child]) -> None:
    """Stop the children one at a time, the last one first."""
    for child in reversed(children):
        await child.stop()


def end_phrase(code: int) -> str:
    """How a program ended, by its exit code (negative: a signal)."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def last_word(lines: Iterable[str]) -> str:
    """The last line of a program's output, without what a log puts before it; empty if it wrote nothing."""
    written = [line for line in lines if line.strip()]
    return _LOGGED.sub("", written[-1]).strip() if written else ""


def failure_line(lines: Iterable[str]) -> str:
    """The line of a program's output that says why it ended; empty if it wrote nothing.

    That is its last exception or its last log line of level ERROR or above; else the last line.
    """
    written = [line for line in lines if line.strip()]
    for line in reversed(written):
        found = _LOGGED.match(line) or _FATAL.search(line)
        text = line[found.end() :] if found else line if _RAISED.match(line) else ""
        if text and not text.startswith(_SAYS_NOTHING):
            return text.strip()
    return written[-1].strip() if written else ""


def kill_group(pid: int) -> None:
    """Send SIGKILL to the group that a child leads. Call it before the child is reaped: later its id may be reused."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
