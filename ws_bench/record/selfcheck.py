"""The generator's self-check: its loop lag, CPU, garbage collection and turns in flight."""

import asyncio
import gc
import itertools
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ws_bench.record.dialects import clock
from ws_bench.record.results import SteadyWindow, percentile

LAG_SHARE = 0.05
CPU_LIMIT = 0.80
_INTERVAL_S = 0.05
_CPU_INTERVAL_S = 0.5
_MAX_OUTSTANDING = 1200
_PIECES = 16


def floats(values: Sequence[float] = ()) -> "array[float]":
    """An array of doubles."""
    return array("d", values)


@dataclass(slots=True)
class GeneratorSeries:
    """Samples on the run's clock (seconds): lag in milliseconds, CPU as a share of one core, turns in flight."""

    at: "array[float]" = field(default_factory=floats)
    lag_ms: "array[float]" = field(default_factory=floats)
    in_flight: "array[float]" = field(default_factory=floats)
    cpu_at: "array[float]" = field(default_factory=floats)
    cpu: "array[float]" = field(default_factory=floats)
    gc_at: "array[float]" = field(default_factory=floats)
    gc_ms: "array[float]" = field(default_factory=floats)

    def as_json(self) -> dict[str, list[float]]:
        """Columns, rounded to the resolution of the clocks."""
        return {name: [round(value, 4) for value in getattr(self, name)] for name in self.__slots__}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "GeneratorSeries":
        """What `as_json` wrote."""
        return cls(**{name: floats(given.get(name, [])) for name in cls.__slots__})

    def shifted(self, seconds: float) -> "GeneratorSeries":
        """The same samples on a clock that started `seconds` earlier."""
        moved = {name: floats(getattr(self, name)) for name in self.__slots__}
        for name in ("at", "cpu_at", "gc_at"):
            moved[name] = floats([value + seconds for value in moved[name]])
        return GeneratorSeries(**moved)


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The generator's own figures over the steady window; if `limited`, the result describes it and not the service.

    `cpu` is the share of one core that the process used, `limits` the reasons as text.
    """

    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    cpu: float | None
    gc_pauses: int
    gc_max_ms: float
    mean_in_flight: float | None
    limits: tuple[str, ...]

    @property
    def limited(self) -> bool:
        """Whether any limit was reached."""
        return bool(self.limits)


class GeneratorMonitor:
    """Samples from a thread at a fixed rate, so that a blocked loop is noticed while it is blocked.

    Use it as a context manager on the loop's thread.
    """

    def __init__(self, begin: float, in_flight: Callable[[], int]) -> None:
        """`begin` is the start of the run on `clock`; `in_flight` is read on the loop."""
        self.series = GeneratorSeries()
        self._begin = begin
        self._in_flight = in_flight
        self._stop = threading.Event()
        self._outstanding: deque[float] = deque()
        self._thread: threading.Thread | None = None
        self._gc_began = 0.0

    def __enter__(self) -> "GeneratorMonitor":
        loop = asyncio.get_running_loop()
        gc.callbacks.append(self._on_gc)
        self._thread = threading.Thread(target=self._run, args=(loop,), name="generator-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)
        gc.callbacks.remove(self._on_gc)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        due = clock()
        wall, cpu = due, time.process_time()
        while not self._stop.wait(max(due - clock(), 0.0)):
            # A thread that slept too long catches up on its samples: that many clients would be waiting now.
            due = max(due + _INTERVAL_S, clock() - _MAX_OUTSTANDING * _INTERVAL_S)
            if len(self._outstanding) < _MAX_OUTSTANDING:
                self._outstanding.append(clock())
                try:
                    loop.call_soon_threadsafe(self._answered)
                except RuntimeError:  # the loop is closed
                    return
            now = clock()
            if now - wall >= _CPU_INTERVAL_S:
                used = time.process_time()
                self.series.cpu_at.append(now - self._begin)
                self.series.cpu.append((used - cpu) / (now - wall))
                wall, cpu = now, used

    def _answered(self) -> None:
        asked = self._outstanding.popleft()
        self.series.at.append(asked - self._begin)
        self.series.lag_ms.append((clock() - asked) * 1000)
        self.series.in_flight.append(self._in_flight())

    def _on_gc(self, phase: str, _: dict[str, int]) -> None:
        now = clock()
        if phase == "start":
            self._gc_began = now
        else:
            self.series.gc_at.append(now - self._begin)
            self.series.gc_ms.append((now - self._gc_began) * 1000)


def check_generator(
    series: Sequence[GeneratorSeries], window: SteadyWindow | None, p50_ms: float | None
) -> SelfCheck | None:
    """Judge one or several generator processes over the window, or over the whole run without one.

    None if nothing was sampled.
    """
    lags = sorted(value for one in series for value in _within(one.at, one.lag_ms, window))
    if not lags:
        return None
    pauses = [value for one in series for value in _within(one.gc_at, one.gc_ms, window)]
    # Each process has a core of its own: the busiest one decides.
    cpus = [mean for one in series if (mean := _mean(_within(one.cpu_at, one.cpu, window))) is not None]
    flights = [mean for one in series if (mean := _mean(_within(one.at, one.in_flight, window))) is not None]
    cpu, lag_p99 = max(cpus, default=None), percentile(lags, 0.99)
    limits = []
    if p50_ms is not None and lag_p99 > LAG_SHARE * p50_ms:
        limits.append(f"own loop lag p99 {lag_p99:.1f} ms is above {LAG_SHARE:.0%} of the p50 latency")
    if cpu is not None and cpu > CPU_LIMIT:
        limits.append(f"own CPU {cpu:.0%} of a core is above {CPU_LIMIT:.0%}")
    return SelfCheck(
        lag_p50_ms=percentile(lags, 0.50),
        lag_p99_ms=lag_p99,
        lag_max_ms=lags[-1],
        cpu=cpu,
        gc_pauses=len(pauses),
        gc_max_ms=max(pauses, default=0.0),
        mean_in_flight=sum(flights) if flights else None,
        limits=tuple(limits),
    )


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """Turns in flight as sampled (N) beside rate times latency (X*R): two measurements of one thing.

    `broken` says that they differ by more than 5 %, which chance does not explain: `noise` is the standard error of the
    relative difference, from sixteen pieces of the window, and the difference must be beyond three of them too.
    """

    sampled: float
    computed: float
    difference: float
    noise: float
    broken: bool


def littles_law(
    series: Sequence[GeneratorSeries], window: SteadyWindow, spans: Sequence[tuple[float, float]]
) -> LittlesLaw | None:
    """Compare both over a window; `spans` are ask and end of every turn that was asked, failed ones included.

    A turn counts with its part inside the window, so the law holds for windows of any length. None if nothing was
    sampled or no turn ran.
    """
    if not series:
        return None
    edges = [window.begin + window.seconds * n / _PIECES for n in range(_PIECES + 1)]
    sampled, computed = [], []
    for begin, end in itertools.pairwise(edges):
        piece = SteadyWindow(begin, end, 0)
        means = [_mean(_within(one.at, one.in_flight, piece)) for one in series]
        if all(mean is not None for mean in means):
            sampled.append(sum(mean for mean in means if mean is not None))
            computed.append(sum(max(0.0, min(e, end) - max(b, begin)) for b, e in spans) / (end - begin))
    total = sum(computed)
    if not sampled or total <= 0:
        return None
    difference = sum(sampled) / total - 1
    count = len(sampled)
    gaps = [(one - other) * count / total for one, other in zip(sampled, computed, strict=True)]
    variance = sum((gap - difference) ** 2 for gap in gaps) / max(count - 1, 1)
    noise = (variance / count) ** 0.5
    return LittlesLaw(
        sampled=sum(sampled) / count,
        computed=total / count,
        difference=difference,
        noise=noise,
        broken=abs(difference) > 0.05 and abs(difference) > 3 * noise,
    )


def _within(at: Sequence[float], values: Sequence[float], window: SteadyWindow | None) -> list[float]:
    if window is None:
        return list(values)
    return [value for when, value in zip(at, values, strict=True) if window.begin <= when <= window.end]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
