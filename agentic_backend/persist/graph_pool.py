"""The connections to LangGraph's tables in Postgres: one bounded pool for runs that wait and the state of graphs."""

import asyncio
import select
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.store.postgres.aio import AsyncPostgresStore
from psycopg import AsyncConnection, OperationalError, sql
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from agentic_backend.agent.interrupts import strict_serializer
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.database import LOCK_KEY, WHILE_WE_ARE_SILENT
from agentic_backend.spool.connection import hang_up_after
from backend_kit.db.libpq import connect_args, server_args
from backend_kit.settings import Postgres

TABLES: Final = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
"""LangGraph's tables of states. What stands before the first slash of a `thread_id` is the session's id."""
POOL: Final = "graphs"
"""The name of the pool in metrics and in `pg_stat_activity`."""
_PATIENT_S: Final = 15.0
OPERATION_S: Final = 60.0
"""Seconds for one operation, which may be several statements: its server, or the way to it, has gone then."""
_Connection = AsyncConnection[DictRow]

_COLUMNS = """
SELECT name FROM unnest(%s::text[]) AS wanted(name)
WHERE NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(name) AND attname = 'session_id')
"""
_LINK = """
ALTER TABLE {table}
    DROP CONSTRAINT IF EXISTS {old},
    ADD COLUMN session_id text GENERATED ALWAYS AS (split_part(thread_id, '/', 1)) STORED,
    ADD CONSTRAINT {name} FOREIGN KEY (session_id) REFERENCES session (session_id) ON DELETE CASCADE
"""
_INDEX = "CREATE INDEX IF NOT EXISTS {name} ON {table} (session_id)"


class GraphPool:
    """Connects at its first use. Each operation has a connection of its own, with a saver on it: an instance of
    LangGraph's saver does one thing at a time. Methods raise psycopg's `Error`."""

    def __init__(
        self, settings: Postgres, metrics: AgenticMetrics, size: int, *, operation_s: float = OPERATION_S
    ) -> None:
        """`size` is the maximum number of connections, `operation_s` the seconds for one operation, except those of the
        store."""
        self._operation_s = operation_s
        self._settings = settings
        self._wait = metrics.db_pool_wait(POOL)
        self._size = size
        self._slots = asyncio.Semaphore(size)
        self._opening = asyncio.Lock()
        self._pool: AsyncConnectionPool[_Connection] | None = None
        self._store: AsyncPostgresStore | None = None
        self._ready = False

    @asynccontextmanager
    async def connection(self, *, patient: bool = False) -> AsyncIterator[_Connection]:
        """A connection, once LangGraph's tables are there and linked to the sessions.

        It waits up to 15 s for those before it in the queue: load is not an outage. Then the connection is waited for
        as long as the configuration says (`pool_timeout`), or `patient`ly for up to 15 s.
        """
        begun = time.perf_counter()
        async with self._slot():
            pool = self._pool if self._ready else await self._prepared()
            assert pool is not None
            async with pool.connection(_PATIENT_S if patient else None) as connection:
                self._wait.observe(time.perf_counter() - begun)
                try:
                    with hang_up_after(connection, self._operation_s):
                        yield connection
                except ReadOnlySqlTransaction:
                    await connection.close()  # no primary any more: the pool is to look for another
                    raise

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[AsyncPostgresSaver]:
        """A saver on a connection of its own, for one operation after the other."""
        async with self.connection() as connection:
            yield AsyncPostgresSaver(connection, serde=strict_serializer())

    @asynccontextmanager
    async def store(self) -> AsyncIterator[AsyncPostgresStore]:
        """The store, which takes a connection for each batch."""
        begun = time.perf_counter()
        async with self._slot():
            self._wait.observe(time.perf_counter() - begun)
            if not self._ready:
                await self._prepared()
            assert self._store is not None
            yield self._store

    async def aclose(self) -> None:
        """Close the connections."""
        if self._store is not None:
            await self._store.__aexit__(None, None, None)
        if self._pool is not None:
            await self._pool.close(timeout=self._settings.pool_timeout)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """A permit for one of the connections. Without it, waiting for other turns would count as waiting for
        Postgres."""
        try:
            async with asyncio.timeout(_PATIENT_S):
                await self._slots.acquire()
        except TimeoutError:
            raise PoolTimeout("all connections are in use") from None
        try:
            yield
        finally:
            self._slots.release()

    async def _prepared(self) -> "AsyncConnectionPool[_Connection]":
        """The pool, after LangGraph's tables were created, and those of states linked to the sessions."""
        async with self._opening:
            if self._pool is None:
                self._pool = _pool(self._settings, self._size)
                await self._pool.open()
            if not self._ready:
                store = AsyncPostgresStore(self._pool)
                async with self._alone(self._pool) as connection:
                    await AsyncPostgresSaver(connection).setup()
                    await AsyncPostgresStore(connection).setup()
                    await self._link(connection)
                self._store = store
                self._ready = True
            return self._pool

    async def _link(self, connection: _Connection) -> None:
        """Have the rows of states deleted with their session."""
        for row in await (await connection.execute(_COLUMNS, (list(TABLES),))).fetchall():
            names = {
                "table": sql.Identifier(row["name"]),
                "old": sql.Identifier(row["name"] + "_of_session"),
                "name": sql.Identifier(row["name"] + "_of_its_session"),
            }
            await connection.execute(sql.SQL(_LINK).format(**names))
        for table in TABLES:
            index = {"table": sql.Identifier(table), "name": sql.Identifier(table + "_session_id")}
            await connection.execute(sql.SQL(_INDEX).format(**index))

    @asynccontextmanager
    async def _alone(self, pool: "AsyncConnectionPool[_Connection]") -> AsyncIterator[_Connection]:
        """A connection that holds the lock of migrations: another instance may be starting too."""
        async with pool.connection() as connection:
            await connection.execute("SELECT pg_advisory_lock(%s)", (LOCK_KEY,))
            try:
                yield connection
            finally:
                await connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK_KEY,))


async def _check(connection: _Connection) -> None:
    """Refuse a connection whose server has gone since its last use: then its end can be read from it. Asking the server
    would cost each operation a round trip."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    if poll.poll(0):
        await connection.close()  # else the pool would take it for a good one, and give it out again
        raise OperationalError("the server has gone")


def _pool(settings: Postgres, size: int) -> "AsyncConnectionPool[_Connection]":
    return AsyncConnectionPool(
        kwargs={
            **server_args(settings),
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": dict_row,
            **connect_args("turnwise-agentic-graphs", settings.connect_timeout, options=WHILE_WE_ARE_SILENT),
        },
        check=_check,
        min_size=0,
        max_size=size,
        open=False,
        timeout=settings.pool_timeout,
        reconnect_timeout=settings.pool_timeout,
        name=POOL,
    )
