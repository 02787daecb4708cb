"""REST of attachments: files that a user uploads to one of their sessions, received within size limits."""

import asyncio
import logging
import os
import re
import secrets
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, Final, Protocol

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParam
from pydantic import AfterValidator

from agentic_backend.errors import (
    AttachmentDuplicate,
    AttachmentLimitReached,
    AttachmentNotFound,
    AttachmentsDisabled,
    AttachmentTooLarge,
    BadRequest,
    KfUnavailable,
    MissingFilename,
    Overloaded,
    SessionNotFound,
    Unauthenticated,
    UploadProcessingFailed,
)
from agentic_backend.events import utc_now
from agentic_backend.knowledge import MAX_IMAGE_BYTES, Caller, Ingested, Redrawn
from agentic_backend.rest.upload import FORM_BYTES, Received, receive
from agentic_backend.session.attachments import Attachment, AttachmentStore, Leftovers, Verdict
from agentic_backend.session.images import Image
from agentic_backend.session.models import Session
from agentic_backend.session.store import SessionStore, load_owned
from backend_kit.aio import Crowded, FairGate, GateRules
from backend_kit.auth import AuditAction, AuditEvent, Identity
from backend_kit.http import error_response, request_id
from backend_kit.wire import CODES, Code, dumps, normalized, storable

logger = logging.getLogger(__name__)

PATH: Final = "/chatbot/upload"
MAX_NAME_CHARS: Final = 120
ATTACHED_FILES: Final = GateRules(places=8, per_user=2, reserve=2, waiting_per_user=20)
"""A place is a file of up to `max_bytes` on our disk; as many uploads to knowledge flow run at once."""
_REFUSALS: Final = (
    AttachmentDuplicate,
    AttachmentLimitReached,
    AttachmentTooLarge,
    BadRequest,
    MissingFilename,
    Overloaded,
    SessionNotFound,
)
"""What is known of a file before all of it has come."""
_LIMITS: Final[dict[type, str]] = {
    AttachmentLimitReached: "max_attached_files_per_user",
    AttachmentTooLarge: "max_attached_file_size_mb",
}
# Control characters, lone surrogates, and the marks that reverse the reading direction of a name.
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

AttachmentId = Annotated[str, PathParam(min_length=1, max_length=64), AfterValidator(storable)]
OfSession = Annotated[str | None, Query(min_length=1, max_length=64), AfterValidator(lambda v: v and storable(v))]


class IngestedDocuments(Protocol):
    """Knowledge flow, which reads attachments. Each method may raise `KfUnavailable`, or
    `Unauthenticated` if it does not accept the caller's token."""

    async def ingest(self, file: IO[bytes], name: str, session_id: str, caller: Caller) -> Ingested:
        """Have a file read and indexed for its session. Raises `UploadProcessingFailed`."""

    async def redraw(self, file: IO[bytes], name: str, caller: Caller) -> Redrawn:
        """Have an image re-encoded, without keeping it. Raises `UploadProcessingFailed`."""

    async def delete(self, document_uid: str, session_id: str, caller: Caller) -> None:
        """Delete one document; not an error if it does not exist."""


@dataclass(frozen=True, slots=True)
class AttachmentServices:
    """What the routes need. A user may have `most` attachments (0: the routes are off), of `max_bytes` each.

    `limit_hit` is called with the name of a limit each time it rejects a file. Files are in `directory` (None: the
    system's for temporary files) while they are received and passed on; each has a place at `gate`.
    """

    store: AttachmentStore
    sessions: SessionStore
    documents: IngestedDocuments
    leftovers: Leftovers
    most: int
    max_bytes: int
    limit_hit: Callable[[str], None]
    gate: FairGate
    directory: Path | None = None


def add_attachments(router: APIRouter, services: Callable[[], AttachmentServices], caller: Any) -> None:
    """Add the three routes. `services()` is called at each request: its result exists once the app runs."""

    @router.post(PATH)
    async def upload_attachment(request: Request, identity: caller) -> Response:
        """Read a file and attach it to a session, whose turns may search it from then on; or an image, which its
        questions may show."""
        return await _answer(services(), request, identity)

    @router.get(PATH + "/{attachment_id}/summary")
    async def attachment_summary(
        attachment_id: AttachmentId, identity: caller, session_id: OfSession = None
    ) -> dict[str, Any]:
        """The data of an attachment, and the beginning of its text."""
        found = await services().store.find(attachment_id, identity.uid, session_id)
        if found is None:
            raise AttachmentNotFound
        return {**found.wire(), "summary_md": found.summary_md}

    @router.delete(PATH + "/{attachment_id}", status_code=204)
    async def delete_attachment(
        attachment_id: AttachmentId, request: Request, identity: caller, session_id: OfSession = None
    ) -> None:
        """Delete an attachment with its passages."""
        state = services()
        event = AuditEvent.by(identity, AuditAction.ATTACHMENT_DELETED, "attachment", attachment_id)
        if not await state.store.delete(attachment_id, identity.uid, session_id, event):
            raise AttachmentNotFound
        state.leftovers.note_owner(identity.uid, request.state.credentials, at_once=True)


def file_name(raw: str) -> str:
    """The name under which a file is shown: the last part of its path as plain text, "" if nothing remains."""
    last = re.split(r"[\\/]", normalized("NFC", _UNSEEN.sub("", raw)))[-1]
    name = " ".join(last.split())
    if not name.strip(". "):
        return ""
    if len(name) <= MAX_NAME_CHARS:
        return name
    stem, dot, ending = name.rpartition(".")
    if not dot or len(ending) > 10:
        return name[:MAX_NAME_CHARS].rstrip()
    return f"{stem[: MAX_NAME_CHARS - 1 - len(ending)].rstrip()}.{ending}"


