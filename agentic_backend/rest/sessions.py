"""REST routes of the list of sessions: its pages, a search, single sessions, and changes that a person makes to one."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Depends, Query, Request
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, StringConstraints

from agentic_backend.agent import Catalog
from agentic_backend.chat.hub import SocketHub
from agentic_backend.errors import SessionNotFound
from agentic_backend.rest.attachments import AttachmentServices
from agentic_backend.rest.preferences import SessionId
from agentic_backend.session.models import ListPlace, Session, SessionsWanted
from agentic_backend.session.registry import TurnRegistry
from agentic_backend.session.store import SessionStore
from backend_kit.kpi import Kpi
from backend_kit.wire import storable

MAX_TITLE_CHARS: Final = 200
Storable = Annotated[str, AfterValidator(storable)]
Title = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TITLE_CHARS),
    AfterValidator(storable),
]


class SessionChange(BaseModel):
    """Body of `PATCH /chatbot/session/{id}`; what it leaves out stays as it is."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    title: Title | None = None
    pinned: bool | None = None


@dataclass(frozen=True, slots=True)
class _Listing:
    """The query parameters of a list besides `q`, as FastAPI fills them in."""

    limit: Annotated[int | None, Query(ge=1, le=1000)] = None
    offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0
    snippets: bool = False
    begun: bool = False
    before: AwareDatetime | None = None
    before_pinned: bool = False
    before_id: Annotated[Storable | None, Query(max_length=64)] = None

    @property
    def behind(self) -> ListPlace | None:
        """The position after which the list begins."""
        at: datetime | None = self.before
        return None if at is None else ListPlace(at, self.before_pinned, self.before_id)


class SessionServices(Protocol):
    """What the routes need."""

    @property
    def store(self) -> SessionStore:
        """Where sessions are."""

    @property
    def registry(self) -> TurnRegistry:
        """Its turns carry their titles."""

    @property
    def hub(self) -> SocketHub:
        """Notifies the user's pages of a change."""

    @property
    def catalog(self) -> Catalog:
        """The names of agents."""

    @property
    def attachments(self) -> AttachmentServices:
        """Deletes what an earlier delete left."""

    @property
    def kpi(self) -> Kpi:
        """Times their phases."""


def add_sessions(router: APIRouter, services: Callable[[], SessionServices], caller: Any) -> None:
    """Add the routes. `services()` is called at each request: its result exists once the app runs."""

    @router.get("/chatbot/sessions")
    async def list_sessions(
        request: Request,
        identity: caller,
        listing: Annotated[_Listing, Depends()],
        q: Annotated[Storable, Query(max_length=MAX_TITLE_CHARS)] = "",
    ) -> list[dict[str, Any]]:
        """The caller's sessions, pinned ones first, then newest first; with `q` those that have all its words.

        `before`, `before_pinned` and `before_id` are `updated_at`, `pinned` and `id` of the session after which the
        list continues.
        """
        state = services()
        wanted = SessionsWanted(q, listing.limit, listing.offset, listing.snippets, listing.begun, listing.behind)
        with state.kpi.phase("session_list"):
            sessions = await state.store.list_for(identity.uid, wanted)
        state.attachments.leftovers.note_owner(identity.uid, request.state.credentials)
        names = state.catalog.names()
        return [_with_files(session, names) for session in sessions]

    @router.get("/chatbot/session/{session_id}")
    async def session_of_list(session_id: SessionId, identity: caller) -> dict[str, Any]:
        """One session, as in the list."""
        state = services()
        wanted = SessionsWanted(limit=1, session_id=storable(session_id))
        with state.kpi.phase("session_list"):
            sessions = await state.store.list_for(identity.uid, wanted)
        if not sessions:
            raise SessionNotFound
        return _with_files(sessions[0], state.catalog.names())

    @router.patch("/chatbot/session/{session_id}")
    async def change_session(session_id: SessionId, body: SessionChange, identity: caller) -> dict[str, Any]:
        """Rename a session, pin it, or both. A model's title never replaces this one."""
        state = services()
        with state.kpi.phase("session_write"):
            session = await state.store.change(
                session_id, identity.uid, title=body.title, pinned=body.pinned, by_person=True
            )
        if session is None:
            raise SessionNotFound
        await state.registry.note_change(session)
        state.hub.send_renamed(session)
        return session.listed()


def _with_files(session: Session, names: dict[str, str]) -> dict[str, Any]:
    """SessionWithFiles of docs/contract.md#messages-and-sessions."""
    id_ = session.agent_id
    agents = [{"id": id_, "name": names.get(id_, id_)}] if id_ else []
    files = [file.wire() for file in session.attachments]
    found = {} if session.found is None else {"found": session.found.wire()}
    file_names = [file["name"] for file in files]
    return {**session.listed(), "agents": agents, "file_names": file_names, "attachments": files, **found}
