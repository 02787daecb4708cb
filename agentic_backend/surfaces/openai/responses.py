"""`/v1/responses`: answers that are stored, can be fetched again, and continue without their client."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.follow import Follow
from agentic_backend.events import ChatMessage
from agentic_backend.llm.prompt import HistoryItem
from agentic_backend.session.stream import Ask, Cancelled, Failed, Payload, Turn, Whole
from agentic_backend.surfaces.follow import Following, follow_of, stop_turn, turn_stream, whole_events
from agentic_backend.surfaces.openai import reading
from agentic_backend.surfaces.openai.answer_reader import End, Failure, failure_of, page_of
from agentic_backend.surfaces.openai.answering import EncodedStream, WholeAnswer, failed
from agentic_backend.surfaces.openai.asked import is_task, is_temporary, session_id_of
from agentic_backend.surfaces.openai.asking import (
    EXCHANGE_HEADER,
    SESSION_HEADER,
    Wish,
    answer_to,
    ask_of,
    asked_again,
    expect_page,
    find_waiting,
    open_session,
    run_task,
)
from agentic_backend.surfaces.openai.earlier import Earlier, all_before, before
from agentic_backend.surfaces.openai.errors import CannotNow, Refused
from agentic_backend.surfaces.openai.people import in_words
from agentic_backend.surfaces.openai.response_events import ResponseEvents
from agentic_backend.surfaces.openai.response_input import read_input
from agentic_backend.surfaces.openai.response_object import Requested, ResponseId, ResponseObject
from agentic_backend.surfaces.openai.response_parts import AT, STARTING_AFTER, Part, find_part, is_waiting
from agentic_backend.surfaces.openai.response_request import ResponseRequest, read_response_request
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import dumps

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_NOTHING: Final = {"input_tokens": 0, "output_tokens": 0}
_PLACE_S: Final = 1.0
"""How long a background request waits for its slot, so that a refusal can be its response."""
_MOST_DIGITS: Final = 15


@dataclass(frozen=True, slots=True)
class _Begun:
    """A response that is about to begin: its ask, which goes to the registry of kept turns or to the other one."""

    name: ResponseId
    asked: Requested
    ask: Ask
    kept: bool
    headers: Mapping[str, str]

    def submit(self, services: DoorServices) -> Turn:
        """Start its turn."""
        return (services.registry if self.kept else services.unkept).submit(self.ask)


async def create_response(services: DoorServices, request: Request, identity: Identity) -> Response:
    """The response to `POST /v1/responses`. Raises ServiceError if it cannot be answered."""
    expect_page(services, request)
    wanted = _unless_temporary(read_response_request(await request.body()), request)
    page = page_of(services.public_url, request.scope["scheme"], request.headers)
    earlier = await _earlier(services, identity, wanted)
    conversation = read_input(wanted.input, earlier.open_calls if earlier is not None else ())
    if earlier is None and is_task(conversation):
        end = await run_task(services, request, identity, conversation)
        return _at_once(replace(wanted, store=False), ResponseId(str(uuid4()), str(uuid4())), end, {})
    given = [HistoryItem("system", wanted.instructions)] if wanted.instructions else []
    given += earlier.items if earlier is not None else ()
    wish = Wish(
        wanted.model,
        conversation,
        (*given, *conversation.history),
        wanted.tools,
        (*wanted.ignored, *sorted(conversation.left_out)),
        services.background_s if wanted.background else None,
        stays=wanted.background,
    )
    session_id = _session_id(request, identity, wanted, earlier)
    asked = _asked(wanted, conversation.history, earlier)
    note = asked.note() if session_id is not None else None
    ask, headers = ask_of(services, request, identity, wish, session_id, note)
    if session_id is None:
        name = ResponseId(ask.session_id, ask.exchange_id)
        return await _answer(services, request, wanted, _Begun(name, asked, ask, kept=False, headers=headers), page)
    headers[SESSION_HEADER] = session_id
    await open_session(services, ask)
    waiting = earlier.waiting if earlier is not None else await find_waiting(services, ask)
    if waiting is not None and ask.message and waiting.agent_id == ask.agent_id:
        headers[EXCHANGE_HEADER] = waiting.exchange_id
        resumed = answer_to(waiting, ask)
        if resumed is None:
            # It counts as the response that asked, so that it can be answered.
            asking = ResponseId.read(wanted.previous) if wanted.previous is not None else None
            asking = asking or ResponseId(session_id, waiting.exchange_id)
            words = asked_again(waiting)
            return _at_once(wanted, asking, End(words, words, spent=_NOTHING), headers)
        name = ResponseId(session_id, waiting.exchange_id, waiting.rank)
        ask = replace(resumed, note=replace(asked, answers=in_words(waiting.question)).note())
    else:
        name = ResponseId(session_id, ask.exchange_id)
    begun = _Begun(name, asked, ask, kept=True, headers=headers)
    if wanted.background and not wanted.stream:
        return await _in_background(services, begun, page)
    return await _answer(services, request, wanted, begun, page)


def _unless_temporary(wanted: ResponseRequest, request: Request) -> ResponseRequest:
    """The request; it keeps nothing if its front end says so. Raises Refused for such a request in the background."""
    if not is_temporary(request.headers):
        return wanted
    if wanted.background:
        raise Refused("background is not for temporary chats: nothing of them is kept.", "background", "invalid_value")
    return replace(wanted, store=False)


async def _earlier(services: DoorServices, identity: Identity, wanted: ResponseRequest) -> Earlier | None:
    if wanted.previous is not None:
        return await before(services, identity, wanted.previous)
    if wanted.conversation is not None:
        session_id = session_id_of(identity.uid, {}, {"session_id": wanted.conversation})
        assert session_id is not None, "it is not empty"
        return await all_before(services, identity, session_id)
    return None


def _session_id(request: Request, identity: Identity, wanted: ResponseRequest, earlier: Earlier | None) -> str | None:
    """The session of the response: that of the conversation that it continues, one that the request names, or a new
    one."""
    if not wanted.store:
        return None
    if earlier is not None:
        return earlier.session_id
    return session_id_of(identity.uid, request.headers, wanted.metadata) or str(uuid4())


def _asked(wanted: ResponseRequest, history: Sequence[HistoryItem], earlier: Earlier | None) -> Requested:
    # Results of the client's tools are in the question's message.
    items = list(history)
    if items and items[-1].role == "tool":
        while items and items[-1].role == "tool":
            items.pop()
    return Requested(
        model=wanted.model,
        created_at=int(time.time()),
        previous=wanted.previous,
        conversation=wanted.conversation,
        after=earlier.newest if earlier is not None and wanted.conversation is not None else None,
        instructions=wanted.instructions,
        background=wanted.background,
        store=wanted.store,
        metadata=wanted.metadata,
        before=tuple(items),
    )


async def _answer(
    services: DoorServices, request: Request, wanted: ResponseRequest, begun: _Begun, page: str
) -> Response:
    events = ResponseEvents(ResponseObject(begun.name, begun.asked), page)
    if wanted.stream:
        stream = EncodedStream(_Frames(events), begun.headers)
        return await turn_stream(
            services, request, begun.ask.user_id, lambda: follow_of(begun.submit(services)), stream
        )
    return WholeAnswer(partial(begun.submit, services), begun.headers, partial(_whole, events))


class _Frames:
    """Encodes a response as its numbered events. Implements `Encoder`."""

    def __init__(self, events: ResponseEvents, after: int = -1) -> None:
        """Its client has all events up to the number `after`."""
        self._events = events
        self._after = after

    @property
    def over(self) -> bool:
        """See `Encoder`."""
        return self._events.over

    def opening(self) -> bytes:
        """See `Encoder`."""
        return b""

    def encode(self, payload: Payload) -> bytes:
        """See `Encoder`."""
        told = self._events.take(payload)
        if len(told) == 1:
            return told[0].frame(self._after)  # mostly: a token
        return b"".join([one.frame(self._after) for one in told])


def _whole(events: ResponseEvents, payloads: Sequence[Payload]) -> bytes | Failure:
    """The response of a turn that has ended, or why there is none."""
    end = payloads[-1]
    if isinstance(end, Failed | Cancelled):
        return failure_of(end)
    for payload in payloads:
        events.take(payload)
    return dumps(events.response)


async def _in_background(services: DoorServices, begun: _Begun, page: str) -> Response:
    """The response once its turn has a slot, or has waited a while for one."""
    turn = begun.submit(services)
    with Following(turn) as following, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PLACE_S):
            async for event in following:
                if not is_waiting(event.payload):
                    break
    end = turn.events[-1].payload if turn.ended else None
    if isinstance(end, Failed) and end.session is None:
        return failed(failure_of(end), begun.headers)  # it was refused, and nothing of it is kept
    part = Part(begun.name, begun.asked, turn, turn.earlier, 0)
    return _json(part.as_it_is(page), begun.headers)


def _at_once(wanted: ResponseRequest, name: ResponseId, end: End, headers: Mapping[str, str]) -> Response:
    """An answer without a turn."""
    events = ResponseEvents(ResponseObject(name, _asked(wanted, (), None)), "")
    told = events.at_once(end.answer, end.spent)
    if not wanted.stream:
        return _json(events.response, headers)
    frames = b"".join(one.frame() for one in told)
    return Response(frames, 200, {**headers, "cache-control": "no-store"}, _EVENTS)


async def retrieve_response(services: DoorServices, request: Request, identity: Identity, response_id: str) -> Response:
    """Handles `GET /v1/responses/{id}`: the response as it is, or the stream of its events from a number on. Raises
    ServiceError where there is none, or where the number is not known any more."""
    query = request.query_params
    page = page_of(services.public_url, request.scope["scheme"], request.headers)
    streams = query.get("stream", "").lower() in ("true", "1")
    after = _starting_after(query.get(STARTING_AFTER))
    part = await _found(services, request, identity, response_id)
    if not streams:
        return _json(part.as_it_is(page), {})
    place, events = (part.place, part.events(page)) if after is None else part.behind(after, page)
    stream = EncodedStream(_Frames(events, -1 if after is None else after), {})
    return await turn_stream(services, request, identity.uid, lambda: Follow(part.turn, place), stream)


async def _found(services: DoorServices, request: Request, identity: Identity, response_id: str) -> Part:
    expect_page(services, request)
    return await find_part(services, identity, response_id)


def _starting_after(given: str | None) -> int | None:
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _MOST_DIGITS):
        raise reading.wrong(STARTING_AFTER, "a sequence_number")
    return int(given)


async def cancel_response(services: DoorServices, request: Request, identity: Identity, response_id: str) -> Response:
    """Handles `POST /v1/responses/{id}/cancel`: the response after that. One that has ended stays as it is."""
    page = page_of(services.public_url, request.scope["scheme"], request.headers)
    part = await _found(services, request, identity, response_id)
    await stop_turn(part.turn)
    return _json(part.as_it_is(page), {})


async def delete_response(services: DoorServices, request: Request, identity: Identity, response_id: str) -> Response:
    """Handles `DELETE /v1/responses/{id}`: its session is deleted with it. Raises CannotNow if that has other
    responses."""
    part = await _found(services, request, identity, response_id)
    name, ran = part.name, not part.turn.ended
    await stop_turn(part.turn)
    others = await services.store.exchange_ids(name.session_id, identity.uid, 2) - {name.exchange_id}
    # A turn that has just ended frees its slot a moment later.
    if others or (not ran and services.registry.knows(name.session_id, identity.uid, 0.0)):
        sentence = (
            "Its conversation has other responses, which build on it. "
            f"DELETE {services.base_url}/chatbot/session/{name.session_id} deletes them all."
        )
        raise CannotNow(sentence, AT)
    await services.sessions.delete(name.session_id, identity)
    return _json({"id": response_id, "object": "response", "deleted": True}, {})


async def input_items(services: DoorServices, request: Request, identity: Identity, response_id: str) -> Response:
    """Handles `GET /v1/responses/{id}/input_items`: what the request had, without what it referred to. Raises Refused
    for an unknown `order`, and where there is no such response."""
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Refused("order must be asc or desc.", "order", "invalid_value")
    part = await _found(services, request, identity, response_id)
    messages = (payload.message for _, payload in whole_events(part.turn) if isinstance(payload, Whole))
    said = next((message for message in messages if message.role == "user"), None)
    items = [item for one in part.requested.before or () for item in _item(one)]
    items += _question(said) if said is not None else []
    named = [{"id": f"in_{part.name.key}_{number}", **item} for number, item in enumerate(items)]
    if order == "desc":
        named.reverse()
    ends = {"first_id": named[0]["id"], "last_id": named[-1]["id"]} if named else {"first_id": None, "last_id": None}
    return _json({"object": "list", "data": named, **ends, "has_more": False}, {})


def _question(message: ChatMessage) -> list[dict[str, Any]]:
    results = [part for part in message.parts if part.get("type") == "tool_result"]
    if results:
        return [_result(part["call_id"], str(part["content"])) for part in results]
    return [_message("user", "input_text", message.text)]


def _item(item: HistoryItem) -> list[dict[str, Any]]:
    """An item of a conversation as clients sent it; an assistant's calls are items of their own."""
    if item.role == "tool":
        return [_result(item.call_id, item.text)]
    if item.role != "assistant":
        return [_message(item.role, "input_text", item.text)]
    calls = [
        {
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }
        for call in item.calls
    ]
    return [*([_message("assistant", "output_text", item.text)] if item.text else []), *calls]


def _message(role: str, kind: str, text: str) -> dict[str, Any]:
    more: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": "message", "role": role, "status": "completed", "content": [{"type": kind, "text": text, **more}]}


def _result(call_id: str, output: str) -> dict[str, Any]:
    return {"type": "function_call_output", "status": "completed", "call_id": call_id, "output": output}


def _json(value: Any, headers: Mapping[str, str]) -> Response:
    return Response(dumps(value), 200, dict(headers), _JSON)
