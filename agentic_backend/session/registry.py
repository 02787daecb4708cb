"""The turns of this process: which run, which wait, which ended recently, and how they are drained."""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from agentic_backend.errors import (
    AgentNotFound,
    Conflict,
    Draining,
    ExchangeNotFound,
    HistoryUnavailable,
    NotAwaiting,
    SessionBusy,
    SessionNotFound,
    StorageFull,
)
from agentic_backend.events import ChatMessage, utc_now
from agentic_backend.session.admission import Admission
from agentic_backend.session.models import AskRecord, Session
from agentic_backend.session.past_exchanges import KnownSession, StoredExchange
from agentic_backend.session.restarts import RestartRules, Restarts, ask_of
from agentic_backend.session.store import CutOffTurns, HeldElsewhere, LeaseLost, SessionAwaited, TurnLog
from agentic_backend.session.stream import Ask, Awaiting, Cancelled, Failed, Final, Turn
from agentic_backend.session.turn import TurnRunner, refuse
from agentic_backend.session.turn_report import loggable
from agentic_backend.session.watches import GONE, OnTurn, Watches
from backend_kit.aio import TaskRegistry
from backend_kit.auth import KeyScope, ScopeMissing
from backend_kit.wire import Code, ServiceError

logger = logging.getLogger(__name__)

_Key = tuple[str, str]
"""(user id, session or exchange id): different users have different keys, so they can neither see nor block each
other."""


@dataclass(frozen=True, slots=True)
class RegistryRules:
    """How much a registry keeps, and how long it waits."""

    kept_s: float = 120.0
    """Seconds that an ended turn is kept for clients that reconnect."""
    kept_bytes: int = 16 * 1024 * 1024
    """Total bytes of ended turns; the oldest are dropped first."""
    idle_sessions: int = 10_000
    """How many sessions without a running turn are remembered."""
    queued_per_session: int = 8
    """How many asks may wait for the same session."""
    cancelled_end_s: float = 5.0
    """Seconds that a drain waits for turns that it cancelled."""
    by_session: bool = True
    """Whether a session runs one turn at a time and is remembered after it; else each ask stands alone."""


@dataclass(slots=True)
class _Slot:
    """A session of this process: its state after its last turn, that turn's exchange, the running turn, the waiting
    ones."""

    known: KnownSession | None = None
    newest: str | None = None
    running: Turn | None = None
    waiting: deque[tuple[asyncio.Future[None], Turn]] = field(default_factory=deque)


