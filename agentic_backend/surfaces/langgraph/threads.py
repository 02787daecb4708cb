"""Threads: sessions that LangGraph's clients create, describe by metadata, search and copy."""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID, uuid4

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, Field

from agentic_backend.chat.frames import CleanText
from agentic_backend.errors import Conflict
from agentic_backend.session.models import Session
from agentic_backend.session.opening import is_of_doors
from agentic_backend.session.past_exchanges import StoredExchange
from agentic_backend.session.store import newest_message
from agentic_backend.session.threads import SortBy, SortOrder, Thread, ThreadsWanted
from agentic_backend.surfaces.langgraph.bodies import (
    JsonObject,
    Offset,
    RequestBody,
    checked_body,
    json_body,
    json_response,
)
from agentic_backend.surfaces.langgraph.errors import Faulty, NoThread
from agentic_backend.surfaces.langgraph.names import (
    assistant_id_of,
    graph_id_of,
    is_uuid,
    names_of_agent,
    session_of_thread,
)
from agentic_backend.surfaces.langgraph.people import interrupts, task_of
from agentic_backend.surfaces.langgraph.runs import DELETED
from agentic_backend.surfaces.langgraph.states import values_of
from agentic_backend.surfaces.services import DoorServices
from backend_kit.wire import dumps

