"""REST routes of links by which others read a conversation: created, listed and revoked by its owner, read by anyone
who has one."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParam
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from agentic_backend.agent import Catalog
from agentic_backend.errors import Forbidden, MessageNotFound, ShareLimitReached, ShareNotFound
from agentic_backend.rest.answers import AnswerPart, Answers, PagedAnswer, Parts
from agentic_backend.rest.messages import written_page
from agentic_backend.rest.preferences import SessionId
from agentic_backend.session.links import TOKEN_CHARS, Audience, LinkStore, LinkWanted, ShareLink, digest_of, new_token
from agentic_backend.session.models import HistoryWindow, Session
from agentic_backend.session.past_exchanges import AWAITING
from agentic_backend.session.store import SessionStore, load_owned
from backend_kit.auth import AuditAction, AuditEvent, Identity, Lately, NoteEvent
from backend_kit.wire import dumps, loads, storable

MAX_LINKS: Final = 20
"""Links of one session, those that have expired and were not revoked included."""
_MAX_LISTED: Final = 1000
_PARTS: Final = {"user": {"text"}, "assistant": {"text", "code", "link", "image_url", "geo"}}
"""What a reader sees of a message, by its role. An image in a question is an attachment."""
_SOURCE: Final = (
    "content", "uid", "title", "score", "rank", "page", "section", "file_name", "mime_type", "citation_url"
)  # fmt: skip
_PASSAGE: Final = "content"
_OUR_DOCUMENTS: Final = "/documents/"

_LinkId = Annotated[str, PathParam(min_length=1, max_length=64), AfterValidator(storable)]
_Token = Annotated[str, PathParam(min_length=1, max_length=128)]
_Limit = Annotated[int, Query(ge=1, le=_MAX_LISTED)]
_Offset = Annotated[int, Query(ge=0, le=2**31 - 1)]


class MakeShare(BaseModel):
    """Body of `POST /chatbot/session/{id}/share`. A misspelled field must not result in a wider default, so unknown
    names are refused."""

    model_config = ConfigDict(hide_input_in_errors=True, extra="forbid")

    audience: Audience = "signed_in"
    later_turns: Annotated[bool, Field(strict=True)] = False
    days: Annotated[int, Field(ge=1, le=3650, strict=True)] | None = None


@dataclass(frozen=True, slots=True)
class ShareServices:
    """What the routes need besides conversations. `public`: whether links may be for anybody. Reads by others are
    recorded, repetitions only from time to time."""

    links: LinkStore
    note: NoteEvent
    lately: Lately
    public: bool

    def note_read(self, link: ShareLink, reader: Identity | None) -> None:
        """Record that somebody else reads by a link; None: it is not known who."""
        uid = "" if reader is None else reader.uid
        if uid == link.user_id or not self.lately.is_new((uid, link.id)):
            return
        subject = f"link:{link.id}"
        if reader is None:
            event = AuditEvent(AuditAction.READ_BY_SHARE, "session", link.session_id, uid, subject=subject)
        else:
            event = AuditEvent.by(reader, AuditAction.READ_BY_SHARE, "session", link.session_id, subject=subject)
        self.note(event)


class SharingServices(Protocol):
    """What the routes need."""

    @property
    def store(self) -> SessionStore:
        """Where conversations are."""

    @property
    def answers(self) -> Answers:
        """What bounds what is read."""

    @property
    def catalog(self) -> Catalog:
        """The names of agents."""

    @property
    def shares(self) -> ShareServices:
        """The links."""


def add_shares(router: APIRouter, services: Callable[[], SharingServices], caller: Any) -> None:
    """Add the routes. `services()` is called at each request: its result exists once the app runs."""
    _add_links(router, services, caller)
    _add_shared(router, services, caller)


def _add_links(router: APIRouter, services: Callable[[], SharingServices], caller: Any) -> None:
    """What the owner does."""

    @router.post("/chatbot/session/{session_id}/share", status_code=201)
    async def make_share(session_id: SessionId, identity: caller, body: MakeShare | None = None) -> dict[str, Any]:
        """Create a link to a session of the caller's. `token` is shown only in this response."""
        state, wanted = services(), body or MakeShare()
        session = await load_owned(state.store, session_id, identity.uid)
        if wanted.audience == "anybody" and not state.shares.public:
            raise Forbidden(field="audience")
        if session.next_rank == 0 and not wanted.later_turns:
            raise MessageNotFound
        token, link_id = new_token(), secrets.token_urlsafe(8)
        subject = f"link:{link_id}"
        event = AuditEvent.by(identity, AuditAction.SESSION_SHARED, "session", session_id, subject=subject)
        up_to = None if wanted.later_turns else session.next_rank - 1
        like = LinkWanted(session_id, identity.uid, wanted.audience, up_to, wanted.days)
        link = await state.shares.links.make(link_id, digest_of(token), like, MAX_LINKS, event)
        if link is None:
            raise ShareLimitReached
        return {"token": token, **link.wire()}

    @router.get("/chatbot/session/{session_id}/shares")
    async def list_shares(session_id: SessionId, identity: caller) -> list[dict[str, Any]]:
        """The links to a session of the caller's, newest first, without their tokens."""
        state = services()
        await load_owned(state.store, session_id, identity.uid)
        return [link.wire() for link in await state.shares.links.of_session(session_id, identity.uid)]

    @router.delete("/chatbot/session/{session_id}/share/{share_id}", status_code=204)
    async def revoke_share(session_id: SessionId, share_id: _LinkId, identity: caller) -> None:
        """Revoke a link: from now on it leads nowhere, at every instance."""
        state = services()
        await load_owned(state.store, session_id, identity.uid)
        subject = f"link:{share_id}"
        event = AuditEvent.by(identity, AuditAction.SESSION_UNSHARED, "session", session_id, subject=subject)
        if not await state.shares.links.revoke(share_id, session_id, identity.uid, event):
            raise ShareNotFound


