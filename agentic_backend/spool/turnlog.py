"""Hands finished turns to storage: what `final` waits for, and when new turns are refused for lack of room."""

import asyncio
import contextlib
import time
from typing import Any, Literal

from agentic_backend.errors import StorageFull
from agentic_backend.metrics import AgenticMetrics
from agentic_backend.session.models import AskRecord, Durability, TurnRecord
from agentic_backend.session.store import LeaseLost
from agentic_backend.spool.batcher import Batcher
from agentic_backend.spool.cache import HistoryCache
from agentic_backend.spool.pending import Op, Pending
from agentic_backend.spool.spool import Spool

Ack = Literal["spool", "db", "none"]

_BEHIND_S = 5.0


class PersistentTurnLog:
    """Implements `TurnLog`: with `spool`, `final` waits for a flush of its disk; with `db`, for Postgres.

    A flush takes 0.5 ms on an idle SSD, and tens of milliseconds where others write to the same disk.
    If the disk does not take a turn, its commit in Postgres is as good. If neither comes in time the turn is not
    reported as final, but storing it is still attempted. It waits `spool_s` seconds for the disk alone, then
    `database_s` for either.
    """

    def __init__(
        self,
        ack: Ack,
        batcher: Batcher,
        pending: Pending,
        spool: Spool | None,
        cache: HistoryCache,
        metrics: AgenticMetrics,
        *,
        database_s: float = 4.0,
        spool_s: float = 1.0,
        notes_asks: bool = True,
    ) -> None:
        """`notes_asks`: whether the questions of running turns are recorded in the spool; else their leases have
        them."""
        self._ack = ack
        self._notes_asks = notes_asks
        self._database_s = database_s
        self._spool_s = spool_s
        self._batcher = batcher
        self._pending = pending
        self._spool = spool
        self._cache = cache
        self._metrics = metrics
        self._asks: dict[tuple[str, str], int] = {}
        self._left_over: list[AskRecord] = []

    def take_over(self) -> tuple[AskRecord, ...]:
        """See `CutOffTurns`."""
        left, self._left_over = tuple(self._left_over), []
        return left

    @property
    def pending(self) -> int:
        """How many records wait for Postgres."""
        return len(self._pending)

    def pending_ids(self) -> list[str]:
        """The ids of the exchanges that wait for Postgres."""
        return self._pending.exchange_ids()

    def has_room(self) -> bool:
        """Whether one more turn may begin: there is room beyond the reserve of running turns, and the disk is writable.

        With `db`, Postgres must have taken recent records.
        """
        if self._batcher.fill >= 1.0:
            return False
        if self._spool is not None:
            return self._spool.usable and not self._spool.disk_low
        return self._ack == "none" or self._batcher.blocked_by is None or self._pending.oldest_s < _BEHIND_S

    def begin(self, record: AskRecord) -> None:
        """Note in the spool, with its next commit, that a turn has begun, unless `begin_again` has."""
        name = _name(record)
        if self._notes_asks and self._spool is not None and name not in self._asks:
            session, asked = record.session, record.user_message
            key = (session.id, session.user_id)
            self._asks[name] = self._spool.note("ask", key, asked.exchange_id, record.encode())

    def keep(self, id_: int, record: AskRecord) -> None:
        """Keep an ask that an earlier process left in the spool under this id, until its turn ends."""
        self._asks[_name(record)] = id_
        self._left_over.append(record)

    async def begin_again(self, record: AskRecord) -> AskRecord:
        """See `CutOffTurns`."""
        assert self._spool is not None
        session, asked, name = record.session, record.user_message, _name(record)
        counted = record.begun_again()
        key, before = (session.id, session.user_id), self._asks.get(name)
        self._asks[name], on_disk = self._spool.put("ask", key, asked.exchange_id, counted.encode(), instead_of=before)
        try:
            async with asyncio.timeout(self._spool_s + self._database_s):
                await on_disk
        except TimeoutError:
            raise StorageFull(retry_after_s=5.0) from None
        return counted

    def give_up(self, record: TurnRecord) -> None:
        """See `CutOffTurns`."""
        self._hand_over(Op.turn(record), record)

    def drop(self, record: AskRecord) -> None:
        """See `CutOffTurns`."""
        id_ = self._asks.pop(_name(record), None)
        if id_ is not None and self._spool is not None:
            self._spool.done([id_])

    async def append(self, record: TurnRecord) -> Durability:
        """Hand over a finished turn, which readers see from now on. Raises as `TurnLog.append`."""
        begun = time.perf_counter()
        op = Op.turn(record)
        if self._ack != "none":
            op.committed = asyncio.get_running_loop().create_future()
        on_disk = self._hand_over(op, record)
        if op.committed is None:
            return "none"
        durable = await self._kept(op.committed, on_disk)
        if durable != "none":
            acknowledged = self._metrics.spool_ack if durable == "spool" else self._metrics.db_ack
            acknowledged.observe(time.perf_counter() - begun)
        if op.refused_as == "fenced":
            raise LeaseLost
        if durable == "none" or (durable == "db" and not op.found):
            raise StorageFull
        return durable

    def _hand_over(self, op: Op, record: TurnRecord) -> "asyncio.Future[None] | None":
        """Queue a turn in place of its ask."""
        on_disk = self._batcher.push(op, instead_of=self._asks.pop((op.key[1], op.exchange_id), None))
        self._cache.append(op.key, record)
        return on_disk

    async def _kept(self, committed: "asyncio.Future[bool]", on_disk: "asyncio.Future[None] | None") -> Durability:
        """What stored the turn first; `none` if nothing did in time."""
        if on_disk is not None and self._usable:
            # Nearly always enough, within a millisecond; waiting for two futures costs ten times as much.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._spool_s):
                    await asyncio.shield(on_disk)
                    return "spool"
        places: set[asyncio.Future[Any]] = {committed} if on_disk is None else {committed, on_disk}
        done, _ = await asyncio.wait(places, timeout=self._database_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return "none"
        return "spool" if on_disk in done else "db"

    @property
    def _usable(self) -> bool:
        return self._spool is not None and self._spool.usable


def _name(record: AskRecord) -> tuple[str, str]:
    return (record.session.user_id, record.user_message.exchange_id)
