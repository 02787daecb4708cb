"""Attachments in knowledge flow: uploads, which take their time, on connections of their own, and deletions."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

import aiohttp
from yarl import URL

from agentic_backend.errors import KfUnavailable, Unauthenticated, UploadProcessingFailed
from agentic_backend.knowledge.client import KEPT_S, Caller, cause_of
from backend_kit.client.connections import Connections
from backend_kit.client.json_client import CallFailed, HttpRequest, JsonClient

logger = logging.getLogger(__name__)

_MAX_ANSWER_BYTES: Final = 256 * 1024
_MAX_SENTENCE_CHARS: Final = 300
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
        self._ingest = URL(endpoint.base_url.rstrip("/") + "/fast/ingest")
        limits = Connections(
            endpoint.max_connections, keepalive_s=endpoint.keepalive_s, connect_s=endpoint.connect_s, pool_s=None
        )
        self._client = JsonClient(limits)

    async def ingest(self, file: IO[bytes], name: str, session_id: str, caller: Caller) -> Ingested:
        """Have a file read and indexed for its session. Raises `UploadProcessingFailed` with the reason in words."""
        form = aiohttp.FormData(quote_fields=False)
        form.add_field("session_id", session_id)
        form.add_field("file", _Lent(file, content_type="application/octet-stream"), filename=name)
        status, answer = await self._call("POST", self._ingest, caller, self._endpoint.ingest_s, form)
        if status in _REFUSED:
            raise UploadProcessingFailed(_sentence(answer))
        if status != 200:
            raise _unavailable("ingest", f"HTTP {status}")
        try:
            return Ingested(str(answer["document_uid"]), str(answer["mime_type"]), str(answer["preview"]))
        except KeyError:
            raise _unavailable("ingest", "broken answer") from None

    async def delete(self, document_uid: str, session_id: str, caller: Caller) -> None:
        """Delete one attachment of the caller's; one that is gone already is no failure."""
        url = (self._ingest / document_uid).with_query(session_id=session_id)
        status, _ = await self._call("DELETE", url, caller, self._endpoint.delete_s)
        if status not in (204, 404):
            raise _unavailable("delete", f"HTTP {status}")

    async def delete_session(self, session_id: str, caller: Caller) -> None:
        """Delete all that the caller attached to a session."""
        url = self._ingest.with_query(session_id=session_id)
        status, _ = await self._call("DELETE", url, caller, self._endpoint.delete_s)
        if status != 200:
            raise _unavailable("delete", f"HTTP {status}")

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._client.aclose()

    async def _call(
        self, method: str, url: URL, caller: Caller, limit_s: float, form: aiohttp.FormData | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        """Status and decoded body; an empty one where that is no JSON object."""
        request = HttpRequest(url, method, form, caller.headers(), max_bytes=_MAX_ANSWER_BYTES, good=_ANSWERED)
        answer = None
        try:
            found = await self._client.call(request, deadline_s=limit_s)
            status = found.status
            answer = found.json()
        except CallFailed as failure:
            if not failure.status:
                raise _unavailable(method, cause_of(failure)) from None
            status = failure.status
        if status == 401:
            raise Unauthenticated
        return status, answer if isinstance(answer, dict) else {}


def _sentence(answer: Mapping[str, Any]) -> str:
    """Knowledge flow's sentence for a person, from its closed list of reasons; "" where it gives none."""
    detail = answer.get("detail")
    message = detail.get("message") if isinstance(detail, dict) else None
    return message[:_MAX_SENTENCE_CHARS] if isinstance(message, str) else ""


def _unavailable(what: str, cause: str) -> KfUnavailable:
    logger.warning("knowledge flow failed: attachment %s: %s", what.lower(), cause)
    return KfUnavailable(cause)
