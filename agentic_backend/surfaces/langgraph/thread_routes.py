"""A thread's stream: commands that start its runs, and its events, over any number of runs."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import Field

from agentic_backend.chat.frames import CleanText
from agentic_backend.errors import NotAwaiting
from agentic_backend.session.models import Session
from agentic_backend.session.stream import Failed
from agentic_backend.surfaces.follow import refusal_of_stream
from agentic_backend.surfaces.langgraph.asking import Begun, prepare, waiting_in
from agentic_backend.surfaces.langgraph.bodies import BODY, RequestBody, checked_body, json_response, read_body
from agentic_backend.surfaces.langgraph.errors import Faulty, NoThread
from agentic_backend.surfaces.langgraph.names import session_of_thread
from agentic_backend.surfaces.langgraph.people import interrupts
from agentic_backend.surfaces.langgraph.run_routes import settled
from agentic_backend.surfaces.langgraph.stream import MODES
from agentic_backend.surfaces.langgraph.thread_events import CHANNELS, EventsWanted, ThreadWriter, rank_of, seq_before
from agentic_backend.surfaces.langgraph.thread_join import JoinWriter, read_join_modes
from agentic_backend.surfaces.langgraph.thread_turns import ThreadTurns, before_in
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import ServiceError, dumps, message_for

_MAX_SEQ: Final = (1 << 53) - 1
_MAX_DIGITS: Final = 16
_MAX_CHANNELS: Final = 64
Params = Mapping[str, Any]


class _Command(RequestBody):
    id: int
    method: CleanText
    params: dict[str, Any] = {}


class _Response(RequestBody):
    interrupt_id: CleanText
    response: Any


class _Subscription(RequestBody):
    channels: Annotated[list[CleanText], Field(max_length=_MAX_CHANNELS)]
    since: Annotated[int, Field(ge=0, le=_MAX_SEQ)] | None = None
    namespaces: Annotated[list[list[CleanText]], Field(max_length=_MAX_CHANNELS)] | None = None
    depth: int | None = None


def add_thread_streams(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    """The routes of threads' streams."""

    @router.post("/threads/{thread_id}/commands", openapi_extra=BODY)
    async def command(thread_id: str, request: Request, identity: caller) -> Response:
        """Start a run of a thread, which is created if it does not exist, or answer what a run asks."""
        said = await read_body(request, _Command)
        return json_response(dumps(await _obeyed(services(), request, identity, thread_id, said)))

    @router.post("/threads/{thread_id}/stream/events", openapi_extra=BODY)
    async def events(thread_id: str, request: Request, identity: caller) -> Response:
        """The events of a thread after the number `since`, and those of each run that begins."""
        state = services()
        wish = await read_body(request, _Subscription)
        for number, channel in enumerate(wish.channels):
            if channel not in CHANNELS and not channel.startswith("custom:"):
                raise Faulty(f"A channel is one of {', '.join(CHANNELS)}.", f"channels[{number}]")
        session = await session_of_thread(state.store, identity.uid, thread_id)
        since = _of_thread(wish.since, session)
        wanted = EventsWanted.of(wish.channels, wish.namespaces)
        writer = ThreadWriter(session.id, wanted, before_in(state, session), since or 0, is_graph=_graphs(state))
        return await _streamed(state, request, identity, session, writer, ThreadTurns(state, session, writer, since))

    @router.get("/threads/{thread_id}/stream")
    async def join(thread_id: str, request: Request, identity: caller) -> Response:
        """The events of a thread's runs after `Last-Event-ID`, in the stream modes of each."""
        state = services()
        place = _read_place(request.headers.get("last-event-id"))
        modes = read_join_modes(request.query_params.getlist("stream_mode"))
        session = await session_of_thread(state.store, identity.uid, thread_id)
        since = _of_thread(place, session)
        writer = JoinWriter(session.id, modes, before_in(state, session), since or 0, is_graph=_graphs(state))
        turns = ThreadTurns(state, session, writer, since, looks_back=False)
        return await _streamed(state, request, identity, session, writer, turns)


