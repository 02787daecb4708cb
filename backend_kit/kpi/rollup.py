"""One rollup: the samples of a window, appended by any thread and taken by the summary thread."""

from array import array
from dataclasses import dataclass
from math import ceil
from threading import Lock
from typing import Final

from backend_kit.kpi.distribution import Distribution, Seen

FOLD_ABOVE: Final = 65_536
THIN_BY: Final = 16


@dataclass(frozen=True, slots=True)
class Stats:
    """The figures of a window, in the unit of its samples. Percentiles are nearest rank."""

    count: int
    last: float
    total: float
    minimum: float
    maximum: float
    p50: float
    p95: float
    p99: float

    @property
    def average(self) -> float:
        """Mean of the window."""
        return self.total / self.count


class Rollup:
    """Samples since the last `take`.

    `add` is one append to an array of doubles: atomic under the GIL, no lock, so any thread may observe. Above
    65,536 samples in a window the oldest are folded: count, sum, least and greatest stay exact, percentiles come
    from every 16th sample (then every 32nd, …), so a window never holds more than about a megabyte.

    A `kept` one also counts its samples in a distribution since the start: when it is taken or read, so that it costs
    nothing per sample.
    """

    __slots__ = (
        "_count", "_distribution", "_entered", "_kept", "_lock", "_maximum", "_minimum", "_samples", "_stride",
        "_total",
    )  # fmt: skip

    def __init__(self, *, kept: bool = False) -> None:
        self._samples = array("d")
        self._lock = Lock()
        self._distribution = Distribution() if kept else None
        self._entered = 0
        self._reset()

    def add(self, value: float) -> None:
        """Add one sample."""
        samples = self._samples
        samples.append(value)
        if len(samples) > FOLD_ABOVE:
            self._fold_full()

    def take(self) -> Stats | None:
        """Figures of the window, which starts again empty; None where nothing was added."""
        with self._lock:
            chunk = self._cut()
            if not chunk and not self._count:
                return None
            # A window is cut only after FOLD_ABOVE + 1 samples, so the last one may already be folded.
            last = chunk[-1] if chunk else self._kept[-1]
            if self._count:
                self._fold(chunk)
                values = sorted(self._kept)
            else:
                self._count_in(chunk)
                values = sorted(chunk)
            stats = Stats(
                self._count,
                last,
                self._total,
                self._minimum,
                self._maximum,
                nearest_rank(values, 0.50),
                nearest_rank(values, 0.95),
                nearest_rank(values, 0.99),
            )
            self._reset()
            return stats

    def seen(self) -> Seen | None:
        """All samples since the start, those of the window included; None where they are not kept."""
        if self._distribution is None:
            return None
        with self._lock:
            self._enter(len(self._samples))
            return self._distribution.seen()

    def _enter(self, length: int) -> None:
        if self._distribution is not None:
            self._distribution.count(self._samples[self._entered : length])
            self._entered = length

    def _reset(self) -> None:
        self._count = 0
        self._total = 0.0
        self._minimum = float("inf")
        self._maximum = float("-inf")
        self._kept = array("d")
        self._stride = THIN_BY

    def _cut(self) -> "array[float]":
        # What other threads append between the two statements is behind `length` and stays.
        length = len(self._samples)
        self._enter(length)
        chunk = self._samples[:length]
        del self._samples[:length]
        self._entered = 0
        return chunk

    def _fold_full(self) -> None:
        with self._lock:
            if len(self._samples) > FOLD_ABOVE:
                self._fold(self._cut())

    def _fold(self, chunk: "array[float]") -> None:
        if not chunk:
            return
        self._count_in(chunk)
        # Ends at the last sample, so that `last` is right even right after a fold.
        self._kept.extend(chunk[:: -self._stride][::-1])
        if len(self._kept) > FOLD_ABOVE:
            self._kept = self._kept[::-2][::-1]
            self._stride *= 2

    def _count_in(self, chunk: "array[float]") -> None:
        self._count += len(chunk)
        self._total += sum(chunk)
        least, greatest = min(chunk), max(chunk)
        self._minimum = min(self._minimum, least)
        self._maximum = max(self._maximum, greatest)


def nearest_rank(ordered: list[float], share: float) -> float:
    """The smallest value that at least `share` (0..1] of the ascending, non-empty list does not exceed."""
    return ordered[max(ceil(share * len(ordered)) - 1, 0)]
