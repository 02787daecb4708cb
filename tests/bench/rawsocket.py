"""A WebSocket client that is cheap enough to be no limit: frames are parsed as they arrive, and one await is a turn.

A client that awaits each frame costs 10 to 20 us a frame, which at a thousand streams is a core of its own. It knows a
server that keeps the rules: what breaks them ends the connection with an error.
"""

import asyncio
import time
import zlib
from typing import Any, cast

from tests.support.raw import CLOSE, PING, PONG, TEXT, close_frame, frame, head

_FIN, _COMPRESSED, _OPCODE = 0x80, 0x40, 0x0F
_LONG, _LONGER = 126, 127
_CLOSES_WITHIN_S = 10.0
_TAIL = b"\0\0\xff\xff"
"""What permessage-deflate leaves away at the end of each message."""


class SocketFailed(Exception):
    """The server broke the rules, said goodbye, or has gone."""


class FrameReader:
    """Cuts what a server sends into frames, however it arrives."""

    def __init__(self) -> None:
        self._rest = b""
        self._inflate: Any = zlib.decompressobj(wbits=-15)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are complete now: opcode and payload. Raises `SocketFailed` for what no server may send."""
        if self._rest:
            data = self._rest + data
        found = []
        at, end = 0, len(data)
        while end - at >= 2:
            first, length, begin = data[at], data[at + 1], at + 2
            if length >= _LONG:
                if length > _LONGER:
                    raise SocketFailed("a masked frame")
                begin += 2 if length == _LONG else 8
                if begin > end:
                    break
                length = int.from_bytes(data[at + 2 : begin], "big")
            if begin + length > end:
                break
            at = begin + length
            if not first & _FIN:
                raise SocketFailed("a message in several frames")
            payload = data[begin:at]
            if first & _COMPRESSED:
                payload = self._inflate.decompress(payload + _TAIL)
            found.append((first & _OPCODE, payload))
        self._rest = data[at:]
        return found


class RawSocket(asyncio.Protocol):
    """One connection, on which one exchange runs at a time: a text out, texts in until one that begins as an end does.

    `first_at` and `ended_at` are the arrival of the exchange's first text that begins with `mark`, and of its end, on
    the clock of `time.perf_counter`; `chars` counts the characters heard of the one under way.
    """

    def __init__(self, ends: tuple[str, ...], mark: str) -> None:
        self._ends = tuple(end.encode() for end in ends)
        self._mark = mark.encode()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._head: bytes | None = b""
        self._deflates = False
        self._heard: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        self._closing = False
        self._failure: SocketFailed | None = None
        self.chars = 0
        self.first_at: float | None = None
        self.ended_at = 0.0

    async def upgrade(self, path: str, *headers: str, deflate: bool = False) -> None:
        """Shake hands. Raises `SocketFailed` where the server does not."""
        more = ("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits",) if deflate else ()
        await self._wait_after(head(path, *headers, *more))

    async def exchange(self, text: str) -> list[str]:
        """Send a text; the texts up to the end, the end included. Raises `SocketFailed`."""
        self._heard, self.chars, self.first_at = [], 0, None
        await self._wait_after(self._framed(text.encode()))
        heard, self._heard = self._heard, []
        return [one.decode() for one in heard]

    async def close(self) -> None:
        """Say goodbye, and return when the server has closed. One that is gone already is closed."""
        if self._transport is None or self._gone.is_set():
            return
        self._closing = True
        self._transport.write(close_frame(1000))
        try:
            async with asyncio.timeout(_CLOSES_WITHIN_S):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop: connected."""
        # uvloop's transports have the interface without being subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop: closed, by either side."""
        self._gone.set()
        self._fail(SocketFailed(f"the connection has ended: {exc or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        """Called by the loop: the head of the handshake, then frames."""
        try:
            if self._head is not None:
                data = self._shake(self._head + data)
            for opcode, payload in self._reader.feed(data) if data else ():
                if opcode == TEXT:
                    self._hear(payload)
                else:
                    self._obey(opcode, payload)
        except (SocketFailed, zlib.error) as error:
            self._fail(error if isinstance(error, SocketFailed) else SocketFailed(str(error)))
            if self._transport is not None:
                self._transport.abort()

    def _shake(self, data: bytes) -> bytes:
        """What follows the head of the answer, once that is complete."""
        before, complete, after = data.partition(b"\r\n\r\n")
        if not complete:
            self._head = data
            return b""
        if not before.startswith(b"HTTP/1.1 101 "):
            raise SocketFailed(data[:300].decode("latin-1"))
        self._head = None
        self._deflates = b"permessage-deflate" in before.lower()
        self._wake()
        return after

    def _hear(self, payload: bytes) -> None:
        self._heard.append(payload)
        self.chars += len(payload)
        if self.first_at is None and payload.startswith(self._mark):
            self.first_at = time.perf_counter()
        if payload.startswith(self._ends):
            self.ended_at = time.perf_counter()
            self._wake()

    def _obey(self, opcode: int, payload: bytes) -> None:
        assert self._transport is not None
        if opcode == PING:
            self._transport.write(frame(PONG, payload))
        elif opcode == CLOSE:
            if not self._closing:
                self._transport.write(frame(CLOSE, payload[:2]))
                self._fail(SocketFailed(f"closed by the server: {payload[2:].decode(errors='replace')}"))
            self._transport.close()
        elif opcode != PONG:
            raise SocketFailed(f"a frame of kind {opcode}")

    def _framed(self, payload: bytes) -> bytes:
        """A message of ours. With a mask of zeros a server has as much to do, and this side nothing."""
        if not self._deflates:
            return frame(TEXT, payload)
        squeeze = zlib.compressobj(wbits=-15)
        squeezed = squeeze.compress(payload) + squeeze.flush(zlib.Z_SYNC_FLUSH)
        return frame(TEXT, squeezed.removesuffix(_TAIL), reserved=_COMPRESSED)

    async def _wait_after(self, sent: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(sent)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, failure: SocketFailed) -> None:
        self._failure = self._failure or failure
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._failure)


async def dial(
    port: int, path: str, *headers: str, ends: tuple[str, ...], mark: str, deflate: bool = False
) -> RawSocket:
    """An open socket on a port of this machine. Raises `SocketFailed`, and OSError where nobody listens."""
    loop = asyncio.get_running_loop()
    _, opened = await loop.create_connection(lambda: RawSocket(ends, mark), "127.0.0.1", port)
    await opened.upgrade(path, *headers, deflate=deflate)
    return opened
