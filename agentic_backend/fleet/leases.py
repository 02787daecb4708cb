"""Leases of sessions, where several instances share a database: one of them runs turns of a session at a time."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from agentic_backend.errors import HistoryUnavailable, SessionNotFound, SessionRecovering
from agentic_backend.fleet.membership import Membership
from agentic_backend.fleet.statements import ACQUIRE_LEASE, RECORD_ASKS, WITHDRAW_ASK
from agentic_backend.persist.database import Queries
from agentic_backend.session.models import AskRecord
from agentic_backend.session.store import HeldElsewhere, Lease, LeaseLost
from agentic_backend.spool.cache import HistoryCache
from agentic_backend.spool.pending import Key, Op
from backend_kit.db.pool import AnyRow

_REMEMBERED = 20_000
"""How many leases this instance remembers having. One that it forgets is taken again by one statement."""
_WITHDRAW_AGAIN_S = 1.0
_GROUP_S = 0.005
"""Seconds between the starts of two groups of questions: what comes meanwhile forms the next group."""

_LOOKS = 3
"""How often a lease is asked for again whose holder has just changed it."""
_END_S = 5.0
_END_PAUSE_S = 0.005

T = TypeVar("T")


class PendingWrites(Protocol):
    """What waits for Postgres here: `Pending`."""

    def holds(self, key: Key) -> bool:
        """Whether anything of a session waits."""

    def turns(self, key: Key) -> Sequence[Op]:
        """The turns of a session that wait."""


@dataclass(frozen=True, slots=True)
class SessionLease:
    """Implements `Lease`."""

    fence: int
    fresh: bool
    term: int = 0


@dataclass(slots=True)
class _Asked:
    """A question on its way to Postgres; `recorded` is whether its lease still was this instance's."""

    session_id: str
    fence: int
    exchange_id: str
    ask: str
    recorded: "asyncio.Future[bool]"


