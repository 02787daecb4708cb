"""WebSocket frames by hand: a client that keeps no rule of RFC 6455 by itself, over plain TCP."""

import asyncio
import contextlib
import struct
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.patience import PATIENCE_S

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
NO_CODE, NO_CLOSE = 1005, 1006
"""What `Peer.close_code` says of a close frame without a code, and of a stream that ended without one."""


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    fin: bool = True,
    reserved: int = 0,
    length: int | None = None,
    width: int | None = None,
    mask: bytes | None = bytes(4),
) -> bytes:
    """A frame of a client. `length` announces another size than the payload has; `width` is the number of bytes that it
    stands in (0, 2 or 8; None: as few as it takes); `mask` None leaves the mask away.
    """
    size = len(payload) if length is None else length
    chosen = width if width is not None else 0 if size < 126 else 2 if size < 65536 else 8
    masked = 0 if mask is None else 0x80
    short = {0: size, 2: 126, 8: 127}[chosen]
    head = bytes([(0x80 if fin else 0) | reserved | opcode, masked | short])
    long = {0: b"", 2: struct.pack("!H", size & 0xFFFF), 8: struct.pack("!Q", size)}[chosen]
    if mask is None:
        return head + long + payload
    if any(mask):
        payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return head + long + mask + payload


def close_frame(code: int, reason: bytes = b"") -> bytes:
    """A close frame with a code."""
    return frame(CLOSE, struct.pack("!H", code) + reason)


def head(
    path: str, *more: str, request: str = "GET {} HTTP/1.1", without: tuple[str, ...] = (), **changed: str
) -> bytes:
    """The head of a handshake. `changed` are other values of headers, by their names with _ for -."""
    headers = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": b64encode(bytes(range(16))).decode(),
        "Sec-WebSocket-Version": "13",
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [f"{name}: {value}" for name, value in headers.items() if name not in without]
    return ("\r\n".join([request.format(path), *lines, *more]) + "\r\n\r\n").encode("latin-1")


@dataclass(slots=True)
class Peer:
    """An open TCP connection. Every wait gives up after `PATIENCE_S` with TimeoutError."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _inflate: Any = field(default_factory=lambda: zlib.decompressobj(wbits=-15))

    async def send(self, data: bytes) -> None:
        """Send bytes; a server that has closed already is no failure, what it said stands in the stream."""
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            async with asyncio.timeout(PATIENCE_S):
                await self.writer.drain()

    async def upgrade(self, sent: bytes) -> bytes:
        """Send a handshake; the head of the answer, b"" where the connection ended without one."""
        await self.send(sent)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def hear(self) -> tuple[int, bytes]:
        """The next frame of the server: opcode and inflated payload. Raises EOFError at the end of the stream."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                first, second = await self.reader.readexactly(2)
                size = second & 0x7F
                if size == 126:
                    (size,) = struct.unpack("!H", await self.reader.readexactly(2))
                elif size == 127:
                    (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
                payload = await self.reader.readexactly(size)
                if first & 0x40:
                    payload = self._inflate.decompress(payload + b"\0\0\xff\xff")
                return first & 0x0F, payload
        except (asyncio.IncompleteReadError, ConnectionError):
            raise EOFError from None

    async def close_code(self) -> int:
        """Read up to the server's close frame: its code, `NO_CODE` or `NO_CLOSE`."""
        try:
            while True:
                opcode, payload = await self.hear()
                if opcode == CLOSE:
                    return int(struct.unpack("!H", payload[:2])[0]) if payload else NO_CODE
        except EOFError:
            return NO_CLOSE

    async def ended(self) -> None:
        """Return once the server has ended the connection; what it still says is dropped."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE_S):
                while await self.reader.read(65536):
                    pass


@contextlib.asynccontextmanager
async def peer(port: int) -> AsyncIterator[Peer]:
    """A connection to a port of this machine, cut without a word after the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.transport.abort()
