"""Periods of time, and what turns spent in each."""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from agentic_backend.verdict.causes import Account

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
