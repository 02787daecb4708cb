"""Persistence as one piece for the lifespan: built, started, flushed and closed together."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentic_backend.metrics import AgenticMetrics
from agentic_backend.persist.agents import PostgresAgents
from agentic_backend.persist.attachments import PostgresAttachments
from agentic_backend.persist.checkpoints import PostgresCheckpoints, PostgresGraphState
from agentic_backend.persist.database import Queries, history_database
from agentic_backend.persist.feedback import PostgresFeedback
from agentic_backend.persist.figures import PostgresFigures
from agentic_backend.persist.grants import PostgresGrants
from agentic_backend.persist.graph_pool import GraphPool
from agentic_backend.persist.links import PostgresLinks
from agentic_backend.persist.store import PostgresSessionStore
from agentic_backend.persist.threads import PostgresThreads
from agentic_backend.session.models import MAX_RESTARTS, AskRecord, TurnRecord
from agentic_backend.session.threads import LeftByTurn, left_by
from agentic_backend.settings import AgenticSettings
from agentic_backend.spool.batcher import Batcher, BatchRules
from agentic_backend.spool.cache import HistoryCache
from agentic_backend.spool.claim import Possessions
from agentic_backend.spool.owner import Owner
from agentic_backend.spool.pending import Change, Key, Op, Pending
from agentic_backend.spool.spool import Spool
from agentic_backend.spool.spooldir import SpoolLock
from agentic_backend.spool.spoolrows import Entry
from agentic_backend.spool.turnlog import PersistentTurnLog
from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import QuietLog
from backend_kit.db.database import Database, DatabaseState
from backend_kit.db.faults import Cause
from backend_kit.kpi import Kpi
from backend_kit.settings import Postgres

logger = logging.getLogger(__name__)

_AWAY_S = 0.5
_DB_LINGER_MS = 5
_MIB = 1024 * 1024
_TICK_S = 1.0
_WARN_FILL = 0.8
_READ_AT_ONCE = 200
ADOPT_S = 30.0
"""How long one attempt to write out another process' spool may take."""


@dataclass(frozen=True, slots=True)
class PersistenceRules:
    """How long to wait for Postgres, in seconds, and how many bytes of pending records to keep in memory."""

    ack_s: float = 4.0
    """How long a `final` that the disk did not take waits for its commit."""
    many_ack_s: float = 60.0
    """The same if other instances may take the turn: it either commits or is theirs."""
    spool_s: float = 1.0
    """How long a `final`, or a delete or change whose commit is late, waits for the disk."""
    commit_s: float = 5.0
    """How long a delete or a change waits for its commit."""
    close_s: float = 5.0
    """How long closing waits for pending records."""
    keep_bytes: int = 16 * _MIB
    """Above this total, bodies are dropped from memory once they are in the spool."""


