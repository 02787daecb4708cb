"""Compression of REST answers, as plain ASGI: gzip and zstd, as the client accepts and the configuration allows."""

import asyncio
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Literal, Protocol

import zstandard
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Mode = Literal["none", "gzip", "zstd", "auto"]
Encoding = Literal["gzip", "zstd"]


class Compressor(Protocol):
    """Compresses one body, a piece at a time: the output of each call follows that of the calls before."""

    def compress(self, data: bytes, /) -> bytes:
        """Take a piece in; may return nothing."""

    def flush(self) -> bytes:
        """The end."""


Compressors = Mapping[Encoding, Callable[[int], Compressor]]
"""Makes a compressor for a body of that many bytes, -1 if the size is not known."""

MIN_BYTES: Final = 1024
"""A smaller body fits into one packet with its head: compressing it saves nothing."""
OFF_LOOP_BYTES: Final = 64 * 1024
"""A larger piece is compressed in a thread: gzip takes 3 ms for 256 KiB of history, which would block the loop."""

_GZIP_LEVEL: Final = 4
_ZSTD_LEVEL: Final = 3
_ZSTD_SMALL: Final = {"window_log": 17, "hash_log": 15, "chain_log": 14}
"""0.7 MB for each response that is being compressed, instead of 1.3."""
_OFFERED: Final[dict[Mode, tuple[Encoding, ...]]] = {
    "none": (),
    "gzip": ("gzip",),
    "zstd": ("zstd",),
    "auto": ("zstd", "gzip"),
}
_TYPES: Final = ("text/", "application/json", "application/javascript", "image/svg+xml")
_STREAMED: Final = b"text/event-stream"
_AS_IT_IS: Final = b"no-transform"


class Compression:
    """Compresses text answers with status 200, those that come in pieces as they come. Event streams pass unchanged."""

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
        self._compressor: Compressor | None = None

    async def send(self, message: Message) -> None:
        """Pass a message on, compressed if that is worthwhile."""
        if message["type"] == "http.response.start" and not _is_stream(message):
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            message = await self._begin(head, message)
        elif self._compressor is not None:
            message = await _compressed(message, self._compressor)
            if message["more_body"] and not message["body"]:
                return
        await self._send(message)

    async def _begin(self, head: Message, message: Message) -> Message:
        """Send the head; returns the message that follows it, as it is to be sent."""
        headers = MutableHeaders(raw=head["headers"] if "headers" in head else head.setdefault("headers", []))
        if _is_text(headers):
            headers.add_vary_header("Accept-Encoding")
            if self._encoding and self._whole and self._worth_it(head, headers, message):
                more = message.get("more_body", False)
                size = -1 if more else len(message["body"])
                self._compressor = self._compressors[self._encoding](size)
                message = await _compressed(message, self._compressor)
                _describe(headers, self._encoding, None if more else len(message["body"]))
        head["headers"] = headers.raw
        await self._send(head)
        return message

    @staticmethod
    def _worth_it(head: Message, headers: MutableHeaders, message: Message) -> bool:
        if message["type"] != "http.response.body" or head["status"] != 200 or "content-encoding" in headers:
            return False
        return message.get("more_body", False) or len(message["body"]) >= MIN_BYTES


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
    """Whether a response is a stream of events, or of anything else that must not be transformed: its head must not
    wait, as pieces bypass this (`send_now`)."""
    for name, said in head.get("headers", ()):
        if (name == b"content-type" and said.startswith(_STREAMED)) or (name == b"cache-control" and _AS_IT_IS in said):
            return True
    return False


async def _compressed(message: Message, compressor: Compressor) -> Message:
    body: bytes = message.get("body", b"")
    more = message.get("more_body", False)

    def compress() -> bytes:
        return compressor.compress(body) + (b"" if more else compressor.flush())

    # Both libraries release the GIL while they work.
    smaller = compress() if len(body) <= OFF_LOOP_BYTES else await asyncio.to_thread(compress)
    return {**message, "body": smaller, "more_body": more}


def _gzip(_size: int) -> Compressor:
    return zlib.compressobj(_GZIP_LEVEL, wbits=zlib.MAX_WBITS | 16)


def _zstd(size: int) -> Compressor:
    parameters = zstandard.ZstdCompressionParameters.from_level(_ZSTD_LEVEL, **_ZSTD_SMALL)
    return zstandard.ZstdCompressor(compression_params=parameters).compressobj(size)


COMPRESSORS: Final[Compressors] = {"gzip": _gzip, "zstd": _zstd}


def _describe(headers: MutableHeaders, encoding: Encoding, length: int | None) -> None:
    headers["content-encoding"] = encoding
    if length is not None:
        headers["content-length"] = str(length)
    elif "content-length" in headers:
        del headers["content-length"]
    # The compressed bytes differ from the plain ones: a weak tag says that the two are equivalent.
    tag = headers.get("etag")
    if tag is not None and not tag.startswith("W/"):
        headers["etag"] = f"W/{tag}"
    if "accept-ranges" in headers:
        del headers["accept-ranges"]
