"""Connections to Postgres: SQLAlchemy engines whose pool waits, statements and commits are timed one by one."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import URL, Executable, event
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from backend_kit.kpi import current_ledger
from backend_kit.settings import Postgres
from knowledge_flow_backend.metrics import KnowledgeFlowMetrics

STATEMENT_TIMEOUT_MS = 5000
WRITE_TIMEOUT_MS = 120_000
HNSW_SEARCH = 100
"""Size of the candidate list of a search in the vectors' graph; pgvector's 40 is below our 50 candidates."""

PoolName = Literal["main", "ingest"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool now (`in_use`, `idle`, `overflow`, `waiting`) and since its start (`opened`, `compiled`)."""

    size: int
    in_use: int
    idle: int
    overflow: int
    waiting: int
    opened: int
    compiled: int


class TimedConnection:
    """One connection out of a pool. Each statement and each commit is a timing of its own."""

    def __init__(self, connection: AsyncConnection, pool: PoolName, metrics: KnowledgeFlowMetrics) -> None:
        self._connection = connection
        self._pool = pool
        self._metrics = metrics

    async def execute(
        self, op: str, statement: Executable, parameters: Mapping[str, object] | None = None
    ) -> Sequence[Sequence[Any]]:
        """Run a constant statement and return its rows. `op` names it in the metrics, from a small fixed set.

        Raises sqlalchemy's DBAPIError.
        """
        begun = time.perf_counter()
        try:
            result = await self._connection.execute(statement, parameters)
        finally:
            self._metrics.db_statement(self._pool, op).observe(time.perf_counter() - begun)
        return result.all() if result.returns_rows else ()

    async def copy(self, op: str, statement: str, *rows: bytes) -> None:
        """Run a constant `COPY … FROM STDIN` with these bytes in its format, in the transaction of this connection.

        Large ones leave in small pieces, between which the loop is free; a parameter of that size is copied whole.

        Raises psycopg's own errors (`faults.DatabaseFault` holds them): this goes past SQLAlchemy.
        """
        raw = await self._connection.get_raw_connection()
        driver: Any = raw.driver_connection
        begun = time.perf_counter()
        try:
            async with driver.cursor() as cursor, cursor.copy(statement) as copy:
                for part in rows:
                    await copy.write(part)
        finally:
            self._metrics.db_statement(self._pool, op).observe(time.perf_counter() - begun)

    async def commit(self) -> None:
        """End the transaction; what was executed is durable when this returns (synchronous_commit is on)."""
        begun = time.perf_counter()
        try:
            await self._connection.commit()
        finally:
            self._metrics.db_statement(self._pool, "commit").observe(time.perf_counter() - begun)


