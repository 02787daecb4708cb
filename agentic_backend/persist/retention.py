"""Deletes conversations that were unused for longer than the operator keeps them, and measures their tables."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.clocks import APART_S, Clocks, ClocksDiffer
from agentic_backend.spool.pending import Key
from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import QuietLog
from backend_kit.db.database import Database
from backend_kit.db.faults import DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.pool import Pool

logger = logging.getLogger(__name__)

TABLES: Final = ("session", "session_history", "session_attachments", "feedbacks")
"""The tables that grow with conversations."""

# Both are Postgres' time; `updated_at` comes from the clock of the instance that wrote it, which may be wrong.
_EXPIRED = "FROM session WHERE used_at < now() - make_interval(days => :days)"

COUNT_EXPIRED = text(f"""
SELECT count(*) AS sessions, coalesce(sum((session_data->>'next_rank')::bigint), 0)::bigint AS messages,
    min(used_at) AS oldest {_EXPIRED}
""")

# In the order of the key, each page after the last one: one pass over the table, even if sessions are kept.
EXPIRED_PAGE = text(f"""
SELECT session_id, user_id, coalesce((session_data->>'next_rank')::bigint, 0) AS messages {_EXPIRED}
    AND session_id > :after
ORDER BY session_id LIMIT :page
""")

# A session that was used since the page was read, or that a turn writes to now, is kept. History, attachments and
# feedback are deleted with the session (ON DELETE CASCADE).
PRUNE = text(f"""
WITH old AS MATERIALIZED (
    SELECT session_id {_EXPIRED} AND session_id = ANY(:session_ids) ORDER BY session_id FOR UPDATE SKIP LOCKED
)
DELETE FROM session USING old WHERE session.session_id = old.session_id
RETURNING session.session_id, session.user_id
""")  # noqa: S608 - constants

# What autovacuum last counted, or, before its first visit, what the statistics counted since. -1 is "not yet known".
SIZES = text("""
SELECT c.relname, pg_total_relation_size(c.oid) AS bytes,
    CASE WHEN reltuples < 0 THEN coalesce(n_live_tup, 0) ELSE reltuples::bigint END AS rows
