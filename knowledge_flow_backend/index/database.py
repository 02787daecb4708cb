"""The database as the service knows it: two pools, the schema of the index, and whether it has answered yet."""

import asyncio
import logging
import time

from backend_kit.settings import Postgres
from knowledge_flow_backend.errors import IndexUnavailable
from knowledge_flow_backend.index.engines import Pool
from knowledge_flow_backend.index.faults import Backoff, DatabaseFault, sqlstate_of
from knowledge_flow_backend.index.schema import SchemaTooNew, migrate
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S = 1.0


class Database:
    """Both pools of one service and the schema behind them. Opens nothing before it is used.

    `index` names the Postgres schema that holds documents, libraries and chunks. `main` is for requests, `ingest`
    for the transactions of ingestion, which writes so many documents at once as `writers` says.
    """

    def __init__(self, settings: Postgres, index: str, metrics: KnowledgeFlowMetrics, *, writers: int = 2) -> None:
        self._settings = settings
        self.index = index
        self.main = Pool("main", settings, index, metrics, writers=writers)
        self.ingest = Pool("ingest", settings, index, metrics, writers=writers)
        self.refused: str | None = None
        """Why this schema will never do, in words; None while it may."""
        self._ready = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether the schema has been seen to fit. It stays true through later outages."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Wait for the first contact with a schema that fits."""
        await self._ready.wait()

    def require_ready(self) -> None:
        """Raise `IndexUnavailable` before the first contact: the tables may not be there yet."""
        if not self._ready.is_set():
            raise IndexUnavailable(self.refused or "the schema is not known yet")

    async def connect_until_ready(self) -> None:
        """Bring the schema to this code's revision, trying again for as long as Postgres is away.

        Returns once the schema fits, or can never fit (`refused`).
        """
        backoff, logged = Backoff(), float("-inf")
        while not self.ready:
            try:
                revision = await asyncio.to_thread(migrate, self._settings, self.index)
            except SchemaTooNew as error:
                self.refused = str(error)
                logger.critical("%s", error)
                return
            except DatabaseFault as error:
                # Once a second: many equal lines would bury the one that matters (TRUST G7).
                if time.perf_counter() - logged >= _LOG_INTERVAL_S:
                    logged = time.perf_counter()
                    where = f"{self._settings.host}:{self._settings.port}"
                    logger.warning("Postgres at %s is not ready: sqlstate=%s; trying on", where, sqlstate_of(error))
                await asyncio.sleep(backoff.next_s())
            else:
                self._ready.set()
                logger.info("schema of index %r is at revision %s", self.index, revision)

    async def aclose(self) -> None:
        """Close both pools."""
        await self.main.aclose()
        await self.ingest.aclose()
