"""The time of finished turns by cause, second by second, kept for some minutes."""

import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agentic_backend.verdict.causes import Account, account_of, own_ms
from backend_kit.kpi import Ledger, LedgerRow
from backend_kit.kpi.rollup import nearest_rank

KEPT_S: Final = 300
"""Seconds of history: what the live view shows."""
_LATENCIES_KEPT: Final = 2048
_NONE_YET: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Gauged:
    """Counters since the start, and current levels; a slice has the difference of two.

    `cpu_s` and `held_s`: seconds that the loop's thread computed, or that the loop was held by one call. `starved_s`:
    seconds that this thread waited for a core; `core_waits` samples of such a wait, `core_wait_s` together. Reads are
    the uses of the main pool (by turns and by REST), batches those of the batcher's, which ended `batch_statements`.
    `pending` records, the oldest for `oldest_s`, wait for Postgres.
    """

    cpu_s: float = 0.0
    held_s: float = 0.0
    lag_s: float = 0.0
    lag_samples: int = 0
    starved_s: float = 0.0
    core_waits: int = 0
    core_wait_s: float = 0.0
    reads: int = 0
    read_wait_s: float = 0.0
    read_sql_s: float = 0.0
    batch_wait_s: float = 0.0
    batch_sql_s: float = 0.0
    batch_statements: int = 0
    pending: int = 0
    oldest_s: float = 0.0


@dataclass(slots=True)
class Slice:
    """A period of time. By account: the turns' milliseconds, the number of their rows, and the least of one row.

    `turns` are those that ended or were refused in it. `ended_at` is on the monotonic clock.
    """

    seconds: float = 0.0
    ended_at: float = 0.0
    turns: int = 0
    refused: int = 0
    ms: defaultdict[Account, float] = field(default_factory=lambda: defaultdict(float))
    rows: defaultdict[Account, int] = field(default_factory=lambda: defaultdict(int))
    least_ms: dict[Account, float] = field(default_factory=dict)
    turn_ms: "array[float]" = field(default_factory=lambda: array("d"))
    first_token_ms: "array[float]" = field(default_factory=lambda: array("d"))
    begun: Gauged = Gauged()
    ended: Gauged = Gauged()

    def enter(self, account: Account, ms: float) -> None:
        """Add one row of a ledger."""
        self.ms[account] += ms
        self.rows[account] += 1
        if ms < self.least_ms.get(account, _NONE_YET):
            self.least_ms[account] = ms

    @property
    def lag_ms(self) -> float:
        """Mean lateness of the loop."""
        samples = self.ended.lag_samples - self.begun.lag_samples
        return (self.ended.lag_s - self.begun.lag_s) * 1e3 / samples if samples > 0 else 0.0

    @property
    def core_wait_ms(self) -> float:
        """What something that came waited for a core on average."""
        samples = self.ended.core_waits - self.begun.core_waits
        return (self.ended.core_wait_s - self.begun.core_wait_s) * 1e3 / samples if samples > 0 else 0.0

    @property
    def own_lag_ms(self) -> float:
        """Mean lateness of the loop that no wait for a core explains."""
        return max(self.lag_ms - self.core_wait_ms, 0.0)

    @property
    def occupied(self) -> float:
        """Share of the time in which the loop computed or was held, 0 to 1. A loop without a core is not held."""
        own = self.own_lag_ms / self.lag_ms if self.lag_ms > 0 else 1.0
        return self._share(max(self.ended.cpu_s - self.begun.cpu_s, (self.ended.held_s - self.begun.held_s) * own))

    @property
    def starved(self) -> float:
        """Share of the time in which the loop wanted a core and had none, 0 to 1."""
        return self._share(self.ended.starved_s - self.begun.starved_s)

    @property
    def wanted(self) -> float:
        """Share of the time in which the loop had something to do, 0 to 1: near 1 more load only waits longer."""
        return min(self.occupied + self.starved, 1.0)

    def _share(self, seconds: float) -> float:
        return min(max(seconds / self.seconds, 0.0), 1.0) if self.seconds > 0 else 0.0


