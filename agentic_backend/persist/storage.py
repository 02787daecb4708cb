"""Persistence as one piece for the lifespan: built, started, drained and closed together."""

from collections.abc import Callable

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.batcher import Batcher, BatchRules, DrainReport
from agentic_backend.persist.cache import HistoryCache
from agentic_backend.persist.database import Database, DatabaseState
from agentic_backend.persist.pending import Pending
from agentic_backend.persist.store import PostgresSessionStore
from agentic_backend.persist.turnlog import QueueTurnLog
from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres


class Storage:
    """Owns the pools, the queue and the batcher; gives out the two ports of the session layer.

    `store` reads (SessionStore), `turn_log` takes finished turns (TurnLog). `cache_bytes` bounds the conversations
    that are kept in memory, `remember_exchanges` how much of each.
    """

    def __init__(
        self,
        settings: Postgres,
        rules: BatchRules,
        *,
        cache_bytes: int,
        remember_exchanges: int,
        kpi: Kpi,
        metrics: AgenticMetrics,
    ) -> None:
        self.database = Database(settings, metrics)
        self.pending = Pending()
        self.cache = HistoryCache(cache_bytes, remember_exchanges)
        self.batcher = Batcher(self.database, self.pending, rules, kpi=kpi, metrics=metrics)
        self.store = PostgresSessionStore(
            self.database, self.pending, self.batcher, self.cache, kpi=kpi, metrics=metrics
        )
        self.turn_log = QueueTurnLog(self.batcher, self.cache)

    def start(self, tasks: TaskRegistry, on_state: Callable[[DatabaseState], None]) -> None:
        """Begin to look for Postgres, and to write once it is there. Returns at once; `on_state` says how it goes."""
        tasks.spawn("persist-connect", lambda: self.database.connect_until_ready(on_state), restart=True)
        self.batcher.start(tasks)

    async def aclose(self, deadline_s: float) -> DrainReport:
        """Write what is pending within `deadline_s`, then close the pools. After the last turn, before the tasks."""
        report = await self.batcher.aclose(deadline_s)
        await self.database.aclose()
        return report
