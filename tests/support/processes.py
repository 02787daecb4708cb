"""Real servers as child processes: started, watched, stopped by the pid in hand, and refused a silent traceback."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import pytest

from backend_kit.parent_death import with_parent_death_signal
from tests.support.fork_server import FORKS, Fork, needs_own_interpreter
from tests.support.patience import PATIENCE_S

P = ParamSpec("P")
T = TypeVar("T")
ROOT = Path(__file__).parents[2]
TRACEBACK = "Traceback (most recent call last)"


class ModuleProcess:
    """`python -m module arguments…` as a child of the test, a context manager.

    Its output (stdout and stderr together) is collected by a thread. Leaving the context stops it (SIGTERM, SIGKILL
    after `stop_s`) and fails the test if it has written a traceback, unless `traceback_allowed`. It dies with the
    thread that started it: start it from the test's own thread. `under` is a command that runs it, such as `nice`, and
    becomes it: the first word is an absolute path.

    The `wait_…` methods block; in a coroutine use `await process.until(process.wait_for_line, pattern)`.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        stop_s: float = PATIENCE_S,
        traceback_allowed: bool = False,
        under: Sequence[str] = (),
    ) -> None:
        self._under = list(under)
        self._module = module
        self._arguments = list(arguments)
        self._added = dict(env or {})
        self._env = {**os.environ, "PYTHONUNBUFFERED": "1", **self._added}
        self._cwd = cwd
        self._stop_s = stop_s
        self._traceback_allowed = traceback_allowed
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | Fork | None = None
        self._reader: threading.Thread | None = None
        self._read = False

    def __enter__(self) -> "ModuleProcess":
        self._process = self._start()
        self._read = False
        self._reader = threading.Thread(target=self._collect, args=(self._process,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        self.stop()
        if kind is None and TRACEBACK in self.output and not self._traceback_allowed:
            pytest.fail(f"the process logged a traceback:\n{self.output}", pytrace=False)

    @property
    def pid(self) -> int:
        """The process id, also of one that has ended."""
        return self._running().pid

    @property
    def returncode(self) -> int | None:
        """The exit code (negative: the signal that ended it), None while it runs."""
        return self._running().poll()

    @property
    def output(self) -> str:
        """Everything it has written so far; all of it once it has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._read_to_the_end()
        with self._changed:
            return "".join(self._lines)

    def wait_for_line(self, pattern: str, timeout_s: float = PATIENCE_S) -> "re.Match[str]":
        """The first line, past or to come, in which `pattern` is found. Fails when the process ends or is silent."""
        searched = 0
        give_up = time.monotonic() + timeout_s
        with self._changed:
            while True:
                for line in self._lines[searched:]:
                    if found := re.search(pattern, line):
                        return found
                searched = len(self._lines)
                if self._reader is None or not self._reader.is_alive() or time.monotonic() > give_up:
                    break
                self._changed.wait(0.5)
        if self._reader is None or not self._reader.is_alive():  # it has closed its output: it is about to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._running().wait(2.0)
        pytest.fail(f"no line with {pattern!r} (exit code {self.returncode}):\n{self.output}", pytrace=False)

    def wait_for_http(self, url: str, timeout_s: float = PATIENCE_S) -> None:
        """Return once `url` answers 200. Fails when the process ends or it takes too long."""
        give_up = time.monotonic() + timeout_s
        while not _answers(url):
            if self.returncode is not None or time.monotonic() > give_up:
                pytest.fail(f"{url} does not answer (exit code {self.returncode}):\n{self.output}", pytrace=False)
            time.sleep(0.05)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code, once it has ended by itself or by `send`."""
        try:
            code = self._running().wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still runs after {timeout_s} s:\n{self.output}", pytrace=False)
        self._read_to_the_end()
        return code

    async def until(self, wait: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One of the blocking waits, off the event loop."""
        return await asyncio.to_thread(wait, *args, **kwargs)

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the process alone, not to its children."""
        self._running().send_signal(what)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._running().kill()
        self.wait()

    def stop(self) -> int:
        """SIGTERM, SIGKILL after `stop_s`, whatever is left of its process group too; the exit code."""
        process = self._running()
        process.terminate()
        try:
            process.wait(self._stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return self.wait()

    def _start(self) -> "subprocess.Popen[str] | Fork":
        return subprocess.Popen(
            with_parent_death_signal(
                [*self._under, sys.executable, "-m", self._module, *self._arguments], signal.SIGKILL
            ),
            env=self._env,
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def _running(self) -> "subprocess.Popen[str] | Fork":
        if self._process is None:
            raise RuntimeError("used outside of its context")
        return self._process

    def _read_to_the_end(self) -> None:
        """Have what an ended process wrote last, once: a grandchild may hold the pipe open for longer."""
        if self._reader is not None and not self._read:
            self._reader.join(5.0)
            self._read = True

    def _collect(self, process: "subprocess.Popen[str] | Fork") -> None:
        if process.stdout is None:
            return
        with process.stdout as stream:
            for line in stream:
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


class ForkedModule(ModuleProcess):
    """The same without the seconds of its imports, by a fork: for a service whose tests do not ask how it starts.

    Where one of its variables can only be given to an interpreter of its own, or a command runs it, it has one.
    """

    def _start(self) -> "subprocess.Popen[str] | Fork":
        if self._under or needs_own_interpreter(self._added):
            return super()._start()
        return FORKS.start(self._module, self._arguments, self._env, self._cwd)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - loopback URLs of our own servers
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
