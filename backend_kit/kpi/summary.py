"""The summary log: the lines of CONTRACT §6, written by a thread of its own through a handler of its own."""

import logging
import sys
from collections.abc import Iterable
from queue import Empty, Full, Queue
from time import perf_counter
from typing import Final, TextIO

import psutil

from backend_kit.aio import WatchedThread
from backend_kit.kpi.core import Kpi
from backend_kit.kpi.rollup import Rollup, Stats

PREFIX: Final = "[KPI][SUMMARY]"
_NOTICES: Final = 64
_QUIET_LEVELS: Final = frozenset({"warning", "error", "critical"})
_MIB: Final = 1024 * 1024


class ProcessLine:
    """CPU, memory and descriptors of this process. psutil costs up to 0.1 ms and more with each open descriptor:
    call it from the summary thread only."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only starts the interval

    def __call__(self) -> str:
        """The process line without its prefix; `n/a` for what the system does not tell. cpu_pct 100 = one core."""
        process = self._process
        try:
            with process.oneshot():
                memory = process.memory_info()
                head = (
                    f"cpu_pct={process.cpu_percent():.2f} rss_mb={memory.rss / _MIB:.2f} "
                    f"rss_pct={process.memory_percent():.2f} vms_mb={memory.vms / _MIB:.2f}"
                )
        except (psutil.Error, OSError):  # each look at /proc needs a descriptor, and there may be none
            head = "cpu_pct=n/a rss_mb=n/a rss_pct=n/a vms_mb=n/a"
        try:
            descriptors = str(process.num_fds())
        except (psutil.Error, OSError, AttributeError):
            descriptors = "n/a"
        return f"{head} open_fds={descriptors}"


class Summary:
    """Writes what a Kpi gathered, each `interval_s`, and starts its windows again.

    Lines say INFO whatever the service's log level is, and WARNING where that is warning or above, as the lines that
    clients grep do. `interval_s` 0 writes no summary; notices (a stall of the loop) are written all the same.
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
    ) -> None:
        """`top_n` 0: every key, by name; else the `top_n` keys of each kind with most samples. `stream`: stderr."""
        self._kpi = kpi
        self._interval = interval_s
        self._top_n = top_n
        self._process_interval = process_interval_s
        self._level = logging.WARNING if log_level.lower() in _QUIET_LEVELS else logging.INFO
        # Not from getLogger: two apps in one process would each write the other's lines as well.
        self._logger = logging.Logger("turnwise.kpi", logging.INFO)  # noqa: LOG001 - in no tree
        handler = logging.StreamHandler(stream or sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self._logger.addHandler(handler)
        # What a full pipe on stderr blocks is this thread and nobody else, so notices come through a bounded queue.
        self._notices: Queue[str | None] = Queue(_NOTICES)
        self._thread = WatchedThread(kpi.vigil, "kpi-summary", self._run, essential=True)

    def start(self) -> None:
        """Begin the first window."""
        self._thread.start()

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
        timers = self._ordered((key, timer.rollup) for key, timer in list(kpi.timers.items()))
        lines = [f"{PREFIX} timer {key} count={s.count} {_spread(s)}" for key, s in timers]
        for gauge in list(kpi.gauges.values()):
            gauge.restate()
        gauges = self._ordered((key, gauge.rollup) for key, gauge in list(kpi.gauges.items()))
        lines += [f"{PREFIX} gauge {key} count={s.count} last={s.last:.4f} {_spread(s)}" for key, s in gauges]
        counters = self._ordered((key, counter.rollup) for key, counter in list(kpi.counters.items()))
        lines += [f"{PREFIX} counter {key} count={s.total:.0f}" for key, s in counters]
        lines += [f"{PREFIX} {line}" for source in kpi.line_sources for line in source()]
        return lines

    def _ordered(self, rollups: Iterable[tuple[str, Rollup]]) -> list[tuple[str, Stats]]:
        taken = [(key, stats) for key, rollup in rollups if (stats := rollup.take()) is not None]
        if self._top_n <= 0:
            return sorted(taken, key=lambda pair: pair[0])
        return sorted(taken, key=lambda pair: (-pair[1].count, pair[0]))[: self._top_n]

    def _run(self) -> None:
        process = ProcessLine() if self._process_interval > 0 else None
        due = perf_counter() + self._interval
        while True:
            try:
                text = self._notices.get(timeout=max(due - perf_counter(), 0.0) if self._interval > 0 else None)
            except Empty:
                due = max(due + self._interval, perf_counter())
                self._write(process)
                continue
            if text is None:
                break
            self._logger.warning(text)
        if self._interval > 0:
            self._write(process)

    def _write(self, process: ProcessLine | None) -> None:
        for line in self.lines():
            self._logger.log(self._level, line)
        if process is not None:
            self._logger.log(self._level, "%s %s", PREFIX, process())
        for line in [line for source in self._kpi.last_words for line in source()]:
            self._logger.log(self._level, line)


def _spread(stats: Stats) -> str:
    return (
        f"avg={stats.average:.2f} min={stats.minimum:.2f} max={stats.maximum:.2f} "
        f"p50={stats.p50:.2f} p95={stats.p95:.2f} p99={stats.p99:.2f}"
    )
