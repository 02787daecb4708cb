"""Persistence as one piece for the lifespan: built, started, flushed and closed together."""

from collections.abc import Callable
from typing import Any

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.batcher import Batcher, BatchRules
from agentic_backend.persist.cache import HistoryCache
from agentic_backend.persist.database import Database, DatabaseState
from agentic_backend.persist.pending import Pending
from agentic_backend.persist.store import PostgresSessionStore
from agentic_backend.persist.turnlog import QueueTurnLog
from agentic_backend.settings import AgenticSettings
from backend_kit.aio import TaskRegistry
from backend_kit.kpi import Kpi

_CLOSE_S = 5.0
_MIB = 1024 * 1024


class Persistence:
    """Owns the pools, the queue and the batcher; gives out the two ports of the session layer.

    `store` reads (SessionStore), `log` takes finished turns (TurnLog). `on_state` is told how the search for the
    database goes; after `refused` the service can never become ready and should end.
    """

    def __init__(
        self,
        settings: AgenticSettings,
        *,
        kpi: Kpi,
        metrics: AgenticMetrics,
        tasks: TaskRegistry,
        on_state: Callable[[DatabaseState], None] | None = None,
    ) -> None:
        self.state = DatabaseState("connecting")
        self.database = Database(settings.storage.postgres, metrics)
        self.pending = Pending()
        self.cache = HistoryCache(settings.history.cache_mb * _MIB, settings.ai.restore_max_exchanges)
        self.batcher = Batcher(self.database, self.pending, batch_rules(settings), kpi=kpi, metrics=metrics)
        self.store = PostgresSessionStore(self.database, self.pending, self.batcher, self.cache, metrics=metrics)
        self.log = QueueTurnLog(self.batcher, self.cache)
        self._tasks = tasks
        self._on_state = on_state

    @property
    def schema_known(self) -> bool:
        """Whether the database has answered once with a schema that fits; outages after that do not change it."""
        return self.database.ready

    def dependencies(self) -> dict[str, Any]:
        """Where Postgres stands, for the body of /ready: names and counts, no addresses."""
        status: str = self.state.status
        if status == "ready":
            status = "up" if self.database.trouble is None else "down"
        return {"postgres": {"status": status, "pending_records": len(self.pending)}}

    def start(self) -> None:
        """Begin to look for Postgres, and to write once it is there. Returns at once."""
        self._tasks.spawn("persist-connect", self._connect, restart=True)
        self.batcher.start(self._tasks)

    async def flush(self, deadline_s: float) -> int:
        """Wait until everything is written, at most `deadline_s`. Returns how many records are left."""
        return (await self.batcher.flush(deadline_s)).left

    async def aclose(self) -> None:
        """Write what is still pending (at most 5 s), then close the pools. After the last turn."""
        await self.batcher.aclose(_CLOSE_S)
        await self.database.aclose()

    async def _connect(self) -> None:
        await self.database.connect_until_ready(self._note)

    def _note(self, state: DatabaseState) -> None:
        self.state = state
        if self._on_state is not None:
            self._on_state(state)


def batch_rules(settings: AgenticSettings) -> BatchRules:
    """The bounds of the queue. Its reserve holds the turns that may run when it is found full."""
    chosen = settings.persistence
    reserve = settings.limits.max_turns or chosen.queue_max_records
    return BatchRules(
        queue_max_records=chosen.queue_max_records,
        reserve_records=min(reserve, chosen.queue_max_records // 2),
        max_records=chosen.batch_max_records,
        linger_s=chosen.batch_linger_ms / 1e3,
    )
