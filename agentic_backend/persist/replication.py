"""What a failover of Postgres would lose: whether commits wait for a standby, and what the standbys do not have yet."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text

from agentic_backend.metrics import AgenticMetrics
from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import QuietLog
from backend_kit.db.database import Database
from backend_kit.db.faults import DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.pool import AnyRow

logger = logging.getLogger(__name__)

_CLOSELY_S: Final = 1.0
_NOW_AND_THEN_S: Final = 5.0
_MOST: Final = 600

# Everybody may read all of it except `has`, which is null without pg_monitor. A timeline begins with each promotion. Of
# several standbys the one that has most is promoted; subscribers of logical replication never are.
LOOK: Final = text("""
SELECT current_setting('synchronous_standby_names') <> '' AS waits,
    substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8) AS timeline,
    pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint AS reached,
    count(pid) AS standbys, max(pg_wal_lsn_diff(flush_lsn, '0/0'))::bigint AS has
FROM pg_stat_replication
WHERE pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL)
""")


@dataclass(frozen=True, slots=True)
class _Moment:
    """A moment of the monotonic clock: how many records were committed, at or before which place of Postgres' log."""

    at: float
    written: int
    reached: int


class Replication:
    """Publishes, while the service runs, what a failover now would lose: nothing where commits wait for a standby.

    Without that it looks once a second how far the standby is that has most, if the role may see it (`pg_monitor`):
    the records committed since are the bound, for this process and since its start. Where it may not, or where there
    is no standby, the bound is unknown (NaN).
    """

    def __init__(
        self,
        database: Database,
        written: Callable[[], int],
        metrics: AgenticMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`written` is the number of records that this process has committed."""
        self._database = database
        self._written = written
        self._metrics = metrics
        self._clock = clock
        self._moments: list[_Moment] = []
        self._told: tuple[bool, bool, bool] | None = None
        self._timeline = ""
        self._log = QuietLog(logger)

    def start(self, tasks: TaskRegistry) -> None:
        """Begin, once the database is ready."""
        tasks.spawn("replication", self._run, restart=True)

    async def look(self) -> bool:
        """Publish the current state; returns whether to look closely. Raises `DatabaseFault`."""
        # Counted before the look: what is committed by now is within what Postgres' log has reached.
        at, written = self._clock(), self._written()
        async with self._database.main.connection() as connection:
            (row,) = await connection.execute("replication", LOOK)
        if self._timeline not in ("", row.timeline):
            self._log_failover(row.timeline)
        self._timeline = row.timeline
        self._publish(row, _Moment(at, written, row.reached))
        self._log_state(row)
        return not row.waits and row.has is not None

    def _publish(self, row: AnyRow, now: _Moment) -> None:
        self._metrics.postgres_synchronous.set(row.waits)
        self._metrics.postgres_standbys.set(row.standbys)
        records = lag_s = math.nan
        if row.waits:
            records = lag_s = 0.0
            self._moments = [now]
        elif row.has is None:
            self._moments = []
        else:
            records, lag_s = self._behind(row.has, now)
        self._metrics.postgres_unreplicated.set(records)
        self._metrics.postgres_standby_lag.set(lag_s)

    def _behind(self, has: int, now: _Moment) -> tuple[float, float]:
        """The records that the standby may lack, and the seconds since it had all: from the last moment that it has."""
        self._moments.append(now)
        there = max((place for place, moment in enumerate(self._moments) if moment.reached <= has), default=0)
        del self._moments[:there]
        if len(self._moments) > _MOST:
            del self._moments[1::2]  # the first one is what counts while the standby is away
        last = self._moments[0]
        return self._written() - last.written, 0.0 if last is now and now.reached <= has else self._clock() - last.at

    def _log_state(self, row: AnyRow) -> None:
        """Log what an operator has to know, at the start and where it changes."""
        told = (row.waits, row.standbys > 0, row.has is not None)
        if told == self._told:
            return
        self._told = told
        if row.waits:
            logger.info("Postgres: each commit waits for a standby; a failover to it loses nothing")
        elif not row.standbys:
            logger.info("Postgres: no commit waits for a standby, and none follows")
        elif row.has is None:
            logger.warning(
                "Postgres: no commit waits for a standby (synchronous_standby_names): a failover loses what the "
                "standby has not received. How much that would be only a member of pg_monitor may see"
            )
        else:
            logger.warning(
                "Postgres: no commit waits for a standby (synchronous_standby_names): a failover loses what the "
                "standby has not received: app_postgres_unreplicated_records"
            )

    def _log_failover(self, timeline: str) -> None:
        moments, self._moments = self._moments, []
        if self._told is not None and self._told[0]:
            lost = "its commits waited for a standby, so none of ours is missing there"
        elif moments:
            count, lag_s = self._written() - moments[0].written, self._clock() - moments[0].at
            lost = f"up to {count} records of the last {lag_s:.0f} s may be missing there"
        else:
            lost = "how much is missing there is not known"
        logger.warning("Postgres has failed over (timeline %s, now %s): %s", self._timeline, timeline, lost)

    async def _run(self) -> None:
        await self._database.wait_ready()
        while True:
            closely = True  # what the next look brings is of another server, perhaps
            try:
                closely = await self.look()
            except DatabaseFault as error:
                cause = cause_of(error)
                self._log.warning(cause, "replication not seen: cause=%s sqlstate=%s", cause, sqlstate_of(error))
            await asyncio.sleep(_CLOSELY_S if closely else _NOW_AND_THEN_S)
