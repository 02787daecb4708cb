"""Runs over HTTP: start one, follow it, wait for its end, read it, stop it."""

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from agentic_backend.chat.follow import Follow
from agentic_backend.chat.sse import StreamWriter
from agentic_backend.session.models import graph_state_of
from agentic_backend.session.stream import Failed, Payload, Turn
from agentic_backend.session.stream import Final as Ended
from agentic_backend.surfaces.follow import Following, stop_turn, turn_stream
from agentic_backend.surfaces.langgraph.asking import base_of, prepare, view_alone
from agentic_backend.surfaces.langgraph.bodies import BODY, json_response
from agentic_backend.surfaces.langgraph.errors import Faulty, NoThread, refusal_of
from agentic_backend.surfaces.langgraph.names import session_of_thread
from agentic_backend.surfaces.langgraph.reading import read_modes
from agentic_backend.surfaces.langgraph.runs import delete_run, note_of, run_of, running, runs_of, view_of
from agentic_backend.surfaces.langgraph.stream import Place, RunEvents, RunValues, RunView
from agentic_backend.surfaces.services import DoorServices
from backend_kit.auth import Identity
from backend_kit.wire import dumps

_MOST: Final = 1000
_MAX_DIGITS: Final = 9
_NOTHING_TO_CANCEL: Final = (
    "No matching runs to cancel. Please verify the thread ID and run IDs are correct, and the runs haven't been deleted"
    " or completed."
)