def _graphs(services: DoorServices) -> Callable[[str], bool]:
    return lambda agent_id: services.catalog.graph(agent_id) is not None


def _read_place(said: str | None) -> int | None:
    """The number in a `Last-Event-ID`; -1 is before the first. None without one. Raises Faulty."""
    if not said:
        return None
    if said == "-1":
        return 0
    if not (len(said) <= _MAX_DIGITS and said.isascii() and said.isdigit() and int(said) <= _MAX_SEQ):
        raise Faulty("Last-Event-ID is none of this thread's.", "Last-Event-ID")
    return int(said)


async def _streamed(
    services: DoorServices,
    request: Request,
    identity: Identity,
    session: Session,
    writer: ThreadWriter,
    turns: ThreadTurns,
) -> Response:
    refusal = await refusal_of_stream(services, request, session.user_id)
    if refusal is not None:
        return writer.refuse(request, refusal)
    return services.hub.series_stream(request, identity, session.id, turns, writer, writer.failed)


def _of_thread(since: int | None, session: Session) -> int | None:
    """A number that does not belong to this thread is rejected."""
    return None if since is None or rank_of(since) > session.next_rank else since


async def _obeyed(
    services: DoorServices, request: Request, identity: Identity, thread_id: str, command: _Command
) -> dict[str, Any]:
    """The response to a command: clients read only in its body why one was refused."""
    begin = {"run.start": _start, "input.respond": _respond}.get(command.method)
    if begin is None:
        return _refused(command, "unknown_command", f"There is no command {command.method}.")
    try:
        begun, seq = await begin(services, request, identity, thread_id, command.params)
    except ServiceError as error:
        text = error.sentence if isinstance(error, Faulty | NoThread) else message_for(error.code)
        return _refused(command, error.code.value, text, field=error.field)
    turn = begun.begin()
    if begun.ask.if_busy != "queue" or begun.ask.human is not None:
        await settled(turn)
    if turn.ended and isinstance(refusal := turn.events[-1].payload, Failed) and refusal.refused:
        text = message_for(refusal.code, request.headers.get("accept-language"))
        return _refused(command, refusal.code.value, text, field=refusal.field, retry_after_ms=refusal.retry_after_ms)
    result = {"run_id": begun.view.run_id}
    return {"type": "success", "id": command.id, "result": result, "meta": {"applied_through_seq": seq}}


async def _start(
    services: DoorServices, request: Request, identity: Identity, thread_id: str, params: Params
) -> tuple[Begun, int]:
    body = {"stream_mode": list(MODES), **params, "if_not_exists": "create"}
    strategy = body.pop("multitaskStrategy", None)
    if strategy is not None:
        body.setdefault("multitask_strategy", strategy)
    begun = await prepare(services, request, identity, thread_id, body)
    session = await services.store.get(thread_id, identity.uid)
    return begun, seq_before(0 if session is None else session.next_rank)


async def _respond(
    services: DoorServices, request: Request, identity: Identity, thread_id: str, params: Params
) -> tuple[Begun, int]:
    session = await session_of_thread(services.store, identity.uid, thread_id)
    waiting = await waiting_in(services, session.id, identity.uid)
    given = params.get("responses", [params])
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise Faulty("The answers are a list of objects.", "params.responses")
    answers = [checked_body(one, _Response) for one in given]
    asked = set() if waiting is None else {one["id"] for one in interrupts(waiting.question)}
    if waiting is None or not {one.interrupt_id for one in answers} <= asked:
        raise NotAwaiting(field="interrupt_id")
    about = {name: params[name] for name in ("config", "metadata") if params.get(name) is not None}
    resume = {one.interrupt_id: one.response for one in answers}
    body = {"stream_mode": list(MODES), **about, "assistant_id": waiting.agent_id, "command": {"resume": resume}}
    return await prepare(services, request, identity, thread_id, body), seq_before(session.next_rank - 1)


def _refused(command: _Command, code: str, text: str, **about: Any) -> dict[str, Any]:
    known = {name: value for name, value in about.items() if value is not None}
    return {"type": "error", "id": command.id, "error": code, "message": text, **known}
