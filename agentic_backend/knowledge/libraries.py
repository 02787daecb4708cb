"""Libraries and documents in knowledge flow: what a person does with them, passed on with that person's own rights."""

import logging
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from yarl import URL

from agentic_backend.errors import KfUnavailable
from agentic_backend.knowledge.client import KEPT_S, Caller, cause_of
from backend_kit.aio.retry import QuietLog
from backend_kit.client.connections import Connections
from backend_kit.client.json_client import CallFailed, HttpAnswer, HttpRequest, HttpStream, JsonClient

logger = logging.getLogger(__name__)

_ANY_STATUS: Final = range(200, 600)


@dataclass(frozen=True, slots=True)
class LibraryEndpoint:
    """Where knowledge flow is, and what may be asked of it here. Seconds of the monotonic clock."""

    base_url: str
    call_s: float = 15.0
    """A whole call whose answer is JSON. To delete a library with its documents takes the longest."""
    connect_s: float = 20.0
    silence_s: float = 600.0
    """The longest silence of an upload that has been sent, or of a file that comes: an upload may wait for its turn,
    and says nothing while a large file is read."""
    transfer_s: float = 3600.0
    """A whole upload with its ingestion, or a whole file."""
    max_connections: int = 32
    """Calls at once; more wait, within their deadline."""
    max_transfers: int = 24
    keepalive_s: float = KEPT_S
    max_answer_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class KnowledgeRequest:
    """A request below the base address. `path` begins with a slash and is escaped. `data` is JSON where it is bytes;
    else it comes in pieces, and `headers` has its type."""

    method: str
    path: str
    data: bytes | AsyncIterable[bytes] | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class KnowledgeStream:
    """An answer that comes in pieces."""

    status: int
    headers: Mapping[str, str]
    _stream: HttpStream

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its body. Raises `KfUnavailable` where it breaks off."""
        try:
            async for piece in self._stream.pieces():
                yield piece
        except CallFailed as failure:
            raise KfUnavailable(cause_of(failure)) from None

    async def beginning(self, most: int) -> bytes:
        """Up to about `most` bytes of its body. Raises `KfUnavailable`."""
        body = bytearray()
        async for piece in self.pieces():
            body += piece
            if len(body) >= most:
                break
        return bytes(body)


class LibraryClient:
    """Built on the running loop, closed by `aclose`. What fails raises `KfUnavailable`; any answer is the caller's to
    judge. Nothing is tried twice: what was cut may have been done."""

    def __init__(self, endpoint: LibraryEndpoint) -> None:
        self._endpoint = endpoint
        self._base = endpoint.base_url.rstrip("/")
        self._log = QuietLog(logger)
        calls = Connections(
            endpoint.max_connections, keepalive_s=endpoint.keepalive_s, connect_s=endpoint.connect_s, pool_s=None
        )
        self._calls = JsonClient(calls)
        # Not the same connections: transfers that wait for their turn must not keep a listing waiting.
        transfers = replace(calls, max_connections=endpoint.max_transfers, read_s=endpoint.silence_s)
        self._transfers = JsonClient(transfers)

    async def call(self, request: KnowledgeRequest, caller: Caller) -> HttpAnswer:
        """The answer, of any status, at most `max_answer_bytes` of it."""
        asked = self._request(request, caller)
        try:
            return await self._calls.call(asked, deadline_s=self._endpoint.call_s)
        except CallFailed as failure:
            raise self._unavailable(request, failure) from None

    @asynccontextmanager
    async def open(self, request: KnowledgeRequest, caller: Caller) -> AsyncIterator[KnowledgeStream]:
        """An answer that is read while it comes, within the block."""
        asked = self._request(request, caller)
        try:
            async with self._transfers.open(asked, deadline_s=self._endpoint.transfer_s) as stream:
                yield KnowledgeStream(stream.status, stream.headers, stream)
        except CallFailed as failure:
            raise self._unavailable(request, failure) from None

    async def aclose(self) -> None:
        """Close the connections. Calls that still run fail."""
        await self._calls.aclose()
        await self._transfers.aclose()

    def _request(self, request: KnowledgeRequest, caller: Caller) -> HttpRequest:
        data = request.data
        url = URL(self._base + request.path, encoded=True)
        headers = {**(request.headers or {}), **caller.headers()}
        most = self._endpoint.max_answer_bytes
        return HttpRequest(url, request.method, data, headers, max_bytes=most, good=_ANY_STATUS)

    def _unavailable(self, request: KnowledgeRequest, failure: CallFailed) -> KfUnavailable:
        cause = f"{request.method} library: {cause_of(failure)}"
        self._log.warning(cause, "knowledge flow failed: %s", cause)
        return KfUnavailable(cause)
