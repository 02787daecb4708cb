"""Connections to Postgres: SQLAlchemy engines with each wait for a connection, statement and commit timed."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import psycopg
import sqlalchemy.dialects.postgresql  # noqa: F401 - the first engine would load it on the loop
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Row, TextClause, event
from sqlalchemy.engine.interfaces import CacheStats, ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool

from backend_kit.kpi import GaugedSeconds, Labelled, ServiceMetrics, StatementCounts, current_ledger
from backend_kit.settings import Postgres

AnyRow = Row[*tuple[Any, ...]]
"""A row: by position, or by the names of its columns."""

ANSWER_S: Final = 15.0
"""Seconds that a statement or a commit waits for its answer. The server's own deadline of a statement ends with its
work, before its wait for a synchronous standby that is away, and never comes from a server that is out of reach: behind
a proxy or a balancer that holds our connection nothing else tells."""

_PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z_]+)")


class DriverStatement:
    """A constant statement for the driver itself, made once from a text with `:name` for each parameter.

    For statements on the way of every request: SQLAlchemy's part of executing one costs as much as the driver's. The
    text must have no `:name` that is no parameter, in a literal for instance.
    """

    __slots__ = ("_names", "named", "text")

    def __init__(self, named: str) -> None:
        self.named = named
        found = dict.fromkeys(_PARAMETER.findall(named))
        places = {name: f"${place}" for place, name in enumerate(found, start=1)}
        self._names = tuple(found)
        self.text = _PARAMETER.sub(lambda match: places[match[1]], named).encode()

    def values(self, parameters: Mapping[str, object]) -> list[object]:
        """The parameters in their places; further ones are left out. Raises KeyError where one is missing."""
        return [parameters[name] for name in self._names]


class PoolMetrics(Protocol):
    """The metrics of a pool, in seconds, labelled with its name and the statement's."""

    @property
    def db_pool_wait(self) -> Labelled[GaugedSeconds]:
        """The wait for a connection, by pool."""

    @property
    def db_statement(self) -> Labelled[GaugedSeconds]:
        """One statement or commit, by pool and name."""

    @property
    def statements(self) -> StatementCounts:
        """The same by text."""