async def _answer(state: AttachmentServices, request: Request, identity: Identity) -> Response:
    """Store the attachment; returns it, or why there is none."""
    try:
        answer = await _upload(state, request, identity)
    except UploadProcessingFailed as refused:
        return _unreadable(request, refused)
    except _REFUSALS as refused:
        if limit := _LIMITS.get(type(refused)):
            state.limit_hit(limit)
        return error_response(request, refused.code, retry_after_s=refused.retry_after_s, field=refused.field)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        logger.error("an attachment could not be written to a temporary file: %s; see ai.attachments_dir", reason)
        return error_response(request, Code.STORAGE_FULL)
    return Response(dumps(answer), media_type="application/json")


async def _upload(state: AttachmentServices, request: Request, identity: Identity) -> dict[str, Any]:
    if not state.most:
        raise AttachmentsDisabled
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > state.max_bytes + FORM_BYTES:
        raise AttachmentTooLarge
    asked_by = Caller(request.state.credentials, request_id(request.scope))
    async with AsyncExitStack() as stack:
        admission = _Admission(state, identity.uid, stack)
        content_type = request.headers.get("content-type", "")
        received = await receive(
            content_type, request.stream(), state.max_bytes, admission.admit, stack, state.directory
        )
        session = admission.session
        assert session is not None
        image = None
        if await asyncio.to_thread(_is_image, received.file):
            attachment, image = await _drawn(state, received, session, asked_by)
        else:
            attachment = await _ingested(state, received, session, asked_by)
        # Within the place: an image is in memory until it is stored.
        await _keep(state, attachment, asked_by, image)
    read = {"preview_chars": len(attachment.summary_md), "attached_at": utc_now()}
    drawn = {} if image is None else {"width": image.width, "height": image.height}
    return {**attachment.wire(), **drawn, **read, "session": session.wire()}


async def _ingested(state: AttachmentServices, received: Received, session: Session, asked_by: Caller) -> Attachment:
    name = file_name(received.name)
    found = await state.documents.ingest(received.file, name, session.id, asked_by)
    return Attachment(
        attachment_id=secrets.token_urlsafe(12),
        session_id=session.id,
        user_id=session.user_id,
        name=name,
        mime=found.mime_type,
        size_bytes=received.size,
        summary_md=found.preview,
        document_uid=found.document_uid,
    )


def _is_image(file: IO[bytes]) -> bool:
    """Whether it begins as PNG, JPEG or WebP do, whatever its name says; runs in a thread."""
    head = file.read(12)
    file.seek(0)
    return head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")) or (head[:4] == b"RIFF" and head[8:] == b"WEBP")


async def _drawn(
    state: AttachmentServices, received: Received, session: Session, asked_by: Caller
) -> tuple[Attachment, Image]:
    if received.size > MAX_IMAGE_BYTES:
        raise AttachmentTooLarge
    name = file_name(received.name)
    found = await state.documents.redraw(received.file, name, asked_by)
    attachment = Attachment(
        attachment_id=secrets.token_urlsafe(12),
        session_id=session.id,
        user_id=session.user_id,
        name=name,
        mime=found.mime_type,
        size_bytes=len(found.content),
        summary_md="",
        document_uid=None,
    )
    return attachment, Image(
        attachment.attachment_id, name, found.mime_type, found.width, found.height, content=found.content
    )


class _Admission:
    """Decides whether one file may be stored, and holds a place for it until `stack` closes."""

    def __init__(self, state: AttachmentServices, user_id: str, stack: AsyncExitStack) -> None:
        self._state = state
        self._user_id = user_id
        self._stack = stack
        self.session: Session | None = None

    async def admit(self, session_id: str, name: str) -> None:
        """Raise as the session or the file's name demands; wait for a place. `name` as it was sent."""
        shown = file_name(name)
        if not shown:
            raise MissingFilename
        state, user_id = self._state, self._user_id
        self.session = await load_owned(state.sessions, session_id, user_id)
        if self.session.rested and not await state.sessions.touch(session_id, user_id):
            raise SessionNotFound
        _accepted(await state.store.verdict(user_id, session_id, shown, state.most))
        try:
            await self._stack.enter_async_context(state.gate.place(user_id))
        except Crowded:
            raise Overloaded(retry_after_s=5.0) from None


async def _keep(
    state: AttachmentServices, attachment: Attachment, asked_by: Caller, image: Image | None = None
) -> None:
    """Store it, or delete its document again: knowledge flow must not have documents that no session lists."""
    kept = False
    try:
        _accepted(await state.store.keep(attachment, state.most, image))
        kept = True
    finally:
        if not kept:
            await _take_back(state, attachment, asked_by)


async def _take_back(state: AttachmentServices, attachment: Attachment, asked_by: Caller) -> None:
    if attachment.document_uid is None:
        return
    try:
        await state.documents.delete(attachment.document_uid, attachment.session_id, asked_by)
    except (KfUnavailable, Unauthenticated):
        # A token may expire while a file is read; the owner's next request brings another.
        await state.store.leave(attachment)


def _accepted(verdict: Verdict) -> None:
    """Raise the error for a verdict other than `kept`."""
    match verdict:
        case "duplicate":
            raise AttachmentDuplicate
        case "limit":
            raise AttachmentLimitReached
        case "gone":
            raise SessionNotFound


def _unreadable(request: Request, refused: UploadProcessingFailed) -> Response:
    """The error response with knowledge flow's explanation instead of the general text."""
    if not refused.sentence:
        return error_response(request, refused.code)
    detail = {"code": refused.code.value, "message": refused.sentence}
    return Response(dumps({"detail": detail}), CODES[refused.code].status, media_type="application/json")
