"""Turns that other instances run: followed, stopped and notified of changes from here, and the reverse."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Protocol

from sqlalchemy import TextClause

from agentic_backend.errors import HistoryUnavailable, StorageFull
from agentic_backend.fleet.bus import Bus, Message
from agentic_backend.fleet.leases import FleetLeases
from agentic_backend.fleet.membership import Membership
from agentic_backend.fleet.statements import (
    HAND_OVER,
    HOLDER_OF_EXCHANGE,
    HOLDER_OF_SESSION,
    NEWEST_ELSEWHERE,
    SAY_DRAINING,
    TAKERS,
    VOID_LEASE,
)
from agentic_backend.fleet.takeover import LocalTurns, Takeover
from agentic_backend.peers.mirror import PeerLost, Peers, TurnNotThere, mirror
from agentic_backend.persist.database import Queries
from agentic_backend.session.models import AskRecord, Session
from agentic_backend.session.store import NewestElsewhere, TurnStore
from agentic_backend.session.stream import Ask, Turn, TurnEvent
from agentic_backend.spool.pending import Key, Pending
from backend_kit.aio import TaskRegistry
from backend_kit.aio.retry import Backoff
from backend_kit.db.pool import AnyRow

logger = logging.getLogger(__name__)

_FORGET_S = 3.0
"""Seconds that a delete waits for a turn that another instance runs."""
_FORGET_PAUSE_S = 0.05
_RESEND_S = 1.0
"""Seconds after which a request that a turn elsewhere has not acted on is sent again, by Postgres."""
_LOSSES = 3
"""How often an instance that has an ended turn may be lost before the turn is replayed from history instead."""
_UNFOLLOWED_S = 5.0
"""Seconds for which a turn that nobody follows any more is still followed at its instance."""


class _Unfollowed(Exception):
    """Nobody follows the turn here any more."""


class OwnTurns(LocalTurns, Protocol):
    """What others may have this process do with its turns: `TurnRegistry`."""

    async def forget_here(self, session_id: str, user_id: str) -> None:
        """Stop the session's turns and drop its state."""

    def reread(self, session: Session) -> None:
        """Take over what another instance has stored for a session."""

    def let_go(self) -> None:
        """End every run without an end."""