@dataclass(frozen=True, slots=True)
class PoolRules:
    """Size and behaviour of one pool: connections, seconds to wait for one, seconds until one is replaced.

    With `autocommit` each statement is a transaction of its own, without the round trips of BEGIN and ROLLBACK.
    With `in_ledger` each statement is a row in the ledger of its turn, as the wait for a connection always is.
    """

    size: int
    max_overflow: int
    timeout_s: float
    recycle_s: int
    pre_ping: bool
    autocommit: bool = False
    in_ledger: bool = True

    @classmethod
    def for_requests(cls, settings: Postgres, *, in_ledger: bool = True) -> "PoolRules":
        """The pool of reads and small writes, as the YAML says."""
        return cls(
            settings.pool_size,
            settings.max_overflow,
            settings.pool_timeout,
            settings.pool_recycle,
            settings.pool_pre_ping,
            autocommit=True,
            in_ledger=in_ledger,
        )


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool now (`in_use`, `idle`, `overflow`, `waiting`) and since its start: connections `opened`, the number and
    seconds of waits for one (`waits`, `waited_s`), statements and their time, and how many were `compiled`."""

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


@dataclass(slots=True)
class _Answer:
    """What came back for one statement."""

    rows: int = 0


class TimedConnection:
    """One connection of a pool. Each statement and each commit is timed separately."""

    def __init__(
        self,
        connection: AsyncConnection,
        timing: "_Timing",
        waited_s: float,
        answer_s: float,
        on_silence: Callable[[], Awaitable[None]],
    ) -> None:
        """`waited_s` were waited for it, which counts for its first statement. `answer_s` is the longest that anything
        waits for an answer; `on_silence` is called where none came."""
        self._connection = connection
        self._timing = timing
        self._waited_s = waited_s
        self._answer_s = answer_s
        self._on_silence = on_silence

    async def execute(
        self, op: str, statement: TextClause, parameters: Mapping[str, object] | None = None
    ) -> Sequence[AnyRow]:
        """Run a constant statement and return its rows. `op` names it in the metrics, from a small fixed set.

        Raises sqlalchemy's DBAPIError, and psycopg's QueryCanceled where the answer does not come: then a change may
        have been made, without being on a synchronous standby.
        """
        async with self._answer(op, statement.text) as answer:
            result = await self._connection.execute(statement, parameters)
            rows = result.all() if result.returns_rows else ()
            answer.rows = len(rows) if result.returns_rows else max(result.rowcount, 0)
        return rows

    async def fetch(
        self, op: str, statement: DriverStatement, parameters: Mapping[str, object]
    ) -> Sequence[tuple[Any, ...]]:
        """Run a constant statement past SQLAlchemy and return its rows, which have no names.

        Raises psycopg's own errors, where the connection is lost sqlalchemy's DBAPIError (both are in
        `faults.DatabaseFault`).
        """
        raw = await self._connection.get_raw_connection()
        driver: Any = raw.driver_connection
        try:
            async with self._answer(op, statement.named) as answer, psycopg.AsyncRawCursor(driver) as cursor:
                await cursor.execute(statement.text, statement.values(parameters))
                answer.rows = cursor.rowcount
                return await cursor.fetchall()
        except psycopg.errors.QueryCanceled:
            raise
        except psycopg.Error:
            if driver.closed:
                # SQLAlchemy has to meet the fault itself: it then drops every older connection of the pool.
                await self._connection.exec_driver_sql("SELECT 1")
            raise
        finally:
            if driver.closed or driver.info.transaction_status is TransactionStatus.ACTIVE:
                # Lost, or given up in mid-statement: nobody else may get it from the pool.
                await self._connection.invalidate()

    async def copy(self, op: str, statement: str, *rows: bytes) -> None:
        """Run a constant `COPY … FROM STDIN` with these bytes in its format, in the transaction of this connection.

        Large rows are sent in small pieces, between which the loop is free; a parameter of that size is copied whole.
        Raises psycopg's own errors (included in `faults.DatabaseFault`), since this bypasses SQLAlchemy.
        """
        raw = await self._connection.get_raw_connection()
        driver: Any = raw.driver_connection
        async with self._answer(op, statement) as answer, driver.cursor() as cursor:
            async with cursor.copy(statement) as copy:
                for part in rows:
                    await copy.write(part)
            answer.rows = cursor.rowcount

    async def commit(self) -> None:
        """End the transaction; what was executed is durable when this returns (synchronous_commit is on).

        Raises as `execute`.
        """
        async with self._answer("commit", "COMMIT"):
            await self._connection.commit()

    @asynccontextmanager
    async def _answer(self, op: str, text: str) -> AsyncIterator[_Answer]:
        """Wait for the server in the block, timed and with a deadline."""
        answer = _Answer()
        waited_s, self._waited_s = self._waited_s, 0.0
        begun = time.perf_counter()
        try:
            async with asyncio.timeout(self._answer_s):
                yield answer
        except TimeoutError:
            await self._on_silence()
            raise psycopg.errors.QueryCanceled(f"no answer within {self._answer_s} s") from None
        finally:
            self._timing.statement(op, text, begun, rows=answer.rows, waited_s=waited_s)


class _Timing:
    """Where the times of one pool go: its metrics, its totals, the ledger of the turn."""

    def __init__(self, pool: str, metrics: PoolMetrics, *, in_ledger: bool) -> None:
        self.totals = _Totals()
        self._pool = pool
        self._metrics = metrics
        self._in_ledger = in_ledger

    def statement(self, op: str, text: str, begun: float, *, rows: int, waited_s: float) -> None:
        now = time.perf_counter()
        self.totals.statements += 1
        self.totals.statement_s += now - begun
        self._metrics.db_statement(self._pool, op).observe(now - begun)
        self._metrics.statements.add(text, now - begun, rows, waited_s)
        if self._in_ledger and (ledger := current_ledger()) is not None:
            ledger.add("db_statement", begun, now)

    def wait(self, begun: float) -> float:
        """The wait that began then, in seconds."""
        now = time.perf_counter()
        self.totals.waits += 1
        self.totals.waited_s += now - begun
        self._metrics.db_pool_wait(self._pool).observe(now - begun)
        if (ledger := current_ledger()) is not None:
            ledger.add("db_pool_wait", begun, now)
        return now - begun


class Pool:
    """One engine with its pool of connections, opened as they are needed."""

    def __init__(
        self,
        name: str,
        settings: Postgres,
        rules: PoolRules,
        metrics: PoolMetrics,
        *,
        connect_args: Mapping[str, Any],
        on_connect: Callable[[Any], None] = lambda _connection: None,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`name` is the pool's label; `on_connect` gets each new psycopg connection. `answer_s` bounds how long a
        statement and a commit wait for an answer: give it more than the statement timeout of `connect_args`."""
        self.name = name
        self._answer_s = answer_s
        self._timing = _Timing(name, metrics, in_ledger=rules.in_ledger)
        self._waiting = 0
        self._opened = 0
        self._compiled = 0
        self._prepare = on_connect
        self._engine = _engine(settings, rules, connect_args)
        event.listen(self._engine.sync_engine, "connect", self._on_connect)
        event.listen(self._engine.sync_engine, "before_cursor_execute", self._on_execute)
        event.listen(self._engine.sync_engine, "handle_error", _leave_read_only)

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
                waited_s = self._timing.wait(begun)
            # SQLAlchemy's own exit gives the connection back even when the task is cancelled in it.
            stack.push_async_exit(connection)
            yield TimedConnection(connection, self._timing, waited_s, self._answer_s, self._renew)

    def stats(self) -> PoolStats:
        """The pool's figures now. Cheap; may be called from any thread."""
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
            waits=self._timing.totals.waits,
            waited_s=self._timing.totals.waited_s,
            statements=self._timing.totals.statements,
            statement_s=self._timing.totals.statement_s,
        )

    async def aclose(self) -> None:
        """Close every idle connection; those in use close when they are given back."""
        await self._engine.dispose()

    async def _renew(self) -> None:
        """Use none of the open connections again: where one server, or the way to it, is silent, the others' may be."""
        await self._engine.dispose()

    def _on_connect(self, connection: Any, _record: object) -> None:
        self._opened += 1
        self._prepare(connection.driver_connection)

    def _on_execute(
        self, _connection: object, _cursor: object, _statement: str, _parameters: object, context: Any, _many: bool
    ) -> None:
        # Compiling at each execution would block the loop, so it is counted (docs/libraries.md#sqlalchemys-compiler).
        if context is not None and context.cache_hit is not CacheStats.CACHE_HIT:
            self._compiled += 1


