"""Fails a test whose event loop computed for more than half a second without a pause, and names the stack."""

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.servers import NotingLoop

THRESHOLD_S = 0.5
POLL_S = 0.05
DETECTOR: "pytest.StashKey[StallDetector]" = pytest.StashKey()


@dataclass(slots=True)
class _Watched:
    """One event loop: the thread it runs in, and the CPU time of that thread when the loop was asked for an answer."""

    loop: asyncio.AbstractEventLoop
    thread_id: int = field(default_factory=threading.get_ident)
    native_id: int = field(default_factory=threading.get_native_id)
    asked: bool = False
    cpu_s: float = 0.0
    told: bool = False
    collecting_since: float | None = None
    """CPU time of the thread at which a garbage collection began in it; None while there is none."""

    def answer(self) -> None:
        """Runs on the loop."""
        self.thread_id, self.native_id = threading.get_ident(), threading.get_native_id()
        self.asked = False


class StallDetector:
    """Watches the loops that it has made, from a thread of its own.

    What counts is the CPU time of the loop's thread from the question to the answer: wall time would count what the
    rest of the machine does. A call that blocks without computing is not its business, and neither is a garbage
    collection, which says how much the tests before have left. Also one of the middle generation takes up to 0.7 s:
    while a thread collects, what the others make is not.
    """

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._stalls: list[str] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-detector", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        gc.callbacks.append(self._note_collection)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        gc.callbacks.remove(self._note_collection)
        self._end.set()
        self._thread.join()

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A uvloop loop, as in production, under watch until it is closed."""
        loop = NotingLoop()
        with self._lock:
            self._watched.append(_Watched(loop))
        return loop

    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """Those that it has made and that are open."""
        with self._lock:
            return [watched.loop for watched in self._watched if not watched.loop.is_closed()]

    def take(self) -> list[str]:
        """The stacks of the stalls since the last call."""
        with self._lock:
            stalls, self._stalls = self._stalls, []
            return stalls

    def _note_collection(self, phase: str, _info: dict[str, int]) -> None:
        """Runs in any thread, wherever it is: without the lock, which that thread may hold."""
        now = time.thread_time()
        for watched in self._watched:
            if watched.thread_id != threading.get_ident():
                continue
            if phase == "start":
                watched.collecting_since = now
            elif watched.collecting_since is not None:
                watched.cpu_s += now - watched.collecting_since
                watched.collecting_since = None

    def _watch(self) -> None:
        while not self._end.wait(POLL_S):
            with self._lock:
                self._watched = [watched for watched in self._watched if not watched.loop.is_closed()]
                for watched in self._watched:
                    self._look_at(watched)

    def _look_at(self, watched: _Watched) -> None:
        if not watched.loop.is_running():  # between two runs of the loop synchronous code may take its time
            watched.asked = False
            return
        if watched.collecting_since is not None:
            return
        cpu_s = _cpu_s(watched.native_id)
        if not watched.asked:
            watched.asked, watched.told, watched.cpu_s = True, False, cpu_s
            try:
                watched.loop.call_soon_threadsafe(watched.answer)
            except RuntimeError:  # closed since we looked
                watched.asked = False
        elif not watched.told and cpu_s - watched.cpu_s > THRESHOLD_S:
            watched.told = True
            frame = sys._current_frames().get(watched.thread_id)
            self._stalls.append("".join(traceback.format_stack(frame, limit=12)) if frame else "(the thread is gone)")


def _cpu_s(native_id: int) -> float:
    """CPU time of a thread of this process, from Linux; 0 once it has ended."""
    # Not time.pthread_getcpuclockid: asked for a thread that has ended it reads freed memory.
    try:
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        return 0.0


@pytest.fixture(scope="session")
def stall_detector(pytestconfig: pytest.Config) -> StallDetector:
    """The detector of this session, made by conftest."""
    return pytestconfig.stash[DETECTOR]


@pytest.fixture(autouse=True)
def no_stalled_loop(request: pytest.FixtureRequest, stall_detector: StallDetector) -> Iterator[None]:
    """Fail the test that blocks its loop, unless it is marked `blocks_loop("reason")`."""
    stall_detector.take()
    yield
    stalls = stall_detector.take()
    if stalls and request.node.get_closest_marker("blocks_loop") is None:
        pytest.fail(f"the event loop computed for more than {THRESHOLD_S} s at\n{stalls[0]}", pytrace=False)