class FleetTurns:
    """Implements `Elsewhere`, and does what other instances ask of this one.

    Messages go by `bus`; what a turn elsewhere does not act on is sent again by `surest`, the transport that this
    instance knows to work. `connected` is called with 1 and -1 as turns begin and end to be followed at other
    instances.
    """

    def __init__(
        self,
        queries: Queries,
        bus: Bus,
        surest: Bus,
        membership: Membership,
        leases: FleetLeases,
        takeover: Takeover,
        peers: Peers,
        pending: Pending,
        store: TurnStore,
        tasks: TaskRegistry,
        connected: Callable[[int], None] = lambda _change: None,
    ) -> None:
        self._queries = queries
        self._bus = bus
        self._surest = surest
        self._membership = membership
        self._leases = leases
        self._takeover = takeover
        self._peers = peers
        self._pending = pending
        self._store = store
        self._tasks = tasks
        self._connected = connected
        self._turns: OwnTurns | None = None
        # What is being stopped for somebody here, by user and exchange.
        self._stopping: set[tuple[str, str]] = set()
        self.on_full: Callable[[str], None] = lambda _user_id: None
        """Called with a user whose sockets are too many, as another instance has found."""
        self.on_changed: Callable[[Session], None] = lambda _session: None
        """Called with a session that another instance has changed outside a turn."""

    def serve(self, turns: OwnTurns) -> None:
        """Begin to act on messages of other instances. Call it before the membership renews."""
        self._turns = self._takeover.turns = turns
        self._membership.on_message = self._act_on
        self._membership.on_deaf = self._leases.lose_all
        self._membership.on_lost = self._let_go

    def _let_go(self) -> None:
        self._leases.end_term()  # another instance may have the session even if its turn has yet to begin
        self._takeover.note_loss()
        self._own.let_go()

    async def mirror(self, turn: Turn) -> bool:
        """See `Elsewhere`."""
        give_up_at = time.monotonic() + self._membership.rules.mirror_s
        backoff = Backoff(longest_s=0.25)
        losses = 0
        while True:
            seq = turn.next_seq
            try:
                found = await self._follow(turn)
            except PeerLost:
                losses += 1
                found = None if losses < _LOSSES else False
            except (HistoryUnavailable, StorageFull):
                # A client that has seen some of it waits for the rest: for Postgres, or until that has the end of the
                # turn.
                if not turn.has_published or time.monotonic() > give_up_at:
                    raise
                found = None
            if found is not None:
                return found
            if turn.next_seq != seq:
                give_up_at = time.monotonic() + self._membership.rules.mirror_s
                backoff.reset()
            elif time.monotonic() > give_up_at:
                raise HistoryUnavailable("no instance goes on with the turn", retry_after_s=1.0)
            await asyncio.sleep(backoff.next_s())

    async def find(self, exchange_id: str, user_id: str) -> AskRecord | None:
        """See `Elsewhere`."""
        asked = {"exchange_id": exchange_id, "user_id": user_id}
        holder = await self._look_up("holder_of_exchange", HOLDER_OF_EXCHANGE, asked)
        if holder is None or holder.holder == self._me:
            return None
        return AskRecord.decode(holder.ask.encode())

    async def newest(self, sessions: Sequence[tuple[str, str]]) -> list[NewestElsewhere]:
        """See `Elsewhere`."""
        session_ids, user_ids = [one for one, _ in sessions], [user for _, user in sessions]
        asked = {"session_ids": session_ids, "user_ids": user_ids, "me": self._me}
        rows = await self._queries.fetch("newest_elsewhere", NEWEST_ELSEWHERE, asked)
        return [NewestElsewhere(row.session_id, row.user_id, row.exchange_id, row.next_rank) for row in rows]

    async def stop(self, exchange_id: str, user_id: str) -> bool:
        """See `Elsewhere`."""
        asked = {"exchange_id": exchange_id, "user_id": user_id}
        holder = await self._look_up("holder_of_exchange", HOLDER_OF_EXCHANGE, asked)
        if holder is None:
            return False
        if holder.holder == self._me:
            if self._stop_here(exchange_id, user_id):
                return True
            if self._waits_for_postgres((holder.session_id, user_id), exchange_id):
                return False  # it has ended
        cancel = Message("cancel", holder.session_id, user_id, exchange_id, to=holder.holder, sender=self._me)
        if holder.holder != self._me:
            await self._bus.send(cancel)
        if (user_id, exchange_id) not in self._stopping:
            self._stopping.add((user_id, exchange_id))
            self._tasks.spawn("cancel-again", lambda: self._cancel_again(cancel))
        return True

    async def forget(self, session_id: str, user_id: str) -> None:
        """See `Elsewhere`."""
        forget = Message("forget", session_id, user_id, sender=self._me)
        await self._bus.send(forget)
        self._leases.lose((session_id, user_id))
        begun_at, resent = time.monotonic(), self._surest is self._bus
        while (waited_s := time.monotonic() - begun_at) < _FORGET_S:
            holder = await self._holder_of(session_id, user_id)
            if holder is None or holder.exchange_id is None or holder.holder == self._me or not holder.alive:
                return
            if waited_s > _RESEND_S and not resent:
                resent = True
                await self._surest.send(forget)
            await asyncio.sleep(_FORGET_PAUSE_S)

    async def has_takers(self) -> bool:
        """See `Elsewhere`."""
        rules, me = self._membership.rules, {"me": self._me}
        try:
            # The workers of a host get their signals together: each first announces that it takes no turns.
            await self._queries.fetch("say_draining", SAY_DRAINING, me)
            await asyncio.sleep(rules.signals_s)
            ((takers,),) = await self._queries.fetch("takers", TAKERS, {**me, "gap_s": rules.gap_s})
        except HistoryUnavailable:
            return False
        return bool(takers)

    async def hand_over(self, session_id: str, user_id: str, exchange_id: str) -> None:
        """See `Elsewhere`."""
        key = (session_id, user_id)
        self._leases.lose(key)
        # While anything of the session waits for Postgres, no other instance knows what came before: the turn waits
        # until this instance has left.
        if not self._pending.holds(key):
            asked = {"session_id": session_id, "me": self._me, "exchange_id": exchange_id}
            with suppress(HistoryUnavailable):
                await self._queries.fetch("hand_over", HAND_OVER, asked)

    async def publish_change(self, session_id: str, user_id: str) -> None:
        """See `Elsewhere`."""
        try:
            # The message reaches the running turn at some time. The holder of the next turn must not depend on that.
            await self._queries.fetch("void_lease", VOID_LEASE, {"session_id": session_id, "me": self._me})
            await self._bus.send(Message("changed", session_id, user_id, sender=self._me))
        except HistoryUnavailable:
            # Without a spool there was no change either. One that is in a spool reaches Postgres unannounced: an
            # instance that remembers the session sees it once its lease moves, or after it was away itself.
            logger.warning("a change of a session could not be told to other instances")

    async def report_full(self, instance: str, user_id: str) -> None:
        """Have an instance see which sockets of a user it must close. Raises `HistoryUnavailable`."""
        await self._bus.send(Message("full", "", user_id, to=instance, sender=self._me))

    async def _follow(self, turn: Turn) -> bool | None:
        """Follow the turn once: True after its end, False if no instance has it, None to look again."""
        ask = turn.ask
        holder = await self._holder_of(ask.session_id, ask.user_id)
        if holder is None:
            return False
        is_open = holder.exchange_id == ask.exchange_id
        if holder.holder == self._me:
            return await self._follow_here(turn, is_open=is_open)
        if not holder.alive or holder.url is None:
            return None if is_open else False
        if turn.cancel_requested:
            await self.stop(ask.exchange_id, ask.user_id)
        events = self._peers.follow(
            holder.url,
            holder.token,
            user_id=ask.user_id,
            session_id=ask.session_id,
            exchange_id=ask.exchange_id,
            after=max(turn.next_seq - 1, turn.begins_after),
            on_ask=lambda asked: _take_ask(turn, asked),
        )
        self._connected(1)
        try:
            await mirror(turn, _while_followed(turn, events))
        except _Unfollowed:
            return True
        except TurnNotThere:
            return None if is_open else False
        except PeerLost as lost:
            logger.info("an instance was lost while its turn was followed: %s", lost)
            if not is_open:
                raise  # history has it, but in different events
            return None
        finally:
            self._connected(-1)
        if not turn.ended and not turn.has_published and turn.begins_after:
            turn.end_unseen()
        return True if turn.ended else None

    async def _follow_here(self, turn: Turn, *, is_open: bool) -> bool | None:
        """The same for a turn that this instance has itself, because it took it over or continues it."""
        ask = turn.ask
        running = self._own.runs(ask.exchange_id, ask.user_id)
        if running is not None:
            if running.ask.session_id != ask.session_id:
                return False
            if turn.cancel_requested:
                running.cancel()
            await _copy(running, turn)
            if turn.ended:
                return True
            # The follower has all of that: its run is one that a person let continue.
        if self._waits_for_postgres((ask.session_id, ask.user_id), ask.exchange_id):
            raise StorageFull(retry_after_s=1.0)  # it has ended
        if not is_open:
            return False
        await self._takeover.retake(ask.session_id, ask.user_id, ask.exchange_id)
        return None

    async def _holder_of(self, session_id: str, user_id: str) -> AnyRow | None:
        asked = {"session_id": session_id, "user_id": user_id}
        return await self._look_up("holder_of_session", HOLDER_OF_SESSION, asked)

    async def _look_up(self, op: str, statement: TextClause, asked: Mapping[str, object]) -> AnyRow | None:
        rows = await self._queries.fetch(op, statement, {**asked, "dead_s": self._membership.rules.dead_s})
        return rows[0] if rows else None

    def _waits_for_postgres(self, key: Key, exchange_id: str) -> bool:
        """Whether the end of a turn of this session does, here."""
        return any(op.exchange_id == exchange_id for op in self._pending.turns(key))

    def _stop_here(self, exchange_id: str, user_id: str) -> bool:
        """Whether it runs here."""
        running = self._own.runs(exchange_id, user_id)
        if running is not None:
            running.cancel()
        return running is not None

    async def _cancel_again(self, cancel: Message) -> None:
        """Messages are not acknowledged, and some are lost: in Redis, on the way to an instance that has just lost
        Postgres, or if the turn moves, or is released and taken again. Postgres knows whether the turn has ended."""
        give_up_at = time.monotonic() + self._membership.rules.mirror_s
        try:
            while time.monotonic() < give_up_at:
                await asyncio.sleep(_RESEND_S)
                with suppress(HistoryUnavailable):
                    if await self._ended_or_signalled(cancel):
                        return
        finally:
            self._stopping.discard((cancel.user_id, cancel.exchange_id))

    async def _ended_or_signalled(self, cancel: Message) -> bool:
        """Whether the turn has ended, or is stopped here. Tells it to whom else it is now."""
        asked = {"exchange_id": cancel.exchange_id, "user_id": cancel.user_id}
        holder = await self._look_up("holder_of_exchange", HOLDER_OF_EXCHANGE, asked)
        if holder is None:
            return True
        if holder.holder == self._me:
            return self._stop_here(cancel.exchange_id, cancel.user_id)
        if holder.alive:
            await self._surest.send(replace(cancel, to=holder.holder))
        return False

    def _act_on(self, message: Message) -> None:
        session_id, user_id = message.session_id, message.user_id
        if message.kind == "cancel":
            running = self._own.runs(message.exchange_id, user_id)
            if running is not None:
                running.cancel()
        elif message.kind == "forget":
            self._leases.lose((session_id, user_id))
            self._tasks.spawn("forget", lambda: self._own.forget_here(session_id, user_id))
        elif message.kind == "full":
            self.on_full(user_id)
        else:
            self._leases.lose((session_id, user_id))
            self._tasks.spawn("reread", lambda: self._reread(session_id, user_id))

    async def _reread(self, session_id: str, user_id: str) -> None:
        try:
            session = await self._store.get(session_id, user_id)
        except HistoryUnavailable:
            return  # the next turn reads it
        if session is not None:
            self._own.reread(session)
            self.on_changed(session)

    @property
    def _me(self) -> str:
        return self._membership.identity.id

    @property
    def _own(self) -> OwnTurns:
        assert self._turns is not None
        return self._turns


