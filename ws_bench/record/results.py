"""Results of turns, and pure functions that count and measure them."""

import bisect
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ws_bench.config.options import NO_CUT, Cut

P999_COUNT = 10_000
_GROWTH = math.log(1.005)
_SMALLEST = 1e-3


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn that was started. Times are seconds since the run began; `error` is empty for a success.

    `asked` is when the ask was written (for a turn that never got so far, when it was given up); `ended` when the
    final was read or the turn broke. `intended` is when an open loop meant it to be asked, None in a closed loop.
    `first_event_ms` and `first_token_ms` count from `asked`; `tail_ms` is from the last token to the final.
    `phases` are milliseconds by name, from the server's ledger of the turn; `server_ms` is its whole.
    `frames` are those heard from the ask to the turn's last one, it included; None where they were not counted.
    """

    client: int
    asked: float
    ended: float
    error: str = ""
    detail: str = ""
    sent: bool = True
    first_token_ms: float | None = None
    gaps_ms: "array[float]" = field(default_factory=lambda: array("d"))
    intended: float | None = None
    first_event_ms: float | None = None
    tail_ms: float | None = None
    stall_ms: float | None = None
    """The longest time between two tokens of the turn, None if it had fewer than two."""
    phases: dict[str, float] = field(default_factory=dict)
    own_ms: dict[str, float] = field(default_factory=dict)
    """The time of each phase without the phases inside it."""
    top_phases: tuple[str, ...] = ()
    """The names in `phases` that are of depth 0: they do not overlap."""
    server_ms: float | None = None
    frames: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the turn ended with a final that holds an answer."""
        return not self.error

    @property
    def begin(self) -> float:
        """When the turn should have begun: the intended start, or the ask."""
        return self.asked if self.intended is None else self.intended

    @property
    def latency_ms(self) -> float:
        """From the time the ask should have been written to reading the final."""
        return (self.ended - self.begin) * 1000

    @property
    def response_ms(self) -> float:
        """From writing the ask to reading the final, without the wait before it could be asked."""
        return (self.ended - self.asked) * 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution, in milliseconds unless its name says otherwise; percentiles by nearest rank over all values."""

    count: int
    min: float
    avg: float
    p50: float
    p95: float
    p99: float
    max: float
    p999: float | None = None
    """Only from 10,000 values on: with fewer it would be one of the ten highest, and chance."""


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """The time in which the whole load was on: no ramp, no end, no warm-up, no cool-down. Seconds, run clock.

    `turns` are the successes that ended inside it.
    """

    begin: float
    end: float
    turns: int

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.begin

    @property
    def turns_per_s(self) -> float:
        """Successful turns that ended inside it, per second."""
        return self.turns / self.seconds


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of a run: success + errors + not_sent = total, always."""

    total: int
    success: int
    errors: int
    by_class: dict[str, int]

    @property
    def not_sent(self) -> int:
        """Turns that were never started: after a break, or after an interrupt."""
        return self.total - self.success - self.errors

    @property
    def success_percent(self) -> float:
        """Share of all planned turns, 0 if there were none."""
        return self.success * 100 / self.total if self.total else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value with at least `share` (0..1) of all values at or below it. 0.0 when empty."""
    if not ordered:
        return 0.0
    rank = math.ceil(share * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def spread(values: Iterable[float]) -> Spread | None:
    """The distribution of the values, None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(
        count=len(ordered),
        min=ordered[0],
        avg=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.50),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
        p999=percentile(ordered, 0.999) if len(ordered) >= P999_COUNT else None,
    )


def back_filled(values: Iterable[float], interval: float) -> Iterator[float]:
    """The values, plus those that a client asking every `interval` would have added while it waited for a slow answer.

    A closed loop does not ask during a stall, so the stall is one value; a user's would have been many: of an answer
    that took L, the asks due meanwhile would have taken L - interval, L - 2 intervals, and so on (the correction of
    HdrHistogram).
    """
    for value in values:
        yield value
        missing = value - interval
        while missing >= interval > 0:
            yield missing
            missing -= interval


class Histogram:
    """Counts of many values with a resolution of 0.5 %: small in a file, and two of them can be added.

    Percentiles are by nearest rank over the middles of the buckets, so within 0.25 %; count, min, mean, max are exact.
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        self.counts: Counter[int] = Counter()
        self.sum = 0.0
        self.min = math.inf
        self.max = 0.0
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """Count one value (milliseconds); values below a microsecond share a bucket."""
        self.counts[math.floor(math.log(max(value, _SMALLEST)) / _GROWTH)] += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def merge(self, other: "Histogram") -> None:
        """Add another one's counts."""
        self.counts.update(other.counts)
        self.sum += other.sum
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

    def spread(self) -> Spread | None:
        """Its distribution, None when it is empty."""
        total = self.counts.total()
        if not total:
            return None
        marks = sorted(self.counts)
        upto = list(itertools.accumulate(self.counts[mark] for mark in marks))

        def at(share: float) -> float:
            rank = min(max(math.ceil(share * total), 1), total)
            middle = math.exp((marks[bisect.bisect_left(upto, rank)] + 0.5) * _GROWTH)
            return min(max(middle, self.min), self.max)

        return Spread(
            count=total,
            min=self.min,
            avg=self.sum / total,
            p50=at(0.50),
            p95=at(0.95),
            p99=at(0.99),
            max=self.max,
            p999=at(0.999) if total >= P999_COUNT else None,
        )

    def as_json(self) -> dict[str, object]:
        """For a result file."""
        counts = {str(mark): count for mark, count in sorted(self.counts.items())}
        return {"growth": _GROWTH, "counts": counts, "sum": self.sum, "min": self.min if counts else 0, "max": self.max}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "Histogram":
        """Read what `as_json` wrote."""
        made = cls()
        made.counts.update({int(mark): int(count) for mark, count in given["counts"].items()})
        if made.counts:
            made.sum, made.min, made.max = float(given["sum"]), float(given["min"]), float(given["max"])
        return made


