"""The database as the service knows it: two pools, the schema, and whether it has answered yet."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.engines import Pool, PoolRules, PoolStats
from agentic_backend.persist.faults import Backoff, Cause, DatabaseFault, QuietLog, cause_of, sqlstate_of
from agentic_backend.persist.schema import SchemaTooNew, migrate
from backend_kit.settings import Postgres

__all__ = ["Database", "DatabaseState", "PoolStats", "SchemaTooNew"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """Where the service stands with its schema: not yet, there, or never (`refused`, with the reason in words)."""

    status: Literal["connecting", "ready", "refused"]
    reason: str = ""


class Database:
    """Both pools of one service and the schema behind them. Opens nothing before it is used.

    `trouble` is what the last use of the database failed of, None where it succeeded; its users set it.
    """

    def __init__(self, settings: Postgres, metrics: AgenticMetrics) -> None:
        self._settings = settings
        self.main = Pool("main", settings, PoolRules.for_reads(settings), metrics, autocommit=True)
        self.batch = Pool("batch", settings, PoolRules.for_batches(settings), metrics, autocommit=False)
        self.trouble: Cause | None = None
        self._ready = asyncio.Event()
        self._log = QuietLog(logger)

    @property
    def ready(self) -> bool:
        """Whether the schema has been seen to fit. It stays true through later outages."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Wait for the first contact with a schema that fits."""
        await self._ready.wait()

    async def connect_until_ready(self, on_state: Callable[[DatabaseState], None]) -> None:
        """Bring the schema to this code's revision, trying again for as long as Postgres is away.

        `on_state` is told of each change: `connecting` with the cause, then `ready`, or `refused` and its reason.
        Returns after `ready` or `refused`.
        """
        backoff = Backoff()
        while not self.ready:
            try:
                revision = await asyncio.to_thread(migrate, self._settings)
            except SchemaTooNew as error:
                logger.critical("%s", error)
                on_state(DatabaseState("refused", str(error)))
                return
            except DatabaseFault as error:
                cause = cause_of(error)
                on_state(DatabaseState("connecting", cause))
                self._log.warning(
                    cause,
                    "Postgres at %s:%d is not ready: cause=%s sqlstate=%s; trying on",
                    self._settings.host,
                    self._settings.port,
                    cause,
                    sqlstate_of(error),
                )
                await asyncio.sleep(backoff.next_s())
            else:
                self._ready.set()
                logger.info("schema is at revision %s", revision)
        on_state(DatabaseState("ready"))

    async def aclose(self) -> None:
        """Close both pools. After the batcher: it writes to the last."""
        await self.main.aclose()
        await self.batch.aclose()
