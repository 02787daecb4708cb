"""Reads and small writes: one statement on one connection of the main pool, with named failures."""

import logging
import time
from collections.abc import Mapping, Sequence

from sqlalchemy import TextClause
from sqlalchemy.exc import DBAPIError

from agentic_backend.errors import HistoryUnavailable
from backend_kit.aio.retry import QuietLog
from backend_kit.db.database import Database
from backend_kit.db.faults import Cause, DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.pool import AnyRow

logger = logging.getLogger(__name__)

_MOMENT_S = 0.1


class Queries:
    """Runs constant statements. Each may run twice, so each must be idempotent."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._log = QuietLog(logger)
        self._failed_at = float("-inf")

    @property
    def just_failed(self) -> bool:
        """Whether a statement failed a moment ago, so that a caller need not wait as long again for the next."""
        return time.monotonic() - self._failed_at < _MOMENT_S

    async def fetch(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[AnyRow]:
        """Run one statement, again if the connection had died while idle. `op` names it in metrics and logs.

        Raises `HistoryUnavailable`: immediately if Postgres refuses, after `pool_timeout` if no connection is free.
        """
        if not self._database.ready:
            raise HistoryUnavailable("the schema has not been seen yet")
        try:
            try:
                rows = await self._execute(op, statement, parameters)
            except DBAPIError as error:
                # SQLAlchemy has emptied the pool of its dead connections: the next one is new.
                if not error.connection_invalidated:
                    raise
                rows = await self._execute(op, statement, parameters)
        except DatabaseFault as error:
            cause = cause_of(error)
            if cause is not Cause.POISON:
                self._database.trouble = cause
                self._failed_at = time.monotonic()
            self._log.warning(cause, "%s failed: cause=%s sqlstate=%s", op, cause.value, sqlstate_of(error))
            raise HistoryUnavailable(f"{op}: {cause.value}") from None
        self._database.trouble = None
        return rows

    async def _execute(self, op: str, statement: TextClause, parameters: Mapping[str, object]) -> Sequence[AnyRow]:
        async with self._database.main.connection() as connection:
            return await connection.execute(op, statement, parameters)
