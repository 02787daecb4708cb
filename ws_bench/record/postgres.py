"""The statements of the steady window: as Postgres counted them, or where it does not, as the services did."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ws_bench.errors import PreparationFailed, UsageError
from ws_bench.record.counted import NotCounted, StatementsRead, grown, read_all
from ws_bench.record.dialects import clock
from ws_bench.record.results import Spread, spread

if TYPE_CHECKING:
    from psycopg import AsyncConnection

_CANARY_INTERVAL_S = 0.25
_CONNECT_TIMEOUT_S = 5
_TOP = 12
_SHOWN = 200
SERVER = "pg_stat_statements"
SERVICES = "the services' own counts"
_STATEMENTS = """
SELECT regexp_replace(left(s.query, 200), '\\s+', ' ', 'g'), s.calls, s.total_exec_time, s.mean_exec_time,
       s.max_exec_time, s.rows
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database() AND s.query NOT ILIKE '%%pg_stat_statements%%'
ORDER BY s.total_exec_time DESC LIMIT %s
"""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, times in milliseconds. Counted by Postgres they are those of its execution inside the server;
    counted by the services, from its dispatch to its answer, without a greatest one, and with the waits for a
    connection."""

    query: str
    calls: int
    total_ms: float
    mean_ms: float
    max_ms: float | None
    rows: int
    wait_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PostgresView:
    """The database over the window: statements and who counted them (`source`). `without` says why Postgres did not,
    and where nobody did, there are a canary's round trips."""

    statements: list[Statement] = field(default_factory=list)
    without: str = ""
    canary: Spread | None = None
    source: str = ""

    def as_json(self) -> dict[str, Any]:
        """For a result file."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "PostgresView":
        """What `as_json` wrote."""
        canary = given["canary"]
        return cls(
            [Statement(**one) for one in given["statements"]],
            given["without"],
            canary and Spread(**canary),
            given.get("source", SERVER),  # results of before had one source
        )


class PostgresMonitor:
    """A connection of the generator's own. Enter it before the run; raises `UsageError` or `PreparationFailed` then.

    Between `begin_window` and `end_window` it does nothing. Where the extension pg_stat_statements is missing it reads
    at both what the services count themselves; where they do not, it sends one `SELECT 1` four times a second, whose
    round trip is network, server and this loop together.
    """

    def __init__(self, dsn: str, metrics_urls: Sequence[str] = ()) -> None:
        """`metrics_urls` are those of every process of the services."""
        self._dsn = dsn
        self._metrics_urls = metrics_urls
        self._counted: list[StatementsRead] | None = None
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
        else:
            self._counted = await self._read_services()
        self._begun.set()

    async def run_canary(self) -> None:
        """Send the canary until cancelled or until the window has ended."""
        if self._connection is None or not self._without:
            return
        await self._begun.wait()
        if self._counted is not None:
            return
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
            reasons = [self._without, "the run was over before the steady window could begin"]
            self.view = PostgresView([], "; ".join(filter(None, reasons)))
            return
        rows: list[tuple[Any, ...]] = []
        if not self._without:
            with self._losses():
                rows = await (await self._connection.execute(_STATEMENTS, (_TOP,))).fetchall()
        if self._without:
            self.view = await self._services_view() or PostgresView([], self._without, spread(self._canary))
            return
        self.view = PostgresView(
            [Statement(q, int(n), float(total), float(mean), float(top), int(r)) for q, n, total, mean, top, r in rows],
            source=SERVER,
        )

    async def _services_view(self) -> PostgresView | None:
        """What the services counted since the window began; None where they did not."""
        if self._counted is None or (now := await self._read_services()) is None:
            return None
        found = sorted(grown(self._counted, now).items(), key=lambda one: -one[1].total_ms)
        statements = [
            Statement(
                query=query[:_SHOWN],
                calls=one.calls,
                total_ms=one.total_ms,
                mean_ms=one.total_ms / one.calls,
                max_ms=None,
                rows=one.rows,
                wait_ms=one.wait_ms,
            )
            for query, one in found[:_TOP]
        ]
        return PostgresView(statements, self._without, source=SERVICES)

    async def _read_services(self) -> list[StatementsRead] | None:
        """What each process has counted so far. Without all of them there is none: a part would mislead."""
        if not self._metrics_urls:
            reason = "-server-metrics would tell what the services count themselves"
        else:
            try:
                return await read_all(self._metrics_urls)
            except NotCounted as failure:
                reason = str(failure)
        if reason not in self._without:
            self._without += f"; {reason}"
        return None

    @contextmanager
    def _losses(self) -> Iterator[None]:
        """A lost database is noted in the result and does not end the run."""
        import psycopg

        try:
            yield
        except psycopg.Error as failure:
            self._without = f"the connection was lost: {type(failure).__name__}"
