"""Writes finished turns and deletes to Postgres in order, many per transaction, and retries until it succeeds."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agentic_backend.errors import StorageFull
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.turn_report import loggable
from agentic_backend.spool.owner import Owner
from agentic_backend.spool.pending import Change, Key, Op, Pending, event_of
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.statements import CHANGE_SESSION, DELETE_SESSIONS, REACH_STANDBY, WRITE_TURNS, JsonBytes
from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import Backoff, QuietLog
from backend_kit.auth import AuditEvent
from backend_kit.db.audit import add_events
from backend_kit.db.database import Database
from backend_kit.db.faults import Cause, DatabaseFault, cause_of, sqlstate_of
from backend_kit.db.pool import TimedConnection
from backend_kit.kpi import Kpi
from backend_kit.wire import dumps

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Bounds of the queue and of one transaction.

    A new turn is refused once `queue_max_records` less `reserve_records` are waiting. The reserve is for turns that
    are already running and should equal their maximal number. `linger_s` is how long the first record of a
    transaction waits for others. Raises ValueError if the reserve is not below the maximum.
    """

    queue_max_records: int = 20_000
    reserve_records: int = 2_000
    queue_max_bytes: int = 512 * 1024 * 1024
    max_records: int = 64
    max_bytes: int = 4 * 1024 * 1024
    linger_s: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.reserve_records < self.queue_max_records:
            raise ValueError("reserve_records must be below queue_max_records")


@dataclass(frozen=True, slots=True)
class DrainReport:
    """How a drain ended: operations written and left, and the seconds it took."""

    flushed: int
    left: int
    seconds: float


@dataclass(slots=True)
class _Outcome:
    """The turns that one transaction did not write, by index in the batch: why they are given up, or that this is
    unknown."""

    given_up: dict[int, str] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)


_GIVEN_UP = {"clash": "rank_conflict", "fenced": "fenced"}
"""Verdicts of `WRITE_TURNS` on a record that will never be in Postgres, and their names elsewhere."""


def _ignore(_key: Key) -> None:
    """The default of `on_missing`."""


class _NotHeld(Exception):
    """This process does not hold the claim on the database."""


class _SkippedRanks(Exception):
    """Another writer stored ranks of this batch between its snapshot and its insert."""


_CAUSES: dict[type[Exception], Cause] = {_NotHeld: Cause.UNCLAIMED, _SkippedRanks: Cause.CONCURRENT}
"""The causes of our own exceptions in a transaction; any other exception comes from the spool."""


