"""How long the start of a service took, by stage: one line of the log."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

import psutil

PREFIX: Final = "[KPI][START]"


class StartTimes:
    """The stages of a start: `load` is from the begin of the process until this is built, then each ends at its mark.

    CPU is that of all threads of the process.
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
        return f"{PREFIX} status={status} total_ms={total_s * 1e3:.2f} cpu_ms={cpu_s * 1e3:.2f} {stages}"


def process_age_s() -> float:
    """How long this process has existed, to 10 ms on Linux; elsewhere to a second."""
    try:
        begun_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - begun_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return max(time.time() - psutil.Process().create_time(), 0.0)