class Persistence:
    """Owns the pools, the spool, the queue and the batcher; provides the ports of the session layer.

    `store` reads (SessionStore), `log` takes finished turns (TurnLog); `threads`, `agents`, `grants`, `attachments`,
    `feedback`, `links` and `figures` are named for their ports.
    `on_state` gets each state of connecting to the database; after `refused` the service can never become ready and
    should end, as it should when `give_up` is called with the exit code, because it can have no claim on the database
    (`Owner`). `possessions` is what this process took at its start. Construct it on the event loop: it counts what an
    earlier process left in the spool, and writes that to Postgres in the background. `spool` and `database` create the
    two places that are written to; `clock` (monotonic, seconds) measures how long a session has been unused here.

    Raises `SpoolTaken` or `SpoolUnusable`.
    """

    def __init__(
        self,
        settings: AgenticSettings,
        *,
        kpi: Kpi,
        metrics: AgenticMetrics,
        tasks: TaskRegistry,
        on_state: Callable[[DatabaseState], None] | None = None,
        give_up: Callable[[int], None] = lambda _exit_code: None,
        possessions: Possessions | None = None,
        rules: PersistenceRules | None = None,
        spool: Callable[..., Spool] = Spool,
        database: Callable[[Postgres, AgenticMetrics], Database] = history_database,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        possessions, rules = possessions or Possessions(), rules or PersistenceRules()
        self._close_s = rules.close_s
        chosen = settings.persistence
        many = chosen.replicas == "many"
        self.state = DatabaseState("connecting")
        self.database = database(settings.storage.postgres, metrics)
        claim = possessions.database
        self.owner = Owner(settings.storage.postgres, shared=many, give_up=give_up, claim=claim)
        self.spool: Spool | None = None
        if chosen.ack == "spool":
            on_commit = metrics.spool_commit.observe
            self.spool = spool(Path(chosen.spool_dir), on_commit, lock=possessions.spool, vigil=tasks.vigil)
            self.spool.start()
        self.pending = Pending(None if self.spool is None else self.spool.read, keep_bytes=rules.keep_bytes)
        self.cache = HistoryCache(settings.history.cache_mb * _MIB, settings.ai.restore_max_exchanges, clock=clock)
        self._queue = queue = batch_rules(settings)
        self._kpi, self._keep_bytes = kpi, rules.keep_bytes
        self.batcher = Batcher(self.database, self.owner, self.pending, self.spool, queue, kpi=kpi, metrics=metrics)
        self.queries = queries = Queries(self.database)
        self._open_ports(queries)
        commit_s, spool_s = rules.commit_s, rules.spool_s
        ack_s = rules.many_ack_s if many else rules.ack_s
        self.store = PostgresSessionStore(
            queries,
            self.pending,
            self.batcher,
            self.cache,
            metrics=metrics,
            creating=settings.storage.postgres.pool_size,
            commit_s=commit_s,
            spool_s=spool_s,
        )
        self.threads = PostgresThreads(queries, self.pending, self.batcher, self.store, commit_s=commit_s)
        parts = (self.batcher, self.pending, self.spool, self.cache)
        self.log = PersistentTurnLog(
            chosen.ack, *parts, metrics, database_s=ack_s, spool_s=spool_s, notes_asks=not many
        )
        self._graphs = GraphPool(settings.storage.postgres, metrics, settings.ai.graph_connections)
        self.checkpoints = PostgresCheckpoints(self._graphs)
        self.graph_state = PostgresGraphState(self._graphs)
        self._metrics, self._tasks = metrics, tasks
        self._on_state = on_state
        self._quiet = QuietLog(logger)
        if self.spool is not None:
            self._replay(self.spool)

    def _open_ports(self, queries: Queries) -> None:
        """The smaller ports, each over one table or two."""
        self.attachments = PostgresAttachments(queries, self.pending)
        self.feedback = PostgresFeedback(queries, self.pending)
        self.links = PostgresLinks(queries, self.pending)
        self.agents = PostgresAgents(queries)
        self.grants = PostgresGrants(queries)
        self.figures = PostgresFigures(queries)

    @property
    def schema_known(self) -> bool:
        """Whether the database has answered once with a schema that fits; later outages do not change it."""
        return self.database.ready

    @property
    def misfit(self) -> bool:
        """Whether Postgres refuses our statements, because the schema or our privileges were changed."""
        return self.batcher.blocked_by is Cause.STATEMENT

    def dependencies(self) -> dict[str, Any]:
        """The state of Postgres and the spool, for the body of /ready: names and counts, no addresses."""
        status: str = self.state.status
        if status == "ready":
            status = "up" if self.database.trouble is None else "down"
        told: dict[str, Any] = {"postgres": {"status": status, "pending_records": len(self.pending)}}
        if self.spool is not None:
            spool = {"status": "up" if self.spool.usable else "down", "dead_letters": self.spool.dead_letters}
            told["spool"] = spool
        return told

    def start(self) -> None:
        """Begin to connect to Postgres, and then to write. Returns immediately."""
        self._tasks.spawn("persist-owner", self.owner.hold_claim, restart=True, essential=True)
        self._tasks.spawn("persist-connect", self._connect, restart=True)
        self._tasks.spawn("persist-watch", self._watch, restart=True, essential=True)
        self.batcher.start(self._tasks)

    def has_in_use(self, key: Key, within_s: float) -> bool:
        """Whether the session has pending operations, or was used here in the last `within_s` seconds."""
        return self.pending.holds(key) or self.cache.used_within(key, within_s)

    def forget(self, key: Key) -> None:
        """Drop what is kept outside Postgres of a session that was deleted there."""
        self.cache.forget(key)
        if self.spool is not None:
            self.spool.forget(key)

    async def flush(self, deadline_s: float) -> int:
        """Wait until everything is written, at most `deadline_s`. Returns how many records are left.

        With a spool it does not wait for a Postgres that is known to be away.
        """
        away = self.spool is not None and self.batcher.blocked_by is not None
        return (await self.batcher.flush(_AWAY_S if away else deadline_s)).left

    async def aclose(self) -> None:
        """Write what is still pending, then close the spool and the pools. After the last turn.

        Without a spool it tries for `close_s`, because what is left is lost; with one only while Postgres answers.
        """
        away = self.spool is not None and self.batcher.blocked_by is not None
        await self.batcher.aclose(0.0 if away else self._close_s)
        if self.spool is not None:
            await self.spool.aclose()
        self.owner.close()
        await self._graphs.aclose()
        await self.database.aclose()

    async def write_out(self, lock: SpoolLock) -> bool:
        """Write to Postgres what is in the spool of another process, which has ended, for at most `ADOPT_S`. Turns that
        it cut off are stored as interrupted. Returns whether nothing is left there; the lock is released.

        Raises sqlite3.Error or OSError if it cannot be read.
        """
        if not self.database.ready or self.batcher.blocked_by is not None:
            lock.release()
            return False
        on_commit = self._metrics.spool_commit.observe
        spool = await asyncio.to_thread(Spool, lock.directory, on_commit, lock=lock)
        spool.start()
        try:
            pending = Pending(spool.read, keep_bytes=self._keep_bytes)
            batcher = Batcher(
                self.database, self.owner, pending, spool, self._queue, kpi=self._kpi, metrics=self._metrics
            )
            # In a thread, and bit by bit: this process serves meanwhile.
            left = await asyncio.to_thread(_read_left, spool)
            for number, op in enumerate(left.ops(spool)):
                batcher.replay(op)
                if number % _READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
            self._metrics.persist_replayed.inc(len(spool.waiting))
            for id_, record in left.asks:
                batcher.push(Op.turn(record.interrupted()), instead_of=id_)
            return (await batcher.aclose(ADOPT_S)).left == 0
        finally:
            await spool.aclose()

    def _replay(self, spool: Spool) -> None:
        """Take over what an earlier process left: queue its turns, and mark its unfinished ones as interrupted, but for
        those that may run again, which are kept for it (`log.take_over`)."""
        left = _read_left(spool)
        for op in left.ops(spool):
            self.batcher.replay(op)
        self._metrics.persist_replayed.inc(len(spool.waiting))
        kept = 0
        for id_, record in left.asks:
            if record.rerun is not None and record.rerun.restarts < MAX_RESTARTS:
                self.log.keep(id_, record)
                kept += 1
            else:
                self.batcher.push(Op.turn(record.interrupted()), instead_of=id_)
        self._metrics.spool_damaged_frames.inc(spool.damaged_frames)
        if spool.waiting:
            logger.warning(
                "%d records of an earlier process are in the spool, %d of them turns that it interrupted, of which %d "
                "may run again",
                len(spool.waiting),
                len(left.asks),
                kept,
            )
        spool.waiting.clear()

    async def _watch(self) -> None:
        """Once a second, publish the levels and warn before new turns have to be refused."""
        metrics = self._metrics
        while True:
            fill = self.batcher.fill
            metrics.persist_fill.set(fill)
            self.batcher.observe_queue()
            if self.spool is not None:
                await asyncio.to_thread(self.spool.look_at_disk)
                metrics.spool_records.set(self.spool.records)
                metrics.spool_bytes.set(self.spool.size_bytes)
                metrics.spool_dead_letters.set(self.spool.dead_letters)
            if fill >= _WARN_FILL:
                self._quiet.warning("fill", "what waits for Postgres fills %.0f %% of its bound", fill * 100)
            await asyncio.sleep(_TICK_S)

    async def _connect(self) -> None:
        # This process must neither use nor migrate the database while another has it.
        if not self.owner.held:
            self._note(DatabaseState("connecting", Cause.UNCLAIMED))
            await self.owner.wait_held()
        await self.database.connect_until_ready(self._note)

    def _note(self, state: DatabaseState) -> None:
        self.state = state
        if self._on_state is not None:
            self._on_state(state)


@dataclass(frozen=True, slots=True)
class _Left:
    """What an earlier process left in a spool: turns that it cut off, by their ids, and what is known of the rest."""

    asks: list[tuple[int, AskRecord]]
    known: dict[int, LeftByTurn | Change]

    def ops(self, spool: Spool) -> Iterator[Op]:
        """All but the turns that were cut off, in order."""
        for entry in spool.waiting:
            if entry.kind != "ask":
                yield _op(entry, self.known.get(entry.id))


def _read_left(spool: Spool) -> _Left:
    """Read what is waiting in a spool. Blocks. Raises sqlite3.Error."""
    asks = [entry.id for entry in spool.waiting if entry.kind == "ask"]
    changes = {entry.id for entry in spool.waiting if entry.kind == "change"}
    newest = {entry.key: entry.id for entry in spool.waiting if entry.kind == "turn"}
    known: dict[int, LeftByTurn | Change] = {}
    for id_, body in _bodies(spool, [*newest.values(), *changes]):
        known[id_] = Change.decode(body) if id_ in changes else left_by(TurnRecord.decode(body))
    return _Left([(id_, AskRecord.decode(body)) for id_, body in _bodies(spool, asks)], known)


def _bodies(spool: Spool, ids: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    wanted = sorted(ids)
    for start in range(0, len(wanted), _READ_AT_ONCE):
        for row in spool.read_now(wanted[start : start + _READ_AT_ONCE]):
            yield row.id, row.body


def _op(entry: Entry, known: LeftByTurn | Change | None) -> Op:
    op = Op(entry.kind, entry.key, entry.exchange_id, entry.size, None, id=entry.id)
    op.at -= max(0.0, time.time() - entry.at)
    if isinstance(known, Change):
        op.change = known
    elif known is not None:
        op.after, op.state, op.told_at = known
    return op


def batch_rules(settings: AgenticSettings) -> BatchRules:
    """The bounds of the queue. Its reserve has room for the turns that may be running when it fills up."""
    chosen = settings.persistence
    reserve = settings.limits.max_turns or chosen.max_records
    waited_for = chosen.ack == "db" or chosen.replicas == "many"
    return BatchRules(
        queue_max_records=chosen.max_records,
        reserve_records=min(reserve, chosen.max_records // 2),
        queue_max_bytes=chosen.max_bytes_mb * _MIB,
        max_records=chosen.batch_max_records,
        # With `db` their clients wait for Postgres, and of several instances the others do.
        linger_s=(min(chosen.batch_linger_ms, _DB_LINGER_MS) if waited_for else chosen.batch_linger_ms) / 1e3,
    )
