"""The conversation before a request for a response, which names the response that it follows, or the conversation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from agentic_backend.events import Part, arguments_of, text_of
from agentic_backend.llm.prompt import EarlierCall, HistoryItem
from agentic_backend.session.branches import Branching
from agentic_backend.session.models import HistoryWindow
from agentic_backend.session.past_exchanges import OpenQuestion
from agentic_backend.session.stream import Final as Answered
from agentic_backend.session.stream import Turn
from agentic_backend.surfaces.openai.errors import CannotNow, NoResponse, Refused
from agentic_backend.surfaces.openai.messages import MAX_MESSAGES
from agentic_backend.surfaces.openai.people import in_words
from agentic_backend.surfaces.openai.response_object import NOTE, Requested, ResponseId, can_be_noted
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import loads

PREVIOUS: Final = "previous_response_id"
CONVERSATION: Final = "conversation"
MAX_BYTES: Final = 16 * 1024 * 1024
"""Of a conversation's messages, without what tools returned: no model reads as much."""

Message = Mapping[str, Any]
"""A ChatMessage, decoded."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """What comes before a request: its items, oldest first, the calls that the newest response left to the client, and
    the question with which that response waits for a person, if it does."""

    session_id: str
    items: tuple[HistoryItem, ...] = ()
    open_calls: frozenset[str] = frozenset()
    waiting: OpenQuestion | None = None
    newest: str | None = None
    """The exchange with which it ends, None if there is none."""


async def before(services: DoorServices, identity: Identity, previous: str) -> Earlier:
    """The conversation that ends with a response. Naming a response that is not the session's newest creates a branch.

    Raises NoResponse if the caller has no such response, CannotNow while it runs, and Refused if parts of the
    conversation were not kept.
    """
    name = ResponseId.read(previous)
    if name is None:
        raise NoResponse(PREVIOUS, _NOT_FOUND)
    turn = await services.registry.locate(name.exchange_id, identity.uid)
    if turn is not None and turn.ask.session_id == name.session_id and name.rank is None:
        remembered = _remembered(turn)
        if remembered is not None and identity.may_ask(turn.ask.agent_id):
            return remembered
    exchanges = await _exchanges(services, name.session_id, identity.uid, PREVIOUS)
    if name.exchange_id not in exchanges:
        if turn is not None and not turn.ended and turn.ask.session_id == name.session_id:
            raise CannotNow("The response before this one has not ended.", PREVIOUS)
        raise NoResponse(PREVIOUS, _NOT_FOUND)
    agent_id = exchanges[name.exchange_id][-1]["metadata"].get("agent_id")
    if agent_id is not None and not identity.may_ask(agent_id):
        raise NoResponse(PREVIOUS, _NOT_FOUND)
    chain = [*_chain(exchanges, name.exchange_id)]
    earlier = _earlier(name.session_id, [exchanges[one] for one in reversed(chain)], PREVIOUS)
    # In an exchange that waits, the response that asked comes after the last answer before that question.
    answers = [one["rank"] for one in exchanges[name.exchange_id] if _is_decision(one)]
    is_newest = name.exchange_id == next(reversed(exchanges)) and name.rank == (answers[-1] if answers else None)
    return earlier if is_newest else replace(earlier, waiting=None)


async def all_before(services: DoorServices, identity: Identity, session_id: str) -> Earlier:
    """The conversation of a session, which may be new, up to its newest exchange. Raises Refused as `before`."""
    turn = services.registry.newest(session_id, identity.uid)
    remembered = _remembered(turn) if turn is not None else None
    if remembered is not None:
        return remembered
    exchanges = await _exchanges(services, session_id, identity.uid, CONVERSATION)
    newest = next(reversed(exchanges), None)
    chain = [] if newest is None else [*_chain(exchanges, newest)]
    return _earlier(session_id, [exchanges[one] for one in reversed(chain)], CONVERSATION)


def _remembered(turn: Turn) -> Earlier | None:
    """The conversation that ends with a turn of this process, from what the turn was given. None if history must be
    read: the turn was not asked for at this door, has no plain answer, or did not have the whole conversation.
    """
    ask, end = turn.ask, turn.events[-1].payload if turn.ended else None
    noted = (ask.note or {}).get(NOTE)
    if noted is None or ask.given is None or ask.human is not None or not isinstance(end, Answered):
        return None
    asked = Requested.noted(noted)
    # In a conversation another exchange may have come between the reading and the turn.
    if asked.before is None or (asked.conversation is not None and asked.after != turn.follows):
        return None
    given = ask.given
    if asked.instructions:
        given = given[1:]
    elif given and given[0].role == "system" and not can_be_noted(given[0].text):
        return None  # instructions, which apply to one request only
    question = [HistoryItem("user", ask.message)] if ask.message else []
    answer = end.messages[-1]
    said = HistoryItem("assistant", _answer(answer.parts, answer.metadata), calls=_calls(answer.parts))
    items = (*given, *question, *([said] if said.text or said.calls else []))
    if len(items) > MAX_MESSAGES:
        return None
    open_calls = frozenset(call.id for call in items[-1].calls)
    return Earlier(ask.session_id, items, open_calls, newest=ask.exchange_id)


_NOT_FOUND: Final = "previous_response_not_found"


async def _exchanges(services: DoorServices, session_id: str, user_id: str, field: str) -> dict[str, list[Message]]:
    """The session's exchanges with their messages, oldest first, superseded ones, too. Raises Refused above
    `MAX_BYTES`."""
    exchanges: dict[str, list[Message]] = {}
    kept = 0
    with services.kpi.phase("history_get"):
        async for page in services.store.pages(session_id, user_id, HistoryWindow(branches=True)):
            messages = page.messages
            if page.large is not None:
                messages = [await _large(services, session_id, user_id, page.large, field)]
            for encoded in messages:
                message = loads(encoded)
                if message["role"] == "tool":
                    message["parts"] = []  # no later request has what tools returned
                else:
                    kept += len(encoded)
                exchanges.setdefault(message["exchange_id"], []).append(message)
            _expect_bounded(kept, field)
    return exchanges


async def _large(services: DoorServices, session_id: str, user_id: str, rank: int, field: str) -> bytes:
    message = bytearray()
    async for piece in services.store.message(session_id, user_id, rank):
        message += piece
        _expect_bounded(len(message), field)
    return bytes(message)


def _expect_bounded(size: int, field: str) -> None:
    if size > MAX_BYTES:
        raise Refused(f"{field} names a conversation of more than {MAX_BYTES >> 20} MiB.", field, "invalid_value")


def _chain(exchanges: Mapping[str, list[Message]], newest: str) -> Iterable[str]:
    """The exchanges that lead to one, newest first. Each follows the exchange that it named or, in a conversation or at
    another door, the one after which it began. The request of an exchange that named none had all that comes before it.
    """
    order = list(exchanges)
    ends = {messages[-1]["rank"]: id_ for id_, messages in exchanges.items()}
    seen: set[str] = set()
    here: str | None = newest
    while here is not None and here in exchanges and here not in seen:
        seen.add(here)
        yield here
        asked = _asked(exchanges[here][0])
        if asked is None or asked.conversation is not None:
            after_rank = Branching.from_metadata(exchanges[here][0]["metadata"]).after_rank
            place = order.index(here)
            before = order[place - 1] if place else None
            here = before if after_rank is None else ends.get(after_rank)
        else:
            previous = ResponseId.read(asked.previous) if asked.previous else None
            here = previous.exchange_id if previous is not None else None


def _earlier(session_id: str, exchanges: list[list[Message]], field: str) -> Earlier:
    items: list[HistoryItem] = []
    for messages in exchanges:
        asked = _asked(messages[0])
        if asked is not None and asked.before is None:
            sentence = f"{field} names a conversation of which not all was kept: it began with more than 64 KiB."
            raise Refused(sentence, field, "conversation_not_kept")
        items.extend(asked.before or () if asked is not None else ())
        items.extend(_history_of(messages))
        if len(items) > MAX_MESSAGES:
            raise Refused(f"{field} names a conversation of more than {MAX_MESSAGES} messages.", field, "invalid_value")
    open_calls = frozenset(call.id for call in items[-1].calls) if items else frozenset[str]()
    if not exchanges:
        return Earlier(session_id)
    newest = exchanges[-1]
    return Earlier(session_id, tuple(items), open_calls, OpenQuestion.in_message(newest[-1]), newest[-1]["exchange_id"])


def _history_of(messages: list[Message]) -> list[HistoryItem]:
    """The question and the answer of an exchange."""
    question, answer = messages[0], messages[-1]
    results = [part for part in question["parts"] if part.get("type") == "tool_result"]
    items = [HistoryItem("tool", str(part["content"]), call_id=part["call_id"]) for part in results]
    if not results:
        items.append(HistoryItem("user", text_of(question["parts"])))
    waiting = OpenQuestion.in_message(messages[-1])
    text = in_words(waiting.question) if waiting is not None else _answer(answer["parts"], answer["metadata"])
    calls = _calls(answer["parts"])
    return [*items, HistoryItem("assistant", text, calls=calls)] if text or calls else items


def _answer(parts: Sequence[Part], metadata: Mapping[str, Any]) -> str:
    """What the agent said; without the apology of a turn that failed."""
    texts = [part for part in parts if part.get("type") == "text"]
    return text_of(texts[:-1] if "error" in (metadata.get("extras") or {}) else texts)


def _calls(parts: Sequence[Part]) -> tuple[EarlierCall, ...]:
    return tuple(
        EarlierCall(part["call_id"], part["name"], arguments_of(part))
        for part in parts
        if part.get("type") == "tool_call"
    )


def _is_decision(message: Message) -> bool:
    return (message["role"], message["channel"]) == ("user", "observation")


def _agent(message: Message) -> str:
    return str(message["metadata"].get("agent_id", ""))


def _asked(question: Message) -> Requested | None:
    noted = (_extras(question).get("note") or {}).get(NOTE)
    return None if noted is None else Requested.noted(noted)


def _extras(message: Message) -> Mapping[str, Any]:
    return message["metadata"].get("extras") or {}
