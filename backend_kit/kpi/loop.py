"""The loop monitor: how late the event loop is, how busy, and what blocks it."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from prometheus_client import Counter, Gauge, Histogram

from backend_kit.aio import WatchedThread
from backend_kit.kpi.core import Kpi
from backend_kit.kpi.cores import CoreWaits, Starved
from backend_kit.kpi.culprit import Culprits, Sighting, sight
from backend_kit.kpi.exposition import SHORT_BUCKETS

_MAX_OUTSTANDING: Final = 1200
_GIL_HELD_S: Final = 0.02
_BUSY_INTERVAL_S: Final = 1.0
_NOTICE_INTERVAL_S: Final = 1.0
_HELD_S: Final = 0.02
_MOMENT_S: Final = 0.001
_IDLE_PERCENT: Final = 3.0
"""A loop whose thread computes less than this is idle: asking it 25 times a second takes up to 1 %."""


@dataclass(frozen=True, slots=True)
class LagTotals:
    """Since the start: samples, their lag in seconds, and the seconds in which the loop was held for 20 ms or more.

    There are 25 samples for each second, whether the monitor took them or counted one for several (`LoopMonitor`).
    `starved_s`: how long the loop's thread waited for a core. `core_waits` samples of what something that comes waits
    for one, `core_wait_s` in all.
    """

    samples: int
    lag_s: float
    held_s: float
    starved_s: float = 0.0
    core_waits: int = 0
    core_wait_s: float = 0.0


class _Question(NamedTuple):
    """One that waits for its answer. `left_out`: how many samples before it a resting monitor did not take."""

    asked: float
    left_out: int
    at_rest: bool


def cpu_clock_of(thread: int) -> Callable[[], float | None]:
    """What reads the CPU seconds of a thread: None once it has ended, or where the system has no such clock."""
    clock = time.pthread_getcpuclockid(thread) if hasattr(time, "pthread_getcpuclockid") else None

    def read() -> float | None:
        if clock is None:
            return None
        try:
            return time.clock_gettime(clock)
        except OSError:
            return None

    return read


@dataclass(frozen=True, slots=True)
class Senses:
    """What the monitor perceives the loop by. Seconds."""

    clock: Callable[[], float] = perf_counter
    cpu_clock_of: Callable[[int], Callable[[], float | None]] = cpu_clock_of
    sight: Callable[[asyncio.AbstractEventLoop, int], Sighting] = sight
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait
    """Waits for an event of the monitor's thread, for at most that many seconds."""
    cores_of: Callable[[int], CoreWaits] = CoreWaits


