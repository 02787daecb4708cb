"""What observes a process from its start on: times of the start, summary, loop monitor, GC pauses, metrics endpoint."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from pathlib import Path
from time import perf_counter, process_time
from typing import Final, Self, TextIO

import psutil
from prometheus_client import Gauge, GCCollector, Info, PlatformCollector, ProcessCollector

from backend_kit.kpi.core import Kpi
from backend_kit.kpi.exposition import GcPauses, MetricsServer
from backend_kit.kpi.loop import LoopMonitor
from backend_kit.kpi.summary import Summary

_START_PREFIX: Final = "[KPI][START]"


@dataclass(frozen=True, slots=True)
class KpiOptions:
    """The `app` switches that concern measurement (docs/contract.md#configuration-files). Intervals in seconds,
    0 = off."""

    log_level: str = "info"
    summary_interval_s: float = 10.0
    summary_top_n: int = 0
    process_interval_s: float = 10.0
    metrics_enabled: bool = True
    metrics_address: str = "127.0.0.1"
    metrics_port: int = 0
    """0 takes a free port (tests); `KpiRuntime.metrics_port` has its number."""
    supervisor: int | None = None
    """The process that supervises workers, for the one of them that tells of it."""
    version: str = "unknown"
    git_sha: str = "unknown"
    config_hash: str = "unknown"
    switch_interval_s: float = 0.0005
    """Seconds that a thread waits for the GIL before it requests it. A saturated loop releases the GIL at each poll and
takes it back before another thread wakes; at Python's 5 ms that thread's wait restarts each time, and it starves:
    15 to 128 of 200 lag samples came through, all 200 at 0.5 ms (tests/bench/lag.py --switch-interval)."""


class KpiRuntime:
    """Starts and ends everything that observes a process. Built and closed in the lifespan."""

    def __init__(self, kpi: Kpi, options: KpiOptions, *, stream: TextIO | None = None) -> None:
        """Registers process, platform, garbage-collection and build metrics on the Kpi's registry."""
        registry = kpi.registry
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        Gauge("process_threads", "Number of OS threads in the process.", registry=registry).set_function(_threads)
        Info("app_build", "What runs.", registry=registry).info(
            {"version": options.version, "git_sha": options.git_sha, "config_hash": options.config_hash}
        )
        self._options = options
        self._switch_interval_before: float | None = None
        self._gc_pauses = GcPauses(registry)
        self.summary = Summary(
            kpi,
            interval_s=options.summary_interval_s,
            top_n=options.summary_top_n,
            process_interval_s=options.process_interval_s,
            log_level=options.log_level,
            stream=stream,
            pauses=self._gc_pauses.take,
            supervisor=options.supervisor,
        )
        self.loop = LoopMonitor(kpi, notice=self.summary.notice)
        kpi.add_lines(self.loop.culprits.lines)
        self._server = (
            MetricsServer(
                registry,
                options.metrics_address,
                options.metrics_port,
                kpi.distributions,
                kpi.statements.seen,
                vigil=kpi.vigil,
            )
            if options.metrics_enabled
            else None
        )

    def start(self) -> Self:
        """Open the endpoint and start the threads; on the loop's thread. Raises MetricsPortTaken.

        What the start of the service costs is not measured: `begin` begins with the loop and the windows.
        """
        if self._server is not None:
            self._server.start()
        self._switch_interval_before = sys.getswitchinterval()
        sys.setswitchinterval(self._options.switch_interval_s)
        self._gc_pauses.start()
        self.summary.start(held=True)
        return self

    def begin(self, line: str) -> None:
        """Measure from now on; on the loop's thread. `line` is the log line about the start."""
        self.loop.start()
        self.summary.begin(line)

    def close(self) -> None:
        """End in reverse; writes the last summary. May wait up to 3 s for a blocked log."""
        self.loop.close()
        self.summary.close()
        self._gc_pauses.close()
        if self._server is not None:
            self._server.close()
        if self._switch_interval_before is not None:
            sys.setswitchinterval(self._switch_interval_before)

    @property
    def metrics_port(self) -> int | None:
        """The port that /metrics listens on, None where it is off or not started."""
        return self._server.port if self._server is not None else None


class StartTimes:
    """How long the start of a service took, by stage, for one line of the log.

    The stage `load` is from the begin of the process until this is built; each other ends at its mark. CPU is that of
    all threads of the process.
    """

    def __init__(
        self,
        age_s: float | None = None,
        *,
        clock: Callable[[], float] = perf_counter,
        cpu: Callable[[], float] = process_time,
    ) -> None:
        """`age_s` is how old the process is; by default the system says it. `clock` and `cpu` in seconds."""
        self._clock = clock
        self._cpu = cpu
        self._last = clock(), cpu()
        self._stages = [("load", process_age_s() if age_s is None else age_s, self._last[1])]

    def mark(self, stage: str) -> None:
        """The stage ends now, and the next one begins."""
        before, cpu_before = self._last
        self._last = now, cpu = self._clock(), self._cpu()
        self._stages.append((stage, now - before, cpu - cpu_before))

    def line(self, status: str) -> str:
        """`status` is the word of `/ready`: `ready`, or what a start waits for that took too long. Milliseconds."""
        total_s = sum(seconds for _, seconds, _ in self._stages)
        cpu_s = sum(cpu for _, _, cpu in self._stages)
        stages = " ".join(f"{name}_ms={s * 1e3:.2f} {name}_cpu_ms={cpu * 1e3:.2f}" for name, s, cpu in self._stages)
        return f"{_START_PREFIX} status={status} total_ms={total_s * 1e3:.2f} cpu_ms={cpu_s * 1e3:.2f} {stages}"


def process_age_s() -> float:
    """How long this process has existed, to 10 ms on Linux; elsewhere to a second."""
    try:
        begun_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - begun_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return max(time.time() - psutil.Process().create_time(), 0.0)


def _threads() -> float:
    try:
        return psutil.Process().num_threads()
    except (psutil.Error, OSError):  # reading /proc needs a descriptor, and none may be free
        return nan
