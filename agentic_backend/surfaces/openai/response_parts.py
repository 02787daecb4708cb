"""Where a response is: in which turn, among which of its events, and which numbers its events have.

An exchange is one response, plus one for each answer of a person whom its agent asked. It is looked for among the turns
of this process, then in history.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agentic_backend.events import ChatMessage
from agentic_backend.session.models import Session
from agentic_backend.session.past_exchanges import StoredExchange
from agentic_backend.session.stream import Accepted, Ask, Awaiting, Payload, Terminal, Turn, Whole
from agentic_backend.surfaces.follow import whole_events
from agentic_backend.surfaces.openai.errors import CannotNow, NoResponse
from agentic_backend.surfaces.openai.response_events import OF_A_RERUN, ResponseEvents
from agentic_backend.surfaces.openai.response_object import (
    NOTE,
    Requested,
    ResponseId,
    ResponseObject,
    Status,
    seconds_of,
)
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity

AT: Final = "response_id"
"""The field in which a request names its response."""
STARTING_AFTER: Final = "starting_after"


@dataclass(frozen=True, slots=True)
class Part:
    """A response in its turn, which ends with it or still runs: from the event at the index `place` on.

    `first` is the number of its first event, None if the numbers are not those that clients saw while it ran.
    """

    name: ResponseId
    requested: Requested
    turn: Turn
    place: int
    first: int | None

    def events(self, page: str) -> ResponseEvents:
        """Its events, none taken."""
        return ResponseEvents(ResponseObject(self.name, self.requested), page, self.first or 0)

    def as_it_is(self, page: str) -> dict[str, Any]:
        """The response so far."""
        events, waits = self.events(page), True
        for place, payload in whole_events(self.turn):
            if place >= self.place:
                waits = waits and is_waiting(payload)
                events.take(payload)
        status: Status = "queued" if waits else "in_progress"
        return events.as_it_is(status)

    def behind(self, after: int, page: str) -> tuple[int, ResponseEvents]:
        """Where to continue for a client that has all events up to this number: the index of the first event with
        something new, and the events taken up to there. Raises CannotNow if that is not known."""
        first = self.first
        if first is None or after < first:
            raise _renumbered()
        probe, events, log = self.events(page), self.events(page), self.turn.events
        for place in range(self.place, len(log)):
            payload = log[place].payload
            probe.take(payload)
            if probe.last >= after:
                return place, events
            events.take(payload)
        raise _renumbered()


def _renumbered() -> CannotNow:
    return CannotNow(
        "The events of this response have other numbers now: ask for the stream without starting_after.",
        STARTING_AFTER,
        "events_renumbered",
    )


async def find_part(services: DoorServices, identity: Identity, response_id: str, field: str = AT) -> Part:
    """The caller's response with an id. Raises NoResponse if there is none, or it is another user's or of an agent that
    the caller may not ask, and whatever reading history may raise."""
    name = ResponseId.read(response_id)
    if name is None:
        raise NoResponse(field)
    part = None
    turn = await services.registry.locate(name.exchange_id, identity.uid)
    if turn is not None and turn.ask.session_id == name.session_id:
        part = part_of(turn, name)
    if part is None:
        part = part_of(await _stored_turn(services, identity.uid, name, field), name, told=True)
    if part is None or not identity.may_ask(part.turn.ask.agent_id):
        raise NoResponse(field)
    return part


async def _stored_turn(services: DoorServices, user_id: str, name: ResponseId, field: str) -> Turn:
    """The exchange from history, as a turn that has ended."""
    with services.kpi.phase("history_get"):
        session = await services.store.get(name.session_id, user_id)
        encoded = await services.store.exchange(name.session_id, user_id, name.exchange_id)
    if session is None or not encoded:
        raise NoResponse(field)
    stored = StoredExchange.decode(encoded)
    agent_id = stored.messages[-1].metadata.get("agent_id", session.agent_id)
    turn = Turn(Ask(session.id, agent_id, stored.question.text, name.exchange_id, user_id, time.perf_counter()))
    stored.publish(turn, session)
    return turn


def part_of(turn: Turn, name: ResponseId, *, told: bool = False) -> Part | None:
    """The response in a turn, None if the turn does not have it. `told` says that the turn was read from history."""
    begun = _begin(turn, name.rank)
    if begun is None:
        return None
    place, said = begun
    end, answered = _end(turn, place)
    asked = _asked(turn, said)
    if end is None and not answered:
        return Part(name, asked, turn, place, _first_of(turn))
    if end is None or end < len(turn.events):
        # The exchange continued after it: only this response, as a turn that ended with it.
        first = None if told or turn.restarted else 0
        return Part(name, asked, _cut(turn, place, end, answered), 0, first)
    return Part(name, asked, turn, place, _first_number(turn, place, told=told))


def _begin(turn: Turn, rank: int | None) -> tuple[int, ChatMessage | None] | None:
    """Where the response begins, and the user's message at its beginning, if that has been published."""
    messages = [(place, payload.message) for place, payload in whole_events(turn) if isinstance(payload, Whole)]
    if rank is None:
        if not messages:
            return (turn.shown_from, None) if turn.ask.human is None else None
        _, first = messages[0]
        return (turn.shown_from, first) if (first.role, first.channel) == ("user", "final") else None
    decisions = [(place, one) for place, one in messages if _is_decision(one)]
    for place, decided in decisions:
        if decided.rank == rank:
            return place, decided
    comes = turn.ask.human is not None and all(place < turn.earlier for place, _ in decisions)
    return (turn.earlier, None) if comes else None


