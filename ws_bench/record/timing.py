"""What a small operation costs: the distribution of many samples, each a mean over repetitions.

A sample is the mean over as many repetitions as take 100 µs, so that the clock is not in it. The least is judged, since
other work on the machine only ever adds.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, stdev
from time import perf_counter

from ws_bench.record.results import percentile

SAMPLE_S = 100e-6
Run = Callable[[range], None]
"""An operation, over a range of repetitions."""
HEAD = (
    f"{'hz':>12} {'min':>9} {'mean':>9} {'p75':>10}{'p99':>10}{'p995':>10}{'p999':>10} "
    f"{'rme':>7} {'samples':>8} {'bound':>9}  verdict"
)
"""Of the table, in µs; `rme` is the margin of error of the mean at 95 %, as a share of it."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Microseconds a repetition, one figure a sample, ascending."""

    costs: list[float]

    @property
    def least(self) -> float:
        """The figure that is judged."""
        return self.costs[0]

    def line(self) -> str:
        """The columns of the table from `hz` to `samples`."""
        mean = fmean(self.costs)
        error = 1.96 * stdev(self.costs) / math.sqrt(len(self.costs)) / mean if len(self.costs) > 1 and mean else 0.0
        ranks = "".join(f"{percentile(self.costs, share):10.2f}" for share in (0.75, 0.99, 0.995, 0.999))
        hz = f"{1e6 / mean:12,.0f}" if mean > 0 else f"{'':12}"
        return f"{hz} {self.least:9.2f} {mean:9.2f} {ranks} {error:7.2%} {len(self.costs):8}"


def measure(run: Run, seconds: float, nothing_us: float, each: int = 1) -> Timings:
    """Take samples for `seconds`, at least ten, less the cost of the loop itself. A repetition is `each` operations, if
    starting one costs as much as several."""
    count = repetitions(run)
    costs: list[float] = []
    end = perf_counter() + seconds
    while perf_counter() < end or len(costs) < 10:
        begun = perf_counter()
        run(range(count))
        costs.append((perf_counter() - begun) / (count * each) * 1e6 - nothing_us)
    return Timings(sorted(costs))


def repetitions(run: Run) -> int:
    """How many take at least a sample's length, once warm."""
    count = 1
    while True:
        run(range(count))
        begun = perf_counter()
        run(range(count))
        if perf_counter() - begun >= SAMPLE_S or count >= 1_000_000:
            return count
        count *= 2


@contextmanager
def pinned() -> Iterator[str]:
    """Keep the process on the last core it may use."""
    if not hasattr(os, "sched_setaffinity"):
        yield "not pinned: this system has no sched_setaffinity"
        return
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    os.sched_setaffinity(0, {core})
    try:
        yield f"pinned to core {core} of {len(allowed)}"
    finally:
        os.sched_setaffinity(0, allowed)


def empty(times: range) -> None:
    """The loop itself, whose cost is taken from every figure."""
    for _ in times:
        pass


def row(name: str, samples: Timings, bound_us: float | None) -> tuple[str, bool]:
    """A line of the table, and whether the least is within the bound, if there is one."""
    good = bound_us is None or samples.least <= bound_us
    bound = f"{'-':>9}" if bound_us is None else f"{bound_us:9.2f}"
    said = "" if bound_us is None else "ok" if good else "OVER"
    return f"{samples.line()} {bound}  {said:7} {name}", good
