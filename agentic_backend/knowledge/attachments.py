"""Attachments in knowledge flow: uploads, which take their time, on connections of their own, and deletions."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final

import aiohttp
from yarl import URL

from agentic_backend.errors import KfUnavailable, Unauthenticated, UploadProcessingFailed
from agentic_backend.knowledge.client import KEPT_S, Caller, cause_of
from backend_kit.client.connections import Connections
from backend_kit.client.json_client import CallFailed, HttpRequest, JsonClient
from backend_kit.wire import InvalidJson, loads

logger = logging.getLogger(__name__)

_MAX_ANSWER_BYTES: Final = 256 * 1024
IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/webp"})
"""The media types of images that are re-encoded."""
MAX_IMAGE_BYTES: Final = 10 * 1024 * 1024
"""Of an image as it is sent, and as it is drawn."""
_MAX_SENTENCE_CHARS: Final = 300
_MAX_SIDE: Final = 2048
_REFUSED: Final = frozenset({400, 413, 422})
"""Statuses of a file that is not taken; the answer says why."""
_ANSWERED: Final = _REFUSED | {200, 204}


@dataclass(frozen=True, slots=True)
class AttachmentEndpoint:
    """Where knowledge flow is; seconds of the monotonic clock. `max_connections` uploads at once, more wait."""

    base_url: str
    connect_s: float = 20.0
    ingest_s: float = 120.0
    delete_s: float = 5.0
    max_connections: int = 8
    keepalive_s: float = KEPT_S


@dataclass(frozen=True, slots=True)
class Ingested:
    """An attachment as knowledge flow has it. `preview` is the beginning of its text."""

    document_uid: str
    mime_type: str
    preview: str


@dataclass(frozen=True, slots=True)
class Redrawn:
    """An image that knowledge flow has re-encoded and does not keep. `width` and `height` in pixels."""

    mime_type: str
    width: int
    height: int
    content: bytes = field(repr=False)


class _Lent(aiohttp.payload.IOBasePayload):
    """A file that is its caller's to close: aiohttp's own closes it in a thread some time later, so that two may close
    it at once, which fails for one of them."""

    def _close(self) -> None:
        self._consumed = True


class AttachmentClient:
    """Built on the running loop, closed by `aclose`. What fails raises `KfUnavailable`, a token that is not taken
    `Unauthenticated`; nothing is tried twice, since an upload that was cut may have been done."""

    def __init__(self, endpoint: AttachmentEndpoint) -> None:
        self._endpoint = endpoint
        base = URL(endpoint.base_url.rstrip("/") + "/fast")
        self._ingest, self._image = base / "ingest", base / "image"
        limits = Connections(
            endpoint.max_connections, keepalive_s=endpoint.keepalive_s, connect_s=endpoint.connect_s, pool_s=None
        )
        self._client = JsonClient(limits)

    async def ingest(self, file: IO[bytes], name: str, session_id: str, caller: Caller) -> Ingested:
        """Have a file read and indexed for its session. Raises `UploadProcessingFailed` with the reason in words."""
        answer = _json(await self._upload(self._ingest, caller, _form(file, name, session_id=session_id)))
        try:
            return Ingested(str(answer["document_uid"]), str(answer["mime_type"]), str(answer["preview"]))
        except KeyError:
            raise _unavailable("ingest", "broken answer") from None

    async def redraw(self, file: IO[bytes], name: str, caller: Caller) -> Redrawn:
        """Have an image re-encoded, at most 2,048 pixels a side and without metadata. Raises `UploadProcessingFailed`
        with the reason as text."""
        found = await self._upload(self._image, caller, _form(file, name))
        try:
            width, height = (int(found.headers[f"X-Image-{side}"]) for side in ("Width", "Height"))
        except (KeyError, ValueError):
            raise _unavailable("image", "broken answer") from None
        mime = found.headers.get("Content-Type", "")
        if mime not in IMAGE_TYPES or min(width, height) < 1 or max(width, height) > _MAX_SIDE or not found.body:
            raise _unavailable("image", "broken answer")
        return Redrawn(mime, width, height, found.body)

    async def delete(self, document_uid: str, session_id: str, caller: Caller) -> None:
        """Delete one attachment of the caller's; one that is gone already is no failure."""
        url = (self._ingest / document_uid).with_query(session_id=session_id)
        status = (await self._call("DELETE", url, caller, self._endpoint.delete_s)).status
        if status not in (204, 404):
            raise _unavailable("delete", f"HTTP {status}")

    async def delete_session(self, session_id: str, caller: Caller) -> None:
        """Delete all that the caller attached to a session."""
        url = self._ingest.with_query(session_id=session_id)
        status = (await self._call("DELETE", url, caller, self._endpoint.delete_s)).status
        if status != 200:
            raise _unavailable("delete", f"HTTP {status}")

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._client.aclose()

    async def _upload(self, url: URL, caller: Caller, form: aiohttp.FormData) -> "_Answer":
        """The answer of status 200."""
        answer = await self._call("POST", url, caller, self._endpoint.ingest_s, form)
        if answer.status in _REFUSED:
            raise UploadProcessingFailed(_sentence(_json(answer)))
        if answer.status != 200:
            raise _unavailable(url.name, f"HTTP {answer.status}")
        return answer

    async def _call(
        self, method: str, url: URL, caller: Caller, limit_s: float, form: aiohttp.FormData | None = None
    ) -> "_Answer":
        most = MAX_IMAGE_BYTES if url == self._image else _MAX_ANSWER_BYTES
        request = HttpRequest(url, method, form, caller.headers(), max_bytes=most, good=_ANSWERED)
        try:
            found = await self._client.call(request, deadline_s=limit_s)
            answer = _Answer(found.status, found.headers, found.body)
        except CallFailed as failure:
            if not failure.status:
                raise _unavailable(method, cause_of(failure)) from None
            answer = _Answer(failure.status)
        if answer.status == 401:
            raise Unauthenticated
        return answer


@dataclass(frozen=True, slots=True)
class _Answer:
    """What knowledge flow said; without a body where its status is none of `_ANSWERED`, or that was too large."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


def _form(file: IO[bytes], name: str, **fields: str) -> aiohttp.FormData:
    form = aiohttp.FormData(quote_fields=False)
    for field_name, value in fields.items():
        form.add_field(field_name, value)
    form.add_field("file", _Lent(file, content_type="application/octet-stream"), filename=name)
    return form


def _json(answer: _Answer) -> Mapping[str, Any]:
    """The decoded body; an empty one where that is no JSON object."""
    try:
        found = loads(answer.body)
    except InvalidJson:
        return {}
    return found if isinstance(found, dict) else {}


def _sentence(answer: Mapping[str, Any]) -> str:
    """Knowledge flow's sentence for a person, from its closed list of reasons; "" where it gives none."""
    detail = answer.get("detail")
    message = detail.get("message") if isinstance(detail, dict) else None
    return message[:_MAX_SENTENCE_CHARS] if isinstance(message, str) else ""


def _unavailable(what: str, cause: str) -> KfUnavailable:
    logger.warning("knowledge flow failed: attachment %s: %s", what.lower(), cause)
    return KfUnavailable(cause)
