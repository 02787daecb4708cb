"""The audit log in Postgres: a table that only grows, written in batches or with the change that an event tells of.

Each service has the table in its own schema. That nobody changes or deletes an event is held by triggers; retention
deletes through a function of the schema, by the server's clock, and nothing younger than a day.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Protocol

from sqlalchemy import TextClause, text

from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import Backoff, QuietLog
from backend_kit.auth import AuditEvent
from backend_kit.db.database import Database
from backend_kit.db.faults import AnyFault, Cause, DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.pool import AnyRow, TimedConnection
from backend_kit.kpi import Counter, Gauge
from backend_kit.wire import ServiceError, dumps

logger = logging.getLogger(__name__)

# ruff: noqa: S608 - constants of this module and of the services' code

_FIELDS: Final = "id, action, kind, object_id, outcome, subject, actor, key_id, request_id, instance"

CREATE_AUDIT: Final = (
    """CREATE TABLE audit_event (
        id uuid PRIMARY KEY,
        written_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        happened_at timestamptz NOT NULL,
        action text NOT NULL,
        kind text NOT NULL,
        object_id text NOT NULL,
        outcome text NOT NULL,
        subject text NOT NULL,
        actor text NOT NULL,
        key_id text NOT NULL,
        request_id text NOT NULL,
        instance text NOT NULL
    )""",
    "CREATE INDEX audit_event_in_order ON audit_event (written_at, id)",
    """CREATE FUNCTION keep_audit_event() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' AND current_setting('turnwise.prunes_audit', true) = 'yes'
            AND OLD.written_at < clock_timestamp() - interval '1 day' THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'audit events are only added' USING ERRCODE = 'insufficient_privilege';
    END $$""",
    """CREATE TRIGGER audit_event_is_kept BEFORE UPDATE OR DELETE ON audit_event
    FOR EACH ROW EXECUTE FUNCTION keep_audit_event()""",
    """CREATE FUNCTION keep_audit_events() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'audit events are only added' USING ERRCODE = 'insufficient_privilege';
    END $$""",
    """CREATE TRIGGER audit_events_are_kept BEFORE TRUNCATE ON audit_event
    FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_events()""",
    """CREATE FUNCTION prune_audit(days integer, most integer) RETURNS integer LANGUAGE plpgsql AS $$
    DECLARE
        gone integer;
    BEGIN
        PERFORM set_config('turnwise.prunes_audit', 'yes', true);
        DELETE FROM audit_event WHERE id IN (SELECT old.id FROM audit_event AS old
            WHERE old.written_at < now() - make_interval(days => greatest(days, 1))
            ORDER BY old.written_at LIMIT most);
        GET DIAGNOSTICS gone = ROW_COUNT;
        PERFORM set_config('turnwise.prunes_audit', '', true);
        RETURN gone;
    END $$""",
)
"""What the first migration with the table runs, in either service. It stays as it is."""
DROP_AUDIT: Final = (
    "DROP TABLE audit_event",
    "DROP FUNCTION keep_audit_event(), keep_audit_events(), prune_audit(integer, integer)",
)


def adding(condition: str = "true") -> str:
    """An INSERT of the events in the parameter `audit`, a JSON list, but those that are there already. Of an event,
    `e`, the condition says whether it is stored."""
    return f"""INSERT INTO audit_event (happened_at, {_FIELDS})
    SELECT to_timestamp(e.at), {_FIELDS}
    FROM jsonb_to_recordset(CAST(:audit AS jsonb)) AS e(id uuid, at float8, action text, kind text, object_id text,
        outcome text, subject text, actor text, key_id text, request_id text, instance text)
    WHERE {condition} ON CONFLICT (id) DO NOTHING"""


ADD_EVENTS: Final = text(adding())
PRUNE: Final = text("SELECT prune_audit(:days, :most) AS gone")
# In the order in which they were written, so that an export that goes on where another ended misses none.
PAGE: Final = text(
    f"""SELECT written_at, happened_at, {_FIELDS} FROM audit_event
    WHERE (written_at, id) > (:after, CAST(:after_id AS uuid)) AND written_at < :until
    ORDER BY written_at, id LIMIT :limit"""
)
_NOW: Final = text("SELECT now() AS now")
_PAGE_EVENTS: Final = 100
"""Six ids of at most 256 characters each, of at most 6 bytes in JSON: 1 MiB whatever they are."""
_NIL: Final = "00000000-0000-0000-0000-000000000000"


def with_events(statement: str) -> TextClause:
    """A change that returns the rows that it changed, together with the events in the parameter `audit`, which are
    written where it changed any. One statement, so that neither is without the other."""
    return text(
        f"""WITH changed AS ({statement}), noted AS ({adding("EXISTS (SELECT FROM changed)")})
        SELECT * FROM changed"""
    )


def events_parameter(*events: AuditEvent) -> str:
    """The value of the parameter `audit`."""
    return dumps([event.json() for event in events]).decode()


async def add_events(connection: TimedConnection, *events: AuditEvent) -> None:
    """Write events in the transaction of this connection. Raises as `TimedConnection.execute`."""
    if events:
        await connection.execute("add_audit", ADD_EVENTS, {"audit": events_parameter(*events)})


class AuditMetrics(Protocol):
    """What is measured: events that wait to be written, and those that never will be."""

    @property
    def audit_pending(self) -> Gauge:
        """Events that wait."""

    @property
    def audit_lost(self) -> Counter:
        """Events that were dropped."""


@dataclass(frozen=True, slots=True)
class AuditRules:
    """How long events are kept, in days (0: without limit), and the bounds of writing them."""

    days: int = 0
    linger_s: float = 0.2
    """Events that come within this time are written together. A kill loses them."""
    at_once: int = 500
    most: int = 20_000
    """Events that wait while Postgres is away; later ones are lost, which is counted and logged."""
    close_s: float = 5.0
    """How long closing waits for Postgres."""
    prune_every_s: float = 3600.0
    prune_at_once: int = 5000


class AuditLog:
    """Writes events soon, reads them in order, and deletes the old ones.

    `note` is for acts that write nothing to Postgres of their own; a change writes its event itself (`with_events`,
    `add_events`). The bounded queue is written by one task, in batches, on one connection of the pool `main`.
    """

    def __init__(
        self,
        database: Database,
        rules: AuditRules,
        metrics: AuditMetrics,
        unavailable: Callable[[], ServiceError],
        statement: TextClause = ADD_EVENTS,
    ) -> None:
        """`unavailable` makes the error where Postgres is away; `statement` writes what was noted, as `adding`."""
        self._database = database
        self._rules = rules
        self._metrics = metrics
        self._unavailable = unavailable
        self._statement = statement
        self._queue: deque[AuditEvent] = deque()
        self._queued = asyncio.Event()
        self._log = QuietLog(logger)

    def note(self, event: AuditEvent) -> None:
        """Write an event soon. Never waits."""
        if len(self._queue) >= self._rules.most:
            self._metrics.audit_lost.inc()
            self._log.warning("full", "ALARM an audit event is lost: %d wait for Postgres", len(self._queue))
            return
        self._queue.append(event)
        self._queued.set()
        self._metrics.audit_pending.set(len(self._queue))

    def start(self, tasks: TaskRegistry) -> None:
        """Begin to write, and to delete, once the database is ready."""
        tasks.spawn("audit-log", self._write_on, restart=True, essential=True)
        if self._rules.days:
            tasks.spawn("audit-retention", self._prune_on, restart=True)

    async def aclose(self) -> None:
        """Write what waits, for `close_s` at most. Before the database is closed, and after the tasks have ended."""
        ends_at = time.monotonic() + self._rules.close_s
        backoff = Backoff()
        while self._queue and self._database.ready and time.monotonic() < ends_at:
            if not await self._write(self._rules.at_once):
                await asyncio.sleep(backoff.next_s())
        if self._queue:
            self._metrics.audit_lost.inc(len(self._queue))
            logger.error("ALARM %d audit events are lost: Postgres was away until the end", len(self._queue))

    async def export(self, since: datetime | None = None, until: datetime | None = None) -> AsyncIterator[bytes]:
        """The events that were written from `since` on and before `until`, in that order, as JSON lines: pieces of at
        most 1 MiB, between which no connection is held. None: from the first on, up to now.

        Raises what `unavailable` makes, also between two pieces.
        """
        after, after_id = since or datetime.min.replace(tzinfo=UTC), _NIL
        if until is None:
            until = (await self._rows("clock", _NOW, {}))[0].now
        full = True
        while full:
            values = {"after": after, "after_id": after_id, "until": until, "limit": _PAGE_EVENTS}
            rows = await self._rows("audit_page", PAGE, values)
            full = len(rows) == _PAGE_EVENTS
            if rows:
                after, after_id = rows[-1].written_at, str(rows[-1].id)
                yield b"".join(dumps(_shown(row)) + b"\n" for row in rows)

    async def prune(self) -> int:
        """Delete what is older than the rules say; returns how many. Raises `DatabaseFault`."""
        total = 0
        while True:
            values = {"days": self._rules.days, "most": self._rules.prune_at_once}
            async with self._database.main.connection() as connection:
                rows = await connection.execute("audit_prune", PRUNE, values)
            gone = int(rows[0].gone)
            total += gone
            if gone < self._rules.prune_at_once:
                return total

    async def _rows(self, op: str, statement: TextClause, values: Mapping[str, object]) -> Sequence[AnyRow]:
        if not self._database.ready:
            raise self._unavailable()
        try:
            async with self._database.main.connection() as connection:
                return await connection.execute(op, statement, values)
        except DatabaseFault as error:
            self._log_error(op, error)
            raise self._unavailable() from None

    async def _write_on(self) -> None:
        await self._database.wait_ready()
        backoff = Backoff()
        while True:
            await self._queued.wait()
            await asyncio.sleep(self._rules.linger_s)
            while self._queue:
                if await self._write(self._rules.at_once):
                    backoff.reset()
                else:
                    await asyncio.sleep(backoff.next_s())
            self._queued.clear()

    async def _write(self, most: int) -> bool:
        """Write the oldest events; False where they have to be tried again."""
        batch = list(islice(self._queue, most))
        try:
            async with self._database.main.connection() as connection:
                await connection.execute("add_audit", self._statement, {"audit": events_parameter(*batch)})
        except DatabaseFault as error:
            self._log_error("add_audit", error)
            if cause_of(error) is not Cause.POISON:
                return False
            if len(batch) > 1:  # one of them: the others are not lost with it
                return all([await self._write(1) for _event in batch])
            self._metrics.audit_lost.inc()
            logger.error("ALARM an audit event is lost: Postgres refuses it")
        for _event in batch:
            self._queue.popleft()
        self._metrics.audit_pending.set(len(self._queue))
        return True

    async def _prune_on(self) -> None:
        await self._database.wait_ready()
        while True:
            try:
                if gone := await self.prune():
                    logger.info("deleted %d audit events older than %d days", gone, self._rules.days)
            except DatabaseFault as error:
                self._log_error("audit_prune", error)
            await asyncio.sleep(self._rules.prune_every_s)

    def _log_error(self, op: str, error: AnyFault) -> None:
        self._log.warning(op, "%s failed: cause=%s sqlstate=%s", op, cause_of(error), sqlstate_of(error))


def _shown(row: AnyRow) -> dict[str, Any]:
    values = {name: str(value) for name, value in row._mapping.items() if not isinstance(value, datetime)}
    return {
        "id": values.pop("id"),
        "happened_at": _time(row.happened_at),
        "written_at": _time(row.written_at),
        **values,
    }


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
