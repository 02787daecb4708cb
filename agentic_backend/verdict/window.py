"""The time of finished turns by cause, second by second, kept for some minutes."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agentic_backend.verdict.causes import Account, account_of, own_ms
from agentic_backend.verdict.day import Day, NewestLedgers
from agentic_backend.verdict.slices import Gauged, Slice, merged
from backend_kit.kpi import Ledger, LedgerRow
from backend_kit.kpi.rollup import nearest_rank

KEPT_S: Final = 300
"""Seconds of history: what the live view shows."""
_LATENCIES_KEPT: Final = 2048


class Windows:
    """Collects every ended turn and every delivery, on the event loop; gives sums over any period to any thread."""

    def __init__(self) -> None:
        self.undelivered: Callable[[], Iterable[float]] = tuple
        """Seconds for which the ends of turns have waited for their readers; set by the owner of the sockets."""
        self.day: Day = Day()
        """The same in longer steps, fed whenever a slice is closed; a new one after `restart`."""
        self.ledgers: Final = NewestLedgers()
        self._now = Slice()
        self._kept: deque[tuple[int, Slice]] = deque(maxlen=KEPT_S)
        self._closed = 0
        self._running: dict[Ledger, None] = {}
        self._began = time.monotonic()
        self._gauged: Gauged | None = None

    def restart(self) -> None:
        """Drop all that ended before now."""
        self.day = Day()
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
