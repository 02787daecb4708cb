"""Turns of instances that died: another one takes them and continues them."""

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from sqlalchemy import TextClause

from agentic_backend.errors import HistoryUnavailable
from agentic_backend.fleet.leases import FleetLeases, remember
from agentic_backend.fleet.membership import Membership
from agentic_backend.fleet.statements import RECOVER, RETAKE, RETAKE_ALL, TAKE_OVER
from agentic_backend.persist.database import Queries
from agentic_backend.session.models import MAX_RESTARTS, AskRecord, TurnRecord
from agentic_backend.session.past_exchanges import StoredExchange
from agentic_backend.session.stream import Turn
from agentic_backend.spool.turnlog import PersistentTurnLog
from backend_kit.db.pool import AnyRow

logger = logging.getLogger(__name__)


class LocalTurns(Protocol):
    """The turns of this process: `TurnRegistry`."""

    def runs(self, exchange_id: str, user_id: str) -> Turn | None:
        """A turn that runs here, or has run lately."""

    def running_ids(self) -> list[str]:
        """The exchange ids of those that run here."""

    def take_up(self, cut: AskRecord) -> None:
        """Run one that another process had begun, unless it runs here already."""


class Takeover:
    """Looks for turns of the dead and hands them to the registry. Implements `CutOffTurns` over leases: that a turn
    runs again is counted by the statement that takes it.

    A turn whose agent must not run again, or that has outlived more than `MAX_RESTARTS` instances, is stored as
    interrupted. `taken` gets, for each turn taken from a dead instance, the seconds since that instance's last sign of
    life.
    """

    def __init__(
        self,
        queries: Queries,
        membership: Membership,
        leases: FleetLeases,
        log: PersistentTurnLog,
        taken: Callable[[float], None] = lambda _silent_s: None,
        *,
        lookers: Callable[[], int] = lambda: 1,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`lookers` is how many instances look, this one included, as far as is known; `draw` gives 0 to below 1."""
        self._lookers = lookers
        self._draw = draw
        self._queries = queries
        self._membership = membership
        self._leases = leases
        self._log = log
        self._taken = taken
        self._owing = False
        self._fences: OrderedDict[tuple[str, str], int] = OrderedDict()
        leases.on_unknown = self.note_loss
        self.turns: LocalTurns | None = None
        """Set before `look_for_dead` runs."""

    async def look_for_dead(self) -> None:
        """Take turns of dead instances until cancelled. Spawn it with `restart=True`."""
        while True:
            await asyncio.sleep(self._membership.rules.look_s)
            if self._membership.valid and not self._membership.draining and (self._owing or self._has_its_turn()):
                try:
                    while await self._take_some() == self._membership.rules.taken_at_once:
                        pass
                except HistoryUnavailable:
                    self._owing = True  # the turns may be taken, and the answer lost

    def _has_its_turn(self) -> bool:
        """Whether this instance looks this time. If all of a large fleet looked, it would cost Postgres more than their
        turns do, so only as many look as in a small one: at random, since no instance knows which of the others
        look."""
        return self._draw() * self._lookers() < self._membership.rules.looks_each_time

    async def recover(self) -> None:
        """Continue the turns that an earlier process of this instance left in Postgres, once none of their ends waits
        in the spool any more; only then does any ask get a lease."""
        while True:
            if not self._log.pending and self._membership.valid:
                try:
                    self._go_on(await self._queries.fetch("recover", RECOVER, self._me))
                except HistoryUnavailable:
                    pass
                else:
                    self._leases.ready.set()
                    return
            await asyncio.sleep(self._membership.rules.look_s)

    async def retake(self, session_id: str, user_id: str, exchange_id: str) -> bool:
        """Continue a turn that this instance had released, if nobody has taken it. Raises `HistoryUnavailable`."""
        if self._membership.draining or not self._membership.valid:
            return False  # it would be counted as a run, and let go at once
        values = {"session_id": session_id, "user_id": user_id, "exchange_id": exchange_id, **self._me}
        rows = await self._fetch("retake", RETAKE, values)
        self._go_on(rows[:1])
        return bool(rows)

    async def _take_some(self) -> int:
        assert self.turns is not None
        rules = self._membership.rules
        values = {**self._me, "gap_s": rules.gap_s, "dead_s": rules.dead_s, "most": rules.taken_at_once}
        rows = await self._fetch("take_over", TAKE_OVER, values)
        died = [row.silent_s for row in rows if row.silent_s is not None]
        if died:
            logger.warning("turns of instances that died are taken over: %d", len(died))
            for silent_s in died:
                self._taken(silent_s)
        if len(rows) > len(died):
            logger.info("turns that other instances have handed over are taken: %d", len(rows) - len(died))
        self._go_on(rows)
        if self._owing:
            here = [*self.turns.running_ids(), *self._log.pending_ids(), *self._leases.withdrawing()]
            self._owing = False
            try:
                self._go_on(await self._fetch("retake_all", RETAKE_ALL, {**self._me, "here": here}))
            except HistoryUnavailable:
                self._owing = True
                raise
        return len(rows)

    async def _fetch(self, op: str, statement: TextClause, values: dict[str, object]) -> list[AnyRow]:
        """The turns that a statement has taken. None if this instance stood still meanwhile: others may have them."""
        term = self._leases.term
        rows = list(await self._queries.fetch(op, statement, values))
        if rows and not (self._membership.valid and term == self._leases.term):
            self._owing = True
            return []
        return rows

    def note_loss(self) -> None:
        """This instance releases its turns: those that nobody has taken by then it continues when it is back."""
        self._owing = True

    @property
    def _me(self) -> dict[str, object]:
        return {"me": self._membership.identity.id}

    def _go_on(self, rows: Iterable[AnyRow]) -> None:
        assert self.turns is not None
        for row in rows:
            key = (row.session_id, row.user_id)
            if self._leases.fence_of(key) == row.fence and self.turns.runs(row.exchange_id, row.user_id) is not None:
                continue
            self._leases.lose(key)  # what is cached of the session may be old
            self._leases.keep(key, row.fence, row.exchange_id)
            remember(self._fences, (row.user_id, row.exchange_id), row.fence)
            cut = AskRecord.decode(row.ask.encode())
            if cut.rerun is None or row.deaths > MAX_RESTARTS:
                self.give_up(cut.interrupted())
            else:
                self.turns.take_up(replace(cut, rerun=replace(cut.rerun, restarts=row.runs)))

    def take_over(self) -> tuple[AskRecord, ...]:
        """See `CutOffTurns`: none at the start. Those that a process left in the spool that ran alone, before this
        configuration, are interrupted."""
        for record in self._log.take_over():
            self._log.give_up(record.interrupted())
        return ()

    def has_room(self) -> bool:
        """See `CutOffTurns`."""
        return self._log.has_room()

    async def begin_again(self, record: AskRecord) -> AskRecord:
        """See `CutOffTurns`: it is counted already."""
        return record

    def give_up(self, record: TurnRecord) -> None:
        """See `CutOffTurns`."""
        fence = self._fences.pop((record.session.user_id, record.exchange_id), None)
        if self._membership.draining and StoredExchange(record.messages).cut_off:
            return  # its lease still names it: once this instance has left, another one continues it
        self._log.give_up(replace(record, fence=fence))

    def drop(self, record: AskRecord) -> None:
        """See `CutOffTurns`."""
        session, exchange_id = record.session, record.user_message.exchange_id
        fence = self._fences.pop((session.user_id, exchange_id), None)
        if fence is not None:
            # If it was only replayed, since it had ended, the lease still names it.
            self._leases.withdraw(fence, (session.id, session.user_id), exchange_id)
