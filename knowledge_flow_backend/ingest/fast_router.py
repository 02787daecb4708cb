"""`POST /fast/text`, `/fast/image` and `/fast/ingest`: one file in, one answer out; and the deletion of attachments."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import AfterValidator

from backend_kit.aio import Crowded, FairGate, GateRules
from backend_kit.auth import Identity
from backend_kit.http import error_response, refusals
from backend_kit.wire import CODES, Code, dumps
from knowledge_flow_backend.errors import (
    AttachmentLimitReached,
    BadRequest,
    Overloaded,
    TooLarge,
)
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.ingest.fast import FastIngest
from knowledge_flow_backend.ingest.receive import ReceivedFile, Upload, UploadLimits
from knowledge_flow_backend.ingest.router import MAX_ID_CHARS, is_id, receive_files
from knowledge_flow_backend.ingest.service import IngestService
from knowledge_flow_backend.ingest.staging import Staging
from knowledge_flow_backend.library.bodies import Id
from knowledge_flow_backend.library.reasons import SENTENCES, Reason, Refused
from knowledge_flow_backend.library.store import Attachments

logger = logging.getLogger(__name__)

ATTACHMENT_FILES: Final = GateRules(places=8, per_user=2, reserve=2, waiting_per_user=20)
"""A place is a file on the disk of uploads."""
_IMAGE: Final[dict[str, Any]] = {
    "description": "An image",
    "content": {f"image/{kind}": {} for kind in ("png", "jpeg", "webp")},
}


def _known(value: str) -> str:
    if not is_id(value):
        raise ValueError("not an id")
    return value


SessionId = Annotated[str, Query(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(_known)]


@dataclass(frozen=True, slots=True)
class FastServices:
    """What the routes need, built in the lifespan. `limits` are those of a request with one file, `image_limits` with
    one image. A user may have `most` attachments (0: no limit). Each file has a place at `gate` from its first byte to
    the answer."""

    fast: FastIngest
    ingest: IngestService
    attachments: Attachments
    staging: Staging
    limits: UploadLimits
    image_limits: UploadLimits
    most: int
    gate: FairGate


def build_router(services: Callable[[], FastServices], identify: Callable[..., Any], base: str) -> APIRouter:
    """The routes below the base path. `services()` is asked at each request."""
    router = APIRouter(prefix=f"{base}/fast", tags=["attachments"], responses=refusals())
    caller = Annotated[Identity, Depends(identify)]

    @router.post("/text")
    async def extract_text(request: Request, identity: caller) -> Response:
        """The text of one file, which is not kept."""
        state = services()

        async def read(file: ReceivedFile, _fields: dict[str, str]) -> Response:
            return _json(await state.fast.text(file, Reader.of(identity)))

        async with _place(state, identity):
            return await _one_file(request, state, state.limits, read)

    _add_image(router, services, caller)

    @router.post("/ingest")
    async def ingest_attachment(request: Request, identity: caller) -> Response:
        """Index one file as an attachment of a session of the caller's."""
        state = services()

        async def keep(file: ReceivedFile, fields: dict[str, str]) -> Response:
            session_id = fields.get("session_id")
            if session_id is None or not is_id(session_id):
                raise BadRequest("session_id is not an id", field="session_id")
            return _json(await state.fast.ingest(file, session_id, Reader.of(identity)))

        async with _place(state, identity):
            # Those that the user's other places hold are counted too: each becomes one.
            others = state.gate.held_by(identity.uid) - 1
            if state.most and await state.attachments.held(Reader.of(identity)) + others >= state.most:
                return error_response(request, AttachmentLimitReached.code)
            return await _one_file(request, state, state.limits, keep)

    @router.delete("/ingest/{document_uid}", status_code=204)
    async def delete_attachment(document_uid: Id, identity: caller, session_id: SessionId | None = None) -> None:
        """Delete one attachment: its owner only."""
        reader = Reader.of(identity)
        if not await services().attachments.delete(reader, document_uid, session_id):
            raise HTTPException(404, "Attachment not found.")

    @router.delete("/ingest")
    async def delete_attachments(session_id: SessionId, identity: caller) -> dict[str, int]:
        """Delete all attachments of a session of the caller's."""
        reader = Reader.of(identity)
        return {"deleted": await services().attachments.delete_session(reader, session_id)}

    return router


def _add_image(router: APIRouter, services: Callable[[], FastServices], caller: Any) -> None:
    @router.post("/image", response_class=Response, responses={200: _IMAGE})
    async def redraw_image(request: Request, identity: caller) -> Response:
        """One image, re-encoded without its metadata; its size is in two headers. It is not stored."""
        state = services()

        async def redraw(file: ReceivedFile, _fields: dict[str, str]) -> Response:
            drawn, content = await state.fast.image(file, Reader.of(identity))
            size = {"X-Image-Width": str(drawn.width), "X-Image-Height": str(drawn.height)}
            return Response(content, media_type=drawn.mime, headers={"X-Content-Type-Options": "nosniff", **size})

        async with _place(state, identity):
            return await _one_file(request, state, state.image_limits, redraw)


@asynccontextmanager
async def _place(state: FastServices, identity: Identity) -> AsyncIterator[None]:
    """Before a byte of the body is read. Raises `Overloaded` where too many wait."""
    try:
        await state.gate.enter(identity.uid)
    except Crowded:
        raise Overloaded(retry_after_s=5.0) from None
    try:
        yield
    finally:
        state.gate.leave(identity.uid)


async def _one_file(
    request: Request,
    state: FastServices,
    limits: UploadLimits,
    use: Callable[[ReceivedFile, dict[str, str]], Awaitable[Response]],
) -> Response:
    """Take the request's one file off the wire and answer what `use` makes of it."""
    state.ingest.require_open()
    upload = Upload()
    try:
        async with _dropped(state.staging, upload):
            await receive_files(request, state.staging, limits, upload)
            return await use(upload.files[0], upload.fields)
    except TooLarge as refused:
        return error_response(request, refused.code)
    except Refused as refused:
        return _refused(refused.reason)
    except OSError as error:
        raise state.staging.refusal(error) from None


def _json(answer: dict[str, Any]) -> Response:
    return Response(dumps(answer), media_type="application/json")


@asynccontextmanager
async def _dropped(staging: Staging, upload: Upload) -> AsyncIterator[None]:
    """However the block ends, nothing of the upload stays on our disk."""
    try:
        yield
    finally:
        for file in upload.files:
            await staging.drop(file.folder)


def _refused(reason: Reason) -> Response:
    code = Code.UPLOAD_PROCESSING_FAILED
    detail = {"code": code.value, "message": SENTENCES[reason], "reason": reason.value}
    return Response(dumps({"detail": detail}), CODES[code].status, media_type="application/json")
