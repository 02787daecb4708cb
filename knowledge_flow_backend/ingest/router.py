"""Files in, and kept ones once more; lines of progress out while they are read."""

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from backend_kit.auth import Identity
from backend_kit.http import error_response, refusals
from backend_kit.wire import dumps
from knowledge_flow_backend.errors import BadRequest, TooLarge
from knowledge_flow_backend.index import Reader
from knowledge_flow_backend.ingest.progress import Destination, Line
from knowledge_flow_backend.ingest.receive import ReceivedFile, Upload, UploadLimits, receive
from knowledge_flow_backend.ingest.service import IngestService
from knowledge_flow_backend.ingest.staging import Staging
from knowledge_flow_backend.library.bodies import Id
from knowledge_flow_backend.library.intake import Intake

logger = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"
_MAX_TAGS = 50
MAX_ID_CHARS = 128


@dataclass(frozen=True, slots=True)
class IngestServices:
    """What the route needs, built in the lifespan."""

    ingest: IngestService
    intake: Intake
    staging: Staging
    limits: UploadLimits


def build_router(services: Callable[[], IngestServices], identify: Callable[..., Any], base: str) -> APIRouter:
    """The route below the base path. `services()` is called at each request."""
    router = APIRouter(prefix=base, tags=["documents"], responses=refusals())
    # The library logs each broken body: a client that sends them would fill the log.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)
    caller = Annotated[Identity, Depends(identify)]

    @router.post("/upload-process-documents")
    async def upload_process_documents(request: Request, identity: caller) -> Response:
        """Take documents in: read, embed and index them. The answer is one JSON line a step."""
        state = services()
        state.ingest.require_open()
        upload = Upload()
        taken: list[ReceivedFile] = []
        await state.ingest.enter(identity.uid)
        try:
            await receive_files(request, state.staging, state.limits, upload)
            where = await _destination(state, identity, upload)
            state.ingest.require_open()
            taken = upload.files
            lines = await state.ingest.ingest(upload.files, where)
        except TooLarge as refused:
            return error_response(request, refused.code)
        except OSError as error:
            raise state.staging.refusal(error) from None
        finally:
            if not taken:
                state.ingest.leave(identity.uid)
                for file in upload.files:
                    await state.staging.drop(file.folder)
        return _stream_lines(lines)

    @router.post("/documents/{uid}/ingest")
    async def ingest_again(uid: Id, identity: caller) -> Response:
        """Read, embed and index the file that is kept of a document again: its owner only. The answer is as of an
        upload; what was there stays until it is replaced. 409 while it is written, for an attachment, and where no file
        is kept."""
        state = services()
        state.ingest.require_open()
        await state.ingest.enter(identity.uid)
        lines = None
        try:
            lines = await state.ingest.again(Reader.of(identity), uid)
        finally:
            if lines is None:
                state.ingest.leave(identity.uid)
        if lines is None:
            raise HTTPException(404, "Document not found.")
        return _stream_lines(lines)

    return router


def _stream_lines(lines: AsyncIterator[Line]) -> Response:
    return StreamingResponse(_encoded(lines), media_type=NDJSON, headers={"Cache-Control": "no-store"})


async def receive_files(request: Request, staging: Staging, limits: UploadLimits, upload: Upload) -> None:
    """Fill `upload` with the files and fields of a request, also where it breaks off.

    Raises as `receive`; also `TooLarge` for a declared length, `BadRequest` where the client has gone or sent no file.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limits.request_bytes:
        raise TooLarge("declared")
    try:
        await receive(request.headers.get("content-type", ""), request.stream(), staging, limits, upload)
    except ClientDisconnect:
        raise BadRequest("the client went away") from None
    if not upload.files:
        raise BadRequest("no files", field="files")


async def _destination(state: IngestServices, identity: Identity, upload: Upload) -> Destination:
    """Where the form says that the files go. Raises `BadRequest`, 404 for a library that is not the caller's."""
    metadata = upload.metadata()
    tags = metadata.get("tags") or []
    source_tag = metadata.get("source_tag")
    if not isinstance(tags, list) or len(tags) > _MAX_TAGS or not all(is_id(tag) for tag in tags):
        raise BadRequest("tags is not a list of ids", field="metadata_json.tags")
    if source_tag is not None and (not isinstance(source_tag, str) or not is_id(source_tag)):
        raise BadRequest("source_tag is not a name", field="metadata_json.source_tag")
    reader = Reader.of(identity)
    chosen = tuple(dict.fromkeys(tags))
    if not await state.intake.owns(reader, chosen):
        raise HTTPException(404, "Library not found.")
    return Destination(reader, chosen, source_tag)


def is_id(value: object) -> bool:
    """Whether a client's value may be an id."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and value.isprintable()


async def _encoded(lines: AsyncIterator[Line]) -> AsyncIterator[bytes]:
    async for line in lines:
        yield dumps(line) + b"\n"
