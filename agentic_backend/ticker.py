"""Once a second, publishes the counts of pools, caches and the loop, closes the slice of the verdict, and judges."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.verdict import CAUSES, Gauged, Windows, capacity_ratio, judge
from backend_kit.db.pool import Pool, PoolReport, PoolStats
from backend_kit.kpi import LoopMonitor

TICK_S: Final = 1.0
_JUDGED_EVERY: Final = 10


class CountsLookups(Protocol):
    """A cache that counts its look-ups."""

    hits: int
    misses: int


class HasSlots(Protocol):
    """Who lets turns run: `Admission`."""

    @property
    def fill(self) -> float:
        """Turns that run by how many may, 0 to 1."""


@dataclass(frozen=True, slots=True)
class TickerSources:
    """The sources of counts, which are only read here: `main` is the pool of reads, `batch` the batcher's, `tokens` has
    what verified, `keys` the issuer's."""

    loop: LoopMonitor
    main: Pool
    batch: Pool
    slots: HasSlots
    tokens: CountsLookups | None = None
    keys: CountsLookups | None = None


class Ticker:
    """Runs as one task. `verdict_lines` gives the summary thread the verdict since the last summary."""

    def __init__(self, sources: TickerSources, windows: Windows, metrics: AgenticMetrics) -> None:
        self._sources = sources
        self._windows = windows
        self._metrics = metrics
        self.pools = PoolReport((sources.main, sources.batch), metrics)
        self._mark = 0
        self._judged = 0
        self._counted: dict[tuple[str, str], int] = {}

    async def tick_each_second(self, publish: Callable[[], None]) -> None:
        """Tick until cancelled; each tick also calls `publish`."""
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            publish()
            self.tick()
            ticks += 1
            if ticks % _JUDGED_EVERY == 0:
                self.judge()

    def tick(self) -> None:
        """Do the work of one second. On the loop's thread."""
        main, batch = self._sources.main.stats(), self._sources.batch.stats()
        self.pools.publish()
        compiled = main.compiled + batch.compiled
        self._count("statement", "hit", main.statements + batch.statements - compiled)
        self._count("statement", "miss", compiled)
        for cache, lookups in (("jwt", self._sources.tokens), ("jwks", self._sources.keys)):
            if lookups is not None:
                self._count(cache, "hit", lookups.hits)
                self._count(cache, "miss", lookups.misses)
        self._windows.day.close(self._windows.close_slice(self._gauged(main, batch)), self._levels(main, batch))

    def judge(self) -> None:
        """Publish the verdict over the slices since the last one, and how much of this process is in use."""
        seen, self._judged = self._windows.since(self._judged)
        verdict = judge(seen)
        self._metrics.turns_capacity.set(capacity_ratio(seen, self._sources.slots.fill))
        for cause in CAUSES:
            if verdict.causes_ms[cause] > 0:
                self._metrics.turn_wait(cause).inc(verdict.causes_ms[cause] * verdict.turns / 1e3)
            self._metrics.bound_by(cause).set(verdict.bound_by == cause)

    def verdict_lines(self) -> list[str]:
        """The last line of a summary."""
        seen, self._mark = self._windows.since(self._mark)
        return [judge(seen).line()]

    def _count(self, cache: str, result: str, total: int) -> None:
        key = (cache, result)
        new = total - self._counted.get(key, 0)
        if new > 0:
            self._metrics.cache_request(cache, hit=result == "hit", count=new)
            self._counted[key] = total

    def _levels(self, main: PoolStats, batch: PoolStats) -> list[float]:
        """In the order of `LEVELS`."""
        metrics = self._metrics
        before, behind = (
            (metrics.turns_in_progress, metrics.turns_queued, metrics.turns_capacity),
            (
                metrics.persist_queue_depth,
                metrics.persist_oldest_ms,
                metrics.spool_records,
                metrics.spool_bytes,
                metrics.persist_fill,
                metrics.outbox_bytes,
                metrics.ws_connections,
                metrics.sse_streams,
            ),
        )
        return [
            *(gauge.value or 0.0 for gauge in before),
            *(count for pool in (main, batch) for count in (pool.in_use, pool.waiting)),
            *(gauge.value or 0.0 for gauge in behind),
        ]

    def _gauged(self, main: PoolStats, batch: PoolStats) -> Gauged:
        lag = self._sources.loop.totals()
        return Gauged(
            cpu_s=time.thread_time(),
            held_s=lag.held_s,
            lag_s=lag.lag_s,
            lag_samples=lag.samples,
            starved_s=lag.starved_s,
            core_waits=lag.core_waits,
            core_wait_s=lag.core_wait_s,
            reads=main.waits,
            read_wait_s=main.waited_s,
            read_sql_s=main.statement_s,
            batch_wait_s=batch.waited_s,
            batch_sql_s=batch.statement_s,
            batch_statements=batch.statements,
            pending=int(self._metrics.persist_queue_depth.value or 0),
            oldest_s=(self._metrics.persist_oldest_ms.value or 0.0) / 1e3,
        )