class TurnRegistry:
    """Starts turns, one at a time a session, and keeps what they emitted for a while after their end."""

    def __init__(
        self,
        *,
        runner: TurnRunner,
        admission: Admission,
        log: TurnLog,
        tasks: TaskRegistry,
        rules: RegistryRules | None = None,
    ) -> None:
        self._rules = rules or RegistryRules()
        self._restarts: Restarts | None = None
        self._runner = runner
        self._admission = admission
        self._log = log
        self._tasks = tasks
        self._turns: dict[_Key, Turn] = {}
        # Those that other instances run, and that somebody follows here.
        self._mirrors: dict[_Key, Turn] = {}
        self._ended: OrderedDict[_Key, Turn] = OrderedDict()
        self._ended_bytes = 0
        self._ended_events = 0
        self._slots: OrderedDict[_Key, _Slot] = OrderedDict()
        self._watches = Watches()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.draining = False
        # Another instance continues what this one leaves.
        self._moving = False

    @property
    def running(self) -> int:
        """Turns that have no terminal event yet."""
        return len(self._turns)

    @property
    def replay_events(self) -> int:
        """Events of ended turns that are still kept."""
        return self._ended_events

    @property
    def replay_bytes(self) -> int:
        """Bytes of ended turns that are still kept."""
        return self._ended_bytes

    def submit(self, ask: Ask) -> Turn:
        """Start the turn of an ask, or find the one that it repeats. Never waits and never raises.

        If the ask is refused, the refusal is the returned turn's first and only event.
        """
        key = (ask.user_id, ask.exchange_id)
        known = self._turns.get(key) or self._ended.get(key)
        # An answer to a remembered question: the events of the exchange continue from there.
        before = known if ask.human is not None and known is not None and _awaits(known, ask) else None
        turn = Turn(ask, before)
        try:
            _expect_allowed(ask)
            if ask.human is None and known is not None and ask.repeats(known.ask):
                known = self._turns.get(key) or self._kept(key)
                if known is not None:
                    return known
            if known is not None and before is None:
                raise _conflict_with(known.ask, ask)
            self._admit(ask)
        except ServiceError as error:
            refuse(turn, error)
            return turn
        self._start(key, turn)
        return turn

    def begin_again(
        self, turns: CutOffTurns, ready: Callable[[], Awaitable[None]], rules: RestartRules | None = None
    ) -> None:
        """Take over the turns of an earlier process, before any ask: each has its session and can be followed, and runs
        once `ready` returns. Call it only once."""
        self._restarts = Restarts(self._runner, turns, ready, rules)
        for turn in self._restarts.begin():
            self._start((turn.ask.user_id, turn.ask.exchange_id), turn)

    def take_up(self, cut: AskRecord) -> None:
        """Run a turn that another instance had begun, unless it runs here already. Only after `begin_again`."""
        assert self._restarts is not None
        turn = self._restarts.turn_of(cut)
        key = (turn.ask.user_id, turn.ask.exchange_id)
        if key not in self._turns:
            self._drop(key)
            slot, place = self._slots.get(self._slot_key(turn.ask)), None
            if slot is not None:
                slot.known = None  # it was another instance's meanwhile
                if slot.running is not None:
                    # What runs here waits for the session, in which this turn was accepted first.
                    slot.running.gives_way = slot.running.cut is None
                    place = _queue(slot, turn, first=True)
            self._start(key, turn, place)

    def turns_of(self, session_id: str, user_id: str) -> list[Turn]:
        """The session's turns that run or wait here, in the order in which they were asked."""
        mine = [turn for key, turn in self._turns.items() if key[0] == user_id]
        return [turn for turn in mine if turn.ask.session_id == session_id]

    def running_in(self, user_id: str) -> dict[str, str]:
        """The sessions of the user in which a turn runs here, or waits to, each with the agent of one."""
        turns = [turn for (owner, _), turn in self._turns.items() if owner == user_id and not turn.ended]
        return {turn.ask.session_id: turn.ask.agent_id for turn in reversed(turns)}

    def running_ids(self) -> list[str]:
        """The exchange ids of the turns that run here, or wait to."""
        return [turn.ask.exchange_id for turn in self._turns.values()]

    @property
    def mirrors(self) -> int:
        """How many turns of other instances, or from history, are streamed here."""
        return len(self._mirrors)

    def let_go(self) -> None:
        """End every run without an end event: other instances may continue them."""
        for turn in list(self._turns.values()):
            turn.abandon()

    def runs(self, exchange_id: str, user_id: str) -> Turn | None:
        """The user's turn that this process itself runs or has run lately, or None.

        One that asked a person only while it is the newest of its session here: they may have answered elsewhere.
        """
        key = (user_id, exchange_id)
        turn = self._turns.get(key) or self._ended.get(key)
        if turn is not None and turn.ended and isinstance(turn.events[-1].payload, Awaiting):
            slot = self._slots.get(self._slot_key(turn.ask))
            return turn if slot is not None and slot.newest == exchange_id else None
        return turn

    def find(self, exchange_id: str, user_id: str) -> Turn | None:
        """The user's turn, running or kept, or None."""
        key = (user_id, exchange_id)
        return self._turns.get(key) or self._mirrors.get(key) or self._kept(key)

    def _kept(self, key: _Key) -> Turn | None:
        """A turn that has ended, unless a person may have let it continue at another instance."""
        turn = self._ended.get(key)
        asked = turn is not None and isinstance(turn.events[-1].payload, Awaiting)
        return None if asked and self._runner.elsewhere is not None else turn

    async def locate(self, exchange_id: str, user_id: str) -> Turn | None:
        """The user's turn that runs, here or elsewhere, or has lately here; None where only history may have it. May
        raise `HistoryUnavailable`."""
        turn, elsewhere = self.find(exchange_id, user_id), self._runner.elsewhere
        if turn is not None or elsewhere is None:
            return turn
        cut = await elsewhere.find(exchange_id, user_id)
        if cut is None:
            return None
        turn = self.resume(cut.session.id, exchange_id, user_id)
        if not turn.ask.agent_id:
            turn.ask = ask_of(cut)
        return turn

    async def stop(self, exchange_id: str, user_id: str) -> bool:
        """Cancel the user's turn, wherever it runs; False if none does. May raise `HistoryUnavailable`."""
        turn = self.find(exchange_id, user_id)
        if turn is not None:
            turn.cancel()
            return not turn.ended
        elsewhere = self._runner.elsewhere
        return elsewhere is not None and await elsewhere.stop(exchange_id, user_id)

    def resume(self, session_id: str, exchange_id: str, user_id: str, request_id: str = "", after_seq: int = 0) -> Turn:
        """The user's turn, running or kept, else a copy from another instance or history. Never waits and never raises.

        One that another instance runs may begin after the event with number `after_seq`. `exchange_not_found` is the
        returned turn's only event if the session has no such exchange, or is another user's.
        """
        key = (user_id, exchange_id)
        turn = self.find(exchange_id, user_id)
        # Our copy of a turn that another instance runs may be behind: a client coming from there would get events
        # twice.
        tells = turn is not None and (self._runner.elsewhere is None or turn.continues_from(after_seq))
        if turn is not None and turn.ask.session_id == session_id and tells:
            return turn
        ask = Ask(session_id, "", "", exchange_id, user_id, time.perf_counter(), request_id=request_id)
        told = Turn(ask)
        told.begins_after = after_seq
        if self._runner.elsewhere is not None:
            self._mirrors[key] = told
            told.mirror_from_now_on()
        told.bind(self._tasks.spawn("tell", lambda: self._replay(told)))
        return told

    def watch(self, session_id: str, user_id: str, on_turn: OnTurn) -> Callable[[], None]:
        """Call `on_turn` when a turn of the session begins, here at once, at another instance within a second or two;
        until what is returned is called."""
        return self._watches.add(session_id, user_id, on_turn)

    async def watch_elsewhere(self) -> None:
        """Watch for turns that other instances begin in watched sessions, until cancelled."""
        if self._runner.elsewhere is not None:
            await self._watches.follow(self._runner.elsewhere)

    async def newest_elsewhere(self, session_id: str, user_id: str) -> str | None:
        """The exchange of the session that another instance runs; None if none does. Raises `HistoryUnavailable`."""
        elsewhere = self._runner.elsewhere
        found = [] if elsewhere is None else await elsewhere.newest([(session_id, user_id)])
        return found[0].exchange_id if found else None

    async def asked_now(self, session_id: str, user_id: str) -> ChatMessage | None:
        """The question of the exchange that runs in the session, here or elsewhere, which history does not have yet;
        None without one. Raises `HistoryUnavailable`."""
        for turn in self.turns_of(session_id, user_id):
            if turn.ask.human is None and not turn.ended and (question := turn.question) is not None:
                return question
        elsewhere, exchange_id = self._runner.elsewhere, await self.newest_elsewhere(session_id, user_id)
        cut = None if elsewhere is None or exchange_id is None else await elsewhere.find(exchange_id, user_id)
        return None if cut is None or cut.earlier is not None else cut.user_message

    async def forget(self, session_id: str, user_id: str) -> None:
        """Stop the session's turns and drop its state, here and elsewhere, because it is about to be deleted. May raise
        `HistoryUnavailable`."""
        if self._runner.elsewhere is not None:
            await self._runner.elsewhere.forget(session_id, user_id)
        await self.forget_here(session_id, user_id)

    async def forget_here(self, session_id: str, user_id: str) -> None:
        """Stop the session's turns and drop its state, in this process."""
        # Repeated until none is left: an ask that arrives while a turn ends still finds the session.
        while (slot := self._slots.pop((user_id, session_id), None)) is not None:
            for place, _ in slot.waiting:
                place.cancel()
            if slot.running is not None:
                slot.running.cancel()
                slot.running.forgotten = True
                await slot.running.wait_ended()
        self._watches.notify(session_id, user_id, None, GONE)
        for key, turn in list(self._ended.items()):
            if key[0] == user_id and turn.ask.session_id == session_id:
                self._drop(key)

    def update(self, session: Session) -> None:
        """Take over a session that changed outside a turn (created, renamed)."""
        key = (session.user_id, session.id)
        slot = self._slots.get(key)
        if slot is not None and slot.known is not None:
            slot.known = replace(slot.known, session=session)
        elif session.next_rank == 0:
            self._slot(key).known = self._runner.memory.know(session)
        # Otherwise its first turn reads it, together with its exchange ids.

    def look_again(self, session_id: str, user_id: str) -> None:
        """Drop what is known of a session: its next turn asks storage whether it exists."""
        slot = self._slots.get((user_id, session_id))
        if slot is not None:
            slot.known = None

    def newest(self, session_id: str, user_id: str) -> Turn | None:
        """The turn that gave the session's newest answer; None where only storage can tell: another one runs or has
        failed, it is kept no longer, or other processes run turns of the session."""
        slot = self._slots.get((user_id, session_id))
        if slot is None or slot.running is not None or slot.known is None or not self._runner.alone:
            return None
        turn = self._ended.get((user_id, slot.newest or ""))
        end = turn.events[-1].payload if turn is not None else None
        # An older exchange that was only replayed is not the newest.
        is_last = isinstance(end, Final) and end.messages[-1].rank + 1 == slot.known.session.next_rank
        return turn if is_last else None

    def session_of(self, session_id: str, user_id: str) -> Session | None:
        """The session as this process last knew it; None if it does not remember it."""
        slot = self._slots.get((user_id, session_id))
        return None if slot is None or slot.known is None else slot.known.session

    def knows(self, session_id: str, user_id: str, within_s: float) -> bool:
        """Whether a turn of the session runs, waits, or was here in the last `within_s` seconds."""
        slot = self._slots.get((user_id, session_id))
        if slot is None:
            return False
        lately = slot.known is not None and slot.known.used_within(within_s)
        return lately or slot.running is not None or bool(slot.waiting)

    async def prefer(self, session_id: str, user_id: str, preferences: dict[str, Any]) -> None:
        """Take over preferences that were stored, also for the turn that runs now, here or elsewhere."""
        self._take_over(session_id, user_id, preferences=preferences)
        await self._publish_change(session_id, user_id)

    async def rename(self, session_id: str, user_id: str, title: str) -> None:
        """Take over a title that was stored, also for the turn that runs now, here or elsewhere."""
        self._take_over(session_id, user_id, title=title)
        await self._publish_change(session_id, user_id)

    async def note_change(self, session: Session) -> None:
        """Take over what a person has changed of a session, its title or its pin, here and elsewhere."""
        self._take_over(session.id, session.user_id, title=session.title or None)
        await self._publish_change(session.id, session.user_id)

    def reread(self, session: Session) -> None:
        """Take over what another instance has stored of a session outside a turn."""
        self._take_over(session.id, session.user_id, preferences=session.preferences, title=session.title or None)

    def _take_over(
        self, session_id: str, user_id: str, *, preferences: dict[str, Any] | None = None, title: str | None = None
    ) -> None:
        slot = self._slots.get((user_id, session_id))
        if slot is None:
            return
        if slot.known is not None:
            slot.known = replace(slot.known, session=slot.known.session.preferring(preferences).titled(title))
        if slot.running is not None:
            slot.running.preferences = slot.running.preferences if preferences is None else preferences
            slot.running.title = slot.running.title if title is None else title

    async def _publish_change(self, session_id: str, user_id: str) -> None:
        if self._runner.elsewhere is not None:
            await self._runner.elsewhere.publish_change(session_id, user_id)

    def expire(self) -> None:
        """Drop ended turns above the age or the byte limit."""
        horizon = time.monotonic() - self._rules.kept_s
        while self._ended:
            key, turn = next(iter(self._ended.items()))
            if turn.ended_at > horizon and self._ended_bytes <= self._rules.kept_bytes:
                return
            self._drop(key)

    async def drain(self, deadline_s: float) -> int:
        """Refuse new turns, wait for the running ones, then cancel the rest. Returns how many were cancelled.

        Of an earlier process' turns, those that have not begun to run again are left interrupted at once. If another
        instance can continue, turns whose agents store steps move there after the next step, and none that may move is
        cancelled. Asks that wait for their session are refused: at once if there is another instance, else at the
        deadline, like everything that has not begun by then.
        """
        self.draining = True
        elsewhere = self._runner.elsewhere
        for turn in list(self._turns.values()):
            if turn.cut is not None and self._restarts is not None:
                self._restarts.leave(turn)
        try:
            async with asyncio.timeout(deadline_s):
                # Without anything to hand over there is no need to wait for an answer.
                self._moving = elsewhere is not None and bool(self._turns) and await elsewhere.has_takers()
                if self._moving:
                    logger.info("what does not end here goes on at another instance: %d turns run", len(self._turns))
                    for turn in self._turns.values():
                        turn.moves_after_step = True
                    self._refuse_waiting()
                await self._quiet.wait()
        except TimeoutError:
            self._refuse_waiting()
            stopped = self._move_or_stop()
            await self._wait_quiet(self._rules.cancelled_end_s)
            return stopped
        return 0

    def _move_or_stop(self) -> int:
        """End what runs, and refuse what has yet to begin. Returns how many do not move."""
        stopped = 0
        for turn in [turn for turn in self._turns.values() if not turn.ended]:
            if self._moving and turn.may_move and not turn.cancel_requested:
                turn.abandon()
            else:
                stopped += 1
                turn.refused_by_drain = not turn.cancel_requested
                turn.cancel()
        return stopped

    def _refuse_waiting(self) -> None:
        """What has not begun can be asked elsewhere, or of the next process."""
        for slot in self._slots.values():
            for place, turn in tuple(slot.waiting):
                if turn.cut is None and not (turn.ended or turn.cancel_requested):
                    refuse(turn, Draining(retry_after_s=2.0))
                    place.cancel()

    async def _wait_quiet(self, deadline_s: float) -> None:
        """Wait for cancelled turns. An agent that ignores its cancellation must not block the drain."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._quiet.wait()
        except TimeoutError:
            logger.error("%d turns did not end within %.1f s of their stop", len(self._turns), deadline_s)

    def _start(self, key: _Key, turn: Turn, place: "asyncio.Future[None] | None" = None) -> None:
        """Run the turn. `place` is its place, if any, among those that wait for its session."""
        self._turns[key] = turn
        turn.moves_after_step = self._moving  # one that was taken from the dead as the drain began
        self._quiet.clear()
        if self._admission.overall is None or turn.cut is not None:
            self._admission.enter_user(turn.ask.user_id)
            turn.counted = True
        turn.bind(self._tasks.spawn("turn", lambda: self._run(key, turn, place)))
        self._watches.notify(turn.ask.session_id, turn.ask.user_id, turn.ask.exchange_id)

    def _admit(self, ask: Ask) -> None:
        if self.draining:
            raise Draining(retry_after_s=2.0)
        if not self._log.has_room():
            raise StorageFull(retry_after_s=5.0)
        slot = self._slots.get(self._slot_key(ask))
        if slot is not None and slot.running is not None:
            self._expect_place(slot, ask)
        self._admission.check(ask.user_id)

    def _expect_place(self, slot: _Slot, ask: Ask) -> None:
        """Raise SessionBusy if an ask may not wait for its session, which runs another turn."""
        if ask.if_busy == "reject":
            raise SessionBusy(retry_after_s=1.0)
        if len(slot.waiting) >= self._rules.queued_per_session:
            self._admission.hit("asks_per_session")
            raise SessionBusy(retry_after_s=1.0)

    async def _replay(self, turn: Turn) -> None:
        key = (turn.ask.user_id, turn.ask.exchange_id)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                turn.begin()  # one that is stopped already is stopped where it runs
            await self._publish_elsewhere(turn)
        finally:
            if self._mirrors.get(key) is turn:
                del self._mirrors[key]
            _end_unforeseen(turn)

    async def _publish_elsewhere(self, turn: Turn) -> None:
        """Publish an exchange that this process does not run: as the instance does that runs it, else from history."""
        elsewhere, stopped = self._runner.elsewhere, turn.cancel_requested
        while True:
            try:
                if elsewhere is None or not await elsewhere.mirror(turn):
                    await self._runner.publish_past(turn)
                elif not turn.ended:
                    refuse(turn, ExchangeNotFound())  # nobody would see it
                return
            except (HistoryUnavailable, StorageFull) as error:
                refuse(turn, error)
                return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if stopped or not turn.cancel_requested or task is None:
                    if not turn.ended:
                        refuse(turn, Draining(retry_after_s=2.0))  # the process ends, and the turn goes on elsewhere
                    raise
                stopped = True  # by its user: followed again, it is stopped where it runs
                task.uncancel()

    async def _run(self, key: _Key, turn: Turn, place: "asyncio.Future[None] | None") -> None:
        slot = self._slot(self._slot_key(turn.ask))
        try:
            while not await self._run_in_session(slot, turn, place):
                slot = self._slot(self._slot_key(turn.ask))
                place = None if slot.running is None else _queue(slot, turn, first=True)
        except SessionBusy as error:
            refuse(turn, error)
        except HeldElsewhere:
            slot.known = None
            try:
                await self._expect_same_elsewhere(turn)
            except ServiceError as error:
                refuse(turn, error)
            else:
                await self._follow_elsewhere(key, turn)
        except LeaseLost:
            slot.known = None
            if self.draining and turn.may_move:
                await self._hand_over(turn)
            await self._follow_elsewhere(key, turn)
        except asyncio.CancelledError:
            # Only a turn that still waited for its session gets here: a running one publishes its own end.
            self._stopped_in_line(turn, slot.known)
        finally:
            self._end(key, turn)

    async def _run_in_session(self, slot: _Slot, turn: Turn, place: "asyncio.Future[None] | None") -> bool:
        """Run the turn once its session is free; False where it gave way to another one, and has yet to run."""
        slot_key = self._slot_key(turn.ask)
        await self._wait_for_session(slot_key, slot, turn, place)
        try:
            known = await self._runner_of(turn).run_turn(turn, slot.known)
            if known is not None:
                changed = known.session.preferring(turn.preferences).titled(turn.title)
                known = replace(known, session=changed)
            slot.known = known if self._rules.by_session else None
            slot.newest = turn.ask.exchange_id
        except SessionAwaited:
            turn.gives_way = False
            return False
        finally:
            self._free(slot_key, slot)
        return True

    async def _expect_same_elsewhere(self, turn: Turn) -> None:
        """Raise the error for an ask whose exchange another instance runs, if that was asked something else. Any answer
        of a person counts as something else: another answer let it continue, whether or not that run has ended
        since."""
        elsewhere, ask = self._runner.elsewhere, turn.ask
        if elsewhere is None or turn.cut is not None:
            return
        if ask.human is not None:
            raise NotAwaiting
        cut = await elsewhere.find(ask.exchange_id, ask.user_id)
        if cut is not None and not ask.repeats(ask_of(cut)):
            raise Conflict

    async def _hand_over(self, turn: Turn) -> None:
        """Have another instance continue a turn. A stop meanwhile goes to its mirror, which finds the turn there: if
        this were cut off in the middle, nobody would know whether the turn has moved."""
        elsewhere, ask = self._runner.elsewhere, turn.ask
        if elsewhere is None:
            return
        turn.bind(None)
        try:
            await elsewhere.hand_over(ask.session_id, ask.user_id, ask.exchange_id)
        except asyncio.CancelledError:
            refuse(turn, Draining(retry_after_s=2.0))  # the process ends, and the turn goes on elsewhere
            raise
        finally:
            turn.bind(asyncio.current_task())

    async def _follow_elsewhere(self, key: _Key, turn: Turn) -> None:
        """Continue as a mirror of a turn that another instance runs, or will run."""
        self._leave(key, turn)
        self._drop(key)  # what a person was asked before it
        self._mirrors[key] = turn
        turn.mirror_from_now_on(run_over=True)
        try:
            await self._publish_elsewhere(turn)
        finally:
            if self._mirrors.get(key) is turn:
                del self._mirrors[key]

    def _stopped_in_line(self, turn: Turn, known: KnownSession | None) -> None:
        ask = turn.ask
        if not turn.cancel_requested:
            if not turn.ended:
                refuse(turn, SessionNotFound())
        elif turn.cut is not None and self._restarts is not None:
            self._restarts.stopped(turn)
        else:
            session = known.session if known else Session(ask.session_id, ask.user_id, "", "", utc_now())
            turn.publish(Cancelled((), session.with_agent(ask.agent_id)))

    def _runner_of(self, turn: Turn) -> TurnRunner | Restarts:
        return self._runner if turn.cut is None or self._restarts is None else self._restarts

    async def _wait_for_session(self, key: _Key, slot: _Slot, turn: Turn, place: "asyncio.Future[None] | None") -> None:
        if place is None:
            turn.begin()
            if slot.running is not None:
                # Checked again: asks from one read were all admitted before any of them waited.
                self._expect_place(slot, turn.ask)
                place = _queue(slot, turn)
        if place is not None:
            try:
                turn.begin()
                if turn.ask.if_busy == "replace" and slot.running is not None:
                    slot.running.cancel()
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._free(key, slot)  # the session had been handed over in the same tick
                elif (place, turn) in slot.waiting:
                    slot.waiting.remove((place, turn))  # it would count against those who do wait
                raise
        slot.running = turn
        turn.follows = slot.newest

    def _free(self, key: _Key, slot: _Slot) -> None:
        while slot.waiting:
            place, turn = slot.waiting.popleft()
            if not place.done():
                # Handed over, not freed: a newcomer in between must find the session busy.
                slot.running = turn
                place.set_result(None)
                return
        slot.running = None
        if slot.known is None and self._slots.get(key) is slot:
            del self._slots[key]  # an unknown session: nothing to remember

    def _slot_key(self, ask: Ask) -> _Key:
        return (ask.user_id, ask.session_id if self._rules.by_session else ask.exchange_id)

    def _slot(self, key: _Key) -> _Slot:
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot()
            self._trim_slots()
        self._slots.move_to_end(key)
        return slot

    def _trim_slots(self) -> None:
        for key in tuple(islice(self._slots, max(0, len(self._slots) - self._rules.idle_sessions))):
            slot = self._slots[key]
            if slot.running is None and not slot.waiting:
                del self._slots[key]

    def _leave(self, key: _Key, turn: Turn) -> None:
        """Note that it no longer runs here, if it did."""
        if self._turns.get(key) is turn:
            del self._turns[key]
            if turn.counted:
                turn.counted = False
                self._admission.leave_user(turn.ask.user_id)
            if not self._turns:
                self._quiet.set()

    def _end(self, key: _Key, turn: Turn) -> None:
        _end_unforeseen(turn)
        mirrored = self._turns.get(key) is not turn
        self._leave(key, turn)
        # A turn that another instance ran is kept by that one.
        if not mirrored and not turn.forgotten and not _may_be_asked_again(turn):
            self._drop(key)
            self._ended[key] = turn
            self._ended_bytes += turn.bytes_held
            self._ended_events += len(turn.events)
            self.expire()

    def _drop(self, key: _Key) -> None:
        """Drop an ended turn, if it is kept."""
        turn = self._ended.pop(key, None)
        if turn is not None:
            self._ended_bytes -= turn.bytes_held
            self._ended_events -= len(turn.events)


def _queue(slot: _Slot, turn: Turn, *, first: bool = False) -> "asyncio.Future[None]":
    """A place for the turn among those that wait for the session, done once it is its turn."""
    place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    (slot.waiting.appendleft if first else slot.waiting.append)((place, turn))
    return place


def _end_unforeseen(turn: Turn) -> None:
    """End a turn after an unexpected failure, which the task's owner logs, so that its followers are notified."""
    if not turn.ended:
        logger.error("turn failed unexpectedly exchange_id=%s", loggable(turn.ask.exchange_id))
        turn.publish(Failed(Code.INTERNAL, refused=not turn.has_published, language=turn.ask.language))