FROM unnest(CAST(:tables AS text[])) AS wanted(name) JOIN pg_class AS c ON c.oid = to_regclass(wanted.name)
LEFT JOIN pg_stat_user_tables ON relid = c.oid
""")


@dataclass(frozen=True, slots=True)
class PruneRules:
    """Bounds of one statement, in sessions and in approximate messages, and the seconds of pause after each."""

    sessions: int = 200
    messages: int = 20_000
    pause_s: float = 0.1
    page: int = 5000


@dataclass(frozen=True, slots=True)
class Expired:
    """What a prune would delete. `oldest` is the ISO time at which the longest unused one was last used, or empty."""

    sessions: int
    messages: int
    oldest: str


InUse = Callable[[Sequence[Key]], set[Key]]
"""Which of some sessions are in use."""


async def _ignore(_key: Key) -> None:
    """The default of `forget`: ignore a deleted session."""


class Pruner:
    """Deletes sessions that had no turn for a number of days, with all that belongs to them.

    It takes one connection of the pool for one statement at a time. `in_use` returns the sessions to keep for now;
    `forget` gets each deleted session. May run in several processes concurrently. Before each deleting statement it
    checks that the clocks of this host and of Postgres agree: with a wrong one, young sessions look old.
    """

    def __init__(
        self,
        pool: Pool,
        rules: PruneRules = PruneRules(),
        *,
        in_use: InUse = lambda _keys: set(),
        forget: Callable[[Key], Awaitable[None]] = _ignore,
        clocks: Clocks | None = None,
    ) -> None:
        self.pruned = 0
        self._pool = pool
        self._rules = rules
        self._in_use = in_use
        self._forget = forget
        self._clocks = clocks or Clocks()

    async def expired(self, days: int) -> Expired:
        """Count what `prune` would delete. Raises `DatabaseFault` or `ClocksDiffer`."""
        async with self._pool.connection() as connection:
            await self._clocks.agree(connection)
            (row,) = await connection.execute("count_expired", COUNT_EXPIRED, {"days": days})
        return Expired(row.sessions, row.messages, row.oldest.isoformat() if row.oldest else "")

    async def prune(self, days: int) -> int:
        """Delete sessions unused for `days`; returns how many. `pruned` counts them along the way.

        Raises `DatabaseFault` or `ClocksDiffer`; what was deleted before that stays deleted.
        """
        begun_with = self.pruned
        after, full = "", True
        while full:
            async with self._pool.connection() as connection:
                await self._clocks.agree(connection)
                parameters = {"days": days, "after": after, "page": self._rules.page}
                page = await connection.execute("expired_page", EXPIRED_PAGE, parameters)
            full = len(page) == self._rules.page
            after = page[-1].session_id if page else after
            batch: list[Key] = []
            messages = 0
            for row in page:
                batch.append((row.session_id, row.user_id))
                messages += row.messages
                if len(batch) == self._rules.sessions or messages >= self._rules.messages:
                    await self._delete(days, batch)
                    batch, messages = [], 0
            await self._delete(days, batch)
        return self.pruned - begun_with

    async def _delete(self, days: int, keys: list[Key]) -> None:
        left = self._in_use(keys)
        session_ids = [key[0] for key in keys if key not in left]
        if not session_ids:
            return
        async with self._pool.connection() as connection:
            await self._clocks.agree(connection)
            gone = await connection.execute("prune", PRUNE, {"days": days, "session_ids": session_ids})
        self.pruned += len(gone)
        for row in gone:
            await self._forget((row.session_id, row.user_id))
        await asyncio.sleep(self._rules.pause_s)


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """How long sessions are kept, in `days` (0: no limit), and how often to check, in seconds (varied by a tenth)."""

    days: int
    first_s: float = 120.0
    every_s: float = 3600.0
    measure_every_s: float = 60.0


class Retention:
    """Prunes once an hour while the service runs; publishes the table sizes and the clock difference once a minute.

    An outage of Postgres is logged; the next measurement tries again. While the clocks differ nothing is deleted,
    which is logged once at its beginning and once at its end.
    """

    def __init__(
        self,
        database: Database,
        pruner: Pruner,
        rules: RetentionRules,
        metrics: AgenticMetrics,
        *,
        clocks: Clocks | None = None,
    ) -> None:
        self._database = database
        self._pruner = pruner
        self._rules = rules
        self._metrics = metrics
        self._clocks = clocks or Clocks()
        self._apart = False
        self._log = QuietLog(logger)

    def start(self, tasks: TaskRegistry) -> None:
        """Begin, once the database is ready."""
        tasks.spawn("retention", self._run, restart=True)

    async def measure(self) -> None:
        """Publish the table sizes and the clock difference. Raises `DatabaseFault`."""
        async with self._database.main.connection() as connection:
            self._compare(await self._clocks.ahead_s(connection))
            for row in await connection.execute("table_sizes", SIZES, {"tables": list(TABLES)}):
                self._metrics.history_bytes(row.relname).set(row.bytes)
                self._metrics.history_rows(row.relname).set(row.rows)

    async def prune(self) -> None:
        """Delete and count the sessions above the age. Raises `DatabaseFault` or `ClocksDiffer`."""
        before = self._pruner.pruned
        try:
            await self._pruner.prune(self._rules.days)
        finally:
            pruned = self._pruner.pruned - before
            self._metrics.pruned_sessions.inc(pruned)
            if pruned:
                logger.info("pruned %d sessions without a turn for %d days", pruned, self._rules.days)

    async def _run(self) -> None:
        await self._database.wait_ready()
        now = asyncio.get_running_loop().time
        due_at = now() + _about(self._rules.first_s)
        while True:
            await self._attempt(self.measure)
            if self._rules.days and now() >= due_at and await self._attempt(self.prune):
                due_at = now() + _about(self._rules.every_s)
            await asyncio.sleep(_about(self._rules.measure_every_s))

    def _compare(self, ahead_s: float) -> None:
        self._metrics.clock_difference.set(ahead_s)
        apart = abs(ahead_s) > APART_S
        if apart and not self._apart:
            logger.error("ALARM %s: no conversation is deleted for its age meanwhile", ClocksDiffer(ahead_s))
        elif self._apart and not apart:
            logger.info("the clocks of this host and of Postgres agree again")
        self._apart = apart

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except DatabaseFault as error:
            cause = cause_of(error)
            self._log.warning(cause, "retention failed: cause=%s sqlstate=%s", cause, sqlstate_of(error))
            return False
        except ClocksDiffer as error:
            self._compare(error.ahead_s)
            return False
        return True


def _about(seconds: float) -> float:
    # Instances that start together should not prune together.
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311 - not for secrets