MAX_WITH_VALUES: Final = 100
"""How many threads of one search may have their history read, for their values or for what they ask a person."""
_MAX_VALUES_BYTES: Final = 8 * 1024 * 1024
"""Bytes, as JSON, of the threads of one search with their values; the threads after that have none."""
_BODY: Final = {"requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}}}
_AT_A_TIME: Final = 50
_SELECTABLE: Final = frozenset(
    {
        "thread_id",
        "created_at",
        "updated_at",
        "state_updated_at",
        "metadata",
        "config",
        "context",
        "status",
        "values",
        "error",
        "interrupts",
    }
)


def _without_ours(metadata: dict[str, Any]) -> dict[str, Any]:
    if DELETED in metadata:
        raise ValueError("a key of the service")
    return metadata


Metadata = Annotated[JsonObject, AfterValidator(_without_ours)]


class _NewThread(RequestBody):
    """Body of `POST /threads`."""

    thread_id: CleanText | None = None
    metadata: Metadata | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None


class _Changed(RequestBody):
    """Body of `PATCH /threads/{thread_id}`."""

    metadata: Metadata | None = None


class _Counted(RequestBody):
    """Body of `POST /threads/count`."""

    metadata: Metadata | None = None
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    ids: Annotated[list[CleanText], Field(max_length=1000)] | None = None


class _Searched(_Counted):
    """Body of `POST /threads/search`."""

    limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    offset: Offset | None = None
    sort_by: SortBy | None = None
    sort_order: SortOrder | None = None
    select: Annotated[list[CleanText], Field(max_length=100)] | None = None


_Body = TypeVar("_Body", bound=RequestBody)


def add_threads(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    """The routes of threads. `services()` is called at each request: its result exists once the app runs."""

    @router.post("/threads", openapi_extra=_BODY)
    async def create(request: Request, identity: caller) -> Response:
        """Create a thread, under an id of the client's or one of ours."""
        wanted = await _read(request, _NewThread, refused=("ttl", "supersteps"))
        return await _shown(services(), await _make(services(), identity.uid, wanted))

    @router.get("/threads/{thread_id}")
    async def get(thread_id: str, identity: caller) -> Response:
        """A thread, with its values."""
        return await _shown(services(), await _thread(services(), identity.uid, thread_id))

    @router.patch("/threads/{thread_id}", openapi_extra=_BODY)
    async def update(thread_id: str, request: Request, identity: caller) -> Response:
        """Set keys of a thread's metadata; the others stay. The response is empty if the client prefers that."""
        state, wanted = services(), await _read(request, _Changed, refused=("ttl",))
        session = await session_of_thread(state.store, identity.uid, thread_id)
        with state.kpi.phase("session_write"):
            if wanted.metadata and not await state.threads.merge(session.id, identity.uid, wanted.metadata):
                raise _no_thread(thread_id)
        if request.headers.get("prefer") == "return=minimal":
            return Response(status_code=204)
        return await _shown(state, await _thread(state, identity.uid, session.id))

    @router.delete("/threads/{thread_id}", status_code=204)
    async def delete(thread_id: str, request: Request, identity: caller) -> Response:
        """Stop a thread's runs and delete it with everything that belongs to it."""
        state = services()
        session = await session_of_thread(state.store, identity.uid, thread_id)
        if not await state.sessions.delete(session.id, identity):
            raise _no_thread(thread_id)
        state.leftovers.note_owner(identity.uid, request.state.credentials, at_once=True)
        return Response(status_code=204)

    @router.post("/threads/{thread_id}/copy")
    async def copy(thread_id: str, identity: caller) -> Response:
        """Copy a thread with everything that was said in it, under an id of ours."""
        state = services()
        session = await session_of_thread(state.store, identity.uid, thread_id)
        copy_id = str(uuid4())
        with state.kpi.phase("session_write"):
            await state.sessions.within_limit(
                lambda most: state.threads.copy(session.id, identity.uid, copy_id, most),
            )
        return json_response(dumps(_fields(state, await _thread(state, identity.uid, copy_id), {"config": {}})))

    _add_search(router, services, caller)


def _add_search(router: APIRouter, services: Callable[[], DoorServices], caller: Any) -> None:
    @router.post("/threads/search", openapi_extra=_BODY)
    async def search(request: Request, identity: caller) -> Response:
        """The caller's threads that match. Their values are null unless `select` names them."""
        state, wanted = services(), await _read(request, _Searched, refused=("values", "extract"))
        select = None if wanted.select is None else frozenset(wanted.select)
        if select is not None and not select <= _SELECTABLE:
            raise Faulty("select names a field that threads do not have.", "select")
        asked = _asked(state, wanted)
        if select is not None and "values" in select and asked.limit > MAX_WITH_VALUES:
            raise Faulty(f"limit is at most {MAX_WITH_VALUES} where values are selected.", "limit")
        with state.kpi.phase("session_list"):
            threads, total = await state.threads.search(identity.uid, asked)
        found = await _listed(state, threads, select)
        return json_response(b"[%b]" % b",".join(found), {"X-Pagination-Total": str(total)})

    @router.post("/threads/count", openapi_extra=_BODY)
    async def count(request: Request, identity: caller) -> Response:
        """How many of the caller's threads match."""
        state, wanted = services(), await _read(request, _Counted, refused=("values",))
        with state.kpi.phase("session_list"):
            total = await state.threads.count(identity.uid, _asked(state, wanted))
        return json_response(dumps(total))


async def _read(request: Request, model: type[_Body], refused: Collection[str]) -> _Body:
    """The body of a request, without any of the fields named in `refused`. Raises Faulty."""
    said = await json_body(request)
    for name in refused:
        if said.get(name) not in (None, [], {}):
            raise Faulty(f"{name} is not supported.", name)
    return checked_body(said, model)


def _asked(services: DoorServices, wanted: _Counted) -> ThreadsWanted:
    """What a search looks for. Values that are derived from an agent are looked for by its id."""
    metadata = wanted.metadata or {}
    agents: dict[str, tuple[str, ...]] = {}
    for key, of_agent in (("graph_id", partial(graph_id_of, services)), ("assistant_id", assistant_id_of)):
        if isinstance(value := metadata.get(key), str):
            # The agent of an old thread may be gone; its graph then has its name.
            named = (value,) if key == "graph_id" and value not in services.catalog else ()
            agents[key] = (*(one for one in services.catalog.ids() if of_agent(one) == value), *named)
    ids = None if wanted.ids is None else tuple(wanted.ids)
    asked = ThreadsWanted(metadata, agents, ids, wanted.status)
    if not isinstance(wanted, _Searched):
        return asked
    return ThreadsWanted(
        metadata,
        agents,
        ids,
        wanted.status,
        limit=asked.limit if wanted.limit is None else wanted.limit,
        offset=wanted.offset or 0,
        sort_by=wanted.sort_by or asked.sort_by,
        sort_order=wanted.sort_order or asked.sort_order,
    )


async def _make(services: DoorServices, user_id: str, wanted: _NewThread) -> Thread:
    """The thread that a client creates, or has created. Raises Conflict if it wants a new one, or the id is another
    user's, or one of a door (`is_of_doors`) that is not there yet."""
    if wanted.thread_id is not None and not is_uuid(wanted.thread_id):
        raise Faulty("Invalid thread ID: must be a UUID", "thread_id")
    chosen = None if wanted.thread_id is None else UUID(wanted.thread_id)
    session = Session.with_id(str(chosen or uuid4()), user_id, "", "")
    known = None if chosen is None else await services.threads.get(session.id, user_id)
    if known is None:
        if chosen is not None and is_of_doors(chosen):
            raise Conflict(field="thread_id")
        with services.kpi.phase("session_write"):
            made = await services.sessions.within_limit(
                lambda most: services.threads.create(session, wanted.metadata or {}, most)
            )
        if made == "made":
            services.registry.update(session)
            return Thread.new(session, wanted.metadata or {})
        known = await services.threads.get(session.id, user_id)
        if known is None:
            raise Conflict(field="thread_id")
    if wanted.if_exists != "do_nothing":
        raise Conflict(field="thread_id")
    return known


async def _thread(services: DoorServices, user_id: str, thread_id: str) -> Thread:
    with services.kpi.phase("session_read"):
        thread = await services.threads.get(thread_id, user_id)
    if thread is not None:
        return thread
    if not is_uuid(thread_id):
        raise Faulty("Invalid thread ID: must be a UUID", "thread_id")
    raise _no_thread(thread_id)


def _no_thread(thread_id: str) -> NoThread:
    return NoThread(f"Thread with ID {thread_id} not found", "thread_id")


async def _shown(services: DoorServices, thread: Thread) -> Response:
    """A thread with its values, and with what it asks once it has run."""
    return json_response(await _with_values(services, thread, None))


async def _with_values(services: DoorServices, thread: Thread, select: frozenset[str] | None) -> bytes:
    values, asks = await values_of(services, thread.session) if thread.session.next_rank else (None, {})
    if not thread.has_run:
        return _encoded(_fields(services, thread, {"config": {}}), values, select)
    return _encoded(_fields(services, thread, _after_runs(thread, asks)), values, select)


def _after_runs(thread: Thread, asks: dict[str, Any]) -> dict[str, Any]:
    error = "The newest run failed." if thread.state == "error" and not thread.busy else None
    return {"config": {"configurable": {}}, "error": error, "interrupts": asks}


async def _listed(services: DoorServices, threads: list[Thread], select: frozenset[str] | None) -> list[bytes]:
    """Threads of a search as JSON: the first of them with their values, until these are too many or too large; of the
    others that wait for a person the newest message is read."""
    found: list[bytes] = []
    reads_values = select is None or "values" in select
    waiting = size = 0
    for number, thread in enumerate(threads):
        if reads_values and number < MAX_WITH_VALUES and size < _MAX_VALUES_BYTES:
            found.append(await _with_values(services, thread, select))
            size += len(found[-1])
            continue
        asks: dict[str, Any] = {}
        if thread.state == "interrupted" and (select is None or "interrupts" in select) and waiting < MAX_WITH_VALUES:
            waiting += 1
            asks = await _asks(services, thread.session)
        rest = _after_runs(thread, asks) if thread.has_run else {"config": {}}
        found.append(_encoded(_fields(services, thread, rest), None, select))
        if number % _AT_A_TIME == 0:
            await asyncio.sleep(0)
    return found


async def _asks(services: DoorServices, session: Session) -> dict[str, Any]:
    """The interrupts of a thread, by their tasks."""
    newest = await newest_message(services.store, session.id, session.user_id)
    stored = None if newest is None else StoredExchange.decode([newest])
    if stored is None or not stored.awaits:
        return {}
    return {task_of(stored.asked_of_person): interrupts(stored.asked_of_person)}


def _fields(services: DoorServices, thread: Thread, rest: dict[str, Any]) -> dict[str, Any]:
    """A thread in LangGraph's shape, without its values."""
    session = thread.session
    derived = names_of_agent(services, session.agent_id) if thread.has_run and session.agent_id else {}
    return {
        "thread_id": session.id,
        "created_at": thread.created_at,
        "updated_at": session.updated_at,
        "state_updated_at": thread.state_at,
        "metadata": {**derived, **{key: value for key, value in thread.metadata.items() if key != DELETED}},
        "status": "busy" if thread.busy else thread.state,
        **rest,
    }


def _encoded(fields: dict[str, Any], values: bytes | None, select: frozenset[str] | None) -> bytes:
    """A thread with its values, or only the selected fields."""
    if select is not None:
        fields = {name: value for name, value in fields.items() if name in select}
        if "values" not in select:
            return dumps(fields)
    head = dumps(fields)[:-1]
    return b'%b%b"values":%b}' % (head, b"," if fields else b"", values or b"null")
