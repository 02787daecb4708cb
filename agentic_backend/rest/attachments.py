"""REST of attachments: files that a user uploads to one of their sessions, received within size limits."""

import re
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import IO, Annotated, Any, Final, Protocol

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParam
from pydantic import AfterValidator
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from agentic_backend.chat.frames import storable
from agentic_backend.errors import (
    AttachmentDuplicate,
    AttachmentLimitReached,
    AttachmentNotFound,
    AttachmentsDisabled,
    AttachmentTooLarge,
    BadRequest,
    KfUnavailable,
    MissingFilename,
    SessionNotFound,
    Unauthenticated,
    UploadProcessingFailed,
)
from agentic_backend.knowledge import Caller, Ingested
from agentic_backend.session.attachments import Attachment, AttachmentStore, Leftovers, Verdict
from agentic_backend.session.models import Session
from agentic_backend.session.store import SessionStore, load_owned
from backend_kit.auth import Identity
from backend_kit.http import CutShort, error_response, request_id
from backend_kit.wire import CODES, dumps, normalized

PATH: Final = "/chatbot/upload"
MAX_NAME_CHARS: Final = 120
FORM_BYTES: Final = 64 * 1024
"""Size limit of a form's fields other than its file."""
_MAX_FIELDS: Final = 8
# Control characters, lone surrogates, and the marks that reverse the reading direction of a name.
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

AttachmentId = Annotated[str, PathParam(min_length=1, max_length=64), AfterValidator(storable)]
OfSession = Annotated[str | None, Query(min_length=1, max_length=64), AfterValidator(lambda v: v and storable(v))]


class IngestedDocuments(Protocol):
    """Knowledge flow, which reads attachments. Each method may raise `KfUnavailable`, or
    `Unauthenticated` if it does not accept the caller's token."""

    async def ingest(self, file: IO[bytes], name: str, session_id: str, caller: Caller) -> Ingested:
        """Have a file read and indexed for its session. Raises `UploadProcessingFailed`."""

    async def delete(self, document_uid: str, session_id: str, caller: Caller) -> None:
        """Delete one document; it is no failure if it does not exist."""


@dataclass(frozen=True, slots=True)
class AttachmentServices:
    """What the routes need. A user may have `most` attachments (0: the routes are off), of `max_bytes` each.

    `limit_hit` is called with the name of a limit each time it rejects a file.
    """

    store: AttachmentStore
    sessions: SessionStore
    documents: IngestedDocuments
    leftovers: Leftovers
    most: int
    max_bytes: int
    limit_hit: Callable[[str], None]


def add_attachments(router: APIRouter, services: Callable[[], AttachmentServices], caller: Any) -> None:
    """Add the three routes. `services()` is called at each request: its result exists once the app runs."""

    @router.post(PATH)
    async def upload_attachment(request: Request, identity: caller) -> Response:
        """Read a file and attach it to a session, whose turns may search it from then on."""
        state = services()
        try:
            answer = await _upload(state, request, identity)
        except AttachmentLimitReached:
            state.limit_hit("max_attached_files_per_user")
            raise
        except AttachmentTooLarge as refused:
            state.limit_hit("max_attached_file_size_mb")
            return CutShort(error_response(request, refused.code))
        except UploadProcessingFailed as refused:
            return _unreadable(request, refused)
        return Response(dumps(answer), media_type="application/json")

    @router.get(PATH + "/{attachment_id}/summary")
    async def attachment_summary(
        attachment_id: AttachmentId, identity: caller, session_id: OfSession = None
    ) -> dict[str, Any]:
        """What an attachment is, and how its text begins."""
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
        if not await state.store.delete(attachment_id, identity.uid, session_id):
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


async def _upload(state: AttachmentServices, request: Request, identity: Identity) -> dict[str, Any]:
    if not state.most:
        raise AttachmentsDisabled
    asked_by = Caller(request.state.credentials, request_id(request.scope))
    form = await _received(request, state.max_bytes + FORM_BYTES)
    try:
        session, attachment = await _ingested(state, form, identity, asked_by)
    finally:
        await form.close()
    await _keep(state, attachment, asked_by)
    return {**attachment.wire(), "preview_chars": len(attachment.summary_md), "session": session.wire()}


async def _ingested(
    state: AttachmentServices, form: FormData, identity: Identity, asked_by: Caller
) -> tuple[Session, Attachment]:
    """The session, and the attachment as ingested by knowledge flow; it is not stored here yet."""
    file, session_id = _fields(form)
    name = file_name(file.filename or "")
    if not name:
        raise MissingFilename
    if (file.size or 0) > state.max_bytes:
        raise AttachmentTooLarge
    session = await load_owned(state.sessions, session_id, identity.uid)
    if session.rested and not await state.sessions.touch(session_id, identity.uid):
        raise SessionNotFound
    _accepted(await state.store.verdict(identity.uid, session_id, name, state.most))
    found = await state.documents.ingest(file.file, name, session_id, asked_by)
    attachment = Attachment(
        attachment_id=secrets.token_urlsafe(12),
        session_id=session.id,
        user_id=session.user_id,
        name=name,
        mime=found.mime_type,
        size_bytes=file.size or 0,
        summary_md=found.preview,
        document_uid=found.document_uid,
    )
    return session, attachment


async def _keep(state: AttachmentServices, attachment: Attachment, asked_by: Caller) -> None:
    """Store it, or delete its document again: knowledge flow must not have documents that no session lists."""
    kept = False
    try:
        _accepted(await state.store.keep(attachment, state.most))
        kept = True
    finally:
        if not kept:
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


async def _received(request: Request, max_bytes: int) -> FormData:
    """The form, with its file in an unnamed temporary file. Raises `BadRequest`, or `AttachmentTooLarge` within one
    read of the limit."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise AttachmentTooLarge
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise BadRequest("not multipart/form-data", field="Content-Type")

    async def counted() -> AsyncGenerator[bytes, None]:
        received = 0
        async for data in request.stream():
            received += len(data)
            if received > max_bytes:
                raise AttachmentTooLarge
            yield data

    parser = MultiPartParser(request.headers, counted(), max_files=1, max_fields=_MAX_FIELDS, max_part_size=FORM_BYTES)
    try:
        return await parser.parse()
    except MultiPartException:
        raise BadRequest("a broken multipart body") from None
    except ClientDisconnect:
        raise BadRequest("the client went away") from None


def _fields(form: FormData) -> tuple[UploadFile, str]:
    """The two parts of an upload. Raises `BadRequest` if one is missing."""
    file, session_id = form.get("file"), form.get("session_id")
    if not isinstance(file, UploadFile):
        raise BadRequest("no file", field="file")
    if not isinstance(session_id, str) or not 0 < len(session_id) <= 64:
        raise BadRequest("no session_id", field="session_id")
    return file, session_id


def _unreadable(request: Request, refused: UploadProcessingFailed) -> Response:
    """The error response with knowledge flow's explanation instead of the general text."""
    if not refused.sentence:
        return error_response(request, refused.code)
    detail = {"code": refused.code.value, "message": refused.sentence}
    return Response(dumps({"detail": detail}), CODES[refused.code].status, media_type="application/json")