def _leave_read_only(context: ExceptionContext) -> None:
    """A server that takes no writes any more is no primary: its connections are dropped, and another is looked for."""
    if isinstance(context.original_exception, psycopg.errors.ReadOnlySqlTransaction):
        context.is_disconnect = True


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


def _engine(settings: Postgres, rules: PoolRules, connect_args: Mapping[str, Any]) -> AsyncEngine:
    autocommit: dict[str, Any] = {
        "isolation_level": "AUTOCOMMIT",
        "pool_reset_on_return": None,
        "skip_autocommit_rollback": True,
    }
    return create_async_engine(
        database_url(settings),
        pool_size=rules.size,
        max_overflow=rules.max_overflow,
        pool_timeout=rules.timeout_s,
        pool_recycle=rules.recycle_s,
        pool_pre_ping=rules.pre_ping,
        connect_args=dict(connect_args),
        hide_parameters=True,  # an error text must not carry what a person wrote
        use_native_hstore=False,  # saves a look-up per engine
        **(autocommit if rules.autocommit else {}),
    )


class PoolReport:
    """Publishes the figures of pools as metrics and in the summary."""

    def __init__(self, pools: Sequence[Pool], metrics: ServiceMetrics) -> None:
        self._pools = pools
        self._metrics = metrics
        self._opened = dict.fromkeys((pool.name for pool in pools), 0)

    def publish(self) -> None:
        """Set the gauges to the pools' present figures. Once a second is enough."""
        metrics = self._metrics
        for pool in self._pools:
            stats = pool.stats()
            for state, count in (("in_use", stats.in_use), ("idle", stats.idle), ("overflow", stats.overflow)):
                metrics.db_connections(pool.name, state).set(count)
            metrics.db_waiting(pool.name).set(stats.waiting)
            if new := stats.opened - self._opened[pool.name]:
                metrics.db_opened(pool.name).inc(new)
                self._opened[pool.name] = stats.opened

    def lines(self) -> list[str]:
        """A line of the summary for each pool. From any thread."""
        return [_line(pool.name, pool.stats()) for pool in self._pools]


def _line(name: str, stats: PoolStats) -> str:
    util = 100.0 * stats.in_use / stats.size if stats.size else 0.0
    return (
        f"db_pool={name} size={stats.size} checked_in={stats.idle} checked_out={stats.in_use} "
        f"overflow={stats.overflow} util_pct={util:.1f}"
    )
