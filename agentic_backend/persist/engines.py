"""Connections to Postgres: SQLAlchemy engines whose pool waits, statements and commits are timed one by one."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from psycopg.adapt import Dumper
from psycopg.postgres import types as postgres_types
from sqlalchemy import URL, Row, TextClause, event
from sqlalchemy.engine.interfaces import CacheStats
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.libpq import connect_args
from backend_kit.kpi import current_ledger
from backend_kit.settings import Postgres

PoolName = Literal["main", "batch"]


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Size and behaviour of one pool: connections, seconds to wait for one, seconds until one is replaced."""

    size: int
    max_overflow: int
    timeout_s: float
    recycle_s: int
    pre_ping: bool

    @classmethod
    def for_reads(cls, settings: Postgres) -> "PoolRules":
        """The pool of reads and small writes, as the YAML says."""
        return cls(
            settings.pool_size,
            settings.max_overflow,
            settings.pool_timeout,
            settings.pool_recycle,
            settings.pool_pre_ping,
        )

    @classmethod
    def for_batches(cls, settings: Postgres) -> "PoolRules":
        """The batcher's pool: readers can never take its connections, nor it theirs."""
        return cls(2, 0, settings.pool_timeout, settings.pool_recycle, pre_ping=False)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool now (`in_use`, `idle`, `overflow`, `waiting`) and since its start: connections `opened`, how often one was
    asked for and for how long (`waits`, `waited_s`), statements and their time, and those `compiled` for them."""

    size: int
    in_use: int
    idle: int
    overflow: int
    waiting: int
    opened: int
    compiled: int
    waits: int
    waited_s: float
    statements: int
    statement_s: float


@dataclass(slots=True)
class _Totals:
    """What a pool has done since its start."""

    waits: int = 0
    waited_s: float = 0.0
    statements: int = 0
    statement_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JsonBytes:
    """A JSON parameter that is encoded already; it goes to the server as it is."""

    data: bytes


class _JsonBytesDumper(Dumper):
    oid = postgres_types["jsonb"].oid

    def dump(self, obj: JsonBytes) -> bytes:
        return obj.data


class TimedConnection:
    """One connection out of a pool. Each statement and each commit is a timing of its own."""

    def __init__(self, connection: AsyncConnection, pool: PoolName, metrics: AgenticMetrics, totals: _Totals) -> None:
        self._connection = connection
        self._pool = pool
        self._metrics = metrics
        self._totals = totals

    async def execute(
        self, op: str, statement: TextClause, parameters: Mapping[str, object] | None = None
    ) -> Sequence[Row[Any]]:
        """Run a constant statement and return its rows. `op` names it in the metrics, from a small fixed set.

        Raises sqlalchemy's DBAPIError.
        """
        begun = time.perf_counter()
        try:
            result = await self._connection.execute(statement, parameters)
        finally:
            self._took(op, begun)
        return result.all() if result.returns_rows else ()

    async def commit(self) -> None:
        """End the transaction; what was executed is durable when this returns (synchronous_commit is on)."""
        begun = time.perf_counter()
        try:
            await self._connection.commit()
        finally:
            self._took("commit", begun)

    def _took(self, op: str, begun: float) -> None:
        now = time.perf_counter()
        self._totals.statements += 1
        self._totals.statement_s += now - begun
        self._metrics.db_statement(self._pool, op).observe(now - begun)
        ledger = current_ledger()
        if ledger is not None:
            ledger.add("db_statement", begun, now)


class Pool:
    """One engine with its pool. With `autocommit` each statement is a transaction: no BEGIN, no ROLLBACK round trip."""

    def __init__(
        self, name: PoolName, settings: Postgres, rules: PoolRules, metrics: AgenticMetrics, *, autocommit: bool
    ) -> None:
        self.name = name
        self._metrics = metrics
        self._totals = _Totals()
        self._waiting = 0
        self._opened = 0
        self._compiled = 0
        self._engine = _engine(f"turnwise-agentic-{name}", settings, rules, autocommit=autocommit)
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
                self._waited(begun)
            # SQLAlchemy's own exit gives the connection back even when the task is cancelled in it.
            stack.push_async_exit(connection)
            yield TimedConnection(connection, self.name, self._metrics, self._totals)

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
            waits=self._totals.waits,
            waited_s=self._totals.waited_s,
            statements=self._totals.statements,
            statement_s=self._totals.statement_s,
        )

    async def aclose(self) -> None:
        """Close every idle connection; those in use close when they are given back."""
        await self._engine.dispose()

    def _waited(self, begun: float) -> None:
        now = time.perf_counter()
        self._totals.waits += 1
        self._totals.waited_s += now - begun
        self._metrics.db_pool_wait(self.name).observe(now - begun)
        ledger = current_ledger()
        if ledger is not None:
            ledger.add("db_pool_wait", begun, now)

    def _on_connect(self, connection: Any, _record: object) -> None:
        self._opened += 1
        connection.driver_connection.adapters.register_dumper(JsonBytes, _JsonBytesDumper)

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


def _engine(application_name: str, settings: Postgres, rules: PoolRules, *, autocommit: bool) -> AsyncEngine:
    extra: dict[str, Any] = {"isolation_level": "AUTOCOMMIT", "pool_reset_on_return": None} if autocommit else {}
    return create_async_engine(
        database_url(settings),
        pool_size=rules.size,
        max_overflow=rules.max_overflow,
        pool_timeout=rules.timeout_s,
        pool_recycle=rules.recycle_s,
        pool_pre_ping=rules.pre_ping,
        connect_args=connect_args(application_name, settings.connect_timeout),
        hide_parameters=True,  # an error text must not carry what a person wrote
        use_native_hstore=False,  # saves a look-up per engine
        **extra,
    )