def _end(turn: Turn, start: int) -> tuple[int | None, bool]:
    """The index after the last event of the response, None if it has not ended, and whether it ends at another answer
    of a person, as in history: then the index is that of the answer."""
    for place, payload in whole_events(turn):
        if place > start and isinstance(payload, Whole) and _is_decision(payload.message):
            return place, True
        if place >= start and isinstance(payload, Terminal):
            return place + 1, False
    return None, False


def _cut(turn: Turn, place: int, end: int | None, answered: bool) -> Turn:
    ask, events = turn.ask, turn.events
    alone = Turn(ask)
    for at in range(place, len(events) if end is None else end):
        alone.publish(events[at].payload)
    if answered and end is not None:
        # In history the answer replaces the question.
        payload = events[end].payload
        own = _noted(payload.message.metadata) if isinstance(payload, Whole) else None
        asked = {"question": own.answers} if own is not None and own.answers else {}
        alone.publish(Awaiting(asked, (), Session(ask.session_id, ask.user_id, ask.agent_id, "", "")))
    return alone


def _first_number(turn: Turn, place: int, *, told: bool) -> int | None:
    """The number of the first event of a response that has ended, together with its turn.

    History has the text and the steps, so their numbers are unchanged. It has a model's reasoning only if that is kept,
    and nothing of a run that was cut off.
    """
    end = turn.events[-1].payload
    messages = () if isinstance(end, Awaiting) else getattr(end, "messages", ())
    extras: Mapping[str, Any] = (messages[-1].metadata.get("extras") or {}) if messages else {}
    again = extras.get("restarted") is True
    first = OF_A_RERUN * extras.get("restarts", 1) if again else 0
    if not told and (again or not turn.restarted):
        return first
    if not messages or "interrupted_by" in extras:
        return None
    if "thinking_ms" in extras and "late_thoughts" not in extras and not _keeps_reasoning(turn, place):
        return None
    return first


def _first_of(turn: Turn) -> int:
    """The number of the first event of a response that has not ended yet."""
    return OF_A_RERUN * max(1, turn.runs_before) if turn.restarted else 0


def _keeps_reasoning(turn: Turn, start: int) -> bool:
    return any(
        place >= start
        and isinstance(payload, Whole)
        and (payload.message.metadata.get("extras") or {}).get("reasoning")
        for place, payload in whole_events(turn)
    )


def _asked(turn: Turn, said: ChatMessage | None) -> Requested:
    """The parameters of the response's request; for an exchange that another door began, as far as they are known."""
    own = _noted({"extras": {"note": turn.ask.note}} if said is None else said.metadata)
    if own is not None:
        return own
    return Requested(turn.ask.agent_id, seconds_of(said.timestamp) if said is not None else int(time.time()))


def _noted(metadata: Mapping[str, Any]) -> Requested | None:
    note = (metadata.get("extras") or {}).get("note") or {}
    own = note.get(NOTE)
    return None if own is None else Requested.noted(own)


def is_waiting(payload: Payload) -> bool:
    """Whether an event says that the turn is queued."""
    return isinstance(payload, Accepted) and payload.queue_position is not None


def _is_decision(message: ChatMessage) -> bool:
    return (message.role, message.channel) == ("user", "observation")
