"""What a RunAgentInput starts: the turn of a question or of a person's answer, or one that runs or ran already."""

import time
from functools import lru_cache
from typing import Any, Final
from uuid import UUID, uuid5

from starlette.requests import Request
from starlette.responses import Response

from agentic_backend.chat.follow import Follow
from agentic_backend.chat.handshake import traceparent_of
from agentic_backend.errors import AgentNotFound, ExchangeNotFound, MessageTooLong
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.stream import Ask, HumanAnswer, Turn
from agentic_backend.surfaces.agui.places import Position, Start, only_run, start_of_answer
from agentic_backend.surfaces.agui.reading import RunInput, read_input
from agentic_backend.surfaces.agui.stream import RunStream
from agentic_backend.surfaces.agui.writing import RunNames
from agentic_backend.surfaces.follow import refusal_of_stream
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.http import request_id
from backend_kit.wire import ServiceError

_THREADS: Final = UUID("6a0c7a9e-5f8e-5d0b-9c43-5b7f4b1d2a60")
"""The namespace of this door's sessions."""


@lru_cache(maxsize=2048)
def session_of(user_id: str, thread_id: str) -> str:
    """The session of a thread: always the same one for a user, and a different one for each user."""
    return str(uuid5(uuid5(_THREADS, user_id), thread_id))


async def ask_to_run(services: DoorServices, agent: str, request: Request, identity: Identity) -> Response:
    """The response to a request for a run, new or repeated. Raises ServiceError if the request cannot be read, or this
    caller has no such agent."""
    user_id = identity.uid
    try:
        run = read_input(await request.body(), services.max_message_chars)
    except MessageTooLong:
        services.limit_hit("max_message_chars")
        raise
    position = Position.read(request.headers.get("last-event-id"))
    agent_id = services.catalog.get(agent).id
    if not identity.may_ask(agent_id):
        raise AgentNotFound
    session_id = session_of(user_id, run.thread_id)
    ask = _ask(run, agent_id, session_id, user_id, request)
    stream = RunStream(_names(run, ask), position)
    refusal = await refusal_of_stream(services, request, user_id)
    if refusal is not None:
        return stream.refuse(request, refusal)
    told: Start | None = None
    try:
        if run.answer is None:
            await services.sessions.open(session_id, user_id, agent_id, likely_new=not ask.given)
        else:
            told = await _start_from_history(services.registry, ask, run.answer.payload)
    except ServiceError:
        services.hub.note_unopened(user_id)
        raise

    def begin() -> Follow:
        start = only_run(told or _begin(services.registry, ask, run))
        return Follow(start.turn, stream.begin(start))

    return services.hub.event_stream(request, user_id, begin, stream)


async def cancel_run(services: DoorServices, agent: str, exchange_id: str, user_id: str) -> None:
    """Stop a run of the user's. Raises ExchangeNotFound if no run of that exchange is in progress with this agent."""
    turn = await services.registry.locate(exchange_id, user_id)
    if turn is None or turn.ended or turn.ask.agent_id != services.catalog.get(agent).id:
        raise ExchangeNotFound
    turn.cancel()


def _ask(run: RunInput, agent_id: str, session_id: str, user_id: str, request: Request) -> Ask:
    context, answer = run.context, run.answer
    return Ask(
        session_id=session_id,
        agent_id=agent_id,
        message=run.question,
        exchange_id=run.run_id if answer is None else answer.exchange,
        user_id=user_id,
        received_at=time.perf_counter(),
        runtime_context=context.given(),
        language=context.language,
        if_busy=run.if_busy if answer is None else "reject",
        on_disconnect=run.on_disconnect,
        request_id=request_id(request.scope),
        credentials=request.state.credentials,
        traceparent=traceparent_of(request),
        human=None if answer is None else HumanAnswer(answer.payload),
        model=context.model,
        given=run.given if answer is None else None,
        client_tools=run.tools,
    )


def _names(run: RunInput, ask: Ask) -> RunNames:
    return RunNames(
        thread_id=run.thread_id,
        run_id=run.run_id,
        parent_run_id=run.parent_run_id,
        agent_id=ask.agent_id,
        session_id=ask.session_id,
        exchange_id=ask.exchange_id,
        rank=0 if run.answer is None else run.answer.rank,
        calls=run.calls,
        taken=run.taken,
        snapshot=run.snapshot,
        messages_before=run.messages_before,
    )


def _begin(registry: TurnRegistry, ask: Ask, run: RunInput) -> Start:
    """Start the run, or find it: an answer that was given before starts nothing new; the run that it started is
    returned."""
    if run.answer is None:
        turn = registry.submit(ask)
        return Start(turn, turn.shown_from)
    known = registry.find(ask.exchange_id, ask.user_id)
    found = _found(known, ask, run.answer.payload)
    if found is not None:
        return found
    turn = registry.submit(ask)
    return Start(turn, turn.earlier)


def _found(known: Turn | None, ask: Ask, answer: dict[str, Any]) -> Start | None:
    if known is None or known.ask.session_id != ask.session_id:
        return None
    return start_of_answer(known, answer)


async def _start_from_history(registry: TurnRegistry, ask: Ask, answer: dict[str, Any]) -> Start | None:
    """The run that this answer let continue, from history; None if it was not given, or its exchange is still in
    memory."""
    if registry.find(ask.exchange_id, ask.user_id) is not None:
        return None
    turn = registry.resume(ask.session_id, ask.exchange_id, ask.user_id, ask.request_id)
    await turn.wait_ended()
    return _found(turn, ask, answer)