def add_runs(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    """The routes of runs."""
    _add_beginnings(router, services, caller)
    _add_beginnings_alone(router, services, caller)
    _add_followings(router, services, caller)

    @router.get("/threads/{thread_id}/runs")
    async def runs(thread_id: str, request: Request, identity: caller) -> Response:
        """The runs of a thread, the newest first."""
        return json_response(dumps(await _listed(services(), thread_id, request, identity)))

    @router.get("/threads/{thread_id}/runs/{run_id}")
    async def run(thread_id: str, run_id: str, identity: caller) -> Response:
        """One run of a thread, by its id."""
        state = services()
        session = await session_of_thread(state.store, identity.uid, thread_id)
        return json_response(dumps((await run_of(state, session, run_id)).fields(state, thread_id)))

    @router.delete("/threads/{thread_id}/runs/{run_id}", status_code=204)
    async def delete(thread_id: str, run_id: str, identity: caller) -> Response:
        """Delete a run that has ended from the list of runs; what was said in it stays in its thread."""
        state = services()
        await delete_run(state, await session_of_thread(state.store, identity.uid, thread_id), run_id)
        return Response(status_code=204)

    @router.post("/threads/{thread_id}/runs/{run_id}/cancel")
    async def cancel(thread_id: str, run_id: str, request: Request, identity: caller) -> Response:
        """Stop a run. When the response comes, what the run has said is in the thread's history."""
        query = request.query_params
        if query.get("action", "interrupt") != "interrupt":
            raise Faulty("The only action is interrupt.", "action")
        await _stop(services(), thread_id, run_id, identity)
        headers = _headers(f"/threads/{thread_id}/runs/{run_id}", "join")
        return Response(b"{}", 200 if query.get("wait") in ("1", "true") else 202, headers, "application/json")


def _add_followings(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    @router.get("/threads/{thread_id}/runs/{run_id}/join")
    async def join(thread_id: str, run_id: str, request: Request, identity: caller) -> Response:
        """The values of a run's end, once it has ended."""
        state = services()
        view = await view_of(state, identity, thread_id, run_id, ())
        path = f"/threads/{thread_id}/runs/{run_id}"
        return await _waited(state, request, identity, view, lambda: _found(state, identity, view), path)

    @router.get("/threads/{thread_id}/runs/{run_id}/stream")
    async def stream(thread_id: str, run_id: str, request: Request, identity: caller) -> Response:
        """The events of a run, behind `Last-Event-ID`."""
        state = services()
        place = Place.read(request.headers.get("last-event-id"))
        modes = read_modes(request.query_params.getlist("stream_mode"))
        view = await view_of(state, identity, thread_id, run_id, modes)
        path = f"/threads/{thread_id}/runs/{run_id}"
        return await _streamed(state, request, identity, view, lambda: _found(state, identity, view), path, place)

    @router.get("/runs/{run_id}/stream")
    async def stream_alone(run_id: str, request: Request, identity: caller) -> Response:
        """The events of a run without a thread, behind `Last-Event-ID`, while this instance has it."""
        state = services()
        place = Place.read(request.headers.get("last-event-id"))
        turn = _alone(state, run_id, identity)
        view = view_alone(state, turn.ask, read_modes(request.query_params.getlist("stream_mode")))
        return await _streamed(state, request, identity, view, lambda: turn, f"/runs/{run_id}", place)

    @router.get("/runs/{run_id}/join")
    async def join_alone(run_id: str, request: Request, identity: caller) -> Response:
        """The values of the end of a run without a thread, while this instance has it."""
        state = services()
        turn = _alone(state, run_id, identity)
        view = view_alone(state, turn.ask, ())
        return await _waited(state, request, identity, view, lambda: turn, f"/runs/{run_id}")


def _alone(services: DoorServices, run_id: str, identity: Identity) -> Turn:
    turn = services.unkept.find(run_id, identity.uid)
    if turn is None:
        raise NoThread("There is no such run.", "run_id")
    return turn


def _add_beginnings(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    @router.post("/threads/{thread_id}/runs", openapi_extra=BODY)
    async def create(thread_id: str, request: Request, identity: caller) -> Response:
        """Begin a run in the background."""
        return await _begun(services(), request, identity, thread_id)

    @router.post("/threads/{thread_id}/runs/stream", openapi_extra=BODY)
    async def create_stream(thread_id: str, request: Request, identity: caller) -> Response:
        """Begin a run, and follow its events."""
        return await _followed(services(), request, identity, thread_id)

    @router.post("/threads/{thread_id}/runs/wait", openapi_extra=BODY)
    async def create_wait(thread_id: str, request: Request, identity: caller) -> Response:
        """Begin a run, and wait for its values."""
        return await _awaited(services(), request, identity, thread_id)


def _add_beginnings_alone(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    @router.post("/runs", openapi_extra=BODY)
    async def create(request: Request, identity: caller) -> Response:
        """Begin a run without a thread in the background."""
        return await _begun(services(), request, identity, None)

    @router.post("/runs/stream", openapi_extra=BODY)
    async def create_stream(request: Request, identity: caller) -> Response:
        """Begin a run without a thread, and follow its events."""
        return await _followed(services(), request, identity, None)

    @router.post("/runs/wait", openapi_extra=BODY)
    async def create_wait(request: Request, identity: caller) -> Response:
        """Begin a run without a thread, and wait for its values."""
        return await _awaited(services(), request, identity, None)


async def _begun(services: DoorServices, request: Request, identity: Identity, thread_id: str | None) -> Response:
    begun = await prepare(services, request, identity, thread_id)
    turn = begun.begin()
    if begun.ask.if_busy != "queue":
        await settled(turn)
    if turn.ended and isinstance(refused := turn.events[-1].payload, Failed) and refused.refused:
        return refusal_of(refused, request)
    fields = running(turn).fields(services, begun.view.thread_id)
    fields["kwargs"]["temporary"] = begun.view.base is not None
    return json_response(dumps(fields), {"Content-Location": begun.path})


async def _followed(services: DoorServices, request: Request, identity: Identity, thread_id: str | None) -> Response:
    begun = await prepare(services, request, identity, thread_id)
    return await _streamed(services, request, identity, begun.view, begun.begin, begun.path, None)


async def _awaited(services: DoorServices, request: Request, identity: Identity, thread_id: str | None) -> Response:
    begun = await prepare(services, request, identity, thread_id)
    return await _waited(services, request, identity, begun.view, begun.begin, begun.path)


async def _listed(services: DoorServices, thread_id: str, request: Request, identity: Identity) -> list[dict[str, Any]]:
    query = request.query_params
    limit, offset = _number(query.get("limit"), "limit", 10), _number(query.get("offset"), "offset", 0)
    session = await session_of_thread(services.store, identity.uid, thread_id)
    wanted = query.get("status")
    shown = [run for run in reversed(await runs_of(services, session)) if wanted in (None, run.status)]
    fields = [run.fields(services, thread_id) for run in shown[offset : offset + min(limit, _MOST)]]
    if select := query.getlist("select"):
        fields = [{key: value for key, value in one.items() if key in select} for one in fields]
    return fields


async def _stop(services: DoorServices, thread_id: str, run_id: str, identity: Identity) -> None:
    """Stop a run, and wait a while for its end. Raises `NoThread` if it does not run."""
    view = await view_of(services, identity, thread_id, run_id, ())
    turn = await services.registry.locate(view.exchange_id, identity.uid)
    if turn is None or turn.ended or note_of(turn).get("answers") != view.answers:
        raise NoThread(_NOTHING_TO_CANCEL, "run_id")
    await stop_turn(turn)


def _found(services: DoorServices, identity: Identity, view: RunView) -> Turn:
    return services.registry.resume(view.thread_id, view.exchange_id, identity.uid)


async def _streamed(
    services: DoorServices,
    request: Request,
    identity: Identity,
    view: RunView,
    begin: Callable[[], Turn],
    path: str,
    place: Place | None,
) -> Response:
    load = base_of(services, view.thread_id, identity.uid)
    return await _stream_response(
        services, request, identity, begin, RunEvents(view, load, place, _headers(path, "stream"))
    )


def _headers(path: str, what: str) -> dict[str, str]:
    """Where a run is, relative to the base of the API: the SDKs put that before it."""
    return {"Location": f"{path}/{what}", "Content-Location": path}


async def settled(turn: Turn) -> None:
    """Wait until a turn has begun, is queued, or was refused: what it replaces has then ended."""
    with Following(turn) as following:
        async for _ in following:
            break


async def _waited(
    services: DoorServices,
    request: Request,
    identity: Identity,
    view: RunView,
    begin: Callable[[], Turn],
    path: str,
) -> Response:
    async def state_of(agent_id: str, end: Payload) -> bytes | None:
        """What a graph's run ended with, read from its states; None if it left none."""
        graph = services.catalog.graph(agent_id)
        ref = graph_state_of(end.messages[-1], graph.id) if graph is not None and isinstance(end, Ended) else ""
        if graph is None or not ref:
            return None
        state = await graph.state(view.thread_id, identity.uid, ref)
        return None if state is None else dumps(state["values"])

    values = RunValues(view, base_of(services, view.thread_id, identity.uid), state_of, _headers(path, "join"))
    return await _stream_response(services, request, identity, begin, values)


async def _stream_response(
    services: DoorServices, request: Request, identity: Identity, begin: Callable[[], Turn], writer: StreamWriter
) -> Response:
    """What a writer sends for a turn, from the first event that is shown."""

    def follow() -> Follow:
        turn = begin()
        return Follow(turn, turn.shown_from)

    return await turn_stream(services, request, identity.uid, follow, writer)


def _number(said: str | None, name: str, otherwise: int) -> int:
    if said is None:
        return otherwise
    if not (said.isascii() and said.isdigit() and len(said) <= _MAX_DIGITS):
        raise Faulty(f"{name} is a number.", name)
    return int(said)
