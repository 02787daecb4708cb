"""The loop monitor: how late the event loop is, how busy, and what blocks it."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from backend_kit.aio import WatchedThread
from backend_kit.kpi.buckets import SHORT
from backend_kit.kpi.core import Kpi
from backend_kit.kpi.culprit import Culprits, Sighting, sight

_MAX_OUTSTANDING: Final = 1200
_GIL_HELD_S: Final = 0.02
_BUSY_INTERVAL_S: Final = 1.0
_NOTICE_INTERVAL_S: Final = 1.0
_HELD_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class LagTotals:
    """Since the start: samples, their lag in seconds, and the seconds in which the loop was held for 20 ms or more."""

    samples: int
    lag_s: float
    held_s: float


class LoopMonitor:
    """Samples the lateness of one event loop from a thread, at a fixed rate.

    The thread asks the loop 25 times a second to call back and goes on asking while the loop is blocked, so a block
    of 200 ms is five samples and not one (a probe that sleeps on the loop misses it: METRICS). The thread cannot ask
    while a C call on the loop holds the GIL: a beat of the loop itself that comes late, and during which nobody
    asked, gives the samples that are missing. A thread that is merely starved of the GIL by a busy loop asks less
    often and invents nothing (counting from when it should have asked read 760 ms where clients saw 2).

    The busy ratio is the CPU clock of the loop's thread. A lateness above `stall_s` counts as one stall, however many
    samples it spans. While it lasts its stack, task, phase and agent are taken, for `culprits` and for a notice, one a
    second at most.
    """

    def __init__(
        self, kpi: Kpi, *, notice: Callable[[str], None], interval_s: float = 0.04, stall_s: float = 0.1
    ) -> None:
        """`notice` takes the line about a stall, from the monitor's thread, and must not block."""
        registry = kpi.registry
        self._lag = kpi.gauged_seconds(
            "event_loop_lag_ms",
            Histogram("app_event_loop_lag_seconds", "Lateness of the event loop.", buckets=SHORT, registry=registry),
        )
        self._busy = kpi.gauge(
            "event_loop_busy_pct",
            Gauge("app_event_loop_busy_ratio", "CPU share of the loop's thread, 0 to 1.", registry=registry),
            child_scale=0.01,
        )
        self._stalls = kpi.counter(
            "event_loop_stall",
            Counter("app_event_loop_stalls_total", "Times the loop was late by more than 100 ms.", registry=registry),
        )
        self._notice = notice
        self._interval = interval_s
        self._stall_s = stall_s
        self._outstanding: deque[float] = deque()
        self._asked: deque[float] = deque(maxlen=4)
        self._beat_due = 0.0
        self._beat_handle: asyncio.TimerHandle | None = None
        self.culprits = Culprits()
        self._stalled = False
        self._seen: Sighting | None = None
        self._worst_s = 0.0
        self._stall_lock = threading.Lock()
        self._last_lag = 0.0
        self._samples = 0
        self._lag_sum_s = 0.0
        self._held_s = 0.0
        self._last_notice = float("-inf")
        self._stop = threading.Event()
        self._vigil = kpi.vigil
        self._thread: WatchedThread | None = None

    def start(self) -> None:
        """Watch the running loop. Call it on the loop's thread."""
        loop = asyncio.get_running_loop()
        self._arm(loop)
        run = partial(self._run, loop, threading.get_ident())
        self._thread = WatchedThread(self._vigil, "kpi-loop-monitor", run, essential=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; waits 1 s at most. On the loop's thread. Does nothing where it was not started."""
        self._stop.set()
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        if self._thread is not None:
            self._thread.end(1.0)

    @property
    def lag_s(self) -> float:
        """How late the loop is now, in seconds: the last sample, or the age of an unanswered one if that is more."""
        return max(self._last_lag, self._oldest_age(perf_counter()))

    def totals(self) -> LagTotals:
        """What was sampled since the start. On the loop's thread, where the samples are taken."""
        return LagTotals(self._samples, self._lag_sum_s, self._held_s)

    def _run(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        busy = _BusyClock(loop_thread)
        due = perf_counter() + self._interval
        while not self._stop.wait(max(self._next_wake(due) - perf_counter(), 0.0)):
            now = perf_counter()
            if due <= now:
                if not self._ask(loop, now):
                    return
                due = max(due + self._interval, now)
            self._watch(loop, loop_thread)
            percent = busy.percent()
            if percent is not None:
                self._busy.set(percent)

    def _next_wake(self, due: float) -> float:
        try:
            oldest = self._outstanding[0]
        except IndexError:
            return due
        # Wake just when the sample becomes a stall: what blocks the loop may be gone at the next tick.
        return due if self._stalled else min(due, oldest + self._stall_s + 0.001)

    def _ask(self, loop: asyncio.AbstractEventLoop, now: float) -> bool:
        if len(self._outstanding) >= _MAX_OUTSTANDING:
            return True
        # Appended before the call: the answer may come before call_soon_threadsafe returns. Answers come in the
        # order of the questions, since one thread asks and the loop's queue is first in, first out.
        self._outstanding.append(now)
        self._asked.append(now)
        try:
            loop.call_soon_threadsafe(self._answered)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _answered(self) -> None:
        self._take(perf_counter() - self._outstanding.popleft())

    def _take(self, lag: float) -> None:
        self._last_lag = lag
        self._lag.observe(lag)
        self._samples += 1
        self._lag_sum_s += lag
        if lag > _HELD_S:
            self._held_s += self._interval
        if lag > self._stall_s:
            self._worst_s = max(self._worst_s, lag)
            self._enter_stall()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat_due = perf_counter() + self._interval
        self._beat_handle = loop.call_later(self._interval, self._beat, loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now, due = perf_counter(), self._beat_due
        # A question asked just before the end had waited for the GIL.
        if now - due > _GIL_HELD_S and not any(due <= asked < now - _GIL_HELD_S for asked in list(self._asked)):
            while due < now:
                self._take(now - due)
                due += self._interval
        self._arm(loop)

    def _oldest_age(self, now: float) -> float:
        try:
            return now - self._outstanding[0]
        except IndexError:
            return 0.0

    def _enter_stall(self) -> None:
        with self._stall_lock:
            if self._stalled:
                return
            self._stalled = True
        self._stalls.inc()

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        now = perf_counter()
        age = self._oldest_age(now)
        if age <= self._stall_s:
            if self._stalled:
                self._leave_stall()
            return
        self._enter_stall()
        if self._seen is None:
            self._seen = seen = sight(loop, loop_thread)
            if now - self._last_notice >= _NOTICE_INTERVAL_S:
                self._last_notice = now
                self._notice(
                    f"[KPI][STALL] lag_ms={age * 1e3:.0f} task={seen.task or 'none'} phase={seen.phase or 'none'} "
                    f"agent={seen.agent or 'none'} stack={seen.stack}"
                )

    def _leave_stall(self) -> None:
        self.culprits.count(self._seen, self._worst_s * 1e3)
        self._seen = None
        self._worst_s = 0.0
        self._stalled = False


class _BusyClock:
    """CPU share of a thread, once a second. Silent on systems without a CPU clock for each thread."""

    def __init__(self, thread: int) -> None:
        self._clock = time.pthread_getcpuclockid(thread) if hasattr(time, "pthread_getcpuclockid") else None
        self._wall = perf_counter()
        self._cpu = self._read()

    def percent(self) -> float | None:
        """The share since the last answer in percent, None before a second has gone by."""
        now = perf_counter()
        if self._clock is None or now - self._wall < _BUSY_INTERVAL_S:
            return None
        cpu = self._read()
        share = (cpu - self._cpu) / (now - self._wall)
        self._wall, self._cpu = now, cpu
        return min(max(share, 0.0), 1.0) * 100

    def _read(self) -> float:
        if self._clock is None:
            return 0.0
        try:
            return time.clock_gettime(self._clock)
        except OSError:  # the loop's thread has ended
            self._clock = None
            return 0.0