class Batcher:
    """The only writer of turns. `push`, `change` and `delete` never wait; one task writes what they enqueue.

    One transaction takes at most `rules.max_records`: one statement for its turns, one for its changes, one for its
    deletes. That is correct for any order of arrival: a deleted session never returns, so a turn behind a delete is
    dropped either way, and a turn writes nothing that a change sets. A turn whose session is not in the database is
    dropped for the same reason, and counted; if this process did not delete the session, it becomes a dead letter.

    Failures of the connection, the server or the transaction are retried without limit, with back-off. Data that
    Postgres refuses is bisected down to its record, which becomes a dead letter in the spool, with an alarm; without
    a spool it is lost.
    """

    def __init__(
        self,
        database: Database,
        owner: Owner,
        pending: Pending,
        spool: Spool | None,
        rules: BatchRules,
        *,
        kpi: Kpi,
        metrics: AgenticMetrics,
    ) -> None:
        self.blocked_by: Cause | None = None
        self.written = 0
        """Operations that Postgres has committed, since the start."""
        self.on_missing: Callable[[Key], None] = _ignore
        """Gets each session that Postgres turns out not to have although this process did not delete it."""
        self._database = database
        self._owner = owner
        self._pending = pending
        self._spool = spool
        self._rules = rules
        self._kpi = kpi
        self._metrics = metrics
        self._log = QuietLog(logger)
        self._some = asyncio.Event()
        self._enough = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._draining = False
        self._task: asyncio.Task[None] | None = None

    def start(self, tasks: TaskRegistry) -> None:
        """Begin to write, once the database is ready."""
        self._task = tasks.spawn("persist-batcher", self._run, restart=True, essential=True)

    @property
    def fill(self) -> float:
        """How full the queue is for new turns; at 1.0 they are refused."""
        rules = self._rules
        room = rules.queue_max_records - rules.reserve_records
        return max(len(self._pending) / room, self._pending.bytes / rules.queue_max_bytes)

    def replay(self, op: Op) -> None:
        """Take an operation that an earlier process left in the spool."""
        self._pending.push(op)
        self._wake(op)

    def push(self, op: Op, instead_of: int | None = None) -> "asyncio.Future[None] | None":
        """Enqueue an operation. Returns a future done once it is in the spool, None without a spool.

        Never refuses: room was checked before. `instead_of` is the id of the ask that it ends.
        """
        on_disk = None
        if self._spool is not None:
            assert op.body is not None
            op.id, on_disk = self._spool.put(op.kind, op.key, op.exchange_id, op.body, instead_of=instead_of)
        self._pending.push(op, on_disk)
        self._wake(op)
        return on_disk

    def delete(
        self, key: Key, event: AuditEvent | None = None
    ) -> "tuple[asyncio.Future[bool], asyncio.Future[None] | None]":
        """Enqueue the delete of a session, with its audit event. Returns futures of its commit (whether it existed) and
        of its being spooled.

        Shield the commit when waiting for it: all callers share that future. Raises `StorageFull`.
        """
        waiting = self._pending.deletion(key)
        if waiting is not None and waiting.committed is not None:
            return waiting.committed, None
        self._admit()
        op = Op.delete(key, event)
        op.committed = asyncio.get_running_loop().create_future()
        return op.committed, self.push(op)

    def change(self, change: Change) -> "tuple[asyncio.Future[bool], asyncio.Future[None] | None]":
        """Enqueue a change. Returns futures of its commit and of its being spooled. Raises `StorageFull`."""
        self._admit()
        op = Op.of_change(change)
        op.committed = asyncio.get_running_loop().create_future()
        return op.committed, self.push(op)

    def _admit(self) -> None:
        if len(self._pending) >= self._rules.queue_max_records:
            raise StorageFull

    async def flush(self, deadline_s: float) -> DrainReport:
        """Wait until nothing is pending, at most `deadline_s`; returns the result."""
        begun = time.perf_counter()
        before = len(self._pending)
        self._draining = True
        self._enough.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await self._none.wait()
        return self._report(before, begun)

    async def aclose(self, deadline_s: float) -> DrainReport:
        """Write what is pending, for at most `deadline_s`, and end. What is left then is in the spool, or lost.

        It does the writing itself, so the batcher's task may have ended already.
        """
        begun = time.perf_counter()
        before = len(self._pending)
        self._draining = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._database.ready:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._write_all()
        report = self._report(before, begun)
        if self._spool is None:
            self._metrics.persist_failures("shutdown").inc(report.left)
        return report

    def _report(self, before: int, begun: float) -> DrainReport:
        left = len(self._pending)
        report = DrainReport(before - left, left, time.perf_counter() - begun)
        logger.log(
            logging.ERROR if left and self._spool is None else logging.INFO,
            "persistence drained: %d records written in %.2f s, %d left%s",
            report.flushed,
            report.seconds,
            left,
            " in the spool" if left and self._spool is not None else "",
        )
        return report

    def observe_queue(self) -> None:
        """Set the gauges of the queue; called after each transaction, and now and then without one."""
        self._metrics.persist_queue_depth.set(len(self._pending))
        self._metrics.persist_oldest_ms.set(self._pending.oldest_s * 1e3)

    def _wake(self, op: Op) -> None:
        self._none.clear()
        self._some.set()
        # A person waits for a delete: it does not linger.
        if op.kind == "delete" or len(self._pending) >= self._rules.max_records:
            self._enough.set()

    async def _run(self) -> None:
        await self._database.wait_ready()
        while True:
            await self._gather()
            await self._write_all()

    async def _write_all(self) -> None:
        """Write until nothing is pending, or until waiting for more records pays. Retries without limit."""
        backoff = Backoff()
        while self._pending:
            batch = self._pending.head(self._rules.max_records, self._rules.max_bytes)
            try:
                await self._write(batch)
            except (*DatabaseFault, _NotHeld, _SkippedRanks, sqlite3.Error) as error:
                self._failed(error)
                await (self._owner.wait_held() if isinstance(error, _NotHeld) else asyncio.sleep(backoff.next_s()))
                continue
            self.blocked_by = self._database.trouble = None
            backoff.reset()
            if not self._enough.is_set():
                return

    async def _gather(self) -> None:
        """Wait for the first record, then a moment for others, unless there are enough."""
        await self._some.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rules.linger_s):
                await self._enough.wait()

    async def _write(self, batch: list[Op]) -> None:
        """Commit a batch; if its data is refused, commit each half, down to the record at fault."""
        bodies = await self._pending.bodies(batch)
        readable = [op for op in batch if op in bodies]
        try:
            outcome = await self._transaction(readable, bodies)
        except DatabaseFault as error:
            if cause_of(error) is not Cause.POISON:
                raise
            if len(batch) > 1:
                half = len(batch) // 2
                await self._write(batch[:half])
                await self._write(batch[half:])
                return
            self._give_up(batch[0], "poison", sqlstate_of(error))
            return
        self._committed(batch, bodies, outcome)

    async def _transaction(self, batch: list[Op], bodies: dict[Op, bytes]) -> _Outcome:
        outcome = _Outcome()
        deletes = {op.key: op for op in batch if op.kind == "delete"}
        with self._kpi.phase("persist_tx"):
            async with self._database.writes.connection() as connection:
                if not self._owner.held:
                    raise _NotHeld
                await self._write_turns(connection, [bodies[op] for op in batch if op.kind == "turn"], outcome)
                await self._write_changes(connection, [op for op in batch if op.kind == "change"], bodies)
                if deletes:
                    await self._delete_sessions(connection, deletes, bodies)
                await connection.commit()
        return outcome

    async def _write_turns(self, connection: TimedConnection, turns: list[bytes], outcome: _Outcome) -> None:
        if not turns:
            return
        records = JsonBytes(b"[" + b",".join(turns) + b"]")
        for row in await connection.execute("write_turns", WRITE_TURNS, {"records": records}):
            if row.verdict == "skipped":
                raise _SkippedRanks
            if row.verdict == "unknown":
                outcome.unknown.add(row.ord - 1)
            else:
                outcome.given_up[row.ord - 1] = _GIVEN_UP[row.verdict]

    async def _write_changes(self, connection: TimedConnection, changes: list[Op], bodies: dict[Op, bytes]) -> None:
        """Write each change separately, in order: they are few, and two of one session must both apply."""
        for op in changes:
            for _row in await connection.execute("change_session", CHANGE_SESSION, {"change": JsonBytes(bodies[op])}):
                op.found = True

    async def _delete_sessions(
        self, connection: TimedConnection, deletes: dict[Key, Op], bodies: dict[Op, bytes]
    ) -> None:
        gone = dumps([{"session_id": session_id, "user_id": user_id} for session_id, user_id in deletes])
        rows = await connection.execute("delete_sessions", DELETE_SESSIONS, {"deletes": JsonBytes(gone)})
        for row in rows:
            # Kept in case the answer to a commit is lost: the next attempt would find no session.
            deletes[row.session_id, row.user_id].found = True
        gone_now = [deletes[row.session_id, row.user_id] for row in rows]
        await add_events(connection, *(event for op in gone_now if (event := event_of(bodies[op])) is not None))
        if not rows:
            await connection.execute("reach_standby", REACH_STANDBY)

    def _committed(self, batch: list[Op], bodies: dict[Op, bytes], outcome: _Outcome) -> None:
        now = time.perf_counter()
        turns = [op for op in batch if op.kind == "turn" and op in bodies]
        given_up = {op: "unreadable" for op in batch if op not in bodies}
        for place, op in enumerate(turns):
            if place in outcome.given_up:
                given_up[op] = outcome.given_up[place]
            elif place in outcome.unknown and (self._spool is None or self._pending.deletion(op.key)):
                logger.info("turn of a deleted session left out: session_id=%s", op.key[0])
            elif place in outcome.unknown:
                # This process did not delete it: it may be the wrong database, or one from an old backup.
                given_up[op] = "session_missing"
            else:
                op.found = True
                self._metrics.persist_lag.observe(now - op.at)
                self._metrics.persist_turns.inc()
        self._metrics.persist_batch_records.observe(len(batch))
        if not given_up:
            self._settle(batch)
            return
        for op in batch:  # in the order of the queue, of which this is the head
            if op in given_up:
                self._give_up(op, given_up[op])
            else:
                self._settle([op])

    def _settle(self, ops: list[Op]) -> None:
        """Remove committed operations from the queue and the spool."""
        self._pending.settle(ops)
        self.written += len(ops)
        if self._spool is not None:
            self._spool.done([op.id for op in ops])
            for op in ops:
                if op.kind == "delete":
                    self._spool.forget(op.key)
        self._after_settling(ops)

    def _after_settling(self, ops: list[Op]) -> None:
        for op in ops:
            op.settled(found=op.found)
        if not self._pending:
            self._some.clear()
            self._none.set()
        if len(self._pending) < self._rules.max_records and not self._pending.deletes and not self._draining:
            self._enough.clear()
        self.observe_queue()

    def _give_up(self, op: Op, reason: str, sqlstate: str | None = None) -> None:
        """Remove an operation that will never be in Postgres, with an alarm; with a spool it becomes a dead letter."""
        self._pending.settle([op])
        op.refused_as = reason
        if reason == "rank_conflict":
            self._metrics.rank_conflicts.inc()
        if self._spool is None:
            self._metrics.persist_failures(reason).inc()
        else:
            self._spool.bury(op.id, reason)
            self._metrics.dead_letters.inc()
        logger.error(
            "ALARM record given up: reason=%s sqlstate=%s kind=%s session_id=%s exchange_id=%s kept=%s",
            reason,
            sqlstate,
            op.kind,
            op.key[0],
            loggable(op.exchange_id),
            self._spool is not None,
        )
        if reason == "session_missing":
            self.on_missing(op.key)
        self._after_settling([op])

    def _failed(self, error: Exception) -> None:
        """Log and count why a transaction failed; its operations stay pending."""
        if isinstance(error, DatabaseFault):
            cause, sqlstate = cause_of(error), sqlstate_of(error)
        else:
            cause, sqlstate = _CAUSES.get(type(error), Cause.SPOOL), None
        if cause is Cause.READ_ONLY:
            self._owner.doubt()
        self.blocked_by = self._database.trouble = cause
        self._metrics.persist_retries(cause.value).inc()
        self.observe_queue()
        self._log.warning(
            cause,
            "batch not written: cause=%s sqlstate=%s pending=%d; retrying",
            cause.value,
            sqlstate,
            len(self._pending),
        )
