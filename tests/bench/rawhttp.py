"""An HTTP client that is cheap enough to be no limit: a connection that is kept, one await a request, answers as lines.

As `rawsocket` is for frames: a client that parses events as they come costs a core of its own at a thousand streams.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import cast

from tests.bench.rawsocket import SocketFailed

_LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; the names of `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class RawHttp(asyncio.Protocol):
    """One connection, on which one request is answered at a time.

    `first_at` and `ended_at` are the arrival of the answer's first piece with `mark` in it, and of its end, on the
    clock of `time.perf_counter`; `chars` counts the bytes heard of the one under way.
    """

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._tail = b""
        self._head = b""
        self._left: int | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        self.chars = 0
        self.first_at: float | None = None
        self.ended_at = 0.0

    async def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """Send a request; its answer. Raises `SocketFailed` where the connection ends before it."""
        if self._gone.is_set() or self._transport is None:
            raise SocketFailed("the connection has ended")
        self._pieces, self._tail, self._head, self._left = [], b"", b"", None
        self.chars, self.first_at = 0, None
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        try:
            await self._waiter
        finally:
            self._waiter = None
        return _answer_of(self._head, b"".join(self._pieces))

    async def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
            await self._gone.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: connected."""
        # uvloop's transports have the interface without being subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: closed, by either side."""
        self._gone.set()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(SocketFailed(f"the connection has ended: {exc or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        """Called by the loop: a head, then what follows it."""
        if not self._head:
            before, complete, data = (b"".join(self._pieces) + data).partition(b"\r\n\r\n")
            if not complete:
                self._pieces = [before]
                return
            self._head, self._pieces = before, []
            length = _headers_of(before).get("content-length")
            self._left = None if length is None else int(length)
            self._tail = b"\r\n"
        self._take(data)

    def _take(self, data: bytes) -> None:
        self._pieces.append(data)
        self.chars += len(data)
        if self.first_at is None and self._mark in data:
            self.first_at = time.perf_counter()
        if self._left is not None:
            self._left -= len(data)
            ended = self._left <= 0
        else:
            # What comes in one piece of the network may end anywhere: the last bytes of two of them are looked at.
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            ended = self._tail == _LAST_CHUNK
        if ended and self._waiter is not None and not self._waiter.done():
            self.ended_at = time.perf_counter()
            self._waiter.set_result(None)


def _headers_of(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _answer_of(head: bytes, body: bytes) -> Answer:
    headers = _headers_of(head)
    chunked = headers.get("transfer-encoding") == "chunked"
    return Answer(int(head.split(b" ", 2)[1]), headers, _unchunked(body) if chunked else body)


def _unchunked(body: bytes) -> bytes:
    found: list[bytes] = []
    at = 0
    while at < len(body):
        begin = body.index(b"\r\n", at) + 2
        length = int(body[at : begin - 2], 16)
        found.append(body[begin : begin + length])
        at = begin + length + 2
    return b"".join(found)


async def dial_http(port: int, mark: bytes) -> RawHttp:
    """An open connection to a port of this machine. Raises OSError where nobody listens."""
    loop = asyncio.get_running_loop()
    _, opened = await loop.create_connection(lambda: RawHttp(mark), "127.0.0.1", port)
    return opened