def _take_ask(turn: Turn, asked: Ask) -> None:
    """Give a mirror what was asked. What happens without followers is up to its own clients."""
    mine = turn.ask
    turn.ask = replace(asked, on_disconnect=mine.on_disconnect, credentials=mine.credentials)


async def _while_followed(turn: Turn, events: AsyncGenerator[list[TurnEvent]]) -> AsyncGenerator[list[TurnEvent]]:
    """The events for as long as anybody follows the turn, and a moment longer. Raises `_Unfollowed`."""
    followed_at = time.monotonic()
    async with aclosing(events):
        async for batch in events:
            yield batch
            now = time.monotonic()
            if turn.followed or turn.awaited:
                followed_at = now
            elif now - followed_at > _UNFOLLOWED_S:
                raise _Unfollowed


async def _copy(source: Turn, turn: Turn) -> None:
    """Publish the events of one turn in another, until the end of the one."""
    more = asyncio.Event()
    source.follow(more.set)
    try:
        cursor = source.after(turn.begins_after)
        while not turn.ended:
            more.clear()
            while cursor < len(source.events) and not turn.ended:
                turn.take(source.events[cursor])
                cursor += 1
            if source.ended:
                return
            if not turn.ended:
                await more.wait()
    finally:
        source.unfollow(more.set)