def _may_be_asked_again(turn: Turn) -> bool:
    """Whether it was refused, not stored, or left as a restart cut it off: the same ask may be sent again, to run or be
    replayed."""
    end = turn.events[-1].payload
    if isinstance(end, Cancelled):
        return bool(end.messages) and StoredExchange(end.messages).cut_off
    return isinstance(end, Failed) and (end.session is None or end.code is Code.STORAGE_FULL)


def _awaits(turn: Turn, ask: Ask) -> bool:
    """Whether a turn ended with the question that this ask answers."""
    return turn.ended and turn.ask.session_id == ask.session_id and isinstance(turn.events[-1].payload, Awaiting)


def _conflict_with(known: Ask, ask: Ask) -> ServiceError:
    if ask.human is None:
        return Conflict()
    return NotAwaiting() if known.session_id == ask.session_id else ExchangeNotFound()


def _expect_allowed(ask: Ask) -> None:
    """Raise ScopeMissing or AgentNotFound for an ask beyond its key or its user's rights. Checked here, since every
    door submits its asks here."""
    grant = None if ask.credentials is None else ask.credentials.grant
    if grant is not None and not grant.may(KeyScope.ASK):
        raise ScopeMissing(field=f"scope:{KeyScope.ASK}")
    if ask.credentials is not None and not ask.credentials.may_ask(ask.agent_id):
        raise AgentNotFound