class Windows:
    """Collects every ended turn and every delivery, on the event loop; gives sums over any period to any thread."""

    def __init__(self) -> None:
        self.undelivered: Callable[[], Iterable[float]] = tuple
        """Seconds for which the ends of turns have waited for their readers; set by the owner of the sockets."""
        self._now = Slice()
        self._kept: deque[tuple[int, Slice]] = deque(maxlen=KEPT_S)
        self._closed = 0
        self._running: dict[Ledger, None] = {}
        self._began = time.monotonic()
        self._gauged: Gauged | None = None

    def restart(self) -> None:
        """Drop all that ended before now."""
        self._now = Slice()
        self._kept.clear()
        self._began = time.monotonic()
        self._gauged = None

    def begin(self, ledger: Ledger) -> None:
        """Count a new turn; `leave` must follow, however it ends."""
        self._running[ledger] = None

    def leave(self, ledger: Ledger) -> None:
        """The turn is over."""
        self._running.pop(ledger, None)

    def ended(
        self,
        rows: Sequence[LedgerRow],
        *,
        total_ms: float,
        unattributed_ms: float,
        first_token_ms: float | None,
    ) -> None:
        """Enter a turn that ran."""
        now = self._now
        now.turns += 1
        for phase, ms in own_ms(rows):
            now.enter(account_of(phase), ms)
        now.enter("own", unattributed_ms)
        if len(now.turn_ms) < _LATENCIES_KEPT:
            now.turn_ms.append(total_ms)
            if first_token_ms is not None:
                now.first_token_ms.append(first_token_ms)

    def refused(self, account: Account, ms: float) -> None:
        """Enter an ask that the service had no room for, with the time it waited, or was asked to wait."""
        self._now.turns += 1
        self._now.refused += 1
        self._now.enter(account, ms)

    def delivered(self, seconds: float) -> None:
        """Enter that a socket took the end of a turn after `seconds`, or gave up on it."""
        self._now.enter("slow_clients", seconds * 1e3)

    def close_slice(self, gauged: Gauged) -> Slice:
        """End the slice, about once a second."""
        now = time.monotonic()
        slice_, self._now = self._now, Slice()
        slice_.seconds, slice_.ended_at = now - self._began, now
        slice_.begun, slice_.ended = self._gauged or gauged, gauged
        self._began, self._gauged = now, gauged
        self._closed += 1
        self._kept.append((self._closed, slice_))
        return slice_

    def last(self, seconds: float) -> Slice:
        """The last `seconds`, as far as slices are kept, including turns that have run for longer than that."""
        horizon = time.monotonic() - seconds
        return self._with_long_ones([s for _, s in tuple(self._kept) if s.ended_at > horizon])

    def since(self, mark: int) -> tuple[Slice, int]:
        """The sum after slice number `mark` (0: from the start), and the mark to continue from."""
        new = [(number, s) for number, s in tuple(self._kept) if number > mark]
        return self._with_long_ones([s for _, s in new]), new[-1][0] if new else mark

    def kept(self) -> list[Slice]:
        """All kept slices, oldest first."""
        return [s for _, s in tuple(self._kept)]

    @property
    def running(self) -> int:
        """How many turns run or wait now."""
        return len(self._running)

    def _with_long_ones(self, slices: Sequence[Slice]) -> Slice:
        """Add turns that outlast the window, or whose readers do, and so are in none of its slices: they count by their
        current phase, with the part of their wait that is in the window."""
        whole = merged(slices)
        if whole.seconds <= 0:
            return whole
        for seconds in self.undelivered():
            whole.enter("slow_clients", min(seconds, whole.seconds) * 1e3)
        now = time.perf_counter()
        for ledger in tuple(self._running):
            phase = ledger.current
            if now - ledger.started > whole.seconds and phase is not None:
                whole.turns += 1
                whole.enter(account_of(phase), whole.seconds * 1e3)
        return whole


def merged(slices: Iterable[Slice]) -> Slice:
    """Several consecutive slices as one."""
    whole = Slice()
    for part in slices:
        if not whole.seconds:
            whole.begun = part.begun
        whole.seconds += part.seconds
        whole.ended_at, whole.ended = part.ended_at, part.ended
        whole.turns += part.turns
        whole.refused += part.refused
        for account, ms in part.ms.items():
            whole.ms[account] += ms
            whole.rows[account] += part.rows[account]
            whole.least_ms[account] = min(part.least_ms[account], whole.least_ms.get(account, _NONE_YET))
        whole.turn_ms.extend(part.turn_ms)
        whole.first_token_ms.extend(part.first_token_ms)
    return whole


QUANTILES: Final = (0.5, 0.95, 0.99)
QUANTILE_WINDOW_S: Final = 60.0
_TURN = ("app_turn_quantile_seconds", "Ask to final, by nearest rank over all turns that ended in the last minute.")
_FIRST_TOKEN = (
    "app_time_to_first_token_quantile_seconds",
    "Ask to the first text of the answer, by nearest rank over all turns that ended in the last minute.",
)


class TurnQuantiles(Collector):
    """Computed at each scrape from the slices of the verdict. Without a turn in the last minute there is no sample.

    Percentiles cannot be aggregated: each process has its own.
    """

    def __init__(self, windows: Windows, registry: CollectorRegistry) -> None:
        self._windows = windows
        registry.register(self)

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The empty families, so that registering does not collect."""
        return [GaugeMetricFamily(name, text, labels=["q"]) for name, text in (_TURN, _FIRST_TOKEN)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """A gauge for each of the two."""
        horizon = time.monotonic() - QUANTILE_WINDOW_S
        recent = [slice_ for slice_ in self._windows.kept() if slice_.ended_at > horizon]
        return [
            _family(*_TURN, sorted(chain.from_iterable(slice_.turn_ms for slice_ in recent))),
            _family(*_FIRST_TOKEN, sorted(chain.from_iterable(slice_.first_token_ms for slice_ in recent))),
        ]


def _family(name: str, text: str, ordered_ms: Sequence[float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["q"])
    if ordered_ms:
        for q in QUANTILES:
            family.add_metric([str(q)], nearest_rank(list(ordered_ms), q) / 1e3)
    return family