def _add_shared(router: APIRouter, services: Callable[[], SharingServices], caller: Any) -> None:
    """What its readers do."""

    @router.get("/chatbot/shared/{token}")
    async def shared(token: _Token, identity: caller, limit: _Limit = _MAX_LISTED, offset: _Offset = 0) -> Response:
        """A conversation that its owner has shared: questions and answers, in a window counted from the newest."""
        state = services()
        link = await _find(state, token)
        answer = await _conversation(state, link, HistoryWindow(limit, offset, up_to=link.up_to), identity.uid)
        state.shares.note_read(link, identity)
        return answer

    @router.get("/chatbot/public/{token}")
    async def shared_with_anybody(
        token: _Token, request: Request, limit: _Limit = _MAX_LISTED, offset: _Offset = 0
    ) -> Response:
        """The same without credentials, by a link for anybody."""
        state = services()
        if not state.shares.public:
            raise ShareNotFound
        link = await _find(state, token)
        if link.audience != "anybody":
            raise ShareNotFound
        # No id of a user begins like this.
        reader = "\0" if request.client is None else f"\0{request.client.host}"
        answer = await _conversation(state, link, HistoryWindow(limit, offset, up_to=link.up_to), reader)
        state.shares.note_read(link, None)
        return answer


async def _find(state: SharingServices, token: str) -> ShareLink:
    link = await state.shares.links.find(digest_of(token)) if len(token) == TOKEN_CHARS else None
    if link is None:
        raise ShareNotFound
    return link


async def _conversation(state: SharingServices, link: ShareLink, window: HistoryWindow, reader: str) -> Response:
    session = await state.store.get(link.session_id, link.user_id)
    if session is None:
        raise ShareNotFound
    head = dumps(_head(session, link, state.catalog.names()))
    parts = _parts(state.store, session, window, head.removesuffix(b"}") + b',"messages":[')
    headers = {"Cache-Control": "private, no-store", "X-Content-Type-Options": "nosniff"}
    return PagedAnswer(state.answers, reader, parts, media_type="application/json", headers=headers)


def _head(session: Session, link: ShareLink, names: dict[str, str]) -> dict[str, Any]:
    id_ = session.agent_id
    return {
        "title": session.title,
        "agent": {"id": id_, "name": names.get(id_, id_)},
        "shared_at": link.created_at,
        "later_turns": link.up_to is None,
    }


async def _parts(store: SessionStore, session: Session, window: HistoryWindow, head: bytes) -> Parts:
    """The answer, a page of messages at a time. `earlier` says whether there may be messages before them. A message
    above 1 MiB is left out: filtering it would take all of it in memory."""
    held, between, read = head, b"", 0
    async for page in store.pages(session.id, session.user_id, window):
        read += len(page.messages) or 1
        told = await written_page(page, seen_by_readers) if page.large is None else b""
        if told:
            if between:
                yield AnswerPart(held)
                held = b""
            held += between + told
            between = b","
    yield AnswerPart(held + b'],"earlier":' + (b"true" if read == window.limit else b"false") + b"}", last=True)


def seen_by_readers(messages: Sequence[bytes]) -> bytes:
    """The questions and final answers among encoded ChatMessages as JSON, with commas between them: without their
    owner, what the agent thought and called, what it cost, and what was attached."""
    seen = (_seen(loads(message)) for message in messages)
    return b",".join(dumps(message) for message in seen if message is not None)


def _seen(message: dict[str, Any]) -> dict[str, Any] | None:
    shown = _PARTS.get(message["role"]) if message["channel"] == "final" else None
    if shown is None or _holds_a_place(message["metadata"]):
        return None
    return {
        "rank": message["rank"],
        "timestamp": message["timestamp"],
        "role": message["role"],
        "channel": "final",
        "parts": [part for part in message["parts"] if part.get("type") in shown],
        "metadata": {} if message["role"] == "user" else _metadata(message["metadata"]),
    }


def _holds_a_place(metadata: dict[str, Any]) -> bool:
    """Whether it is the placeholder with an agent's question to a person."""
    extras = metadata.get("extras")
    return isinstance(extras, dict) and extras.get("status") == AWAITING


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    seen = {name: metadata[name] for name in ("agent_id", "finish_reason") if metadata.get(name) is not None}
    if sources := metadata.get("sources"):
        seen["sources"] = [_source(source) for source in sources]
    if isinstance(extras := metadata.get("extras"), dict) and extras.get("error"):
        seen["extras"] = {"error": extras["error"]}
    return seen


def _source(source: dict[str, Any]) -> dict[str, Any]:
    """A source as its readers see it. A document of ours that is in no library is an attachment: only its name."""
    seen = {name: source[name] for name in _SOURCE if source.get(name) is not None}
    ours = str(source.get("citation_url") or _OUR_DOCUMENTS).startswith(_OUR_DOCUMENTS)
    return {**seen, _PASSAGE: ""} if ours and not source.get("tag_names") else seen
