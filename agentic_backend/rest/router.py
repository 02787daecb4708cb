"""REST of agents, sessions and history, and the two WebSocket routes."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi import Path as PathParam
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import BaseRoute
from starlette.websockets import WebSocket

from agentic_backend.agent import Catalog
from agentic_backend.chat.dialects import Turns
from agentic_backend.chat.hub import SocketHub
from agentic_backend.chat.sse import EventStream
from agentic_backend.errors import AgentNotFound, Conflict, MessageNotFound, SessionLimitReached, SessionNotFound
from agentic_backend.knowledge import LibraryClient
from agentic_backend.rest.agent_access import add_agent_access
from agentic_backend.rest.agents import AgentServices, add_agents, add_pace
from agentic_backend.rest.answers import AnswerPart, Answers, PagedAnswer, Parts
from agentic_backend.rest.attachments import AttachmentServices, add_attachments
from agentic_backend.rest.chat_metrics import add_chat_metrics
from agentic_backend.rest.configuration import PublicSettings, add_configuration
from agentic_backend.rest.documents import ReadableDocuments, add_documents
from agentic_backend.rest.export import add_export
from agentic_backend.rest.feedback import add_feedback, add_feedback_reading
from agentic_backend.rest.images import add_images
from agentic_backend.rest.keys import KeyServices, add_keys
from agentic_backend.rest.kpi_routes import KpiViews, add_kpi
from agentic_backend.rest.libraries import add_libraries
from agentic_backend.rest.messages import MessageReader, enclosed
from agentic_backend.rest.own_data import add_own_data
from agentic_backend.rest.preferences import SessionId, add_preferences
from agentic_backend.rest.sessions import MAX_TITLE_CHARS, Storable, add_sessions
from agentic_backend.rest.shares import ShareServices, add_shares
from agentic_backend.rest.usage import add_usage
from agentic_backend.session.models import HistoryWindow, Session
from agentic_backend.session.opening import Sessions, is_of_doors
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.store import ChatFigures, FeedbackStore, SessionStore, load_owned
from backend_kit.auth import Identity
from backend_kit.http import refusals
from backend_kit.kpi import Kpi

_STREAM_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}
"""The native `ask` or `resume`; docs/schema/native-client.schema.json has the complete schema."""

_TAGS: Final = ("chat", "agents", "documents", "kpi", "settings")
"""The tags of the routes in the documentation, in addition to `health` of both services."""

Rank = Annotated[int, PathParam(ge=0, le=2**31 - 1)]


class CreateSession(BaseModel):
    """Body of `POST /chatbot/session`; each key may be left out. A `session_id` is a UUID chosen by the client."""

    model_config = ConfigDict(hide_input_in_errors=True)

    agent_id: Annotated[Storable, Field(max_length=128)] | None = None
    title: Annotated[Storable, Field(max_length=MAX_TITLE_CHARS)] | None = None
    session_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class ChatServices:
    """What the routes need, built in the lifespan."""

    hub: SocketHub
    registry: TurnRegistry
    baseline: Turns
    store: SessionStore
    catalog: Catalog
    agents: AgentServices
    documents: ReadableDocuments
    libraries: LibraryClient
    kpi: Kpi
    views: KpiViews
    feedback: FeedbackStore
    attachments: AttachmentServices
    keys: KeyServices
    shares: ShareServices
    figures: ChatFigures
    public: PublicSettings
    answers: Answers
    sessions: Sessions


def build_routes(services: Callable[[], ChatServices], identify: Callable[..., Any], base: str) -> list[BaseRoute]:
    """The routes below the base path. `services()` is called at each request: its result exists once the app runs."""
    parts = [APIRouter(prefix=base, tags=[tag], responses=refusals()) for tag in _TAGS]
    chat, agents, documents, kpi, settings = parts
    caller = Annotated[Identity, Depends(identify)]
    _add_sockets(chat, services)
    _add_stream(chat, services, caller)
    add_agents(agents, lambda: services().agents, caller)
    add_agent_access(agents, lambda: services().agents, caller)
    add_pace(agents, lambda: services().agents, lambda: services().views.windows, caller)
    _add_sessions(chat, services, caller)
    add_sessions(chat, services, caller)
    _add_history(chat, services, caller)
    add_preferences(chat, services, caller)
    add_documents(documents, lambda: services().documents, caller)
    add_libraries(documents, lambda: services().libraries, caller)
    add_kpi(kpi, lambda: services().views, caller)
    add_feedback(chat, lambda: services().feedback, caller)
    add_feedback_reading(kpi, lambda: services().feedback, lambda: services().views, caller)
    add_attachments(chat, lambda: services().attachments, caller)
    add_images(chat, services, caller)
    add_keys(chat, lambda: services().keys, caller)
    add_export(chat, services, caller)
    add_shares(chat, services, caller)
    add_own_data(chat, services, caller)
    add_chat_metrics(kpi, lambda: services().figures, caller)
    add_usage(kpi, lambda: services().figures, lambda: services().views, lambda: services().public, caller)
    add_configuration(settings, lambda: services().public, lambda: services().agents, lambda: services().views, caller)
    return [route for part in parts for route in part.routes]


def _add_sockets(router: APIRouter, services: Callable[[], ChatServices]) -> None:
    @router.websocket("/chatbot/query/ws")
    async def query(websocket: WebSocket) -> None:
        state = services()
        await state.hub.serve(websocket, state.registry)

    @router.websocket("/chatbot/query/ws-baseline")
    async def baseline(websocket: WebSocket) -> None:
        state = services()
        await state.hub.serve(websocket, state.baseline)


def _add_stream(router: APIRouter, services: Callable[[], ChatServices], caller: Any) -> None:
    @router.post("/chatbot/query/stream", status_code=200, response_class=EventStream, openapi_extra=_STREAM_BODY)
    async def query_stream(request: Request, identity: caller) -> Response:
        """The events of one turn as `text/event-stream`. The body is a native `ask` or `resume`."""
        state = services()
        return await state.hub.stream(request, identity, state.registry)


def _add_sessions(router: APIRouter, services: Callable[[], ChatServices], caller: Any) -> None:
    @router.post("/chatbot/session")
    async def create_session(identity: caller, body: CreateSession | None = None) -> dict[str, Any]:
        """Create a session. Without `agent_id` its agent is the first enabled one."""
        state = services()
        wanted = body or CreateSession()
        agent = state.catalog.get(_agent_id(state.catalog, wanted.agent_id, identity))
        title = (wanted.title or "").strip()
        try:
            with state.kpi.phase("session_write"):
                if wanted.session_id is None:
                    session = await state.sessions.make(Session.new(identity.uid, agent.id, title))
                else:
                    session = await _open(state, wanted.session_id, Session.new(identity.uid, agent.id, title))
        except SessionLimitReached as error:
            # The text is that of the original; clients match it.
            raise HTTPException(403, f"Session limit reached ({error.most} sessions per user).") from None
        if session.agent_id not in ("", agent.id):
            raise Conflict(field="agent_id")
        return session.wire()

    @router.delete("/chatbot/session/{session_id}")
    async def delete_session(session_id: SessionId, request: Request, identity: caller) -> bool:
        """Stop a session's turns and delete it with everything that belongs to it."""
        state = services()
        await load_owned(state.store, session_id, identity.uid)
        if not await state.sessions.delete(session_id, identity):
            raise SessionNotFound
        state.attachments.leftovers.note_owner(identity.uid, request.state.credentials, at_once=True)
        return True