class FleetLeases:
    """Implements `Leases` for one instance. It keeps a lease until another instance takes it.

    What it remembers of a session is valid if it held the lease all the time: that is checked when the next question is
    recorded, by the statement that replaces a renewal. One task records the questions of all sessions, each time all
    that came while the last ones were being committed.
    """

    def __init__(self, queries: Queries, membership: Membership, cache: HistoryCache, pending: PendingWrites) -> None:
        """`pending` is what waits for Postgres here."""
        self._queries = queries
        self._membership = membership
        self._cache = cache
        self._pending = pending
        self.ready = asyncio.Event()
        """Set once no turn of an earlier process of this instance is left."""
        self.on_unknown: Callable[[], None] = lambda: None
        """Called if a lease of this instance names an open turn that does not run here."""
        self._mine: OrderedDict[Key, int] = OrderedDict()
        self.term = 0
        """How often this instance has lost all its leases."""
        # The last exchange of each session whose question this instance has recorded, or taken.
        self._asked: OrderedDict[Key, str] = OrderedDict()
        self._next: list[_Asked] = []
        self._withdrawn: dict[tuple[str, str], tuple[int, Key]] = {}
        self._some = asyncio.Event()

    async def acquire(self, session_id: str, user_id: str) -> SessionLease:
        """See `Leases`."""
        key = (session_id, user_id)
        if not self._membership.valid:
            raise HistoryUnavailable("this instance has not renewed", retry_after_s=1.0)
        await self.ready.wait()
        fence = self._mine.get(key)
        if fence is not None:
            self._mine.move_to_end(key)
            return SessionLease(fence, True, self.term)
        if not (session_id.isascii() and session_id.isprintable()):
            raise SessionNotFound
        values = {
            "session_id": session_id,
            "user_id": user_id,
            "me": self._membership.identity.id,
            "dead_s": self._membership.rules.dead_s,
        }
        term = self.term
        row = await self._ask_for(values)
        if row.fence is None:
            if row.recovering:
                raise SessionRecovering(retry_after_s=self._membership.rules.dead_s)
            raise HeldElsewhere(row.exchange_id or "")
        self._expect_no_turn(key, row.left_open)
        if term == self.term:
            self.keep(key, row.fence)
        if not row.made:
            self._cache.forget(key)
        return SessionLease(row.fence, row.made, term)

    async def _ask_for(self, values: dict[str, object]) -> AnyRow:
        """The result of asking for the lease. Raises SessionNotFound.

        If the holder recorded a question while the statement waited for the row, the result says that the lease is
        held, but from an older version of the row: only another look shows which exchange has it, and so whether this
        ask follows that one.
        """
        for _ in range(_LOOKS):
            rows = await self._queries.fetch("acquire_lease", ACQUIRE_LEASE, values)
            if not rows:
                raise SessionNotFound
            if rows[0].fence is not None or rows[0].exchange_id is not None:
                break
        return rows[0]

    def _expect_no_turn(self, key: Key, exchange_id: str | None) -> None:
        """Raise `HeldElsewhere` for a turn that was released, or taken by a statement whose answer is still on its way:
        recording a question over it would lose the turn."""
        if exchange_id in (None, self._asked.get(key)) or (key[0], exchange_id) in self._withdrawn:
            return
        self.on_unknown()
        raise HeldElsewhere(exchange_id or "")

    def keep(self, key: Key, fence: int, exchange_id: str | None = None) -> None:
        """Note a lease that this instance has got, with the turn that is open in it."""
        remember(self._mine, key, fence)
        if exchange_id is not None:
            remember(self._asked, key, exchange_id)

    def fence_of(self, key: Key) -> int | None:
        """The fence of a lease that this instance remembers having."""
        return self._mine.get(key)

    def lose(self, key: Key) -> None:
        """Forget a lease that another may have, and what is cached of its session."""
        self._mine.pop(key, None)
        self._cache.forget(key)

    def expect_valid(self, lease: Lease) -> None:
        """See `Leases`."""
        if not self._membership.valid or lease.term != self.term:
            raise LeaseLost

    def end_term(self) -> None:
        """Forget all leases, since others may have taken any: what runs under one has lost it."""
        self.term += 1
        self._asked.clear()
        self.lose_all()

    def lose_all(self) -> None:
        """Forget all leases: messages about their sessions may have been missed."""
        for key in list(self._mine):
            self.lose(key)

    async def record(self, lease: Lease, record: AskRecord) -> None:
        """See `Leases`."""
        session, exchange_id = record.session, record.user_message.exchange_id
        await self._wait_for_end((session.id, session.user_id), exchange_id)
        recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._withdrawn.pop((session.id, exchange_id), None)  # what is written now replaces it
        self._next.append(_Asked(session.id, lease.fence, exchange_id, record.encode().decode(), recorded))
        self._some.set()
        try:
            still_mine = await recorded
        except (asyncio.CancelledError, HistoryUnavailable):
            # It may be on its way, or there already.
            self.withdraw(lease.fence, (session.id, session.user_id), exchange_id)
            raise
        if not still_mine:
            self.lose((session.id, session.user_id))
            raise LeaseLost
        if lease.term == self.term:
            remember(self._asked, (session.id, session.user_id), exchange_id)

    async def _wait_for_end(self, key: Key, exchange_id: str) -> None:
        """An earlier run of the exchange, such as the one that asked a person, may wait for Postgres: its record would
        clear the turn from the lease, and then any instance could take the session."""
        give_up_at = time.monotonic() + _END_S
        while any(op.exchange_id == exchange_id for op in self._pending.turns(key)):
            if time.monotonic() > give_up_at:
                raise HistoryUnavailable("the question of this turn waits for Postgres", retry_after_s=1.0)
            await asyncio.sleep(_END_PAUSE_S)

    def withdraw(self, fence: int, key: Key, exchange_id: str) -> None:
        """See `Leases`."""
        self._withdrawn[key[0], exchange_id] = (fence, key)
        self._some.set()

    def withdrawing(self) -> list[str]:
        """The exchange ids of questions that are to be withdrawn and may still be there."""
        return [exchange_id for _, exchange_id in self._withdrawn]

    async def write_asks(self) -> None:
        """Record questions until cancelled. Spawn it with `restart=True`."""
        begun_at = float("-inf")
        while True:
            await self._some.wait()
            # A single question is written at once; under load a statement for each would cost more than everything
            # else.
            await asyncio.sleep(max(0.0, begun_at + _GROUP_S - time.monotonic()))
            begun_at = time.monotonic()
            self._some.clear()
            group, self._next = self._next, []
            await self._withdraw_all()
            # One that was given up before it was sent is not sent.
            if group := [one for one in group if not one.recorded.done()]:
                await self._write(group)

    async def _write(self, group: Sequence[_Asked]) -> None:
        values = {
            "me": self._membership.identity.id,
            "session_ids": [one.session_id for one in group],
            "fences": [one.fence for one in group],
            "exchange_ids": [one.exchange_id for one in group],
            "asks": [one.ask for one in group],
        }
        error: HistoryUnavailable | None = None
        try:
            rows = await self._queries.fetch("record_asks", RECORD_ASKS, values)
        except HistoryUnavailable as failure:
            rows, error = (), failure
        recorded = {row.session_id for row in rows}
        for one in group:
            if one.recorded.done():
                continue
            if error is not None:
                one.recorded.set_exception(HistoryUnavailable(str(error), retry_after_s=1.0))
            else:
                one.recorded.set_result(one.session_id in recorded)

    async def _withdraw_all(self) -> None:
        """A question that nobody waits for must not be run after this instance's death: retried until it is removed."""
        for (session_id, exchange_id), (fence, key) in list(self._withdrawn.items()):
            values = {"session_id": session_id, "fence": fence, "exchange_id": exchange_id}
            # While an acknowledged turn is only in the spool, the lease must not look free.
            if not self._pending.holds(key):
                try:
                    await self._queries.fetch("withdraw_ask", WITHDRAW_ASK, values)
                except HistoryUnavailable:
                    break  # each might wait as long, and the questions behind them with it
                self._withdrawn.pop((session_id, exchange_id), None)
        if self._withdrawn:
            asyncio.get_running_loop().call_later(_WITHDRAW_AGAIN_S, self._some.set)


def remember(kept: OrderedDict[Key, T], key: Key, value: T) -> None:
    """Move it to the end of the remembered leases; drop the oldest if there are too many."""
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _REMEMBERED:
        kept.popitem(last=False)