class LoopMonitor:
    """Samples the lateness of one event loop from a thread.

    The thread asks the loop 25 times a second to call back and goes on asking while the loop is blocked, so a block
    of 200 ms is five samples and not one (a probe that sleeps on the loop misses it: METRICS). The thread cannot ask
    while a C call on the loop holds the GIL: a beat of the loop itself that comes late, and during which nobody
    asked, gives the samples that are missing. A thread that is merely starved of the GIL by a busy loop asks less
    often and invents nothing (counting from when it should have asked read 760 ms where clients saw 2).

    While nothing runs (`Kpi.activity`) and the loop is idle, it rests: it asks twice a second, and the loop's beat is
    half-way between. A question that is answered at once then counts for every sample that was left out, so the
    figures stay those of a fixed rate. What begins to run, a late answer or CPU used by the loop ends the rest
    (docs/decisions/0051-the-lag-sampler-rests.md).

    Where other programs have the cores, the monitor's own wake is late, as the loop's would be: how late says what a
    hop waits for a core. The lateness of the loop does not say so, since both often get their core at once.

    The busy ratio is the CPU clock of the loop's thread: one sample for each second, at rest too. A lateness above
    `stall_s` counts as one stall, however many samples it spans. While it lasts its stack, task, phase and agent are
    taken, for `culprits` and for a notice, one a second at most.
    """

    def __init__(
        self,
        kpi: Kpi,
        *,
        notice: Callable[[str], None],
        interval_s: float = 0.04,
        stall_s: float = 0.1,
        rest_s: float = 0.5,
        senses: Senses | None = None,
    ) -> None:
        """`notice` takes the line about a stall, from the monitor's thread, and must not block.

        `interval_s` is between two questions, `rest_s` while the monitor rests.
        """
        registry = kpi.registry
        lag = Histogram(
            "app_event_loop_lag_seconds", "Lateness of the event loop.", buckets=SHORT_BUCKETS, registry=registry
        )
        self._lag = kpi.gauged_seconds("event_loop_lag_ms", lag)
        self._busy = kpi.gauge(
            "event_loop_busy_pct",
            Gauge("app_event_loop_busy_ratio", "CPU share of the loop's thread, 0 to 1.", registry=registry),
            child_scale=0.01,
        )
        self._stalls = kpi.counter(
            "event_loop_stall",
            Counter("app_event_loop_stalls_total", "Times the loop was late by more than 100 ms.", registry=registry),
        )
        self._starved = Starved(kpi, interval_s)
        self._notice = notice
        self._interval = interval_s
        self._stall_s = stall_s
        self._rest_s = rest_s
        self._senses = senses or Senses()
        self._clock = self._senses.clock
        self._activity = kpi.activity
        self._outstanding: deque[_Question] = deque()
        self._asked: deque[float] = deque(maxlen=4)
        self._sampled_until = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat_due = 0.0
        self._beat_handle: asyncio.TimerHandle | None = None
        self.culprits = Culprits()
        self._stalled = False
        self._seen: Sighting | None = None
        self._glimpse: tuple[float, Sighting] | None = None
        self._worst_s = self._worst_until = 0.0
        self._stall_lock = threading.Lock()
        self._last_lag = 0.0
        self._samples = 0
        self._lag_sum_s = 0.0
        self._held_s = 0.0
        self._last_notice = float("-inf")
        self._resting = False
        self._was_late = False
        self._begun = 0
        self._closed = False
        self._woken = threading.Event()
        self._vigil = kpi.vigil
        self._thread: WatchedThread | None = None

    def start(self) -> None:
        """Watch the running loop. Call it on the loop's thread."""
        loop = asyncio.get_running_loop()
        self.begin(loop)
        run = partial(self.watch, loop, threading.get_ident())
        self._thread = WatchedThread(self._vigil, "kpi-loop-monitor", run, essential=True)
        self._thread.start()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The part of `start` on the loop: its beat, and the news of what begins to run. `watch` must follow."""
        self._loop = loop
        self._arm(self._interval)
        self._activity.tell = self._stir

    def close(self) -> None:
        """End the thread; waits 1 s at most. On the loop's thread. Does nothing where it was not started."""
        self._closed = True
        self._woken.set()
        self._loop = None  # no beat is armed any more
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        if self._thread is not None:
            self._thread.end(1.0)

    @property
    def lag_s(self) -> float:
        """How late the loop is now, in seconds: the last sample, or the age of an unanswered one if that is more."""
        return max(self._last_lag, self._oldest_age(self._clock()))

    def totals(self) -> LagTotals:
        """What was sampled since the start. On the loop's thread, where the samples are taken."""
        starved = self._starved
        return LagTotals(
            self._samples, self._lag_sum_s, self._held_s, starved.seen.total_s, starved.waits, starved.wait_s
        )

    def watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        """Ask the loop and watch for its answers, until `close`, or until the loop is closed."""
        with self._senses.cores_of(loop_thread) as cores:
            self._watch(loop, loop_thread, cores)

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int, cores: CoreWaits) -> None:
        busy = _BusyClock(self._senses.cpu_clock_of(loop_thread), self._clock)
        self._sampled_until = self._clock()
        due = self._sampled_until + self._interval
        while True:
            wakes, slept = self._next_wake(due), self._clock()
            cores.sleep_begins()
            stirred = self._senses.wait(self._woken, max(wakes - slept, 0.0))
            if self._closed:
                return
            self._woken.clear()
            now, rested = self._clock(), self._resting
            if not stirred and wakes > slept:
                self._starved.take(cores.waited(now - wakes), wakes - slept)
            if stirred or (rested and self._outstanding):
                self._resting = False
                due = now
            if not stirred:  # else what was late has just ended, and some of its answers may be on their way
                self._look(loop, loop_thread)
            percent = busy.percent()
            if percent is not None:
                self._warn_busy(percent, busy.seconds())
                self._starved.publish(cores.look())
                self._rest_if_idle(percent)
            if due <= now:
                if self._resting:
                    self._glimpse = now, self._senses.sight(loop, loop_thread)
                if not self._ask(loop, now, rested=rested):
                    return
                due = max(due + (self._rest_s if self._resting else self._interval), now)

    def _warn_busy(self, percent: float, seconds: int) -> None:
        for _ in range(seconds):
            self._busy.set(percent)

    def _next_wake(self, due: float) -> float:
        try:
            oldest = self._outstanding[0].asked
        except IndexError:
            return due
        # Wake just when the sample becomes a stall: what blocks the loop may be gone at the next tick. Not at rest:
        # no question has its answer yet when the thread goes to sleep, and what ran at its question is known.
        return due if self._stalled or self._resting else min(due, oldest + self._stall_s + _MOMENT_S)

    def _rest_if_idle(self, percent: float) -> None:
        """Rest after a second in which the loop was idle and nothing ran, else stop resting."""
        # Before the look at what runs: what begins after that look finds the monitor resting, and wakes it.
        self._resting = True
        activity = self._activity
        idle = activity.running == 0 and activity.begun == self._begun
        if not idle or percent >= _IDLE_PERCENT or self._was_late or self._outstanding:
            self._resting = False
        self._begun = activity.begun
        self._was_late = False

    def _stir(self) -> None:
        """End the rest, if the monitor rests. On the loop's thread."""
        if self._resting:
            self._woken.set()
            self._arm(self._interval)

    def _ask(self, loop: asyncio.AbstractEventLoop, now: float, *, rested: bool) -> bool:
        if len(self._outstanding) >= _MAX_OUTSTANDING:
            return True
        left_out = 0
        if rested and not self._was_late:
            left_out = max(int((now - self._sampled_until) / self._interval) - 1, 0)
            self._sampled_until += (1 + left_out) * self._interval
        else:
            self._sampled_until = now
        # Appended before the call: the answer may come before call_soon_threadsafe returns. Answers come in the
        # order of the questions, since one thread asks and the loop's queue is first in, first out.
        self._outstanding.append(_Question(now, left_out, self._resting))
        self._asked.append(now)
        try:
            loop.call_soon_threadsafe(self._answered)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _answered(self) -> None:
        question = self._outstanding[0]
        if question.at_rest:
            self._check_beat()
        self._outstanding.popleft()
        now = self._clock()
        lag = now - question.asked
        if lag <= _HELD_S:
            self._take(lag, 1 + question.left_out)
        elif question.at_rest:
            # It says nothing about the time before. Of what would have been asked since, it is the answer too.
            self._take_each(question.asked, self._outstanding[0].asked if self._outstanding else now, now)
        else:
            self._take(lag)
        if question.at_rest:
            self._arm(self._rest_s / 2 if self._resting and not self._was_late else self._interval)

    def _take_each(self, since: float, until: float, now: float) -> None:
        """Enter the samples that were due from `since` on and before `until`, at least the first, and were late."""
        self._take(now - since)
        while (since := since + self._interval) < until:
            self._take(now - since)

    def _take(self, lag: float, times: int = 1) -> None:
        """Enter a lag that ends now, as `times` samples."""
        self._last_lag = lag
        for _ in range(times):
            self._lag.observe(lag)
        self._samples += times
        self._lag_sum_s += lag * times
        if lag > _HELD_S:
            self._held_s += self._interval
            self._was_late = True
            self._stir()
        if lag > self._stall_s:
            if lag > self._worst_s:
                self._worst_s, self._worst_until = lag, self._clock()
            self._enter_stall()

    def _arm(self, delay_s: float) -> None:
        if self._beat_handle is not None:
            self._beat_handle.cancel()
        if self._loop is not None:
            self._beat_due = self._clock() + delay_s
            self._beat_handle = self._loop.call_later(delay_s, self._beat)

    def _beat(self) -> None:
        self._check_beat()
        # At rest the next answer comes first, and arms it again, unless the GIL is held.
        self._arm(self._rest_s / 2 + self._interval if self._resting and not self._was_late else self._interval)

    def _check_beat(self) -> None:
        """Enter the samples that are missing if the beat is late."""
        now, due = self._clock(), self._beat_due
        # A question asked just before the end had waited for the GIL.
        latest = now - _GIL_HELD_S
        if due >= latest:
            return
        first = self._outstanding[0] if self._outstanding else None
        if first is not None and first.at_rest and first.asked < latest:
            # From then on its answer gives the samples, which has not come.
            if first.asked - due > self._interval / 2:
                self._take_each(due, first.asked, now)
        elif not any(due <= asked < latest for asked in list(self._asked)):
            self._take_each(due, now, now)

    def _oldest_age(self, now: float) -> float:
        try:
            return now - self._outstanding[0].asked
        except IndexError:
            return 0.0

    def _enter_stall(self) -> None:
        with self._stall_lock:
            if self._stalled:
                return
            self._stalled = True
        self._stalls.inc()

    def _look(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        age = self._oldest_age(self._clock())
        if age <= self._stall_s:
            if self._stalled:
                self._leave_stall()
            return
        self._enter_stall()
        if self._seen is None:
            self._seen = self._senses.sight(loop, loop_thread)
            self._warn_late(self._seen, age)

    def _leave_stall(self) -> None:
        seen = self._seen
        if seen is None and (seen := self._glimpsed()) is not None:
            self._warn_late(seen, self._worst_s)
        self.culprits.count(seen, self._worst_s * 1e3)
        self._seen = None
        self._worst_s = 0.0
        self._stalled = False

    def _glimpsed(self) -> Sighting | None:
        """What the resting monitor saw, if it looked while the stall lasted."""
        if self._glimpse is None:
            return None
        at, seen = self._glimpse
        return seen if self._worst_until - self._worst_s - _MOMENT_S <= at < self._worst_until else None

    def _warn_late(self, seen: Sighting, late_s: float) -> None:
        now = self._clock()
        if now - self._last_notice < _NOTICE_INTERVAL_S:
            return
        self._last_notice = now
        self._notice(
            f"[KPI][STALL] lag_ms={late_s * 1e3:.0f} task={seen.task or 'none'} phase={seen.phase or 'none'} "
            f"agent={seen.agent or 'none'} stack={seen.stack}"
        )


class _BusyClock:
    """CPU share of a thread, once a second or less often. Silent on systems without a CPU clock for each thread."""

    def __init__(self, cpu: Callable[[], float | None], clock: Callable[[], float]) -> None:
        self._cpu_clock = cpu
        self._clock = clock
        self._wall = clock()
        self._cpu = cpu()
        self._untold_s = 0.0

    def percent(self) -> float | None:
        """The share since the last answer in percent, None before a second has gone by."""
        now = self._clock()
        if self._cpu is None or now - self._wall < _BUSY_INTERVAL_S:
            return None
        cpu = self._cpu_clock()
        if cpu is None:
            self._cpu = None
            return None
        share = (cpu - self._cpu) / (now - self._wall)
        self._untold_s += now - self._wall
        self._wall, self._cpu = now, cpu
        return min(max(share, 0.0), 1.0) * 100

    def seconds(self) -> int:
        """How many samples the last answer stands for, at least one, so that there is one for each second since the
        start: at rest it covers 1.5 s, and an average that counted it as 1 s would lean towards busy times."""
        whole = int(self._untold_s + 0.5)
        self._untold_s -= whole
        return whole