async def _open(state: ChatServices, chosen: UUID, like: Session) -> Session:
    """The session with an id that the client has chosen. Raises `Conflict` for an id of a door (`is_of_doors`) that
    does not exist yet, and for another user's."""
    id_ = str(chosen)
    if is_of_doors(chosen) and await state.store.get(id_, like.user_id) is None:
        raise Conflict(field="session_id")
    return await state.sessions.open(id_, like.user_id, like.agent_id, like.title)


def _add_history(router: APIRouter, services: Callable[[], ChatServices], caller: Any) -> None:
    @router.get("/chatbot/session/{session_id}/history")
    async def history(
        session_id: SessionId,
        identity: caller,
        limit: Annotated[int | None, Query(ge=1, le=10_000)] = None,
        offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
        text_limit: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
        text_offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
        branches: bool = False,
    ) -> Response:
        """Messages by ascending rank, in a window that is counted from the newest: those of the live line, or with
        `branches` superseded ones, too."""
        state = services()
        await load_owned(state.store, session_id, identity.uid)
        text = HistoryWindow(text_limit, text_offset) if text_limit is not None or text_offset else None
        reader = MessageReader(state.store, session_id, identity.uid, text)
        parts = enclosed(b"[", reader.json(HistoryWindow(limit, offset, branches)), b"]")
        return PagedAnswer(state.answers, identity.uid, parts, media_type="application/json")

    @router.get("/chatbot/session/{session_id}/message/{rank}")
    async def message(session_id: SessionId, rank: Rank, identity: caller) -> Response:
        """One message of a session, by its rank."""
        state = services()
        await load_owned(state.store, session_id, identity.uid)
        parts = _one(state.store.message(session_id, identity.uid, rank))
        return PagedAnswer(state.answers, identity.uid, parts, media_type="application/json")


async def _one(pieces: AsyncIterator[bytes]) -> Parts:
    """A message in pieces; raises `MessageNotFound` if there are none. A single piece is an ordinary response."""
    held = await anext(pieces, None)
    if held is None:
        raise MessageNotFound
    async for piece in pieces:
        yield AnswerPart(held)
        held = piece
    yield AnswerPart(held, last=True)


def _agent_id(catalog: Catalog, wanted: str | None, identity: Identity) -> str:
    """The agent of a new session: the one that is asked for, else the first enabled one that the caller may ask. Raises
    `AgentNotFound` for one that they or their key may not use."""
    chosen = wanted or next(filter(identity.may_ask, catalog.ids()), "")
    if not identity.may_ask(chosen):
        raise AgentNotFound
    return chosen
