"""Fails a test whose event loop was blocked for more than half a second, and names the stack that held it."""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import uvloop

THRESHOLD_S = 0.5
POLL_S = 0.05
DETECTOR: "pytest.StashKey[StallDetector]" = pytest.StashKey()


@dataclass(slots=True)
class _Watched:
    """One event loop: the thread it runs in, and for how long it has owed an answer."""

    loop: asyncio.AbstractEventLoop
    thread_id: int = field(default_factory=threading.get_ident)
    asked: bool = False
    silent_s: float = 0.0

    def answer(self) -> None:
        """Runs on the loop."""
        self.thread_id = threading.get_ident()
        self.asked = False


class StallDetector:
    """Watches the loops that it has made, from a thread of its own.

    On a crowded machine the whole process may stand still. That is no stall of the loop: time counts only as far as
    the watching thread ran through it too, or the process burnt it as CPU (a call that never lets go of the GIL).
    """

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self._stalls: list[str] = []
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-detector", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """A uvloop loop, as in production, under watch until it is closed."""
        loop = uvloop.new_event_loop()
        with self._lock:
            self._watched.append(_Watched(loop))
        return loop

    def take(self) -> list[str]:
        """The stacks of the stalls since the last call."""
        with self._lock:
            stalls, self._stalls = self._stalls, []
            return stalls

    def _watch(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        while not self._end.wait(POLL_S):
            wall_before, cpu_before = wall, cpu
            wall, cpu = time.perf_counter(), time.process_time()
            counted_s = max(min(wall - wall_before, 2 * POLL_S), cpu - cpu_before)
            with self._lock:
                self._watched = [watched for watched in self._watched if not watched.loop.is_closed()]
                for watched in self._watched:
                    self._look_at(watched, counted_s)

    def _look_at(self, watched: _Watched, counted_s: float) -> None:
        if not watched.loop.is_running():  # between two runs of the loop synchronous code may take its time
            watched.asked = False
            watched.silent_s = 0.0
            return
        if not watched.asked:
            watched.asked = True
            watched.silent_s = 0.0
            try:
                watched.loop.call_soon_threadsafe(watched.answer)
            except RuntimeError:  # closed since we looked
                watched.asked = False
            return
        before = watched.silent_s
        watched.silent_s += counted_s
        if before <= THRESHOLD_S < watched.silent_s:
            frame = sys._current_frames().get(watched.thread_id)
            self._stalls.append("".join(traceback.format_stack(frame, limit=12)) if frame else "(the thread is gone)")


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
        pytest.fail(f"the event loop was blocked for more than {THRESHOLD_S} s by\n{stalls[0]}", pytrace=False)
