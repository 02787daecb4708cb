"""The summary log: the lines of docs/operations.md#the-summary-log, written by a separate thread and log handler."""

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from math import floor, inf, log10
from queue import Empty, Full, Queue
from time import perf_counter
from typing import Final, TextIO

import psutil

from backend_kit.aio import WatchedThread
from backend_kit.kpi.core import LEGACY_GAUGES, PHASES, Gauge, Kpi
from backend_kit.kpi.rollup import Rollup, Stats
from backend_kit.processes import Family, open_descriptors

PREFIX: Final = "[KPI][SUMMARY]"
_NOTICES: Final = 64
_QUIET_LEVELS: Final = frozenset({"warning", "error", "critical"})
_MIB: Final = 1024 * 1024

_FIRST_TIMERS: Final = (
    *(f"app.phase_latency_ms|phase={phase}" for phase in PHASES),
    "app.turn_latency_ms",
    "app.ttft_ms",
    "app.overhead_ms",
)
_FIRST_COUNTERS: Final = (
    "persist_lost", "persist_dead_letters", "rank_conflicts", "persist_retries", "turns", "persist_turns", "tokens",
    "cost",
)  # fmt: skip
"""Rare ones among them, which should stay 0."""


Pauses = Callable[[], tuple[int, float, float]]
"""Gives how many pauses by garbage collection there were since the last call, their seconds, and the longest."""


class ProcessLine:
    """CPU, memory, descriptors, threads and pauses of this process. psutil costs up to 0.1 ms and more with each open
    descriptor: call it from the summary thread only."""

    def __init__(self, pauses: Pauses = lambda: (0, 0.0, 0.0)) -> None:
        self._process = psutil.Process()
        self._pauses = pauses
        self._process.cpu_percent()  # the first call only starts the interval
        pauses()

    def __call__(self) -> str:
        """The process line without its prefix; `n/a` for what the system does not report. cpu_pct 100 = one core."""
        count, total_s, longest_s = self._pauses()
        pauses = f"gc_count={count} gc_ms={total_s * 1e3:.2f} gc_max_ms={longest_s * 1e3:.2f}"
        process = self._process
        try:
            with process.oneshot():
                memory = process.memory_info()
                head = (
                    f"cpu_pct={process.cpu_percent():.2f} rss_mb={memory.rss / _MIB:.2f} "
                    f"rss_pct={process.memory_percent():.2f} vms_mb={memory.vms / _MIB:.2f}"
                )
        except (psutil.Error, OSError):  # reading /proc needs a descriptor, and none may be free
            head = "cpu_pct=n/a rss_mb=n/a rss_pct=n/a vms_mb=n/a"
        descriptors = open_descriptors(process)
        try:
            threads = str(process.num_threads())
        except (psutil.Error, OSError):
            threads = "n/a"
        return f"{head} open_fds={'n/a' if descriptors is None else descriptors} threads={threads} {pauses}"


class Due:
    """When something comes next that comes every `every_s` seconds; never with 0."""

    def __init__(self, every_s: float, began: float) -> None:
        self._every_s = every_s
        self.at = began + every_s if every_s > 0 else inf

    def passed(self, now: float) -> bool:
        """Whether it is time; then the next time is set."""
        if now < self.at:
            return False
        self.at += self._every_s
        if self.at <= now:  # late by more than that: no second one at once, over no time at all
            self.at = now + self._every_s
        return True