class Pool:
    """One engine with its pool.

    `main` answers requests: each statement is a transaction of its own, without BEGIN and ROLLBACK round trips.
    `ingest` writes documents in transactions, on connections that searches can never take, nor it theirs: one for each
    of the `writers`, the documents that are written at once, and one on which a further upload is received meanwhile.
    """

    def __init__(
        self, name: PoolName, settings: Postgres, index: str, metrics: KnowledgeFlowMetrics, *, writers: int
    ) -> None:
        self.name = name
        self._metrics = metrics
        self._waiting = 0
        self._opened = 0
        self._compiled = 0
        self._engine = _engine(name, settings, index, writers)
        event.listen(self._engine.sync_engine, "connect", self._on_connect)
        event.listen(self._engine.sync_engine, "before_cursor_execute", self._on_execute)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[TimedConnection]:
        """A connection for the block; what was not committed is rolled back after it.

        The wait is timed whether it succeeds or not; it includes the opening of a connection where one was opened.
        Raises sqlalchemy's TimeoutError where none came free in time, DBAPIError where none could be opened.
        """
        connection = self._engine.connect()
        async with AsyncExitStack() as stack:
            begun = time.perf_counter()
            self._waiting += 1
            try:
                await connection.start()
            finally:
                self._waiting -= 1
                now = time.perf_counter()
                self._metrics.db_pool_wait(self.name).observe(now - begun)
                if (ledger := current_ledger()) is not None:
                    ledger.add("db_pool_wait", begun, now)
            # SQLAlchemy's own exit gives the connection back even when the task is cancelled in it.
            stack.push_async_exit(connection)
            yield TimedConnection(connection, self.name, self._metrics)

    def stats(self) -> PoolStats:
        """What the pool does now. Cheap; may be called from any thread."""
        pool = self._engine.pool
        assert isinstance(pool, QueuePool)
        return PoolStats(
            size=pool.size(),
            in_use=pool.checkedout(),
            idle=pool.checkedin(),
            overflow=max(0, pool.overflow()),
            waiting=self._waiting,
            opened=self._opened,
            compiled=self._compiled,
        )

    async def aclose(self) -> None:
        """Close every idle connection; those in use close when they are given back."""
        await self._engine.dispose()

    def _on_connect(self, _connection: object, _record: object) -> None:
        self._opened += 1

    def _on_execute(
        self, _connection: object, _cursor: object, _statement: str, _parameters: object, context: Any, _many: bool
    ) -> None:
        # A statement that is compiled on each execution costs 0.3-0.5 ms of loop: it must show (COSTS §4).
        if context is not None and context.cache_hit is not CacheStats.CACHE_HIT:
            self._compiled += 1


def database_url(settings: Postgres) -> URL:
    """Where the database is, for SQLAlchemy on psycopg 3. Its `str()` masks the password."""
    return URL.create(
        "postgresql+psycopg",
        username=settings.username,
        password=settings.password.get_secret_value() if settings.password else None,
        host=settings.host,
        port=settings.port,
        database=settings.database,
    )


def connect_args(
    application_name: str, index: str, *, connect_timeout_s: int, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS
) -> dict[str, object]:
    """What libpq is told: the schema of the index, deadlines, keepalives, and how vectors are searched."""
    switches = {
        "search_path": f'"{index}",public',
        "statement_timeout": statement_timeout_ms,
        "synchronous_commit": "on",
        "timezone": "UTC",
        # Compiling a plan takes longer than any of our statements.
        "jit": "off",
        "hnsw.ef_search": HNSW_SEARCH,
        # A filter that drops candidates makes the graph be searched further, instead of leaving too few hits.
        "hnsw.iterative_scan": "relaxed_order",
    }
    return {
        "application_name": application_name,
        "connect_timeout": connect_timeout_s,
        "options": " ".join(f"-c {name}={value}" for name, value in switches.items()),
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": 6000,
    }


def _engine(name: PoolName, settings: Postgres, index: str, writers: int) -> AsyncEngine:
    if name == "main":
        size, overflow, timeout_ms = settings.pool_size, settings.max_overflow, STATEMENT_TIMEOUT_MS
        extra: dict[str, Any] = {
            "isolation_level": "AUTOCOMMIT",
            "pool_reset_on_return": None,
            "skip_autocommit_rollback": True,
        }
    else:
        size, overflow, timeout_ms = writers + 1, 0, WRITE_TIMEOUT_MS
        extra = {}
    return create_async_engine(
        database_url(settings),
        pool_size=size,
        max_overflow=overflow,
        # A write may wait for two others; a search whose wait is that long has no caller any more.
        pool_timeout=settings.pool_timeout if name == "main" else WRITE_TIMEOUT_MS / 1000,
        pool_recycle=settings.pool_recycle,
        pool_pre_ping=settings.pool_pre_ping,
        connect_args=connect_args(
            f"turnwise-knowledge-{name}",
            index,
            connect_timeout_s=settings.connect_timeout,
            statement_timeout_ms=timeout_ms,
        ),
        hide_parameters=True,  # an error text must not carry what a person wrote
        use_native_hstore=False,  # saves a look-up per engine
        **extra,
    )