def tally(results: Sequence[TurnResult], total: int) -> Tally:
    """Count a run of `total` planned turns; error classes by frequency, then name."""
    errors = Counter(result.error for result in results if not result.ok)
    by_class = dict(sorted(errors.items(), key=lambda item: (-item[1], item[0])))
    return Tally(total=total, success=len(results) - errors.total(), errors=errors.total(), by_class=by_class)


def latencies(results: Iterable[TurnResult]) -> list[float]:
    """Latency of each success, in milliseconds."""
    return [result.latency_ms for result in results if result.ok]


def first_tokens(results: Iterable[TurnResult]) -> list[float]:
    """First-token time of each success that had one, in milliseconds."""
    return [result.first_token_ms for result in results if result.ok and result.first_token_ms is not None]


def gaps(results: Iterable[TurnResult]) -> Histogram:
    """All times between tokens within successful turns, in milliseconds."""
    pooled = Histogram()
    for result in results:
        if result.ok:
            for gap in result.gaps_ms:
                pooled.add(gap)
    return pooled


def steady_window(
    results: Sequence[TurnResult],
    *,
    warmup: Cut = NO_CUT,
    cooldown: Cut = NO_CUT,
    planned: tuple[float, float] | None = None,
) -> SteadyWindow | None:
    """The window in which the whole load was on, less warm-up and cool-down; None if nothing is left.

    In a closed loop from the last client's first ask to the first client's last end; a client whose socket broke
    ends nothing. `planned` is an open loop's begin and end, where the load does not depend on the clients.
    """
    bounds = planned or _all_running(results)
    if bounds is None:
        return None
    length = bounds[1] - bounds[0]
    begin = _after(results, bounds[0], length, warmup)
    end = _before(results, bounds[1], length, cooldown)
    if end <= begin:
        return None
    turns = sum(1 for result in results if result.ok and begin < result.ended <= end)
    return SteadyWindow(begin=begin, end=end, turns=turns)


def whole_window(results: Sequence[TurnResult]) -> SteadyWindow | None:
    """From the first ask to the last end: ramp and end included, for a run whose whole load was never on at once.

    None if nothing was asked.
    """
    sent = [result for result in results if result.sent]
    if not sent:
        return None
    begin, end = min(result.asked for result in sent), max(result.ended for result in sent)
    return SteadyWindow(begin, end, sum(result.ok for result in sent)) if end > begin else None


def in_window(results: Iterable[TurnResult], window: SteadyWindow, *, by_begin: bool) -> list[TurnResult]:
    """The turns of a window: in an open loop those that should have begun in it, else those that ended in it."""
    if by_begin:
        return [result for result in results if window.begin <= result.begin < window.end]
    return [result for result in results if window.begin < result.ended <= window.end]


def ramp_seconds(results: Iterable[TurnResult]) -> tuple[float, float]:
    """When the first ask was written and how long after it the last client's first one was: (setup, ramp)."""
    first_ask: dict[int, float] = {}
    for result in results:
        if result.sent:
            first_ask[result.client] = min(result.asked, first_ask.get(result.client, result.asked))
    if not first_ask:
        return 0.0, 0.0
    begin = min(first_ask.values())
    return begin, max(first_ask.values()) - begin


def _all_running(results: Sequence[TurnResult]) -> tuple[float, float] | None:
    first_ask: dict[int, float] = {}
    last: dict[int, TurnResult] = {}
    for result in results:
        if result.sent:
            first_ask[result.client] = min(result.asked, first_ask.get(result.client, result.asked))
            if result.client not in last or result.ended > last[result.client].ended:
                last[result.client] = result
    if not first_ask:
        return None
    ends = [result.ended for result in last.values() if result.ok] or [result.ended for result in last.values()]
    return max(first_ask.values()), min(ends)


def _after(results: Sequence[TurnResult], begin: float, length: float, cut: Cut) -> float:
    if cut.kind != "turns":
        return begin + cut.amount * (length if cut.kind == "share" else 1.0)
    ends = sorted(result.ended for result in results if result.ended > begin)
    count = int(cut.amount)
    return begin if count == 0 else (ends[count - 1] if count <= len(ends) else math.inf)


def _before(results: Sequence[TurnResult], end: float, length: float, cut: Cut) -> float:
    if cut.kind != "turns":
        return end - cut.amount * (length if cut.kind == "share" else 1.0)
    ends = sorted((result.ended for result in results if result.ended <= end), reverse=True)
    count = int(cut.amount)
    return end if count == 0 else (ends[count] if count < len(ends) else -math.inf)
