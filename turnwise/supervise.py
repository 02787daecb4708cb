"""Runs programs as children: output kept, restarted with back-off when they die, ended in order and for certain.

One that ends by itself with an error before it has ever been of use would do so again: that is a fault, said at once.

Each child leads a session of its own, so that a Ctrl-C at the terminal reaches the launcher alone, and is on a tether
(see tether.py), so that it ends even when the launcher is killed. Pipes are read and ends are awaited in threads:
what asyncio's own `Process.wait` waits for besides the end (the pipes, which a grandchild may hold open) differs
between patch releases of Python.
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

    `command` makes the (tethered) argument vector, after `prepare`, which runs before every start, may block and may
    raise `StartRefused`. To end it: `stop_signal`, then SIGKILL after `stop_s` seconds.
    """

    name: str
    command: Callable[[], list[str]]
    environment: Mapping[str, str]
    cwd: Path
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 10.0
    prepare: Callable[[], None] = lambda: None


class Child:
    """One program, kept running from `run()` until `stop()`, or until it is of no use to start it again."""

    def __init__(self, program: Program, console: Console, *, restart_min_s: float = RESTART_MIN_S) -> None:
        """`restart_min_s`: when it is started again at first."""
        self.name = program.name
        self.deaths = 0
        self.of_use = False
        """Set once it has done what it is for, or by 30 s of life: from then on it is started again whatever it ends
        of. Before, only after a signal."""
        self.fault: str | None = None
        """Why it is not started again, in one line."""
        self.warnings: deque[str] = deque(maxlen=_LAST_LINES)
        """What it has logged as a warning or worse, without time and name; its figures are no reason for anything."""
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._program = program
        self._console = console
        self._restart_min_s = restart_min_s
        self._process: subprocess.Popen[bytes] | None = None
        self._began = False
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Start the program again whenever it ends: after 0.5 s, twice that each time, at most 10 s.

        The wait is back at 0.5 s once the program has lived for 30 s. Call it once; returns after `stop()`, or with
        `fault` set.
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
                    self.of_use, delay_s = True, self._restart_min_s
                if not self.of_use and (code > 0 or self.deaths >= DEATHS_BEFORE_USE):
                    self._console.say(self.name, how)
                    self.fault = useful_line(self._lines) or how
                    break
                self._console.say(self.name, f"{how}; it starts again in {delay_s:g} s")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
                delay_s = min(2 * delay_s, RESTART_MAX_S)
        finally:
            self.kill()
            self._ended.set()

    async def stop(self) -> None:
        """End the program, politely at first, and return when it is gone. Harmless when it does not run."""
        self._stopping.set()
        if not self._began:
            return
        if self._process is not None:
            self._process.send_signal(self._program.stop_signal)
        try:
            await asyncio.wait_for(self._ended.wait(), self._program.stop_s)
        except TimeoutError:
            self._console.say(self.name, f"did not end within {self._program.stop_s:g} s and is killed")
            self.kill()
            await self._ended.wait()

    def kill(self) -> None:
        """SIGKILL to the program and its process group, for good. Harmless when it does not run."""
        self._stopping.set()
        if self._process is not None:
            _kill_group(self._process.pid)

    async def _run_once(self) -> tuple[int, str]:
        """Run the program to its end; its exit code (negative: a signal), and how it ended, in words."""
        try:
            await asyncio.to_thread(self._program.prepare)
        except StartRefused as error:
            return -1, f"cannot start: {error}"
        if self._stopping.is_set():
            return -1, "was not started"
        # From the main thread: the tether is to the thread that starts it.
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
        _kill_group(process.pid)  # what it started and left behind
        code = process.wait()
        self._process = None
        await asyncio.to_thread(reader.join, 2.0)  # its last words
        return code, f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

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


async def stop_in_turn(children: list[Child]) -> None:
    """Stop the children one after the other, the last one first."""
    for child in reversed(children):
        await child.stop()


def useful_line(lines: Iterable[str]) -> str:
    """Of what a program wrote before it ended, the line that says why; empty where it wrote nothing.

    That is the last exception, or the last that was logged as an error or worse; else the last line.
    """
    said = [line for line in lines if line.strip()]
    for line in reversed(said):
        found = _LOGGED.match(line) or _FATAL.search(line)
        text = line[found.end() :] if found else line if _RAISED.match(line) else ""
        if text and not text.startswith(_SAYS_NOTHING):
            return text.strip()
    return said[-1].strip() if said else ""


def _kill_group(pid: int) -> None:
    """SIGKILL to the group that a child leads. Only before the child is reaped: then the number is still its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
