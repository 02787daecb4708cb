"""Postgres' own figures over the steady window, to compare with the service's view of it."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ws_bench.errors import PreparationFailed, UsageError
from ws_bench.record.dialects import clock
from ws_bench.record.results import Spread, spread

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_CANARY_INTERVAL_S = 0.25
_CONNECT_TIMEOUT_S = 5
_TOP = 12
_STATEMENTS = """
SELECT regexp_replace(left(s.query, 200), '\\s+', ' ', 'g'), s.calls, s.total_exec_time, s.mean_exec_time,
       s.max_exec_time, s.rows
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT ILIKE '%%pg_stat_statements%%'
ORDER BY s.total_exec_time DESC LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as Postgres counts it: execution times inside the server, in milliseconds."""

    query: str
    calls: int
    total_ms: float
    mean_ms: float
    max_ms: float
    rows: int


@dataclass(frozen=True, slots=True)
class PostgresView:
    """The database over the window: statements, or the reason for none (`without`) and a canary's round trips."""

    statements: list[Statement] = field(default_factory=list)
    without: str = ""
    canary: Spread | None = None

    def as_json(self) -> dict[str, Any]:
        """For a result file."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "PostgresView":
        """What `as_json` wrote."""
        canary = given["canary"]
        return cls([Statement(**one) for one in given["statements"]], given["without"], canary and Spread(**canary))


class PostgresMonitor:
    """A connection of the generator's own. Enter it before the run; raises `UsageError` or `PreparationFailed` then.

    Between `begin_window` and `end_window` it does nothing; where the extension pg_stat_statements is missing it sends
    one `SELECT 1` four times a second, whose round trip is network, server and this loop together.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._stack = AsyncExitStack()
        self._connection: AsyncConnection[Any] | None = None
        self._without = ""
        self._canary: list[float] = []
        self._begun = asyncio.Event()
        self._ended = False
        self.view: PostgresView | None = None

    async def __aenter__(self) -> "PostgresMonitor":
        if not self._dsn:
            return self
        try:
            import psycopg
        except ImportError:
            raise UsageError("-postgres needs psycopg: install turnwise[agentic]") from None
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._dsn, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S, application_name="ws_bench"
            )
            self._connection = await self._stack.enter_async_context(connection)
            await connection.execute("SELECT pg_stat_statements_reset()")
        except psycopg.OperationalError as failure:
            # Without its message, which repeats parts of the connection string.
            raise PreparationFailed(f"-postgres: cannot connect ({type(failure).__name__})") from None
        except psycopg.Error as failure:
            primary = failure.diag.message_primary or type(failure).__name__
            self._without = f"pg_stat_statements cannot be used: {primary}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def begin_window(self) -> None:
        """Mark the beginning of the steady window: reset the statistics."""
        if self._connection is None or self._begun.is_set():
            return
        if not self._without:
            with self._losses():
                await self._connection.execute("SELECT pg_stat_statements_reset()")
        self._begun.set()

    async def run_canary(self) -> None:
        """Send the canary until cancelled or until the window has ended."""
        if self._connection is None or not self._without:
            return
        await self._begun.wait()
        with self._losses():
            while not self._ended:
                begin = clock()
                await self._connection.execute("SELECT 1")
                self._canary.append((clock() - begin) * 1000)
                await asyncio.sleep(_CANARY_INTERVAL_S)

    async def end_window(self) -> None:
        """Mark the end of the steady window: store the statistics, or why there are none."""
        # Called again if a first try was cut off: the task that marks the window is cancelled at the end of the load.
        if self._connection is None or self.view is not None:
            return
        self._ended = True
        if not self._begun.is_set():
            self.view = PostgresView([], self._without or "the run was over before the steady window could begin")
            return
        rows: list[tuple[Any, ...]] = []
        if not self._without:
            with self._losses():
                rows = await (await self._connection.execute(_STATEMENTS, (_TOP,))).fetchall()
        if self._without:
            self.view = PostgresView([], self._without, spread(self._canary))
            return
        self.view = PostgresView(
            [Statement(q, int(n), float(total), float(mean), float(top), int(r)) for q, n, total, mean, top, r in rows]
        )

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """A lost database is noted in the result and does not end the run."""
        import psycopg

        try:
            yield
        except psycopg.Error as failure:
            self._without = f"the connection was lost: {type(failure).__name__}"
