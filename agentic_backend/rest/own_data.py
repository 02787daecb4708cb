"""REST routes for everything that belongs to the caller: exported as one file, and deleted as a whole."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Depends, Request, Response

from agentic_backend.events import utc_now
from agentic_backend.rest.answers import AnswerPart, Answers, PagedAnswer, Parts
from agentic_backend.rest.attachments import AttachmentServices
from agentic_backend.rest.keys import KeyServices, owner_of, wire
from agentic_backend.rest.messages import MessageReader
from agentic_backend.rest.shares import ShareServices
from agentic_backend.session.links import ShareLink
from agentic_backend.session.models import HistoryWindow, Session, SessionsWanted
from agentic_backend.session.opening import Sessions
from agentic_backend.session.store import FeedbackStore, SessionStore
from backend_kit.auth import AuditAction, AuditEvent, Identity, KeyScope
from backend_kit.kpi import Kpi
from backend_kit.wire import ServiceError, dumps

PATH: Final = "/chatbot/me"
MOST_DELETED: Final = 512
"""Sessions that one request deletes."""
_AT_ONCE: Final = 64
"""Sessions that are deleted together: as many as one transaction of the batcher takes."""
_PAGE: Final = 100
"""Sessions, and feedback, that are read by one query."""
_PART_BYTES: Final = 64 * 1024
_MAX_KEYS: Final = 1000


class OwnDataServices(Protocol):
    """What the routes need."""

    @property
    def sessions(self) -> Sessions:
        """What deletes conversations."""

    @property
    def store(self) -> SessionStore:
        """Where conversations are."""

    @property
    def feedback(self) -> FeedbackStore:
        """Where ratings are."""

    @property
    def keys(self) -> KeyServices:
        """Where API keys are."""

    @property
    def shares(self) -> ShareServices:
        """The links to conversations."""

    @property
    def attachments(self) -> AttachmentServices:
        """What deletes attachments in knowledge flow."""

    @property
    def answers(self) -> Answers:
        """What bounds the export."""

    @property
    def kpi(self) -> Kpi:
        """What measures the deletion."""


def add_own_data(router: APIRouter, services: Callable[[], OwnDataServices], caller: Any) -> None:
    """Add the two routes. `services()` is called at each request: its result exists once the app runs."""

    known = Annotated[Identity, Depends(owner_of(caller))]
    file = {"description": "A file", "content": {"application/json": {}}}

    @router.get(PATH + "/export", response_class=Response, responses={200: file})
    async def export_own_data(identity: known) -> Response:
        """Everything that belongs to the caller as one JSON file: conversations with their messages, the names of their
        attachments and the links to them, preferences, feedback, and links and keys without their secrets."""
        state = services()
        headers = {
            "Content-Disposition": 'attachment; filename="my-data.json"',
            "Cache-Control": "private, no-store",
            "X-Content-Type-Options": "nosniff",
        }
        parts = _parts(_written(state, identity))
        return PagedAnswer(state.answers, identity.uid, parts, media_type="application/json", headers=headers)

    @router.delete(PATH)
    async def delete_own_data(request: Request, identity: known) -> dict[str, Any]:
        """Stop the caller's turns, and delete their sessions with everything that belongs to them and their API keys:
        up to 512 sessions a request. Repeat it until `complete`."""
        state = services()
        sessions, complete = await _delete_sessions(state, identity)
        state.attachments.leftovers.note_owner(identity.uid, request.state.credentials, at_once=True)
        # Last: the request may have been made with one of them, and must be repeatable until then.
        keys = await _delete_keys(state.keys, identity) if complete else 0
        return {"sessions": sessions, "keys": keys, "complete": complete}


async def _delete_sessions(state: OwnDataServices, identity: Identity) -> tuple[int, bool]:
    """How many were deleted, and whether none is left."""
    deleted = 0
    for _ in range(MOST_DELETED // _AT_ONCE):
        with state.kpi.phase("session_list"):
            found = await state.store.list_for(identity.uid, SessionsWanted(limit=_AT_ONCE))
        if not found:
            return deleted, True
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(state.sessions.delete(one.id, identity)) for one in found]
        except* ServiceError as failed:
            raise failed.exceptions[0] from None
        deleted += sum(task.result() for task in tasks)
    return deleted, False


async def _delete_keys(keys: KeyServices, identity: Identity) -> int:
    if keys.store is None:
        return 0
    deleted = 0
    while records := await keys.store.list(identity.uid, _MAX_KEYS):
        valid = [record.id for record in records if record.revoked_at is None]
        events = [AuditEvent.by(identity, AuditAction.KEY_REVOKED, "key", key_id) for key_id in valid]
        deleted += await keys.store.delete([record.id for record in records], identity.uid, events)
        if keys.keys is not None:
            for key_id in valid:
                keys.keys.forget(key_id)
    return deleted


async def _written(state: OwnDataServices, identity: Identity) -> AsyncIterator[bytes]:
    """The file in pieces, each bounded as a part of history is."""
    head = {"exported_at": utc_now(), "user_id": identity.uid, "user_name": identity.username}
    yield dumps(head)[:-1] + b',"sessions":['
    between = b""
    async for session in _all_sessions(state.store, identity.uid):
        links = await state.shares.links.of_session(session.id, identity.uid)
        yield between + _session_head(session, links)
        reader = MessageReader(state.store, session.id, identity.uid)
        async for part in reader.json(HistoryWindow(branches=True)):
            yield part.body
        yield b"]}"
        between = b","
    yield b'],"feedback":['
    between = b""
    offset = 0
    while given := await state.feedback.of_user(identity.uid, None, _PAGE, offset):
        yield between + b",".join(dumps(one.wire()) for one in given)
        between = b","
        offset += len(given)
    yield b'],"keys":' + dumps(await _keys(state.keys, identity)) + b"}"


def _session_head(session: Session, links: Sequence[ShareLink]) -> bytes:
    head = {
        "session": session.wire(),
        "attachments": [{"id": file.id, "name": file.name} for file in session.attachments],
        "links": [link.wire() for link in links],
    }
    return dumps(head)[:-1] + b',"messages":['


async def _all_sessions(store: SessionStore, user_id: str) -> AsyncIterator[Session]:
    """Each session once, even if others move or disappear during the read: repeated from the newest until a whole pass
    finds no new one."""
    seen: set[str] = set()
    found = True
    while found:
        found = False
        offset = 0
        while page := await store.list_for(user_id, SessionsWanted(limit=_PAGE, offset=offset)):
            offset += len(page)
            for session in page:
                if session.id not in seen:
                    seen.add(session.id)
                    found = True
                    yield session


async def _keys(keys: KeyServices, identity: Identity) -> list[dict[str, Any]]:
    """The links that the caller created; none for a key that may not list them."""
    if keys.store is None or not identity.may(KeyScope.ADMIN):
        return []
    return [wire(record) for record in await keys.store.list(identity.uid, _MAX_KEYS)]


async def _parts(pieces: AsyncIterator[bytes]) -> Parts:
    """Join small pieces, so that a thousand short conversations are not a thousand parts."""
    held: list[bytes] = []
    size = 0
    async for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= _PART_BYTES:
            yield AnswerPart(b"".join(held))
            held, size = [], 0
    yield AnswerPart(b"".join(held), last=True)
