"""What came out of a run: results of turns as a stream, and pure functions that count and measure them."""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TurnResult:
    """One turn that was started. Times are seconds since the run began; `error` is empty for a success.

    `asked` is when the ask was written (for a turn that never got so far, when it was given up); `ended` when the
    final was read or the turn broke. `first_token_ms` counts from `asked`.
    """

    client: int
    asked: float
    ended: float
    error: str = ""
    detail: str = ""
    sent: bool = True
    first_token_ms: float | None = None
    gaps_ms: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def ok(self) -> bool:
        """Whether the turn ended with a final that holds an answer."""
        return not self.error

    @property
    def latency_ms(self) -> float:
        """From writing the ask to reading the final."""
        return (self.ended - self.asked) * 1000


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in milliseconds; percentiles by nearest rank over all values."""

    count: int
    min: float
    avg: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class SteadyWindow:
    """The time in which every client was in its turns: neither ramp nor the first one's end. Seconds, run clock."""

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
        """Of all turns that were meant, 0 where none was."""
        return self.success * 100 / self.total if self.total else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value with at least `share` (0..1) of all values at or below it. 0.0 when empty."""
    if not ordered:
        return 0.0
    rank = math.ceil(share * len(ordered))
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def spread(values: Iterable[float]) -> Spread | None:
    """The distribution of some values, None when there are none."""
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
    )


def tally(results: Sequence[TurnResult], total: int) -> Tally:
    """Count a run that meant to make `total` turns; classes by frequency, then name."""
    errors = Counter(result.error for result in results if not result.ok)
    by_class = dict(sorted(errors.items(), key=lambda item: (-item[1], item[0])))
    return Tally(total=total, success=len(results) - errors.total(), errors=errors.total(), by_class=by_class)


def latencies(results: Iterable[TurnResult]) -> list[float]:
    """Latency of each success, in milliseconds."""
    return [result.latency_ms for result in results if result.ok]


def first_tokens(results: Iterable[TurnResult]) -> list[float]:
    """First-token time of each success that had one, in milliseconds."""
    return [result.first_token_ms for result in results if result.ok and result.first_token_ms is not None]


def gaps(results: Iterable[TurnResult]) -> "array[float]":
    """All times between tokens within successful turns, in milliseconds."""
    pooled: array[float] = array("d")
    for result in results:
        if result.ok:
            pooled.extend(result.gaps_ms)
    return pooled


def steady_window(results: Sequence[TurnResult]) -> SteadyWindow | None:
    """From the last client's first ask to the first client's last end; None where these do not overlap."""
    first_ask: dict[int, float] = {}
    last_end: dict[int, float] = {}
    for result in results:
        if result.sent:
            first_ask[result.client] = min(result.asked, first_ask.get(result.client, result.asked))
            last_end[result.client] = max(result.ended, last_end.get(result.client, result.ended))
    if not first_ask:
        return None
    begin, end = max(first_ask.values()), min(last_end.values())
    if end <= begin:
        return None
    turns = sum(1 for result in results if result.ok and begin < result.ended <= end)
    return SteadyWindow(begin=begin, end=end, turns=turns)


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