class Summary:
    """Writes what a Kpi gathered, every `interval_s` seconds, and restarts its windows.

    Lines are at INFO, or at WARNING if the service's log level is warning or above, like the lines that clients grep.
    The process line comes every `process_interval_s` seconds, of 0 never; so does nothing where `interval_s` is 0, but
    for notices (a stall of the loop), which are always written.
    """

    def __init__(
        self,
        kpi: Kpi,
        *,
        interval_s: float,
        top_n: int = 0,
        process_interval_s: float = 10.0,
        log_level: str = "info",
        stream: TextIO | None = None,
        pauses: Pauses = lambda: (0, 0.0, 0.0),
        supervisor: int | None = None,
    ) -> None:
        """`top_n` 0: every key, by name. Else first the keys that every summary has, as far as anything was seen, then
        `top_n` more of each kind: the timers and counters with most in total, gauges by name, none that stayed at 0.
        `stream`: stderr. `supervisor` is a process above this one of which no other summary tells.
        """
        self._kpi = kpi
        self._interval = interval_s
        self._top_n = top_n
        self._process_interval = process_interval_s
        self._pauses = pauses
        self._supervisor = supervisor
        self._held = False
        self._begun_line: str | None = None
        self._level = logging.WARNING if log_level.lower() in _QUIET_LEVELS else logging.INFO
        # Not from getLogger: two apps in one process would each write the other's lines as well.
        self._logger = logging.Logger("turnwise.kpi", logging.INFO)  # noqa: LOG001 - in no tree
        handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self._logger.addHandler(handler)
        # A full pipe on stderr must block only this thread, so notices pass through a bounded queue.
        self._notices: Queue[str | None] = Queue(_NOTICES)
        self._thread = WatchedThread(kpi.vigil, "kpi-summary", self._run, essential=True)

    def start(self, *, held: bool = False) -> None:
        """Begin the first window; where it is `held`, only `begin` does, and until then there is no summary."""
        self._held = held
        self._thread.start()

    def begin(self, line: str) -> None:
        """Begin the first window now, below this line. Counters keep what they had; times and levels from before are
        dropped, since they are those of the start."""
        kpi = self._kpi
        for timer in list(kpi.timers.values()):
            timer.rollup.take()
        for gauge in list(kpi.gauges.values()):
            gauge.take()
        for detail in list(kpi.details.values()):
            detail.take()
        self._begun_line = line
        self.notice("")  # wakes the thread

    def close(self) -> None:
        """Write the last summary and end the thread; waits 2 s at most. Does nothing where it was not started."""
        if self._thread.alive:
            try:
                self._notices.put(None, timeout=1.0)
            except Full:
                return
        self._thread.end(1.0)

    def notice(self, text: str) -> None:
        """Write a line soon, as a warning. Never blocks: dropped where 64 lines wait already."""
        try:
            self._notices.put_nowait(text)
        except Full:
            return

    def lines(self) -> list[str]:
        """The lines of the window (without process line), which starts again."""
        kpi = self._kpi
        timers = self._ordered(_FIRST_TIMERS, ((key, timer.rollup) for key, timer in list(kpi.timers.items())))
        lines = [f"{PREFIX} timer {key} count={s.count} {_spread(s)}" for key, s in timers]
        gauges = self._gauges(list(kpi.gauges.items()))
        lines += [f"{PREFIX} gauge {key} count={s.count} last={s.last:.4f} {_spread(s)}" for key, s in gauges]
        counters = self._ordered(_FIRST_COUNTERS, ((key, c.rollup) for key, c in list(kpi.counters.items())))
        told = {key.partition("|")[0] for key, _ in counters}
        lines += [f"{PREFIX} counter {name} count=0" for name in kpi.told_at_zero if name not in told]
        lines += [f"{PREFIX} counter {key} count={amount(s.total)}" for key, s in counters]
        for detail in list(kpi.details.values()):
            detail.take()  # the gauges above show it; this only empties the window
        lines += [f"{PREFIX} {line}" for source in kpi.line_sources for line in source()]
        return lines

    def _ordered(self, first: Sequence[str], rollups: Iterable[tuple[str, Rollup]]) -> list[tuple[str, Stats]]:
        taken = _taken(rollups)
        if self._top_n <= 0:
            return taken
        ranked = [(_rank(key, first), key, stats) for key, stats in taken]
        block = sorted(
            ((rank, key, stats) for rank, key, stats in ranked if rank < len(first)), key=lambda one: one[:2]
        )
        rest = sorted(
            ((key, stats) for rank, key, stats in ranked if rank == len(first)), key=lambda pair: -pair[1].total
        )
        return [(key, stats) for _, key, stats in block] + rest[: self._top_n]

    def _gauges(self, gauges: Iterable[tuple[str, Gauge]]) -> list[tuple[str, Stats]]:
        taken = _taken(gauges)
        if self._top_n <= 0:
            return taken
        moved = [(key, stats) for key, stats in taken if stats.minimum != 0 or stats.maximum != 0]
        block = [pair for pair in moved if pair[0] in LEGACY_GAUGES]
        return block + [pair for pair in moved if pair[0] not in LEGACY_GAUGES][: self._top_n]

    def _run(self) -> None:
        processes, summary, own = self._begin()
        while True:
            next_s = inf if self._held else min(summary.at, own.at) - perf_counter()
            try:
                text = self._notices.get(timeout=None if next_s == inf else max(next_s, 0.0))
            except Empty:
                now = perf_counter()
                self._write(summary=summary.passed(now), processes=processes if own.passed(now) else None)
                continue
            if self._begun_line is not None:
                self._logger.log(self._level, self._begun_line)
                self._begun_line, self._held = None, False
                processes, summary, own = self._begin()
            if text is None:
                break
            if text:
                self._logger.warning(text)
        self._write(summary=summary.at < inf, processes=processes if own.at < inf else None)

    def _begin(self) -> "tuple[Callable[[], list[str]], Due, Due]":
        """What gives the lines of the processes from now on; when the next summary is due, and when these are."""
        began = perf_counter()
        process_every_s = self._process_interval if self._interval > 0 else 0.0
        return self._processes(), Due(self._interval, began), Due(process_every_s, began)

    def _processes(self) -> Callable[[], list[str]]:
        """What gives the lines of this process and of those that belong to it, from now on."""
        own, started = ProcessLine(self._pauses), Family()
        above = None if self._supervisor is None else Family(self._supervisor, alone=True)

        def lines() -> list[str]:
            supervisor = None if above is None else above.line("supervisor")
            return [f"{PREFIX} {own()}", *started.lines(), *([] if supervisor is None else [supervisor])]

        return lines

    def _write(self, *, summary: bool, processes: Callable[[], list[str]] | None) -> None:
        for line in [*(self.lines() if summary else ()), *(processes() if processes is not None else ())]:
            self._logger.log(self._level, line)
        for line in [line for source in self._kpi.closing_lines for line in source()] if summary else ():
            self._logger.log(self._level, line)


def amount(value: float) -> str:
    """A sum formatted for people: whole numbers whole, others with three decimals, small ones with three digits."""
    if value == int(value):
        return str(int(value))
    if abs(value) >= 1:
        return f"{value:.3f}"
    return f"{value:.{2 - floor(log10(abs(value)))}f}"


def _taken(rollups: Iterable[tuple[str, Rollup | Gauge]]) -> list[tuple[str, Stats]]:
    """The figures of each key with samples, by name."""
    return sorted(
        ((key, stats) for key, rollup in rollups if (stats := rollup.take()) is not None), key=lambda pair: pair[0]
    )


def _rank(key: str, first: Sequence[str]) -> int:
    """The position of a key among `first`, ignoring its further labels; behind them if it is not among them."""
    return next((place for place, name in enumerate(first) if key == name or key.startswith(f"{name}|")), len(first))


def _spread(stats: Stats) -> str:
    return (
        f"avg={stats.average:.2f} min={stats.minimum:.2f} max={stats.maximum:.2f} "
        f"p50={stats.p50:.2f} p95={stats.p95:.2f} p99={stats.p99:.2f}"
    )
