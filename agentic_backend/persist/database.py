"""The database of sessions and their history: its two pools, the revisions of its schema, and single statements."""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import TextClause
from sqlalchemy.exc import DBAPIError

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.spool.statements import register_json
from backend_kit.aio.retry import QuietLog
from backend_kit.db.database import Database
from backend_kit.db.faults import Cause, DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.libpq import MIGRATION_TIMEOUT_MS, STATEMENT_TIMEOUT_MS, connect_args
from backend_kit.db.pool import AnyRow, Pool, PoolMetrics, PoolRules
from backend_kit.db.schema import Migrations, migrate_schema
from backend_kit.settings import Postgres

logger = logging.getLogger(__name__)

LOCK_KEY: Final = 0x7475_726E_7769_7365
"""The advisory lock of migrations: "turnwise" in ASCII."""
WHILE_WE_ARE_SILENT: Final = {"idle_in_transaction_session_timeout": STATEMENT_TIMEOUT_MS}
"""An option of connections with transactions: after this many milliseconds the server ends a transaction of an
unreachable process, so that nobody waits for its locks. Keepalives do not suffice: a proxy on the way answers them."""
BATCH_CONNECTIONS: Final = 2
"""Connections of the batcher's pool."""
MIGRATIONS: Final = Migrations(
    scripts=Path(__file__).with_name("migrations"),
    lock_key=LOCK_KEY,
    name="the database",
    remedy="restore a backup from before the upgrade",
)
_MOMENT_S = 0.1


def history_database(settings: Postgres, metrics: PoolMetrics) -> Database:
    """The database with a pool `main` of reads and small writes, and one for the batcher."""
    return Database(
        settings, lambda: migrate(settings), main=request_pool(settings, metrics), writes=batch_pool(settings, metrics)
    )


def request_pool(settings: Postgres, metrics: PoolMetrics) -> Pool:
    """The pool of reads and small writes, sized by the YAML."""
    return Pool("main", settings, PoolRules.for_requests(settings), metrics, **_connecting(settings, "main"))


def batch_pool(settings: Postgres, metrics: PoolMetrics) -> Pool:
    """The batcher's pool: it and the readers cannot take each other's connections."""
    rules = PoolRules(BATCH_CONNECTIONS, 0, settings.pool_timeout, settings.pool_recycle, pre_ping=False)
    return Pool("batch", settings, rules, metrics, **_connecting(settings, "batch"))


def migrate(settings: Postgres) -> str:
    """Bring the schema to the newest revision this code knows; returns it. Blocks. Raises as `migrate_schema` does."""
    args = connect_args("turnwise-agentic-migrate", settings.connect_timeout, MIGRATION_TIMEOUT_MS)
    return migrate_schema(settings, MIGRATIONS, args)


def _connecting(settings: Postgres, name: str) -> dict[str, Any]:
    args = connect_args(f"turnwise-agentic-{name}", settings.connect_timeout, options=WHILE_WE_ARE_SILENT)
    return {"connect_args": args, "on_connect": register_json}


class Queries:
    """Reads and small writes: each one constant statement on one connection of the main pool, with named failures.

    Each may run twice, so each must be idempotent.
    """

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
