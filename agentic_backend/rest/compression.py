"""Compression of REST answers, as plain ASGI: gzip and zstd, as the client accepts and the configuration allows."""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal

import zstandard
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Mode = Literal["none", "gzip", "zstd", "auto"]
Encoding = Literal["gzip", "zstd"]
Compressors = Mapping[Encoding, Callable[[bytes], bytes]]

MIN_BYTES: Final = 1024
"""A smaller body fits into one packet with its head: compressing it saves nothing."""
OFF_LOOP_BYTES: Final = 64 * 1024
"""A larger body is compressed in a thread: gzip takes 3 ms for 256 KiB of history, which would block the loop."""

_GZIP_LEVEL: Final = 4
_ZSTD_LEVEL: Final = 3
_OFFERED: Final[dict[Mode, tuple[Encoding, ...]]] = {
    "none": (),
    "gzip": ("gzip",),
    "zstd": ("zstd",),
    "auto": ("zstd", "gzip"),
}
_TYPES: Final = ("text/", "application/json", "application/javascript", "image/svg+xml")
_STREAMED: Final = b"text/event-stream"


class Compression:
    """Compresses whole text answers with status 200; streamed answers (SSE, large files) pass unchanged."""

    def __init__(self, app: ASGIApp, mode: Mode, *, compressors: Compressors | None = None) -> None:
        self._app = app
        self._compressors = compressors or COMPRESSORS
        self._offered = _OFFERED[mode]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not self._offered:
            await self._app(scope, receive, send)
            return
        encoding = chosen(Headers(scope=scope).get("accept-encoding", ""), self._offered)
        await self._app(
            scope, receive, _Answer(send, encoding, self._compressors, whole=scope["method"] != "HEAD").send
        )


class _Answer:
    """One answer in progress: its head is held back until the first body chunk shows whether it is the only one."""

    def __init__(self, send: Send, encoding: Encoding | None, compressors: Compressors, *, whole: bool) -> None:
        self._send = send
        self._encoding = encoding
        self._compressors = compressors
        self._whole = whole
        self._head: Message | None = None

    async def send(self, message: Message) -> None:
        """Pass a message on, compressed if that is worthwhile."""
        if message["type"] == "http.response.start" and not _is_stream(message):
            self._head = message
            return
        head, self._head = self._head, None
        if head is None:
            await self._send(message)
            return
        headers = MutableHeaders(raw=head["headers"] if "headers" in head else head.setdefault("headers", []))
        if _is_text(headers):
            headers.add_vary_header("Accept-Encoding")
            body: bytes = message.get("body", b"")
            if self._encoding and self._whole and self._worth_it(head, headers, message):
                message = {**message, "body": await _compressed(body, self._compressors[self._encoding])}
                _describe(headers, self._encoding, len(message["body"]))
        head["headers"] = headers.raw
        await self._send(head)
        await self._send(message)

    @staticmethod
    def _worth_it(head: Message, headers: MutableHeaders, message: Message) -> bool:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            return False
        return head["status"] == 200 and "content-encoding" not in headers and len(message["body"]) >= MIN_BYTES


@lru_cache(maxsize=64)
def chosen(accepted: str, offered: tuple[Encoding, ...]) -> Encoding | None:
    """The offered encoding that the client prefers (RFC 9110 §12.5.3), the first of equals; None: no encoding."""
    weights: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, _, parameter = item.partition(";")
        weights[name.strip()] = _weight(parameter)
    rest = weights.get("*", 0.0)
    ranked = [(weights.get(encoding, rest), encoding) for encoding in offered]
    best = max(ranked, key=lambda pair: pair[0], default=(0.0, None))
    return best[1] if best[0] > 0 else None


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _is_text(headers: MutableHeaders) -> bool:
    return headers.get("content-type", "").startswith(_TYPES)


def _is_stream(head: Message) -> bool:
    """Whether an answer is a stream of events: its head must not wait, as pieces are sent past this (`send_now`)."""
    return any(name == b"content-type" and kind.startswith(_STREAMED) for name, kind in head.get("headers", ()))


async def _compressed(body: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    # Both libraries release the GIL while they work.
    return compress(body) if len(body) <= OFF_LOOP_BYTES else await asyncio.to_thread(compress, body)


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(_GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)
    return compressor.compress(body) + compressor.flush()


def _zstd(body: bytes) -> bytes:
    # Not shared: only one thread may use a compressor at a time.
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)


COMPRESSORS: Final[Compressors] = {"gzip": _gzip, "zstd": _zstd}
"""What makes a whole body smaller; called on the loop or, for a large body, in a thread."""


def _describe(headers: MutableHeaders, encoding: Encoding, length: int) -> None:
    headers["content-encoding"] = encoding
    headers["content-length"] = str(length)
    # The compressed bytes differ from the plain ones: a weak tag says that the two are equivalent.
    tag = headers.get("etag")
    if tag is not None and not tag.startswith("W/"):
        headers["etag"] = f"W/{tag}"
    if "accept-ranges" in headers:
        del headers["accept-ranges"]
